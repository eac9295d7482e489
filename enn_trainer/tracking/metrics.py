"""Metrics of an update by tag: policy statistics per action, episodes, and memory."""

import itertools
import math
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TypeAlias

import numpy as np
import torch
from torch import Tensor

from enn_trainer.experience.collector import Rollout
from entity_env.arrays import IntArray
from entity_env.process import peak_bytes
from entity_env.ragged import exclusive_cumsum
from entity_env.spaces import GLOBAL, ActionSpace
from entity_env.vec.vec_env import Metric
from rogue_net.actions.gaussian_numbers import to_env
from rogue_net.actions.parts import active_part
from rogue_net.past import NEW, Past
from rogue_net.ragged import ActionBatch, EntityBatch, RaggedTensor, to_device

MB = 2**20
_STATM = Path("/proc/self/statm")


Sums: TypeAlias = dict[str, list[float]]
"""Sufficient statistics of scalars, by tag: sum and count of a mean; count, mean and sum of squared
differences from the mean of a standard deviation."""


def action_statistics(
    rollout: Rollout, action_space: Mapping[str, ActionSpace]
) -> dict[str, float]:
    """Return the scalars of all actions by tag, see `action_sums`."""
    return scalars_of_sums([action_sums(one, action_space) for one in rollout.shard_rollouts])


def scalars_of_sums(shard_sums: Sequence[Sums]) -> dict[str, float]:
    """Add the sums of shards in order, and return the scalars by tag.

    A mean over no values, such as the choices of an action without actors, is omitted.
    """
    total: Sums = {}
    for sums in shard_sums:
        for tag, numbers in sums.items():
            total[tag] = _added(total[tag], numbers) if tag in total else numbers
    scalars = {}
    for tag, numbers in total.items():
        if len(numbers) == 2 and numbers[1] > 0:
            scalars[tag] = numbers[0] / numbers[1]
        elif len(numbers) == 3 and numbers[0] > 0:
            count, _, squares = numbers
            scalars[tag] = math.sqrt(squares / count) * count / count
    return scalars


def _added(a: list[float], b: list[float]) -> list[float]:
    if len(a) == 2:
        return [a[0] + b[0], a[1] + b[1]]
    # n = n_a + n_b, delta = mean_b - mean_a, mean = mean_a + delta * n_b / n
    # M2 = M2_a + M2_b + delta^2 * n_a * n_b / n
    count, delta = a[0] + b[0], b[1] - a[1]
    share = b[0] / max(count, 1.0)
    return [count, a[1] + delta * share, a[2] + b[2] + delta * delta * a[0] * share]


def action_sums(rollout: Rollout, action_space: Mapping[str, ActionSpace]) -> Sums:
    """Return the sums of the scalars of all actions, which `docs/tracking.md` defines.

    Needs a single transfer from the device.

    Args:
        rollout: frames and chosen actions.
        action_space: the actions.
    """
    scalars: Sums = {}
    means: list[tuple[list[str], Tensor, Tensor]] = []  # tags, sums and counts, float64
    deviations: list[tuple[list[str], Tensor, Tensor, Tensor]] = []  # counts, means and squares
    for name, space in action_space.items():
        batch, chosen, entropies = decisions_of(rollout, name)
        prefix, num_actors = f"policy/{name}/", len(chosen.values)
        scalars[f"{prefix}actors_per_frame"] = [num_actors, rollout.num_frames]
        possible_actors = len(rollout.actions[name].values)
        if space.after is not None and possible_actors:
            scalars[f"{prefix}taken"] = [num_actors, possible_actors]
        if num_actors == 0:
            continue

        # Continuous actions.
        if batch.bounds is not None:
            number_means, deviation = _numbers(
                name, space.components, chosen.values, batch.bounds.values, entropies
            )
            means += number_means
            deviations.append(deviation)
            continue

        # Frequencies of labels, or of the types of selected entities.
        possible = to_device(space.num_choices(batch), chosen.values.device)
        if space.labels:
            tags = [f"actions/{name}/{label}" for label in space.labels]
            means.append(_frequencies(tags, chosen.values))
        if batch.actees is not None:
            acting = batch.actors.lengths > 0
            lengths = batch.actees.lengths[acting]
            scalars[f"{prefix}actees_per_frame"] = [float(lengths.sum()), float(len(lengths))]
            types = [entity for entity in rollout.batch.features if entity != GLOBAL]
            tags = [f"{prefix}selected/{entity}" for entity in types]
            means.append(_frequencies(tags, _selected_types(rollout.batch, types, chosen, batch)))

        # Normalised entropy of an actor with n > 1 allowed choices: H(pi) / log(n).
        legal = num_legal(batch, possible)
        choosing = legal > 1
        share = (entropies / legal.clamp(min=2).log()).masked_fill(~choosing, 0.0)
        actors = entropies.new_full((), num_actors, dtype=torch.float64)
        num_masked = (possible - legal).sum().double()
        sums = torch.stack([share.double().sum(), entropies.double().sum(), num_masked])
        counts = torch.stack([choosing.sum().double(), actors, possible.sum().double()])
        tags = [prefix + suffix for suffix in ("normalised_entropy", "entropy", "mask_rate")]
        means.append((tags, sums, counts))

    # One transfer from the device.
    if means:
        all_tags, all_sums, all_counts = zip(*means, strict=True)
        numbers = torch.stack([torch.cat(all_sums), torch.cat(all_counts)]).tolist()
        for tag, *pair in zip(itertools.chain(*all_tags), *numbers, strict=True):
            scalars[tag] = pair
    for tags, *moments in deviations:
        for tag, *numbers in zip(tags, *torch.stack(moments).tolist(), strict=True):
            scalars[tag] = numbers
    return scalars


