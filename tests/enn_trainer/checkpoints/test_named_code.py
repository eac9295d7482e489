"""Code that the state of a save names, or its settings of Ray, runs only if the user names it."""

import shlex
import shutil
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from enn_trainer import CheckpointError, ConfigError, StateManager, play_league, train
from enn_trainer.checkpoints.named_code import check_run
from enn_trainer.cli import run
from enn_trainer.evaluation import remote
from entity_env.errors import ClusterError
from entity_env.examples import Duel, Xor
from entity_env.serialization.messages import pack, unpack
from tests.enn_trainer.builders import POOL, SMALL, run_pool, run_small
from tests.enn_trainer.foreign_saves import name_in_config, name_in_state, name_member
from tests.enn_trainer.one_line import refused
from tests.entity_env import duel_bots

BOT = "foreign_bots:Greedy"
WORLD = "foreign_world:World"
MARK = Path("marked")
"""Made by the foreign code: if it is there, that code ran."""
BOT_SOURCE = f"""
from pathlib import Path
from {duel_bots.__name__} import Greedy

Path("{MARK}").touch()
"""
WORLD_SOURCE = f"""
from pathlib import Path
from entity_env.examples import Xor

class World(Xor):
    def __init__(self, text=""):
        super().__init__()
        if ":" in text:
            Path("{MARK}").touch()
"""
AGAINST_BOT = f'selfplay.opponents=["{BOT}"]'
ONE_MORE = "total_timesteps=432"
"""An update more than `pooled` has."""


