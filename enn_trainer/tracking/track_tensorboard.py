"""Metric sink for TensorBoard."""

import itertools
import os
import socket
import time
from collections.abc import Mapping
from io import BytesIO
from pathlib import Path
from typing import Any, final

FORMAT = "brain.Event:2"
"""Version in the first event of a file."""


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
        # Imported here because it takes seconds and most commands write no metrics.
        import torch.utils.tensorboard.summary

        self._summary: Any = torch.utils.tensorboard.summary
        log_dir.mkdir(parents=True, exist_ok=True)
        self._file = _new_file(log_dir)
        table = self._summary.text("hyperparameters", _markdown_table(config_table))
        begins: list[Mapping[str, Any]] = [{"file_version": FORMAT}]
        if step > 0:
            from tensorboard.compat.proto.event_pb2 import (  # type: ignore[import-untyped]
                SessionLog,
            )

            begins.append({"session_log": SessionLog(status=SessionLog.START), "step": step + 1})
        self._append(*begins, {"summary": table, "step": 0})

    def write(self, step: int, scalars: Mapping[str, float]) -> None:
        """Write scalars as one event, NaN and infinity included.

        Raises:
            OSError: the event could not be written; then nothing of it is in the file.
        """
        summary = self._summary.Summary(
            value=[{"tag": tag, "simple_value": float(value)} for tag, value in scalars.items()]
        )
        self._append({"summary": summary, "step": step})

    def close(self) -> None:
        """Close the file."""
        os.close(self._file)

    def _append(self, *events: Mapping[str, Any]) -> None:
        from tensorboard.compat.proto.event_pb2 import Event
        from tensorboard.summary.writer.record_writer import (  # type: ignore[import-untyped]
            RecordWriter,
        )

        data, now = BytesIO(), time.time()
        records: Any = RecordWriter(data)
        for event in events:
            records.write(Event(wall_time=now, **event).SerializeToString())
        size = os.fstat(self._file).st_size
        try:
            left = data.getvalue()
            while left:
                left = left[os.write(self._file, left) :]
        except OSError:
            os.ftruncate(self._file, size)
            os.lseek(self._file, size, os.SEEK_SET)
            raise


def _new_file(log_dir: Path) -> int:
    stem = f"events.out.tfevents.{int(time.time())}.{socket.gethostname()}.{os.getpid()}"
    for i in itertools.count():
        try:
            return os.open(log_dir / f"{stem}.{i}", os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o666)
        except FileExistsError:
            continue
    raise AssertionError("there is always another number")


def _markdown_table(rows: Mapping[str, object]) -> str:
    lines = ["| parameter | value |", "| --- | --- |"]
    for name, value in rows.items():
        cell = str(value).replace("|", "\\|").replace("\n", " ")  # either would break the table
        lines.append(f"| {name} | {cell} |")
    return "\n".join(lines)
