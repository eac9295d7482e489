"""Notices: signs that a run does not learn, each of which is told once.

A run is cut into windows, see `window_frames`. Sums over the rollouts of a window, and over the
whole run, are functions of the rollouts; notices are functions of these sums. The sums are plain
data in `State.memory`, so that a resumed run tells the same notices at the same steps.
"""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from enn_trainer.callbacks.callback import Callback, RunningTrainer
from enn_trainer.callbacks.notice import Notice, Sums, add_sums, total_of
from enn_trainer.callbacks.notices_of_updates import (
    KEPT_KLS,
    LEAST_EPISODES,
    forget_late,
    late_part,
    note_best,
    notices_of_collapse,
    notices_of_kl,
    notices_of_late_entropy,
    notices_of_reach,
    notices_of_steps,
    update_sums,
)
from enn_trainer.config import TrainConfig
from enn_trainer.experience.collector import Rollout
from enn_trainer.experience.rounds import RunRounds
from enn_trainer.runtime.spans import Spans
from enn_trainer.scale.group import ALONE, Group
from enn_trainer.state import State
from enn_trainer.tracking.metrics import decisions_of, num_legal
from entity_env.spaces import GLOBAL, ActionSpace, ObsSpace
from rogue_net.ragged import EntityBatch, to_device

NOTICES = "notices"
"""Name of the sums and of the told notices in `State.memory`."""
WINDOWS_OF_RUN = 20
LEAST_WINDOW, MOST_WINDOW = 3_000, 1_000_000
"""Frames of a window: a twentieth of `total_timesteps`, within these limits.

Fewer frames say nothing about a policy; in runs that are meant to be ended by hand, of which
`total_timesteps` says nothing, notices come after a few million frames.
"""
LEAST_UPDATES = 2
"""Updates of a window, at least, as a policy changes only between them."""
PATIENCE = 8
"""Windows, two fifths of the run, for which a sign in the learning has to last: the return of runs
in `Minefield` that learn in the end does not rise in their first quarter."""
FACT_WINDOWS = 2
"""Windows, a tenth of the run, for which a reward of zero, episodes that never end, and frames
without actors have to last, from the first frame on."""
EXAMINE_EVERY = 2048
"""Frames between rollouts of which choices and features are examined: small ones are not all
examined, as that would take more than one percent of their time. Rewards, episodes and numbers of
actors are those of all rollouts."""

GIVEN_UP = 0.1
"""Frequency of a choice, as a share of that of uniform choices, below which it counts as given up.
Some runs that learn never need it: there have to be other signs that they do not."""
LEAST_EXPECTED = 50.0
"""Times that uniform choices would take a choice in a window, at least, to judge it."""
MOST_LABELS = 64
"""Labels of an action, at most, to examine it: numbers of each are kept in every save."""
UNDECIDED = 0.5 * math.log(2)
"""Entropy in nats from which a policy counts as undecided: half that of two equal choices."""
SAME_EVERYWHERE = 0.85
"""Share of the entropy of all choices together that is left in single frames, from which the policy
counts as the same in all frames. In a policy that depends on the frame the share is smaller."""
FLAT = 0.05
"""Largest rise of the mean return in `PATIENCE` windows, from their first to their second half,
that is flat, as a share of the range of the returns of single episodes in the whole run."""
ROOM = 0.1
"""Least difference between the best return of an episode and the mean return, as a share of that
range, at which there is something left to learn."""
LEARNT = 0.1
"""Rise of the mean return since the first window, as a share of that range, from which something
was learnt. Constant features, actions never offered, and useless choices are no fault then."""
NOTHING_EXPLAINED = 0.05
"""Largest explained variance at which a value function explains nothing."""
MISLED = -0.1
"""Largest explained variance at which values are worse than their mean, other than by luck."""
SAME_RETURNS = 100
"""Episodes with equal returns, at least, to call returns constant."""
LONG_EPISODE = 1_000
"""Steps of a running episode from which it is remarkable that none ever ended: longer episodes than
those of most worlds."""
IDLE = 0.9
"""Share of frames without actors from which most of a run is wasted. In a game of four sides that
take turns, three quarters of the frames have none."""

