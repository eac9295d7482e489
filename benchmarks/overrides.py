"""Changes of a configuration that several benchmarks make."""

import json


def relpos(extent: int, *features: str, net: str = "net") -> tuple[str, ...]:
    """Return the changes that give a network relative positions.

    Args:
        extent: of each feature.
        features: of the position.
        net: section of the network.
    """
    section = f"{net}.relpos_encoding"
    extents = f"{section}.extent={[extent] * len(features)}"
    return extents, f"{section}.position_features={json.dumps(features)}"
