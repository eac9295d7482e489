"""Which frames are learnt from together: minibatches, and the pieces that they are cut into."""

from collections.abc import Iterator

import numpy as np
import numpy.typing as npt

from enn_trainer.frame_memory import microbatches
from entity_env.seeding import derive_seed

Frames = npt.NDArray[np.int64]

PIECE_ENTITIES = 8192
"""So many entities at most go through a network together: what they make stays in the cache."""
LEAST_COST = 3 * 2**18
"""With less the operations would cost more than what they do: 768 entities of d_model 32."""


def minibatches(
    num_frames: int, size: int, epochs: int, seed: int, shuffle: bool = True
) -> Iterator[Frames]:
    """The frames of each minibatch: every frame once per epoch.

    They come in an order that `seed` gives, or one after the other.
    """
    for epoch in range(epochs):
        order = np.arange(num_frames)
        if shuffle:
            order = np.random.default_rng(derive_seed(seed, epoch)).permutation(num_frames)
        for start in range(0, num_frames, size):
            yield order[start : start + size]


def pieces(
    entities: Frames, size: int | None, max_entities: int | None, cost_of_entity: int | None
) -> list[Frames]:
    """Cut a minibatch into pieces that can be computed at the same time.

    The cut depends on the minibatch alone. Pieces for lanes have frames of like numbers of entities
    and cost about the same, and where there are several their number is even.

    Args:
        entities: (F,) int64, how many each frame has.
        size: frames of a piece at most, None for no limit.
        max_entities: entities of a piece at most, as of `microbatches`.
        cost_of_entity: see `lanes.py`; None to cut no further than these limits ask for.

    Returns:
        Positions in the minibatch, (frames,) int64 each.
    """
    if cost_of_entity is None:
        everyone = np.arange(len(entities))
        return [everyone[piece] for piece in microbatches(entities, size, max_entities)]
    order = np.argsort(entities, kind="stable")
    costs = np.cumsum(entities[order] + 1)
    total = int(costs[-1])
    count = 1
    if total * cost_of_entity >= 2 * LEAST_COST:
        count = 2 * -(-total // (2 * PIECE_ENTITIES))
    cuts = np.searchsorted(costs, total * np.arange(1, count) // count)
    return [
        part[piece]
        for part in np.split(order, cuts)
        for piece in microbatches(entities[part], size, max_entities)
    ]
