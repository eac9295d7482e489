"""Where the time of a run goes, measured while it trains for some seconds."""

import math
import os
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Literal, NamedTuple, TypeAlias

import torch

from enn_trainer.config import EnvConfig, TrainConfig
from enn_trainer.envs import EnvFactory
from enn_trainer.loop import Trainer
from enn_trainer.state_manager import StateManager
from enn_trainer.tracking.span_times import SpanTimes, times_between
from enn_trainer.tracking.system_numbers import MB
from entity_env.vec_env import VecEnv
from entity_env.world_times import ProcessTimes, peak_bytes

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
"""What spans are called here, and what kind of work they are; others are of the kind of theirs."""


@dataclass(frozen=True)
class Part:
    """A part of an update.

    Attributes:
        name: in words.
        kind: of work.
        wall_ms: milliseconds of an update that the run spends in it; 0 of what other processes do.
        core_ms: the same, added up over threads, or of other processes.
    """

    name: str
    kind: Kind
    wall_ms: float
    core_ms: float


@dataclass(frozen=True)
class Profile:
    """Where the time of a run goes.

    Attributes:
        updates: how many were measured.
        frames: of an update.
        update_ms: milliseconds of an update.
        parts: of an update; their wall time adds up to that of an update.
        in_workers: what all workers do in an update.
        frames_of_step: frames of a step of the environments.
        frames_of_minibatch: frames that are learnt from at a time.
        processes: that step the environments; 1 is the run's own.
        cores: how many the run may use.
        cores_used: how many were busy.
        peak_mb: memory of the run, 2**20 bytes.
        workers_peak_mb: memory of all workers.
        gpu_peak_mb: memory of tensors on a GPU, None without one.
        save_ms: how long a save of the run takes.
        saved_every_s: how often it is saved; None if never, as long as it goes on.
    """

    updates: int
    frames: int
    update_ms: float
    parts: list[Part]
    in_workers: list[Part]
    frames_of_step: int
    frames_of_minibatch: int
    processes: int
    cores: int
    cores_used: float
    peak_mb: float
    workers_peak_mb: float
    gpu_peak_mb: float | None
    save_ms: float
    saved_every_s: float | None

    @property
    def frames_per_s(self) -> float:
        """How fast the run is, saves aside."""
        return 1e3 * self.frames / self.update_ms

    def share(self, kind: Kind) -> float:
        """Of the time of an update, from 0 to 1, what all parts of a kind take."""
        return sum(part.wall_ms for part in self.parts if part.kind == kind) / self.update_ms


def profile(
    manager: StateManager, create_envs: EnvFactory, seconds: float, updates: int | None = None
) -> Profile:
    """Train for a while, and measure all but the first updates. Nothing of it is kept.

    Args:
        manager: of a run that begins; its configuration and folder are changed.
        create_envs: makes environments; what time they tell is reported.
        seconds: how long to train after the first updates.
        updates: how many updates to measure, instead.
    """
    config, envs = manager.config, list[VecEnv]()

    def remembered(config: EnvConfig, num_envs: int, processes: int, first: int) -> VecEnv:
        envs.append(create_envs(config, num_envs, processes, first))
        return envs[-1]

    with TemporaryDirectory(prefix="profile-") as folder:
        _leave_out(config, folder)
        manager.checkpoint_dir, manager.is_dry = Path(folder, "run"), True
        with Trainer(manager, remembered) as trainer:
            for _ in range(WARM_UP_UPDATES):
                trainer.step()
            before, done = _Moment.now(trainer, envs[0]), 0
            while done < 1 or not _is_enough(before, done, seconds, updates):
                trainer.step()
                done += 1
            after = _Moment.now(trainer, envs[0])
            trainer.save()
            save_ms = 1e3 * (time.perf_counter() - after.wall_s)
    return _profile(before, after, done, config, save_ms)


def _leave_out(config: TrainConfig, folder: str) -> None:
    """Change what would show the run to others, end it, or come between the updates."""
    config.data_dir, config.track, config.mlflow_tracking_uri = folder, False, None
    config.capture_samples, config.capture_logits = None, False
    config.eval, config.stop = None, []
    config.total_timesteps, config.max_train_time = 2**60, None


class _Moment(NamedTuple):
    """What was used up to now."""

    wall_s: float
    cpu_s: float
    spans: dict[str, Any]
    processes: list[ProcessTimes]

    @classmethod
    def now(cls, trainer: Trainer, envs: VecEnv) -> "_Moment":
        spans, processes = trainer.spans.as_dict(), envs.process_times()
        return cls(time.perf_counter(), time.process_time(), spans, processes)