COUNTS = (
    *("frames", "updates", "examined", "idle", "episodes", "return.sum", "length.sum"),
    *("explained.sum", "explained.count"),
)
"""Names of the kind "run" that are sums."""


def window_frames(total_timesteps: float) -> float:
    """Return the number of frames of a window."""
    return min(max(total_timesteps / WINDOWS_OF_RUN, LEAST_WINDOW), MOST_WINDOW)


def is_examined(step: int, num_frames: int) -> bool:
    """Return True if choices and features of a rollout are examined.

    Args:
        step: frames of the run before the rollout.
        num_frames: frames of the rollout.
    """
    return (step + num_frames) // EXAMINE_EVERY > step // EXAMINE_EVERY


# -- Statistics of a rollout -------------------------------------------------------------------


def run_sums(rollout: Rollout) -> Sums:
    """Return the sums of rewards, episodes and actors of a rollout."""
    run, metrics = dict.fromkeys(COUNTS, 0.0), rollout.metrics
    run |= {"frames": float(rollout.num_frames), "updates": 1.0}
    reward, steps = metrics.get("reward"), metrics.get("step")
    if reward is not None and reward.count:
        run |= {"reward.min": reward.min, "reward.max": reward.max}
    if steps is not None and steps.count:
        run["running.max"] = steps.max
    returns, lengths = metrics.get("episodic_reward"), metrics.get("episode_length")
    if returns is not None and lengths is not None and returns.count:
        run |= {"episodes": float(returns.count), "length.sum": lengths.sum}
        run |= {"return.sum": returns.sum, "return.min": returns.min, "return.max": returns.max}
    actors = {name: float(count) for name, count in rollout.num_actors().items()}
    return {"run": {name: x for name, x in run.items() if math.isfinite(x)}, "actors": actors}


def shard_sums(
    rollout: Rollout,
    action_space: Mapping[str, ActionSpace],
    obs_space: ObsSpace,
    constants: Sums,
) -> tuple[Sums, Sums]:
    """Return the sums of choices of a shard, and the constants of the run with its rows.

    Args:
        rollout: the frames of the shard.
        action_space: the actions.
        obs_space: names of the features.
        constants: those of the run before, see `update_constants`.
    """
    constants = dict(constants)
    update_constants(constants, rollout.batch, obs_space)
    return choice_sums(rollout, action_space), constants


def common_constants(of_shards: Sequence[Sums]) -> Sums:
    """Return the constants of a run by those of its shards."""
    total: Sums = {}
    for constants in of_shards:
        for name, known in constants.items():
            before = total.get(name, known)
            total[name] = {c: x for c, x in before.items() if c in known and known[c] == x}
    return total


def choice_sums(rollout: Rollout, action_space: Mapping[str, ActionSpace]) -> Sums:
    """Return the sums of the choices of actions with labels, and of the frames without actors.

    Args:
        rollout: the frames and the choices.
        action_space: the actions.
    """
    acting = np.zeros(rollout.num_frames, dtype=np.bool_)
    found: list[tuple[str, Sequence[str], Tensor]] = []  # kind, names and numbers
    for name, space in action_space.items():
        batch, rows, entropies = decisions_of(rollout, name)
        chosen = rows.values
        acting |= batch.actors.lengths > 0
        labels = space.labels
        if not 0 < len(labels) <= MOST_LABELS or not len(chosen):
            continue

        # Actors with several legal choices, and what uniform choices would take.
        legal = num_legal(batch, to_device(space.num_choices(batch), chosen.device))
        choosing = legal > 1
        weight = choosing / legal.double()
        if batch.mask is None:
            by_chance = weight.sum().expand(len(labels))
        else:
            by_chance = weight @ batch.mask.values.double()

        # What they took.
        is_choosing = choosing.double()
        taken = weight.new_zeros(len(labels)).index_add(0, chosen, is_choosing)
        entropy = entropies.double() @ is_choosing
        found += [
            (f"policy/{name}", ("choosing", "entropy"), torch.stack([choosing.sum(), entropy])),
            (f"chance/{name}", labels, by_chance),
            (f"taken/{name}", labels, taken),
        ]

    # One transfer from the device.
    numbers = iter(torch.cat([values for _, _, values in found]).tolist() if found else ())
    sums = {kind: {name: next(numbers) for name in names} for kind, names, _ in found}
    num_frames = float(rollout.num_frames)
    return {"run": {"examined": num_frames, "idle": num_frames - float(acting.sum())}, **sums}


