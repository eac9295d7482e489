"""Rules of learning diagnostics: signs that a run does not learn.

A rule is a function of `Evidence` that yields notices; register it in `UPDATE_RULES` or
`WINDOW_RULES`.
"""

import math
import statistics
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple, TypeAlias

from enn_trainer.algorithms.ppo.losses import LARGE_NORM
from enn_trainer.callbacks.learning_sums import (
    FACT_WINDOWS,
    LATE,
    LEAST_LATE,
    PATIENCE,
    UNEXPLAINED,
    Evidence,
    Sums,
    constants_as_text,
    is_lost,
    mean_return,
)
from entity_env.spaces import GLOBAL

PAGE = "docs/it-does-not-learn.md"
"""Page with the explanations; each notice has the anchor of a heading."""

GIVEN_UP = 0.1
"""Frequency of a choice, relative to uniform choices, below which the policy gave it up. Some
successful policies never use it: other signs are required as well."""
LEAST_EXPECTED = 50.0
"""Least expected count of a choice under uniform choices to judge it in a window."""
UNDECIDED = 0.5 * math.log(2)
"""Least entropy of an undecided policy in nats: half the entropy of two equal choices."""
SAME_EVERYWHERE = 0.85
"""Least ratio of the entropy in single frames to the entropy of all choices together of a policy
that is the same in all frames. A policy that depends on the frame has a smaller ratio."""
MISLED = -0.1
"""Largest explained variance of values that are significantly worse than their mean."""
SAME_RETURNS = 100
"""Least number of episodes with equal returns to call returns constant."""
LONG_EPISODE = 1_000
"""Least length of a running episode to warn that no episode ends, in steps: longer than episodes of
most environments."""
IDLE = 0.9
"""Least share of frames without actors for a warning. In a game of four sides that take turns,
three quarters of the frames have no actors."""
UNDECIDED_SHARE = 0.8
"""Share of the maximum entropy above which a policy is undecided at the end of a run."""
LARGE = 10.0
"""Least multiple of the median of previous updates of a large KL divergence."""
LEAST_KLS = 8
"""Least number of updates for a median of KL divergences."""
LEAST_KL = 0.05
"""Least value of a large KL divergence."""
LEAST_NUMBERS = 100.0
"""Least count of choices of a continuous component to judge its mean in a window."""
UNMOVED, UNMOVED_SPREAD = 0.5, 1.25
"""Largest distance of a mean from the initial one, and largest root mean square distance of the
choices, that count as unmoved, as multiples of the initial standard deviation. The latter is larger
if the mean depends on the frame."""
MOST_LISTED = 5


class Notice(NamedTuple):
    """Warning about a sign that a run does not learn.

    Attributes:
        key: unique key; a run warns once for each key.
        text: the sign and its meaning, in one line.
        anchor: anchor of the heading in `PAGE`.
    """

    key: str
    text: str
    anchor: str

    @property
    def page(self) -> str:
        """Page and anchor of the explanation."""
        return f"{PAGE}#{self.anchor}"


Rule: TypeAlias = Callable[[Evidence], Iterator[Notice]]


# -- Rewards, episodes and actors --------------------------------------------------------------


def constant_returns(e: Evidence) -> Iterator[Notice]:
    """Yield a notice if the reward was always 0, or, after `PATIENCE` windows, the return constant.

    The latter needs patience, because a policy may first have to learn to avoid early failures.
    """
    run = e.run
    if run.get("reward.min") == run.get("reward.max") == 0:
        yield Notice(
            "reward",
            f"the reward was 0 in all {run['frames']:,.0f} frames: there is nothing to learn from",
            "a-reward-that-is-always-zero",
        )
    elif len(e.windows) >= PATIENCE and not e.return_range and run["episodes"] >= SAME_RETURNS:
        yield Notice(
            "return",
            f"the return was {run['return.min']:.3g} in all {run['episodes']:,.0f} episodes, for "
            "all choices so far; reward progress in the environment, or explore more with "
            "ppo.ent_coef=0.5",
            "a-return-that-is-always-the-same",
        )


def endless_episodes(e: Evidence) -> Iterator[Notice]:
    """Yield a notice if no episode has ended."""
    if not e.run["episodes"] and e.longest >= LONG_EPISODE:
        yield Notice(
            "episodes",
            f"no episode has ended in {e.run['frames']:,.0f} frames, the longest one has "
            f"run for {e.longest:,.0f} steps: there are no returns",
            "an-episode-that-never-ends",
        )


