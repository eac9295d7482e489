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
"""Seconds between two snapshots of the environments."""
COST_SHARE = 0.01
"""Largest share of the time for snapshots."""
MAX_BYTES = 1 << 26
"""Size of the stored actions at which the next snapshot is taken early."""
STEP_TRIES = 2
"""Times that a step in which a worker was lost is repeated, as the step may be the cause."""
Ask: TypeAlias = Callable[..., Any]
"""Sends a message with its arguments to a new worker; returns its answer, or raises its error."""


class RecoveryStep(NamedTuple):
    """Copy of the arguments of a step.

    Attributes:
        actions: (name, values, lengths) of the choices of all environments; nested tuples of arrays
            are no work for the garbage collector.
        obs_filter: the new filter, if it changes.
    """

    actions: tuple[tuple[ActionName, npt.NDArray[Any], IntArray], ...]
    obs_filter: ObsSpace | None

    @classmethod
    def of(
        cls, actions: Mapping[ActionName, Ragged], obs_filter: ObsSpace | None, is_copied: bool
    ) -> "RecoveryStep":
        """Return the arguments of a step; copies if stored, as the caller may change them."""
        arrays = [(name, c.values, c.lengths) for name, c in actions.items()]
        if is_copied:
            arrays = [(name, values.copy(), lengths.copy()) for name, values, lengths in arrays]
        return cls(tuple(arrays), obs_filter)

    def arguments(self, counts: Sequence[int]) -> list[list[Any]]:
        """Return the arguments of `act_on` for each worker, from its number of environments."""
        pieces: list[dict[ActionName, Ragged]] = [{} for _ in counts]
        for name, values, lengths in self.actions:
            for piece, rows in zip(pieces, Ragged(values, lengths).split(counts), strict=True):
                piece[name] = rows
        return [[piece, self.obs_filter] for piece in pieces]

    def num_bytes(self) -> int:
        """Return the size of the arrays."""
        return sum(values.nbytes + lengths.nbytes for _, values, lengths in self.actions)


