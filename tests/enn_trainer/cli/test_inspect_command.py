"""`enn inspect`: says what anything is, runs nothing of it, and neither hangs nor fails."""

import json
import os
import re
import shutil
import socket
import struct
import time
import zlib
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from enn_trainer.checkpoints.run_dir import RunDir
from enn_trainer.cli import inspect_command, run
from enn_trainer.config import TrainConfig
from enn_trainer.config.schema import dump_schema, schema_of
from entity_env import EnvList
from entity_env.examples import Minefield
from entity_env.recording.record import RecordingVecEnv
from entity_env.vec.variation import Variation
from tests.enn_trainer.checkpoints.published import GOLDEN, Trap
from tests.entity_env.builders import SAMPLES, play

ROOT = Path(__file__).parents[3]
SUFFIXES = [".ron", ".yaml", ".toml", ".json", ".rec", ".bin", ".safetensors", ""]
FUZZ = settings(suppress_health_check=[HealthCheck.function_scoped_fixture])


def inspected(path: object, capsys: pytest.CaptureFixture[str], status: int = 0) -> str:
    """Run `enn inspect`, compare the status, and return what it printed."""
    capsys.readouterr()
    assert run(["inspect", str(path)]) == status
    captured = capsys.readouterr()
    assert captured.err == ""
    assert "Traceback" not in captured.out
    return captured.out


