"""Thread pool, interrupt check and timers of an update."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from enn_trainer.runtime.lanes import ONE_LANE, Lanes
from enn_trainer.runtime.spans import OFF, Spans


@dataclass(frozen=True)
class ExecutionContext:
    """Thread pool, interrupt check and timers of an update. Has no effect on the result.

    Attributes:
        lanes: threads that compute independent forward passes.
        check: called before each step of the environments and each minibatch, and in threads before
            each forward pass; it raises to end the update.
        spans: timers.
        on_optimizer_step: called after each optimizer step with the statistics of its frames.
    """

    lanes: Lanes = ONE_LANE
    check: Callable[[], None] = lambda: None
    spans: Spans = OFF
    on_optimizer_step: Callable[[Any], None] = lambda stats: None


DEFAULT_CONTEXT = ExecutionContext()
"""One thread, no interrupts, no timers."""