class Recovery:
    """Snapshots and messages of the workers of a `ParallelEnvList`, for replay in a replacement.

    Args:
        num_workers: the number of workers.
        recover: "exact", or "truncate" to store nothing.
        clock: seconds, never going back.

    Attributes:
        is_exact: True while lost workers can be recovered exactly.

    Raises:
        ValueError: `recover` has another value.
    """

    def __init__(
        self, num_workers: int, recover: str, clock: Callable[[], float] = time.monotonic
    ) -> None:
        if recover not in ("exact", "truncate"):
            raise ValueError(f"recover: expected one of exact, truncate, got {recover!r}")
        self.is_exact, self._reason = recover == "exact", ""
        self._clock = clock
        # The last snapshot of each worker, None for a new one, and all messages since.
        self._states: list[bytes | None] = [None] * num_workers
        self._messages: list[tuple[str, Any]] = []
        # Workers that were reset since then; they cannot be recovered before the next snapshots.
        self._restarted: set[int] = set()
        self._saved_s, self._next_s, self._num_bytes = clock(), EVERY_S, 0

    @property
    def is_due(self) -> bool:
        """Return True if snapshots are to be taken before the next step."""
        if not self.is_exact:
            return False
        elapsed_s = self._clock() - self._saved_s
        is_full = self._num_bytes > MAX_BYTES and elapsed_s >= self._next_s - EVERY_S
        return elapsed_s >= self._next_s or is_full or bool(self._restarted)

    def save(self, ask_all: Callable[[], Sequence[bytes | str | None]]) -> None:
        """Take snapshots of all workers, from which replacements start from now on.

        Args:
            ask_all: returns for each worker its snapshot, or the reason why it has none as text,
                or None if it was lost and begins new episodes in the next step.
        """
        start_s = self._clock()
        states = ask_all()
        if reason := next((state for state in states if isinstance(state, str)), None):
            self.give_up(reason)
        elif self.is_exact and None not in states:
            self._states = [*states]  # type: ignore[list-item]  # bytes, as above
            self._messages, self._restarted, self._num_bytes = [], set(), 0
        self._saved_s = self._clock()
        self._next_s = EVERY_S + (self._saved_s - start_s) / COST_SHARE

    def append(self, name: str, content: Any) -> None:
        """Store a message that all workers have answered.

        Args:
            name: its name.
            content: its arguments: `RecoveryStep` for `act_on`, a list per worker for `set_state`.
        """
        if self.is_exact:
            self._messages.append((name, content))
            self._num_bytes += content.num_bytes() if isinstance(content, RecoveryStep) else 0

    def can_recover(self, i: int) -> bool:
        """Return True if the worker has a snapshot and all messages since."""
        return self.is_exact and i not in self._restarted

    def forget(self, i: int) -> None:
        """Mark a worker as reset: it cannot be recovered before the next snapshot."""
        self._restarted.add(i)

    def give_up(self, reason: str) -> None:
        """Truncate the episodes of workers that are lost from now on."""
        if self.is_exact:
            self.is_exact, self._reason = False, reason
            self._states, self._messages = [None] * len(self._states), []

    def log_reason(self) -> None:
        """Log once why episodes of lost workers are truncated, unless a setting asks for it."""
        if self._reason:
            reason = " ".join(self._reason.split())
            logger.warning("episodes of lost workers count as truncated: %s", reason)
        self._reason = ""

    def catch_up(
        self, ask: Ask, i: int, counts: Sequence[int], last: VecObs | None, first: int
    ) -> str | None:
        """Bring a new worker to the state of the lost one.

        Args:
            ask: sends a message to the new worker and returns its answer.
            i: index of the worker.
            counts: number of environments of each worker.
            last: last frames of all workers; None before the first reset.
            first: index of the first environment among all of the run.

        Returns:
            None if its last frames are the same to the bit; else the first difference.

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
                result = ask(name, *arguments)
                if isinstance(result, VecObs):
                    answer, is_step = result, name == "act_on"
        except WorkerLostError:
            raise
        except EntityEnvError as error:
            return f"an error: {str(error).strip().splitlines()[-1]}"  # without a traceback
        if last is None:
            return None
        if answer is None:
            return "no frames in the replay"
        offset = sum(counts[:i])
        frames = np.arange(offset, offset + counts[i])
        return first_difference(answer, last, frames, first + offset, is_step)


def first_difference(
    replayed: VecObs, last: VecObs, frames: IntArray, first: int, is_step: bool
) -> str | None:
    """Return the first field and environment in which frames differ, or None.

    Args:
        replayed: frames of some environments.
        last: frames of all environments.
        frames: indices of the replayed environments among all.
        first: index of the first replayed environment in the run, for messages.
        is_step: True to compare rewards and ends of episodes as well.
    """
    expected, envs = last.take(frames), first + np.arange(len(frames))
    if not is_step:
        return _difference(replayed, expected, envs)
    step_fields = {name: getattr(last, name)[frames] for name in ("reward", "done", "truncated")}
    difference = _difference(replayed, replace(expected, **step_fields), envs, [*step_fields])
    if difference is None and last.final is not None and replayed.final is not None:
        # Only truncated episodes have last observations.
        final_index: IntArray = np.cumsum(last.truncated) - last.truncated
        is_cut = last.truncated[frames]
        final = last.final.take(final_index[frames[is_cut]])
        difference = _difference(replayed.final, final, envs[is_cut], prefix="final.")
    return difference


def _difference(
    replayed: VecObs,
    last: VecObs,
    envs: IntArray,
    step_fields: Sequence[str] = (),
    prefix: str = "",
) -> str | None:
    """Return the first field and environment in which frames of the same environments differ.

    Args:
        replayed: frames.
        last: frames.
        envs: index of the environment of each frame, for messages.
        step_fields: attributes with a number for each frame to compare as well.
        prefix: beginning of the names of fields.
    """
    # Concatenated, both have optional leaves, such as a mask where everything is allowed.
    for field, rows in _rows(VecObs.cat([last, replayed]), step_fields):
        pieces = (piece.of_frames() for piece in rows.split([len(envs)] * 2))
        for env, old, new in zip(envs, *pieces, strict=True):
            where = f"{prefix}{field} of environment {env}"
            if len(old) != len(new):
                return f"{where}: was {len(old)} rows, replayed {len(new)}"
            differs = (_bytes_of(old) != _bytes_of(new)).any(axis=1)
            if differs.any():
                index = differs.argmax()
                return f"{where}: was {old.flat[index]}, replayed {new.flat[index]}"
    return None


def _rows(obs: VecObs, step_fields: Sequence[str]) -> Iterator[tuple[str, Ragged]]:
    """Yield name and rows of each field of an observation, and of attributes of its step."""
    for attribute in ("features", "visible", "kinds", "identity"):
        for name, rows in getattr(obs, attribute).items():
            yield f"{attribute}[{name!r}]", rows
    for name, mask in obs.action_masks.items():
        for part, rows in vars(mask).items():
            if rows is not None:
                ragged = rows.rows if isinstance(rows, After) else rows
                yield f"action_masks[{name!r}].{part}", ragged
    for name in step_fields:
        yield name, Ragged(getattr(obs, name), np.ones(len(obs), np.int64))


def _bytes_of(rows: npt.NDArray[Any]) -> npt.NDArray[np.uint8]:
    """Return the bytes of each number, (numbers, bytes) uint8."""
    return rows.reshape(-1, 1).view(np.uint8)
