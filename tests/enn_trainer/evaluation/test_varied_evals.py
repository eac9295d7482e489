"""Evaluations with varying arguments, and evaluations of runs with varying arguments."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from enn_trainer import ConfigError, StateManager
from enn_trainer.cli import run
from enn_trainer.cli.by_value import draw_by_value, groups_by_value
from enn_trainer.evaluation.eval_metrics import EpisodeResult
from enn_trainer.evaluation.evaluation import SuiteResult
from enn_trainer.run.trainer import Trainer
from enn_trainer.viewer.replay_format import read_replay
from entity_env.recording.read_recording import Recording
from entity_env.seeding import derive_seed
from entity_env.vec.variation import Variation
from tests.enn_trainer.evaluation import sized
from tests.enn_trainer.evaluation.sized import Sized
from tests.enn_trainer.one_line import refused

SETTINGS = [
    "rollout.num_envs=2",
    "rollout.steps=8",
    "rollout.processes=1",
    "optim.bs=16",
    "net.d_model=8",
    "net.n_layer=1",
    "eval.episodes=8",
    "eval.interval=16",
    "eval.num_envs=4",
    "total_timesteps=32",
    "cuda=false",
]
INT = "int 0 1000"


def evaluations(folder: Path, *settings: str) -> list[dict[str, float]]:
    """Return the scalars of the evaluations of a run."""
    manager = StateManager(checkpoint_dir=folder, overrides=[*SETTINGS, *settings])
    with Trainer(manager, Sized) as trainer:
        first = trainer.evaluate()
        trainer.run()
        return [first, trainer.evaluate()]


def returns_of(scalars: Mapping[str, float], suite: str = "") -> tuple[float, float]:
    """Return mean and highest return."""
    tag = f"eval/{suite}episodic_reward"
    return scalars[f"{tag}.mean"], scalars[f"{tag}.max"]


def test_arguments_of_training_do_not_change_evaluations(tmp_path: Path) -> None:
    fixed = evaluations(tmp_path / "fixed")
    varied = evaluations(tmp_path / "varied", f'env.vary.size="{INT}"')
    assert [returns_of(one) for one in [*fixed, *varied]] == [(5.0, 5.0)] * 4


@pytest.mark.slow
@pytest.mark.parametrize("processes", [1, 2])
def test_arguments_of_evaluations_are_drawn_from_their_seed(tmp_path: Path, processes: int) -> None:
    folder = tmp_path / "run"
    first, last = evaluations(folder, f'eval.env.vary.size="{INT}"', f"eval.processes={processes}")
    drawn = [
        Variation.of({"size": INT}).arguments(derive_seed(1, "eval"), match, episode)["size"]
        for match in range(4)
        for episode in range(2)
    ]
    assert returns_of(first) == returns_of(last) == (sum(drawn) / 8, max(drawn))


def test_suite_overrides_varying_arguments_of_eval_env(tmp_path: Path) -> None:
    suites: dict[str, Any] = {
        "fixed": {"env": {"kwargs": '{"size": 7}'}},
        "moved": {"env": {"vary": {"offset": "2000"}}},
    }
    vary = f'eval.env.vary.size="{INT}"'
    first, last = evaluations(tmp_path, vary, f"eval.suites={json.dumps(suites)}")
    assert first == last
    assert returns_of(first, "fixed/") == (7.0, 7.0)
    mean, highest = returns_of(first)
    assert returns_of(first, "moved/") == (mean + 2000, highest + 2000)


def test_arguments_that_cannot_vary_are_rejected_by_name(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"eval\.env\.vary: .*did you mean size"):
        evaluations(tmp_path, 'eval.env.vary.sizes="int 0 9"')
    both = '{"s": {"env": {"vary": {"size": "1"}, "kwargs": "{\\"size\\": 7}"}}}'
    with pytest.raises(ConfigError, match=r"eval\.suites\['s'\]\.env\.vary: .* got size"):
        evaluations(tmp_path, f"eval.suites={both}")


def test_arguments_are_checked_before_the_first_update(tmp_path: Path) -> None:
    late = [*SETTINGS, "eval.run_on_first_step=false", f"data_dir={tmp_path}"]
    for section in ("eval.env", "eval.suites.s.env"):
        manager = StateManager(overrides=[*late, f'{section}.vary.sizes="int 0 9"'])
        with pytest.raises(ConfigError, match=r"env\.vary: .*did you mean size"):
            Trainer(manager, Sized)


def test_eval_command_draws_arguments(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    evaluations(tmp_path / "run", f'env.vary.size="{INT}"')
    world = f"{sized.__file__}:Sized"
    command = ["eval", str(tmp_path / "run"), "--env", world, "--episodes", "8", "--num-envs", "4"]

    def report(*options: str) -> tuple[float, float]:
        out = tmp_path / "report.json"
        assert run([*command, "--out", str(out), *options]) == 0
        suite = json.loads(out.read_text())["suites"][""]
        metric = suite["metrics"]["episodic_reward"]
        return metric["mean"], metric["max"]

    assert report() == (5.0, 5.0)
    mean, highest = report("--vary", f"size={INT}")
    assert mean != 5.0
    assert highest > 9
    assert "--vary: expected NAME=SAMPLER" in refused([*command, "--vary", "size"], capsys)


DRAWN = ["--vary", "size=int 0 3", 'mode=choice "a" "b"']


class Moded(Sized):
    """Pays its size, and half of it in mode b."""

    def __init__(self, size: int = 5, mode: str = "a") -> None:
        super().__init__(size)
        self.mode = mode

    def set_parameters(self, size: int = 5, mode: str = "a") -> None:  # type: ignore[override]
        self.size, self.offset = size, -size // 2 if mode == "b" else 0


@pytest.fixture(scope="module")
def moded_run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the folder of a run."""
    folder = tmp_path_factory.mktemp("moded") / "run"
    with Trainer(StateManager(checkpoint_dir=folder, overrides=SETTINGS), Moded) as trainer:
        trainer.run()
    return folder