@pytest.fixture(scope="session")
def recording(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("recorded") / "mine.rec"
    envs = RecordingVecEnv(EnvList(Minefield, 3), path)
    play(envs, 20)
    envs.close()
    return path


# Files of this program


def test_run_shows_its_newest_save_and_next_commands(
    meadow_run: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = inspected(meadow_run, capsys)
    assert f"{meadow_run}: a run; saves: 3, from step-000000000024" in out
    assert "step-000000000072" in out
    for expected in ("entity sheep", "packages", "python 3", "net.d_model", "time_used"):
        assert expected in out, expected
    assert "\nrollout.steps" in out
    assert "\noptim.lr" not in out  # it has its default
    assert f"enn resume {meadow_run}" in out
    assert f"checkpoints list {meadow_run}" in out


def test_saves_are_inspected_by_folder_and_by_step(
    meadow_run: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    save = meadow_run / "step-000000000048"
    assert inspected(save, capsys) == inspected(f"{meadow_run}@48", capsys)
    assert f"--resume-from {save}" in inspected(save, capsys)
    assert "expected the step of a checkpoint" in inspected(f"{meadow_run}@47", capsys, status=1)


def test_checkpoints_of_0_1_16_are_inspected(capsys: pytest.CaptureFixture[str]) -> None:
    out = inspected(GOLDEN, capsys)
    assert "by enn_trainer 0.1.16" in out
    assert "action Pick Cherry" in out


def test_damaged_newest_save_is_reported_and_the_previous_one_shown(
    run_dir: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (run_dir / "step-000000000072" / "state.ron").write_text("")
    out = inspected(run_dir, capsys)
    assert "skipped a damaged checkpoint" in out
    assert "step-000000000048" in out


def test_damaged_save_is_reported(run_dir: Path, capsys: pytest.CaptureFixture[str]) -> None:
    save = run_dir / "step-000000000072"
    (save / "manifest.json").write_text("{}")
    assert f"{save}: cannot be used: " in inspected(save, capsys, status=1)


def test_files_of_a_run_refer_to_the_run(run_dir: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Metrics, films and evaluations may lie in the folder of a run, or deeper."""
    films = run_dir / "films"
    films.mkdir()
    (films / "1.mp4").write_bytes(b"\0\0\0\x18ftyp")
    (run_dir / "metrics.jsonl").write_text("{}\n")
    for name in ("index.json", "metrics.jsonl", "films", "films/1.mp4"):
        assert f"belongs to the run {run_dir}" in inspected(run_dir / name, capsys), name
    save = run_dir / "step-000000000072"
    for name in ("state.ron", "manifest.json", "state.agent.safetensors"):
        assert f"belongs to the save {save}" in inspected(save / name, capsys), name


def test_folder_of_runs_suggests_enn_runs(
    run_dir: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = inspected(run_dir.parent, capsys)
    assert "a folder with runs: 1" in out
    assert f"enn runs {run_dir.parent}" in out


def test_recording_shows_frames_and_spaces(
    recording: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = inspected(recording, capsys)
    for expected in ("a recording\n", "environments    3", "60", "entity Vehicle"):
        assert expected in out, expected
    assert f"enn clone {recording}" in out
    torn = tmp_path / "torn.rec"
    torn.write_bytes(recording.read_bytes()[:-5])
    out = inspected(torn, capsys)
    assert "57" in out
    assert "complete        no" in out


def test_recording_shows_arguments_that_vary(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    envs = RecordingVecEnv(EnvList(Minefield, 3), tmp_path / "mine.rec")
    envs.vary(Variation.of({"max_mines": "int 0 9", "width": "200"}))
    play(envs, 3)
    envs.close()
    out = inspected(tmp_path / "mine.rec", capsys)
    assert "arguments       max_mines, width, drawn for each episode" in out


def test_counting_frames_has_a_time_limit(
    recording: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(inspect_command, "COUNTING_S", -1.0)
    assert "3 or more" in inspected(recording, capsys)


def test_damaged_recording_is_reported(
    recording: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    data = bytearray(recording.read_bytes())
    data[len(data) // 2] ^= 1
    (tmp_path / "flipped.rec").write_bytes(data)
    assert "damaged record" in inspected(tmp_path / "flipped.rec", capsys, status=1)


def test_entity_gym_recordings_are_inspected(capsys: pytest.CaptureFixture[str]) -> None:
    assert "1 of 1 recorded" in inspected(SAMPLES / "full.bin", capsys)
    assert "environments  unknown" in re.sub(
        " +", "  ", inspected(SAMPLES / "subsampled.bin", capsys)
    )


@pytest.mark.parametrize("suffix", [".ron", ".yaml", ".toml", ".json"])
def test_configuration_shows_settings_that_are_not_default(
    suffix: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    text = {
        ".ron": 'TrainConfig(version: 9, env: (id: "Xor"), optim: (lr: 0.5, bs: 256))',
        ".yaml": "version: 9\nenv: {id: Xor}\noptim: {lr: 0.5, bs: 256}\n",
        ".toml": 'version = 9\n[env]\nid = "Xor"\n[optim]\nlr = 0.5\nbs = 256\n',
        ".json": '{"version": 9, "env": {"id": "Xor"}, "optim": {"lr": 0.5, "bs": 256}}',
    }[suffix]
    path = tmp_path / f"mine{suffix}"
    path.write_text(text)
    out = inspected(path, capsys)
    assert "a configuration, version 9, of Xor" in out
    assert "optim.lr  0.5" in out
    assert "total_timesteps" not in out
    assert f"enn train --config {path}" in out
    assert "upgrade-config" not in out


def test_old_configuration_suggests_an_upgrade(
    capsys: pytest.CaptureFixture[str],
) -> None:
    path = ROOT / "tests/golden/configs/minefield.ron"
    assert f"enn config upgrade-config {path}" in inspected(path, capsys)


def test_cloning_configurations_are_inspected(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "clone.ron"
    path.write_text("CloneRunConfig(version: 5, clone: (epochs: 7))")
    out = inspected(path, capsys)
    assert re.search(r"clone\.epochs +7", out)
    assert f"enn clone RECORDING --config {path}" in out


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("TrainConfig(version: 5, optim: (lr: 0.5, sb: 2))", "optim.sb"),
        ('(env: (id: "Xor"))', "version"),
        ("TrainConfig(version: 99, optim: (lr: 0.5))", "99"),
        ("TrainConfig(version: 5, optim", "line 1"),
    ],
)
def test_invalid_configuration_names_the_field(
    text: str, expected: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "mine.ron"
    path.write_text(text)
    out = inspected(path, capsys, status=1)
    assert "cannot be used" in out
    assert expected in out


def test_schemas_are_inspected(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "schema.ron"
    path.write_text(dump_schema(schema_of(TrainConfig)))
    out = inspected(path, capsys)
    assert f"the schema of TrainConfig, version {TrainConfig.version()}" in out
    assert f"enn config check-schema {path}" in out


# Other files


@pytest.mark.parametrize(
    ("name", "content", "expected"),
    [
        ("empty.ron", b"", "an empty file"),
        ("notes.txt", b"some notes", "text"),
        ("data.bin", b"\x01\xff\xfe\0data", "a binary file"),
        ("network.pt", b"PK\x03\x04", "a pickle"),
        ("program", b"\x7fELF\2\0", "a binary file"),
        ("package.json", b'{"name": "x", "version": "1.0.0"}', "without settings"),
        ("list.json", b"[1, 2]", "without settings"),
    ],
)
def test_unrelated_files_are_described(
    name: str, content: bytes, expected: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / name).write_bytes(content)
    out = inspected(tmp_path / name, capsys, status=1)
    assert out.startswith(f"{tmp_path / name}: not a file of this program")
    assert expected in out
    assert out.count("\n") == 1


def test_pickle_is_not_opened(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    import pickle

    (tmp_path / "agent.rec").write_bytes(pickle.dumps(Trap(tmp_path / "sprung")))
    assert "a pickle" in inspected(tmp_path / "agent.rec", capsys, status=1)
    assert not (tmp_path / "sprung").exists()


def test_environments_named_in_a_file_are_not_imported(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("trap.py").write_text("from pathlib import Path\nPath('sprung').touch()\n")
    Path("mine.ron").write_text('TrainConfig(version: 5, env: (id: "trap.py:Trap"))')
    assert "of trap.py:Trap" in inspected("mine.ron", capsys)
    assert inspected("trap.py", capsys, status=1).endswith("text\n")
    assert not Path("sprung").exists()


def test_unreadable_files_are_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    def said(path: object) -> str:
        start = time.monotonic()
        out = inspected(path, capsys, status=1)
        assert time.monotonic() - start < 5
        return out

    os.mkfifo(tmp_path / "pipe.ron")
    (tmp_path / "one").symlink_to("two")
    (tmp_path / "two").symlink_to("one")
    (tmp_path / "empty").mkdir()
    (tmp_path / "photos").mkdir()
    (tmp_path / "photos" / "one.png").touch()
    assert "a pipe, a socket or a device" in said(tmp_path / "pipe.ron")
    assert "a pipe, a socket or a device" in said("/dev/zero")
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(str(tmp_path / "socket"))
        assert "a pipe, a socket or a device" in said(tmp_path / "socket")
    assert "symbolic links" in said(tmp_path / "one")
    assert "No such file" in said(tmp_path / "nowhere")
    assert "No such file" in said(tmp_path / "run@latest")
    assert "too long" in said("x" * 5000)
    assert "null " in said("a\0b")  # byte or character
    assert said(tmp_path / "empty").endswith("not a file of this program: a folder\n")
    assert "a folder without saves; entries: 1" in said(tmp_path / "photos")


def test_pipes_in_place_of_save_files_do_not_block(
    run_dir: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    save = run_dir / "step-000000000072"
    for name in ("manifest.json", "state.ron"):
        (save / name).unlink()
        os.mkfifo(save / name)
        assert "pipe" in inspected(save, capsys, status=1)


def test_huge_files_take_neither_time_nor_memory(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for suffix in SUFFIXES:
        path = tmp_path / f"huge{suffix}"
        with path.open("wb") as file:
            file.write(b"version: 5\n")
            file.truncate(1 << 34)  # nothing of it is on the disk
        start = time.monotonic()
        inspected(path, capsys, status=1)
        assert time.monotonic() - start < 5


def test_records_with_huge_claimed_sizes_are_not_allocated(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path, head = tmp_path / "huge.rec", struct.pack("<II", 1 << 31, 0)
    path.write_bytes(
        b"enn-rec\0" + struct.pack("<I", 1) + head + struct.pack("<I", zlib.crc32(head))
    )
    assert "ends before its header" in inspected(path, capsys, status=1)


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read everything")
def test_missing_permission_prints_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "mine.ron").touch(mode=0)
    assert "Permission denied" in inspected(tmp_path / "mine.ron", capsys, status=1)


def test_system_errors_print_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def deny(_path: Path) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(inspect_command, "read_plain", deny)
    (tmp_path / "mine.ron").write_text("x")
    assert "cannot be read: Permission denied" in inspected(tmp_path / "mine.ron", capsys, status=1)
    monkeypatch.setattr(Path, "iterdir", deny)
    assert "cannot be read: Permission denied" in inspected(tmp_path, capsys, status=1)


def test_names_cannot_control_the_terminal(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "red\x1b[31m.txt").write_text("x")
    assert "\x1b" not in inspected(tmp_path / "red\x1b[31m.txt", capsys, status=1)


# Bytes of any kind


@FUZZ
@given(content=st.binary(max_size=300) | st.text(max_size=300).map(str.encode))
@pytest.mark.parametrize("suffix", SUFFIXES)
def test_arbitrary_bytes_are_described(
    suffix: str, content: bytes, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / f"any{suffix}"
    path.write_bytes(content)
    inspected(path, capsys, status=1)


@FUZZ
@given(place=st.floats(0, 1), flip=st.integers(0, 255), size=st.floats(0, 1))
@pytest.mark.parametrize("kind", ["ours", "entity-gym", "configuration"])
def test_damaged_files_are_described(
    kind: str,
    place: float,
    flip: int,
    size: float,
    recording: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    config = ROOT / "configs/minefield.ron"
    whole = {"ours": recording, "entity-gym": SAMPLES / "full.bin", "configuration": config}[kind]
    data = bytearray(whole.read_bytes())
    data[int(place * (len(data) - 1))] ^= flip
    path = tmp_path / f"damaged{whole.suffix}"
    path.write_bytes(data[: int(size * len(data))])
    assert run(["inspect", str(path)]) in (0, 1)
    captured = capsys.readouterr()
    assert captured.err == ""
    assert captured.out


@FUZZ
@given(data=st.data(), place=st.floats(0, 1), flip=st.integers(1, 255))
def test_damaged_saves_are_described(
    data: st.DataObject,
    place: float,
    flip: int,
    meadow_run: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    newest = RunDir(meadow_run).saved_paths()[0]
    save = tmp_path / newest.name
    shutil.rmtree(save, ignore_errors=True)
    shutil.copytree(newest, save)
    file = save / data.draw(st.sampled_from(sorted(path.name for path in newest.iterdir())))
    content = bytearray(file.read_bytes())
    content[int(place * (len(content) - 1))] ^= flip
    file.write_bytes(content)
    assert "cannot be used" in inspected(save, capsys, status=1)


def test_folder_of_thousands_of_files_is_not_searched(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(inspect_command, "MAX_ENTRIES", 5)
    for i in range(6):
        (tmp_path / f"{i}.json").write_text(json.dumps(i))
    assert "a folder with 5 or more files" in inspected(tmp_path, capsys, status=1)
