"""`Recording`: reads a recording by steps or by episodes, and splits it into two parts."""

from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any, Literal, TypeAlias

import numpy as np

from entity_env.arrays import BoolArray, Float32Array, IntArray
from entity_env.recording.recording_format import (
    Header,
    Record,
    RecordedFrames,
    RecordedStep,
    RecordingError,
    read_header,
    read_step,
    records,
)
from entity_env.seeding import key_of, mix, uniforms
from entity_env.spaces import ActionName, ActionSpace, ObsSpace, Spaces
from entity_env.vec.vec_obs import VecObs

Ending: TypeAlias = Literal["terminated", "truncated", "unfinished", "unknown"]
"""End of an episode: terminated, truncated, not recorded, or unknown from the file."""

_Piece: TypeAlias = tuple[RecordedFrames, IntArray]
_CHUNK = 64  # number of steps sorted by episode at once, which is faster than one by one


@dataclass
class Episode:
    """The recorded part of one episode.

    Attributes:
        number: unique among the episodes of a file.
        env: index of its environment; None if it is not in the file.
        rewards: (steps,) float32, of all its steps; NaN if they are not in the file.
        ending: how it ended.
        decisions: its K recorded frames and the choices in them, in order.
        steps: (K,) int64, the index of each of these frames in the episode.
        final: its last observation, if it was truncated.
        parameters: the arguments that were drawn for it, by name; {} if none were.
    """

    number: int
    env: int | None
    rewards: Float32Array
    ending: Ending
    decisions: RecordedFrames
    steps: IntArray
    final: VecObs | None = None
    parameters: Mapping[str, Any] = field(default_factory=dict)

    @property
    def episodic_reward(self) -> float:
        """Sum of all its rewards."""
        return float(self.rewards.sum(dtype=np.float64))


@dataclass(frozen=True)
class Recording:
    """A recording, which can be read any number of times and holds no file open.

    Attributes:
        obs_space: entity types and features of its frames.
        action_space: the actions by name.
        num_envs: the number of environments in each step; None if the file lacks it, and with it
            the environments of frames and some rewards and ends.
        subsample: one in `subsample` frames was recorded.
        complete: True if the file ends with a whole record; a torn end is left out.
        path: the file.
    """

    obs_space: ObsSpace
    action_space: dict[ActionName, ActionSpace]
    num_envs: int | None
    subsample: int
    complete: bool
    path: Path
    _read: Callable[[], Iterator[RecordedStep]] = field(repr=False)
    _parts: tuple[tuple[int, float, float], ...] = ()
    """Splits: the seed, and the lowest and highest draw of the episodes in this part."""

    @property
    def spaces(self) -> Spaces:
        """The spaces of its frames."""
        return Spaces(self.obs_space, self.action_space)

    @classmethod
    def open(cls, path: str | Path) -> "Recording":
        """Open the steps recorded so far; steps that are appended later are left out.

        Raises:
            RecordingError: the file is no recording or is damaged; the message has the place.
        """
        path = Path(path)
        with path.open("rb") as file:
            positions = records(file, path)
            header = next(positions)
            last = (deque(positions, maxlen=1) or [header])[0]  # a list of them all could be long
            contents = read_header(file, path, header)
            complete = file.seek(0, 2) == last.end
        steps = partial(_read_steps, path, contents, last)
        return cls(**contents._asdict(), complete=complete, path=path, _read=steps)

    def steps(self) -> Iterator[RecordedStep]:
        """Yield all steps, with the frames of this part.

        Raises:
            RecordingError: the file is damaged; the message has the place.
        """
        for step in self._read():
            chosen = np.flatnonzero(self._contains(step.episode[step.kept]))
            if len(chosen) < len(step.kept):
                step = replace(step, decisions=step.decisions.take(chosen), kept=step.kept[chosen])
            yield step

    def episodes(self) -> Iterator[Episode]:
        """Yield the episodes of this part, each at its end; unfinished ones last.

        The running episodes and a few steps are in memory.

        Raises:
            RecordingError: the file is damaged, or an episode goes on after it ended; the message
                has the place.
        """
        running: dict[int, _RunningEpisode] = {}
        shapes: dict[ActionName, tuple[int, ...]] = {}
        incomplete: Ending = "unfinished" if self.num_envs is not None else "unknown"
        steps = self.steps()
        # The frames of a chunk are sorted by episode at once.
        while chunk := list(islice(steps, _CHUNK)):
            self._check_logits(chunk, shapes)
            pieces = _pieces_by_episode(chunk)
            for step in chunk:
                # A reset ended the episodes without a row in this step.
                if self.num_envs is not None:  # else a step does not have all running episodes
                    for number in running.keys() - set(step.episode.tolist()):
                        yield running.pop(number).finish(incomplete)
                # Add this step to its episodes, and yield each episode that it ends.
                for row in np.flatnonzero(self._contains(step.episode) & ~step.is_padding).tolist():
                    number = int(step.episode[row])
                    env = row if self.num_envs is not None else None
                    episode = running.setdefault(number, _RunningEpisode(number, env))
                    episode.rewards.append(step.reward[row])
                    episode.parameters = step.parameters.get(row, episode.parameters)
                    if number in pieces:  # its first step in this chunk
                        episode.add(pieces.pop(number))
                    elif not episode.pieces:
                        raise RecordingError(
                            f"{self.path}: episode {number}: expected no step after its end, got "
                            f"step {step.step[row]}"
                        )
                    if step.truncated[row]:
                        index = np.array([step.truncated[:row].sum()])
                        final = None if step.final is None else step.final.take(index)
                        yield running.pop(number).finish("truncated", final)
                    elif step.terminated[row]:
                        yield running.pop(number).finish("terminated")
        for episode in running.values():
            yield episode.finish(incomplete)

    def _check_logits(
        self, chunk: Sequence[RecordedStep], shapes: dict[ActionName, tuple[int, ...]]
    ) -> None:
        """Raise if the logits of an action differ in shape from earlier steps."""
        for step in chunk:
            for name, rows in step.decisions.logits.items():
                shape = rows.values.shape[1:]
                if shapes.setdefault(name, shape) != shape:
                    raise RecordingError(
                        f"{self.path}: episode {step.episode.min()}, step {step.step.min()}: "
                        f"logits[{name!r}]: expected rows of {shapes[name]}, got {shape}"
                    )

    def split(self, test_fraction: float, seed: int) -> tuple["Recording", "Recording"]:
        """Split the episodes at random into two parts.

        Each episode is in the second part with probability `test_fraction`, as a function of `seed`
        and its number alone: it stays there when the recording grows.

        Returns:
            The part for training, and the part for testing.

        Raises:
            ValueError: the fraction is not between 0 and 1.
        """
        if not 0 <= test_fraction <= 1:
            raise ValueError(f"test_fraction: expected a number from 0 to 1, got {test_fraction}")
        draws = (seed, test_fraction, 1.0), (seed, 0.0, test_fraction)
        train, test = (replace(self, _parts=(*self._parts, part)) for part in draws)
        return train, test

    def _contains(self, episodes: IntArray) -> BoolArray:
        held = np.ones(len(episodes), dtype=np.bool_)
        for seed, low, high in self._parts:
            drawn = uniforms(mix(seed, key_of("split"), episodes))  # in [0, 1)
            held &= (drawn >= low) & (drawn < high)
        return held


