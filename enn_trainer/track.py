"""Where the numbers of a run go: TensorBoard files, one scalar per tag and step.

The tags of a run, which dashboards rely on; whoever calls `Track.write` composes them:

| Tags | Meaning |
| --- | --- |
| `charts/learning_rate`, `charts/entropy_coef`, `charts/SPS` | rates; frames per second |
| `schedule/<path of the field>` | the value of each setting that follows a schedule |
| `losses/value_loss`, `losses/policy_loss`, `losses/entropy` | the terms of the loss |
| `losses/approx_kl`, `losses/clipfrac`, `losses/explained_variance` | how far the update went |
| `losses/gradnorm`, `losses/vf_gradnorm` | before clipping |
| `losses/normalised_entropy/<name>`, `charts/entropy_coef/<name>` | of `ppo.ent_targets` |
| `losses/returns_beyond_bins`, `charts/reward_deviation` | of `hl_gauss`; of `reward_scaling` |
| `actions/<name>/<label>` | `action_frequencies` |
| `<name>.mean`, `.min`, `.max`, `.count` | `metric_scalars` of the environments |
| `eval/...` | `metric_scalars` of an evaluation |
| `restart`, `throughput`, `fps`, `eps` | the process: restarts, speed |
"""

from __future__ import annotations

import dataclasses
import itertools
import time
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self, final

import numpy as np
import numpy.typing as npt

from enn_trainer.errors import ConfigError
from enn_trainer.schedules import as_written
from entity_env import (
    ActionName,
    ActionSpace,
    CategoricalActionSpace,
    GlobalCategoricalActionSpace,
    Metric,
)

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

FLUSH_EVERY_S = 10
"""A person watching TensorBoard waits at most this long for a number."""


@final
class Track:
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

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def write(self, step: int, scalars: Mapping[str, float]) -> None:
        """Write each scalar under its own tag. NaN and infinity are written as they are.

        Args:
            step: frames over all environments and restarts.
            scalars: the values by tag.
        """
        for tag, value in scalars.items():
            self._writer.add_scalar(tag, value, step)

    def close(self) -> None:
        """Write what is still buffered and close the files."""
        self._writer.close()


def new_run_name(runs: Path, base: str) -> str:
    """A name for the folder of a new run: the base, the time, and a number if that is taken."""
    stamped = f"{base}__{time.strftime('%Y%m%d-%H%M%S')}"
    names = itertools.chain([stamped], (f"{stamped}-{i}" for i in itertools.count(2)))
    for name in names:
        try:
            (runs / name).mkdir(parents=True)
        except FileExistsError:
            continue
        except OSError as error:
            raise ConfigError(
                f"data_dir: expected a folder to write to, got {runs.parent} ({error.strerror})"
            ) from None
        return name
    raise AssertionError("there is always another number")


def metric_scalars(metrics: Mapping[str, Metric], prefix: str = "") -> dict[str, float]:
    """The scalars of metrics: `{prefix}{name}.mean`, `.min`, `.max` and `.count`.

    A metric that counted nothing has only its count.
    """
    scalars: dict[str, float] = {}
    for name, metric in metrics.items():
        if metric.count > 0:
            scalars[f"{prefix}{name}.mean"] = metric.mean
            scalars[f"{prefix}{name}.min"] = metric.min
            scalars[f"{prefix}{name}.max"] = metric.max
        scalars[f"{prefix}{name}.count"] = float(metric.count)
    return scalars


def action_frequencies(
    action_space: Mapping[ActionName, ActionSpace],
    chosen: Mapping[ActionName, npt.NDArray[np.int64]],
) -> dict[str, float]:
    """How often each labelled choice was made: `actions/<name>/<label>`, from 0 to 1.

    Args:
        action_space: the actions. Selecting an entity has no labels and gives nothing.
        chosen: (actors,) int64 indices of the choices, for every categorical and global action.

    Returns:
        Frequencies that add up to 1 for each action; none for an action without actors.
    """
    frequencies: dict[str, float] = {}
    for name, space in action_space.items():
        if not isinstance(space, CategoricalActionSpace | GlobalCategoricalActionSpace):
            continue
        indices = chosen[name]
        if indices.size > 0:
            counts = np.bincount(indices, minlength=len(space))
            for label, count in zip(space.index_to_label, counts, strict=True):
                frequencies[f"actions/{name}/{label}"] = float(count / indices.size)
    return frequencies


def flatten_config(config: DataclassInstance) -> dict[str, object]:
    """What a tree of dataclasses was set to, by full name, such as `net.d_model`."""
    flat: dict[str, object] = {}
    for field in dataclasses.fields(config):
        value: Any = getattr(config, field.name)
        if dataclasses.is_dataclass(value) and not isinstance(value, type):
            flat |= {f"{field.name}.{name}": leaf for name, leaf in flatten_config(value).items()}
        else:
            flat[field.name] = as_written(value)
    return flat


def _markdown_table(rows: Mapping[str, object]) -> str:
    lines = ["| parameter | value |", "| --- | --- |"]
    for name, value in rows.items():
        cell = str(value).replace("|", "\\|").replace("\n", " ")  # either would break the table
        lines.append(f"| {name} | {cell} |")
    return "\n".join(lines)
