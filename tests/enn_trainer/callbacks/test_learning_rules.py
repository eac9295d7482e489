"""Rules of learning diagnostics: each with the sign and without."""

import json
import math
import re
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from enn_trainer import Callback, StateManager, TrainConfig, train
from enn_trainer.callbacks import learning_diagnostics, learning_rules
from enn_trainer.callbacks.learning_diagnostics import LEAST_WINDOW, WINDOWS_OF_RUN
from enn_trainer.callbacks.learning_rules import (
    PAGE,
    Notice,
    choices_given_up,
    constant_features,
    constant_returns,
    large_gradients,
    large_step,
    means_unmoved,
    return_lost,
    undecided_policy,
    unexplained_values,
    unreachable_returns,
)
from enn_trainer.callbacks.learning_sums import (
    PATIENCE,
    Evidence,
    Sums,
    new_sums,
    record_best,
    total_of,
)
from enn_trainer.config.load import load_config
from entity_env import (
    CategoricalActionSpace,
    ContinuousActionSpace,
    Entity,
    Flag,
    Kind,
    ObsSpace,
)

ROOT = Path(__file__).parents[3]


def config(*overrides: str) -> TrainConfig:
    return load_config(TrainConfig, None, overrides)


def test_the_page_explains_every_notice() -> None:
    """Each notice has a heading; its anchor is in the source of the module."""
    text = Path(learning_rules.__file__).read_text()
    anchors = set(re.findall(r'^ +"([a-z]+(?:-[a-z]+){2,})",$', text, re.MULTILINE))
    headings = re.findall(r"^#+ (.*)$", (ROOT / PAGE).read_text(), re.MULTILINE)
    slugs = {re.sub(r"[^\w -]", "", heading.lower()).replace(" ", "-") for heading in headings}
    assert len(anchors) == 14
    assert anchors <= slugs


# -- A return that does not rise -------------------------------------------------------------------


def window(mean: float, explained: float, selected: int = 500) -> Sums:
    """Sums of a window of episodes of 10 steps, with the number of times that `c` was taken."""
    return {
        "run": {
            **new_sums()["run"],
            **{"frames": 5000.0, "examined": 5000.0, "episodes": 500.0, "return.sum": 500 * mean},
            **{
                "updates": 5.0,
                "length.sum": 5000.0,
                "explained.sum": 10 * explained,
                "explained.count": 10.0,
            },
        },
        "actors": {"do": 5000.0},
        "policy/do": {"choosing": 5000.0, "entropy": 5000 * math.log(2)},
        "chance/do": dict.fromkeys("abc", 5000 / 3),
        "taken/do": {"a": 2500.0 - selected, "b": 2500.0, "c": float(selected)},
    }


def evidence_of(
    windows: list[Sums], first: float = 0.0, best: float = 1.0, **fields: Any
) -> Evidence:
    """Evidence of windows, after a first one with this return."""
    whole = total_of(windows)
    whole["run"] |= {"return.min": -1.0, "return.max": best}
    whole["first"] = {"return": first}
    actions = {"do": CategoricalActionSpace(list("abc"))}
    return Evidence(config(), whole, windows, action_space=actions, **fields)


def noticed(windows: list[Sums], first: float = 0.0, best: float = 1.0) -> set[str]:
    """The keys of the notices of windows, after a first one with this return."""
    evidence = evidence_of(windows, first, best)
    notices: list[Notice] = [*choices_given_up(evidence), *unexplained_values(evidence)]
    return {notice.key for notice in notices}


FAULTY = [window(0.0, 0.0, 20)] * PATIENCE
ALL = {"choice/do", "entropy/do", "explained"}


@pytest.mark.parametrize(
    ("windows", "expected"),
    [
        (FAULTY, ALL),
        (FAULTY[1:], set()),  # too early
        ([window(-0.5, 0.0, 20), *FAULTY[1:]], set()),  # the return rises
        ([window(0.9, 0.0, 20)] * PATIENCE, {"entropy/do"}),  # hardly anything is left
        ([*FAULTY[1:], window(0.0, 0.3, 20)], ALL - {"explained"}),
        ([*FAULTY[1:], window(0.0, 0.0, 500)], {"explained"}),  # taken again
    ],
)
def test_signs_must_persist_while_the_return_is_flat(
    windows: list[Sums], expected: set[str]
) -> None:
    assert noticed(windows) == expected


