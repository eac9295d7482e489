"""Notices of updates that go wrong, and of a return that is lost again.

Each names one setting to type.
"""

import math
import statistics
from collections.abc import Iterator, Mapping, Sequence

from enn_trainer.algorithms.ppo.losses import LARGE_NORM
from enn_trainer.callbacks.notice import Notice, Sums, total_of
from enn_trainer.config import TrainConfig

LATE = 0.8
"""Share of a run from which its policy should have decided."""
LEAST_LATE = 3_000
"""Frames of that part of a run, at least, to judge the policy."""
UNDECIDED_SHARE = 0.8
"""Share of the largest entropy above which a policy is undecided."""
LARGE = 10.0
"""Multiple of the median of the updates before from which a KL divergence is large."""
KEPT_KLS, LEAST_KLS = 32, 8
"""Updates whose KL divergence is kept, and those that it takes to know their median."""
LEAST_KL = 0.05
"""Smallest KL divergence that counts as large."""
UNEXPLAINED = 0.05
"""Largest explained variance of values that do not reach the returns."""
LOST = 0.5
"""Share of the rise of the return that is lost in a collapse."""
LEAST_FALL = 0.25
"""Least fall of the mean return in a collapse, as a share of the range of returns of episodes."""
WINDOWS_OF_FALL = 2
"""Windows in a row whose return has to be lost."""
LEAST_EPISODES = 10
"""Episodes that end in a window, at least, to know its mean return."""

_TAGS = {
    "steep.sum": "losses/gradnorm_large",
    "norm.sum": "losses/gradnorm",
    "target.sum": "losses/returns",
}


def update_sums(metrics: Mapping[str, float], actions: Sequence[str], late_frames: int) -> Sums:
    """Return the sums of the metrics of an update.

    Args:
        metrics: by tag.
        actions: names.
        late_frames: frames of the update that are in the last fifth of the run.
    """
    known = {name: float(metrics.get(tag, math.nan)) for name, tag in _TAGS.items()}
    sums: Sums = {"run": {name: x for name, x in known.items() if math.isfinite(x)}}
    for action in actions if late_frames else ():
        share = float(metrics.get(f"policy/{action}/normalised_entropy", math.nan))
        if math.isfinite(share):
            sums[f"late/{action}"] = {"share.sum": late_frames * share, "frames": late_frames}
    return sums


def late_part(step: int, num_frames: int, total: int) -> int:
    """Return how many of the latest frames are in the last fifth of a run, if that is long enough.

    Args:
        step: frames of the run so far.
        num_frames: the latest ones.
        total: frames of the whole run.
    """
    if (1 - LATE) * total < LEAST_LATE:
        return 0
    return int(min(max(step - LATE * total, 0), num_frames))


def forget_late(whole: Sums) -> None:
    """Remove the sums of the last fifth from those of a run."""
    for kind in [kind for kind in whole if kind.startswith("late/")]:
        del whole[kind]


def notices_of_kl(kl: float, before: Sequence[float], config: TrainConfig) -> Iterator[Notice]:
    """Yield a notice if an update moved the policy much further than those before it.

    Args:
        kl: its KL divergence.
        before: those of the updates before it.
        config: settings of the run.
    """
    if len(before) < LEAST_KLS or not kl >= max(LEAST_KL, LARGE * statistics.median(before)):
        return
    cure = "ppo.target_kl=0.03 ends an update before it goes that far"
    if config.ppo.target_kl is not None:
        cure = f"optim.lr={float(config.optim.lr) / 4:.2g} makes smaller ones"
    yield Notice(
        "kl",
        f"one update moved the policy by a KL divergence of {kl:.2g}, the median of the updates "
        f"before is {statistics.median(before):.2g}: such a step can undo what was learnt; "
        f"{cure}",
        "steps-that-are-too-large",
    )


def notices_of_steps(windows: Sequence[Sums], config: TrainConfig) -> Iterator[Notice]:
    """Yield a notice if the gradients of most steps are far above their limit."""
    run = total_of(windows)["run"]
    share = run.get("steep.sum", 0.0) / run["updates"]
    if share <= 0.5:
        return
    cure = "ppo.vf_coef=0.05 lets values count less"
    if not config.ppo.value_norm and config.ppo.value_loss != "hl_gauss":
        cure = "ppo.value_norm=true learns returns of any size, in a new run"
    yield Notice(
        "gradient",
        f"the norm of the gradient was above {LARGE_NORM:g} times optim.max_grad_norm="
        f"{config.optim.max_grad_norm:g} in {share:.0%} of the steps of the last "
        f"{run['frames']:,.0f} frames, {run.get('norm.sum', 0.0) / run['updates']:.3g} on average: "
        f"the largest loss leaves nothing of the others; {cure}",
        "gradients-far-above-their-limit",
    )


