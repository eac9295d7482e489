"""Sums over rollouts and updates: the evidence for learning diagnostics."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TypeAlias

import numpy as np
import torch
from torch import Tensor

from enn_trainer.config import TrainConfig
from enn_trainer.curriculum.rounds import RunRounds
from enn_trainer.experience.collector import Rollout
from enn_trainer.tracking.metrics import decisions_of, num_legal
from entity_env.arrays import FloatArray
from entity_env.observation import Entity
from entity_env.spaces import GLOBAL, ActionSpace, ObsSpace
from entity_env.vec.vec_obs import Metric
from rogue_net.ragged import EntityBatch, to_device

Sums: TypeAlias = dict[str, dict[str, float]]
"""Sums over rollouts by kind and name; names that end in ".min" and ".max" are extremes.

- `run`: frames, updates, examined (frames with examined choices and features), idle (examined
  frames without actors), episodes, return.sum, length.sum, explained.sum and explained.count (of
  explained variances), return.min, return.max, reward.min, reward.max, and running.max (steps of
  the longest running episode). Sums over updates: steep.sum (share of steps with large gradient
  norms), norm.sum (gradient norm) and target.sum (mean of the value targets).
- `actors`: by action.
- `policy/<action>`: choosing (actors with several legal choices) and their entropy.
- `chance/<action>`, `taken/<action>`: by label, the expected count under uniform choices, and the
  actual count.
- `numbers/<action>`, `shift/<action>`, `square/<action>`: by component of a continuous action, the
  count of choices, and the sums of their distance from the initial mean, before the sigmoid, and of
  its square.
