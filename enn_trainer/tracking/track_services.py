"""Metric sinks for services: TensorBoard, Weights & Biases and MLflow.

Their packages are imported when a sink is opened: that takes seconds, and most commands write no
metrics.

A line is `{"step": 2048, "time": 1760000000.0, "kind": "update", "losses/entropy": 1.5, ...}`,
where `time` is in seconds since 1970, and the kind of an evaluation is "eval". JSON has no numbers
that are not finite: these are written as the strings "nan", "inf" and "-inf", which `float` reads.
A line of the kind "notice" has no metrics, but the texts `notice` (its name), `text` and `page`.
"""

import importlib.util
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
from typing import Any, final
from urllib.parse import urlsplit

from enn_trainer.base.errors import ConfigError
from enn_trainer.checkpoints.state import State
from enn_trainer.config import TrainConfig
from enn_trainer.config.validation import unwritable
from entity_env.serialization.plain_open import append_plain, new_file, open_plain, read_plain

EVAL_PREFIX = "eval/"
EVAL, UPDATE, NOTICE = "eval", "update", "notice"
NOT_TAGS = ("step", "time", "kind")


@final
class JsonlSink:
    """A file to which each call of `write` appends a line.

    Each line is one system call, so that a killed run leaves whole lines. A resumed run writes the
    steps after its save again, so their lines are dropped when the file is opened. The evaluation
    at the step of the save is dropped when it is written again.

    Args:
        path: the file; appended to if it exists.
        step: the first step of the run, or the step of the save that it resumes from.
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
            number = float(value)  # json does not take numbers of numpy and torch
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
        """Drop damaged lines and those that `keep` rejects; open the file to append to it."""
        kept = self._path.with_name(f"{self._path.name}.tmp")
        dropped, damaged = False, None
        try:
            append_plain(self._path).close()  # raises if it is a link or no regular file
            with new_file(kept) as file:
                for number, text, row in read_lines(self._path):
                    # An incomplete last line is left by a kill: only damage before it is reported.
                    if damaged is not None:
                        self._say(f"{self._path}: line {damaged} is damaged and was dropped")
                    damaged = number if row is None else None
                    if row is not None and keep(row):
                        file.write(text)
                    else:
                        dropped = True
                file.flush()
                os.fsync(file.fileno())
            kept.replace(self._path) if dropped else kept.unlink()
            if self._file >= 0:
                os.close(self._file)
            self._file = open_plain(self._path, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        except OSError as error:
            raise unwritable(self._path, error) from None


def read_lines(path: Path) -> Iterator[tuple[int, bytes, dict[str, Any] | None]]:
    """Yield the number from 1, the bytes and the content of each line of a file.

    The content of a damaged or incomplete line is None.
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
"""Bytes of a line with a notice, at most."""


def read_notices(path: Path) -> Iterator[dict[str, Any]]:
    """Yield the rows of the notices in a file of metrics; nothing if it cannot be read.

    Lines that are damaged, or have no texts, are left out.
    """
    with suppress(OSError), read_plain(path) as file:
        for line in iter(lambda: file.readline(LONGEST_NOTICE), b""):
            if b'"kind": "notice"' not in line:  # the others are many, and long
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
"""Timeout of the connection to W&B at the beginning of a run."""
BASE_URL = "https://api.wandb.ai"
BATCH = 100
"""Number of parameters in one request to MLflow; a server takes ten times as many metrics."""
LONGEST_VALUE = 500
"""Maximal length of the value of a parameter; some servers take no longer ones."""
PATIENCE = {"MLFLOW_HTTP_REQUEST_MAX_RETRIES": "1", "MLFLOW_HTTP_REQUEST_TIMEOUT": "10"}
"""Retries and timeout of requests: training waits for them, and MLflow's defaults are minutes."""


@final
class TensorBoardSink:
    """A TensorBoard event file.

    It does not use the writer of torch, whose thread prints a traceback when the disk is full and
    leaves half an event, after which TensorBoard reads nothing.

    Args:
        log_dir: the folder of the file; created if it does not exist.
        config_table: the hyperparameters by dotted name, written as a table under the text tag
            "hyperparameters"; see `flatten_config`.
        step: the first step of the run, or the step of the save that it resumes from; TensorBoard
            hides later steps of earlier files.
    """

    def __init__(self, log_dir: Path, config_table: Mapping[str, object], step: int = 0) -> None:
        import torch.utils.tensorboard.summary
        from tensorboard.compat.proto import event_pb2  # type: ignore[import-untyped]
        from tensorboard.summary.writer import record_writer  # type: ignore[import-untyped]

        self._summary: Any = torch.utils.tensorboard.summary
        self._protos, self._records = event_pb2, record_writer
        log_dir.mkdir(parents=True, exist_ok=True)
        stem = f"events.out.tfevents.{int(time.time())}.{socket.gethostname()}.{os.getpid()}"
        for taken in itertools.count():
            with suppress(FileExistsError):
                path, flags = log_dir / f"{stem}.{taken}", os.O_WRONLY | os.O_CREAT | os.O_EXCL
                self._file = os.open(path, flags, 0o666)
                break
        lines = ["| parameter | value |", "| --- | --- |"]
        for name, value in config_table.items():
            cell = str(value).replace("|", "\\|").replace("\n", " ")  # either would break the table
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
            OSError: the event could not be written; then nothing of it is in the file.
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
            left = data.getvalue()
            while left:
                left = left[os.write(self._file, left) :]
        except OSError:
            os.ftruncate(self._file, size)
            os.lseek(self._file, size, os.SEEK_SET)
            raise


