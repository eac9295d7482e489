"""Forward passes of several networks of equal sizes at once, each in frames of its own.

A small forward pass takes longer for its preparations than for its arithmetic: what needs no
parameters is done once for the frames of all networks.
"""

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from rogue_net.answer import NetOutput, output_of
from rogue_net.distributions import CategoricalDistribution, Decision, decide
from rogue_net.embedding import module_key
from rogue_net.heads import CategoricalHead, SelectEntityHead
from rogue_net.native import backend
from rogue_net.ragged import EntityBatch, of_action
from rogue_net.rogue_net import RogueNet

_HEADS = (CategoricalHead, SelectEntityHead)


def are_alike(one: Any, other: Any) -> bool:
    """Return whether two networks may choose together: those of this package, of equal sizes."""
    return (
        type(one) is type(other) is RogueNet
        and (one.config, one.obs_space, one.action_space)
        == (other.config, other.obs_space, other.action_space)
        and all(type(head) in _HEADS for net in (one, other) for head in net.action_heads.values())
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
        nets: the networks.
        frames: the number of consecutive frames of each.
        batch: the frames of all.
        uniforms: per action (actors,) float32 in [0, 1) to sample with; None for the most probable
            choices.

    Returns:
        With values if a network has them, NaN of the others; None if compiled code does not
        support these networks.
    """
    # Entities, and the decisions of heads that are compiled.
    ends = np.cumsum([0, *frames])
    actors = {name: np.cumsum([0, *a.actors.lengths])[ends] for name, a in batch.actions.items()}
    entities = []
    for i, net in enumerate(nets):
        piece = batch.slice(slice(ends[i], ends[i + 1]))
        drawn = uniforms and {
            name: draws[actors[name][i] : actors[name][i + 1]] for name, draws in uniforms.items()
        }
        one = backend.run(net, piece, with_heads=True, uniforms=drawn)
        if one is None:
            return None
        entities.append(one)
    # All other heads at once: rows that are packed are in the order of frames.
    types = nets[0].embedding.types
    lengths = {name: batch.features[name].lengths for name in types}
    x = torch.cat([one.x for one in entities])
    layout = backend.packed_layout(lengths, x.device)
    decisions: dict[str, Decision] = {}
    for name in nets[0].action_space:
        compiled = [one.decisions[name] for one in entities if name in one.decisions]
        if compiled:
            decisions[name] = _joined(compiled)
            continue
        heads: list[Any] = [net.action_heads[module_key(name)] for net in nets]
        distribution = heads[0].together(heads, frames, x, layout, batch.actions[name])
        decisions[name] = decide(distribution, None, of_action(uniforms, name))
    return output_of(decisions, _values(nets, frames, entities))


def _values(
    nets: Sequence[RogueNet], frames: Sequence[int], entities: Sequence[backend.Output]
) -> dict[str, Tensor]:
    """Return the values of each frame, NaN of networks without values; none if no one has them."""
    found = [net.values_of(one).get("value") for net, one in zip(nets, entities, strict=True)]
    if all(values is None for values in found):
        return {}
    of_all = entities[0].x.new_full((sum(frames), 1), math.nan)
    for values, rows in zip(found, torch.split(of_all, list(frames)), strict=True):
        if values is not None:
            rows.copy_(values)
    return {"value": of_all}


def _joined(pieces: Sequence[Decision]) -> Decision:
    """Return the decisions of all networks in one action."""
    tables = [piece.distribution.all_log_probs for piece in pieces]
    return Decision(
        torch.cat([piece.chosen for piece in pieces]),
        torch.cat([piece.log_prob for piece in pieces]),
        torch.cat([piece.entropy for piece in pieces]),
        CategoricalDistribution(torch.cat([table for table in tables if table is not None])),
    )
