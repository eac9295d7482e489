"""Metrics of the policy for each action: entropy, masks and frequencies of choices in a rollout."""

from collections.abc import Mapping
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from enn_trainer.experience.collector import Rollout
from entity_env.ragged import exclusive_cumsum
from entity_env.spaces import GLOBAL, ActionSpace
from rogue_net.ragged import ActionBatch, EntityBatch, Lengths, RaggedTensor, to_device


class _Means(NamedTuple):
    """Means that are computed on the device, as sums and counts.

    Attributes:
        tags: their names.
        sums: (tags,) float64.
        counts: (tags,) float64; 0 where there is nothing to take the mean of.
    """

    tags: list[str]
    sums: Tensor
    counts: Tensor


def action_statistics(
    rollout: Rollout, action_space: Mapping[str, ActionSpace]
) -> dict[str, float]:
    """Return scalars of each action by tag; `docs/tracking.md` defines them.

    All of them leave the device in one transfer. A mean over nothing, such as that of the choices
    of an action without actors, is left out.

    Args:
        rollout: the frames and the chosen actions.
        action_space: the actions.
    """
    scalars, means = {}, []
    for name, space in action_space.items():
        batch, chosen = rollout.batch.actions[name], rollout.actions[name]
        num_actors = len(chosen.values)
        scalars[f"policy/{name}/actors_per_frame"] = num_actors / rollout.num_frames
        if num_actors == 0:
            continue
        prefix = f"policy/{name}/"
        # Frequencies of labels, or of the types of selected entities.
        possible = to_device(space.num_choices(batch), chosen.values.device)
        if space.labels:
            tags = [f"actions/{name}/{label}" for label in space.labels]
            means.append(_frequencies(tags, chosen.values))
        if batch.actees is not None:
            acting = batch.actors.lengths > 0
            scalars[f"{prefix}actees_per_frame"] = float(batch.actees.lengths[acting].mean())
            types = [entity for entity in rollout.batch.features if entity != GLOBAL]
            tags = [f"{prefix}selected/{entity}" for entity in types]
            means.append(_frequencies(tags, _selected_types(rollout.batch, types, chosen, batch)))
        # Entropies and masks.
        legal = num_legal(batch, possible)
        means.append(_entropy_means(prefix, rollout.entropies[name].values, legal, possible))
    # One transfer from the device.
    if means:
        sums, counts = torch.stack(
            [torch.cat([m.sums for m in means]), torch.cat([m.counts for m in means])]
        ).tolist()
        tags = [tag for m in means for tag in m.tags]
        scalars |= {t: s / n for t, s, n in zip(tags, sums, counts, strict=True) if n > 0}
    return scalars


def num_legal(batch: ActionBatch, possible: Tensor) -> Tensor:
    """Return the number of choices that the mask allows each actor.

    Args:
        batch: A actors, with their mask.
        possible: (A,) int64, the number of choices with and without permission.

    Returns:
        (A,) int64.
    """
    if batch.mask is None:
        return possible
    mask = batch.mask.values
    if mask.dim() == 2:
        return mask.sum(dim=1)
    # The masks of the actors are concatenated: cumulative sums at their ends count what is allowed.
    ends = possible.cumsum(0)
    allowed = torch.nn.functional.pad(mask.cumsum(0), (1, 0))
    return allowed[ends] - allowed[ends - possible]


def _entropy_means(prefix: str, entropies: Tensor, legal: Tensor, possible: Tensor) -> _Means:
    """Return entropy, normalised entropy, and the share of choices that the mask forbids."""
    choosing = legal > 1
    # Normalised entropy of an actor with n > 1 allowed choices: H(pi) / log(n).
    share = (entropies / legal.clamp(min=2).log()).masked_fill(~choosing, 0.0)
    actors = entropies.new_full((), len(entropies), dtype=torch.float64)
    num_masked = (possible - legal).sum().double()
    sums = [share.double().sum(), entropies.double().sum(), num_masked]
    return _Means(
        [f"{prefix}normalised_entropy", f"{prefix}entropy", f"{prefix}mask_rate"],
        torch.stack(sums),
        torch.stack([choosing.sum().double(), actors, possible.sum().double()]),
    )


def _frequencies(tags: list[str], indices: Tensor) -> _Means:
    """Return the share of each index among `indices`, from 0 to 1, named by `tags`."""
    counts = torch.zeros(len(tags), dtype=torch.float64, device=indices.device)
    counts.index_add_(0, indices, torch.ones_like(indices, dtype=torch.float64))
    return _Means(tags, counts, torch.full_like(counts, len(indices)))


def _selected_types(
    batch: EntityBatch, types: list[str], chosen: RaggedTensor, action: ActionBatch
) -> Tensor:
    """Return the index of the type of the entity that each actor selected, (A,) int64."""
    assert action.actees is not None
    device = chosen.values.device
    frame = chosen.frame_of_row()
    first_actee = to_device(exclusive_cumsum(action.actees.lengths)[frame], device)
    position = action.actees.values[first_actee + chosen.values]  # in its frame
    lengths: list[Lengths] = [batch.features[name].lengths for name in types]
    ends = np.cumsum(lengths, axis=0)[:, frame].T  # (actors, types), where each type ends
    return (to_device(np.ascontiguousarray(ends), device) <= position[:, None]).sum(dim=1)
