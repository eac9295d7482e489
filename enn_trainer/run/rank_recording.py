"""Recordings of the rollouts of several ranks, written by rank 0 as by a single process."""

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
from entity_env.recording.recording_format import RecordedFrames
from entity_env.serialization.messages import pack, unpack
from entity_env.spaces import ObsSpace
from entity_env.vec.variation import RunningArguments
from entity_env.vec.vec_env import VecObs


class _RankStep(NamedTuple):
    """Step of the environments of a rank: frames, choices and outcomes."""

    decisions: RecordedFrames
    run_step: int | None
    arguments: dict[int, Any]  # of the episodes that start at this step, by match of the run
    outcome: bytes  # a packed VecObs without frames


@dataclass(eq=False)
class RankRecorder(Recorder):
    """Recorder of one of several ranks.

    It buffers the steps of a rollout until `write` sends them to rank 0, which writes the same file
    as a single process. Other ranks open no file.

    Attributes:
        group: processes of the run.
        columns: environments of this rank.
        num_envs: number of environments of all ranks.
    """

    group: Group = field(kw_only=True)
    columns: range = field(kw_only=True)
    num_envs: int = field(kw_only=True)

    def __post_init__(self) -> None:
        super().__post_init__()
        assert self.running is not None
        self._local_running = self.running
        self.running = RunningArguments(self.num_envs, self._local_running.sides)
        self._steps: list[_RankStep] = []

    def begin(
        self, obs: VecObs, obs_space: ObsSpace, state: Mapping[str, Any] | None = None
    ) -> None:
        """Start recording, in all ranks; discard buffered steps.

        Raises:
            RecordingError: in rank 0, see `RecordingWriter`.
            ConfigError: in other ranks, if rank 0 raised an error.
        """
        self._steps = []
        self._sent = np.full(len(self._local_running.episode), -1)  # the episodes that rank 0 knows
        begin, blank = super().begin, np.zeros(self.num_envs, np.float32)
        blank_obs = VecObs({}, {}, {}, blank, blank > 0, {})

        def begun() -> dict[str, Any]:
            begin(blank_obs, obs_space, state)
            return self._clock.get_state()

        clock = self.group.lead(begun, "recording")
        self._clock = EpisodeClock(self.num_envs)
        self._clock.set_state(clock)

    def keep(self, decisions: RecordedFrames, run_step: int | None = None) -> None:
        """Buffer the current frames and choices of this rank."""
        running = self._local_running
        new = np.flatnonzero(running.episode != self._sent).tolist()
        self._sent = running.episode.copy()
        arguments = {running.first_match + i: dict(running.arguments[i]) for i in new}
        # a copy: environments may reuse their arrays
        frames = decisions.take(np.arange(len(decisions)))
        self._steps.append(_RankStep(frames, run_step, arguments, b""))

    def after_step(self, obs: VecObs) -> None:
        """Buffer the outcome of the step."""
        outcome = VecObs({}, {}, {}, obs.reward, obs.done, {}, obs.truncated, obs.final)
        outcome.padding = obs.padding
        self._steps[-1] = self._steps[-1]._replace(outcome=pack(outcome))

    def write(self, episodes: Episodes) -> None:
        """Write the buffered steps of a rollout; called in all ranks.

        Args:
            episodes: episodes of all environments that ended in the rollout.

        Raises:
            OSError: in rank 0, the file cannot be written.
        """
        # All ranks count episodes alike, so each sends only the frames that are sampled.
        done = np.zeros((len(self._steps), self.num_envs), np.bool_)
        done[episodes.steps, episodes.environment] = True
        clock, sent = copy(self._clock), []
        for done_now in done:
            step = self._steps.pop(0)
            clock.padding = np.zeros(self.num_envs, np.bool_)  # only this rank's are needed
            clock.padding[self.columns] = step.decisions.obs.is_padding
            columns = np.flatnonzero(np.isin(self.columns, self.sampled(clock)))
            packed = _plain(step.decisions.take(columns))
            sent.append(pack([packed, step.run_step, step.arguments, step.outcome]))
            clock.advance(done_now, clock.padding)

        # Rank 0 writes step by step.
        messages = self.group.send_to_leader(pack(sent), "recording")
        assert self.running is not None
        for parts in zip(*map(unpack, messages), strict=True):
            frames, run_steps, arguments, outcomes = zip(*map(unpack, parts), strict=True)
            for match, values in ChainMap(*arguments).items():
                self.running.arguments[match] = values
            decisions = RecordedFrames.cat([*map(_decisions_of, frames)])
            self.keep_sample(decisions, self.sampled(self._clock), run_steps[0])
            super().after_step(VecObs.cat([*map(unpack, outcomes)]))
        if not messages:  # rank 0 has counted the steps of all ranks
            self._clock = clock


def record_rollouts(
    manager: StateManager, envs: VariedEnvs, folder: Path | None, stack: ExitStack
) -> list[Recorder]:
    """Return the recorders of the rollouts of a run; see `run_folder` and `recorders`."""
    group, config, running = manager.group, manager.config, envs.running
    make: Any = Recorder
    if group.size > 1:
        first = running.first_match * envs.sides
        columns = range(first, first + len(envs))
        num_envs = config.rollout.num_envs
        make = partial(RankRecorder, group=group, columns=columns, num_envs=num_envs)
    capture = capture_of_rollouts(config, folder)
    return recorders(capture, envs, manager.state.run_name, stack, running, make)


def _plain(decisions: RecordedFrames) -> dict[str, Any]:
    return {**vars(decisions), "player": decisions.player.tolist()}


def _decisions_of(plain: dict[str, Any]) -> RecordedFrames:
    return RecordedFrames(**{**plain, "player": np.array(plain["player"], dtype=object)})
