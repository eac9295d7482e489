"""`enn profile`: where the time goes, for a world of one's own, in processes and without."""

import json
import re
import textwrap
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from enn_trainer import StateManager
from enn_trainer.cli import run
from enn_trainer.cli.work.profile import Kind, Part, Profile, Resources, bottleneck_advice, profile
from enn_trainer.experience.envs import env_factory
from entity_env.examples.minefield_vec import VecMinefield
from tests.enn_trainer.builders import SMALL
from tests.enn_trainer.one_line import refused

SOURCE = """
    import time
    from entity_env.examples import Xor

    class Slow(Xor):
        def __init__(self, seconds=0.004):
            super().__init__()
            self.seconds = seconds

        def act(self, actions):
            time.sleep(self.seconds)
            return super().act(actions)

    def make(seconds=0.0) -> "Slow":
        return Slow(seconds)
"""


@pytest.fixture
def file(tmp_path: Path) -> str:
    path = tmp_path / "mine.py"
    path.write_text(textwrap.dedent(SOURCE))
    return str(path)


def profiled(tmp_path: Path, *arguments: str) -> dict[str, Any]:
    path = tmp_path / "profile.json"
    assert run(["profile", *SMALL, *arguments, "--json", str(path)]) == 0
    report: dict[str, Any] = json.loads(path.read_text())
    return report


def test_json_is_the_only_output(capsys: pytest.CaptureFixture[str]) -> None:
    """Messages of the run, such as the chosen precision, go to standard error."""
    settings = ["env.id=Xor", *SMALL, "net.precision=auto", "--updates", "1", "--json"]
    assert run(["profile", *settings]) == 0
    said = capsys.readouterr()
    assert json.loads(said.out)["updates"] == 1
    assert "net.precision=float32" in said.err


