"""What a policy does, action by action: measured on the frames of a rollout."""

from collections.abc import Mapping
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from enn_trainer.ppo.rollout import Rollout
from entity_env.ragged import exclusive_cumsum
from entity_env.spaces import GLOBAL, ActionSpace
from rogue_net.ragged import ActionBatch, EntityBatch, Lengths, RaggedTensor, to_device


class _Asked(NamedTuple):
    """Numbers on the device, and what they are called when they are on the host.

    Attributes:
        tags: of the numbers.
        sums: (tags,) float64.
        over: (tags,) float64, what each is a mean over; 0 for no mean.
    """

    tags: list[str]
    sums: Tensor
    over: Tensor


def action_statistics(
    rollout: Rollout, action_space: Mapping[str, ActionSpace]
) -> dict[str, float]:
    """Scalars of each action, by tag; `docs/tracking.md` says what they mean.

    All that is on the device comes from there in one transfer. What is a mean over nothing, such as
    the choices of an action without actors, has no scalar.

    Args:
        rollout: the frames, and what was done in them.
        action_space: the actions.
    """
    scalars, asked = {}, []
    for name, space in action_space.items():
        batch, chosen = rollout.batch.actions[name], rollout.actions[name]
        num_actors = len(chosen.values)
        scalars[f"policy/{name}/actors_per_frame"] = num_actors / rollout.num_frames
        if num_actors == 0:
            continue
        prefix = f"policy/{name}/"
        possible = to_device(space.num_choices(batch), chosen.values.device)
        if space.labels:
            tags = [f"actions/{name}/{label}" for label in space.labels]
            asked.append(_frequencies(tags, chosen.values))
        if batch.actees is not None:
            acting = batch.actors.lengths > 0
            scalars[f"{prefix}actees_per_frame"] = float(batch.actees.lengths[acting].mean())
            types = [entity for entity in rollout.batch.features if entity != GLOBAL]
            tags = [f"{prefix}selected/{entity}" for entity in types]
            asked.append(_frequencies(tags, _selected_types(rollout.batch, types, chosen, batch)))
        legal = num_legal(batch, possible)
        asked.append(_choice(prefix, rollout.entropies[name].values, legal, possible))
    if asked:
        sums, over = torch.stack(
            [torch.cat([a.sums for a in asked]), torch.cat([a.over for a in asked])]
        ).tolist()
        tags = [tag for a in asked for tag in a.tags]
        scalars |= {t: s / n for t, s, n in zip(tags, sums, over, strict=True) if n > 0}
    return scalars


def num_legal(batch: ActionBatch, possible: Tensor) -> Tensor:
    """(actors,) int64, how many choices each actor was allowed, out of how many it could have."""
    if batch.mask is None:
        return possible
    mask = batch.mask.values
    if mask.dim() == 2:
        return mask.sum(dim=1)
    ends = possible.cumsum(0)  # the masks of the actors lie one after the other
    allowed = torch.nn.functional.pad(mask.cumsum(0), (1, 0))
    return allowed[ends] - allowed[ends - possible]


def _choice(prefix: str, entropies: Tensor, legal: Tensor, possible: Tensor) -> _Asked:
    """How free the choices were, and how much of that freedom was used."""
    choosing = legal > 1
    share = (entropies / legal.clamp(min=2).log()).masked_fill(~choosing, 0.0)
    actors = entropies.new_full((), len(entropies), dtype=torch.float64)
    sums = [share.double().sum(), entropies.double().sum(), (possible - legal).sum().double()]
    return _Asked(
        [f"{prefix}normalised_entropy", f"{prefix}entropy", f"{prefix}mask_rate"],
        torch.stack(sums),
        torch.stack([choosing.sum().double(), actors, possible.sum().double()]),
    )


def _frequencies(tags: list[str], indices: Tensor) -> _Asked:
    """How often each of several things was chosen, from 0 to 1."""
    counts = torch.zeros(len(tags), dtype=torch.float64, device=indices.device)
    counts.index_add_(0, indices, torch.ones_like(indices, dtype=torch.float64))
    return _Asked(tags, counts, torch.full_like(counts, len(indices)))


def _selected_types(
    batch: EntityBatch, types: list[str], chosen: RaggedTensor, action: ActionBatch
) -> Tensor:
    """(actors,) int64, the index of the type of the entity that each actor selected."""
    assert action.actees is not None
    device = chosen.values.device
    frame = chosen.frame_of_row()
    first_actee = to_device(exclusive_cumsum(action.actees.lengths)[frame], device)
    position = action.actees.values[first_actee + chosen.values]  # in its frame
    lengths: list[Lengths] = [batch.features[name].lengths for name in types]
    ends = np.cumsum(lengths, axis=0)[:, frame].T  # (actors, types), where each type ends
    return (to_device(np.ascontiguousarray(ends), device) <= position[:, None]).sum(dim=1)
