"""The settings of the network. See `enn_trainer/config/` for how they are written. No torch."""

import math
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import List, Literal, Optional, TypeAlias

from entity_env.strict_fields import StrictFields
from rogue_net.relpos import RelposEncodingConfig, TranslationConfig

Init: TypeAlias = Literal["published", "scaled"]
Precision: TypeAlias = Literal["float32", "bfloat16"]
"""Number formats of a network."""
INPUTS = ("action", "reward")
"""Additional inputs of memory."""


LEAST_STD, MOST_STD = 0.01, 2.0
"""Limits of the standard deviation of bounded components; a larger one would reduce the entropy."""


@dataclass
class MemoryConfig(StrictFields):
    """Recurrent state of the network, between the frames of an episode.

    Attributes:
        of: "frame" for a recurrent state of each environment, "entity" for one of each entity,
            which is identified by its id, or "both".
        types: Entity types with recurrent states; all types that have ids if empty.
        d_memory: Width of the recurrent states; `d_model` if not set.
        n_layer: Number of transformer layers between memory and heads, in addition to the layers
            before memory.
        keep_absent: Number of frames for which the states of entities that are not observed are
            retained and attended to; then they are dropped.
        inputs: Additional inputs of memory: "action" for the choices of the frame, "reward" for
            the last reward.
    """

    of: Literal["frame", "entity", "both"] = "both"
    types: List[str] = field(default_factory=list)
    d_memory: Optional[int] = None
    n_layer: int = 1
    keep_absent: int = 16
    inputs: List[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        problems = []
        if self.of not in ("frame", "entity", "both"):
            problems.append(f'of: expected "frame", "entity" or "both", got {self.of!r}')
        for name, least in (("d_memory", 1), ("n_layer", 1), ("keep_absent", 0)):
            value = getattr(self, name)
            if value is not None and value < least:
                problems.append(f"{name}: expected at least {least}, got {value}")
        if unknown := [name for name in self.inputs if name not in INPUTS]:
            problems.append(f"inputs: expected some of {', '.join(INPUTS)}, got {unknown}")
        if self.of == "frame":
            entity_settings = {
                "types": bool(self.types),
                "keep_absent": self.keep_absent != MemoryConfig.keep_absent,
            }
            problems += [
                f'{name}: expected of="entity" or "both", as of="frame" keeps no states of '
                "entities; leave it out"
                for name, is_set in entity_settings.items()
                if is_set
            ]
        if problems:
            raise ValueError("; ".join(problems))

    @property
    def has_frame_state(self) -> bool:
        """True if the environment has a recurrent state."""
        return self.of != "entity"

    @property
    def has_entity_states(self) -> bool:
        """True if entities have recurrent states."""
        return self.of != "frame"


@dataclass
class RogueNetConfig(StrictFields):
    """Hyperparameters of a `RogueNet`.

    Attributes:
        embd_pdrop: Dropout probability for embedding layer.
        resid_pdrop: Dropout probability for residual branches.
        attn_pdrop: Dropout probability for attention.
        n_layer: Number of transformer layers.
        n_head: Number of attention heads.
        d_model: Dimension of embedding.
        pooling: Replace attention layer with "mean", "max", or "meanmax" pooling.
        relpos_encoding: Relative positional encoding settings.
        d_qk: Dimension of keys and queries in select-entity action heads.
        translation: Settings for transforming all position features to be centered on one entity.
        precision: Number format of the layers between embedding and heads; weights and outputs are
            float32 in both cases. "bfloat16" is faster on processors that support it, for
            d_model above 64: smaller networks are compiled for the CPU in float32. "auto" chooses
            by d_model and the processor when a run starts; a resumed run keeps the choice.
        init: Initial weights of the blocks: "scaled" by the width of their input, or "published"
            with a standard deviation of 0.02 at every width, with which the outputs of narrow
            networks hardly depend on the frame at first.
        memory: Recurrent state between the frames of an episode; none if not set.
        init_std: Initial standard deviation of continuous actions; of bounded components, before
            the logistic function: 1 is a fifth of the range.
    """

    embd_pdrop: float = 0.0
    resid_pdrop: float = 0.0
    attn_pdrop: float = 0.0
    n_layer: int = 2
    n_head: int = 2
    d_model: int = 32
    pooling: Optional[Literal["mean", "max", "meanmax"]] = None
    relpos_encoding: Optional[RelposEncodingConfig] = None
    d_qk: int = 16
    translation: Optional[TranslationConfig] = None
    precision: Literal["float32", "bfloat16", "auto"] = "float32"
    init: Init = "scaled"
    memory: Optional[MemoryConfig] = None
    init_std: float = 1.0

    def __post_init__(self) -> None:
        if problems := list(_problems(self)):
            raise ValueError("; ".join(problems))

    @property
    def drops(self) -> bool:
        """True if a dropout probability is above 0."""
        return max(self.embd_pdrop, self.resid_pdrop, self.attn_pdrop) > 0


@dataclass
class ValueBinsConfig(StrictFields):
    """Bins of equal width for a categorical value function.

    Attributes:
        low: Lower edge of the lowest bin. It should be below the lowest return.
        high: Upper edge of the highest bin. It should be above the highest return.
        num_bins: Number of bins.
        sigma: Standard deviation of the target, a Gaussian around the return, in widths of a bin.
    """

    low: float
    high: float
    num_bins: int = 51
    sigma: float = 0.75

    def __post_init__(self) -> None:
        problems = []
        if not -math.inf < self.low < self.high < math.inf:
            problems.append(
                f"high: expected finite numbers with low < high, got low={self.low}, "
                f"high={self.high}"
            )
        if self.num_bins < 2:
            problems.append(f"num_bins: expected at least 2, got {self.num_bins}")
        if not 0 < self.sigma < math.inf:
            problems.append(f"sigma: expected a finite number above 0, got {self.sigma}")
        if problems:
            raise ValueError("; ".join(problems))


def _problems(config: RogueNetConfig) -> Iterator[str]:
    # Numbers.
    for name, least in (("n_layer", 0), ("n_head", 1), ("d_model", 1), ("d_qk", 1)):
        if getattr(config, name) < least:
            yield f"{name}: expected at least {least}, got {getattr(config, name)}"
    if min(config.n_head, config.d_model) > 0 and config.d_model % config.n_head:
        yield f"n_head: expected a divisor of d_model={config.d_model}, got {config.n_head}"
    for name in ("embd_pdrop", "resid_pdrop", "attn_pdrop"):
        if not 0 <= getattr(config, name) < 1:
            yield f"{name}: expected a probability in [0, 1), got {getattr(config, name)}"
    if not LEAST_STD < config.init_std < MOST_STD:
        limits = f"between {LEAST_STD} and {MOST_STD}"
        yield f"init_std: expected a number {limits}, got {config.init_std}"
    # Choices.
    if config.pooling not in (None, "mean", "max", "meanmax"):
        yield f'pooling: expected None, "mean", "max" or "meanmax", got {config.pooling!r}'
    if config.precision not in ("float32", "bfloat16", "auto"):
        yield f'precision: expected "float32", "bfloat16" or "auto", got {config.precision!r}'
    if config.init not in ("published", "scaled"):
        yield f'init: expected "published" or "scaled", got {config.init!r}'
    # Settings of attention have no effect with pooling.
    if config.pooling is not None and config.relpos_encoding is not None:
        yield (
            "relpos_encoding: expected pooling=None, as pooling replaces the attention that uses "
            "relative positions; leave one of them out"
        )
    if config.pooling is not None and config.attn_pdrop:
        yield ("attn_pdrop: expected pooling=None, as pooling replaces attention; leave it out")
