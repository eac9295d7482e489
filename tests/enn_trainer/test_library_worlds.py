"""Worlds of Gymnasium and PettingZoo by their names there, wherever a world is named."""

import sys
from pathlib import Path

import gymnasium
import pytest

from enn_trainer import load_checkpoint
from enn_trainer.cli import run
from entity_env import EnvList, ParallelEnvList
from entity_env.imports.extras import install_line
from entity_env.named_world import NamedWorld, find_world
from tests.enn_trainer.builders import SMALL
from tests.enn_trainer.one_line import refused
from tests.entity_env.builders import assert_same, play

CART_POLE = "gymnasium:CartPole-v1"
RUN = [*SMALL, "data_dir=."]
MATCH = """
from tests.entity_env.adapters.worlds import Hunt


def parallel_env(lives=(3, 3)):
    return Hunt({f"agent_{i}": n for i, n in enumerate(lives)})
"""
CODE = """
from pathlib import Path

import gymnasium
from gymnasium.spaces import Box, Discrete

from tests.entity_env.adapters.worlds import Show

Path("imported").touch()
gymnasium.register("Mine-v0", "gymnasium.envs.classic_control.cartpole:CartPoleEnv")
gymnasium.register("Whole-v0", lambda: Show(Discrete(2), Box(0, 3, (2,), int)))
"""


@pytest.fixture(autouse=True)
def _in_a_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("sys.path", [*sys.path])
    for name in ("hunt", "hunt_without_env", "rounds", "mine_for_gymnasium"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    for name in ("Mine-v0", "Whole-v0"):
        gymnasium.registry.pop(name, None)
    Path("hunt.py").write_text(MATCH)
    Path("hunt_without_env.py").touch()
    Path("rounds.py").write_text("from tests.entity_env.adapters.rounds import Rounds as env")
    Path("mine_for_gymnasium.py").write_text(CODE)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("env_id", "most_processes"),
    [(CART_POLE, 1), ("gymnasium:Pendulum-v1", 1), ("pettingzoo:hunt", 2)],
)
def test_library_environment_trains_with_any_number_of_processes(
    env_id: str, most_processes: int, capsys: pytest.CaptureFixture[str]
) -> None:
    """Workers that import Gymnasium take a second; a test below has them."""
    steps = []
    for processes in range(1, most_processes + 1):
        folder = f"run{processes}"
        settings = [f"env.id={env_id}", *RUN, f"rollout.processes={processes}"]
        evaluation = [f"eval.env.id={env_id}", "eval.steps=4", "eval.interval=24"]
        arguments = [*settings, *evaluation, "eval.num_envs=2", "--checkpoint-dir", folder]
        assert run(["train", *arguments]) == 0, capsys.readouterr().err
        *_, save = sorted(Path(folder).glob("step-*"))
        steps.append((save / "state.agent.safetensors").read_bytes())
    assert steps[0] == steps[-1]
    assert load_checkpoint("run1").config.env.id == env_id


@pytest.mark.slow
def test_library_environment_of_a_save_must_be_named_again(
    capsys: pytest.CaptureFixture[str],
) -> None:
    where = ["--checkpoint-dir", "run"]
    mine = "gymnasium:mine_for_gymnasium:Mine-v0"
    for env_id in (CART_POLE, mine):
        assert run(["train", f"env.id={env_id}", *RUN, *where, "--force"]) == 0
        assert f"--env {env_id}" in capsys.readouterr().out
        Path("imported").unlink(missing_ok=True)
        resume = ["train", *where, "--resume", "total_timesteps=96"]
        error = refused(resume, capsys)
        assert f"got '{env_id}'" in error
        assert "--trust" in error
        assert "--env" in refused(["eval", "run"], capsys)
        assert not Path("imported").exists()
        assert run([*resume, f"env.id={env_id}"]) == 0
        assert run(["eval", "run", "--env", env_id, "--episodes", "2"]) == 0


def test_module_that_registers_an_id_is_imported_once_and_may_be_of_this_folder() -> None:
    assert run(["check", "gymnasium:mine_for_gymnasium:Mine-v0", "--episodes", "1"]) == 0
    Path("imported").unlink()
    assert run(["check", "gymnasium:mine_for_gymnasium:Mine-v0", "--episodes", "1"]) == 0
    assert not Path("imported").exists()


