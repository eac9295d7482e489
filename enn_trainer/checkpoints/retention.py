"""Retention of checkpoints: a pure function of manifests, settings and pins."""

import math
from collections.abc import Collection, Mapping
from typing import Any, TypeAlias

from enn_trainer.config import CheckpointConfig
from enn_trainer.config.train_config import read_best

NEWEST = "newest"
PINNED = "pinned"

Manifest: TypeAlias = Mapping[str, Any]
Manifests: TypeAlias = Mapping[str, Manifest]
"""Manifests by checkpoint name."""


def reasons_to_keep(
    saves: Manifests, policy: CheckpointConfig, pins: Collection[str]
) -> dict[str, list[str]]:
    """Return the reasons to keep each checkpoint of a run; an empty list if it may be deleted.

    Args:
        saves: manifests of all valid checkpoints.
        policy: the settings.
        pins: names of the pinned checkpoints.

    Returns:
        A list for every checkpoint, such as `["newest", "every 1000 steps"]`.
    """
    reasons: dict[str, list[str]] = {name: [] for name in saves}
    by_step = sorted(saves, key=lambda name: saves[name]["step"])
    for name in by_step[-policy.keep :]:
        reasons[name].append(NEWEST)

    # The first checkpoint of each window of steps, and of each window of training time.
    steps, minutes = policy.keep_every_steps, policy.keep_every_minutes
    if steps is not None:
        windows = {name: saves[name]["step"] // steps for name in by_step}
        for name in _first_of_each(windows):
            reasons[name].append(f"every {steps} steps")
    if minutes is not None:
        seconds = {name: _number(saves[name].get("time_used")) or 0 for name in by_step}
        windows = {name: int(seconds[name] // (60 * minutes)) for name in by_step}
        for name in _first_of_each(windows):
            reasons[name].append(f"every {minutes:g} minutes")

    for text in policy.best:
        for name in best_of(saves, text, policy.keep_best):
            reasons[name].append(f"best {text}")
    for name in saves:
        if name in pins:
            reasons[name].append(PINNED)
    return reasons


def reasons_to_save(
    saves: Manifests, name: str, manifest: Manifest, policy: CheckpointConfig
) -> list[str]:
    """Return the reasons to save now, other than being the newest checkpoint.

    Args:
        saves: manifests of the existing checkpoints.
        name: name of the new checkpoint.
        manifest: fields of the new manifest that are known already.
        policy: the settings.
    """
    reasons = reasons_to_keep({**saves, name: manifest}, policy, ())[name]
    return [reason for reason in reasons if reason != NEWEST]


def best_of(saves: Manifests, text: str, count: int) -> list[str]:
    """Return the names of the best checkpoints, best first; ties go to the earlier one.

    Args:
        saves: manifests of valid checkpoints.
        text: metric and direction, such as "eval/episodic_reward.mean max".
        count: maximal number of names.
    """
    best = read_best(text)
    values = {name: _number(_metrics(saves[name]).get(best.key)) for name in saves}
    ranks = {name: -best.sign * value for name, value in values.items() if value is not None}
    return sorted(ranks, key=lambda name: (ranks[name], saves[name]["step"]))[:count]


def measured(manifest: Manifest) -> dict[str, float]:
    """Return the finite metrics that were measured at the step of a checkpoint, by tag."""
    numbers = {key: _number(value) for key, value in _metrics(manifest).items()}
    return {key: number for key, number in numbers.items() if number is not None}


def adds_metrics(facts: Manifest, manifest: Manifest) -> bool:
    """Return True if `facts` have metrics that a manifest of the same step lacks."""
    return not _metrics(facts).keys() <= _metrics(manifest).keys()


def _first_of_each(windows: Mapping[str, int]) -> list[str]:
    """Return the first checkpoint of each window; window 0 does not count."""
    first: dict[int, str] = {}
    for name, window in windows.items():
        first.setdefault(window, name)
    return [name for window, name in first.items() if window > 0]


def _metrics(manifest: Manifest) -> Mapping[str, object]:
    metrics = manifest.get("metrics")
    return metrics if isinstance(metrics, Mapping) else {}


def _number(value: object) -> float | None:
    return value if isinstance(value, int | float) and math.isfinite(value) else None
