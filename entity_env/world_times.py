"""How long worlds' own code takes, in this process and in others: measured only when asked for."""

import functools
import inspect
import os
import resource
import sys
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, NamedTuple

from entity_env.environment import Environment
from entity_env.match import Match

_STEPS = ("reset", "act", "reset_filter", "act_filter")
_INHERITED = {getattr(cls, name) for cls in (Environment, Match) for name in _STEPS}


class ProcessTimes(NamedTuple):
    """What a process with environments has used since it began.

    Attributes:
        pid: of the process.
        world_s: seconds in the worlds' own code; 0 unless they are made by `TimedWorld`.
        cpu_s: seconds of processor time.
        peak_bytes: the most memory that it had in RAM.
        waited_s: seconds that another process has waited for its answers.
    """

    pid: int
    world_s: float
    cpu_s: float
    peak_bytes: int
    waited_s: float = 0.0


def times_of_this_process(worlds: Iterable[Environment | Match]) -> ProcessTimes:
    """Those of the process that asks, with the time of its worlds."""
    world_ns = sum(getattr(world, "_timed_ns", 0) for world in worlds)
    return ProcessTimes(os.getpid(), world_ns / 1e9, time.process_time(), peak_bytes())


def peak_bytes() -> int:
    """The most memory that this process had in RAM."""
    largest = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return largest if sys.platform == "darwin" else 1024 * largest  # bytes there, else KB


@dataclass(frozen=True)
class TimedWorld:
    """Makes worlds that count the time in their own `reset` and `act`.

    Where a world has filters of its own (`reset_filter`, `act_filter`) they count as well.

    Args:
        make: makes an `Environment` or a `Match`.
        num_sides: how many sides it has.
    """

    make: Callable[..., Any]
    num_sides: int = 1

    @property
    def __signature__(self) -> inspect.Signature:
        """The arguments, for who looks before calling."""
        return inspect.signature(self.make)

    def __call__(self, **kwargs: Any) -> Any:
        """Make one."""
        world = self.make(**kwargs)
        kind: Any = type(world)
        world.__class__ = _timed_class(kind)
        world._timed_ns = 0
        return world


@functools.cache
def _timed_class(cls: Any) -> type:
    """The class, under its own name, with methods that are measured."""
    own = {name: getattr(cls, name) for name in _STEPS}
    methods = {name: _timed(method) for name, method in own.items() if method not in _INHERITED}
    about = {"__module__": cls.__module__, "__qualname__": cls.__qualname__, "__doc__": cls.__doc__}
    return type(cls.__name__, (cls,), {**about, **methods, "_is_timed": False})


def _timed(method: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(method)
    def measured(self: Any, *args: Any, **kwargs: Any) -> Any:
        if self._is_timed:  # called by another of its own methods
            return method(self, *args, **kwargs)
        self._is_timed, start_ns = True, time.perf_counter_ns()
        try:
            return method(self, *args, **kwargs)
        finally:
            self._timed_ns += time.perf_counter_ns() - start_ns
            self._is_timed = False

    return measured
