"""A forward pass of several networks of equal sizes at once, each in frames of its own.

A small forward pass takes longer for its preparations than for its arithmetic: what needs no
parameters is done once for the frames of all networks.
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
from rogue_net.ragged import EntityBatch, of_action
from rogue_net.rogue_net import RogueNet


def are_alike(one: Any, other: Any) -> bool:
    """Return whether two networks may choose together: those of this package, of equal sizes."""
    heads = (CategoricalHead, SelectEntityHead)
    return (
        type(one) is type(other) is RogueNet
        and (one.obs_space, one.action_space) == (other.obs_space, other.action_space)
        and one.embedding.types == other.embedding.types  # equal spaces may differ in the order
        and [*one.action_space] == [*other.action_space]
        and all(space.after is None for space in one.action_space.values())
        and all(type(head) in heads for net in (one, other) for head in net.action_heads.values())
        and backend.are_of_one_size(one, other)
    )


@torch.no_grad()
def choose_together(
    nets: Sequence[RogueNet],
    frames: Sequence[int],
    batch: EntityBatch,
    uniforms: Mapping[str, Tensor] | None,
) -> NetOutput | None:
    """Let networks that are alike choose, each in its own frames.

    Args:
        nets: the networks. All but the first must never change if their parameters need no
            gradients: they are prepared once.
        frames: the number of consecutive frames of each.
        batch: the frames of all.
        uniforms: per action (actors,) float32 in [0, 1) to sample with; None for the most probable
            choices.

    Returns:
        With values if a network has them, NaN of the others; None if compiled code does not
        support these networks.
    """
    first, *others = nets
    entities = backend.run(
        first, batch, with_heads=True, uniforms=uniforms, others=others, num_frames=frames
    )
    if entities is None:
        return None
    decisions = dict(entities.decisions)
    for name in first.action_space:
        if name not in decisions:
            heads: list[Any] = [net.action_heads[module_key(name)] for net in nets]
            action = batch.actions[name]
            distribution = heads[0].together(heads, frames, entities.x, entities.layout, action)
            decisions[name] = decide(distribution, None, of_action(uniforms, name))
    with_values = max(nets, key=lambda net: len(net.regression_heads))
    return output_of(
        {name: decisions[name] for name in first.action_space}, with_values.values_of(entities)
    )