@pytest.mark.alone
def test_environment_code_is_separate_and_parts_add_up(
    file: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    report = profiled(tmp_path, f"env.id={file}:Slow", "--updates", "2")
    parts = {part["name"]: part["wall_ms"] for part in report["parts"]}
    assert parts["environment code"] >= 6 * 4 * 4  # 6 environments, 4 steps of 4 ms
    assert sum(parts.values()) == pytest.approx(report["update_ms"])
    for name in (
        "batching, and transfer to the device",
        "forward while acting",
        "frames and actions",
        "values of the last frames",
        "returns and advantages",
        "gather of minibatches",
        "forward of minibatches",
        "backward of minibatches",
        "optimizer",
        "logging",
    ):
        assert 0 < parts[name] < report["update_ms"]
    assert report["updates"] == 2
    assert report["frames"] == 24
    assert report["frames_per_s"] == pytest.approx(24_000 / report["update_ms"])
    assert report["peak_mb"] > 50
    assert report["save_ms"] > 0
    out = capsys.readouterr().out
    assert "environment code" in out
    assert "% of the time is environment code" in out
    assert "make its act faster" in out


@pytest.mark.slow
def test_time_of_memory_is_separate(tmp_path: Path) -> None:
    rows = {"memory while acting", "memory of the rollout", "memory of minibatches"}
    for settings, output in ([], set()), (["net.memory=()", "ppo.seq_len=4"], rows):
        report = profiled(tmp_path, "env.id=Shells", *settings, "--updates", "2")
        parts = {part["name"]: part["wall_ms"] for part in report["parts"]}
        assert {name for name in parts if name in rows} == output
        assert all(0 < parts[name] < report["update_ms"] for name in output)
        assert sum(parts.values()) == pytest.approx(report["update_ms"])


@pytest.mark.slow
def test_workers_report_their_work(file: str, tmp_path: Path) -> None:
    report = profiled(tmp_path, f"env.id={file}:Slow", "rollout.processes=2", "--updates", "2")
    parts = {part["name"]: part["wall_ms"] for part in report["parts"]}
    workers = {part["name"]: part["core_ms"] for part in report["in_workers"]}
    assert "environment code" not in parts
    assert workers["environment code"] >= 6 * 4 * 4
    assert workers["frames, actions and messages"] >= 0
    assert parts["waiting for workers"] >= 3 * 4 * 4 * 0.5
    assert report["processes"] == 2
    assert report["workers_peak_mb"] > 10
    assert sum(parts.values()) == pytest.approx(report["update_ms"])


def test_function_and_built_in_environments_are_profiled(file: str, tmp_path: Path) -> None:
    for world in (f"env.id={file}:make", "env.id=Duel"):
        report = profiled(tmp_path, world, "--updates", "1")
        (code,) = [part for part in report["parts"] if part["name"] == "environment code"]
        assert code["wall_ms"] > 0


def test_environments_without_times_are_one_part(tmp_path: Path) -> None:
    manager = StateManager(overrides=[*SMALL, f"data_dir={tmp_path}"])
    measured = profile(manager, env_factory(VecMinefield), seconds=0.0)
    names = [part.name for part in measured.parts]
    assert "environments" in names
    assert not {"environment code", "waiting for workers"} & {*names}
    assert measured.updates == 1


def test_profile_leaves_no_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    evals = ["eval.steps=8", "eval.interval=24", "capture_samples=mine.rec"]
    assert run(["profile", "env.id=Xor", *SMALL, *evals, "--updates", "1"]) == 0
    assert list(tmp_path.iterdir()) == []
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["env.id=Xorr"], ["env.id", "Xorr", "did you mean Xor?"]),
        (["optm.lr=1"], ["optm.lr"]),
        (["--updates", "0"], ["--updates", "positive"]),
        (["--config", "nowhere.ron"], ["--config", "nowhere.ron"]),
        (["env.id=Count", 'env.kwargs={"masks": 2}'], ["env.kwargs", "masks", "masked_choices"]),
        (["env.id=Xor", *SMALL, "--updates", "1", "--json", "no/such.json"], ["no/such.json"]),
    ],
)
def test_usage_errors_print_one_line_with_status_2(
    arguments: list[str], expected: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    said = refused(["profile", *arguments], capsys)
    for word in expected:
        assert word in said


def a_profile(kind: Kind, **changes: Any) -> Profile:
    kinds: list[Kind] = ["environment", "waiting", "frames", "acting", "learning", "optimizer"]
    parts = [Part(k, k, 70.0 if k == kind else 5.0, 70.0 if k == kind else 5.0) for k in kinds]
    parts.append(Part("rest", "rest", 70.0 if kind == "rest" else 5.0, 5.0))
    resources = Resources(
        processes=changes.pop("processes", 1),
        cores=changes.pop("cores", 2),
        cores_used=1.0,
        peak_mb=1.0,
        workers_peak_mb=0.0,
        gpu_peak_mb=None,
    )
    profile = Profile(
        updates=1,
        frames=1024,
        update_ms=100.0,
        parts=parts,
        in_workers=[],
        frames_of_step=512,
        frames_of_minibatch=1024,
        entities={"Wall": 4.0, "Key": 1.0},
        most_entities=6,
        resources=resources,
        save_ms=1.0,
        saved_every_s=60.0,
    )
    return replace(profile, **changes)


def workers(world_ms: float, ours_ms: float) -> dict[str, Any]:
    parts = [Part("a", "environment", 0.0, world_ms), Part("b", "frames", 0.0, ours_ms)]
    return {"in_workers": parts, "processes": 2}


WALLS: dict[str, Any] = {"entities": {"Wall": 43.0, "Key": 1.0}}
CELLS: dict[str, Any] = {"entities": {"Cell": 400.0, "Key": 3.0}}


@pytest.mark.parametrize(
    ("measured", "expected"),
    [
        (a_profile("environment"), "rollout.processes=2 uses the other cores; make its act"),
        (a_profile("environment", cores=1), "environment code: make its act faster"),
        (a_profile("waiting", **workers(10, 10)), "mostly idle"),
        (a_profile("waiting", **workers(100, 30)), "in environment code: make its act"),
        (a_profile("waiting", **workers(30, 100)), "fewer entities"),
        (a_profile("frames"), "rollout.processes=2"),
        (a_profile("frames", frames_of_step=16), "16 at a time"),
        (a_profile("acting"), "net.d_model"),
        (a_profile("acting", frames_of_step=16), "larger rollout.num_envs"),
        (a_profile("learning"), "net.d_model"),
        (a_profile("learning", frames_of_minibatch=32), "32 frames at a time"),
        (a_profile("optimizer"), "larger optim.bs"),
        (a_profile("rest"), "larger rollouts"),
        (
            a_profile("learning", **WALLS),
            "arithmetic: show fewer entities of the type Wall, 43.0",
        ),
        (a_profile("acting", **WALLS), "type Wall, 43.0 of 44.0 in a frame"),
        (a_profile("frames", **WALLS), "show fewer entities of the type Wall"),
        (a_profile("waiting", **workers(30, 100), **WALLS), "of the type Wall"),
        (a_profile("acting", frames_of_step=16, **WALLS), "larger rollout.num_envs"),
        (a_profile("learning", frames_of_minibatch=32, **CELLS), "of the type Cell, 400.0 of 403"),
        (a_profile("learning", frames_of_minibatch=6, **CELLS), "of the type Cell"),
        (a_profile("learning", frames_of_minibatch=5, **CELLS), "5 frames at a time"),
        (a_profile("acting", frames_of_step=16, **CELLS), "of the type Cell"),
        (a_profile("frames", frames_of_step=16, **CELLS), "of the type Cell"),
        (a_profile("acting", frames_of_step=5, **CELLS), "larger rollout.num_envs"),
        (a_profile("learning", frames_of_minibatch=256), "arithmetic: try a smaller net"),
        (a_profile("learning", frames_of_minibatch=255), "255 frames at a time"),
        (
            a_profile("learning", entities={"A": 20.0, "B": 15.0, "C": 10.0}),
            "arithmetic: try",
        ),
    ],
)
def test_bottleneck_is_reported_with_advice(measured: Profile, expected: str) -> None:
    said = bottleneck_advice(measured)
    assert said.startswith("70% of the time is ")
    assert expected in said
    assert "\n" not in said


def test_entities_are_listed_by_type_and_few_entities_are_no_bottleneck(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    report = profiled(
        tmp_path, "env.id=CherryPick", 'env.kwargs={"num_cherries": 4}', "--updates", "1"
    )
    entities = report["entities"]
    assert list(entities) == ["Cherry", "Player"]
    assert entities["Player"] == 1
    assert 0 < entities["Cherry"] <= 4
    assert report["entities_per_frame"] == pytest.approx(sum(entities.values()))
    assert report["most_entities"] == 5
    out = capsys.readouterr().out
    assert "entity type  per frame  share" in out
    assert re.search(r"^Player +1\.0 +\d\d\.\d%$", out, re.MULTILINE)
    assert "the largest frame has 5 entities" in out
    assert "of the type" not in out


SLOW_TO_MAKE = """
import time
from entity_env.examples import Xor

class Slow(Xor):
    def __init__(self, size: int = 1) -> None:
        super().__init__()
        time.sleep(0.03)
"""


@pytest.mark.slow
@pytest.mark.parametrize("processes", [1, 2])
def test_recreated_environments_have_a_separate_row(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], processes: int
) -> None:
    world = tmp_path / "slow.py"
    world.write_text(SLOW_TO_MAKE)
    settings = [f"env.id={world}:Slow", f"rollout.processes={processes}", "--updates", "1"]
    output = profiled(tmp_path, *settings)
    assert "environments recreated" not in capsys.readouterr().out
    report = profiled(tmp_path, *settings, 'env.vary.size="int 0 9"')
    parts = {part["name"]: part for part in report["parts"] + report["in_workers"]}
    made, step = parts["environments recreated"], parts["environment code"]
    assert made["core_ms"] > 30 * report["frames"]  # one episode a frame, 30 ms each
    assert step["core_ms"] < 0.5 * made["core_ms"]
    assert "implement set_parameters(**values)" in report["limit"]
    assert "environments recreated" in capsys.readouterr().out
    assert "set_parameters" not in output["limit"]
