"""Files of a part of the state are shared by saves, survive damage, and stay where unused."""

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import torch

from enn_trainer import CheckpointError, State, StateManager, init_train_state, load_agent
from enn_trainer.base.state_part import StateDict, StatePart
from enn_trainer.checkpoints import manifest, writer
from enn_trainer.checkpoints.format import verify
from enn_trainer.checkpoints.lookup import find
from enn_trainer.checkpoints.run_dir import RunDir
from enn_trainer.checkpoints.writer import Hashes
from enn_trainer.testing import check_state_part
from entity_env.serialization.messages import pack, unpack
from tests.enn_trainer.checkpoints.failing_disk import failing_disk
from tests.soak.mutations import flipped
from tests.soak.small_saves import write_whole
from tests.toys.world import manager_of, run

FIRST, SECOND = "opponent-first.safetensors", "opponent-second.safetensors"
REST = "state.rest.msgpack"
EACH = ("checkpoint.every_seconds=0", "checkpoint.keep=10")


class Pool(StatePart):
    """Contents that never change.

    Attributes:
        contents: by name of the file.
        note: plain data.
    """

    def __init__(self, *names: str) -> None:
        self.contents = {name: (name * 1000).encode() for name in names}
        self.note = len(names)

    def state_dict(self) -> StateDict:
        """Return the note."""
        return {"note": self.note}

    def files(self) -> Mapping[str, bytes]:
        """Return the contents."""
        return self.contents

    def load_state_dict(self, state: StateDict) -> None:
        """Take over both."""
        self.note = state.get("note", 0)
        self.contents = dict(state.get("files", {}))


def with_pool(*names: str, part: str = "league") -> Any:
    """Return what makes the state of a new run, with a pool."""

    def initial(config: Any, ctx: dict[str, Any]) -> State:
        state = init_train_state(config, ctx)
        state.parts[part] = Pool(*names)
        return state

    return initial


def pool_of(state: State) -> Pool:
    pool = state.parts["league"]
    assert isinstance(pool, Pool)
    return pool


def trained(folder: Path, frames: int, *settings: str, **options: Any) -> StateManager:
    """Return the manager of a run that has a pool and is saved after each update of 16 frames."""
    initial = options.pop("initial_state", with_pool(FIRST, SECOND))
    options = {"checkpoint_dir": folder / "run", "initial_state": initial, **options}
    return run(folder, frames, *EACH, *settings, **options)


def saves_of(folder: Path) -> list[Path]:
    """Return the saves of a run, oldest first."""
    return RunDir(folder / "run").saved_paths()[::-1]


def inodes(folder: Path, name: str) -> list[int]:
    return [(save / name).stat().st_ino for save in saves_of(folder)]


def flip(file: Path) -> None:
    """Flip a bit of a file in place, so that all that share it have it."""
    file.write_bytes(flipped(file.read_bytes(), 100, 3))


@pytest.fixture
def damaged(tmp_path: Path) -> Path:
    """A run of which every save has the same damaged file."""
    trained(tmp_path, 32)
    flip(saves_of(tmp_path)[0] / SECOND)
    return tmp_path


def test_league_conforms_to_the_state_part_contract() -> None:
    check_state_part(Pool(FIRST, SECOND), Pool())


def test_saves_share_immutable_files(tmp_path: Path) -> None:
    trained(tmp_path, 48)
    saves = saves_of(tmp_path)
    assert [save.name[-2:] for save in saves] == ["00", "16", "32", "48"]
    for name in (FIRST, SECOND):
        assert len({*inodes(tmp_path, name)}) == 1
        assert (saves[0] / name).stat().st_nlink == 4
        assert verify(saves[-1]).read(name) == (name * 1000).encode()
    others = [file for file in saves[0].iterdir() if file.name not in (FIRST, SECOND)]
    assert all(file.stat().st_nlink == 1 for file in others)


def test_resumed_run_shares_files_with_earlier_saves(tmp_path: Path) -> None:
    trained(tmp_path, 16)
    resumed = trained(tmp_path, 32, initial_state=with_pool())
    assert pool_of(resumed.state).contents == Pool(FIRST, SECOND).contents
    assert pool_of(resumed.state).note == 2
    assert len({*inodes(tmp_path, FIRST)}) == 1
    assert len(saves_of(tmp_path)) == 3


def test_a_file_of_the_same_name_with_other_bytes_is_written(tmp_path: Path) -> None:
    manager = trained(tmp_path, 16)
    pool_of(manager.state).contents[FIRST] = b"x" * len(pool_of(manager.state).contents[FIRST])
    manager.state.step += 16
    manager.save("test")
    assert len({*inodes(tmp_path, FIRST)}) == 2
    assert len({*inodes(tmp_path, SECOND)}) == 1
    assert verify(saves_of(tmp_path)[-1]).read(FIRST)[:1] == b"x"