def test_arguments_reach_the_environment_and_may_change_its_sides(
    capsys: pytest.CaptureFixture[str],
) -> None:
    world = find_world(CART_POLE)(max_episode_steps=7, render_mode="rgb_array")
    assert world.env.spec.max_episode_steps == 7
    hunt = find_world("pettingzoo:hunt")
    assert hunt().num_sides == 2
    assert hunt(lives=[1, 2, 3]).num_sides == 3
    teams = {"all": ["agent_0", "agent_1"]}
    assert hunt(teams=teams).num_sides == 1
    three = 'env.kwargs={"lives": [2, 3, 4]}'
    assert run(["train", "env.id=pettingzoo:hunt", three, *RUN]) == 0, capsys.readouterr().err


def test_turn_based_environment_is_found_by_name(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["check", "pettingzoo:rounds"]) == 0, capsys.readouterr()
    assert find_world("pettingzoo:rounds")().num_sides == 3


def test_registered_ids_need_no_module() -> None:
    """Though they begin as those of one."""
    gymnasium.register("Handy-v0", "gymnasium.envs.classic_control.cartpole:CartPoleEnv")
    try:
        assert find_world("gymnasium:Handy-v0")().obs_space()
    finally:
        gymnasium.registry.pop("Handy-v0")


def test_known_ids_import_the_module_that_registers_them() -> None:
    assert find_world("gymnasium:highway-v0")().env.spec.id == "highway-v0"


@pytest.mark.parametrize("env_id", [CART_POLE, "pettingzoo:hunt"])
def test_library_environment_is_described_in_one_line(
    env_id: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["envs", env_id]) == 0
    name = env_id.partition(":")[2]
    assert f"\n\n{name} of " in capsys.readouterr().out


@pytest.mark.slow
def test_workers_create_library_environments(tmp_path: Path) -> None:
    world = NamedWorld(CART_POLE, str(tmp_path))
    here, workers = EnvList(world, 4), ParallelEnvList(world, 4, 2)
    for got, expected in zip(play(workers, 12), play(here, 12), strict=True):
        assert_same(got, expected)
    workers.close()


@pytest.mark.parametrize(
    ("env_id", "words"),
    [
        ("gymnasium:CartPole", ["registered in Gymnasium", "'CartPole'", "mean CartPole-v1?"]),
        ("gymnasium:cartpole-v1", ["did you mean CartPole-v1?"]),
        ("gymnasium:", ["registered in Gymnasium, got ''"]),
        ("gymnasium:no_such:World-v0", ["importing no_such: ModuleNotFoundError"]),
        (
            "gymnasium:mine_for_gymnasium:Whole-v0",
            ["calling gymnasium:", "Choice('', values=[...])"],
        ),
        ("gymnasium:LunarLander-v3", ["calling gymnasium:LunarLander-v3", "pip install"]),
        (
            "pettingzoo:butterfly.knights_archers_zombies_v10",
            ["did you mean butterfly.knights_archers_zombies_v11?"],
        ),
        ("pettingzoo:classic.tictactoe_v3", ["calling pettingzoo:classic", "FieldMap"]),
        (
            "pettingzoo:hunt_without_env",
            ["a module with parallel_env", "or env (agents take turns)"],
        ),
        ("gymnasium:MiniGrid-Empty-5x5-v0", ["by the module minigrid (pip install minigrid)"]),
        ("gymnasium:ALE/Pong-v5", ["by the module ale_py"]),
        ("gymnasium:no-such-world-v0", ["write gymnasium:MODULE:ID"]),
        ("pettingzoo:sisl.multiwalker_v9", ["'Box2D'", "pip install 'pettingzoo[sisl]'"]),
        ("pettingzoo:", ["env.id: importing"]),
    ],
)
def test_unknown_library_environment_is_reported_in_one_line(
    env_id: str, words: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    error = refused(["train", f"env.id={env_id}", *RUN], capsys)
    assert error.startswith("error: env.id: ")
    for word in words:
        assert word in error


def test_invalid_arguments_of_a_library_environment_are_reported_in_one_line(
    capsys: pytest.CaptureFixture[str],
) -> None:
    for env_id in (CART_POLE, "pettingzoo:hunt"):
        error = refused(["train", f"env.id={env_id}", 'env.kwargs={"sise": 3}', *RUN], capsys)
        assert "'sise'" in error


@pytest.mark.parametrize("library", ["gymnasium", "pettingzoo"])
def test_missing_library_is_reported_in_one_line_with_the_command_to_type(
    library: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, library, None)
    for command in (["check"], ["play"], ["init", "mine", "--from"]):
        error = refused([*command, f"{library}:Absent-v0"], capsys)
        assert f"expected the package {library}, which is not installed" in error
        assert error.endswith(f"; {install_line(library)}\n")
