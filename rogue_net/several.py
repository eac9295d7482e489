"""Batched forward pass of several networks of equal sizes, each in separate frames.

The overhead of a small forward pass exceeds its arithmetic. Everything that needs no parameters is
computed once for the frames of all networks.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from rogue_net.actions.distributions import decide
from rogue_net.actions.heads import CategoricalHead, SelectEntityHead
from rogue_net.answer import NetOutput, output_of
from rogue_net.embedding import module_key
from rogue_net.native import backend
from rogue_net.ragged import EntityBatch, lookup
from rogue_net.rogue_net import RogueNet


def can_batch(net: Any, other: Any) -> bool:
    """Return whether `act_batched` supports two networks: `RogueNet` of equal sizes."""
    heads = (CategoricalHead, SelectEntityHead)
    return (
        type(net) is type(other) is RogueNet
        and (net.obs_space, net.action_space) == (other.obs_space, other.action_space)
        and net.embedding.types == other.embedding.types  # equal spaces may differ in the order
        and [*net.action_space] == [*other.action_space]
        and all(space.after is None for space in net.action_space.values())
        and all(type(head) in heads for x in (net, other) for head in x.action_heads.values())
        and backend.are_of_one_size(net, other)
    )


@torch.no_grad()
def act_batched(
    nets: Sequence[RogueNet],
    frames: Sequence[int],
    batch: EntityBatch,
    uniforms: Mapping[str, Tensor] | None,
) -> NetOutput | None:
    """Choose actions with several networks, each in its own frames.

    Args:
        nets: networks that pass `can_batch`. The weights of all but the first are cached if they
            require no gradients, so they must never change.
        frames: the number of consecutive frames of each network.
        batch: the frames of all networks.
        uniforms: per action (actors,) float32 in [0, 1) to sample with; None for the most probable
            choices.

    Returns:
        The output, with values if a network has them, NaN for the others; None if compiled code
        does not support these networks.
    """
    first, *other_nets = nets
    entities = backend.run(
        first, batch, with_heads=True, uniforms=uniforms, other_nets=other_nets, num_frames=frames
    )
    if entities is None:
        return None
    decisions = dict(entities.decisions)
    for name in first.action_space:
        if name not in decisions:
            heads: list[Any] = [net.action_heads[module_key(name)] for net in nets]
            action = batch.actions[name]
            distribution = heads[0].batched(heads, frames, entities.x, entities.layout, action)
            decisions[name] = decide(distribution, None, lookup(uniforms, name))
    with_values = max(nets, key=lambda net: len(net.regression_heads))
    return output_of(
        {name: decisions[name] for name in first.action_space}, with_values.values_of(entities)
    )