def test_files_are_copied_on_file_systems_without_links(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def link(*_: Any, **__: Any) -> None:
        raise PermissionError("no links here")

    monkeypatch.setattr(os, "link", link)
    trained(tmp_path, 32)
    assert len({*inodes(tmp_path, FIRST)}) == 3
    assert all(
        verify(save).read(FIRST) == b"".join([FIRST.encode()] * 1000) for save in saves_of(tmp_path)
    )


def test_pruning_does_not_remove_files_of_other_saves(tmp_path: Path) -> None:
    trained(tmp_path, 64, "checkpoint.keep=1")
    [save] = saves_of(tmp_path)
    assert (save / FIRST).stat().st_nlink == 1
    assert verify(save).step == 64
    state = trained(tmp_path, 64, initial_state=with_pool()).state
    assert [*pool_of(state).contents] == [FIRST, SECOND]


def test_links_are_not_followed(tmp_path: Path) -> None:
    """A symbolic link in place of a file is neither read nor shared."""
    manager = trained(tmp_path, 16)
    for save in saves_of(tmp_path):
        (tmp_path / "elsewhere").write_bytes((save / FIRST).read_bytes())
        (save / FIRST).unlink()
        (save / FIRST).symlink_to(tmp_path / "elsewhere")
    with pytest.raises(CheckpointError, match=FIRST):
        verify(saves_of(tmp_path)[-1])
    manager.state.step += 16
    manager.save("test")
    assert not (saves_of(tmp_path)[-1] / FIRST).is_symlink()
    assert verify(saves_of(tmp_path)[-1]).step == 32


def test_a_damaged_file_is_rewritten_by_the_next_save(tmp_path: Path) -> None:
    manager = trained(tmp_path, 16)
    flip(saves_of(tmp_path)[0] / FIRST)
    with pytest.raises(CheckpointError, match="sha256"):
        verify(saves_of(tmp_path)[-1])
    manager.state.step += 16
    manager.save("test")
    healed = saves_of(tmp_path)[-1]
    assert verify(healed).read(FIRST) == Pool(FIRST).contents[FIRST]
    assert len({*inodes(tmp_path, SECOND)}) == 1, "still shared"
    manager.state.step += 16
    manager.save("test")
    assert verify(saves_of(tmp_path)[-1]).step == 48
    assert (healed / FIRST).stat().st_nlink == 2, "later ones share the one that is whole"


@pytest.mark.parametrize("damage", ["flipped", "missing"])
def test_runs_resume_without_opponents_missing_in_all_saves(damaged: Path, damage: str) -> None:
    if damage == "missing":
        for save in saves_of(damaged):
            (save / SECOND).unlink()
    manager = manager_of(
        damaged, "total_timesteps=48", initial_state=with_pool(), checkpoint_dir=damaged / "run"
    )
    lines: list[str] = []
    manager.say = lines.append
    assert manager.state.step == 32
    assert pool_of(manager.state).contents == Pool(FIRST).contents
    [line] = lines
    assert "using step-000000000032 without damaged opponents" in line
    assert SECOND in line
    assert FIRST not in line
    assert load_agent(damaged / "run").obs_space is not None


def test_a_complete_save_is_preferred_to_a_newer_incomplete_one(damaged: Path) -> None:
    newest = saves_of(damaged)[-1]
    oldest = saves_of(damaged)[0]
    (oldest / SECOND).unlink()
    (oldest / SECOND).write_bytes(Pool(SECOND).contents[SECOND])
    lines: list[str] = []
    saved = find(damaged / "run", lines.append)
    assert saved.step == 0
    assert not saved.lost
    assert any(newest.name in line and "skipped" in line for line in lines)


@pytest.mark.parametrize("name", ["state.agent.safetensors", "state.ron", "config.ron"])
def test_only_opponent_files_may_be_damaged(damaged: Path, name: str) -> None:
    for save in saves_of(damaged):
        flip(save / name)
    with pytest.raises(CheckpointError, match=rf"no valid checkpoint: .*{name}"):
        find(damaged / "run", lambda _: None)


def test_an_explicitly_named_save_must_be_complete(damaged: Path) -> None:
    with pytest.raises(CheckpointError, match=SECOND):
        find(saves_of(damaged)[-1])


def test_a_run_continues_after_the_loss_with_complete_saves(damaged: Path) -> None:
    state = trained(damaged, 48, initial_state=with_pool()).state
    assert [*pool_of(state).contents] == [FIRST]
    newest = find(damaged / "run")
    assert newest.step == 48
    assert SECOND not in newest.manifest["files"]


@pytest.mark.slow
@pytest.mark.parametrize("part", ["league", "players"])
def test_runs_without_a_league_preserve_the_saved_league(tmp_path: Path, part: str) -> None:
    trained(tmp_path, 16, initial_state=with_pool(FIRST, SECOND, part=part))
    for frames in (32, 48):
        state = trained(tmp_path, frames, initial_state=init_train_state).state
        state.to(torch.device("cpu"))
        assert dict(state.parts[part].state_dict()) == {"note": 2}
        assert state.parts[part].files() == Pool(FIRST, SECOND).contents
    assert len({*inodes(tmp_path, SECOND)}) == 1
    again = trained(tmp_path, 64, initial_state=with_pool(part=part)).state
    assert again.parts[part].files() == Pool(FIRST, SECOND).contents


def test_unknown_saved_parts_are_an_error(tmp_path: Path) -> None:
    trained(tmp_path, 16, initial_state=with_pool(FIRST, part="others"))
    with pytest.raises(CheckpointError, match="has a state of others"):
        trained(tmp_path, 32, initial_state=init_train_state)


@pytest.mark.slow
def test_a_full_disk_at_any_operation_loses_no_save(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing that was saved is lost, and the next save is whole."""
    manager = trained(tmp_path, 16)
    before = [verify(save).manifest for save in saves_of(tmp_path)]
    for fails_at in range(100):
        manager.state.step = 16 * (2 + fails_at)
        with monkeypatch.context() as patch:
            failing_disk(patch, lambda number, at=fails_at: number >= at)
            try:
                manager.save("test")
            except CheckpointError:
                assert [verify(save).manifest for save in saves_of(tmp_path)[:2]] == before
            else:
                break
    assert 5 < fails_at < 99
    manager.state.step += 16
    manager.save("test")
    assert len({*inodes(tmp_path, FIRST)}) == 1
    assert verify(saves_of(tmp_path)[-1]).read(SECOND) == Pool(SECOND).contents[SECOND]


def test_copies_of_the_state_hold_references(tmp_path: Path) -> None:
    manager = trained(tmp_path, 16)
    content: Any = manager._copy_state()[FIRST]
    assert content.data is pool_of(manager.state).contents[FIRST]


def test_contents_are_hashed_once(monkeypatch: pytest.MonkeyPatch) -> None:
    hashed: list[bytes] = []

    def sha256_of(data: bytes) -> str:
        hashed.append(data)
        return manifest.sha256_of(data)

    monkeypatch.setattr(writer, "sha256_of", sha256_of)
    hashes, contents = Hashes(), Pool(FIRST, SECOND).contents
    expected = {name: manifest.sha256_of(data) for name, data in contents.items()}
    assert hashes.update(contents) == expected
    assert hashes.update(contents) == expected
    assert len(hashed) == 2
    other = b"other"
    assert hashes.update({FIRST: other}) == {FIRST: manifest.sha256_of(other)}
    assert hashes.update(contents) == expected
    assert hashed[2:] == [other, contents[FIRST], contents[SECOND]]


@pytest.mark.parametrize(
    "name", ["../opponent", "a/b", "", "config.ron", "state.agent.safetensors", "manifest.json"]
)
def test_file_names_with_paths_are_refused(tmp_path: Path, name: str) -> None:
    with pytest.raises(ValueError, match="league: files: expected bytes by unique file names"):
        trained(tmp_path, 16, initial_state=with_pool(name))


def test_two_parts_cannot_have_the_same_file(tmp_path: Path) -> None:
    def initial(config: Any, ctx: dict[str, Any]) -> State:
        state = with_pool(FIRST)(config, ctx)
        state.parts["other"] = Pool(FIRST)
        return state

    with pytest.raises(ValueError, match=r"other: files: expected bytes by unique file names"):
        trained(tmp_path, 16, initial_state=initial)


@pytest.mark.parametrize(
    ("files", "message"),
    [
        ([], "list"),
        ({"league": 1}, "files: expected names by part"),
        ({"league": [1]}, "files: expected names by part"),
        ({1: []}, "files: expected names by part"),
        ({"league": ["opponent-others.safetensors"]}, "has no opponent-others"),
        ({"league": ["../../secret"]}, "has no ../../secret"),
        ({"others": [FIRST]}, "has a state of others"),
    ],
)
def test_damaged_names_of_files_are_refused(tmp_path: Path, files: Any, message: str) -> None:
    trained(tmp_path, 16)
    save = saves_of(tmp_path)[-1]
    contents = {file.name: file.read_bytes() for file in save.iterdir()}
    rest = {**unpack(contents[REST]), "files": files}
    write_whole(save, contents, REST, pack(rest))
    manager = manager_of(tmp_path, init_path=save, initial_state=with_pool())
    with pytest.raises(CheckpointError, match=message):
        _ = manager.state


def test_saves_without_files_keep_their_version(tmp_path: Path) -> None:
    """Earlier programs read them, and refuse those with files."""
    for names, version in (((), 2), ((FIRST,), 3)):
        folder = tmp_path / str(version)
        trained(folder, 16, initial_state=with_pool(*names))
        rest = unpack(verify(saves_of(folder)[-1]).read(REST))
        assert rest["version"] == version
        assert ("files" in rest) == bool(names)