def update_constants(constants: Sums, batch: EntityBatch, obs_space: ObsSpace) -> None:
    """Add rows of features to the constants of a run.

    Args:
        constants: by entity type, the value of each feature that had no other one so far, for a
            kind the index of the label. The types in it are those of which there were rows. It is
            changed.
        batch: frames.
        obs_space: names of the features.
    """
    for name, entity in {**obs_space.entities, GLOBAL: obs_space.global_entity}.items():
        known, rows = constants.get(name), batch.features.get(name)
        if rows is None or not len(rows.values) or known == {}:
            continue
        constants[name] = _constants_of(rows.values, entity.features, known)
        if name in batch.kinds:
            kinds = [kind.name for kind in entity.kinds]
            constants[name] |= _constants_of(batch.kinds[name].values, kinds, known)


def _constants_of(
    values: Tensor, names: Sequence[str], known: Mapping[str, float] | None
) -> dict[str, float]:
    """Return the value of each column that is the same in all rows, and in earlier ones.

    Args:
        values: (n, columns), n > 0.
        names: of the columns.
        known: the columns that had one value so far, and that value; None without earlier rows.
    """
    columns = [i for i, name in enumerate(names) if known is None or name in known]
    if len(columns) < len(names):
        values = values[:, columns]
    ranges = torch.stack([*values.aminmax(dim=0)]).tolist() if columns else ([], [])
    named = zip((names[i] for i in columns), *ranges, strict=True)
    return {
        name: low
        for name, low, high in named
        if low == high and (known is None or known[name] == low)
    }


# -- Sums of several rollouts ------------------------------------------------------------------


def return_range(whole: Sums) -> tuple[float, float] | None:
    """Return the least and the largest return of an episode, or None before the first one."""
    run = whole["run"]
    known = "return.min" in run and "return.max" in run
    return (run["return.min"], run["return.max"]) if known else None


def flat_return(windows: Sequence[Sums], whole: Sums) -> float | None:
    """Return the mean return of the last half of the windows if it did not rise, else None."""
    limits, half = return_range(whole), len(windows) // 2
    if len(windows) < PATIENCE or limits is None:
        return None
    first, last = (total_of(part)["run"] for part in (windows[:half], windows[-half:]))
    if min(first["episodes"], last["episodes"]) < LEAST_EPISODES * half:
        return None
    mean = last["return.sum"] / last["episodes"]
    rise = mean - first["return.sum"] / first["episodes"]
    return mean if rise <= FLAT * (limits[1] - limits[0]) else None


def stuck_return(windows: Sequence[Sums], whole: Sums) -> float | None:
    """Return a flat mean return far below that of the best episode, else None.

    Equal returns of all episodes, which leave open if there is a better one, count as well.
    """
    mean, limits = flat_return(windows, whole), return_range(whole)
    if mean is None or limits is None:
        return None
    low, high = limits
    return mean if high - mean >= ROOM * (high - low) else None


def nothing_learnt(windows: Sequence[Sums], whole: Sums) -> bool:
    """Return True if the mean return is stuck about where it was in the first window."""
    mean, limits = stuck_return(windows, whole), return_range(whole)
    if mean is None or limits is None:
        return False
    first = whole.get("first", {}).get("return", mean)
    return mean - first <= LEARNT * (limits[1] - limits[0])


def explains_nothing(windows: Sequence[Sums]) -> bool:
    """Return True if the explained variance was about 0 or below in all windows.

    It does not exist for returns that are all equal, of which there is nothing to explain. Those of
    episodes of one step are luck until the policy knows what to do, and are not judged.
    """
    runs = [window["run"] for window in windows]
    if any(run["length.sum"] < 2 * run["episodes"] for run in runs):
        return False
    return any(run["explained.count"] for run in runs) and all(
        run["explained.sum"] <= NOTHING_EXPLAINED * run["explained.count"] for run in runs
    )


