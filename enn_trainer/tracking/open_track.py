"""Opening of the metric sinks of a run, and the name and description of the run."""

import errno
import itertools
import json
import os
import secrets
import shlex
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path

from enn_trainer.checkpoints.manifest import git_revision
from enn_trainer.config import TrainConfig
from enn_trainer.config.validation import unwritable
from enn_trainer.errors import ConfigError
from enn_trainer.evaluation.video import VIDEOS
from enn_trainer.experience.recording import continues
from enn_trainer.start_folder import absolute
from enn_trainer.state import State
from enn_trainer.state_manager import StateManager
from enn_trainer.tracking.track import Guarded, Sink, Track, flatten_config
from enn_trainer.tracking.track_jsonl import JsonlSink
from enn_trainer.tracking.track_mlflow import MlflowSink, check_mlflow
from enn_trainer.tracking.track_tensorboard import TensorBoardSink
from enn_trainer.tracking.track_wandb import WandbSink
from entity_env.serialization.plain_open import replace_file

METRICS_FILE = "metrics.jsonl"
RUN_FILE = "run.json"
_FOLDERS = (VIDEOS, "wandb", ".wandb")
"""Folders that are made in that of a run; W&B uses the hidden one if it is there."""


def open_track(manager: StateManager, say: Callable[[str], None]) -> tuple[Track, Path]:
    """Open all sinks of a run, and name the run if it is new.

    A resumed run appends to its files. A run that starts from a save elsewhere is a new run, as the
    other one may still be training.

    Args:
        manager: state manager of the run; `run_name` and `tracker_ids` of its state are set.
        say: prints a line.

    Returns:
        The sinks as one, and the folder with the files.

    Raises:
        ConfigError: the folder cannot be written to, or an extra is missing.
    """
    # Name the run and write its description.
    config, state = manager.config, manager.state
    if config.mlflow_tracking_uri is not None:
        check_mlflow()
    runs = absolute(config.data_dir) / "runs"
    if not continues(manager):
        state.run_name, state.tracker_ids = _new_run_name(runs, config), {}
    folder = runs / state.run_name
    settings = flatten_config(config)
    about = about_run(state)
    _describe(folder / RUN_FILE, {**about, "config": _as_json(settings)})

    # Files are required; failures of services do not end the run.
    sinks: list[Sink] = [
        JsonlSink(folder / METRICS_FILE, state.step, say),
        Guarded("TensorBoard", lambda: TensorBoardSink(folder, settings, state.step), say),
    ]
    if config.track:
        run_id = state.tracker_ids.setdefault("wandb", secrets.token_hex(4))
        sinks.append(
            Guarded(
                "W&B",
                lambda: WandbSink(
                    run_id,
                    state.run_name,
                    config.wandb_project_name,
                    config.wandb_entity,
                    {**settings, **about},
                    folder,
                    say,
                ),
                say,
            )
        )
    if config.mlflow_tracking_uri is not None:
        sinks.append(Guarded("MLflow", lambda: _open_mlflow(config, state, settings, about), say))
    return Track(sinks), folder


def _open_mlflow(
    config: TrainConfig, state: State, settings: Mapping[str, object], about: Mapping[str, object]
) -> MlflowSink:
    assert config.mlflow_tracking_uri is not None
    sink = MlflowSink(
        config.mlflow_tracking_uri,
        state.tracker_ids.get("mlflow", ""),
        state.run_name,
        config.name,
        settings,
        {name: str(value) for name, value in about.items()},
    )
    state.tracker_ids["mlflow"] = sink.run_id
    return sink


def _describe(path: Path, about: Mapping[str, object]) -> None:
    """Create the folder of a run and write its description; raise if the folder has links."""
    folder = path.parent
    for part in (folder, *(folder / name for name in _FOLDERS)):
        if part.is_symlink():  # it may lead to files of another run
            message = "expected a folder, got a link; replace the link by its target"
            raise unwritable(part, OSError(errno.ELOOP, message))
    try:
        folder.mkdir(parents=True, exist_ok=True)
        data = (json.dumps(about, indent=2) + "\n").encode()
        replace_file(path, data, path.with_name(f"{path.name}.tmp"))
    except OSError as error:
        raise unwritable(path, error) from None


def about_run(state: State) -> dict[str, object]:
    """Return name, restart, command line and git revision of a run, as plain data."""
    revision = git_revision()
    return {
        "run_name": state.run_name,
        "restart": state.restart,
        "command": shlex.join(sys.argv),
        "code.commit": None if revision is None else revision.removesuffix("-dirty"),
        "code.dirty": None if revision is None else revision.endswith("-dirty"),
    }


def _as_json(settings: Mapping[str, object]) -> dict[str, object]:
    return {
        name: value if isinstance(value, bool | int | float | str | None) else str(value)
        for name, value in settings.items()
    }


def _new_run_name(runs: Path, config: TrainConfig) -> str:
    """Create the folder of a new run and return its name, with a number appended if taken."""
    trial = "" if config.trial is None else f"__{config.trial}"
    world = config.env.id.rpartition(":")[2]  # without the file that it is in
    world = "".join(c if c.isprintable() and c not in "/\\" else "_" for c in world)
    base = f"{world}__{config.name}__{config.seed}{trial}"
    stamped = f"{base}__{time.strftime('%Y%m%d-%H%M%S')}"
    names = itertools.chain([stamped], (f"{stamped}-{i}" for i in itertools.count(2)))
    for name in names:
        try:
            (runs / name).mkdir(parents=True)
        except FileExistsError:
            continue
        except OSError as error:
            raise ConfigError(
                f"data_dir: expected a folder to write to, got {config.data_dir} "
                f"({os.strerror(error.errno or 0)})"
            ) from None
        return name
    raise AssertionError("there is always another number")
