"""Overrides of a configuration that several benchmarks share."""

import json

SQUARED_ERRORS = "ppo.value_loss=mse"
CLIPPED_VALUES = (
    "ppo.value_norm=false",
    "ppo.norm_adv_floor=0",
    "ppo.clip_vloss=true",
    SQUARED_ERRORS,
)
"""Value loss up to version 7 of the configuration."""
LAMBDA, LINEAR_ENTROPY = "ppo.gae_lambda=0.95", "ppo.ent_anneal_power=1"
"""Advantages and entropy coefficient of these versions."""


def relpos(extent: int, *features: str, net: str = "net") -> tuple[str, ...]:
    """Return the overrides that enable relative position encodings.

    Args:
        extent: extent of each feature.
        features: position features.
        net: section of the network.
    """
    section = f"{net}.relpos_encoding"
    extents = f"{section}.extent={[extent] * len(features)}"
    return extents, f"{section}.position_features={json.dumps(features)}"