def late_rounds(e: Evidence) -> Iterator[Notice]:
    """Yield a notice if a long episode has delayed a round of episodes for the last windows."""
    late, (frames, episodes) = e.rounds.rounds.late, e.rounds.waited
    if late and frames >= e.latest["frames"] and e.longest >= LONG_EPISODE:
        names = ", ".join(map(str, late[:MOST_LISTED])) + ", ..." * (len(late) > MOST_LISTED)
        yield Notice(
            "rounds",
            f"environment {names}: no episode has ended in {frames:,} frames, while "
            f"{episodes:,} ended in other environments; the longest one has run for "
            f"{e.longest:,.0f} steps and delays a round: curriculum stages, conditions of stop, "
            "and ratings wait for it",
            "an-episode-that-never-ends",
        )


def idle_frames(e: Evidence) -> Iterator[Notice]:
    """Yield a notice if most frames have no actors."""
    run = e.run
    if run["examined"] and run["idle"] >= IDLE * run["examined"]:
        yield Notice(
            "actors",
            f"{run['idle'] / run['examined']:.0%} of the frames have no actors: they train only "
            "the value function",
            "frames-without-actors",
        )


# -- A return that does not rise ---------------------------------------------------------------


def choices_given_up(e: Evidence) -> Iterator[Notice]:
    """Yield notices of choices that the policy gave up while the return does not rise."""
    if math.isnan(e.flat_return):
        return
    run = e.recent["run"]
    is_misled = e.explains_nothing and run["explained.sum"] <= MISLED * run["explained.count"]
    for action, space in e.action_space.items():
        lost = set.intersection(*(given_up(window, action) for window in e.windows))
        policy, counts = e.recent.get(f"policy/{action}", {}), e.recent.get(f"taken/{action}", {})
        total = sum(counts.values())
        if not lost or not policy.get("choosing") or total <= 0:
            continue

        # Entropy in single frames, and entropy of the marginal frequencies of choices: the latter
        # is larger if the policy depends on the frame.
        entropy = policy["entropy"] / policy["choosing"]
        marginal = -sum(n / total * math.log(n / total) for n in counts.values() if n > 0)
        is_same = entropy >= SAME_EVERYWHERE * marginal
        is_random = is_same and entropy >= UNDECIDED
        # Giving up the choice may be optimal, unless neither the policy nor the values depend on
        # the frame.
        is_blind = is_same or e.nothing_learnt or e.explains_nothing
        if (e.is_stuck and is_blind) or (is_random and is_misled):
            times, decisions = sum(counts[name] for name in lost), policy["choosing"]
            yield Notice(
                f"choice/{action}",
                f"{action}: {_listed([name for name in space.labels if name in lost])} legal, but "
                f"chosen {times:,.0f} times in {decisions:,.0f} decisions, and the return does not "
                f"rise ({e.flat_return:.3g}, best episode {e.run['return.max']:.3g}): the policy "
                "gave up a choice",
                "a-choice-that-is-never-taken",
            )
        if is_random:
            yield Notice(
                f"entropy/{action}",
                f"{action}: the entropy, {entropy:.3g}, equals a uniform choice among "
                f"{math.exp(entropy):.1f} of {len(space.labels)} in all frames, and the return "
                f"does not rise ({e.flat_return:.3g}): the policy is random among these choices",
                "an-entropy-of-fewer-choices",
            )


def given_up(window: Sums, action: str) -> set[str]:
    """Return the labels of an action that are legal but rarely chosen."""
    counts = window.get(f"taken/{action}", {})
    return {
        label
        for label, expected in window.get(f"chance/{action}", {}).items()
        if expected >= LEAST_EXPECTED and counts.get(label, 0.0) < GIVEN_UP * expected
    }


def means_unmoved(e: Evidence) -> Iterator[Notice]:
    """Yield a notice for each action with means at their initial values if nothing was learned."""
    for action, space in e.action_space.items() if e.nothing_learnt else ():
        names = [
            component
            for component in space.components
            if all(_is_unmoved(window, action, component, e) for window in e.windows)
        ]
        if names := names[:MOST_LISTED]:
            initial = ", ".join(f"{space.initial_value(name):g}" for name in names)
            suggestion = ", ".join(f'"{name}": ...' for name in names)
            yield Notice(
                f"mean/{action}",
                f"{action}: the mean of {' and of '.join(names)} has not moved from its initial "
                f"value ({initial}), and the return does not rise ({e.flat_return:.3g}): begin "
                "near useful values with "
                f"start={{{suggestion}}} in its action space, or narrow the bounds",
                "a-mean-that-does-not-move",
            )