def decisions_of(rollout: Rollout, name: str) -> tuple[ActionBatch, RaggedTensor, Tensor]:
    """Return the active actors of an action as a batch, their choices, and (A,) entropies."""
    action, chosen = rollout.batch.actions[name], rollout.actions[name]
    entropies = rollout.entropies[name].values
    if action.after is None:
        return action, chosen, entropies
    all_chosen = {one: rows.values for one, rows in rollout.actions.items()}
    part, active = active_part(action, rollout.batch.actions, all_chosen)
    return part, chosen.keep(active), entropies[to_device(active, entropies.device)]


_AT_BOUND = 0.01
"""Largest distance from a bound to count as at the bound, as a share of the range."""


def _numbers(
    name: str, components: list[str], chosen: Tensor, bounds: Tensor, entropies: Tensor
) -> tuple[list[tuple[list[str], Tensor, Tensor]], tuple[list[str], Tensor, Tensor, Tensor]]:
    """Return the statistics of a continuous action.

    Args:
        name: name of the action.
        components: D names of components.
        chosen: (A, D) float32, as sampled.
        bounds: (A, 2, D) float32, low and high.
        entropies: (A,) float32.

    Returns:
        Tuples of tags, sums and counts of means; and tags, counts, means and sums of squares of
        standard deviations.
    """
    # Mean, deviation and share at the bounds, of actors with a choice.
    low, high = bounds.unbind(dim=1)
    numbers = to_env(chosen, low, high).double()
    choosing = low != high
    count = choosing.sum(dim=0).double()
    mean = (numbers * choosing).sum(dim=0) / count.clamp(min=1)
    squares = ((numbers - mean).square() * choosing).sum(dim=0)
    is_bounded = torch.isfinite(low)
    margin = torch.where(is_bounded, _AT_BOUND * (high - low), 0.0)
    at_bound = (numbers <= low + margin) | (numbers >= high - margin)
    within = choosing & is_bounded
    prefix = f"actions/{name}/"
    means = [
        ([f"{prefix}{one}.mean" for one in components], mean * count, count),
        (
            [f"{prefix}{one}.at_bound" for one in components],
            (at_bound & within).sum(dim=0).double(),
            within.sum(dim=0).double(),
        ),
    ]
    # Effective share of the range, exp(H(pi)), of actors with only bounded components.
    deciding = choosing.any(dim=1)
    measured = deciding & (is_bounded | ~choosing).all(dim=1)
    share = entropies.double().exp() * measured
    tags = [f"policy/{name}/normalised_entropy", f"policy/{name}/entropy"]
    actors = entropies.new_full((), len(entropies), dtype=torch.float64)
    sums = torch.stack([share.sum(), entropies.double().sum()])
    means.append((tags, sums, torch.stack([measured.sum().double(), actors])))
    return means, ([f"{prefix}{one}.std" for one in components], count, mean, squares)


