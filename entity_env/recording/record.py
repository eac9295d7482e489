"""Writer of recordings, in the format of `recording_format.py`."""

import errno
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from itertools import islice
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from entity_env.arrays import BoolArray, Float32Array, IntArray
from entity_env.ragged import Ragged, as_choices
from entity_env.recording.recording_format import (
    PREFIX,
    RecordedFrames,
    RecordedStep,
    RecordingError,
    framed,
    may_begin,
    prefix_of,
    read_header,
    read_payload,
    read_step,
    records,
)
from entity_env.seeding import key_of, mix
from entity_env.serialization.messages import MessageError, pack
from entity_env.serialization.plain_open import append_plain, read_plain
from entity_env.spaces import ActionName, ActionSpace, ObsSpace
from entity_env.vec.variation import RunningArguments, Variation
from entity_env.vec.vec_env import VecEnv, VecEnvWrapper, VecObs


class EpisodeClock:
    """Numbers of the running episodes of B environments, and of their steps.

    Attributes:
        episode: (B,) int64, unique number of each running episode.
        step: (B,) int64, number of steps in it so far.
        padding: (B,) bool, environments between two episodes: `episode` has not begun.

    Args:
        num_envs: B.
        first: the number of the first episode.
    """

    def __init__(self, num_envs: int, first: int = 0) -> None:
        self.episode = np.full(num_envs, -1, dtype=np.int64)
        self.step = np.zeros(num_envs, dtype=np.int64)
        self.padding = np.zeros(num_envs, dtype=np.bool_)
        self._next = first

    def restart(self) -> None:
        """Begin an episode in every environment; numbers without a step are used again."""
        self._next -= int(((self.episode >= 0) & (self.step == 0)).sum())
        self._begin(np.ones(len(self.episode), dtype=np.bool_))

    def advance(self, done: BoolArray, padding: BoolArray) -> None:
        """Count a step of the running episodes.

        Args:
            done: (B,) bool, environments in which another episode is next.
            padding: (B,) bool, environments in which it does not begin yet.
        """
        self.step = self.step + ~self.padding
        self._begin(done)
        self.padding = padding

    def get_state(self) -> dict[str, Any]:
        """Return the clock as plain data."""
        padding = {"padding": self.padding} if self.padding.any() else {}
        return {"episode": self.episode, "step": self.step, "next": self._next, **padding}

    def set_state(self, state: Mapping[str, Any]) -> None:
        """Continue from a state of `get_state`.

        Raises:
            RecordingError: it has another number of environments.
        """
        padding = state.get("padding", np.zeros(len(self.step), np.bool_))
        arrays = [*(np.asarray(state[name]) for name in ("episode", "step")), np.asarray(padding)]
        dtypes = np.int64, np.int64, np.bool_
        if type(state["next"]) is not int or any(
            array.dtype != dtype or array.shape != self.step.shape
            for array, dtype in zip(arrays, dtypes, strict=True)
        ):
            raise RecordingError(
                f"set_state: expected the episodes of {len(self.step)} environments"
            )
        self.episode, self.step, self.padding = (array.copy() for array in arrays)
        self._next = state["next"]

    def _begin(self, new: BoolArray) -> None:
        self.episode = np.where(new, self._next + np.cumsum(new) - 1, self.episode)
        self.step = np.where(new, 0, self.step)
        self._next += int(new.sum())


