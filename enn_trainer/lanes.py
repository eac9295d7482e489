"""Lanes: threads of Python that each take a network through frames of their own.

Most operations of a network are too small to be split among threads of torch: each would wait for
all of them, and long where another program uses a core. Frames do not wait for each other. Torch
lets go of the interpreter in every operation, so that lanes use as many cores as there are lanes.

What is computed must not depend on how many there are. So frames are cut into tasks by rules of
their own, each task is computed by one thread, and the results are taken in the order of tasks.
"""

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import contextmanager
from itertools import islice
from typing import Any, Self, TypeVar, final

import torch

from enn_trainer.frame_memory import rogue_nets
from rogue_net.native.threads import threads_at_work

T = TypeVar("T")
_WAITING = 2  # tasks handed over for each lane: so many results wait to be taken


@final
class Lanes:
    """Threads that compute tasks; without any, tasks are computed one after the other.

    Args:
        count: how many; with 1 the calling thread does it all.
    """

    def __init__(self, count: int = 1) -> None:
        self.count = count
        self._pool: ThreadPoolExecutor | None = None
        if count > 1:
            self._pool = ThreadPoolExecutor(count, "lane", torch.set_num_threads, (1,))

    @staticmethod
    def of(agent: object) -> "Lanes":
        """As many as torch would use threads, if frames for this agent are cut at all."""
        return Lanes(1 if cost_of_entity(agent) is None else torch.get_num_threads())

    def run(self, tasks: Iterable[Callable[[], T]], take: Callable[[T], object]) -> None:
        """Compute tasks, with gradients if the caller has them, and hand over what they return.

        Args:
            tasks: change nothing that others read.
            take: called here with each result, in the order of the tasks.

        Raises:
            Exception: what a task or `take` raised first. No task is running any more.
        """
        todo = [*tasks]
        if self._pool is None or len(todo) < 2:
            for task in todo:
                take(task())
            return
        pool, left, grad = self._pool, iter(todo), torch.is_grad_enabled()
        waiting: deque[Future[T]] = deque()
        try:
            for task in islice(left, _WAITING * self.count):
                waiting.append(pool.submit(_with_grad, grad, task))
            while waiting:
                result = waiting.popleft().result()
                for task in islice(left, 1):
                    waiting.append(pool.submit(_with_grad, grad, task))
                take(result)
        finally:
            wait([future for future in waiting if not future.cancel()])

    @contextmanager
    def at_work(self) -> Iterator[None]:
        """While the context is open, torch uses no threads beside the lanes.

        A task that is alone has as many threads of compiled blocks.
        """
        before = torch.get_num_threads()
        if self.count > 1:
            torch.set_num_threads(1)
        try:
            with threads_at_work(max(self.count, torch.get_num_threads())):
                yield
        finally:
            torch.set_num_threads(before)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self._pool is not None:
            self._pool.shutdown(cancel_futures=True)


ONE_LANE = Lanes()
"""The calling thread alone."""


def cost_of_entity(agent: Any) -> int | None:
    """What an entity costs in a network whose frames may go through it in pieces, in lanes.

    Returns:
        The square of its width, as matrix products go, and a tenth of it where compiled blocks
        share them among threads by themselves, so that lanes gain by the rest only; None where
        frames are not cut: a GPU wants as many at once as there are, and a network of somebody else
        may remember something of a forward pass, or look at all frames together.
    """
    parts = rogue_nets(agent)
    if not parts or next(parts[0].parameters()).device.type != "cpu":
        return None
    cost = max(part.config.d_model for part in parts) ** 2
    return cost // 10 if all(part.has_compiled_blocks for part in parts) else cost


def _with_grad(grad: bool, task: Callable[[], T]) -> T:
    with torch.set_grad_enabled(grad):  # which is of a thread
        return task()
