"""Settings that a resumed run must keep, may change with a notice, or may change freely."""

import dataclasses
import json
from typing import Any, NamedTuple

from enn_trainer.config.build import as_data
from enn_trainer.config.help import join_path
from enn_trainer.config.ron import in_one_line
from enn_trainer.config.schedules import as_written

FIXED = {
    "net": "the weights are those of this network",
    "vf_net": "the weights are those of this network",
    "ppo.value_bins": "the values are probabilities of these bins",
    "optim.name": "the moments are those of this optimizer",
    "optim.kwargs": "the moments are those of this optimizer",
}
"""Settings that a resumed run must keep: reason by field or section."""

REPORTED = dict.fromkeys(
    ["net.precision", "vf_net.precision"], "it changes the rounding of everything learnt"
)
"""Settings under `FIXED` sections that a resumed run may change, with a notice."""

_FREE_BY_REASON = {
    "the split of the work has no effect on learning": (
        "rollout.processes eval.processes optim.micro_bs optim.max_entities"
    ),
    "the device has no effect beyond rounding": "cuda cuda_empty_cache torch_deterministic",
    "they set how far the resumed run goes": "total_timesteps max_train_time stop",
    "they set where metrics go": (
        "name trial data_dir track wandb_project_name wandb_entity mlflow_tracking_uri"
    ),
    "they set what is recorded": (
        "capture_samples capture_logits capture_samples_subsample eval.capture_samples "
        "eval.capture_logits eval.capture_samples_subsample eval.capture_videos"
    ),
    "they set when evaluations run, not how": "eval.interval eval.run_on_first_step",
    "validation has no effect on learning": "env.validate",
    "it sets what is saved and kept": "checkpoint",
}
FREE = {path: reason for reason, paths in _FREE_BY_REASON.items() for path in paths.split()}
"""Settings that a resumed run may change without notice: reason by field or section."""


class Change(NamedTuple):
    """Difference of two configurations in one field."""

    path: str
    before: Any
    after: Any

    def __str__(self) -> str:
        return f"{self.path} {shown(self.before)} -> {shown(self.after)}"


def changes(before: object, after: object, path: str = "") -> list[Change]:
    """Return the fields that differ; a section that only one configuration has is one change."""
    if not dataclasses.is_dataclass(before) or type(before) is not type(after):
        return [] if as_written(before) == as_written(after) else [Change(path, before, after)]
    found = []
    for field in dataclasses.fields(before):
        pair = getattr(before, field.name), getattr(after, field.name)
        if "json_text" in field.metadata and json.loads(pair[0]) == json.loads(pair[1]):
            continue
        found += changes(*pair, join_path(path, field.name))
    return found


def fixed(found: list[Change]) -> list[Change]:
    """Return the changes that a resumed run cannot make."""
    return [c for c in found if _is_among(c.path, FIXED) and c.path not in REPORTED]


def worth_a_line(found: list[Change]) -> list[Change]:
    """Return the changes that affect how a resumed run learns or measures."""
    settled = {**FIXED, **FREE}
    return [c for c in found if not _is_among(c.path, settled) or c.path in REPORTED]


def shown(value: Any) -> str:
    """Return a value on one line, as in a file; a section with its non-default fields only."""
    if not dataclasses.is_dataclass(value):
        return in_one_line(as_data(value))
    fields = (
        f"{field.name}: {shown(getattr(value, field.name))}"
        for field in dataclasses.fields(value)
        if getattr(value, field.name) != _default(field)
    )
    return f"({', '.join(fields)})"


def _default(field: "dataclasses.Field[Any]") -> Any:
    made = field.default_factory
    return field.default if made is dataclasses.MISSING else made()


def _is_among(path: str, settings: dict[str, str]) -> bool:
    return any(path == name or path.startswith(f"{name}.") for name in settings)
