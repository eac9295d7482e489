"""Groups whose ranks are threads of this process, with messages in memory."""

import ast
import contextvars
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any, TypeVar

import pytest
import torch
from torch import Tensor

import enn_trainer.checkpoints.state
from enn_trainer.base.errors import RankError
from enn_trainer.base.group import Group
from enn_trainer.runtime.torch_group import CURRENT_GROUP

T = TypeVar("T")
WAIT_S = 120.0


class Board:
    """Memory that the ranks of a group share."""

    def __init__(self, size: int) -> None:
        self.size, self.given = size, [None] * size
        self._changed, self._is_broken = threading.Condition(), False
        self._num_waiting = self._num_passed = 0

    def wait(self) -> None:
        """Wait for all ranks.

        A rank whom all have joined passes, also if another one fails meanwhile, as `Barrier` may
        not let it.

        Raises:
            RankError: another rank has failed, or does not come.
        """
        with self._changed:
            self._num_waiting += 1
            if self._num_waiting == self.size and not self._is_broken:
                self._num_waiting = 0
                self._num_passed += 1
                self._changed.notify_all()
                return
            before = self._num_passed
            self._changed.wait_for(lambda: self._is_broken or self._num_passed > before, WAIT_S)
            if self._num_passed == before:
                self._break()
                raise RankError("another rank is lost")

    def abort(self) -> None:
        """Let all who wait fail."""
        with self._changed:
            self._break()

    def _break(self) -> None:
        self._is_broken = True
        self._changed.notify_all()


class ThreadGroup(Group):
    """One rank of a group of threads."""

    def __init__(self, rank: int, board: Board) -> None:
        self.rank, self.size, self.board = rank, board.size, board

    def exchange(self, data: bytes, phase: str) -> list[bytes]:
        found = self._all((phase, data))
        assert {phase for phase, _ in found} == {phase}
        return [data for _, data in found]

    def exchange_slices(self, sent: Tensor, counts: Sequence[int]) -> Tensor:
        found = self._all(sent)
        assert [one.shape[1] for one in found] == [*counts]
        return torch.cat([one[self.rank] for one in found])

    def fail(self, error: BaseException) -> None:
        self.board.abort()

    def _all(self, value: Any) -> list[Any]:
        board = self.board
        board.given[self.rank] = value
        board.wait()
        found: list[Any] = [*board.given]
        board.wait()
        return found


def in_ranks(size: int, work: Callable[[Group], T]) -> list[T]:
    """Return what `work` returns in each of `size` ranks, which are threads."""
    board = Board(size)

    def of_rank(rank: int) -> T:
        group = ThreadGroup(rank, board)
        with group_of_context(group):
            try:
                return work(group)
            except BaseException as error:
                group.fail(error)
                raise

    with thread_safe(), ThreadPoolExecutor(size) as pool:
        contexts = [contextvars.copy_context() for _ in range(size)]
        futures = [pool.submit(c.run, of_rank, rank) for rank, c in enumerate(contexts)]
        errors = [error for future in futures if (error := future.exception()) is not None]
        for error in errors:
            if not isinstance(error, RankError):
                raise error
        return [future.result() for future in futures]


@contextmanager
def group_of_context(group: Group) -> Iterator[None]:
    """Return a context in which runs have a group."""
    token = CURRENT_GROUP.set(group)
    try:
        yield
    finally:
        CURRENT_GROUP.reset(token)


@contextmanager
def thread_safe() -> Iterator[None]:
    """Return a context in which ranks may be threads: one at a time for what is not safe."""
    lock, before = threading.RLock(), torch.get_num_threads()

    def locked(function: Callable[..., T]) -> Callable[..., T]:
        def call(*args: Any, **kwargs: Any) -> T:
            with lock:
                return function(*args, **kwargs)

        return call

    torch.set_num_threads(1)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ast, "parse", locked(ast.parse))
        patch.setattr(
            enn_trainer.checkpoints.state,
            "make_network",
            locked(enn_trainer.checkpoints.state.make_network),
        )
        try:
            yield
        finally:
            torch.set_num_threads(before)
