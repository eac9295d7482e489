"""Time that each part of a run takes, measured in training."""

import math
import os
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Literal, TypeAlias

import torch
from rich.console import Console

from enn_trainer.base.tables import show_table
from enn_trainer.checkpoints.state_manager import StateManager
from enn_trainer.config import EnvConfig
from enn_trainer.experience.envs import EnvFactory
from enn_trainer.run.trainer import Trainer
from enn_trainer.runtime.spans import SpanTimes, times_between
from enn_trainer.tracking.metrics import MB
from entity_env.process import ProcessTimes, peak_bytes
from entity_env.vec.vec_env import VecEnv

WARM_UP_UPDATES = 2
BUSY = 0.6
"""Share of the wait for workers that they must compute in; below it they are mostly idle."""
MANY_ENTITIES = 8.0
"""Number of entities per frame above which fewer entities make the network much faster."""
FEW_ENTITIES = 256 * MANY_ENTITIES
"""Number of entities of a forward pass below which fixed costs dominate; a frame counts as at least
`MANY_ENTITIES`, because frames have a fixed cost too."""

Kind: TypeAlias = Literal[
    "environment", "waiting", "frames", "acting", "learning", "optimizer", "rest"
]

_PARTS: dict[str, tuple[str, Kind]] = {
    "rollout": ("storage, and the rest of the rollout", "frames"),
    "rollout/batch": ("batching, and transfer to the device", "frames"),
    "rollout/act": ("forward while acting", "acting"),
    "rollout/act/memory": ("memory while acting", "acting"),
    "rollout/env": ("environments", "environment"),
    "rollout/values": ("values of the last frames", "acting"),
    "rollout/values/memory": ("memory in the last frames", "acting"),
    "rollout/memory": ("memory of the rollout", "frames"),
    "returns": ("returns and advantages", "rest"),
    "optimize": ("losses, and the rest of learning", "learning"),
    "optimize/gradient/gather": ("gather of minibatches", "learning"),
    "optimize/gradient/gather/memory": ("memory of minibatches", "learning"),
    "optimize/gradient/forward": ("forward of minibatches", "learning"),
    "optimize/gradient/backward": ("backward of minibatches", "learning"),
    "optimize/step": ("optimizer", "optimizer"),
    "stats": ("statistics of the input", "rest"),
    "track": ("logging", "rest"),
}
"""Name and kind of each span; other spans have the kind of their parent span."""

RECREATED = "environments recreated"
"""Name of the part that creates environments for varied arguments."""


@dataclass(frozen=True)
class Part:
    """Part of an update."""

    name: str
    kind: Kind
    wall_ms: float  # wall time in the run's process; 0 for work of other processes
    core_ms: float  # time summed over threads, or over other processes


@dataclass(frozen=True)
class Resources:
    """Processes, cores and memory of a run."""

    processes: int  # processes that step the environments; 1 without workers
    cores: int  # usable cores
    cores_used: float  # mean number of busy cores
    peak_mb: float  # memory of the run, 2**20 bytes
    workers_peak_mb: float  # memory of all workers
    gpu_peak_mb: float | None  # memory of tensors on the GPU, None without a GPU


@dataclass(frozen=True)
class Profile:
    """Time and memory of a run."""

    updates: int  # number of measured updates
    frames: int  # frames per update
    update_ms: float  # duration of an update
    parts: list[Part]  # parts of an update; their wall times add up to `update_ms`
    in_workers: list[Part]  # work of all workers in an update
    frames_of_step: int  # frames per step of all environments
    frames_of_minibatch: int  # frames per forward pass of learning
    entities: dict[str, float]  # mean number per frame by type, in descending order
    most_entities: int  # entities of the largest frame
    resources: Resources
    save_ms: float  # duration of a save
    saved_every_s: float | None  # None if saves do not depend on the time

    @property
    def frames_per_s(self) -> float:
        """Frames per second between saves."""
        return 1e3 * self.frames / self.update_ms

    @property
    def entities_per_frame(self) -> float:
        """Mean number of entities per frame."""
        return sum(self.entities.values())

    def share(self, kind: Kind) -> float:
        """Return the share of an update, from 0 to 1, of all parts of a kind."""
        return sum(part.wall_ms for part in self.parts if part.kind == kind) / self.update_ms