@pytest.mark.parametrize("entropy", [0.5, 0.1])
def test_a_policy_that_depends_on_the_frame_has_no_entropy_of_fewer_choices(entropy: float) -> None:
    """And may do without a choice, once it has learnt something and knows what comes of it."""
    windows = [window(0.0, 0.5, 20) for _ in range(PATIENCE)]
    for entry in windows:
        entry["policy/do"] = {"choosing": 5000.0, "entropy": 5000 * entropy}
    assert noticed(windows) == {"choice/do"}
    assert noticed(windows, first=-0.5) == set()
    for entry in windows:
        entry["run"]["explained.sum"] = 0.0
    assert noticed(windows, first=-0.5) == {"choice/do", "explained"}
    assert noticed(FAULTY, first=-0.5) == ALL


def test_constant_choice_is_reported_as_given_up_but_not_as_random() -> None:
    windows = [window(0.0, 0.5, 0)] * PATIENCE
    for entry in windows:
        entry["policy/do"] = {"choosing": 5000.0, "entropy": 0.0}
        entry["taken/do"] = {"a": 5000.0, "b": 0.0, "c": 0.0}
    assert noticed(windows, first=-0.5) == {"choice/do"}


@pytest.mark.parametrize(
    ("explained", "expected"), [(-1.0, {"choice/do", "entropy/do"}), (-0.05, {"entropy/do"})]
)
def test_choice_given_up_at_the_best_return_is_reported_if_values_are_misled(
    explained: float, expected: set[str]
) -> None:
    windows = [window(0.0, explained, 2)] * PATIENCE
    assert noticed(windows, first=-1.0, best=0.0) == expected
    for entry in windows:
        entry["policy/do"] = {"choosing": 5000.0, "entropy": 0.0}  # knows what to do, and is right
    assert noticed(windows, first=-1.0, best=0.0) == set()


def test_episodes_of_several_windows_are_counted_together() -> None:
    """A cautious policy may have few finished episodes in each window."""

    def of_episodes(numbers: list[int]) -> list[Sums]:
        runs = ({"episodes": n, "length.sum": 100.0 * n, "return.sum": 0.0} for n in numbers)
        return [{**w, "run": {**w["run"], **run}} for w, run in zip(FAULTY, runs, strict=True)]

    assert noticed(of_episodes([5, 34, 84, 11, 18, 95, 0, 7])) == ALL
    assert noticed(of_episodes([5, 34, 84, 11, 7, 18, 7, 7])) == set()


def test_equal_returns_are_reported_once_they_persist() -> None:
    for num in range(1, PATIENCE + 1):
        windows = [window(-1.0, 0.0)] * num
        output = [notice.key for notice in constant_returns(evidence_of(windows, best=-1.0))]
        assert output == (["return"] if num == PATIENCE else [])


CURVES = ROOT / "benchmarks/results/learning.jsonl"


