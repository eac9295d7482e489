"""Advice on the setting to change, by the kind of work that takes most of the time of a run."""

from enn_trainer.commands.profile_run import Profile

FEW_FRAMES = 256
"""Frames of a forward pass below which the fixed cost dominates."""
BUSY = 0.6
"""Minimal share of the wait for workers in which they compute; below it they are mostly idle."""


def bottleneck_advice(profile: Profile) -> str:
    """Return one line: the kind of work that takes most of the time, and what to change."""
    # The kind with the largest share.
    kinds = list(dict.fromkeys(part.kind for part in profile.parts))
    kind = max(kinds, key=profile.share)

    # Advice by kind.
    more_processes = ""
    if profile.processes < profile.cores:
        more_processes = f"rollout.processes={profile.cores} uses the other cores; "
    more_envs = "try a larger rollout.num_envs with fewer rollout.steps"
    environment = (
        f"environment code: {more_processes}make its act faster, or write all of them as one VecEnv"
    )
    few_frames, step, minibatch = FEW_FRAMES, profile.frames_of_step, profile.frames_of_minibatch

    if kind == "environment":
        advice = environment
    elif kind == "waiting":
        advice = f"waiting for workers, {_work_of_workers(profile, environment, more_processes)}"
    elif kind == "frames" and step < few_frames:
        advice = f"making and storing frames, {step} at a time: {more_envs}"
    elif kind == "frames":
        advice = f"making and storing frames: {more_processes}show fewer entities"
    elif kind == "acting" and step < few_frames:
        advice = f"the network while acting, for {step} frames at a time: {more_envs}"
    elif kind == "acting":
        advice = "the network while acting: try a smaller net.d_model or net.n_layer"
    elif kind == "learning" and minibatch < few_frames:
        advice = f"learning from {minibatch} frames at a time: try a larger optim.bs"
    elif kind == "learning":
        advice = (
            "learning, which is the network's arithmetic: try a smaller net.d_model or "
            "net.n_layer, or fewer optim.update_epochs"
        )
    elif kind == "optimizer":
        advice = f"the optimizer, which steps every {minibatch} frames: try a larger optim.bs"
    else:
        advice = (
            f"fixed costs of an update, which has {profile.frames} frames: try larger rollouts "
            "(rollout.num_envs, rollout.steps)"
        )
    return f"{profile.share(kind):.0%} of the time is {advice}"


def _work_of_workers(profile: Profile, environment: str, more_processes: str) -> str:
    """Return the end of the line for a run that waits for its workers."""
    waited_ms = sum(part.wall_ms for part in profile.parts if part.kind == "waiting")
    worked_ms = sum(part.core_ms for part in profile.in_workers)
    if worked_ms < BUSY * waited_ms * min(profile.processes, profile.cores):
        return (
            "which are mostly idle: steps are short; try a larger rollout.num_envs, or "
            "rollout.processes=1"
        )
    world_ms = sum(p.core_ms for p in profile.in_workers if p.kind == "environment")
    if world_ms >= worked_ms / 2:
        return f"in {environment}"
    return (
        f"which make frames of observations: {more_processes}show fewer entities and ids, or write "
        "all of them as one VecEnv"
    )
