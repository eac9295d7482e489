"""Exact recovery of lost workers: their last states, the messages since, and the replay of both."""

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt

from entity_env.arrays import IntArray
from entity_env.errors import EntityEnvError
from entity_env.process import logger
from entity_env.ragged import Ragged
from entity_env.spaces import ActionName, ObsSpace
from entity_env.vec.vec_obs import After, VecObs
from entity_env.vec.worker import WorkerLostError

EVERY_S = 20.0
"""Seconds between two states of the environments."""
COST_SHARE = 0.01
"""Largest share of the time that taking states may use."""
MAX_BYTES = 1 << 26
"""Size of the kept actions at which a state is taken before its time."""
STEP_TRIES = 2
"""Times that a step in which a worker was lost is asked again, as it may be what ends workers."""
Ask: TypeAlias = Callable[..., Any]
"""Sends a message with its arguments to a replacement; returns its answer, or raises its error."""


class Step(NamedTuple):
    """Copy of the arguments of a step.

    Attributes:
        actions: (name, values, lengths) of the choices of all environments; nested tuples of arrays
            are no work for the garbage collector.
        obs_filter: what to show, if that changes.
    """

    actions: tuple[tuple[ActionName, npt.NDArray[Any], IntArray], ...]
    obs_filter: ObsSpace | None

    @classmethod
    def of(
        cls, actions: Mapping[ActionName, Ragged], obs_filter: ObsSpace | None, is_kept: bool
    ) -> "Step":
        """Return the arguments of a step; copies if kept, as the caller may change them."""
        given = [(name, c.values, c.lengths) for name, c in actions.items()]
        if is_kept:
            given = [(name, values.copy(), lengths.copy()) for name, values, lengths in given]
        return cls(tuple(given), obs_filter)

    def arguments(self, counts: Sequence[int]) -> list[list[Any]]:
        """Return the arguments of `act_on` for workers of so many environments each."""
        pieces: list[dict[ActionName, Ragged]] = [{} for _ in counts]
        for name, values, lengths in self.actions:
            for piece, own in zip(pieces, Ragged(values, lengths).split(counts), strict=True):
                piece[name] = own
        return [[piece, self.obs_filter] for piece in pieces]

    def num_bytes(self) -> int:
        """Return the size of the arrays."""
        return sum(values.nbytes + lengths.nbytes for _, values, lengths in self.actions)


class Recovery:
    """Past of the workers of a `ParallelEnvList`, by which a replacement catches up with it.

    Args:
        num_workers: the number of workers.
        recover: "exact", or "truncate" to keep nothing.
        clock: seconds, never going back.

    Attributes:
        is_exact: True while lost workers can be recovered exactly.

    Raises:
        ValueError: `recover` is something else.
    """

    def __init__(
        self, num_workers: int, recover: str, clock: Callable[[], float] = time.monotonic
    ) -> None:
        if recover not in ("exact", "truncate"):
            raise ValueError(f"recover: expected one of exact, truncate, got {recover!r}")
        self.is_exact, self._reason = recover == "exact", ""
        self._clock = clock
        # The last state of each worker, None for a new one, and the messages of all since.
        self._states: list[bytes | None] = [None] * num_workers
        self._messages: list[tuple[str, Any]] = []
        # Workers that began anew since then; the next states are of them, too.
        self._unknown: set[int] = set()
        self._taken_s, self._next_s, self._kept_bytes = clock(), EVERY_S, 0

    @property
    def is_due(self) -> bool:
        """Return True if states are to be taken before the next step."""
        if not self.is_exact:
            return False
        elapsed_s = self._clock() - self._taken_s
        is_full = self._kept_bytes > MAX_BYTES and elapsed_s >= self._next_s - EVERY_S
        return elapsed_s >= self._next_s or is_full or bool(self._unknown)

    def take(self, ask_all: Callable[[], Sequence[bytes | str | None]]) -> None:
        """Take the states of all workers, from which replacements start from now on.

        Args:
            ask_all: returns the state of each worker, the reason why it has none as text, or None
                for a worker that was lost and begins new episodes in the next step.
        """
        start_s = self._clock()
        states = ask_all()
        if reason := next((state for state in states if isinstance(state, str)), None):
            self.give_up(reason)
        elif self.is_exact and None not in states:
            self._states = [*states]  # type: ignore[list-item]  # bytes, as above
            self._messages, self._unknown, self._kept_bytes = [], set(), 0
        self._taken_s = self._clock()
        self._next_s = EVERY_S + (self._taken_s - start_s) / COST_SHARE

    def keep(self, name: str, content: Any) -> None:
        """Keep a message that all workers have answered.

        Args:
            name: its name.
            content: its arguments; for `act_on` a `Step`, for `set_state` those of each worker.
        """
        if self.is_exact:
            self._messages.append((name, content))
            self._kept_bytes += content.num_bytes() if isinstance(content, Step) else 0

    def can(self, i: int) -> bool:
        """Return True if the past of a worker is known."""
        return self.is_exact and i not in self._unknown

    def forget(self, i: int) -> None:
        """Forget the past of a worker that begins new episodes."""
        self._unknown.add(i)

    def give_up(self, reason: str) -> None:
        """Let the episodes of workers that are lost from now on be truncated."""
        if self.is_exact:
            self.is_exact, self._reason = False, reason
            self._states, self._messages = [None] * len(self._states), []

    def log_reason(self) -> None:
        """Log once why episodes of lost workers are truncated, if it is not by a setting."""
        if self._reason:
            reason = " ".join(self._reason.split())
            logger.warning("episodes of lost workers count as truncated: %s", reason)
        self._reason = ""

    def catch_up(
        self, ask: Ask, i: int, counts: Sequence[int], shown: VecObs | None, first: int
    ) -> str | None:
        """Bring a new worker to the state of the one that it replaces.

        Args:
            ask: sends a message to the new worker and returns its answer.
            i: the number of the worker.
            counts: the number of environments of each worker.
            shown: the last frames of all workers; None before the first reset.
            first: the index of the first environment among all of the run.

        Returns:
            None if it shows the same last frames to the bit; else the first difference.

        Raises:
            WorkerLostError: the new worker was lost as well.
        """
        answer, is_step = None, False
        try:
            if (state := self._states[i]) is not None:
                answer = ask("restore", state)
            for name, content in self._messages:
                arguments = content
                if name == "act_on":
                    arguments = content.arguments(counts)[i]
                elif name == "set_state":
                    arguments = content[i]
                answered = ask(name, *arguments)
                if isinstance(answered, VecObs):
                    answer, is_step = answered, name == "act_on"
        except WorkerLostError:
            raise
        except EntityEnvError as error:
            return f"an error: {str(error).strip().splitlines()[-1]}"  # without a traceback
        if shown is None:
            return None
        if answer is None:
            return "no frames in the replay"
        offset = sum(counts[:i])
        frames = np.arange(offset, offset + counts[i])
        return first_difference(answer, shown, frames, first + offset, is_step)