def test_no_committed_learning_curve_is_stuck_at_its_start() -> None:
    """Includes configurations that train too long for a test.

    Excludes matches, where the mean return of all sides carries no information.
    """
    rows = [json.loads(line) for line in CURVES.read_text().splitlines()]
    rows = [row for row in rows if row.get("sides", 1) == 1 and "without" not in row["row"]]
    rows = [row for row in rows if "curve" in row]
    assert len(rows) > 20
    for row in rows:
        curve = row["curve"]
        length = max(row.get("planned", curve[-1][0]) / WINDOWS_OF_RUN, LEAST_WINDOW)
        returns = [mean for _, mean in curve]
        whole: Sums = {"run": {"return.min": min(returns), "return.max": max(1.0, *returns)}}
        windows: dict[int, list[float]] = {}
        for step, mean in curve:
            windows.setdefault(int((step - 1) // length), []).append(mean)
        sums = [window(sum(means) / len(means), 0.0) for means in windows.values()]
        whole["first"] = {"return": sums[0]["run"]["return.sum"] / sums[0]["run"]["episodes"]}
        for end in range(PATIENCE, len(sums) + 1):
            evidence = Evidence(config(), whole, sums[end - PATIENCE : end])
            assert not evidence.nothing_learnt


def test_no_committed_run_that_learns_has_a_notice(benchmark: Any) -> None:
    controls = {row.name for row in benchmark("learning").ROWS if row.control}
    rows = [json.loads(line) for line in CURVES.read_text().splitlines()]
    assert controls < {row["row"] for row in rows}
    learner_runs = [row for row in rows if row["row"] not in controls]
    assert [row["row"] for row in learner_runs if row.get("notices")] == []


def test_values_of_episodes_of_one_step_may_explain_nothing() -> None:
    windows = [{**entry, "run": {**entry["run"], "length.sum": 500.0}} for entry in FAULTY]
    assert noticed(windows) == ALL - {"explained"}


@pytest.mark.parametrize(
    ("mean", "spread", "return_", "is_reported"),
    [
        (0.1, 1.0, 0.0, True),
        (-0.4, 0.5, 0.0, True),  # concentrated where it began
        (0.6, 1.0, 0.0, False),
        (0.0, 1.5, 0.0, False),  # the mean depends on the frame
        (0.1, 1.0, 0.9, False),  # learned
    ],
)
def test_mean_that_has_not_moved_is_reported(
    mean: float, spread: float, return_: float, is_reported: bool
) -> None:
    count = 1000.0
    numbers = {
        "numbers/fly": {"gas": count, "steer": count},
        "shift/fly": {"gas": count * mean, "steer": count},
        "square/fly": {"gas": count * (mean**2 + spread**2), "steer": 2 * count},
    }
    windows = [{**window(return_, 0.5), **numbers}] * PATIENCE
    space = ContinuousActionSpace({"gas": (0, 100), "steer": (-1, 1)}, start={"gas": 20})
    evidence = replace(evidence_of(windows), action_space={"fly": space})
    texts = [notice.text for notice in means_unmoved(evidence)]
    assert len(texts) == is_reported
    for text in texts:
        assert "fly: the mean of gas has not moved from its initial value (20)" in text
        assert 'start={"gas": ...}' in text
    few = {kind: {name: x / 11 for name, x in sums.items()} for kind, sums in numbers.items()}
    windows = [{**window(return_, 0.5), **few}] * PATIENCE
    assert not [*means_unmoved(replace(evidence, whole=total_of(windows), windows=windows))]


def test_choices_that_are_hardly_legal_are_not_judged() -> None:
    windows = [{**entry, "chance/do": {"a": 2500.0, "b": 2500.0, "c": 40.0}} for entry in FAULTY]
    assert noticed(windows) == {"explained"}


def test_labels_that_never_vary_are_named() -> None:
    space = ObsSpace([Flag("wet")], {"Key": Entity(["x", Kind("color", ["red", "blue"])])})
    constants: Sums = {"Key": {"x": 0.5, "color": 1}, "__global__": {"wet": 0}}
    evidence = evidence_of(FAULTY, constants=constants, obs_space=space)
    texts = [notice.text for notice in constant_features(evidence)]
    assert [text.partition(" constant")[0] for text in texts] == [
        "Key: x and color are",
        "global features: wet is",
    ]
    assert "(0.5, blue)" in texts[0]
    assert "(False)" in texts[1]
    constants["Key"] = {"color": 7}  # of a save from before a label was removed
    [notice] = constant_features(evidence)
    assert notice.key == "feature/__global__"


# -- Updates that go wrong -------------------------------------------------------------------------


def window_of_updates(**numbers: float) -> Sums:
    """Sums of a window of ten updates."""
    run = {"updates": 10.0, "frames": 5120.0, "explained.count": 10.0}
    return {
        "run": {**new_sums()["run"], **run, **{k.replace("_", "."): x for k, x in numbers.items()}}
    }


@pytest.mark.parametrize(
    ("kl", "before", "is_told"),
    [
        (0.57, [0.01] * 8, True),
        (0.57, [0.01] * 7, False),  # the median is not known
        (0.57, [0.01] * 5 + [0.06] * 27, False),
        (0.04, [0.001] * 20, False),  # small by itself
        (0.05, [0.0] * 20, True),
        (math.nan, [0.01] * 8, False),
    ],
)
def test_update_with_a_tenfold_kl_is_reported(
    kl: float, before: list[float], is_told: bool
) -> None:
    result = [*large_step(Evidence(config(), new_sums(), [], kl=kl, kls=before))]
    assert [notice.key for notice in result] == ["kl"] * is_told
    assert all("ppo.target_kl=0.03" in notice.text for notice in result)


def test_target_kl_suggests_a_smaller_learning_rate() -> None:
    limited = config("ppo.target_kl=0.03", "optim.lr=0.004")
    (notice,) = large_step(Evidence(limited, new_sums(), [], kl=0.5, kls=[0.01] * 8))
    assert "optim.lr=0.001" in notice.text


@pytest.mark.parametrize(("large", "is_told"), [(5.1, True), (5.0, False)])
def test_large_gradients_in_most_steps_are_reported(large: float, is_told: bool) -> None:
    windows = [window_of_updates(steep_sum=large, norm_sum=999.0)]
    result = [*large_gradients(Evidence(config(), new_sums(), windows))]
    assert [notice.key for notice in result] == ["gradient"] * is_told
    assert all("99.9 on average" in notice.text for notice in result)


def test_large_gradients_suggest_a_setting_that_is_not_set() -> None:
    steep = [window_of_updates(steep_sum=9.0)]
    for settings, cure in (
        (["ppo.value_norm=false"], "ppo.value_norm=true"),
        ([], "ppo.vf_coef=0.05"),
    ):
        (notice,) = large_gradients(Evidence(config(*settings), new_sums(), steep))
        assert cure in notice.text


_CLIPPED = ["ppo.value_norm=false", "ppo.clip_vloss=true"]


@pytest.mark.parametrize(
    ("settings", "explained", "target", "is_told"),
    [
        (_CLIPPED, 0.0, -100.0, True),
        (_CLIPPED, 0.0, 100.0, True),
        (_CLIPPED, 0.0, 1.9, False),  # 10 updates of .2 reach it
        (_CLIPPED, 0.06, -100.0, False),
        ([*_CLIPPED, "ppo.vf_clip_coef=20"], 0.0, -100.0, False),
        (["ppo.value_norm=false"], 0.0, -100.0, False),
        (["ppo.clip_vloss=true"], 0.0, -100.0, False),
    ],
)
def test_clipped_values_that_cannot_reach_the_returns_are_reported(
    settings: list[str], explained: float, target: float, is_told: bool
) -> None:
    sums = window_of_updates(target_sum=10 * target, explained_sum=10 * explained)
    result = [*unreachable_returns(Evidence(config(*settings), sums, [sums]))]
    assert [notice.key for notice in result] == ["reach"] * is_told


@pytest.mark.parametrize(
    ("share", "frames", "settings", "is_told"),
    [
        (0.81, 10_000, [], True),
        (0.79, 10_000, [], False),
        (0.81, 9_999, [], False),  # the first half of the last fifth
        (0.81, 10_000, ['ppo.ent_targets={"do": 0.9}'], False),
    ],
)
def test_undecided_policy_at_the_end_is_reported(
    share: float, frames: int, settings: list[str], is_told: bool
) -> None:
    whole: Sums = {"run": {}, "late/do": {"share.sum": share * frames, "frames": frames}}
    late = config("total_timesteps=100000", *settings)
    result = [*undecided_policy(Evidence(late, whole, []))]
    assert [notice.key for notice in result] == ["late/do"] * is_told
    assert all("ppo.ent_coef=0.02" in notice.text for notice in result)


def told_steps(returns: list[float], spread: float = 1.0, episodes: float = 20.0) -> list[int]:
    """Return the windows, from 1, after which a collapse is reported."""
    whole: Sums = {"run": {"return.min": 0.0, "return.max": spread}}
    windows: list[Sums] = []
    steps = []
    for i, mean in enumerate(returns, start=1):
        windows.append(window_of_updates(return_sum=mean * episodes, episodes=episodes))
        record_best(whole, windows[-1], step=i)
        if [*return_lost(Evidence(config(), whole, windows))]:
            steps.append(i)
    return steps


def test_collapse_of_two_windows_is_reported() -> None:
    assert told_steps([0.1, 0.5, 0.98, 0.97, 0.5, 0.5, 0.5]) == [6, 7]


@pytest.mark.parametrize(
    "returns",
    [
        [0.1, 0.5, 0.98, 0.6, 0.98, 0.3, 0.98],  # one window is no collapse
        [0.1, 0.98, 0.6, 0.6, 0.6],  # less than half is lost
        [0.9, 0.98, 0.8, 0.8, 0.8],  # less than the luck of episodes
        [0.5, 0.1, 0.1, 0.1],  # nothing was learnt, but much is lost from the first window on
    ][:3],
)
def test_noisy_returns_are_not_a_collapse(returns: list[float]) -> None:
    assert told_steps(returns) == []


def test_windows_with_few_episodes_are_not_judged() -> None:
    assert told_steps([0.1, 0.98, 0.0, 0.0], episodes=9.0) == []


class Forgets(Callback):
    """Makes all weights of the network random after two thirds of a run."""

    def on_update_end(self, trainer: Any, metrics: dict[str, float]) -> None:
        if trainer.state.step == 4096:
            for parameter in trainer.state.agent.parameters():
                parameter.data.mul_(0.0)
            trainer.config.optim.lr = 0.0


@pytest.mark.slow
def test_the_newest_save_before_a_collapse_is_named(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    benchmark: Any,
) -> None:
    monkeypatch.setattr(learning_diagnostics, "LEAST_WINDOW", 512)
    settings = ["total_timesteps=6144", "rollout.num_envs=64", "rollout.steps=8", "optim.bs=64"]
    settings += ["rollout.processes=1", "optim.lr=0.01", "optim.anneal_lr=false", "ppo.ent_coef=0"]
    settings += [
        "net.d_model=16",
        "net.n_layer=1",
        "checkpoint.every_seconds=0",
        "checkpoint.keep=99",
    ]
    manager = StateManager(overrides=settings, checkpoint_dir=tmp_path / "run")
    world = partial(benchmark("symptom_worlds").Marked, shown=True)
    train(manager, world, callbacks=[Forgets()])
    (text,) = [line for line in capsys.readouterr().out.splitlines() if "has collapsed" in line]
    assert f"{tmp_path / 'run' / 'step-000000004096'} is an earlier save" in text