def profile(
    manager: StateManager, create_envs: EnvFactory, seconds: float, updates: int | None = None
) -> Profile:
    """Train and measure all updates after a warm-up. The agent is discarded.

    Args:
        manager: state manager of a new run; its configuration and folder are changed.
        create_envs: factory of environments; the times that they report are part of the profile.
        seconds: duration of the measurement.
        updates: number of updates to measure instead.
    """
    config, envs, done = manager.config, list[VecEnv](), 0
    metrics: list[Mapping[str, float]] = []

    def create_and_keep(config: EnvConfig, num_envs: int, processes: int, first: int) -> VecEnv:
        envs.append(create_envs(config, num_envs, processes, first))
        return envs[-1]

    def used() -> tuple[dict[str, Any], dict[int, ProcessTimes], float, float]:
        process_times = {times.pid: times for times in envs[0].process_times()}
        return trainer.spans.as_dict(), process_times, time.process_time(), time.perf_counter()

    with TemporaryDirectory(prefix="profile-") as folder:
        _disable_side_effects(manager, folder)
        with Trainer(manager, create_and_keep) as trainer:
            for _ in range(WARM_UP_UPDATES):
                trainer.step()
            spans_before, processes_before, cpu_before_s, start_s = used()
            ends_s = start_s + seconds
            while not done or (time.perf_counter() < ends_s if updates is None else done < updates):
                metrics.append(trainer.step())
                done += 1
            spans_after, processes_after, cpu_after_s, end_s = used()
            trainer.save()
            save_ms = 1e3 * (time.perf_counter() - end_s)
            types = [*trainer.state.obs_space.entities]

    # Differences of times of the run and of its workers; a restarted worker began at 0.
    wall_s, ms, every_s = end_s - start_s, 1e3 / done, config.checkpoint.every_seconds
    processes = []
    for pid, times in processes_after.items():
        before = processes_before.get(pid, ProcessTimes(pid, 0.0, 0.0, 0))
        world_s, cpu_s = times.world_s - before.world_s, times.cpu_s - before.cpu_s
        waited_s, made_s = times.waited_s - before.waited_s, times.made_s - before.made_s
        processes.append(ProcessTimes(pid, world_s, cpu_s, times.peak_bytes, waited_s, made_s))
    workers = [times for times in processes if times.pid != os.getpid()]
    in_workers, worked_s = [], sum(times.cpu_s for times in workers)
    if worked_s:
        world_ms = ms * sum(times.world_s for times in workers)
        made_ms = ms * sum(times.made_s for times in workers)
        rest_ms = max(0.0, ms * worked_s - world_ms - made_ms)
        in_workers = [
            Part("environment code", "environment", 0.0, world_ms),
            *([Part(RECREATED, "environment", 0.0, made_ms)] if made_ms else []),
            Part("frames, actions and messages", "frames", 0.0, rest_ms),
        ]

    used_s = cpu_after_s - cpu_before_s + worked_s
    return Profile(
        updates=done,
        frames=config.rollout.num_envs * config.rollout.steps,
        update_ms=ms * wall_s,
        parts=list(_parts(times_between(spans_before, spans_after), processes, wall_s, ms)),
        in_workers=in_workers,
        frames_of_step=config.rollout.num_envs,
        frames_of_minibatch=min(config.optim.bs, config.optim.micro_bs or config.optim.bs),
        entities=_means(metrics, types),
        most_entities=int(max(m["entity_count.max"] for m in metrics)),
        resources=_resources(workers, used_s / wall_s, config.cuda),
        save_ms=save_ms,
        saved_every_s=None if math.isinf(every_s) else every_s,
    )


def _resources(workers: Sequence[ProcessTimes], cores_used: float, cuda: bool) -> Resources:
    """Return the processes, cores and memory of a run.

    Args:
        workers: times and memory of its workers.
        cores_used: mean number of busy cores.
        cuda: whether the run uses an available GPU.
    """
    num_cores = os.cpu_count() or 1
    if hasattr(os, "sched_getaffinity"):
        num_cores = len(os.sched_getaffinity(0))
    is_on_gpu = cuda and torch.cuda.is_available()
    return Resources(
        processes=max(1, len(workers)),
        cores=num_cores,
        cores_used=cores_used,
        peak_mb=peak_bytes() / MB,
        workers_peak_mb=sum(times.peak_bytes for times in workers) / MB,
        gpu_peak_mb=torch.cuda.max_memory_allocated() / MB if is_on_gpu else None,
    )