def _is_unmoved(window: Sums, action: str, component: str, e: Evidence) -> bool:
    count, shift, square = (
        window.get(f"{kind}/{action}", {}).get(component, 0.0)
        for kind in ("numbers", "shift", "square")
    )
    std = e.config.net.init_std
    is_near = abs(shift) <= UNMOVED * std * count
    return count >= LEAST_NUMBERS and is_near and square <= (UNMOVED_SPREAD * std) ** 2 * count


def unexplained_values(e: Evidence) -> Iterator[Notice]:
    """Yield a notice if the value function explains nothing while the return does not rise.

    There is no notice near the best return, where differences of returns are noise, and for equal
    returns, which have a notice of their own.
    """
    if not e.is_stuck or not e.return_range or not e.explains_nothing:
        return
    runs = [window["run"] for window in e.windows if window["run"]["explained.count"]]
    means = [run["explained.sum"] / run["explained.count"] for run in runs]
    yield Notice(
        "explained",
        f"the value function explains nothing: explained variance {means[-1]:.2g}, at most "
        f"{max(means):.2g} in the last {e.recent['run']['frames']:,.0f} frames, and the return "
        "does not rise; advantages are as noisy as returns",
        "a-value-function-that-explains-nothing",
    )


def actions_never_offered(e: Evidence) -> Iterator[Notice]:
    """Yield a notice for each action without actors in a run that has learned nothing."""
    actors = e.whole.get("actors", {})
    for action in actors if e.nothing_learnt and any(actors.values()) else ():
        if not actors[action]:
            yield Notice(
                f"offered/{action}",
                f"{action}: no entity could take this action in {e.run['frames']:,.0f} frames",
                "frames-without-actors",
            )


def constant_features(e: Evidence) -> Iterator[Notice]:
    """Yield a notice for each entity type with constant features in a run that learned nothing."""
    types = {**e.obs_space.entities, GLOBAL: e.obs_space.global_entity}
    for name, entity in types.items() if e.nothing_learnt else ():
        texts = constants_as_text(e.constants.get(name, {}), entity)
        if not texts:
            continue
        subject = "global features" if name == GLOBAL else name
        values = ", ".join(list(texts.values())[:MOST_LISTED])
        more = ", ..." if len(texts) > MOST_LISTED else ""
        yield Notice(
            f"feature/{name}",
            f"{subject}: {_listed(list(texts))} constant in {e.run['examined']:,.0f} frames "
            f"({values}{more}): nothing can be learned from a constant feature",
            "a-feature-that-never-varies",
        )


def _listed(names: Sequence[str]) -> str:
    """Return names with the verb: `a is`, `a and b are`, `a, b, ... are`."""
    if len(names) > MOST_LISTED:
        return f"{', '.join(names[:MOST_LISTED])} and {len(names) - MOST_LISTED} more are"
    first = ", ".join(names[:-1])
    return f"{first} and {names[-1]} are" if first else f"{names[-1]} is"


# -- Faulty updates: each notice names a setting to change -------------------------------------


def large_gradients(e: Evidence) -> Iterator[Notice]:
    """Yield a notice if the gradient norms of most steps are far above their limit."""
    run, ppo = e.latest, e.config.ppo
    share = run.get("steep.sum", 0.0) / run["updates"]
    if share <= 0.5:
        return
    cure = "reduce the weight of the value loss with ppo.vf_coef=0.05"
    if not ppo.value_norm and ppo.value_loss != "hl_gauss":
        cure = "normalize returns with ppo.value_norm=true in a new run"
    yield Notice(
        "gradient",
        f"the norm of the gradient was above {LARGE_NORM:g} times optim.max_grad_norm="
        f"{e.config.optim.max_grad_norm:g} in {share:.0%} of the steps of the last "
        f"{run['frames']:,.0f} frames, {run.get('norm.sum', 0.0) / run['updates']:.3g} on average: "
        f"the largest loss dominates the others; {cure}",
        "gradients-far-above-their-limit",
    )


