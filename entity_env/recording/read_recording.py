"""`Recording`: a recording to read by steps or by episodes, or to split into two parts."""

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
    Decisions,
    Header,
    Record,
    RecordingError,
    Step,
    read_header,
    read_step,
    records,
)
from entity_env.seeding import key_of, mix, uniforms
from entity_env.spaces import ActionName, ActionSpace, ObsSpace, Spaces
from entity_env.vec.vec_obs import VecObs

Ending: TypeAlias = Literal["terminated", "truncated", "unfinished", "unknown"]
"""The end of an episode: by itself, cut off, not recorded, or not known from the file."""

_Piece: TypeAlias = tuple[Decisions, IntArray]
_CHUNK = 64  # steps whose frames are sorted by episode at once, rather than one by one


@dataclass
class Episode:
    """The recorded part of one episode.

    Attributes:
        number: no two episodes of a file have the same.
        env: the environment that it ran in; None if it is not in the file.
        rewards: (steps,) float32, of all its steps; NaN if they are not in the file.
        ending: the way in which it ended.
        decisions: the K frames that were kept, and the choices in them, in order.
        steps: (K,) int64, the number of each of these steps in the episode.
        final: its last observation, if it was truncated.
        parameters: the arguments that were drawn for it, by name; {} if none were.
    """

    number: int
    env: int | None
    rewards: Float32Array
    ending: Ending
    decisions: Decisions
    steps: IntArray
    final: VecObs | None = None
    parameters: Mapping[str, Any] = field(default_factory=dict)

    @property
    def episodic_reward(self) -> float:
        """The sum of all its rewards."""
        return float(self.rewards.sum(dtype=np.float64))


@dataclass(frozen=True)
class Recording:
    """A recording that can be read any number of times. It holds no file open.

    Attributes:
        obs_space: the types and features that its frames show.
        action_space: the actions by name.
        num_envs: the number of environments in each step; None if the file has neither that nor
            the environment of a frame, nor all rewards and ends.
        subsample: one of so many frames was kept.
        complete: True if the file ends with a whole record; a torn end is left out.
        path: the file.
    """

    obs_space: ObsSpace
    action_space: dict[ActionName, ActionSpace]
    num_envs: int | None
    subsample: int
    complete: bool
    path: Path
    _read: Callable[[], Iterator[Step]] = field(repr=False)
    _parts: tuple[tuple[int, float, float], ...] = ()
    """Divisions: the seed, and the lowest and highest draw of the episodes that belong here."""

    @property
    def spaces(self) -> Spaces:
        """The spaces of its frames."""
        return Spaces(self.obs_space, self.action_space)

    @classmethod
    def open(cls, path: str | Path) -> "Recording":
        """Open the steps recorded so far; steps that are appended later are left out.

        Raises:
            RecordingError: the file is no recording or is damaged; the message says where.
        """
        path = Path(path)
        with path.open("rb") as file:
            found = records(file, path)
            header = next(found)
            last = (deque(found, maxlen=1) or [header])[0]  # a list of all could be long
            contents = read_header(file, path, header)
            complete = file.seek(0, 2) == last.end
        steps = partial(_read_steps, path, contents, last)
        return cls(**contents._asdict(), complete=complete, path=path, _read=steps)

    def steps(self) -> Iterator[Step]:
        """Yield all steps, with the frames that belong to this part.

        Raises:
            RecordingError: the file is damaged; the message says where.
        """
        for step in self._read():
            chosen = np.flatnonzero(self._holds(step.episode[step.kept]))
            if len(chosen) < len(step.kept):
                step = replace(step, decisions=step.decisions.take(chosen), kept=step.kept[chosen])
            yield step

    def episodes(self) -> Iterator[Episode]:
        """Yield the episodes of this part, each at its end; unfinished ones last.

        Holds the running episodes and a few steps in memory.

        Raises:
            RecordingError: the file is damaged, or an episode goes on after it ended; the message
                says where.
        """
        running: dict[int, _Running] = {}
        shapes: dict[ActionName, tuple[int, ...]] = {}
        left: Ending = "unfinished" if self.num_envs is not None else "unknown"
        steps = self.steps()
        # Chunk by chunk: the frames of a chunk are sorted by episode at once.
        while chunk := list(islice(steps, _CHUNK)):
            self._check_logits(chunk, shapes)
            pieces = _by_episode(chunk)
            for step in chunk:
                # Episodes without a row in this step were broken off by a reset.
                if self.num_envs is not None:  # else a step does not show all that are running
                    for number in running.keys() - set(step.episode.tolist()):
                        yield running.pop(number).ended(left)
                # Add this step to its episodes, and yield those that it ends.
                for row in np.flatnonzero(self._holds(step.episode) & ~step.is_padding).tolist():
                    number = int(step.episode[row])
                    env = row if self.num_envs is not None else None
                    episode = running.setdefault(number, _Running(number, env))
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
                        yield running.pop(number).ended("truncated", final)
                    elif step.terminated[row]:
                        yield running.pop(number).ended("terminated")
        for episode in running.values():
            yield episode.ended(left)

    def _check_logits(
        self, chunk: Sequence[Step], shapes: dict[ActionName, tuple[int, ...]]
    ) -> None:
        """Raise if the logits of an action are not of one shape in all steps so far."""
        for step in chunk:
            for name, rows in step.decisions.logits.items():
                shape = rows.values.shape[1:]
                if shapes.setdefault(name, shape) != shape:
                    raise RecordingError(
                        f"{self.path}: episode {step.episode.min()}, step {step.step.min()}: "
                        f"logits[{name!r}]: expected rows of {shapes[name]}, got {shape}"
                    )

    def split(self, test_fraction: float, seed: int) -> tuple["Recording", "Recording"]:
        """Divide the episodes at random.

        Each episode falls to the second part with the given probability, as a function of `seed`
        and its number alone: it stays there when the recording grows.

        Returns:
            The part to train on, and the part to test on.

        Raises:
            ValueError: the fraction is not between 0 and 1.
        """
        if not 0 <= test_fraction <= 1:
            raise ValueError(f"test_fraction: expected a number from 0 to 1, got {test_fraction}")
        draws = (seed, test_fraction, 1.0), (seed, 0.0, test_fraction)
        train, test = (replace(self, _parts=(*self._parts, part)) for part in draws)
        return train, test

    def _holds(self, episodes: IntArray) -> BoolArray:
        held = np.ones(len(episodes), dtype=np.bool_)
        for seed, low, high in self._parts:
            drawn = uniforms(mix(seed, key_of("split"), episodes))  # in [0, 1)
            held &= (drawn >= low) & (drawn < high)
        return held


