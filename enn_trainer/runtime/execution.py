"""Thread pool, interrupt check and timers of an update.

Most operations of a network are too small for torch's intra-op threads: each operation would wait
for the slowest thread, for long if another program uses a core. Frames are independent, and torch
releases the interpreter lock in every operation, so that tasks of a thread pool run in parallel.

Results do not depend on the number of threads: neither does the division of frames into tasks, each
task is computed by one thread, and results are processed in the order of tasks.
"""

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import islice
from typing import Any, Self, TypeVar, final

import torch

from enn_trainer.base.policy import rogue_nets
from enn_trainer.runtime.exchange import ONE_PROCESS, Exchange
from enn_trainer.runtime.shards import UNCUT, Shards
from enn_trainer.runtime.spans import OFF, Spans
from rogue_net.native.backend import has_compiled_blocks, threads_at_work

T = TypeVar("T")
_WAITING = 2  # submitted tasks per lane, which bounds the results in memory


@final
class ThreadPool:
    """Thread pool for tasks; a context manager that shuts it down.

    Args:
        count: number of threads; with 1 the calling thread computes everything.
    """

    def __init__(self, count: int = 1) -> None:
        self.count = count
        self._pool: ThreadPoolExecutor | None = None
        if count > 1:
            self._pool = ThreadPoolExecutor(count, "lane", torch.set_num_threads, (1,))

    @staticmethod
    def of(agent: object) -> "ThreadPool":
        """Create a pool with torch's number of threads; one if the agent's frames are not split."""
        return ThreadPool(1 if cost_of_entity(agent) is None else torch.get_num_threads())

    def run(self, tasks: Iterable[Callable[[], T]], take: Callable[[T], object]) -> None:
        """Compute tasks in the grad mode of the caller, and process their results in order.

        Args:
            tasks: functions without shared mutable data.
            take: called in this thread with each result, in the order of the tasks.

        Raises:
            Exception: the first error of a task or of `take`, after all tasks have ended.
        """
        all_tasks = [*tasks]
        if self._pool is None or len(all_tasks) < 2:
            for task in all_tasks:
                take(task())
            return
        pool, remaining, grad = self._pool, iter(all_tasks), torch.is_grad_enabled()
        waiting: deque[Future[T]] = deque()
        try:
            for task in islice(remaining, _WAITING * self.count):
                waiting.append(pool.submit(_with_grad, grad, task))
            while waiting:
                result = waiting.popleft().result()
                for task in islice(remaining, 1):
                    waiting.append(pool.submit(_with_grad, grad, task))
                take(result)
        finally:
            wait([future for future in waiting if not future.cancel()])

    @contextmanager
    def at_work(self) -> Iterator[None]:
        """Return a context in which torch uses no intra-op threads in addition to the pool.

        Compiled blocks may use `count` threads, for a task that runs alone.
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


SINGLE_THREAD = ThreadPool()
"""Pool without threads: the calling thread computes everything."""


def cost_of_entity(agent: Any) -> int | None:
    """Return the relative cost of an entity in a forward pass, for the size of microbatches.

    Returns:
        d_model ** 2, as matrix products dominate; a tenth of it with compiled blocks, which are
        threaded, so that the pool speeds up the rest only. None if frames are not split: on a GPU,
        which is faster with larger batches, and for a custom network, which may depend on the
        frames of a batch or keep state between forward passes.
    """
    parts = rogue_nets(agent)
    if not parts or next(parts[0].parameters()).device.type != "cpu":
        return None
    cost = max(part.config.d_model for part in parts) ** 2
    return cost // 10 if all(has_compiled_blocks(part.config) for part in parts) else cost


def _with_grad(grad: bool, task: Callable[[], T]) -> T:
    with torch.set_grad_enabled(grad):  # the mode is per thread
        return task()


@dataclass(frozen=True)
class ExecutionContext:
    """Thread pool, interrupt check, timers, shards and processes of an update.

    Only the number of shards has an effect on the result, by rounding.

    Attributes:
        threads: thread pool for independent forward passes.
        check: called before each step of the environments and each minibatch, and in threads before
            each forward pass; raises to end the update.
        spans: timers.
        on_optimizer_step: called after each optimizer step with the statistics of its frames.
        shards: groups of the environments.
        learnt: groups of the environments that are trained on; None for one group of all.
        exchange: communication between the processes of the run.
    """

    threads: ThreadPool = SINGLE_THREAD
    check: Callable[[], None] = lambda: None
    spans: Spans = OFF
    on_optimizer_step: Callable[[Any], None] = lambda stats: None
    shards: Shards = UNCUT
    learnt: Shards | None = None
    exchange: Exchange = ONE_PROCESS


DEFAULT_CONTEXT = ExecutionContext()
"""One thread, no interrupts, no timers."""
