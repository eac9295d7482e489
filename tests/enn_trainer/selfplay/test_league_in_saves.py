"""Members of a league in saves: shared files, damage, runs without a league, and playing them."""

import json
import math
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load, save

from enn_trainer import CheckpointError, StateManager, load_agent
from enn_trainer.base.state_part import UnusedPart
from enn_trainer.checkpoints import saved_state
from enn_trainer.checkpoints.format import verify
from enn_trainer.checkpoints.lookup import find, members_of
from enn_trainer.checkpoints.saved_run import read_saved_run
from enn_trainer.cli import run as enn
from enn_trainer.selfplay.league import LEAGUE, PLAYERS, League
from enn_trainer.selfplay.seating import PoolLineups
from enn_trainer.testing import check_state_part
from entity_env import CategoricalAction
from entity_env.examples import Duel
from entity_env.serialization.messages import pack, unpack
from tests.enn_trainer.selfplay.joust import (
    FRAMES,
    POOL,
    SETTINGS,
    Joust,
    league_of,
    members,
    run,
    saves_of,
)
from tests.soak.mutations import flipped
from tests.soak.small_saves import write_whole

REST = "state.rest.msgpack"


@pytest.fixture(scope="module")
def jousts(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of three updates with its first four snapshots; it is not changed."""
    folder: Path = tmp_path_factory.mktemp("jousts") / "run"
    run(folder, 3)
    return folder


@pytest.fixture
def copied(jousts: Path, tmp_path: Path) -> Path:
    """A copy of it, of which saves share files as before."""
    return shutil.copytree(jousts, tmp_path / "run", copy_function=_linked_copy(tmp_path))


def _linked_copy(folder: Path) -> Any:
    known: dict[int, Path] = {}

    def copy(source: str, target: str) -> None:
        inode = Path(source).stat().st_ino
        if inode in known:
            Path(target).hardlink_to(known[inode])
        else:
            shutil.copy2(source, target)
            known[inode] = Path(target)

    return copy


def flip(file: Path) -> None:
    """Flip a bit in place, in all saves that share the file."""
    file.write_bytes(flipped(file.read_bytes(), 500, 2))


def quiet(folder: Path, *settings: str) -> tuple[StateManager, list[str]]:
    """Return a manager that continues a run, and the list that its lines are put into."""
    lines: list[str] = []
    manager = StateManager(
        overrides=[*SETTINGS, *POOL, f"total_timesteps={4 * FRAMES}", *settings],
        checkpoint_dir=folder,
    )
    manager.say = lines.append
    return manager, lines


def test_league_is_a_state_part(jousts: Path) -> None:
    league = league_of(quiet(jousts)[0].state)
    assert len(league.members) == 4
    check_state_part(league, League())


def test_each_member_is_stored_once(jousts: Path) -> None:
    saves = saves_of(jousts)
    for name, number in (("step-0", 3), ("step-24", 3), ("step-48", 2), ("step-72", 1)):
        files = [s / f"opponent-{name}.safetensors" for s in saves]
        there = [file.stat() for file in files if file.exists()]
        assert len(there) == number
        assert len({status.st_ino for status in there}) == 1
        assert there[0].st_nlink == number
    for path in saves:
        assert not verify(path).lost


def test_a_single_save_is_complete(jousts: Path, tmp_path: Path) -> None:
    only = shutil.copytree(saves_of(jousts)[-1], tmp_path / "elsewhere" / "step-000000000072")
    state = run(tmp_path / "next", 4, init_path=only).state
    assert {*members(state)} >= {"step-0", "step-24", "step-48", "step-72"}


@pytest.mark.slow
def test_best_save_keeps_members_that_left_the_pool(tmp_path: Path) -> None:
    """A member that left the pool long ago is still in the save that needs it."""
    run(
        tmp_path / "run",
        8,
        "selfplay.capacity=2",
        "checkpoint.keep=1",
        'checkpoint.best=["time_used min"]',
        "checkpoint.keep_every_steps=48",
    )
    saves = saves_of(tmp_path / "run")
    assert len(saves) > 2
    names = [{m.name for m in members_of(path)} for path in saves]
    assert names[0] - names[-1], "members left"
    for path, pool in zip(saves, names, strict=True):
        assert {f"opponent-{name}.safetensors" for name in pool} <= verify(path).manifest[
            "files"
        ].keys()


def test_damaged_member_is_dropped_and_named(copied: Path) -> None:
    shutil.rmtree(saves_of(copied)[0])  # made before the first snapshot
    flip(saves_of(copied)[0] / "opponent-step-0.safetensors")
    manager, lines = quiet(copied)
    state = manager.state
    assert state.step == 3 * FRAMES
    [line] = [line for line in lines if "no undamaged checkpoint" in line]
    assert "opponent-step-0.safetensors: damaged" in line
    assert [*members(state)] == ["step-24", "step-48", "step-72"]
    assert league_of(state).lost == ["step-0"]


def test_runs_continue_after_the_loss_of_a_member(copied: Path) -> None:
    """Also if it was playing when the run was saved: those games begin anew."""
    shutil.rmtree(saves_of(copied)[0])
    seating = quiet(copied)[0].state.parts["players"]
    assert isinstance(seating, PoolLineups)
    assert "step-0" in seating.playing_members()
    flip(saves_of(copied)[-1] / "opponent-step-0.safetensors")
    manager = run(copied, 5)
    assert manager.state.step == 5 * FRAMES
    assert "step-0" not in members(manager.state)
    newest = find(copied)
    assert newest.step == 5 * FRAMES
    assert not newest.lost
    assert "opponent-step-0.safetensors" not in newest.manifest["files"]


@pytest.mark.slow
def test_run_without_selfplay_keeps_its_league(copied: Path) -> None:
    with_league = quiet(copied)[0].state
    before = members(with_league)
    state = run(copied, 5, "selfplay=None", pool=False).state
    assert all(isinstance(state.parts[name], UnusedPart) for name in (LEAGUE, PLAYERS))
    assert dict(state.parts["league"].files()) == {m.file: m.weights for m in before.values()}
    assert (saves_of(copied)[-1] / "opponent-step-0.safetensors").stat().st_nlink > 3
    again = run(copied, 6, *POOL).state
    now = members(again)
    for name, member in before.items():
        assert now[name].weights == member.weights


def test_new_runs_with_initial_weights_have_no_pool(jousts: Path, tmp_path: Path) -> None:
    state = run(tmp_path / "run", 1, init_from=jousts).state
    assert [*members(state)] == ["step-0", "step-24"]
    assert members(state)["step-0"].weights != members(quiet(jousts)[0].state)["step-0"].weights


def test_members_are_agents(jousts: Path) -> None:
    frame = Joust()
    frame.seed(3)
    [shown, _] = frame.reset()
    for named in ("step-24", "step-72"):
        run_of = read_saved_run(Path(f"{jousts}@opponent:{named}"))
        assert (run_of.member, run_of.step) == (named, int(named[5:]))
        agent = load_agent(f"{jousts}@opponent:{named}", seed=4)
        # A snapshot acts as the agent of the save of its step does, without a value.
        same = load_agent(f"{jousts}@{run_of.step}", seed=4)
        one, other = agent.act(shown), same.act(shown)
        ride, same_ride = one.actions["ride"], other.actions["ride"]
        assert isinstance(ride, CategoricalAction)
        assert isinstance(same_ride, CategoricalAction)
        assert ride.labels == same_ride.labels
        assert ride.probs is not None
        assert np.array_equal(ride.probs, same_ride.probs)
        assert math.isnan(one.value)
        world: Any = Joust()
        load_agent(f"{jousts}@opponent:{named}", env=world).act(shown)


def test_members_of_an_earlier_save_are_loaded(jousts: Path) -> None:
    assert read_saved_run(Path(f"{jousts}@48@opponent:step-24")).path.name == "step-000000000048"
    assert read_saved_run(Path(f"{jousts}@latest@opponent:step-24")).step == 24
    with pytest.raises(CheckpointError, match="step-0, step-24, step-48; got 'step-72'"):
        read_saved_run(Path(f"{jousts}@48@opponent:step-72"))


def test_pools_are_listed(jousts: Path) -> None:
    for path in (jousts, Path(f"{jousts}@opponents"), Path(f"{jousts}@72")):
        found = members_of(path)
        assert [m.name for m in found] == ["step-0", "step-24", "step-48", "step-72"]
        assert all(load(m.weights) for m in found)
    assert [m.name for m in members_of(Path(f"{jousts}@48@opponents"))][-1] == "step-48"


def test_saves_without_a_pool_raise(tmp_path: Path) -> None:
    run(tmp_path / "run", 1, pool=False)
    with pytest.raises(CheckpointError, match="expected a checkpoint with opponents"):
        members_of(tmp_path / "run")
    with pytest.raises(CheckpointError, match="none; got 'x'"):
        read_saved_run(Path(f"{tmp_path / 'run'}@opponent:x"))


def test_unknown_member_error_suggests_the_nearest_name(jousts: Path) -> None:
    with pytest.raises(CheckpointError, match=r"got 'stepp-24'; did you mean step-24\?"):
        load_agent(f"{jousts}@opponent:stepp-24")
    with pytest.raises(CheckpointError, match="expected a checkpoint, got opponents of one"):
        StateManager(init_path=f"{jousts}@opponent:step-24")


def test_loading_a_member_without_a_network_raises(tmp_path: Path) -> None:
    run(tmp_path / "run", 1, 'selfplay.opponents=["random"]')
    with pytest.raises(CheckpointError, match="expected one with a network, got 'random'"):
        load_agent(f"{tmp_path / 'run'}@opponent:random")


def changed(path: Path, target: Path, name: str, data: bytes) -> Path:
    """Return a copy of a save with another content of a file, and hashes that are right."""
    files = {file.name: file.read_bytes() for file in path.iterdir()}
    copy = target / path.name
    shutil.copytree(path, copy)
    write_whole(copy, files, name, data)
    return copy


def with_weight(value: float, data: bytes) -> bytes:
    tensors = load(data)
    name = max(tensors)
    tensors[name] = torch.full_like(tensors[name], value)
    return save(tensors)


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda data: b"", "cannot be read"),
        (lambda data: b"\xff" * 64, "cannot be read"),
        (lambda data: data[: len(data) // 2], "cannot be read"),
        (lambda data: save({"x": torch.zeros(1)}), "custom network, with x"),
        (lambda data: save({}), "the weights do not fit the network"),
        (lambda data: with_weight(float("nan"), data), "finite numbers"),
        (lambda data: with_weight(1e30, data), "finite numbers"),
    ],
)
def test_hostile_files_of_members_raise(
    jousts: Path, tmp_path: Path, damage: Any, message: str
) -> None:
    name = "opponent-step-24.safetensors"
    newest = saves_of(jousts)[-1]
    path = changed(newest, tmp_path, name, damage((newest / name).read_bytes()))
    with pytest.raises(CheckpointError, match=message) as caught:
        read_saved_run(Path(f"{path}@opponent:step-24"))
    assert name in str(caught.value)
    assert read_saved_run(path).step == 3 * FRAMES, "the agent plays"


@pytest.mark.parametrize(
    ("field", "value", "message"),
    [
        ("config", "((((", "configuration cannot be read"),
        ("config", "(net: (d_model: 1000000, n_head: 1))", "fit|cannot be read"),
        ("spaces", "(((", "configuration cannot be read"),
        ("spaces", "5", "configuration cannot be read"),
        ("spaces", "Spaces(obs_space: 1, action_space: {})", "configuration cannot be read"),
        ("name", "../../x", "expected a name"),
        ("kind", "pickle", "expected a name and a kind"),
        ("elo", float("nan"), "expected finite results and a rating"),
        ("step", "5", r"members\[1\]\.step: expected int"),
        ("results", [[1.0]], "league"),
        ("results", [["x", 1.0, 2.0]], "league"),
        *(
            ("results", value, r"members\[1\]\.results: expected wins, draws and losses by seat")
            for value in ({}, None, 5, "x", [None], [{}], [[{}, 0.0, 0.0]], [[True, 0.0, 0.0]])
        ),
        ("results", [["1", "2", "3"]], r"members\[1\]\.results: "),
        ("results", [[-1.0, 0.0, 0.0]], r"members\[1\]\.results: "),
        ("ci95", float("nan"), r"members\[1\]\.ci95: expected finite"),
    ],
)
def test_hostile_descriptions_of_members_raise(
    jousts: Path, tmp_path: Path, field: str, value: Any, message: str
) -> None:
    newest = saves_of(jousts)[-1]
    rest = unpack((newest / REST).read_bytes())
    rest["parts"]["league"]["members"][1][field] = value
    path = changed(newest, tmp_path, REST, pack(rest))
    with pytest.raises(CheckpointError, match=message):
        read_saved_run(Path(f"{path}@opponent:step-24"))


@pytest.mark.parametrize(
    ("field", "value", "message"),
    [
        ("members", {}, r"league: members: expected a list, got \{\}"),
        ("members", None, "league: members: expected a list, got None"),
        ("members", [None], r"league: members\[0\]: expected the fields name, "),
        ("files", 5, "league: files: expected contents by file name"),
        ("next_snapshot", {}, r"league: next_snapshot: expected a number, got \{\}"),
        ("elo", [], r"league: elo: expected a number, got \[\]"),
    ],
)
def test_league_fields_of_another_type_raise(
    jousts: Path, tmp_path: Path, field: str, value: Any, message: str
) -> None:
    newest = saves_of(jousts)[-1]
    rest = unpack((newest / REST).read_bytes())
    rest["parts"]["league"][field] = value
    if field == "files":
        del rest["files"]["league"]
    path = changed(newest, tmp_path, REST, pack(rest))
    with pytest.raises(CheckpointError, match=message):
        members_of(path)


@pytest.mark.parametrize("table", [None, [], "x", 5, {"sides": {}}])
def test_lineups_of_another_type_raise(jousts: Path, tmp_path: Path, table: Any) -> None:
    newest = saves_of(jousts)[-1]
    rest = unpack((newest / REST).read_bytes())
    rest["parts"]["players"]["table"] = table
    path = changed(newest, tmp_path, REST, pack(rest))
    with pytest.raises(CheckpointError, match=f"{REST}: table: expected num_matches, sides, num_"):
        run(tmp_path / "next", 4, init_path=path)


class Failing(League):
    """A league whose code does not look at what it gets."""

    def load_state_dict(self, state: Any) -> None:
        raise state["members"][99]


def test_error_of_load_state_dict_names_part_and_file(
    jousts: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(saved_state, "League", Failing)
    message = f"{REST}: league: league: IndexError: list index out of range"
    with pytest.raises(CheckpointError, match=message):
        members_of(jousts)


# Commands


@pytest.mark.parametrize(
    "command",
    [
        ["inspect", "SAVE"],
        ["checkpoints", "show", "SAVE"],
        ["checkpoints", "diff", "SAVE", "SAVE"],
        ["league", "show", "SAVE"],
        ["league", "play", "SAVE@opponents", "random", "--env", "Duel"],
        ["eval", "SAVE@opponent:step-24", "--env", "Duel"],
        ["watch", "SAVE", "--env", "Duel", "--opponent", "pool"],
        ["resume", "SAVE"],
    ],
)
def test_command_errors_name_file_and_field(
    duels: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], command: list[str]
) -> None:
    newest = saves_of(duels)[-1]
    rest = unpack((newest / REST).read_bytes())
    rest["parts"]["league"]["members"][1]["results"] = {"a": 1.0}
    path = changed(newest, tmp_path, REST, pack(rest))
    if command[0] == "resume":
        path = path.parent
    assert enn([word.replace("SAVE", str(path)) for word in command]) in (1, 2)
    out, err = capsys.readouterr()
    [line] = (err or out).splitlines()
    assert f"{REST}: " in line
    assert "members[1].results: expected wins, draws and losses by seat" in line


@pytest.fixture(scope="module")
def duels(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run in a world that commands know."""
    folder: Path = tmp_path_factory.mktemp("duels") / "run"
    run(folder, 2, env=Duel)
    return folder


@pytest.mark.slow
def test_eval_measures_a_member_and_against_one(
    duels: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    member = f"{duels}@opponent:step-24"
    assert enn(["eval", member, "--env", "Duel", "--episodes", "4"]) == 0
    report = json.loads((duels / "eval-opponent-step-24.json").read_text())
    assert (report["opponent"], report["step"]) == ("step-24", 24)
    assert not [*duels.glob("eval-step-*")]
    out = duels.parent / "against.json"
    arguments = ["--env", "Duel", "--episodes", "4", "--opponent", member, "--out", str(out)]
    assert enn(["eval", str(duels), *arguments]) == 0
    assert json.loads(out.read_text())["suites"]
    capsys.readouterr()
    assert enn(["eval", str(duels), "--env", "Duel", "--opponent", f"{duels}@opponent:step-23"])
    assert "did you mean step-24?" in capsys.readouterr().err
    (duels / "eval-opponent-step-24.json").unlink()


@pytest.mark.slow
def test_training_is_evaluated_against_a_member(duels: Path, tmp_path: Path) -> None:
    settings = [
        f"eval.opponent={duels}@opponent:step-24",
        *("eval.episodes=4", "eval.interval=24", "eval.num_envs=4"),
    ]
    manager = run(tmp_path / "run", 1, *settings, env=Duel, pool=False)
    assert "eval/episodic_reward.mean" in manager.state.metrics


def test_watch_writes_a_page_of_a_member(duels: Path, tmp_path: Path) -> None:
    page = tmp_path / "page.html"
    member = f"{duels}@opponent:step-24"
    arguments = ["--env", "Duel", "--episodes", "1", "--out", str(page)]
    assert enn(["watch", member, *arguments, "--beside", f"{duels}@opponent:step-0"]) == 0
    assert page.stat().st_size > 10_000


def test_play_gets_advice_of_a_member(
    duels: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("builtins.input", lambda *_: "q")
    arguments = ["--agent", f"{duels}@opponent:step-24", "--side", "0", "--seed", "1"]
    assert not enn(["play", "Duel", *arguments])
    assert "no episode was finished" in capsys.readouterr().out


def test_inspect_shows_a_member(duels: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert not enn(["inspect", f"{duels}@opponent:step-24"])
    shown = capsys.readouterr().out
    assert "opponent       step-24" in shown
    assert "entity Enemy" in shown
    assert f"enn eval {duels}@opponent:step-24" in shown
    assert enn(["inspect", f"{duels}@opponent:nobody"]) != 0
    capsys.readouterr()
    assert not enn(["checkpoints", "show", f"{duels}@opponent:step-24"])
    assert "opponent       step-24" in capsys.readouterr().out


def test_list_counts_opponents(jousts: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert not enn(["checkpoints", "list", str(jousts)])
    header, *rows = capsys.readouterr().out.splitlines()
    assert "opponents" in header
    assert rows[0].startswith("step-000000000072")
    assert not enn(["checkpoints", "list", str(jousts), "--json"])
    newest = json.loads(capsys.readouterr().out)[0]
    assert {*newest["opponents"]} == {"step-0", "step-24", "step-48", "step-72"}


def test_show_lists_opponents(jousts: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert not enn(["checkpoints", "show", str(jousts)])
    shown = capsys.readouterr().out
    assert "opponent" in shown
    for name in ("step-0 ", "step-24 ", "step-48 ", "step-72 "):
        assert f"\n{name}" in shown


def test_verify_names_the_damaged_member(copied: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert enn(["checkpoints", "verify", str(copied)]) == 0
    assert ", opponents: 4" in capsys.readouterr().out
    flip(saves_of(copied)[-1] / "opponent-step-48.safetensors")
    assert enn(["checkpoints", "verify", str(copied)]) == 1
    lines = capsys.readouterr().out.splitlines()
    damaged = [line for line in lines if "opponent-step-48.safetensors: damaged" in line]
    assert len(damaged) == 2


def test_diff_shows_added_and_removed_members(
    jousts: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert enn(["checkpoints", "diff", f"{jousts}@48", f"{jousts}@72"]) == 1
    shown = " ".join(capsys.readouterr().out.split())
    assert "step-72 added" in shown
    assert enn(["checkpoints", "diff", f"{jousts}@72", f"{jousts}@48"]) == 1
    assert "step-72 removed" in " ".join(capsys.readouterr().out.split())
    newest, name = saves_of(jousts)[-1], "opponent-step-24.safetensors"
    other = changed(newest, tmp_path, name, with_weight(0.5, (newest / name).read_bytes()))
    assert enn(["checkpoints", "diff", str(newest), str(other)]) == 1
    assert "step-24 other weights" in " ".join(capsys.readouterr().out.split())
    assert enn(["checkpoints", "diff", str(newest), str(newest)]) == 0