def unreachable_returns(e: Evidence) -> Iterator[Notice]:
    """Yield a notice if clipped values cannot have reached the returns yet and explain nothing."""
    ppo, run = e.config.ppo, e.latest
    if not ppo.clip_vloss or ppo.value_norm or not run["explained.count"]:
        return
    clip = ppo.clip_coef if ppo.vf_clip_coef is None else ppo.vf_clip_coef
    reach = clip * e.run["updates"]
    mean = run.get("target.sum", 0.0) / run["updates"]
    explained = run["explained.sum"] / run["explained.count"]
    if abs(mean) > reach and run["explained.sum"] <= UNEXPLAINED * run["explained.count"]:
        yield Notice(
            "reach",
            f"values cannot reach the returns, {mean:.3g} on average: ppo.clip_vloss limits their "
            f"change to {clip:g} per update, {reach:.3g} so far, and they explain nothing "
            f"(explained variance {explained:.2g}); normalize returns with ppo.value_norm=true "
            "in a new run",
            "values-that-cannot-reach-the-returns",
        )


def return_lost(e: Evidence) -> Iterator[Notice]:
    """Yield a notice if the return was high, and is far lower in the last windows."""
    means = [mean_return(window) for window in e.windows[-FACT_WINDOWS:]]
    if e.num_sides > 1 or "best" not in e.whole or not all(is_lost(x, e.whole) for x in means):
        return
    best, first = e.whole["best"]["return"], e.whole["first"]["return"]
    save = e.newest_save(e.whole.get("held", {}).get("step", 0.0))
    held = f"{save} is an earlier save" if save else "no earlier save is left"
    cure = "anneal the learning rate with optim.anneal_lr=true"
    if e.config.optim.anneal_lr:
        cure = f"reduce the learning rate with optim.lr={float(e.config.optim.lr) / 4:.2g}"
    yield Notice(
        "collapse",
        f"the return fell from {best:.3g} to {means[-1]:.3g} (initially {first:.3g}): the policy "
        f"has collapsed; {held}; {cure}",
        "a-return-that-is-lost-again",
    )


def large_step(e: Evidence) -> Iterator[Notice]:
    """Yield a notice if an update changed the policy much more than previous updates."""
    before = e.kls
    if len(before) < LEAST_KLS or not e.kl >= max(LEAST_KL, LARGE * statistics.median(before)):
        return
    cure = "stop updates early with ppo.target_kl=0.03"
    if e.config.ppo.target_kl is not None:
        cure = f"reduce the learning rate with optim.lr={float(e.config.optim.lr) / 4:.2g}"
    yield Notice(
        "kl",
        f"an update changed the policy by a KL divergence of {e.kl:.2g}, the median of previous "
        f"updates is {statistics.median(before):.2g}: such a step can destroy the policy; {cure}",
        "steps-that-are-too-large",
    )


def undecided_policy(e: Evidence) -> Iterator[Notice]:
    """Yield a notice for each action with a high entropy in the last fifth of the run."""
    least = max(LEAST_LATE, (1 - LATE) / 2 * e.config.total_timesteps)
    for kind, sums in e.whole.items() if e.num_sides == 1 else ():
        action = kind.removeprefix("late/")
        if action == kind or action in e.config.ppo.ent_targets or sums["frames"] < least:
            continue
        share = sums["share.sum"] / sums["frames"]
        if share > UNDECIDED_SHARE:
            yield Notice(
                f"late/{action}",
                f"{action}: the entropy is {share:.0%} of its maximum in the last fifth of the "
                "run: the policy is undecided; reduce the entropy bonus with "
                f"ppo.ent_coef={float(e.config.ppo.ent_coef) / 10:g}",
                "an-entropy-that-stays-at-its-maximum",
            )


UPDATE_RULES: Sequence[Rule] = (large_step, undecided_policy)
"""Rules for every update."""
WINDOW_RULES: Sequence[Rule] = (
    *(constant_returns, endless_episodes, late_rounds, idle_frames),
    *(
        choices_given_up,
        means_unmoved,
        unexplained_values,
        actions_never_offered,
        constant_features,
    ),
    *(large_gradients, unreachable_returns, return_lost),
)
"""Rules for each complete window, from window number `FACT_WINDOWS` on."""
