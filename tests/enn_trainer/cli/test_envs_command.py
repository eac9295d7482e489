import json
import re
import statistics
from pathlib import Path

import pytest

from enn_trainer.checkpoints.state_manager import StateManager
from enn_trainer.cli import run
from enn_trainer.cli.envs_command import describe
from enn_trainer.cli.known_worlds import KNOWN_WORLDS
from enn_trainer.config.shipped import configs_of_world
from entity_env.examples import ENV_REGISTRY

ROOT = Path(__file__).parents[3]
ORCHARD = """\
from entity_env import CategoricalActionMask, CategoricalActionSpace, Entity, Environment
from entity_env import Observation, ObsSpace


class Orchard(Environment):
    def __init__(self, trees: int) -> None:
        self.trees = trees

    def obs_space(self) -> ObsSpace:
        return ObsSpace(["season"], {"Tree": Entity(["height"])})

    def action_space(self) -> dict:
        return {"water": CategoricalActionSpace(["yes", "no"])}

    def reset(self) -> Observation:
        return self.show()

    def act(self, actions) -> Observation:
        return self.show(done=True, reward=self.trees)

    def show(self, **more) -> Observation:
        actions = {"water": CategoricalActionMask()}
        trees = {"Tree": [[1.0]] * self.trees}
        return Observation(global_features=[0.0], features=trees, actions=actions, **more)
"""


@pytest.fixture
def orchard(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    (tmp_path / "orchard.py").write_text(ORCHARD)
    monkeypatch.chdir(tmp_path)
    return "orchard.py:Orchard"


def measured_rows() -> dict[str, tuple[int, float, float]]:
    """Return frames, median minutes and median result of each row of the committed results.

    Those with the initial weights of the configuration are in bold.
    """
    rows = {}
    for line in (ROOT / "benchmarks/results/learning.md").read_text().splitlines():
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        if len(cells) == 8 and cells[1].startswith("**"):
            results = [float(r.partition(": ")[2]) for r in cells[4].split(", ")]
            seconds = [float(s) for s in cells[6].split(", ")]
            frames, minutes = int(cells[2].replace(",", "")), statistics.median(seconds) / 60
            result = statistics.median(results)
            rows[cells[0].rstrip("*")] = frames, max(0.1, round(minutes, 1)), result
    return rows


@pytest.mark.parametrize("name", [w.name for w in KNOWN_WORLDS.values() if w.frames])
def test_training_facts_match_the_committed_results(name: str) -> None:
    world = KNOWN_WORLDS[name]
    row = {"Duel": "duel against random"}.get(world.name, world.config)
    assert (world.frames, world.minutes, world.learnt) == measured_rows()[row]


def test_facts_list_the_built_in_environments_in_order() -> None:
    assert list(KNOWN_WORLDS) == [name for name in ENV_REGISTRY if name in KNOWN_WORLDS]


def test_an_environment_without_facts_is_listed(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delitem(KNOWN_WORLDS, "Count")
    assert run(["envs"]) == 0
    row = next(line for line in capsys.readouterr().out.splitlines() if line.startswith("Count"))
    assert re.split(r"  +", row.strip()) == ["Count", "Player, Bean", "count", "-", "-", "-"]


def test_settings_exist_and_use_the_arguments_of_the_facts() -> None:
    named = {w.name: w for w in KNOWN_WORLDS.values() if w.config}
    for name in KNOWN_WORLDS.keys() - named:
        assert configs_of_world(name) == []
    assert {"Xor", "Duel"} <= named.keys()
    for name, fact in named.items():
        env = StateManager(init_path=ROOT / f"configs/{fact.config}.ron").config.env
        assert env.id == name
        mine, reference = (ENV_REGISTRY[name](**k) for k in (fact.kwargs, json.loads(env.kwargs)))
        assert vars(mine) == vars(reference)


def test_list_has_one_line_per_environment(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["envs"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 1 + len(ENV_REGISTRY) + 1
    columns = ["world", "entities", "actions", "teaches", "frames", "minutes", "return"]
    assert lines[0].split() == columns
    hunt = next(line for line in lines if line.startswith("TreasureHunt"))
    assert re.split(r"  +", hunt)[1:3] == ["Trap, Treasure", "move"]
    assert hunt.split()[-5:] == ["100,352", "0.3", "3.39", "of", "5"]


def test_json_list_has_the_spaces_and_facts(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["envs", "--json"]) == 0
    worlds = {world["name"]: world for world in json.loads(capsys.readouterr().out)}
    assert worlds.keys() == ENV_REGISTRY.keys()
    assert worlds["Duel"]["entities"] == {"Ally": ["hp", "damage"], "Enemy": ["hp", "damage"]}
    assert worlds["Duel"]["measure"] == "of matches won"
    assert worlds["MineSweeper"]["frames"] is None
    assert worlds["Xor"]["actions"]["output"] == {"kind": "global", "labels": ["0", "1"]}


def test_description_has_spaces_rules_returns_settings_and_commands(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert run(["envs", "Count"]) == 0
    out = capsys.readouterr().out
    assert out.startswith(
        "Count(masked_choices=2)\n\nCount beans without features: the reward is 1"
    )
    assert re.search(r"^  count +categorical +0, 1, 2, 3, 4, 5, 6, 7, 8, 9$", out, re.MULTILINE)
    assert re.search(r"^  learnt +1 after 2,000 frames, 0\.1 minutes$", out, re.MULTILINE)
    assert "settings: configs/count.ron\n" in out
    assert out.endswith("type\n  enn train Count\n  enn play Count masked_choices=2\n")


def test_return_of_random_play_is_measured_and_reproducible() -> None:
    result = describe("MultiArmedBandit", [])["return_random"]
    assert result == describe("MultiArmedBandit", [])["return_random"]
    mean, ci95 = map(float, result.split(" ± "))
    assert abs(mean - 0.2) < 2 * ci95  # one of five arms pays


def test_environment_of_a_file_is_described_with_its_arguments(
    orchard: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["envs", orchard, "trees=3"]) == 0
    out = capsys.readouterr().out
    assert out.startswith("orchard.py:Orchard(trees=3)\n\nentities and their features\n")
    assert "  global  season\n  Tree    height\n" in out
    assert "  random play  3 ± 0\n" in out
    assert "best possible" not in out
    assert "settings:" not in out
    assert "  enn train orchard.py:Orchard 'env.kwargs={\"trees\": 3}'\n" in out
    assert "  enn check orchard.py:Orchard trees=3\n" in out


def test_facts_are_omitted_for_other_arguments(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert run(["envs", "Count", "--env-kwargs", "masked_choices=5"]) == 0
    out = capsys.readouterr().out
    assert out.startswith("Count(masked_choices=5)\n")
    assert "learnt" not in out
    assert "  enn train Count 'env.kwargs={\"masked_choices\": 5}'\n" in out


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["Duell"], "got 'Duell', did you mean Duel?"),
        (["orchard.py:Orchid"], "got 'Orchid', did you mean Orchard?"),
        (["orchard.py:Orchard"], "KEY=VALUE: missing a required argument: 'trees'"),
        (["--env-kwargs", "size=3"], "ENV: expected an environment before size=3"),
        (["Xor", "--env-kwargs", "size=3"], "KEY=VALUE: got an unexpected keyword"),
    ],
)
def test_usage_errors_print_one_line(
    orchard: str, arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["envs", *arguments]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith("error: ")
    assert message in err
    assert err.count("\n") == 1