def given_up(window: Sums, action: str) -> set[str]:
    """Return the labels of an action that are legal and hardly taken."""
    taken = window.get(f"taken/{action}", {})
    return {
        label
        for label, expected in window.get(f"chance/{action}", {}).items()
        if expected >= LEAST_EXPECTED and taken.get(label, 0.0) < GIVEN_UP * expected
    }


# -- Notices -----------------------------------------------------------------------------------


def notices_of_choices(
    windows: Sequence[Sums], whole: Sums, labels: Mapping[str, Sequence[str]]
) -> Iterator[Notice]:
    """Yield notices of choices that the policy gave up while the return is flat.

    Args:
        windows: the latest windows.
        whole: sums of the whole run.
        labels: labels by action.
    """
    mean, is_stuck = flat_return(windows, whole), stuck_return(windows, whole) is not None
    if mean is None:
        return
    is_blind, recent = explains_nothing(windows), total_of(windows)
    is_lost = nothing_learnt(windows, whole) or is_blind
    explained, count = recent["run"]["explained.sum"], recent["run"]["explained.count"]
    is_misled = is_blind and explained <= MISLED * count
    for action, names in labels.items():
        lost = set.intersection(*(given_up(window, action) for window in windows))
        policy, taken = recent.get(f"policy/{action}", {}), recent.get(f"taken/{action}", {})
        total = sum(taken.values())
        if not lost or not policy.get("choosing") or total <= 0:
            continue

        # Entropy of single frames, and of the frequencies of all choices: the latter is larger if
        # the policy depends on the frame.
        entropy = policy["entropy"] / policy["choosing"]
        marginal = -sum(n / total * math.log(n / total) for n in taken.values() if n > 0)
        is_same = entropy >= SAME_EVERYWHERE * marginal
        is_random = is_same and entropy >= UNDECIDED
        # To give the choice up may have had the best return so far: no better one is needed if
        # neither the policy nor the values know one frame from another.
        if (is_stuck and (is_same or is_lost)) or (is_random and is_misled):
            times, decisions = sum(taken[name] for name in lost), policy["choosing"]
            yield Notice(
                f"choice/{action}",
                f"{action}: {_listed([name for name in names if name in lost])} legal, but taken "
                f"{times:,.0f} times in {decisions:,.0f} decisions, and the return does not rise "
                f"({mean:.3g}, best episode {whole['run']['return.max']:.3g}): the policy gave up "
                "a choice",
                "a-choice-that-is-never-taken",
            )
        if is_random:
            yield Notice(
                f"entropy/{action}",
                f"{action}: the entropy, {entropy:.3g}, is that of {math.exp(entropy):.1f} choices "
                f"of {len(names)}, the same in all frames, and the return does not rise "
                f"({mean:.3g}): the policy chooses at random among what is left",
                "an-entropy-of-fewer-choices",
            )


def notices_of_values(windows: Sequence[Sums], whole: Sums) -> Iterator[Notice]:
    """Yield a notice if the value function explains nothing while the return is flat.

    Returns that are almost the best are noise: values that explain nothing of these are no fault.
    Of returns that are all equal, which is a notice of its own, there is nothing to explain.
    """
    run = whole["run"]
    if stuck_return(windows, whole) is None or run["return.min"] == run["return.max"]:
        return
    if not explains_nothing(windows):
        return
    runs = [window["run"] for window in windows]
    known = [run for run in runs if run["explained.count"]]
    means = [run["explained.sum"] / run["explained.count"] for run in known]
    frames = sum(run["frames"] for run in runs)
    yield Notice(
        "explained",
        f"the value function explains nothing: explained variance {means[-1]:.2g}, at most "
        f"{max(means):.2g} in the last {frames:,.0f} frames, and the return does not rise; "
        "advantages are as noisy as returns",
        "a-value-function-that-explains-nothing",
    )


