"""Inputs and outputs of a `DenseNet`: names, types and shapes, and batches as padded arrays."""

from collections.abc import Mapping, Sequence
from typing import NamedTuple, TypeAlias

import torch
from torch import Tensor

from entity_env.arrays import IntArray
from entity_env.spaces import GLOBAL, ActionName, ActionSpace, ObsSpace
from rogue_net.memory import Memory
from rogue_net.ragged import ActionBatch, EntityBatch, RaggedTensor
from rogue_net.rogue_net import RogueNet, RogueNetWithValueNet

FRAMES = "frames"
"""Name of the first dimension of all arrays."""
Arrays: TypeAlias = dict[str, Tensor]
"""Inputs or outputs by name, see `input_arrays` and `output_arrays`."""


class ArraySpec(NamedTuple):
    """Type and shape of an input or output.

    Attributes:
        dtype: of the elements.
        dims: size of each dimension; or its name, if it may have any size from 1.
    """

    dtype: torch.dtype
    dims: tuple[int | str, ...]


def networks(agent: RogueNet | RogueNetWithValueNet) -> dict[str, RogueNet]:
    """Return the networks with outputs, by the prefix of the names of their recurrent states."""
    if isinstance(agent, RogueNetWithValueNet):
        return {"": agent.policy, "value_": agent.value_function}
    return {"": agent}


def input_arrays(
    agent: RogueNet | RogueNetWithValueNet, without_ids: Sequence[str] = ()
) -> dict[str, ArraySpec]:
    """Return the inputs of the `DenseNet` of an agent, by name.

    Args:
        agent: the network.
        without_ids: entity types without recurrent states, as their entities have no ids.
    """
    space: ObsSpace = agent.obs_space
    arrays: dict[str, ArraySpec] = {}
    for name, entity in space.entities.items():
        rows = (FRAMES, f"rows of {name}")
        arrays[f"count/{name}"] = ArraySpec(torch.int64, rows[:1])
        arrays[f"visible/{name}"] = ArraySpec(torch.bool, rows)
        arrays[f"entities/{name}"] = ArraySpec(torch.float32, (*rows, len(entity.features)))
        arrays[f"kinds/{name}"] = ArraySpec(torch.int64, (*rows, len(entity.kinds)))
    arrays["global"] = ArraySpec(torch.float32, (FRAMES, len(space.global_features)))
    arrays["global_kinds"] = ArraySpec(torch.int64, (FRAMES, len(space.global_kinds)))
    arrays = {name: spec for name, spec in arrays.items() if spec.dims[-1] != 0}
    for name, action in agent.action_space.items():
        arrays |= _action_arrays(name, action)
    for prefix, net in networks(agent).items():
        if net.memory is None:
            continue
        arrays |= _memory_arrays(prefix, net.memory, without_ids)
        if net.memory.reward is not None:
            arrays["reward"] = ArraySpec(torch.float32, (FRAMES,))
    return arrays


def output_arrays(
    agent: RogueNet | RogueNetWithValueNet, without_ids: Sequence[str] = ()
) -> dict[str, ArraySpec]:
    """Return the outputs of the `DenseNet` of an agent, by name; arguments as `input_arrays`."""
    arrays: dict[str, ArraySpec] = {}
    for name, space in agent.action_space.items():
        actors = _actor_dims(name, space)
        if space.components:
            parts, choice = ("mean", "deviation"), ArraySpec(torch.float32, (*actors, len(space)))
            arrays |= {f"{part}/{name}": choice for part in parts}
        else:
            choices = (*actors, len(space.labels) or f"actees of {name}")
            arrays[f"log_probs/{name}"] = ArraySpec(torch.float32, choices)
            choice = ArraySpec(torch.int64, actors)
        arrays |= {f"best/{name}": choice, f"sampled/{name}": choice}
    nets = networks(agent)
    if any("value" in net.regression_sizes for net in nets.values()):
        arrays["value"] = ArraySpec(torch.float32, (FRAMES,))
    for prefix, net in nets.items():
        if net.memory is not None:
            memory = _memory_arrays(prefix, net.memory, without_ids)
            arrays |= {f"next_{name}": spec for name, spec in memory.items()}
    return arrays


def _actor_dims(name: ActionName, space: ActionSpace) -> tuple[int | str, ...]:
    return FRAMES, 1 if space.is_global else f"actors of {name}"


