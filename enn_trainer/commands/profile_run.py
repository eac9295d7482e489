"""Profile of a run: where its time goes, measured while it trains for some seconds."""

import math
import os
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Literal, NamedTuple, TypeAlias

import torch

from enn_trainer.config import EnvConfig
from enn_trainer.experience.envs import EnvFactory
from enn_trainer.state_manager import StateManager
from enn_trainer.tracking.spans import SpanTimes, times_between
from enn_trainer.tracking.system_numbers import MB
from enn_trainer.trainer import Trainer
from entity_env.process import ProcessTimes, peak_bytes
from entity_env.vec.vec_env import VecEnv

WARM_UP_UPDATES = 2

Kind: TypeAlias = Literal[
    "environment", "waiting", "frames", "acting", "learning", "optimizer", "rest"
]

_PARTS: dict[str, tuple[str, Kind]] = {
    "rollout": ("storage, and the rest of the rollout", "frames"),
    "rollout/batch": ("batching, and transfer to the device", "frames"),
    "rollout/act": ("forward while acting", "acting"),
    "rollout/env": ("environments", "environment"),
    "rollout/values": ("values of the last frames", "acting"),
    "returns": ("returns and advantages", "rest"),
    "optimize": ("losses, and the rest of learning", "learning"),
    "optimize/gradient/gather": ("gather of minibatches", "learning"),
    "optimize/gradient/forward": ("forward of minibatches", "learning"),
    "optimize/gradient/backward": ("backward of minibatches", "learning"),
    "optimize/step": ("optimizer", "optimizer"),
    "stats": ("statistics of the input", "rest"),
    "track": ("logging", "rest"),
}
"""Name and kind of each span; other spans have the kind of the span around them."""


@dataclass(frozen=True)
class Part:
    """Part of an update."""

    name: str
    kind: Kind
    wall_ms: float  # time of the run in this part; 0 for work of other processes
    core_ms: float  # time summed over threads, or over other processes


@dataclass(frozen=True)
class Profile:
    """Time and memory of a run."""

    updates: int  # number of measured updates
    frames: int  # frames of an update
    update_ms: float  # duration of an update
    parts: list[Part]  # parts of an update; their wall times add up to `update_ms`
    in_workers: list[Part]  # work of all workers in an update
    frames_of_step: int  # frames of a step of all environments
    frames_of_minibatch: int  # frames of a forward pass while learning
    processes: int  # processes that step the environments; 1 for the run's own
    cores: int  # cores that the run may use
    cores_used: float  # mean number of busy cores
    peak_mb: float  # memory of the run, 2**20 bytes
    workers_peak_mb: float  # memory of all workers
    gpu_peak_mb: float | None  # memory of tensors on a GPU, None without one
    save_ms: float  # duration of a save
    saved_every_s: float | None  # None if saves do not depend on the time

    @property
    def frames_per_s(self) -> float:
        """Speed of the run between saves."""
        return 1e3 * self.frames / self.update_ms

    def share(self, kind: Kind) -> float:
        """Return the share of an update, from 0 to 1, that all parts of a kind take."""
        return sum(part.wall_ms for part in self.parts if part.kind == kind) / self.update_ms


class _Usage(NamedTuple):
    """Time that a run has used so far."""

    wall_s: float
    cpu_s: float
    spans: dict[str, Any]
    processes: list[ProcessTimes]

    @classmethod
    def now(cls, trainer: Trainer, envs: VecEnv) -> "_Usage":
        spans, processes = trainer.spans.as_dict(), envs.process_times()
        return cls(time.perf_counter(), time.process_time(), spans, processes)