def notices_of_rewards(windows: Sequence[Sums], whole: Sums) -> Iterator[Notice]:
    """Yield a notice if the reward was always zero, or, in the end, if all returns were equal.

    The latter is a notice later: a policy may have to learn what ends an episode badly before the
    first one ends well.
    """
    run, limits = whole["run"], return_range(whole)
    if run.get("reward.min") == run.get("reward.max") == 0:
        yield Notice(
            "reward",
            f"the reward was 0 in all {run['frames']:,.0f} frames: there is nothing to learn from",
            "a-reward-that-is-always-zero",
        )
    elif len(windows) < PATIENCE or limits is None:
        return
    elif limits[0] == limits[1] and run["episodes"] >= SAME_RETURNS:
        yield Notice(
            "return",
            f"the return was {limits[0]:.3g} in all {run['episodes']:,.0f} episodes: no choice "
            "made a difference so far; reward progress in the environment, or let it try more, "
            "ppo.ent_coef=0.5",
            "a-return-that-is-always-the-same",
        )


def notices_of_episodes(windows: Sequence[Sums], whole: Sums) -> Iterator[Notice]:
    """Yield a notice if no episode ended so far."""
    longest = windows[-1]["run"].get("running.max", 0)
    if not whole["run"]["episodes"] and longest >= LONG_EPISODE:
        yield Notice(
            "episodes",
            f"no episode has ended in {whole['run']['frames']:,.0f} frames, the longest one has "
            f"run for {longest:,.0f} steps: there are no returns",
            "an-episode-that-never-ends",
        )


def notices_of_rounds(windows: Sequence[Sums], rounds: RunRounds) -> Iterator[Notice]:
    """Yield a notice if an episode held up a round of episodes for the last windows."""
    late, (frames, episodes) = rounds.rounds.late, rounds.waited
    longest = windows[-1]["run"].get("running.max", 0)
    least = total_of(windows[-FACT_WINDOWS:])["run"]["frames"]
    if late and frames >= least and longest >= LONG_EPISODE:
        named = ", ".join(map(str, late[:MOST_LISTED])) + ", ..." * (len(late) > MOST_LISTED)
        yield Notice(
            "rounds",
            f"environment {named}: no episode has ended in {frames:,} frames, in which "
            f"{episodes:,} of other environments ended; the longest one has run for "
            f"{longest:,.0f} steps and holds up a round: bounds of lessons and of stop, and "
            "ratings, wait for it",
            "an-episode-that-never-ends",
        )


def notices_of_actors(whole: Sums) -> Iterator[Notice]:
    """Yield a notice if hardly any frame has actors."""
    run = whole["run"]
    if run["examined"] and run["idle"] >= IDLE * run["examined"]:
        yield Notice(
            "actors",
            f"nobody may act in {run['idle'] / run['examined']:.0%} of the frames, which teach "
            "values alone",
            "frames-without-actors",
        )


def notices_of_actions(whole: Sums) -> Iterator[Notice]:
    """Yield a notice for each action that was never offered, if another one was."""
    offered = whole.get("actors", {})
    for action, actors in offered.items():
        if not actors and any(offered.values()):
            yield Notice(
                f"offered/{action}",
                f"{action}: no entity could take this action in all "
                f"{whole['run']['frames']:,.0f} frames",
                "frames-without-actors",
            )


def notices_of_features(constants: Sums, obs_space: ObsSpace, examined: float) -> Iterator[Notice]:
    """Yield a notice for each entity type with features that never vary.

    Args:
        constants: of `update_constants`.
        obs_space: names of the features.
        examined: number of frames that were examined.
    """
    for name, entity in {**obs_space.entities, GLOBAL: obs_space.global_entity}.items():
        values = {
            one: value
            for one, value in constants.get(name, {}).items()
            if one not in entity.constants
        }
        texts = {one: f"{values[one]:g}" for one in entity.features if one in values}
        for kind in entity.kinds:
            # A save of another world, or of a kind with other labels, may have any number.
            index = int(values.get(kind.name, -1))
            if 0 <= index < len(kind.labels):
                texts[kind.name] = kind.labels[index]
        if not texts:
            continue
        same = list(texts)
        subject = "global features" if name == GLOBAL else name
        shown = ", ".join(list(texts.values())[:MOST_LISTED])
        more = ", ..." if len(same) > MOST_LISTED else ""
        yield Notice(
            f"feature/{name}",
            f"{subject}: {_listed(same)} the same in every row of {examined:,.0f} frames "
            f"({shown}{more}): there is nothing to learn from that",
            "a-feature-that-never-varies",
        )


MOST_LISTED = 5


