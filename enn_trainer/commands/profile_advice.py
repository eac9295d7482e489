"""What limits a run, and what to do about it, by where its time goes."""

from enn_trainer.commands.profile_run import Profile

FEW_FRAMES = 256
"""A forward pass over fewer frames costs nearly as much as one over so many."""
BUSY = 0.6
"""Workers that compute for less of the time that is waited for them wait themselves, for the
messages of a step."""


def what_limits(profile: Profile) -> str:
    """One line: what takes most of the time, and what to change."""
    kinds = list(dict.fromkeys(part.kind for part in profile.parts))
    kind = max(kinds, key=profile.share)
    return f"{profile.share(kind):.0%} of the time is {_ADVICE[kind](profile)}"


def _environment(profile: Profile) -> str:
    more = _more_processes(profile)
    return f"environment code: {more}make its act faster, or write all of them as one VecEnv"


def _waiting(profile: Profile) -> str:
    waited_ms = sum(part.wall_ms for part in profile.parts if part.kind == "waiting")
    worked_ms = sum(part.core_ms for part in profile.in_workers)
    if worked_ms < BUSY * waited_ms * min(profile.processes, profile.cores):
        return (
            "waiting for workers, which are mostly idle: steps are short; try a larger "
            "rollout.num_envs, or rollout.processes=1"
        )
    world_ms = sum(p.core_ms for p in profile.in_workers if p.kind == "environment")
    if world_ms >= worked_ms / 2:
        return f"waiting for workers, in {_environment(profile)}"
    return (
        f"waiting for workers, which make frames of what the environments show: "
        f"{_more_processes(profile)}show fewer entities and ids, or write all of them as one VecEnv"
    )


def _frames(profile: Profile) -> str:
    if profile.frames_of_step < FEW_FRAMES:
        return (
            f"making and storing frames, {profile.frames_of_step} at a time: try a larger "
            "rollout.num_envs with fewer rollout.steps"
        )
    return f"making and storing frames: {_more_processes(profile)}show fewer entities"


def _acting(profile: Profile) -> str:
    if profile.frames_of_step < FEW_FRAMES:
        return (
            f"the network while acting, for {profile.frames_of_step} frames at a time: try a "
            "larger rollout.num_envs with fewer rollout.steps"
        )
    return "the network while acting: try a smaller net.d_model or net.n_layer"


def _learning(profile: Profile) -> str:
    if profile.frames_of_minibatch < FEW_FRAMES:
        return (
            f"learning from {profile.frames_of_minibatch} frames at a time: try a larger optim.bs"
        )
    return (
        "learning, which is the network's arithmetic: try a smaller net.d_model or net.n_layer, or "
        "fewer optim.update_epochs"
    )


def _optimizer(profile: Profile) -> str:
    return (
        f"the optimizer, which steps after every {profile.frames_of_minibatch} frames: try a "
        "larger optim.bs"
    )


def _rest(profile: Profile) -> str:
    return (
        f"what every update costs, which is of {profile.frames} frames: try larger rollouts "
        "(rollout.num_envs, rollout.steps)"
    )


def _more_processes(profile: Profile) -> str:
    if profile.processes >= profile.cores:
        return ""
    return f"rollout.processes={profile.cores} uses the other cores; "


_ADVICE = {
    "environment": _environment,
    "waiting": _waiting,
    "frames": _frames,
    "acting": _acting,
    "learning": _learning,
    "optimizer": _optimizer,
    "rest": _rest,
}