@pytest.fixture(autouse=True)
def _beside_the_foreign_modules(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("sys.path", [*sys.path])
    for name, source in (("foreign_bots", BOT_SOURCE), ("foreign_world", WORLD_SOURCE)):
        monkeypatch.delitem(sys.modules, name, raising=False)
        Path(f"{name}.py").write_text(source)


@pytest.fixture(scope="module")
def pooled(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the folder of a run of two updates against a bot, which its state alone names."""
    folder = tmp_path_factory.mktemp("pooled")
    settings = ["env.id=Duel", AGAINST_BOT, "selfplay.snapshot_every=0", "data_dir=."]
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        patch.setattr("sys.path", [*sys.path])
        Path("foreign_bots.py").write_text(BOT_SOURCE)
        run_pool(folder / "run", *settings, "total_timesteps=288")
        name_in_config(folder / "run", 'selfplay.opponents=["random"]')
    return folder / "run"


@pytest.fixture
def duel_run(pooled: Path) -> Path:
    """Return the folder of a copy of the run."""
    shutil.copytree(pooled, "run")
    return Path("run")


POOL_DOORS = {
    "eval": ["eval", "run", "--opponent", "pool", "--episodes", "8"],
    "watch": ["watch", "run", "--opponent", "pool", "--episodes", "1"],
    "league": ["league", "play", "run@opponents", "random", "run", "--games", "2"],
}
RUN_DOORS = {
    "resume": ["resume", "run", ONE_MORE],
    "resume-from": ["train", "--resume-from", "run", "--checkpoint-dir", "new", ONE_MORE],
    "dry-run": ["resume", "run", ONE_MORE, "--dry-run"],
}
DOORS = {**POOL_DOORS, **RUN_DOORS}


@pytest.mark.parametrize("door", DOORS)
@pytest.mark.parametrize("kind", ["bot", "custom"])
def test_opponent_of_a_save_that_is_a_bot_is_not_imported(
    door: str, kind: str, duel_run: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    name_member(duel_run, BOT, kind)
    error = refused(DOORS[door], capsys)
    assert error.startswith("error: selfplay.opponents: expected a bot that is named on the comm")
    assert f"'{BOT}' from opponent Greedy of run" in error
    assert "--trust" in error
    assert not MARK.exists()
    assert not Path("new").exists()


@pytest.mark.parametrize("door", RUN_DOORS)
def test_removed_opponent_in_a_running_game_is_not_imported(
    door: str, duel_run: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    name_member(duel_run, BOT, is_in_pool=False)
    assert f"'{BOT}' from opponent Greedy of run" in refused(DOORS[door], capsys)
    assert not MARK.exists()


@pytest.mark.parametrize(
    ("kind", "origin"),
    [("random", BOT), ("network", BOT), ("random", "snapshot"), ("bot", "random"), ("bot", "run")],
)
def test_origin_that_does_not_match_the_kind_of_opponent_is_refused(
    kind: str, origin: str, duel_run: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    name_member(duel_run, origin, kind)
    for door in ("eval", "league", "resume"):
        error = refused(DOORS[door], capsys)
        assert f"members[0].origin: expected an origin of the kind {kind}, got '{origin}'" in error
    assert not MARK.exists()


@pytest.mark.slow
@pytest.mark.parametrize("door", DOORS)
def test_opponent_that_is_trusted_plays(
    door: str, duel_run: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """As in the line that the error prints, if it prints one."""
    error = refused(DOORS[door], capsys)
    command, *rest = DOORS[door]
    typed = [command, "--trust", *rest]
    if door in POOL_DOORS:
        typed = shlex.split(error.partition("type: ")[2])[1:]
    assert run(typed) == 0, capsys.readouterr().err
    assert MARK.exists()


@pytest.mark.slow
@pytest.mark.parametrize(
    "typed",
    [
        ["league", "play", "run@opponents", BOT, "--games", "2"],
        ["resume", "run", ONE_MORE, AGAINST_BOT],
        ["train", "--checkpoint-dir", "run", "--resume", "--config", "mine.toml", ONE_MORE],
    ],
)
def test_opponent_that_the_command_line_or_its_file_names_plays(
    typed: Sequence[str], duel_run: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    Path("mine.toml").write_text(f'version = 6\n[selfplay]\nopponents = ["{BOT}"]\n')
    if typed[0] == "league":
        typed = [*typed[:3], "run", *typed[3:]]
    assert run(typed) == 0, capsys.readouterr().err
    assert MARK.exists()


@pytest.mark.slow
def test_program_checks_bots_of_the_state_unless_it_creates_them(duel_run: Path) -> None:
    manager = StateManager(checkpoint_dir=duel_run, overrides=[ONE_MORE])
    with pytest.raises(ConfigError, match=f"selfplay.opponents: .*'{BOT}' from opponent Greedy"):
        train(manager, Duel)
    with pytest.raises(ConfigError, match=f"selfplay.opponents: .*'{BOT}' from opponent Greedy"):
        play_league(["run@opponents", "random"], Duel, games=2)
    assert not MARK.exists()
    made: list[str] = []

    def create(name: str, *spaces: Any) -> Any:
        made.append(name)
        return duel_bots.Greedy

    manager = StateManager(checkpoint_dir=duel_run, overrides=[ONE_MORE])
    train(manager, Duel, create_opponent=create)
    assert BOT in made
    assert not MARK.exists()


@pytest.mark.slow
def test_bots_of_a_config_file_are_trusted_when_its_command_is_repeated(
    capsys: pytest.CaptureFixture[str],
) -> None:
    settings = [*POOL, "total_timesteps=144", "data_dir=.", "selfplay.snapshot_every=0"]
    Path("mine.toml").write_text(
        f'version = 6\n[env]\nid = "Duel"\n[selfplay]\nopponents = ["{BOT}"]\n'
    )
    typed = ["train", "--config", "mine.toml", *settings, "--checkpoint-dir", "run"]
    assert run(typed) == 0, capsys.readouterr().err
    assert "enn resume run --trust" in capsys.readouterr().out
    for more in ([], ["--dry-run"]):
        assert run([*typed, "--resume", "total_timesteps=288", *more]) == 0
    assert "selfplay.opponents: " in refused(["resume", "run", "total_timesteps=432"], capsys)


def test_random_player_of_another_pool_plays(duel_run: Path) -> None:
    """Its origin is that pool, which is no opponent by itself."""
    name_member(duel_run, "rival@opponents", "random")
    played = play_league(["run@opponents", "random"], Duel, games=2)
    assert [*played.names] == ["Greedy", "random"]


# Ray.


RAY = ["rollout.ray=auto"]
RAY_NAMED = {
    "rollout.ray": ([*RAY], "auto"),
    "rollout.ray_env": (["rollout.ray_env=./x.sh"], "./x.sh"),
    "rollout.ray_files": (['rollout.ray_files=["/etc/passwd"]'], "/etc/passwd"),
    "eval.ray": (["eval.steps=2", "eval.ray=10.0.0.1:6379"], "10.0.0.1:6379"),
}


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the folder of a run of three updates in an example."""
    folder = tmp_path_factory.mktemp("trained")
    run_small(folder, "env.id=Xor", "data_dir=.", env=Xor, checkpoint_dir=folder / "run")
    return folder / "run"


@pytest.fixture
def xor_run(trained: Path) -> Path:
    """Return the folder of a copy of that run."""
    shutil.copytree(trained, "run")
    return Path("run")


@pytest.fixture
def joined(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Refuse all clusters, and list their addresses."""
    addresses: list[str] = []

    def join(address: str, *_: Any) -> Any:
        addresses.append(address)
        raise ClusterError("no cluster")

    monkeypatch.setattr(remote, "joined", join)
    return addresses


@pytest.mark.parametrize("field", RAY_NAMED)
@pytest.mark.parametrize("door", ["resume", "resume-from"])
def test_cluster_that_only_a_save_names_is_not_joined(
    field: str,
    door: str,
    xor_run: Path,
    joined: list[str],
    capsys: pytest.CaptureFixture[str],
) -> None:
    settings, text = RAY_NAMED[field]
    given = [] if field == "eval.ray" else RAY
    name_in_config(xor_run, *given, *settings)
    typed = DOORS[door] if field == "rollout.ray" else [*DOORS[door], *given]
    error = refused(typed, capsys)
    assert error.startswith(f"error: {field}: expected a setting that is given on the command line")
    assert f"'{text}' from run" in error
    assert f"give {field}=" in error
    assert not joined
    manager = StateManager(checkpoint_dir=xor_run, overrides=typed[len(DOORS[door]) :])
    with pytest.raises(ConfigError, match=rf"^{field}: expected a setting that is given"):
        train(manager, Xor)
    assert not joined


@pytest.mark.parametrize("field", RAY_NAMED)
def test_cluster_that_the_command_names_again_is_joined(
    field: str, xor_run: Path, joined: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    settings = [*([] if field == "eval.ray" else RAY), *RAY_NAMED[field][0]]
    name_in_config(xor_run, *settings)
    for typed in (settings, ["--trust"]):
        assert run([*RUN_DOORS["resume"], *typed]) == 2
        assert "no cluster" in capsys.readouterr().err
    assert len(joined) == 2


def test_cluster_that_a_file_names_is_joined_when_its_command_is_repeated(
    xor_run: Path, joined: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    name_in_config(xor_run, "rollout.ray=auto", "rollout.ray_env=mine")
    Path("mine.toml").write_text('version = 6\n[rollout]\nray = "auto"\nray_env = "mine"\n')
    resume = ["train", "--config", "mine.toml", "--checkpoint-dir", "run", "--resume", ONE_MORE]
    for more in ([], ["--dry-run"]):
        assert run([*resume, *more]) == 2
        assert "no cluster" in capsys.readouterr().err
    assert len(joined) == 2


@pytest.mark.slow
def test_evaluations_and_exploiters_do_not_use_the_ray_settings_of_a_save(
    duel_run: Path, joined: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    name_in_config(duel_run, "rollout.ray=10.0.0.1:6379", "rollout.ray_env=./x.sh")
    error = refused(["eval", "run", "--episodes", "2", "--ray", "auto"], capsys)
    assert error.startswith("error: rollout.ray_env: ")
    error = refused(["league", "exploit", "run", "--games", "2"], capsys)
    assert error.startswith("error: rollout.ray: ")
    assert not joined
    assert run(["eval", "run", "--episodes", "2"]) == 0
    assert run(["eval", "run", "--episodes", "2", "--ray", "auto", "--trust"]) == 2
    assert joined == ["auto"]


@pytest.mark.slow
def test_evaluation_ignores_cluster_files_of_a_save(
    duel_run: Path, joined: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    """The settings of files are for `eval.ray`, which the commands leave out."""
    name_in_config(duel_run, *RAY_NAMED["eval.ray"][0], "rollout.ray_env=./x.sh")
    assert run(["eval", "run", "--episodes", "2"]) == 0, capsys.readouterr().err
    assert run(["league", "play", "run", "random", "--games", "2"]) == 0, capsys.readouterr().err
    error = refused(["eval", "run", "--episodes", "2", "--ray", "auto"], capsys)
    assert error.startswith("error: rollout.ray_env: ")
    assert not joined


# Arguments of the environment.


def _in_parameters(rest: dict[str, Any]) -> None:
    parts = rest.setdefault("parts", {})
    parts["curriculum"] = {"parameters": {"text": '"evil:Env-v0"'}}
    rest["version"] = max(rest["version"], 2)


def _in_episodes(rest: dict[str, Any]) -> None:
    episodes = unpack(rest["envs"])
    episodes["envs"]["arguments"] = [{"text": "evil:Env-v0"}] * 6
    rest["envs"] = pack(episodes, exact=True)


VARIED: dict[str, tuple[list[str], Callable[[dict[str, Any]], None] | None]] = {
    "env.vary": (['env.vary={"text": "\\"evil:Env-v0\\""}'], None),
    "a choice": (['env.vary={"text": "choice \\"plain\\" \\"evil:Env-v0\\""}'], None),
    "set_parameters": ([], _in_parameters),
    "episodes": ([], _in_episodes),
}


@pytest.mark.slow
@pytest.mark.parametrize("named", VARIED)
def test_arguments_that_a_save_draws_are_refused_if_they_may_name_a_module(
    named: str, capsys: pytest.CaptureFixture[str]
) -> None:
    vary = 'env.vary={"text": "\\"plain\\""}'
    typed = [f"env.id={WORLD}", *SMALL, "data_dir=.", vary]
    assert run(["train", *typed, "--checkpoint-dir", "run"]) == 0, capsys.readouterr().err
    settings, change = VARIED[named]
    name_in_config(Path("run"), *settings) if change is None else name_in_state(Path("run"), change)
    error = refused(["resume", "run", f"env.id={WORLD}", "total_timesteps=96"], capsys)
    assert error.startswith("error: env.vary")
    assert "'evil:Env-v0'" in error
    assert not MARK.exists()
    assert run(["resume", "run", "--trust", "total_timesteps=96"]) == 0, capsys.readouterr().err


@pytest.mark.slow
def test_drawn_arguments_with_colons_are_trusted_if_typed(
    capsys: pytest.CaptureFixture[str],
) -> None:
    vary = 'env.vary={"text": "choice \\"a:b\\" \\"c:d\\""}'
    typed = ["train", f"env.id={WORLD}", *SMALL, "data_dir=.", vary, "--checkpoint-dir", "run"]
    assert run(typed) == 0, capsys.readouterr().err
    assert "enn resume run --trust" in capsys.readouterr().out
    assert run([*typed, "--resume", "total_timesteps=96"]) == 0, capsys.readouterr().err


@pytest.mark.slow
def test_damaged_episodes_of_a_save_are_refused(
    capsys: pytest.CaptureFixture[str],
) -> None:
    typed = [f"env.id={WORLD}", *SMALL, "data_dir=."]
    assert run(["train", *typed, "--checkpoint-dir", "run"]) == 0, capsys.readouterr().err
    name_in_state(Path("run"), lambda rest: rest.update(envs=b"\xc1"))
    manager = StateManager(checkpoint_dir="run", overrides=[f"env.id={WORLD}"])
    with pytest.raises(CheckpointError, match="the saved episodes cannot be read"):
        check_run(manager)