def evaluated(run_folder: Path, out: Path, *options: str, size: str = "int 0 3") -> dict[str, Any]:
    """Return the report of `enn eval` on two arguments that vary."""
    world = ["--env", f"{__file__}:Moded", "--num-envs", "4", "--out", str(out)]
    vary = ["--vary", f"size={size}", 'mode=choice "a" "b"']
    assert run(["eval", str(run_folder), *world, "--episodes", "64", *vary, *options]) == 0
    report: dict[str, Any] = json.loads(out.read_text())
    return report


def test_returns_are_compared_by_the_value_of_an_argument(
    moded_run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    report = evaluated(moded_run, tmp_path / "1.json", "--by", "size", "--baseline", "random")
    shown = capsys.readouterr().out
    assert [*report["suites"]] == ["", "random"]
    found = report["suites"][""]["by"]
    assert report["suites"]["random"]["by"] == found  # choices do not matter in this world
    assert (found["argument"], [g["value"] for g in found["values"]]) == ("size", [0, 1, 2, 3])
    assert sum(group["count"] for group in found["values"]) == len(found["episodes"]) == 64
    for group in found["values"]:
        own = [e for e in found["episodes"] if e["arguments"]["size"] == group["value"]]
        returns = [e["metrics"]["episodic_reward"] for e in own]
        assert (group["min"], group["max"]) == (min(returns), max(returns))
        assert group["mean"] == pytest.approx(sum(returns) / len(returns))
        assert (group["ci95"] > 0) == (len({*returns}) > 1)
        assert f"{group['mean']:.4g} ± {group['ci95']:.3g}" in shown


@pytest.mark.slow
def test_report_lists_episode_arguments_worst_first(moded_run: Path, tmp_path: Path) -> None:
    report = evaluated(moded_run, tmp_path / "1.json", "--by", "size", "--processes", "2")
    episodes = report["suites"][""]["by"]["episodes"]
    variation = Variation.of({"size": "int 0 3", "mode": 'choice "a" "b"'})
    seed = derive_seed(report["seed"], "eval")
    for episode in episodes:
        place = episode["environment"], episode["episode"]
        assert episode["arguments"] == variation.arguments(seed, *place)
        expected = Moded()
        expected.set_parameters(**episode["arguments"])
        assert episode["metrics"]["episodic_reward"] == expected.size + expected.offset
        assert episode["metrics"]["episode_length"] == 1
    returns = [e["metrics"]["episodic_reward"] for e in episodes]
    assert returns == sorted(returns)
    assert len({(e["environment"], e["episode"]) for e in episodes}) == 64


def test_non_numeric_argument_values_are_compared_and_plotted(
    moded_run: Path, tmp_path: Path
) -> None:
    picture = tmp_path / "modes.png"
    report = evaluated(moded_run, tmp_path / "1.json", "--by", "mode", "--png", str(picture))
    assert [g["value"] for g in report["suites"][""]["by"]["values"]] == ["a", "b"]
    assert picture.read_bytes().startswith(b"\x89PNG")


def test_argument_values_have_unique_literal_labels(tmp_path: Path) -> None:
    values = [True, "true", 1, "1", "", r"$\q$"]
    episodes = [
        EpisodeResult(0, i, {"x": v}, {"episodic_reward": 1.0}) for i, v in enumerate(values)
    ]
    labels = ["1", '""', r'"$\\q$"', '"1"', '"true"', "true"]
    assert [group.label for group in groups_by_value(episodes, "x")] == labels
    assert [group.label for group in groups_by_value(episodes[3:4], "x")] == ["1"]
    results = {name: SuiteResult({}, 6, 0, 1, played=episodes) for name in (r"$\s$", "b")}
    draw_by_value(results, "x", "", tmp_path / "x.png")
    assert (tmp_path / "x.png").stat().st_size > 1000


def test_many_numbers_are_compared_in_ten_bins(moded_run: Path, tmp_path: Path) -> None:
    picture = tmp_path / "sizes.png"
    options = ["--by", "size", "--png", str(picture)]
    report = evaluated(moded_run, tmp_path / "1.json", *options, size="int 0 100000")
    bins = report["suites"][""]["by"]["values"]
    assert len(bins) == 10
    assert {g["count"] for g in bins} == {6, 7}
    edges = [edge for group in bins for edge in (group["low"], group["high"])]
    assert edges == sorted(edges)
    assert picture.stat().st_size > 1000


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        (["--by", "sizes"], "--by: expected an argument of --vary (size, mode), got sizes, did"),
        (["--png", "a.png"], "--png: expected --by NAME as well"),
        (["--by", "size", "--png", "a.jpg"], "--png: expected a file named .png, got a.jpg"),
        (["--vary", "size=1"], "--vary: expected different arguments, got size twice"),
        (["--vary", "x=int 9 1"], "--vary x: character 7: expected a bound of at least 9"),
        (["--by", "size", "--png", "no/a.png"], "--png: expected a file in a folder to write to"),
    ],
)
def test_invalid_comparisons_are_rejected(
    options: list[str], problem: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert problem in refused(["eval", "runs/none", *options, *DRAWN], capsys)


def test_a_comparison_needs_an_argument_that_varies(capsys: pytest.CaptureFixture[str]) -> None:
    line = refused(["eval", "runs/none", "--by", "size"], capsys)
    assert "--by: expected an argument of --vary (none), got size; add --vary" in line


def test_recordings_and_replays_store_arguments(moded_run: Path, tmp_path: Path) -> None:
    page = tmp_path / "page.html"
    report = evaluated(moded_run, tmp_path / "1.json", "--by", "size", "--replay", str(page))
    by = report["suites"][""]["by"]["episodes"]
    first = next(e for e in by if (e["environment"], e["episode"]) == (0, 0))["arguments"]
    facts = read_replay(page).about
    assert facts["arguments, episode 1"] == f"mode='{first['mode']}', size={first['size']}"
    assert "arguments, episode 3" in facts

    settings = ["eval.capture_samples=evals.rec", f'eval.env.vary.size="{INT}"']
    evaluations(tmp_path / "run", *settings)
    episodes = [*Recording.open(tmp_path / "run/evals.rec").episodes()]
    for one in episodes:
        if one.ending == "terminated":
            assert one.episodic_reward == one.parameters["size"]
    assert len(episodes) > 16


def test_unknown_environment_arguments_are_rejected_by_name(
    moded_run: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    command = ["eval", str(moded_run), "--env", f"{__file__}:Moded"]
    line = refused([*command, "--vary", "sizes=1"], capsys)
    assert line.startswith("error: --vary: expected an argument of Moded")
    assert "did you mean size" in line
    line = refused([*command, "size=3", "--vary", "size=1"], capsys)
    assert line.startswith("error: --vary: expected arguments that are not in kwargs, got size")


@given(
    st.lists(st.one_of(st.integers(-30, 30), st.floats(-3, 3), st.booleans(), st.text(max_size=2)))
)
def test_groups_by_value_partition_the_episodes(values: list[Any]) -> None:
    episodes = [
        EpisodeResult(i, 0, {"x": value}, {"episodic_reward": float(i)})
        for i, value in enumerate(values)
    ]
    groups = groups_by_value(episodes, "x")
    assert sum(group.result.count for group in groups) == len(values)
    numbers = [value for value in values if type(value) in (int, float)]
    of_numbers = [group for group in groups if group.centre is not None]
    is_binned = len({*numbers}) > 20
    assert len(of_numbers) == len({*numbers}) if not is_binned else len(of_numbers) <= 10
    edges = [g.fields[name] for g in of_numbers for name in g.fields]
    assert edges == sorted(edges)
    for group in of_numbers:  # all episodes of one number are in one group
        low, high = (group.fields.get(name, group.fields.get("value")) for name in ("low", "high"))
        assert group.result.count == sum(low <= number <= high for number in numbers)