def _means(metrics: Sequence[Mapping[str, float]], types: Sequence[str]) -> dict[str, float]:
    """Return the mean number of entities per frame by type, in descending order."""
    tags = {name: f"entity_count/{name}.mean" for name in types}
    means = {name: sum(m[tag] for m in metrics) / len(metrics) for name, tag in tags.items()}
    return dict(sorted(means.items(), key=lambda item: -item[1]))


def _disable_side_effects(manager: StateManager, folder: str) -> None:
    """Disable tracking, recordings, evaluations and stop conditions of a run."""
    config = manager.config
    config.data_dir, config.track, config.mlflow_tracking_uri = folder, False, None
    config.capture_samples, config.capture_logits = None, False
    config.eval, config.stop = None, []
    config.total_timesteps, config.max_train_time = 2**60, None
    manager.checkpoint_dir, manager.is_dry = Path(folder, "run"), True


def _parts(
    spans: Mapping[str, SpanTimes], processes: Sequence[ProcessTimes], wall_s: float, ms: float
) -> Iterator[Part]:
    """Yield the parts of an update in the process of the run, in the order of its spans.

    Args:
        spans: times of spans, by path.
        processes: times of the processes that step environments.
        wall_s: duration of the measurement in seconds.
        ms: milliseconds per update for each second of the measurement.
    """
    for path, span in spans.items():
        if path != "rollout/env":
            prefix = path
            while prefix and prefix not in _PARTS:
                prefix = prefix.rpartition("/")[0]
            name, kind = _PARTS.get(prefix, (path, "rest"))
            yield Part(name if prefix == path else path, kind, ms * span.wall_s, ms * span.core_s)
            continue
        # The step of the environments: their code, or the wait for workers.
        local = [times for times in processes if times.pid == os.getpid()]
        world_s, made_s = (sum(getattr(t, name) for t in local) for name in ("world_s", "made_s"))
        parts: list[tuple[str, Kind, float]] = [("environments", "environment", span.wall_s)]
        if any(times.pid != os.getpid() for times in processes):
            waited_s = min(span.wall_s, sum(times.waited_s for times in processes))
            parts = [("waiting for workers", "waiting", waited_s)]
            parts.append(("messages to and from workers", "frames", span.wall_s - waited_s))
        elif world_s:  # else the environments report no times
            parts = [("environment code", "environment", world_s)]
            parts += [(RECREATED, "environment", made_s)] if made_s else []
            parts.append(("frames and actions", "frames", span.wall_s - world_s - made_s))
        yield from (Part(name, kind, ms * s, ms * s) for name, kind, s in parts)
    rest_ms = ms * (wall_s - sum(span.wall_s for span in spans.values()))
    yield Part("other", "rest", rest_ms, rest_ms)


