"""Scalars as TensorBoard files."""

from collections.abc import Mapping
from pathlib import Path
from typing import final

FLUSH_EVERY_S = 10
"""A person watching TensorBoard waits at most this long for a number."""


@final
class TensorBoardSink:
    """Writes scalars to TensorBoard files.

    Args:
        log_dir: where the files go; made when absent.
        config_table: the hyperparameters by full name, written as a table under the text tag
            "hyperparameters"; see `flatten_config`.
    """

    def __init__(self, log_dir: Path, config_table: Mapping[str, object]) -> None:
        # Imported here because it takes seconds and most commands track nothing.
        from torch.utils.tensorboard import SummaryWriter

        self._writer = SummaryWriter(str(log_dir), flush_secs=FLUSH_EVERY_S)
        self._writer.add_text("hyperparameters", _markdown_table(config_table))

    def write(self, step: int, scalars: Mapping[str, float]) -> None:
        """Write each scalar under its own tag. NaN and infinity are written as they are."""
        for tag, value in scalars.items():
            self._writer.add_scalar(tag, value, step)

    def close(self) -> None:
        """Write what is still buffered and close the files."""
        self._writer.close()


def _markdown_table(rows: Mapping[str, object]) -> str:
    lines = ["| parameter | value |", "| --- | --- |"]
    for name, value in rows.items():
        cell = str(value).replace("|", "\\|").replace("\n", " ")  # either would break the table
        lines.append(f"| {name} | {cell} |")
    return "\n".join(lines)