def _listed(names: Sequence[str]) -> str:
    """Return names and the verb: `a is`, `a and b are`, `a, b, ... are`."""
    if len(names) > MOST_LISTED:
        return f"{', '.join(names[:MOST_LISTED])} and {len(names) - MOST_LISTED} more are"
    first = ", ".join(names[:-1])
    return f"{first} and {names[-1]} are" if first else f"{names[-1]} is"


# -- The callback ------------------------------------------------------------------------------


def new_sums() -> Sums:
    """Return the sums of no rollouts."""
    return {"run": dict.fromkeys(COUNTS, 0.0)}


def new_memory() -> dict[str, Any]:
    """Return the memory of a new run: told keys, and sums."""
    return {
        "told": [],
        "whole": new_sums(),
        "window": new_sums(),
        "windows": [],
        "constants": {},
        "kls": [],
    }


def restored(saved: object) -> dict[str, Any]:
    """Return the memory of a save, that of a new run if it is none; files may contain anything."""
    memory = new_memory()
    if isinstance(saved, dict):
        saved = {"kls": [], **saved}  # saves of earlier releases have none
    if not isinstance(saved, dict) or saved.keys() != memory.keys():
        return memory
    told, windows, kls = saved["told"], saved["windows"], saved["kls"]
    if not all(isinstance(kept, list) for kept in (told, windows, kls)):
        return memory
    are_valid = all(isinstance(key, str) for key in told) and len(windows) <= PATIENCE
    are_valid &= len(kls) <= KEPT_KLS and _are_numbers({"kls": dict(enumerate(kls))})
    of_runs = (saved["whole"], saved["window"], *windows)
    are_valid &= all(_are_numbers(sums) for sums in (*of_runs, saved["constants"]))
    are_valid = are_valid and all(sums.get("run", {}).keys() >= {*COUNTS} for sums in of_runs)
    return saved if are_valid else memory


def _are_numbers(saved: object) -> bool:
    """Return True for finite numbers by kind and name."""
    if not isinstance(saved, dict) or not all(isinstance(part, dict) for part in saved.values()):
        return False
    numbers = [x for part in saved.values() for x in part.values()]
    return all(type(x) in (int, float) and math.isfinite(x) for x in numbers)