@final
class WandbSink:
    """A run of W&B, which a resumed run continues.

    Offline the metrics are kept on the disk for `wandb sync`: with WANDB_MODE=offline, and without
    an API key, as a prompt for one would stop an unattended run.

    Args:
        config: configuration of the run, which names the project and its owner.
        state: `tracker_ids` of it has the id of a run to continue, and gets that of a new one.
        about: settings and description that W&B displays, by dotted name.
        folder: the folder for the files of wandb.
        say: prints a line.
    """

    def __init__(
        self,
        config: TrainConfig,
        state: State,
        about: Mapping[str, object],
        folder: Path,
        say: Callable[[str], None],
    ) -> None:
        run_id = state.tracker_ids.setdefault("wandb", secrets.token_hex(4))
        import wandb

        mode = os.environ.get("WANDB_MODE")
        if mode is None and not has_key():
            mode = "offline"
            sync = f"wandb login, then wandb sync {folder / 'wandb'}/offline-run-*"
            say(f"W&B: no API key, so the numbers stay on this machine ({sync})")
        self._wandb: Any = wandb
        # Its output would disturb the progress panel on the terminal.
        settings = wandb.Settings(console="off", silent=True, init_timeout=INIT_TIMEOUT_S)
        self._run: Any = wandb.init(
            id=run_id,
            name=state.run_name,
            project=config.wandb_project_name,
            entity=config.wandb_entity,
            config=dict(about),
            dir=str(folder),
            mode=mode,  # type: ignore[arg-type]  # wandb checks the value of the variable
            # Offline there is no run to resume; `wandb sync` joins the parts by their id.
            resume=None if mode == "offline" else "allow",
            allow_val_change=True,  # settings of a resumed run may differ
            reinit="create_new",
            settings=settings,
        )

    def write(self, step: int, scalars: Mapping[str, float]) -> None:
        """Send scalars under their tags."""
        self._run.log(dict(scalars), step=step)

    def file(self, step: int, name: str, path: Path) -> None:
        """Send a video, or a page as it is."""
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
    """A run of MLflow.

    Metrics are named by their tags, with a full stop for each character that MLflow does not take.
    Values that are not finite are left out, as not every server takes them.

    Args:
        config: configuration of the run, which names the server or store and the experiment.
        state: `tracker_ids` of it has the id of a run to continue, and gets that of a new one.
        settings: the parameters, by dotted name. A run that is continued keeps its own.
        about: the tags of the run.
    """

    def __init__(
        self,
        config: TrainConfig,
        state: State,
        settings: Mapping[str, object],
        about: Mapping[str, object],
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
        found, create = client.get_experiment_by_name(config.name), client.create_experiment
        experiment = create(config.name) if found is None else found.experiment_id
        tags = {name: str(value) for name, value in about.items()}
        run = client.create_run(experiment, run_name=state.run_name, tags=tags)
        self._run_id = run.info.run_id
        params = [Param(key, str(value)[:LONGEST_VALUE]) for key, value in settings.items()]
        for start in range(0, len(params), BATCH):
            client.log_batch(self._run_id, params=params[start : start + BATCH])
        state.tracker_ids["mlflow"] = self._run_id

    def write(self, step: int, scalars: Mapping[str, float]) -> None:
        """Send the finite scalars, up to 1,000 in a request."""
        from mlflow.entities import Metric

        now_ms = int(1000 * time.time())
        names = {tag: metric_name(tag) for tag in scalars}
        folders = {str(folder) for name in names.values() for folder in PurePath(name).parents}
        metrics = [
            # A store in files cannot have a file and a folder of one name.
            Metric(f"{name}/own" if name in folders else name, float(scalars[tag]), now_ms, step)
            for tag, name in names.items()
            if math.isfinite(scalars[tag])
        ]
        for start in range(0, len(metrics), 10 * BATCH):
            self._client.log_batch(self._run_id, metrics=metrics[start : start + 10 * BATCH])

    def file(self, step: int, name: str, path: Path) -> None:
        """Upload a video or a page as an artifact in a folder for its name and step."""
        self._client.log_artifact(self._run_id, str(path), f"{metric_name(name)}/{step}")

    def close(self) -> None:
        """Mark the run as finished."""
        self._client.set_terminated(self._run_id)


def metric_name(tag: str) -> str:
    """Return a tag with a full stop for each character that MLflow does not take."""
    return "".join(c if (c.isascii() and c.isalnum()) or c in "_-./ " else "." for c in tag)


def check_mlflow() -> None:
    """Raise if MLflow is not installed.

    Raises:
        ConfigError: the package is missing.
    """
    if importlib.util.find_spec("mlflow") is None:
        missing = "expected the package mlflow, which is not installed"
        raise ConfigError(f"mlflow_tracking_uri: {missing}; pip install 'enn-trainer[mlflow]'")
