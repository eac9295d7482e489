"""Saves as a stranger would have written them, with names of code in settings and state."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

from enn_trainer import StateManager
from enn_trainer.checkpoints.lookup import find
from entity_env.serialization.messages import pack, unpack
from tests.soak.small_saves import write_whole

REST = "state.rest.msgpack"


def name_in_config(run_dir: Path, *overrides: str, leave_out: str = "") -> Path:
    """Change the configuration of the newest save as its writer would have; return the save.

    Args:
        run_dir: the folder of the run.
        overrides: the changes.
        leave_out: what the text of the configuration has and is to lack.
    """
    save = find(run_dir).path
    files = {file.name: file.read_bytes() for file in save.iterdir()}
    config = StateManager(init_path=save, overrides=[*overrides]).config
    manager = StateManager(init_path=save)
    manager._config = config
    written = manager._copy_state()["config.ron"]
    assert isinstance(written, bytes)
    assert leave_out.encode() in written
    write_whole(save, files, "config.ron", written.replace(leave_out.encode(), b""))
    return save


def name_in_state(run_dir: Path, change: Callable[[dict[str, Any]], object]) -> Path:
    """Change the plain state of the newest save as its writer would have; return the save.

    Args:
        run_dir: the folder of the run.
        change: changes the content of the file in place.
    """
    save = find(run_dir).path
    files = {file.name: file.read_bytes() for file in save.iterdir()}
    rest = unpack(files[REST])
    change(rest)
    write_whole(save, files, REST, pack(rest, exact=True))
    return save


def name_member(run_dir: Path, origin: str, kind: str = "bot", is_in_pool: bool = True) -> Path:
    """Let the first member of the league of the newest save be of another kind and origin."""

    def change(rest: dict[str, Any]) -> None:
        member = rest["parts"]["league"]["members"][0]
        member |= {"kind": kind, "origin": origin, "is_in_pool": is_in_pool}

    return name_in_state(run_dir, change)
