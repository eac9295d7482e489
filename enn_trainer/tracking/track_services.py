"""Metric sinks for services: TensorBoard, Weights & Biases and MLflow.

Their packages are imported when a sink is opened, because imports take seconds.

A line of the file is `{"step": 2048, "time": 1760000000.0, "kind": "update", "losses/entropy": 1.5,
...}`, with `time` in seconds since 1970, and the kind "eval" for evaluations. Infinity and NaN,
which JSON lacks, are written as the strings "nan", "inf" and "-inf". A line of the kind "notice"
has no metrics, but the texts `notice` (its key), `text` and `page`.
"""

import itertools
import json
import math
import netrc
import os
import secrets
import socket
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from io import BytesIO
from pathlib import Path, PurePath
from typing import TYPE_CHECKING, Any, final
from urllib.parse import urlsplit

from enn_trainer.base.errors import ConfigError
from enn_trainer.config import TrainConfig
from enn_trainer.config.validation import unwritable
from entity_env.imports.extras import missing_package
from entity_env.serialization.plain_open import append_plain, new_file, open_plain, read_plain

if TYPE_CHECKING:
    from enn_trainer.checkpoints.state import State

EVAL_PREFIX = "eval/"
EVAL, UPDATE, NOTICE = "eval", "update", "notice"
NOTICES = "notices"
"""Key of the sums and of the keys of earlier notices in `State.memory`."""
NOT_TAGS = ("step", "time", "kind")