def notices_of_reach(windows: Sequence[Sums], whole: Sums, config: TrainConfig) -> Iterator[Notice]:
    """Yield a notice if clipped values cannot have reached the returns yet, and explain nothing."""
    ppo, run = config.ppo, total_of(windows)["run"]
    if not ppo.clip_vloss or ppo.value_norm or not run["explained.count"]:
        return
    clip = ppo.clip_coef if ppo.vf_clip_coef is None else ppo.vf_clip_coef
    reach = clip * whole["run"]["updates"]
    mean = run.get("target.sum", 0.0) / run["updates"]
    if abs(mean) <= reach or run["explained.sum"] > UNEXPLAINED * run["explained.count"]:
        return
    yield Notice(
        "reach",
        f"values cannot reach the returns, {mean:.3g} on average: ppo.clip_vloss lets them move by "
        f"{clip:g} in an update, {reach:.3g} so far, and they explain nothing (explained variance "
        f"{run['explained.sum'] / run['explained.count']:.2g}); ppo.value_norm=true learns returns "
        "of any size, in a new run",
        "values-that-cannot-reach-the-returns",
    )


def notices_of_late_entropy(whole: Sums, config: TrainConfig) -> Iterator[Notice]:
    """Yield a notice for each action that is undecided in the last fifth of the run."""
    for kind, sums in whole.items():
        action = kind.removeprefix("late/")
        if action == kind or action in config.ppo.ent_targets:
            continue
        share, least = sums["share.sum"] / sums["frames"], (1 - LATE) / 2 * config.total_timesteps
        if sums["frames"] >= max(LEAST_LATE, least) and share > UNDECIDED_SHARE:
            yield Notice(
                f"late/{action}",
                f"{action}: the entropy is {share:.0%} of its maximum in the last fifth of the "
                "run: the policy has not decided; type a smaller entropy bonus, "
                f"ppo.ent_coef={float(config.ppo.ent_coef) / 10:g}",
                "an-entropy-that-stays-at-its-maximum",
            )


def mean_return(window: Sums) -> float:
    """Return the mean return of the episodes of a window; NaN if too few of them ended."""
    run = window["run"]
    return run["return.sum"] / run["episodes"] if run["episodes"] >= LEAST_EPISODES else math.nan


def note_best(whole: Sums, window: Sums, step: int) -> None:
    """Note the return of a window if it is the first one or the best, or is not lost, in `whole`.

    Args:
        whole: sums of the run; it is changed.
        window: that ends now.
        step: frames of the run so far.
    """
    mean = mean_return(window)
    if math.isnan(mean):
        return
    whole.setdefault("first", {"return": mean})
    if mean >= whole.setdefault("best", {"return": mean})["return"]:
        whole["best"]["return"] = mean
    if not _is_lost(mean, whole):
        whole["held"] = {"step": float(step)}


def _is_lost(mean: float, whole: Sums) -> bool:
    """Return True if a mean return is far below the best one."""
    run, best, first = whole["run"], whole["best"]["return"], whole["first"]["return"]
    noise = LEAST_FALL * (run["return.max"] - run["return.min"])
    return best - mean > max(LOST * (best - first), noise)


def notices_of_collapse(
    windows: Sequence[Sums], whole: Sums, config: TrainConfig, held: str
) -> Iterator[Notice]:
    """Yield a notice if the return was high and is lost.

    Args:
        windows: the latest ones.
        whole: sums of the run, with those of `note_best`.
        config: settings of the run.
        held: what is left of the time before, in words.
    """
    means = [mean_return(window) for window in windows[-WINDOWS_OF_FALL:]]
    if len(means) < WINDOWS_OF_FALL or "best" not in whole or any(map(math.isnan, means)):
        return
    if all(_is_lost(mean, whole) for mean in means):
        best, first = whole["best"]["return"], whole["first"]["return"]
        cure = "optim.anneal_lr=true lets the steps become smaller"
        if config.optim.anneal_lr:
            cure = f"optim.lr={float(config.optim.lr) / 4:.2g} makes smaller steps"
        yield Notice(
            "collapse",
            f"the return was {best:.3g} and fell to {means[-1]:.3g} (at first {first:.3g}): what "
            f"was learnt is lost; {held}; {cure}",
            "a-return-that-is-lost-again",
        )
