"""Scalars as TensorBoard files."""

import itertools
import os
import socket
import time
from collections.abc import Mapping
from io import BytesIO
from pathlib import Path
from typing import Any, final

FORMAT = "brain.Event:2"
"""What a file of events begins with."""


@final
class TensorBoardSink:
    """Writes scalars to a TensorBoard file.

    Not by the writer of torch, whose thread says with a traceback that a disk is full, and leaves
    half an event there, behind which nothing is read.

    Args:
        log_dir: where the file goes; made when absent.
        config_table: the hyperparameters by full name, written as a table under the text tag
            "hyperparameters"; see `flatten_config`.
        step: where the run begins or continues; what earlier files have beyond it is not shown.
    """

    def __init__(self, log_dir: Path, config_table: Mapping[str, object], step: int = 0) -> None:
        # Imported here because it takes seconds and most commands track nothing.
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
        """Write scalars, as one event. NaN and infinity are written as they are.

        Raises:
            OSError: they could not be written; then none of them is in the file.
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
