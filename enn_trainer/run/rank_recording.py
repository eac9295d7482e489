"""Recordings of the rollouts of several ranks, which rank 0 writes as one process does."""

from collections import ChainMap
from collections.abc import Mapping
from contextlib import ExitStack
from copy import copy
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from enn_trainer.base.group import Group
from enn_trainer.checkpoints.state_manager import StateManager
from enn_trainer.experience.episodes import Episodes
from enn_trainer.experience.recording import Recorder, capture_of_rollouts, recorders
from enn_trainer.experience.varied_envs import VariedEnvs
from entity_env.recording.record import EpisodeClock
from entity_env.recording.recording_format import Decisions
from entity_env.serialization.messages import pack, unpack
from entity_env.spaces import ObsSpace
from entity_env.vec.variation import RunningArguments
from entity_env.vec.vec_env import VecObs


class _Step(NamedTuple):
    """Step of the environments of a rank: frames, choices and what came of them."""

    decisions: Decisions
    run_step: int | None
    arguments: dict[int, Any]  # of the episodes that are new here, by match of the run
    outcome: bytes  # a packed VecObs without frames


@dataclass(eq=False)
class RankRecorder(Recorder):
    """Recorder of one of several ranks.

    It keeps the steps of a rollout in memory, until `write` sends them to rank 0, which writes what
    one process would. The other ranks open no file.

    Attributes:
        group: the ranks.
        columns: the environments of this one.
        num_envs: the number of environments of all ranks.
    """

    group: Group = field(kw_only=True)
    columns: range = field(kw_only=True)
    num_envs: int = field(kw_only=True)

    def __post_init__(self) -> None:
        super().__post_init__()
        assert self.running is not None
        self._of_rank = self.running
        self.running = RunningArguments(self.num_envs, self._of_rank.sides)
        self._steps: list[_Step] = []

    def begin(self, obs: VecObs, shown: ObsSpace, state: Mapping[str, Any] | None = None) -> None:
        """Take the first frames, in all ranks. Steps that were not written are dropped.

        Raises:
            RecordingError: in rank 0, as of `RecordingWriter`.
            ConfigError: in the others, if rank 0 raised an error.
        """
        self._steps = []
        self._sent = np.full(len(self._of_rank.episode), -1)  # the episodes that rank 0 knows
        begin, blank = super().begin, np.zeros(self.num_envs, np.float32)
        of_all = VecObs({}, {}, {}, blank, blank > 0, {})

        def begun() -> dict[str, Any]:
            begin(of_all, shown, state)
            return self._clock.get_state()

        clock = self.group.lead(begun, "recording")
        self._clock = EpisodeClock(self.num_envs)
        self._clock.set_state(clock)

    def keep(self, decisions: Decisions, run_step: int | None = None) -> None:
        """Keep the current frames and the choices in them, of this rank."""
        running = self._of_rank
        new = np.flatnonzero(running.episode != self._sent).tolist()
        self._sent = running.episode.copy()
        arguments = {running.first_match + i: dict(running.arguments[i]) for i in new}
        # a copy: environments may reuse what they return
        frames = decisions.take(np.arange(len(decisions)))
        self._steps.append(_Step(frames, run_step, arguments, b""))

    def after_step(self, obs: VecObs) -> None:
        """Keep the outcome of the step."""
        of_step = VecObs({}, {}, {}, obs.reward, obs.done, {}, obs.truncated, obs.final)
        of_step.padding = obs.padding
        self._steps[-1] = self._steps[-1]._replace(outcome=pack(of_step))

    def write(self, episodes: Episodes) -> None:
        """Write the steps of a rollout, in all ranks.

        Args:
            episodes: those that ended in it, of all environments.

        Raises:
            OSError: in rank 0, the file cannot be written.
        """
        # All ranks number the episodes alike, so that each sends only the frames that are kept.
        done = np.zeros((len(self._steps), self.num_envs), np.bool_)
        done[episodes.steps, episodes.environment] = True
        clock, sent = copy(self._clock), []
        for of_step in done:
            step = self._steps.pop(0)
            clock.padding = np.zeros(self.num_envs, np.bool_)  # of this rank, as of kept frames
            clock.padding[self.columns] = step.decisions.obs.is_padding
            kept = np.flatnonzero(np.isin(self.columns, self.sampled(clock)))
            of_kept = _plain(step.decisions.take(kept))
            sent.append(pack([of_kept, step.run_step, step.arguments, step.outcome]))
            clock.advance(of_step, clock.padding)

        # Rank 0 writes step by step.
        found = self.group.send_to_leader(pack(sent), "recording")
        assert self.running is not None
        for parts in zip(*map(unpack, found), strict=True):
            frames, run_steps, arguments, outcomes = zip(*map(unpack, parts), strict=True)
            for match, of_match in ChainMap(*arguments).items():
                self.running.arguments[match] = of_match
            decisions = Decisions.cat([*map(_decisions_of, frames)])
            self.keep_sample(decisions, self.sampled(self._clock), run_steps[0])
            super().after_step(VecObs.cat([*map(unpack, outcomes)]))
        if not found:  # rank 0 has counted the steps of all ranks
            self._clock = clock


def record_rollouts(
    manager: StateManager, envs: VariedEnvs, folder: Path | None, stack: ExitStack
) -> list[Recorder]:
    """Return the watchers that record the rollouts of a run; see `run_folder` and `recorders`."""
    group, config, running = manager.group, manager.config, envs.running
    make: Any = Recorder
    if group.size > 1:
        first = running.first_match * envs.sides
        columns = range(first, first + len(envs))
        num_envs = config.rollout.num_envs
        make = partial(RankRecorder, group=group, columns=columns, num_envs=num_envs)
    capture = capture_of_rollouts(config, folder)
    return recorders(capture, envs, manager.state.run_name, stack, running, make)


def _plain(decisions: Decisions) -> dict[str, Any]:
    return {**vars(decisions), "player": decisions.player.tolist()}


def _decisions_of(plain: dict[str, Any]) -> Decisions:
    return Decisions(**{**plain, "player": np.array(plain["player"], dtype=object)})
