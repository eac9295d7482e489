"""Learning diagnostics: warnings, once each, about signs that a run does not learn.

A run is divided into windows, see `window_frames`. Rules judge sums over the rollouts of windows
and of the whole run. The sums are plain data in `State.memory`, so that a resumed run has the same
notices at the same steps.
"""

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

from enn_trainer.base.group import ALONE, Group
from enn_trainer.callbacks.callback import RolloutCallback, RunningTrainer
from enn_trainer.callbacks.learning_rules import UPDATE_RULES, WINDOW_RULES
from enn_trainer.callbacks.learning_sums import (
    COUNTS,
    FACT_WINDOWS,
    PATIENCE,
    Evidence,
    Sums,
    add_sums,
    choice_sums,
    common_constants,
    forget_late,
    late_part,
    new_sums,
    record_best,
    run_sums,
    update_sums,
    updated_constants,
)
from enn_trainer.checkpoints.state import State
from enn_trainer.curriculum.rounds import RunRounds
from enn_trainer.experience.collector import Rollout
from enn_trainer.runtime.spans import Spans
from enn_trainer.tracking.track_services import NOTICES
from entity_env.spaces import ObsSpace

WINDOWS_OF_RUN = 20
LEAST_WINDOW, MOST_WINDOW = 3_000, 1_000_000
"""Limits of the frames of a window, which is a twentieth of `total_timesteps`.

Fewer frames are too noisy to judge a policy; the upper limit gives notices after a few million
frames to runs that are stopped by hand, with a huge `total_timesteps`.
"""
LEAST_UPDATES = 2
"""Least number of updates of a window, because a policy changes only between updates."""
EXAMINE_EVERY = 2048
"""Number of frames between rollouts with examined choices and features: to examine all small
rollouts would take more than one percent of the time. Rewards, episodes and numbers of actors are
summed over all rollouts."""
KEPT_KLS = 32
"""Number of updates with a stored KL divergence."""


def window_frames(total_timesteps: float) -> float:
    """Return the number of frames of a window."""
    return min(max(total_timesteps / WINDOWS_OF_RUN, LEAST_WINDOW), MOST_WINDOW)


def is_examined(step: int, num_frames: int) -> bool:
    """Return True if choices and features of a rollout are examined.

    Args:
        step: frames of the run before the rollout.
        num_frames: frames of the rollout.
    """
    return (step + num_frames) // EXAMINE_EVERY > step // EXAMINE_EVERY


def new_memory() -> dict[str, Any]:
    """Return the memory of a new run: keys of notices, sums, constants and KL divergences."""
    return {
        "told": [],
        "whole": new_sums(),
        "window": new_sums(),
        "windows": [],
        "constants": {},
        "kls": [],
    }


def restored(saved: object) -> dict[str, Any]:
    """Return the memory of a save, or the memory of a new run if the value is invalid."""
    memory = new_memory()
    saved = {"kls": [], **saved} if isinstance(saved, dict) else {}  # earlier releases have no kls
    if saved.keys() != memory.keys():
        return memory
    if not all(isinstance(saved[name], type(part)) for name, part in memory.items()):
        return memory
    sums = [saved["whole"], saved["window"], *saved["windows"]]
    kls = {"kls": dict(enumerate(saved["kls"]))}
    is_valid = (
        all(isinstance(key, str) for key in saved["told"])
        and len(saved["windows"]) <= PATIENCE
        and len(saved["kls"]) <= KEPT_KLS
        and all(map(_has_finite_values, [*sums, saved["constants"], kls]))
        and all(part.get("run", {}).keys() >= {*COUNTS} for part in sums)
    )
    return saved if is_valid else memory


def _has_finite_values(saved: object) -> bool:
    if not isinstance(saved, dict) or not all(isinstance(part, dict) for part in saved.values()):
        return False
    values = [x for part in saved.values() for x in part.values()]
    return all(type(x) in (int, float) and math.isfinite(x) for x in values)