def _action_arrays(name: ActionName, space: ActionSpace) -> dict[str, ArraySpec]:
    """Return the inputs of an action."""
    actors, arrays = _actor_dims(name, space), {}
    if not space.is_global:
        arrays[f"actors/{name}"] = ArraySpec(torch.int64, actors)
    if space.components:
        components = ArraySpec(torch.float32, (*actors, len(space)))
        return arrays | {f"{field}/{name}": components for field in ("low", "high", "uniforms")}
    choices: int | str = len(space.labels)
    if not choices:
        choices = f"actees of {name}"
        arrays[f"actees/{name}"] = ArraySpec(torch.int64, (FRAMES, choices))
    labels = () if space.after is None else (space.labels_of_mask,)
    arrays[f"mask/{name}"] = ArraySpec(torch.bool, (*actors, *labels, choices))
    return arrays | {f"uniforms/{name}": ArraySpec(torch.float32, actors)}


def _memory_arrays(prefix: str, memory: Memory, without_ids: Sequence[str]) -> dict[str, ArraySpec]:
    """Return the recurrent states of a network, without the choices that enter them."""
    dims: dict[str, tuple[int | str, ...]] = {"": (FRAMES,)} if memory.remembering.frame else {}
    types = [name for name in memory.types if name not in without_ids]
    dims |= {f"/{name}": (FRAMES, f"rows of {name}") for name in types}
    arrays: dict[str, ArraySpec] = {}
    for name, rows in dims.items():
        arrays[f"{prefix}memory{name}"] = ArraySpec(torch.float32, (*rows, memory.width))
        arrays[f"{prefix}known{name}"] = ArraySpec(torch.bool, rows)
    return arrays


def padded_batch(
    agent: RogueNet | RogueNetWithValueNet,
    batch: EntityBatch,
    uniforms: Mapping[ActionName, Tensor] | None = None,
) -> Arrays:
    """Pad a batch to the inputs of the `DenseNet` of an agent, without recurrent states.

    Args:
        agent: the network.
        batch: B frames of its spaces.
        uniforms: (actors,) or (actors, components) per action, random numbers; 0 by default.
    """
    inputs: Arrays = {}
    for name in agent.obs_space.entities:
        rows = batch.features[name]
        inputs[f"count/{name}"] = torch.from_numpy(rows.lengths)
        inputs[f"visible/{name}"] = _padded(batch.visibility(name), False)
        inputs[f"entities/{name}"] = _padded(rows, 0)
        if name in batch.kinds:
            inputs[f"kinds/{name}"] = _padded(batch.kinds[name], 0).long()
    for field, by_type in ("global", batch.features), ("global_kinds", batch.kinds):
        if GLOBAL in by_type:
            values = by_type[GLOBAL].values
            inputs[field] = values if field == "global" else values.long()
    for name, space in agent.action_space.items():
        draws = None if uniforms is None else uniforms[name]
        for field, x in _padded_action(space, batch.actions[name], draws).items():
            inputs[f"{field}/{name}"] = x
    return {name: inputs[name] for name in input_arrays(agent) if name in inputs}


def _padded_action(space: ActionSpace, action: ActionBatch, draws: Tensor | None) -> Arrays:
    """Pad an action to its inputs, without the name of the action."""
    inputs = {"actors": _padded(action.actors, -1)}
    if action.bounds is not None:
        inputs["low"], inputs["high"] = _padded(action.bounds, 0).unbind(dim=2)
    else:
        inputs["mask"] = _padded_mask(action, len(space.labels))
    if action.actees is not None:
        inputs["actees"] = _padded(action.actees, -1)
    zeros = torch.zeros(len(action.actors.values), *space.choice_columns)
    rows = zeros if draws is None else draws.view_as(zeros)
    return {**inputs, "uniforms": _padded(RaggedTensor(rows, action.actors.lengths), 0)}


def _padded(rows: RaggedTensor, fill: float) -> Tensor:
    """Pad frames to their longest, at least 1, (rows, ...) -> (B, n, ...)."""
    is_row = _is_row(rows.lengths)
    padded = rows.values.new_full((*is_row.shape, *rows.values.shape[1:]), fill)
    padded[is_row] = rows.values
    return padded


def _is_row(lengths: IntArray) -> Tensor:
    """Return the rows that are no padding, (B, n) bool."""
    n = max(1, int(lengths.max(initial=0)))
    return torch.arange(n) < torch.from_numpy(lengths).unsqueeze(1)


def _padded_mask(action: ActionBatch, num_labels: int) -> Tensor:
    """Pad the mask of an action, (B, A, choices) or (B, A, labels, choices) bool."""
    is_actor = _is_row(action.actors.lengths)[:, :, None, None]
    is_choice = torch.ones(1, num_labels, dtype=torch.bool)
    if action.actees is not None:
        is_choice = _is_row(action.actees.lengths)
    labels = 1 if action.after is None else action.after.labels
    padded = (is_actor & is_choice[:, None, None, :]).repeat(1, 1, labels, 1)
    if action.mask is not None:
        padded[padded.clone()] = action.mask.values.flatten()
    return padded[:, :, 0] if action.after is None else padded