def profile(
    manager: StateManager, create_envs: EnvFactory, seconds: float, updates: int | None = None
) -> Profile:
    """Train for a while, and measure all but the first updates. Nothing is kept.

    Args:
        manager: state manager of a new run; its configuration and folder are changed.
        create_envs: factory of environments; the times that they report are part of the profile.
        seconds: duration of the training after the first updates.
        updates: number of updates to measure instead.
    """
    config, envs = manager.config, list[VecEnv]()

    def create_and_keep(config: EnvConfig, num_envs: int, processes: int, first: int) -> VecEnv:
        envs.append(create_envs(config, num_envs, processes, first))
        return envs[-1]

    with TemporaryDirectory(prefix="profile-") as folder:
        # Switch off whatever would publish or end the run, or interrupt the updates.
        config.data_dir, config.track, config.mlflow_tracking_uri = folder, False, None
        config.capture_samples, config.capture_logits = None, False
        config.eval, config.stop = None, []
        config.total_timesteps, config.max_train_time = 2**60, None
        manager.checkpoint_dir, manager.is_dry = Path(folder, "run"), True
        # Train and save.
        with Trainer(manager, create_and_keep) as trainer:
            for _ in range(WARM_UP_UPDATES):
                trainer.step()
            before, done = _Usage.now(trainer, envs[0]), 0
            ends_s = before.wall_s + seconds
            while not done or (time.perf_counter() < ends_s if updates is None else done < updates):
                trainer.step()
                done += 1
            after = _Usage.now(trainer, envs[0])
            trainer.save()
            save_ms = 1e3 * (time.perf_counter() - after.wall_s)

    # Times that were used in between.
    wall_s, every_s = after.wall_s - before.wall_s, config.checkpoint.every_seconds
    used = _used_between(before.processes, after.processes)
    workers = [times for times in used if times.pid != os.getpid()]
    in_workers, worked_s = [], sum(times.cpu_s for times in workers)
    if worked_s:
        world_ms = 1e3 / done * sum(times.world_s for times in workers)
        others_ms = max(0.0, 1e3 / done * worked_s - world_ms)
        in_workers = [
            Part("environment code", "environment", 0.0, world_ms),
            Part("frames, actions and messages", "frames", 0.0, others_ms),
        ]
    spans = times_between(before.spans, after.spans)
    is_on_gpu = config.cuda and torch.cuda.is_available()
    return Profile(
        updates=done,
        frames=config.rollout.num_envs * config.rollout.steps,
        update_ms=1e3 / done * wall_s,
        parts=list(_parts(spans, used, wall_s, 1e3 / done)),
        in_workers=in_workers,
        frames_of_step=config.rollout.num_envs,
        frames_of_minibatch=min(config.optim.bs, config.optim.micro_bs or config.optim.bs),
        processes=max(1, len(workers)),
        cores=num_cores(),
        cores_used=(after.cpu_s - before.cpu_s + worked_s) / wall_s,
        peak_mb=peak_bytes() / MB,
        workers_peak_mb=sum(times.peak_bytes for times in workers) / MB,
        gpu_peak_mb=torch.cuda.max_memory_allocated() / MB if is_on_gpu else None,
        save_ms=save_ms,
        saved_every_s=None if math.isinf(every_s) else every_s,
    )


def num_cores() -> int:
    """Return the number of cores that this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def _used_between(
    before: Sequence[ProcessTimes], after: Sequence[ProcessTimes]
) -> list[ProcessTimes]:
    """Return the times that each process of `after` has used since `before`."""
    earlier = {times.pid: times for times in before}
    used = []
    for times in after:
        # A worker that was replaced meanwhile began at 0.
        then = earlier.get(times.pid, ProcessTimes(times.pid, 0.0, 0.0, 0))
        world_s, cpu_s = times.world_s - then.world_s, times.cpu_s - then.cpu_s
        waited_s = times.waited_s - then.waited_s
        used.append(times._replace(world_s=world_s, cpu_s=cpu_s, waited_s=waited_s))
    return used


def _parts(
    spans: Mapping[str, SpanTimes], used: Sequence[ProcessTimes], wall_s: float, ms: float
) -> Iterator[Part]:
    """Yield the parts of an update in the run's own process, in the order of its spans.

    Args:
        spans: the times of spans, by path.
        used: the times of processes that have environments.
        wall_s: seconds that were measured.
        ms: milliseconds of an update for each second of these.
    """
    for path, span in spans.items():
        if path == "rollout/env":
            # The step of the environments: their own code, or the wait for workers.
            world_s = sum(times.world_s for times in used if times.pid == os.getpid())
            waited_s = min(span.wall_s, sum(times.waited_s for times in used))
            parts: list[tuple[str, Kind, float]]
            parts = [("environments", "environment", span.wall_s)]  # that report no times
            if any(times.pid != os.getpid() for times in used):
                parts = [("waiting for workers", "waiting", waited_s)]
                parts.append(("messages to and from workers", "frames", span.wall_s - waited_s))
            elif world_s:
                parts = [("environment code", "environment", world_s)]
                parts.append(("frames and actions of it", "frames", span.wall_s - world_s))
            yield from (Part(name, kind, ms * s, ms * s) for name, kind, s in parts)
            continue
        known = path
        while known and known not in _PARTS:
            known = known.rpartition("/")[0]
        name, kind = _PARTS.get(known, (path, "rest"))
        yield Part(name if known == path else path, kind, ms * span.wall_s, ms * span.core_s)
    rest_ms = ms * (wall_s - sum(span.wall_s for span in spans.values()))
    yield Part("between these", "rest", rest_ms, rest_ms)