class Notices(Callback):
    """Tells once for each sign of it that a run does not learn, and writes a row about it.

    Args:
        state: state of the run.
        write: writes a notice beside the metrics: step, key, text and page.
        say: prints a line.
        spans: timers of the run.
        num_sides: number of sides of a match, 1 for an environment.
        group: processes of the run.
        obs_space: as the environments say it, with the features that are constant on purpose; by
            default that of the state.
        newest_save: returns the newest save that is no later than a step, if one is left.
    """

    def __init__(
        self,
        state: State,
        write: Callable[[int, str, str, str], None],
        say: Callable[[str], None],
        spans: Spans,
        num_sides: int = 1,
        group: Group = ALONE,
        obs_space: ObsSpace | None = None,
        newest_save: Callable[[float], Path | None] = lambda step: None,
    ) -> None:
        self._memory = state.memory[NOTICES] = restored(state.memory.get(NOTICES))
        self._write, self._say, self._spans = write, say, spans
        self._num_sides, self._group = num_sides, group
        self._obs_space = state.obs_space if obs_space is None else obs_space
        self._newest_save = newest_save
        self._rollout: Rollout | None = None

    def on_update_start(self, trainer: RunningTrainer) -> None:
        """Free the rollout of an update that failed."""
        self._rollout = None

    def on_rollout_end(self, trainer: RunningTrainer, rollout: Rollout) -> None:
        """Keep the rollout until the end of the update."""
        self._rollout = rollout

    def on_update_end(self, trainer: RunningTrainer, metrics: dict[str, float]) -> None:
        """Add the rollout to the sums, and tell the notices of a window that is complete."""
        rollout, state, memory = self._rollout, trainer.state, self._memory
        assert rollout is not None
        self._rollout = None  # its memory is needed for the next one
        with self._spans.span("track"):
            # Sums of the rollout and of the metrics.
            sums = run_sums(rollout)
            explained = metrics.get("losses/explained_variance", math.nan)
            if math.isfinite(explained):
                sums["run"] |= {"explained.sum": float(explained), "explained.count": 1.0}
            if is_examined(state.step - rollout.num_frames, rollout.num_frames):
                about = state.action_space, state.obs_space, memory["constants"]
                own = [shard_sums(one, *about) for one in rollout.of_shards]
                of_shards = self._group.gather_shards(own, "notices")
                for of_shard, _ in of_shards:
                    add_sums(sums, of_shard)
                memory["constants"] = common_constants([constants for _, constants in of_shards])
            total = trainer.config.total_timesteps
            late_frames = late_part(state.step, rollout.num_frames, total)
            if not late_frames:  # a run that now goes on for longer has its last fifth ahead
                forget_late(memory["whole"])
            of_update = update_sums(metrics, [*state.action_space], late_frames)
            add_sums(sums, {"run": of_update.pop("run")})
            of_run = {kind: sums[kind] for kind in ("run", "actors")}
            add_sums(memory["whole"], {**of_run, **of_update})
            add_sums(memory["window"], sums)

            # Notices of this update.
            config, kl = trainer.config, float(metrics.get("losses/approx_kl", math.nan))
            self._tell(state.step, notices_of_kl(kl, memory["kls"], config))
            if math.isfinite(kl):
                memory["kls"] = [*memory["kls"], kl][-KEPT_KLS:]
            if self._num_sides == 1:
                self._tell(state.step, notices_of_late_entropy(memory["whole"], config))

            # Notices of a complete window.
            window = memory["window"]["run"]
            least = window_frames(config.total_timesteps)
            if window["frames"] < least or window["updates"] < LEAST_UPDATES:
                return
            note_best(memory["whole"], memory["window"], state.step)
            memory["windows"] = [*memory["windows"], memory["window"]][-PATIENCE:]
            memory["window"] = new_sums()
            spaces = self._obs_space, state.action_space
            rounds = state.part(RunRounds) or RunRounds()
            self._tell(state.step, notices(memory, *spaces, self._num_sides, rounds))
            self._tell(state.step, self._notices_of_learning(config))

    def _notices_of_learning(self, config: TrainConfig) -> Iterator[Notice]:
        """Yield notices of the latest windows that depend on settings."""
        whole, windows = self._memory["whole"], self._memory["windows"]
        if len(windows) >= FACT_WINDOWS:
            yield from notices_of_steps(windows[-FACT_WINDOWS:], config)
            yield from notices_of_reach(windows[-FACT_WINDOWS:], whole, config)
        if self._num_sides == 1:
            save = self._newest_save(whole.get("held", {}).get("step", 0.0))
            held = f"{save} is from before" if save else "no save is left from before"
            yield from notices_of_collapse(windows, whole, config, held)

    def _tell(self, step: int, found: Iterator[Notice]) -> None:
        """Write and print the notices that were not told before."""
        for notice in found:
            if notice.key not in self._memory["told"]:
                self._memory["told"].append(notice.key)
                self._write(step, notice.key, notice.text, notice.page)
                self._say(f"notice: {notice.text}; see {notice.page}")


def notices(
    memory: Mapping[str, Any],
    obs_space: ObsSpace,
    action_space: Mapping[str, ActionSpace],
    num_sides: int = 1,
    rounds: RunRounds | None = None,
) -> Iterator[Notice]:
    """Yield all notices of the latest windows, also those that were told.

    One side of a match wins what another one loses, and one policy plays all of them: a mean return
    that does not rise is no sign of anything.
    """
    whole, windows = memory["whole"], memory["windows"]
    if len(windows) >= FACT_WINDOWS:
        yield from notices_of_rewards(windows, whole)
        yield from notices_of_episodes(windows, whole)
        yield from notices_of_rounds(windows, rounds or RunRounds())
        yield from notices_of_actors(whole)
    if num_sides > 1:
        return
    labels = {name: space.labels for name, space in action_space.items()}
    yield from notices_of_choices(windows, whole, labels)
    yield from notices_of_values(windows, whole)
    if nothing_learnt(windows, whole):
        yield from notices_of_actions(whole)
        yield from notices_of_features(memory["constants"], obs_space, whole["run"]["examined"])