@dataclass
class _RunningEpisode:
    """An episode so far: its rewards, and its frames in pieces with their steps."""

    number: int
    env: int | None
    rewards: list[np.float32] = field(default_factory=list)
    pieces: list["_Piece"] = field(default_factory=list)
    parameters: Mapping[str, Any] = field(default_factory=dict)

    def add(self, piece: "_Piece") -> None:
        # Pieces without frames are left out: joining them costs time for each entity type.
        if self.pieces and not len(self.pieces[-1][1]):
            self.pieces.pop()
        if not self.pieces or len(piece[1]):
            self.pieces.append(piece)

    def finish(self, ending: Ending, final: VecObs | None = None) -> Episode:
        decisions, steps = self.pieces[0]
        if len(self.pieces) > 1:
            decisions = RecordedFrames.cat([decisions for decisions, _ in self.pieces])
            steps = np.concatenate([steps for _, steps in self.pieces])
        rewards = np.array(self.rewards, dtype=np.float32)
        return Episode(
            self.number, self.env, rewards, ending, decisions, steps, final, self.parameters
        )


def _pieces_by_episode(chunk: Sequence[RecordedStep]) -> dict[int, "_Piece"]:
    """Return the frames and steps of each episode that has steps in the chunk."""
    decisions = RecordedFrames.cat([step.decisions for step in chunk])
    steps = np.concatenate([step.step[step.kept] for step in chunk])
    numbers = np.concatenate([step.episode[step.kept] for step in chunk])
    order = np.argsort(numbers, kind="stable")
    unique = np.unique(np.concatenate([step.episode for step in chunk]))
    frames = np.split(order, np.searchsorted(numbers[order], unique)[1:])
    empty = decisions.take(order[:0]), steps[:0]
    return {
        number: (decisions.take(rows), steps[rows]) if len(rows) else empty
        for number, rows in zip(unique.tolist(), frames, strict=True)
    }


def _read_steps(path: Path, header: Header, last: Record) -> Iterator[RecordedStep]:
    with path.open("rb") as file:
        for record in islice(records(file, path), 1, None):
            if record.end > last.end:
                return
            yield read_step(file, path, record, header)