def bottleneck_advice(measured: Profile) -> str:
    """Return one line: the kind of work that takes most of the time, and a setting to change."""
    kind = max(dict.fromkeys(part.kind for part in measured.parts), key=measured.share)
    step, minibatch = measured.frames_of_step, measured.frames_of_minibatch
    processes, cores = measured.resources.processes, measured.resources.cores
    more_processes = ""
    if processes < cores:
        more_processes = f"rollout.processes={cores} uses the other cores; "
    more_envs = "try a larger rollout.num_envs with fewer rollout.steps"
    one_vec_env = "write all of them as one VecEnv"
    environment = f"environment code: {more_processes}make its act faster, or {one_vec_env}"
    core_ms = {part.name: part.core_ms for part in (*measured.parts, *measured.in_workers)}
    if core_ms.get(RECREATED, 0.0) > core_ms.get("environment code", 0.0):
        environment = "environment code, mostly creating environments for each episode: implement "
        environment += "set_parameters(**values), which sets the arguments of env.vary"
    smaller_net = "try a smaller net.d_model or net.n_layer"
    fewer = "show fewer entities"

    # An entity type with most of the entities of large frames.
    entities, total = measured.entities, measured.entities_per_frame
    most = next(iter(entities), None)
    if most is not None and total >= MANY_ENTITIES and entities[most] >= total / 2:
        fewer = f"show fewer entities of the type {most}, {entities[most]:.1f} of {total:.1f} in "
        fewer += "a frame (those near the actors, or none that never change)"
        smaller_net = f"{fewer}, or {smaller_net}"

    # Workers: mostly idle, in the code of the environments, or creating frames.
    waited_ms = sum(part.wall_ms for part in measured.parts if part.kind == "waiting")
    worked_ms = sum(part.core_ms for part in measured.in_workers)
    world_ms = sum(p.core_ms for p in measured.in_workers if p.kind == "environment")
    if worked_ms < BUSY * waited_ms * min(processes, cores):
        workers = "which are mostly idle: steps are short; try a larger rollout.num_envs, or "
        workers += "rollout.processes=1"
    elif world_ms >= worked_ms / 2:
        workers = f"in {environment}"
    else:
        workers = f"which create frames of observations: {more_processes}{fewer} and "
        workers += f"fewer ids, or {one_vec_env}"

    advice: dict[Kind, str] = {
        "environment": environment,
        "waiting": f"waiting for workers, {workers}",
        "frames": f"creating and storing frames: {more_processes}{fewer}",
        "acting": f"the network while acting: {smaller_net}",
        "learning": f"learning, which is the network's arithmetic: {smaller_net}, or fewer "
        "optim.update_epochs",
        "optimizer": f"the optimizer, which steps every {minibatch} frames: try a larger optim.bs",
        "rest": f"fixed costs of updates of {measured.frames} frames: try larger "
        "rollouts (rollout.num_envs, rollout.steps)",
    }
    counted = max(total, MANY_ENTITIES)
    if step * counted < FEW_ENTITIES:
        advice["frames"] = f"creating and storing frames, {step} at a time: {more_envs}"
        advice["acting"] = f"the network while acting, for {step} frames at a time: {more_envs}"
    if minibatch * counted < FEW_ENTITIES:
        advice["learning"] = f"learning from {minibatch} frames at a time: try a larger optim.bs"
    return f"{measured.share(kind):.0%} of the time is {advice[kind]}"


def show(measured: Profile, console: Console) -> None:
    """Print a profile: a table of times, then cores, memory and the advice."""

    # Times of the run and of its workers; the time of all threads if it exceeds the wall time.
    def core_ms(part: Part) -> str:
        return f"{part.core_ms:.2f}" if part.core_ms > 1.001 * part.wall_ms else ""

    whole = Part("an update", "rest", measured.update_ms, measured.update_ms)
    rows = []
    for part in (*measured.parts, whole):
        share, us = part.wall_ms / measured.update_ms, 1e3 * part.wall_ms / measured.frames
        row = part.name, f"{share:.1%}", f"{part.wall_ms:.2f}", f"{us:.2f}", core_ms(part)
        rows.append(row)
    rows += [(f"in workers: {p.name}", "", "", "", core_ms(p)) for p in measured.in_workers]
    show_table(("part", "share", "ms/update", "us/frame", "core-ms/update"), rows, console)
    total = measured.entities_per_frame
    if total:
        counts = [(name, f"{n:.1f}", f"{n / total:.1%}") for name, n in measured.entities.items()]
        counts.append(("all types", f"{total:.1f}", ""))
        show_table(("entity type", "per frame", "share"), counts, console, heading=[""])
        largest = f"the largest frame has {measured.most_entities:,} entities"
        console.out(f"\n{largest}", highlight=False)

    # Speed, cores, memory and saves.
    used = measured.resources
    memory = f"{used.peak_mb:.0f} MB of memory at most"
    if used.workers_peak_mb:
        memory += f", workers {used.workers_peak_mb:.0f} MB together"
    if used.gpu_peak_mb is not None:
        memory += f", tensors on the GPU {used.gpu_peak_mb:.0f} MB"
    saves = f"a save takes {measured.save_ms:.0f} ms"
    if measured.saved_every_s:
        share = measured.save_ms / 1e3 / measured.saved_every_s
        every_s = f"{measured.saved_every_s:g} s"
        saves += f", {share:.2%} of the time at one every {every_s}, mostly in the background"
    steps = "process steps" if used.processes == 1 else "processes step"
    for line in (
        f"{measured.frames_per_s:,.0f} frames/s over {measured.updates} updates of "
        f"{measured.frames:,} frames, after {WARM_UP_UPDATES} warm-up updates",
        f"{used.cores_used:.2f} of {used.cores} cores used, {used.processes} {steps} "
        "the environments",
        memory,
        saves,
        f"\n{bottleneck_advice(measured)}",
    ):
        console.out(line, highlight=False)