def num_legal(batch: ActionBatch, possible: Tensor) -> Tensor:
    """Return the number of legal choices of each actor.

    Args:
        batch: a actors, with their mask.
        possible: (A,) int64, number of choices including masked ones.

    Returns:
        (A,) int64.
    """
    if batch.mask is None:
        return possible
    mask = batch.mask.values
    if mask.dim() == 2:
        return mask.sum(dim=1)
    # Masks are concatenated: differences of cumulative sums at their ends count legal choices.
    ends = possible.cumsum(0)
    allowed = torch.nn.functional.pad(mask.cumsum(0), (1, 0))
    return allowed[ends] - allowed[ends - possible]


def _frequencies(tags: list[str], indices: Tensor) -> tuple[list[str], Tensor, Tensor]:
    """Return tags, counts and totals for the relative frequency of each index."""
    counts = torch.zeros(len(tags), dtype=torch.float64, device=indices.device)
    counts.index_add_(0, indices, torch.ones_like(indices, dtype=torch.float64))
    return tags, counts, torch.full_like(counts, len(indices))


def _selected_types(
    batch: EntityBatch, types: list[str], chosen: RaggedTensor, action: ActionBatch
) -> Tensor:
    """Return the index of the type of the entity selected by each actor, (A,) int64."""
    assert action.actees is not None
    device = chosen.values.device
    frame = chosen.frame_of_row()
    first_actee = to_device(exclusive_cumsum(action.actees.lengths)[frame], device)
    position = action.actees.values[first_actee + chosen.values]  # index within the frame
    lengths: list[IntArray] = [batch.features[name].lengths for name in types]
    ends = np.cumsum(lengths, axis=0)[:, frame].T  # (actors, types), end of each type
    return (to_device(np.ascontiguousarray(ends), device) <= position[:, None]).sum(dim=1)


def metric_scalars(metrics: Mapping[str, Metric]) -> dict[str, float]:
    """Return the scalars of metrics: `{name}.mean`, `.min`, `.max` and `.count`.

    A metric without values has only a count.
    """
    scalars: dict[str, float] = {}
    for name, m in metrics.items():
        if m.count > 0:
            scalars |= {f"{name}.mean": m.mean, f"{name}.min": m.min, f"{name}.max": m.max}
        scalars[f"{name}.count"] = float(m.count)
    return scalars


def system_numbers(device: torch.device) -> dict[str, float]:
    """Return the memory in use by tag, in MB (2**20 bytes).

    Args:
        device: device of the networks.

    Returns:
        `system/rss_mb`, the resident memory of this process without workers (its peak on systems
        without /proc); on a GPU also `system/gpu_memory_mb`, the memory of tensors now, and
        `system/gpu_peak_mb`, its peak.
    """
    rss_bytes = peak_bytes()
    if _STATM.exists():
        rss_bytes = int(_STATM.read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    scalars = {"system/rss_mb": rss_bytes / MB}
    if device.type == "cuda":
        scalars["system/gpu_memory_mb"] = torch.cuda.memory_allocated(device) / MB
        scalars["system/gpu_peak_mb"] = torch.cuda.max_memory_allocated(device) / MB
    return scalars


def memory_statistics(past: Past | None) -> dict[str, float]:
    """Return the scalars of the recurrent state in a rollout by tag, see `memory_sums`."""
    return scalars_of_sums([memory_sums(past)])


def memory_sums(past: Past | None) -> Sums:
    """Return the sums of the scalars of the recurrent state; {} without memory.

    `docs/tracking.md` defines them.
    """
    if past is None or not len(past.kind.values):
        return {}
    frames, rows, num_carried = len(past.level), len(past.kind.values), len(past.carried)
    sums: Sums = {
        "memory/rows": [rows, frames],
        "memory/new": [float((past.source.values == NEW).sum()), rows],
        "memory/absent": [len(past.absent.values), frames],
    }
    if num_carried:
        mean = past.carried.norm(dim=1).mean().item()
        sums["memory/norm"] = [mean * num_carried, num_carried]
    return sums