- `late/<action>`: frames in the last fifth of the run, share.sum (their normalised entropy).
- `first`, `best`, `held`: see `record_best`.
"""

COUNTS = (
    *("frames", "updates", "examined", "idle", "episodes", "return.sum", "length.sum"),
    *("explained.sum", "explained.count"),
)
"""Names of the kind "run" in every window."""
MOST_LABELS = 64
"""Largest number of labels of an examined action, because saves store numbers for each label."""
LATE = 0.8
"""Share of a run after which the policy should be decided."""
LEAST_LATE = 3_000
"""Least number of frames of that part of a run to judge the policy."""
LOST = 0.5
"""Share of the rise of the return that is lost in a collapse."""
LEAST_FALL = 0.25
"""Least fall of the mean return in a collapse, as a share of the range of episode returns."""
LEAST_EPISODES = 10
"""Least number of finished episodes in a window to estimate its mean return."""
PATIENCE = 8
"""Number of windows (two fifths of the run) to judge learning: the return of successful runs in
`Minefield` does not rise in the first quarter."""
FACT_WINDOWS = 2
"""Number of windows (a tenth of the run) to judge zero rewards, endless episodes, frames without
actors, and a collapse of the return."""
FLAT = 0.05
"""Largest rise of the mean return from the first to the second half of `PATIENCE` windows that
counts as flat, as a share of the range of episode returns in the run."""
ROOM = 0.1
"""Least difference between the best episode return and the mean return, as a share of that range,
to leave room for improvement."""
LEARNT = 0.1
"""Least rise of the mean return since the first window, as a share of that range, that counts as
learned. It excuses constant features, unavailable actions and useless choices."""
UNEXPLAINED = 0.05
"""Largest explained variance of a value function that explains nothing."""

_METRICS_OF_UPDATE = {
    "explained.sum": "losses/explained_variance",
    "steep.sum": "losses/gradnorm_large",
    "norm.sum": "losses/gradnorm",
    "target.sum": "losses/returns",
}


def new_sums() -> Sums:
    """Return empty sums."""
    return {"run": dict.fromkeys(COUNTS, 0.0)}


def add_sums(total: Sums, more: Mapping[str, Mapping[str, float]]) -> None:
    """Add sums to a total in place."""
    for kind, values in more.items():
        into = total.setdefault(kind, {})
        for name, x in values.items():
            if name not in into:
                into[name] = x
            elif kind == "run" and name.endswith(".min"):
                into[name] = min(into[name], x)
            elif kind == "run" and name.endswith(".max"):
                into[name] = max(into[name], x)
            else:
                into[name] += x


def total_of(windows: Sequence[Sums]) -> Sums:
    """Return the total of the sums of several windows."""
    total: Sums = {}
    for window in windows:
        add_sums(total, window)
    return total


# -- Rollouts ----------------------------------------------------------------------------------


def run_sums(rollout: Rollout) -> Sums:
    """Return the sums of rewards, episodes and actors of a rollout."""
    tags = ("reward", "step", "episodic_reward", "episode_length")
    reward, steps, returns, lengths = (rollout.metrics.get(tag, Metric()) for tag in tags)
    run = dict.fromkeys(COUNTS, 0.0)
    run |= {"frames": float(rollout.num_frames), "updates": 1.0}
    run |= {"reward.min": reward.min, "reward.max": reward.max, "running.max": steps.max}
    run |= {"episodes": float(returns.count), "length.sum": lengths.sum}
    run |= {"return.sum": returns.sum, "return.min": returns.min, "return.max": returns.max}
    actors = {name: float(count) for name, count in rollout.num_actors().items()}
    return {"run": {name: x for name, x in run.items() if math.isfinite(x)}, "actors": actors}


def choice_sums(rollout: Rollout, action_space: Mapping[str, ActionSpace]) -> Sums:
    """Return the sums of choices of labels and numbers, and counts of frames without actors."""
    acting = np.zeros(rollout.num_frames, dtype=np.bool_)
    columns: list[tuple[str, Sequence[str], Tensor]] = []  # kind, names and sums
    for name, space in action_space.items():
        batch, rows, entropies = decisions_of(rollout, name)
        chosen, labels = rows.values, space.labels
        acting |= batch.actors.lengths > 0
        if len(chosen) and batch.bounds is not None:
            shifts = _shift_sums(chosen, batch.bounds.values, space.initial_means())
            kinds = (f"numbers/{name}", f"shift/{name}", f"square/{name}")
            columns += zip(kinds, [space.components] * 3, shifts.unbind(), strict=True)
        if not 0 < len(labels) <= MOST_LABELS or not len(chosen):
            continue

        # Actors with several legal choices, and the expected counts under uniform choices.
        legal = num_legal(batch, to_device(space.num_choices(batch), chosen.device))
        choosing = (legal > 1).double()
        weight = choosing / legal.double()
        if batch.mask is None:
            chance = weight.sum().expand(len(labels))
        else:
            chance = weight @ batch.mask.values.double()

        # The actual counts.
        counts = weight.new_zeros(len(labels)).index_add(0, chosen, choosing)
        policy = torch.stack([choosing.sum(), entropies.double() @ choosing])
        columns += [
            (f"policy/{name}", ("choosing", "entropy"), policy),
            (f"chance/{name}", labels, chance),
            (f"taken/{name}", labels, counts),
        ]

    # One transfer from the device.
    values = iter(torch.cat([part for _, _, part in columns]).tolist() if columns else ())
    sums = {kind: {name: next(values) for name in names} for kind, names, _ in columns}
    num_frames = float(rollout.num_frames)
    return {"run": {"examined": num_frames, "idle": num_frames - float(acting.sum())}, **sums}


def _shift_sums(chosen: Tensor, bounds: Tensor, initial: FloatArray) -> Tensor:
    """Return the count, and sums of the distance from the initial means and of its square, (3, D).

    Args:
        chosen: (A, D) float32, as sampled.
        bounds: (A, 2, D) float32; components with equal bounds are not counted.
        initial: (D,) float64, means before the sigmoid.
    """
    choosing = (bounds[:, 0] != bounds[:, 1]).double()
    shift = (chosen.double() - to_device(initial, chosen.device)) * choosing
    return torch.stack([choosing.sum(dim=0), shift.sum(dim=0), shift.square().sum(dim=0)])


# -- Features that never vary ------------------------------------------------------------------


def updated_constants(constants: Sums, batch: EntityBatch, obs_space: ObsSpace) -> Sums:
    """Update the constant features of a run with further frames.

    Args:
        constants: values of constant features by entity type (types without rows are missing); for
            a categorical feature the index of the label.
        batch: the frames.
        obs_space: names of the features.
    """
    constants = dict(constants)
    for name, entity in {**obs_space.entities, GLOBAL: obs_space.global_entity}.items():
        before, rows = constants.get(name), batch.features.get(name)
        if rows is None or not len(rows.values) or before == {}:
            continue
        constants[name] = _constants_of(rows.values, entity.features, before)
        if name in batch.kinds:
            names = [feature.name for feature in entity.kinds]
            constants[name] |= _constants_of(batch.kinds[name].values, names, before)
    return constants


def _constants_of(
    values: Tensor, names: Sequence[str], before: Mapping[str, float] | None
) -> dict[str, float]:
    """Return the values of columns that are constant in these rows and in earlier rows.

    Args:
        values: (n, columns), n > 0.
        names: names of the columns.
        before: values of the columns that have been constant so far; None without earlier rows.
    """
    columns = [i for i, name in enumerate(names) if before is None or name in before]
    if len(columns) < len(names):
        values = values[:, columns]
    ranges = torch.stack([*values.aminmax(dim=0)]).tolist() if columns else ([], [])
    return {
        names[i]: low
        for i, low, high in zip(columns, *ranges, strict=True)
        if low == high and (before is None or before[names[i]] == low)
    }


def common_constants(shards: Sequence[Sums]) -> Sums:
    """Return the features that are constant with the same value in all shards."""
    total: Sums = {}
    for constants in shards:
        for name, values in constants.items():
            common = total.get(name, values).items()
            total[name] = {c: x for c, x in common if c in values and values[c] == x}
    return total


def constants_as_text(constants: Mapping[str, float], entity: Entity) -> dict[str, str]:
    """Return the unintentionally constant features of an entity type with their values as text.

    Args:
        constants: constant features of the entity type by name.
        entity: the entity type.
    """
    values = {name: x for name, x in constants.items() if name not in entity.constants}
    texts = {name: f"{values[name]:g}" for name in entity.features if name in values}
    for feature in entity.kinds:
        # Saves of other environments or with other labels may have any index.
        index = int(values.get(feature.name, -1))
        if 0 <= index < len(feature.labels):
            texts[feature.name] = feature.labels[index]
    return texts


# -- Updates -----------------------------------------------------------------------------------


def update_sums(metrics: Mapping[str, float], actions: Sequence[str], late_frames: int) -> Sums:
    """Return the sums of the metrics of an update.

    Args:
        metrics: metrics by tag.
        actions: names of actions.
        late_frames: frames of the update in the last fifth of the run.
    """
    values = {name: float(metrics.get(tag, math.nan)) for name, tag in _METRICS_OF_UPDATE.items()}
    sums: Sums = {"run": {name: x for name, x in values.items() if math.isfinite(x)}}
    if "explained.sum" in sums["run"]:
        sums["run"]["explained.count"] = 1.0
    for action in actions if late_frames else ():
        share = float(metrics.get(f"policy/{action}/normalised_entropy", math.nan))
        if math.isfinite(share):
            sums[f"late/{action}"] = {"share.sum": late_frames * share, "frames": late_frames}
    return sums


def late_part(step: int, num_frames: int, total: int) -> int:
    """Return the number of latest frames in the last fifth of a run; 0 if the run is too short.

    Args:
        step: frames of the run so far.
        num_frames: number of latest frames.
        total: frames of the whole run.
    """
    if (1 - LATE) * total < LEAST_LATE:
        return 0
    return int(min(max(step - LATE * total, 0), num_frames))


def forget_late(whole: Sums) -> None:
    """Remove the sums of the last fifth from the sums of a run."""
    for kind in [kind for kind in whole if kind.startswith("late/")]:
        del whole[kind]


def mean_return(window: Sums) -> float:
    """Return the mean return of the episodes of a window; NaN if too few episodes ended."""
    run = window["run"]
    return run["return.sum"] / run["episodes"] if run["episodes"] >= LEAST_EPISODES else math.nan


def record_best(whole: Sums, window: Sums, step: int) -> None:
    """Record in `whole` the first and best mean return, and the last step before a collapse.

    Args:
        whole: sums of the run; changed in place.
        window: sums of the window that ends.
        step: frames of the run so far.
    """
    mean = mean_return(window)
    if math.isnan(mean):
        return
    whole.setdefault("first", {"return": mean})
    best = whole.setdefault("best", {"return": mean})
    best["return"] = max(mean, best["return"])
    if not is_lost(mean, whole):
        whole["held"] = {"step": float(step)}


def is_lost(mean: float, whole: Sums) -> bool:
    """Return True if a mean return is far below the best mean return."""
    run, best, first = whole["run"], whole["best"]["return"], whole["first"]["return"]
    noise = LEAST_FALL * (run["return.max"] - run["return.min"])
    return best - mean > max(LOST * (best - first), noise)


# -- Evidence ----------------------------------------------------------------------------------


@dataclass(frozen=True)
class Evidence:
    """Sums, settings and spaces of a run after an update, the input of rules.

    Attributes:
        config: settings of the run.
        whole: sums of the whole run.
        windows: sums of the latest complete windows, at most `PATIENCE`.
        constants: constant features, see `updated_constants`.
        kl: KL divergence of the update; NaN if unknown.
        kls: KL divergences of earlier updates.
        obs_space: names of the features.
        action_space: the actions.
        num_sides: number of sides of a match, 1 for an environment.
        rounds: rounds of episodes.
        newest_save: returns the newest save at or before a step, or None.
    """

    config: TrainConfig
    whole: Sums
    windows: Sequence[Sums]
    constants: Sums = field(default_factory=dict)
    kl: float = math.nan
    kls: Sequence[float] = ()
    obs_space: ObsSpace = field(default_factory=ObsSpace)
    action_space: Mapping[str, ActionSpace] = field(default_factory=dict)
    num_sides: int = 1
    rounds: RunRounds = field(default_factory=RunRounds)
    newest_save: Callable[[float], Path | None] = lambda step: None

    @property
    def run(self) -> dict[str, float]:
        """Sums of the whole run, of the kind "run"."""
        return self.whole["run"]

    @cached_property
    def recent(self) -> Sums:
        """Total of the latest windows."""
        return total_of(self.windows)

    @cached_property
    def latest(self) -> dict[str, float]:
        """Total of the last `FACT_WINDOWS` windows, of the kind "run"."""
        return total_of(self.windows[-FACT_WINDOWS:])["run"]

    @property
    def longest(self) -> float:
        """Steps of the longest running episode."""
        return self.windows[-1]["run"].get("running.max", 0)

    @property
    def return_range(self) -> float:
        """Difference between the largest and least episode return; NaN before the first episode."""
        return self.run.get("return.max", math.nan) - self.run.get("return.min", math.nan)

    @cached_property
    def flat_return(self) -> float:
        """Mean return of the last half of the windows; NaN if it rose, or without enough episodes.

        NaN in matches: in self-play one side wins what the other side loses, so that the mean
        return carries no information.
        """
        half = PATIENCE // 2
        if len(self.windows) < PATIENCE or self.num_sides > 1:
            return math.nan
        first, last = (total_of(part)["run"] for part in (self.windows[:half], self.windows[half:]))
        if min(first["episodes"], last["episodes"]) < LEAST_EPISODES * half:
            return math.nan
        mean = last["return.sum"] / last["episodes"]
        rise = mean - first["return.sum"] / first["episodes"]
        return mean if rise <= FLAT * self.return_range else math.nan

    @property
    def is_stuck(self) -> bool:
        """True if the return does not rise, and is far below the best episode return.

        Also true if all returns are equal, as a better return may exist.
        """
        room = self.run.get("return.max", math.nan) - self.flat_return
        return room >= ROOM * self.return_range

    @property
    def nothing_learnt(self) -> bool:
        """True if the mean return is stuck near the mean return of the first window."""
        first = self.whole.get("first", {}).get("return", self.flat_return)
        return self.is_stuck and self.flat_return - first <= LEARNT * self.return_range

    @cached_property
    def explains_nothing(self) -> bool:
        """True if the explained variance was about 0 or negative in all windows.

        Updates with equal returns have no explained variance. Episodes of one step are not judged:
        their returns are noise until the policy improves.
        """
        runs = [window["run"] for window in self.windows]
        return (
            all(run["length.sum"] >= 2 * run["episodes"] for run in runs)
            and any(run["explained.count"] for run in runs)
            and all(run["explained.sum"] <= UNEXPLAINED * run["explained.count"] for run in runs)
        )