@final
class JsonlSink:
    """A JSON Lines file; each call of `write` appends a line.

    Each line is one system call, so that a killed run leaves complete lines. A resumed run repeats
    the steps after its save; their lines are dropped when the file is opened. The evaluation at the
    step of the save is dropped when it is repeated.

    Args:
        path: the file; appended to if it exists.
        step: first step of the run, or step of the save that it resumes from.
        say: prints a line about damaged lines.

    Raises:
        ConfigError: the file cannot be written.
    """

    def __init__(self, path: Path, step: int, say: Callable[[str], None] = print) -> None:
        self._path, self._say = path, say
        self._saved_eval_step: int | None = step
        self._file = -1
        self._reopen(lambda row: row["step"] <= step)

    def write(self, step: int, scalars: Mapping[str, float]) -> None:
        """Append a line.

        Raises:
            ConfigError: the line could not be written completely.
        """
        is_eval = bool(scalars) and all(tag.startswith(EVAL_PREFIX) for tag in scalars)
        if is_eval and step == self._saved_eval_step:
            self._saved_eval_step = None
            self._reopen(lambda row: row["step"] < step or row.get("kind") != EVAL)
        row: dict[str, object] = {}
        for tag, value in scalars.items():
            number = float(value)  # json does not support scalars of numpy and torch
            row[tag] = number if math.isfinite(number) else str(number)
        self._append(step, EVAL if is_eval else UPDATE, row)

    def notice(self, step: int, key: str, text: str, page: str) -> None:
        """Append a line with a notice.

        Raises:
            ConfigError: the line could not be written completely.
        """
        self._append(step, NOTICE, {"notice": key, "text": text, "page": page})

    def close(self) -> None:
        """Close the file."""
        os.close(self._file)

    def _append(self, step: int, kind: str, content: Mapping[str, object]) -> None:
        row = {"step": step, "time": round(time.time(), 3), "kind": kind, **content}
        data = (json.dumps(row) + "\n").encode()
        try:
            while data:  # one write, unless the disk is full: then the second one raises
                data = data[os.write(self._file, data) :]
        except OSError as error:
            raise unwritable(self._path, error) from None

    def _reopen(self, keep: Callable[[dict[str, Any]], bool]) -> None:
        """Drop damaged lines and lines that `keep` rejects; open the file for appending."""
        rewritten = self._path.with_name(f"{self._path.name}.tmp")
        dropped, damaged = False, None
        try:
            append_plain(self._path).close()  # raises unless it is a regular file
            with new_file(rewritten) as file:
                for number, text, row in read_lines(self._path):
                    # A killed run leaves an incomplete last line: only earlier damage is reported.
                    if damaged is not None:
                        self._say(f"{self._path}: line {damaged} is damaged and was dropped")
                    damaged = number if row is None else None
                    if row is not None and keep(row):
                        file.write(text)
                    else:
                        dropped = True
                file.flush()
                os.fsync(file.fileno())
            rewritten.replace(self._path) if dropped else rewritten.unlink()
            if self._file >= 0:
                os.close(self._file)
            self._file = open_plain(self._path, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        except OSError as error:
            raise unwritable(self._path, error) from None


def read_lines(path: Path) -> Iterator[tuple[int, bytes, dict[str, Any] | None]]:
    """Yield the line number (from 1), bytes and content of each line of a file.

    The content of damaged and incomplete lines is None.
    """
    with path.open("rb") as file:
        for number, text in enumerate(file, start=1):
            try:
                row = json.loads(text)
            except (ValueError, RecursionError):
                row = None
            whole = isinstance(row, dict) and type(row.get("step")) is int
            yield number, text, row if whole and text.endswith(b"\n") else None


LONGEST_NOTICE = 1 << 16
"""Largest size of a line with a notice in bytes."""


def read_notices(path: Path) -> Iterator[dict[str, Any]]:
    """Yield the notices in a file of metrics; none if it cannot be read.

    Damaged lines, and lines without texts, are skipped.
    """
    with suppress(OSError), read_plain(path) as file:
        for line in iter(lambda: file.readline(LONGEST_NOTICE), b""):
            if b'"kind": "notice"' not in line:  # avoids parsing of most lines
                continue
            row = None
            with suppress(ValueError, RecursionError):
                row = json.loads(line)
            if not isinstance(row, dict) or type(row.get("step")) is not int:
                continue
            if all(type(row.get(name)) is str for name in ("notice", "text", "page")):
                yield row


EVENT_FORMAT = "brain.Event:2"
"""Version in the first event of a TensorBoard file."""
INIT_TIMEOUT_S = 30.0
"""Timeout of the connection to W&B at the start of a run."""
BASE_URL = "https://api.wandb.ai"
BATCH = 100
"""Number of parameters per request to MLflow; a request may have ten times more metrics."""
LONGEST_VALUE = 500
"""Largest length of the value of a parameter that all servers accept."""
PATIENCE = {"MLFLOW_HTTP_REQUEST_MAX_RETRIES": "1", "MLFLOW_HTTP_REQUEST_TIMEOUT": "10"}
"""Retries and timeout of requests, which block training; MLflow's defaults are minutes."""


@final
class TensorBoardSink:
    """A TensorBoard event file.

    Does not use the writer of torch: on a full disk its thread prints a traceback and leaves an
    incomplete event, after which TensorBoard stops reading.

    Args:
        log_dir: folder of the file; created if it does not exist.
        config_table: hyperparameters by dotted name, written as a table with the text tag
            "hyperparameters"; see `flatten_config`.
        step: first step of the run, or step of the save that it resumes from; TensorBoard hides
            later steps of earlier files.
    """

    def __init__(self, log_dir: Path, config_table: Mapping[str, object], step: int = 0) -> None:
        import torch.utils.tensorboard.summary
        from tensorboard.compat.proto import event_pb2  # type: ignore[import-untyped]
        from tensorboard.summary.writer import record_writer  # type: ignore[import-untyped]

        self._summary: Any = torch.utils.tensorboard.summary
        self._protos, self._records = event_pb2, record_writer
        log_dir.mkdir(parents=True, exist_ok=True)
        stem = f"events.out.tfevents.{int(time.time())}.{socket.gethostname()}.{os.getpid()}"
        for number in itertools.count():
            with suppress(FileExistsError):
                path, flags = log_dir / f"{stem}.{number}", os.O_WRONLY | os.O_CREAT | os.O_EXCL
                self._file = os.open(path, flags, 0o666)
                break
        lines = ["| parameter | value |", "| --- | --- |"]
        for name, value in config_table.items():
            cell = str(value).replace("|", "\\|").replace("\n", " ")  # breaks the table
            lines.append(f"| {name} | {cell} |")
        table = self._summary.text("hyperparameters", "\n".join(lines))
        begins: list[Mapping[str, Any]] = [{"file_version": EVENT_FORMAT}]
        if step > 0:
            start = event_pb2.SessionLog(status=event_pb2.SessionLog.START)
            begins.append({"session_log": start, "step": step + 1})
        self._append(*begins, {"summary": table, "step": 0})

    def write(self, step: int, scalars: Mapping[str, float]) -> None:
        """Write scalars as one event, NaN and infinity included.

        Raises:
            OSError: the event could not be written; the file is unchanged.
        """
        values = [{"tag": tag, "simple_value": float(value)} for tag, value in scalars.items()]
        self._append({"summary": self._summary.Summary(value=values), "step": step})

    def close(self) -> None:
        """Close the file."""
        os.close(self._file)

    def _append(self, *events: Mapping[str, Any]) -> None:
        data, now = BytesIO(), time.time()
        records = self._records.RecordWriter(data)
        for event in events:
            records.write(self._protos.Event(wall_time=now, **event).SerializeToString())
        size = os.fstat(self._file).st_size
        try:
            remaining = data.getvalue()
            while remaining:
                remaining = remaining[os.write(self._file, remaining) :]
        except OSError:
            os.ftruncate(self._file, size)
            os.lseek(self._file, size, os.SEEK_SET)
            raise


@final
class WandbSink:
    """A W&B run, which a resumed run continues.

    With WANDB_MODE=offline, and without an API key (as a prompt would block an unattended run),
    metrics are stored on disk for `wandb sync`.

    Args:
        config: configuration of the run, with the project and its owner.
        state: state of the run; `tracker_ids` holds the id of the W&B run, set for a new one.
        details: settings and description to display, by dotted name.
        folder: folder for the files of wandb.
        say: prints a line.
    """

    def __init__(
        self,
        config: TrainConfig,
        state: "State",
        details: Mapping[str, object],
        folder: Path,
        say: Callable[[str], None],
    ) -> None:
        run_id = state.tracker_ids.setdefault("wandb", secrets.token_hex(4))
        import wandb

        mode = os.environ.get("WANDB_MODE")
        if mode is None and not has_key():
            mode = "offline"
            sync = f"wandb login, then wandb sync {folder / 'wandb'}/offline-run-*"
            say(f"W&B: no API key, metrics stay on this machine; to upload them: {sync}")
        self._wandb: Any = wandb
        # Its output would disturb the progress panel on the terminal.
        settings = wandb.Settings(console="off", silent=True, init_timeout=INIT_TIMEOUT_S)
        self._run: Any = wandb.init(
            id=run_id,
            name=state.run_name,
            project=config.wandb_project_name,
            entity=config.wandb_entity,
            config=dict(details),
            dir=str(folder),
            mode=mode,  # type: ignore[arg-type]  # wandb checks the value of the variable
            # An offline run cannot be resumed; `wandb sync` joins its parts by id.
            resume=None if mode == "offline" else "allow",
            allow_val_change=True,  # settings of a resumed run may differ
            reinit="create_new",
            settings=settings,
        )

    def write(self, step: int, scalars: Mapping[str, float]) -> None:
        """Send scalars under their tags."""
        self._run.log(dict(scalars), step=step)

    def file(self, step: int, name: str, path: Path) -> None:
        """Send a video, or a page without changes; folders are not sent."""
        if path.is_dir():
            return
        if path.suffix == ".html":
            with path.open(encoding="utf-8") as page:
                media = self._wandb.Html(page, inject=False)
        else:
            media = self._wandb.Video(str(path))
        self._run.log({name: media}, step=step)

    def close(self) -> None:
        """Send buffered scalars and finish the run."""
        self._run.finish()


def has_key() -> bool:
    """Return True if W&B finds an API key in the environment or in a netrc file."""
    if os.environ.get("WANDB_API_KEY") or os.environ.get("WANDB_IDENTITY_TOKEN_FILE"):
        return True
    host = urlsplit(os.environ.get("WANDB_BASE_URL", BASE_URL)).hostname or ""
    named = os.environ.get("NETRC")
    paths = [Path(named)] if named else [Path.home() / ".netrc", Path.home() / "_netrc"]
    for path in paths:
        with suppress(OSError, netrc.NetrcParseError):
            if netrc.netrc(path).authenticators(host) is not None:
                return True
    return False


@final
class MlflowSink:
    """An MLflow run, which a resumed run continues.

    The name of a metric is its tag, with a full stop for each character that MLflow rejects.
    Infinity and NaN are omitted, because some servers reject them.

    Args:
        config: configuration of the run, with the server or store and the experiment.
        state: state of the run; `tracker_ids` holds the id of the MLflow run, set for a new one.
        settings: parameters by dotted name; a continued run keeps its parameters.
        details: tags of the run.
    """

    def __init__(
        self,
        config: TrainConfig,
        state: "State",
        settings: Mapping[str, object],
        details: Mapping[str, object],
    ) -> None:
        for name, value in PATIENCE.items():
            os.environ.setdefault(name, value)
        from mlflow import MlflowClient
        from mlflow.entities import Param

        client: Any = MlflowClient(config.mlflow_tracking_uri)
        self._client = client
        self._run_id = state.tracker_ids.get("mlflow", "")
        if self._run_id:
            client.update_run(self._run_id, status="RUNNING")
            return
        existing, create = client.get_experiment_by_name(config.name), client.create_experiment
        experiment = create(config.name) if existing is None else existing.experiment_id
        tags = {name: str(value) for name, value in details.items()}
        run = client.create_run(experiment, run_name=state.run_name, tags=tags)
        self._run_id = run.info.run_id
        params = [Param(key, str(value)[:LONGEST_VALUE]) for key, value in settings.items()]
        for start in range(0, len(params), BATCH):
            client.log_batch(self._run_id, params=params[start : start + BATCH])
        state.tracker_ids["mlflow"] = self._run_id

    def write(self, step: int, scalars: Mapping[str, float]) -> None:
        """Send the finite scalars, up to 1,000 per request."""
        from mlflow.entities import Metric

        now_ms = int(1000 * time.time())
        names = {tag: metric_name(tag) for tag in scalars}
        folders = {str(folder) for name in names.values() for folder in PurePath(name).parents}
        metrics = [
            # A file store cannot have a file and a folder of the same name.
            Metric(f"{name}/own" if name in folders else name, float(scalars[tag]), now_ms, step)
            for tag, name in names.items()
            if math.isfinite(scalars[tag])
        ]
        for start in range(0, len(metrics), 10 * BATCH):
            self._client.log_batch(self._run_id, metrics=metrics[start : start + 10 * BATCH])

    def file(self, step: int, name: str, path: Path) -> None:
        """Upload a file as an artifact in a folder for its name and step.

        A folder becomes the artifact folder of its name, and replaces the files of earlier steps.
        """
        if path.is_dir():
            self._client.log_artifacts(self._run_id, str(path), metric_name(name))
        else:
            self._client.log_artifact(self._run_id, str(path), f"{metric_name(name)}/{step}")

    def close(self) -> None:
        """Mark the run as finished."""
        self._client.set_terminated(self._run_id)


def metric_name(tag: str) -> str:
    """Return a tag with a full stop for each character that MLflow rejects."""
    return "".join(c if (c.isascii() and c.isalnum()) or c in "_-./ " else "." for c in tag)


def check_packages(config: TrainConfig) -> None:
    """Check that the packages of the services in a configuration are installed.

    Raises:
        ConfigError: a package is missing.
    """
    uses_mlflow = config.mlflow_tracking_uri is not None
    uses = {"track": ("wandb", config.track), "mlflow_tracking_uri": ("mlflow", uses_mlflow)}
    for field, (package, is_used) in uses.items():
        if is_used and (missing := missing_package(package)):
            raise ConfigError(f"{field}: {missing}")