@dataclass(eq=False)
class RecordingWriter:
    """Writer of the steps of B environments to a file; see `RecordingVecEnv`.

    Attributes:
        path: the file.
        action_space: the actions of the environments.
        subsample: record one in `subsample` frames.
        seed: seed of the random choice of these frames.
        run: the name of the run that this is part of, if any.
        keep_logits: True to record the logits.
        running: arguments of the running episodes, to record them; None if unknown.

    Raises:
        ValueError: `subsample` is not positive.
    """

    path: Path
    action_space: Mapping[ActionName, ActionSpace]
    subsample: int = 1
    seed: int = 0
    run: str = field(default="", kw_only=True)
    keep_logits: bool = field(default=True, kw_only=True)
    running: RunningArguments | None = field(default=None, kw_only=True)

    def __post_init__(self) -> None:
        if self.subsample < 1:
            raise ValueError(f"subsample: expected at least 1, got {self.subsample}")
        self._file: BinaryIO | None = None
        self._clock = EpisodeClock(0)
        self._recorded = np.zeros(0, dtype=np.int64)  # last episodes with recorded arguments
        self._space_bytes = b""
        self._pending: dict[str, Any] = {}

    def begin(self, obs: VecObs, space: ObsSpace, state: Mapping[str, Any] | None = None) -> None:
        """Start with the first frames. The first call opens the file.

        Args:
            obs: frames of all environments.
            space: entity types and features of the frames.
            state: result of `get_state`, to continue saved episodes; None for new ones. An episode
                that was not recorded before begins here.

        Raises:
            RecordingError: the file is damaged, or a recording with another header.
        """
        is_continued = self._file is not None
        if self._file is None:
            header = recording_header(
                space, self.action_space, len(obs), self.subsample, self.seed, self.run
            )
            exists = os.path.lexists(self.path)
            end, last = next(_from_end(self.path, header)) if exists else (0, None)
            first_episode = 0 if last is None else int(last.episode.max()) + 1
            self._clock = EpisodeClock(len(obs), first_episode)
            self._space_bytes = pack(space)
            # A torn record at the end is removed before records are appended.
            self._file = _open_recording(self.path, to_append=True)
            self._file.truncate(end)
            is_continued = end > 0
            if end == 0:
                self._file.write(prefix_of(self.action_space))
                self._write(header)
        self.check_obs_space("obs_config", space)
        self._recorded = np.full(len(obs), -1, dtype=np.int64)
        if state is not None and "recording" in state:
            self._clock.set_state(state["recording"])
            if is_continued:  # the file has the arguments of running episodes
                self._recorded[self._clock.step > 0] = self._clock.episode[self._clock.step > 0]
        else:
            self._clock.restart()
            self._clock.padding = obs.is_padding

    def get_state(self) -> dict[str, Any]:
        """Return the numbers of the running episodes, as plain data."""
        return {"recording": self._clock.get_state()}

    def keep(self, decisions: RecordedFrames, run_step: int | None = None) -> None:
        """Store a sample of the current frames and of the choices in them, until `after_step`.

        Frames between two episodes are left out.

        Args:
            decisions: the frames and choices of all environments.
            run_step: the number of earlier frames of the run. It never decreases in a file.
        """
        envs = self.sampled(self._clock)
        if not self.keep_logits:
            decisions = replace(decisions, logits={})
        # a copy: environments may reuse their arrays
        self.keep_sample(decisions.take(envs), envs, run_step)

    def sampled(self, clock: EpisodeClock) -> IntArray:
        """Return the environments with a recorded frame in the current step of a clock, int64."""
        keys = np.arange(len(clock.episode)), clock.episode, clock.step
        drawn = mix(self.seed, key_of("record"), *keys) % np.uint64(self.subsample)
        return np.flatnonzero((drawn == 0) & ~clock.padding)

    def keep_sample(self, decisions: RecordedFrames, envs: IntArray, run_step: int | None) -> None:
        """Store the frames and choices of some environments, until `after_step`.

        Args:
            decisions: the frames and choices of these environments.
            envs: (K,) int64, their indices.
            run_step: as in `keep`.
        """
        self._pending = {**decisions.payload(), "kept": envs, "run_step": run_step}
        if parameters := self._parameters():
            self._pending["parameters"] = parameters

    def after_step(self, obs: VecObs) -> None:
        """Write the stored frames with the outcome of the step.

        Args:
            obs: the frames after the step, with its rewards and ends of episodes.
        """
        numbers: dict[str, Any] = {"episode": self._clock.episode, "step": self._clock.step}
        if self._clock.padding.any():
            numbers["padding"] = self._clock.padding
        outcome = ("reward", "terminated", "truncated", "final")
        self._write({**self._pending, **numbers, **{name: getattr(obs, name) for name in outcome}})
        self._clock.advance(obs.done, obs.is_padding)

    def close(self) -> None:
        """Close the file. Safe to call twice."""
        file, self._file = self._file, None
        if file is not None:
            file.close()

    def check_obs_space(self, name: str, obs_space: ObsSpace) -> None:
        """Raise if an observation space differs from the one in `begin`.

        Args:
            name: the argument with the space, for the message.
            obs_space: the space.

        Raises:
            RecordingError: they differ.
        """
        if pack(obs_space) != self._space_bytes:  # bytes: the order of names counts
            raise RecordingError(f"{name}: expected the space of the recording, got {obs_space}")

    def _parameters(self) -> dict[int, dict[str, Any]]:
        """Return the arguments of the episodes that are new in the recording, by environment."""
        if self.running is None:
            return {}
        episodes = np.where(self._clock.padding, self._recorded, self._clock.episode)
        new, self._recorded = np.flatnonzero(self._recorded != episodes), episodes
        arguments, sides = self.running.arguments, self.running.sides
        return {i: dict(arguments[i // sides]) for i in new.tolist() if arguments[i // sides]}

    def _write(self, payload: dict[str, Any]) -> None:
        assert self._file is not None
        try:
            self._file.write(framed(payload))
            self._file.flush()
        except OSError as error:
            error.filename = str(self.path)  # the error of a full disk has no name
            with suppress(OSError):  # closing writes the rest, and fails again
                self.close()
            raise


class RecordingVecEnv(VecEnvWrapper):
    """Wrapper that writes frames, choices and outcomes to a file.

    An existing file is continued with new episodes, if its header is the same.

    Args:
        env: the environments.
        path: the file.
        subsample: record one in `subsample` frames, drawn as a function of environment, episode and
            step. Rewards and ends of all steps are recorded, and the last observations of all
            truncated episodes.
        seed: the seed of that draw.
        run: the name of the run that this is part of, if any.
        keep_logits: True to record the logits.

    Raises:
        ValueError: `subsample` is not positive.
    """

    def __init__(
        self,
        env: VecEnv,
        path: str | Path,
        subsample: int = 1,
        seed: int = 0,
        *,
        run: str = "",
        keep_logits: bool = True,
    ) -> None:
        super().__init__(env)
        self.running = RunningArguments(len(env), env.sides)
        self.writer = RecordingWriter(
            Path(path),
            env.action_space(),
            subsample,
            seed,
            run=run,
            keep_logits=keep_logits,
            running=self.running,
        )
        self._last: VecObs | None = None

    def seed(self, seed: int) -> None:
        """Seed the environments."""
        self.env.seed(seed)
        self.running.seed(seed)

    def vary(self, variation: Variation) -> None:
        """Draw the arguments of all following episodes, and record them."""
        self.env.vary(variation)
        self.running.variation = variation

    def reset(self, obs_config: ObsSpace) -> VecObs:
        """Reset all environments. The first call opens the file.

        Raises:
            RecordingError: the file is damaged, or a recording with another header.
        """
        self._last = self.env.reset(obs_config)
        self.running.begin()
        self.writer.begin(self._last, obs_config)
        return self._last

    def get_state(self) -> dict[str, Any] | None:
        """Return the state of the environments, and the numbers of the running episodes."""
        state = self.env.get_state()
        return None if state is None else {**state, **self.writer.get_state()}

    def set_state(self, state: Mapping[str, Any], obs_config: ObsSpace) -> VecObs | None:
        """Continue the running episodes; an episode that was not recorded before begins here.

        Raises:
            RecordingError: as from `reset`.
        """
        obs = self.env.set_state(state, obs_config)
        if obs is not None:
            self.running.set_state(state)
            self.writer.begin(obs, obs_config, state)
            self._last = obs
        return obs

    def act(
        self,
        actions: Mapping[ActionName, Ragged],
        obs_filter: ObsSpace,
        probs: Mapping[ActionName, Ragged] | None = None,
        logits: Mapping[ActionName, Ragged] | None = None,
        values: Float32Array | None = None,
        run_step: int | None = None,
        by_hand: Mapping[ActionName, Ragged] | None = None,
        player: Sequence[str] | None = None,
        drawn: Mapping[ActionName, Ragged] | None = None,
    ) -> VecObs:
        """Step all environments and record the step; for the arguments see `act_async`."""
        self.act_async(actions, obs_filter, probs, logits, values, run_step, by_hand, player, drawn)
        return self.wait()

    def act_async(
        self,
        actions: Mapping[ActionName, Ragged],
        obs_filter: ObsSpace,
        probs: Mapping[ActionName, Ragged] | None = None,
        logits: Mapping[ActionName, Ragged] | None = None,
        values: Float32Array | None = None,
        run_step: int | None = None,
        by_hand: Mapping[ActionName, Ragged] | None = None,
        player: Sequence[str] | None = None,
        drawn: Mapping[ActionName, Ragged] | None = None,
    ) -> None:
        """Begin a step in all environments, which `wait` records.

        Args:
            actions: as in `VecEnv.act`.
            obs_filter: as in the reset.
            probs: (actors,) per frame, the probability of each choice, or the density of continuous
                actions.
            logits: (actors, choices) per frame, or (actors * actees,) row by row, logits or
                log-probabilities of all choices; for continuous actions (actors, 2 * components),
                means and logarithms of standard deviations.
            values: (B,) float32, the expected return of each frame.
            run_step: the number of earlier frames of the run. It never decreases in a file.
            by_hand: bool (actors,) per frame, True for the choices that a person made.
            player: (B,), the player of each frame by name, "" for the agent; by default it is the
                agent in all frames.
            drawn: float32 (actors, components) per frame, for continuous actions: the samples,
                before they were mapped into their bounds.

        Raises:
            RecordingError: there was no reset, or `obs_filter` differs from it.
        """
        if self._last is None:
            raise RecordingError("act: call reset first")
        self.writer.check_obs_space("obs_filter", obs_filter)
        chosen, spaces = {}, self.writer.action_space
        for name, rows in actions.items():
            chosen[name] = (spaces[name].as_choices if name in spaces else as_choices)(rows)
        decisions = RecordedFrames(
            self._last,
            chosen,
            probs=dict(probs or {}),
            logits=dict(logits or {}),
            by_hand=dict(by_hand or {}),
            drawn=dict(drawn or {}),
        )
        if values is not None:
            decisions = replace(decisions, values=values)
        if player is not None:
            decisions = replace(decisions, player=np.array(player, dtype=object))
        self.writer.keep(decisions, run_step)
        self.env.act_async(actions, obs_filter)

    def wait(self) -> VecObs:
        """Return the frames after a step, and record it."""
        self._last = self.env.wait()
        self.writer.after_step(self._last)
        self.running.begin(np.flatnonzero(self._last.done[:: self.sides]))
        return self._last

    def stop(self) -> None:
        """Close the file, and leave the environments open. Safe to call twice."""
        self.writer.close()
        self._last = None

    def close(self) -> None:
        """Close the file and the environments. Safe to call twice."""
        self.stop()
        self.env.close()


def recording_header(
    obs_space: ObsSpace,
    action_space: Mapping[ActionName, ActionSpace],
    num_envs: int,
    subsample: int = 1,
    seed: int = 0,
    run: str = "",
) -> dict[str, Any]:
    """Return the first record of a file; a file is only continued with the same header."""
    spaces = {"obs_space": obs_space, "action_space": dict(action_space), "num_envs": num_envs}
    return {**spaces, "subsample": subsample, "seed": seed, **({"run": run} if run else {})}


def end_before(path: Path, header: Mapping[str, Any], run_step: int) -> int:
    """Return the position after the steps that a run recorded before its `run_step`.

    Raises:
        RecordingError: the file is damaged, or a recording with another header.
    """
    return next(
        end
        for end, step in _from_end(path, header)  # from the end, as few steps are left out
        if step is None or step.run_step is None or step.run_step < run_step
    )


def holds_no_step(path: Path) -> bool:
    """Return whether a file is empty, or a recording without steps."""
    with _open_recording(path) as file:
        if not may_begin(file.read(len(PREFIX))):
            return False
        if file.tell() < len(PREFIX):
            return True
        try:
            return len(list(islice(records(file, path), 2))) < 2
        except RecordingError:  # damaged
            return False


def _open_recording(path: Path, to_append: bool = False) -> BinaryIO:
    """Open the file of a recording; raise if it is a link, a pipe or a device."""
    try:
        return append_plain(path) if to_append else read_plain(path)
    except OSError as error:
        if error.errno in (errno.ELOOP, errno.EINVAL, errno.ENXIO, errno.EISDIR):
            message = f"{path}: cannot be opened as a recording: {error.strerror}"
            raise RecordingError(message) from None
        raise


def _from_end(path: Path, header: Mapping[str, Any]) -> Iterator[tuple[int, RecordedStep | None]]:
    """Yield the end of each complete record and its step, from the last to the first.

    The first record is the header, without a step; its end is 0 if it is torn.

    Raises:
        RecordingError: the file is damaged, or a recording with another header.
    """
    begin = prefix_of(header["action_space"]) + framed(dict(header))
    with _open_recording(path) as file:
        beginning = file.read(len(begin))
        if len(beginning) < len(begin) and begin.startswith(beginning):
            yield 0, None
            return
        first, *steps = records(file, path)
        contents = read_header(file, path, first)  # raises if it is damaged
        _check_same_header(path, read_payload(file, path, first), header)
        for record in reversed(steps):
            yield record.end, read_step(file, path, record, contents)
        yield first.end, None


def _packed(value: Any) -> bytes:
    """Return a value as bytes, independent of the order of names in a dictionary."""
    try:
        return pack(dict(sorted(value.items())) if isinstance(value, dict) else value)
    except (TypeError, MessageError):  # keys of several types, which this package never writes
        return b""


def _check_same_header(path: Path, old: Mapping[str, Any], new: Mapping[str, Any]) -> None:
    """Raise if a file has another header; names actions with labels in another order."""

    def canonical(spaces: Mapping[str, ActionSpace]) -> dict[str, Any]:
        return {
            name: (type(one), sorted(one.names), one.bounds_by_name(), one.after, one.when)
            for name, one in spaces.items()
        }

    names = {**new, **old}
    changed = [name for name in names if _packed(old.get(name)) != _packed(new.get(name))]
    if changed == ["action_space"]:
        current, recorded = new["action_space"], old["action_space"]
        if canonical(recorded) == canonical(current):
            reordered = [n for n, space in recorded.items() if space.names != current[n].names]
            numbers = all(recorded[n].components for n in reordered)
            what = "components" if numbers else "labels"
            raise RecordingError(
                f"{path}: was recorded with the {what} of {', '.join(reordered)} in another order, "
                "and keeps choices by their number; record to another file"
            )
    if changed:
        raise RecordingError(f"{path}: was recorded with another {', '.join(changed)}")