@dataclass
class _Running:
    """An episode so far: its rewards, and its frames in pieces with the steps they are of."""

    number: int
    env: int | None
    rewards: list[np.float32] = field(default_factory=list)
    pieces: list["_Piece"] = field(default_factory=list)
    parameters: Mapping[str, Any] = field(default_factory=dict)

    def add(self, piece: "_Piece") -> None:
        # Pieces without frames are left out: to join them costs time for each type of entities.
        if self.pieces and not len(self.pieces[-1][1]):
            self.pieces.pop()
        if not self.pieces or len(piece[1]):
            self.pieces.append(piece)

    def ended(self, ending: Ending, final: VecObs | None = None) -> Episode:
        decisions, steps = self.pieces[0]
        if len(self.pieces) > 1:
            decisions = Decisions.cat([decisions for decisions, _ in self.pieces])
            steps = np.concatenate([steps for _, steps in self.pieces])
        rewards = np.array(self.rewards, dtype=np.float32)
        return Episode(
            self.number, self.env, rewards, ending, decisions, steps, final, self.parameters
        )


def _by_episode(chunk: Sequence[Step]) -> dict[int, "_Piece"]:
    """Return the frames of each episode that has steps in the chunk, and their steps."""
    decisions = Decisions.cat([step.decisions for step in chunk])
    steps = np.concatenate([step.step[step.kept] for step in chunk])
    numbers = np.concatenate([step.episode[step.kept] for step in chunk])
    order = np.argsort(numbers, kind="stable")
    present = np.unique(np.concatenate([step.episode for step in chunk]))
    frames = np.split(order, np.searchsorted(numbers[order], present)[1:])
    nothing = decisions.take(order[:0]), steps[:0]
    return {
        number: (decisions.take(own), steps[own]) if len(own) else nothing
        for number, own in zip(present.tolist(), frames, strict=True)
    }


def _read_steps(path: Path, header: Header, last: Record) -> Iterator[Step]:
    with path.open("rb") as file:
        for record in islice(records(file, path), 1, None):
            if record.end > last.end:
                return
            yield read_step(file, path, record, header)