class LearningDiagnostics(RolloutCallback):
    """Warns once about each sign that a run does not learn, and writes it to the metrics.

    Args:
        state: state of the run.
        write: writes a notice to the metrics: step, key, text and page.
        say: prints a line.
        spans: timers of the run.
        num_sides: number of sides of a match, 1 for an environment.
        group: processes of the run.
        obs_space: observation space of the environments, which declares intentionally constant
            features; the observation space of the state by default.
        newest_save: returns the newest save at or before a step, or None.
    """

    def __init__(
        self,
        state: State,
        write: Callable[[int, str, str, str], None],
        say: Callable[[str], None],
        spans: Spans,
        num_sides: int = 1,
        group: Group = ALONE,
        obs_space: ObsSpace | None = None,
        newest_save: Callable[[float], Path | None] = lambda step: None,
    ) -> None:
        self._memory = state.memory[NOTICES] = restored(state.memory.get(NOTICES))
        self._write, self._say, self._spans = write, say, spans
        self._num_sides, self._group = num_sides, group
        self._obs_space = state.obs_space if obs_space is None else obs_space
        self._newest_save = newest_save

    def on_update_end(self, trainer: RunningTrainer, metrics: dict[str, float]) -> None:
        """Add the rollout to the sums, and judge the update and a completed window."""
        rollout = self.take_rollout()
        state, config, memory = trainer.state, trainer.config, self._memory
        with self._spans.span("track"):
            late_frames = late_part(state.step, rollout.num_frames, config.total_timesteps)
            if not late_frames:  # the last fifth of an extended run has not started
                forget_late(memory["whole"])
            self._add(rollout, state, update_sums(metrics, [*state.action_space], late_frames))

            # A complete window.
            rules, run = [*UPDATE_RULES], memory["window"]["run"]
            least = window_frames(config.total_timesteps)
            if run["frames"] >= least and run["updates"] >= LEAST_UPDATES:
                record_best(memory["whole"], memory["window"], state.step)
                memory["windows"] = [*memory["windows"], memory["window"]][-PATIENCE:]
                memory["window"] = new_sums()
                rules += WINDOW_RULES if len(memory["windows"]) >= FACT_WINDOWS else ()

            # Notices.
            kl = float(metrics.get("losses/approx_kl", math.nan))
            evidence = Evidence(
                config,
                whole=memory["whole"],
                windows=memory["windows"],
                constants=memory["constants"],
                kl=kl,
                kls=memory["kls"],
                obs_space=self._obs_space,
                action_space=state.action_space,
                num_sides=self._num_sides,
                rounds=state.part(RunRounds) or RunRounds(),
                newest_save=self._newest_save,
            )
            for notice in (notice for rule in rules for notice in rule(evidence)):
                if notice.key not in memory["told"]:
                    memory["told"].append(notice.key)
                    self._write(state.step, notice.key, notice.text, notice.page)
                    self._say(f"notice: {notice.text}; see {notice.page}")
            if math.isfinite(kl):
                memory["kls"] = [*memory["kls"], kl][-KEPT_KLS:]

    def _add(self, rollout: Rollout, state: State, update: Sums) -> None:
        """Add the sums of a rollout and of the metrics of its update to the sums of the run."""
        memory, sums = self._memory, run_sums(rollout)
        if is_examined(state.step - rollout.num_frames, rollout.num_frames):
            shards = [
                (
                    choice_sums(shard, state.action_space),
                    updated_constants(memory["constants"], shard.batch, state.obs_space),
                )
                for shard in rollout.shard_rollouts
            ]
            shards = self._group.gather_shards(shards, "notices")
            for choices, _ in shards:
                add_sums(sums, choices)
            memory["constants"] = common_constants([constants for _, constants in shards])
        add_sums(sums, {"run": update.pop("run")})
        add_sums(memory["whole"], {"run": sums["run"], "actors": sums["actors"], **update})
        add_sums(memory["window"], sums)
