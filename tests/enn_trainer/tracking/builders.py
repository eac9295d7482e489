"""Readers of event files, and work that takes time."""

import time
from pathlib import Path

from tensorboard.backend.event_processing import (  # type: ignore[import-untyped]  # has no types
    event_accumulator,
)


def hyperparameters(log_dir: Path) -> str:
    (event,) = read(log_dir).Tensors("hyperparameters/text_summary")
    return str(event.tensor_proto.string_val[0], "utf-8")


def read(log_dir: Path) -> event_accumulator.EventAccumulator:
    events = event_accumulator.EventAccumulator(str(log_dir))
    events.Reload()
    return events


def burn(ms: float) -> None:
    end = time.perf_counter() + ms / 1000
    while time.perf_counter() < end:
        pass