def _is_enough(before: _Moment, done: int, seconds: float, updates: int | None) -> bool:
    if updates is not None:
        return done >= updates
    return time.perf_counter() - before.wall_s >= seconds


def _profile(
    before: _Moment, after: _Moment, updates: int, config: TrainConfig, save_ms: float
) -> Profile:
    wall_s = after.wall_s - before.wall_s
    used = [
        _used(_of(times.pid, before.processes), times)
        for times in after.processes  # a worker that was replaced began meanwhile
    ]
    workers = [times for times in used if times.pid != os.getpid()]
    spans = times_between(before.spans, after.spans)
    per_update, every_s = 1e3 / updates, config.checkpoint.every_seconds
    is_on_gpu = config.cuda and torch.cuda.is_available()
    return Profile(
        updates=updates,
        frames=config.rollout.num_envs * config.rollout.steps,
        update_ms=per_update * wall_s,
        parts=list(_parts(spans, used, wall_s, per_update)),
        in_workers=list(_in_workers(workers, per_update)),
        frames_of_step=config.rollout.num_envs,
        frames_of_minibatch=min(config.optim.bs, config.optim.micro_bs or config.optim.bs),
        processes=max(1, len(workers)),
        cores=num_cores(),
        cores_used=(after.cpu_s - before.cpu_s + sum(times.cpu_s for times in workers)) / wall_s,
        peak_mb=peak_bytes() / MB,
        workers_peak_mb=sum(times.peak_bytes for times in workers) / MB,
        gpu_peak_mb=torch.cuda.max_memory_allocated() / MB if is_on_gpu else None,
        save_ms=save_ms,
        saved_every_s=None if math.isinf(every_s) else every_s,
    )


def _parts(
    spans: Mapping[str, SpanTimes], used: Iterable[ProcessTimes], wall_s: float, per_update: float
) -> Iterable[Part]:
    """What the run itself does, in its order; what stays apart comes last."""
    for path, span in spans.items():
        if path == "rollout/env":
            yield from _stepping(span, list(used), per_update)
        else:
            known = path
            while known and known not in _PARTS:
                known = known.rpartition("/")[0]
            name, kind = _PARTS.get(known, (path, "rest"))
            name = name if known == path else path
            yield Part(name, kind, per_update * span.wall_s, per_update * span.core_s)
    rest_ms = per_update * (wall_s - sum(span.wall_s for span in spans.values()))
    yield Part("between these", "rest", rest_ms, rest_ms)


def _stepping(span: SpanTimes, used: list[ProcessTimes], per_update: float) -> Iterable[Part]:
    """What a step of the environments consists of, as the run sees it."""

    def part(name: str, kind: Kind, seconds: float) -> Part:
        return Part(name, kind, per_update * seconds, per_update * seconds)

    world_s = sum(times.world_s for times in used if times.pid == os.getpid())
    waited_s = min(span.wall_s, sum(times.waited_s for times in used))
    if any(times.pid != os.getpid() for times in used):
        yield part("waiting for workers", "waiting", waited_s)
        yield part("messages to and from workers", "frames", span.wall_s - waited_s)
    elif world_s:
        yield part("environment code", "environment", world_s)
        yield part("frames and actions of it", "frames", span.wall_s - world_s)
    else:  # it is not known what of it is whose
        yield part("environments", "environment", span.wall_s)


def _in_workers(workers: Iterable[ProcessTimes], per_update: float) -> Iterable[Part]:
    """What workers do, meanwhile."""
    world_ms = per_update * sum(times.world_s for times in workers)
    cpu_ms = per_update * sum(times.cpu_s for times in workers)
    if cpu_ms:
        yield Part("environment code", "environment", 0.0, world_ms)
        yield Part("frames, actions and messages", "frames", 0.0, max(0.0, cpu_ms - world_ms))


def _of(pid: int, processes: Iterable[ProcessTimes]) -> ProcessTimes:
    nothing = ProcessTimes(pid, 0.0, 0.0, 0)
    return next((times for times in processes if times.pid == pid), nothing)


def _used(before: ProcessTimes, after: ProcessTimes) -> ProcessTimes:
    return after._replace(
        world_s=after.world_s - before.world_s,
        cpu_s=after.cpu_s - before.cpu_s,
        waited_s=after.waited_s - before.waited_s,
    )


def num_cores() -> int:
    """How many cores this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1