def first_difference(
    replayed: VecObs, shown: VecObs, frames: IntArray, first: int, is_step: bool
) -> str | None:
    """Return the first field and environment in which frames differ, or None.

    Args:
        replayed: frames of some environments.
        shown: frames of all.
        frames: the indices of those environments among all.
        first: the index of the first of them among all of the run, for messages.
        is_step: True to compare rewards and ends of a step as well.
    """
    expected, envs = shown.take(frames), first + np.arange(len(frames))
    if not is_step:
        return _difference(replayed, expected, envs)
    of_step = {name: getattr(shown, name)[frames] for name in ("reward", "done", "truncated")}
    found = _difference(replayed, replace(expected, **of_step), envs, [*of_step])
    if found is None and shown.final is not None and replayed.final is not None:
        # Last observations are there for the truncated episodes alone.
        before: IntArray = np.cumsum(shown.truncated) - shown.truncated
        is_cut = shown.truncated[frames]
        final = shown.final.take(before[frames[is_cut]])
        found = _difference(replayed.final, final, envs[is_cut], prefix="final.")
    return found


def _difference(
    replayed: VecObs,
    shown: VecObs,
    envs: IntArray,
    of_step: Sequence[str] = (),
    prefix: str = "",
) -> str | None:
    """Return the first field and environment in which frames of the same environments differ.

    Args:
        replayed: frames.
        shown: frames.
        envs: the index of the environment of each frame, for messages.
        of_step: attributes with a number of each frame to compare as well.
        prefix: what names of fields begin with.
    """
    # Joined, both have what one may leave out, such as a mask where everything is allowed.
    for field, rows in _rows(VecObs.cat([shown, replayed]), of_step):
        pieces = (piece.of_frames() for piece in rows.split([len(envs)] * 2))
        for env, was, now in zip(envs, *pieces, strict=True):
            where = f"{prefix}{field} of environment {env}"
            if len(was) != len(now):
                return f"{where}: was {len(was)} rows, replayed {len(now)}"
            differs = (_bytes_of(was) != _bytes_of(now)).any(axis=1)
            if differs.any():
                at = differs.argmax()
                return f"{where}: was {was.flat[at]}, replayed {now.flat[at]}"
    return None


def _rows(obs: VecObs, of_step: Sequence[str]) -> Iterator[tuple[str, Ragged]]:
    """Return name and rows of each field of an observation, and of attributes of its step."""
    for attribute in ("features", "visible", "kinds", "identity"):
        for name, rows in getattr(obs, attribute).items():
            yield f"{attribute}[{name!r}]", rows
    for name, mask in obs.action_masks.items():
        for part, rows in vars(mask).items():
            if rows is not None:
                given = rows.rows if isinstance(rows, After) else rows
                yield f"action_masks[{name!r}].{part}", given
    for name in of_step:
        yield name, Ragged(getattr(obs, name), np.ones(len(obs), np.int64))


def _bytes_of(rows: npt.NDArray[Any]) -> npt.NDArray[np.uint8]:
    """Return the bytes of each number, (numbers, bytes) uint8."""
    return rows.reshape(-1, 1).view(np.uint8)
