"""Reading and validation of the text files of a save: `state.ron` and `config.ron`."""

import math
from collections.abc import Callable, Mapping
from dataclasses import fields
from typing import Any

from enn_trainer.checkpoints.format import Checkpoint
from enn_trainer.checkpoints.manifest import is_count
from enn_trainer.config import TrainConfig, ron
from enn_trainer.config.load import load_config
from enn_trainer.errors import CheckpointError, ConfigError
from entity_env.serialization.bounds import Allowance
from entity_env.serialization.messages import rebuilt
from entity_env.short_repr import short_repr
from entity_env.spaces import (
    ACTION_SPACES,
    ActionSpace,
    Entity,
    ObsSpace,
)

STATE_VERSION = 1


def read_config(saved: Checkpoint) -> TrainConfig:
    """Return the configuration of a save.

    Raises:
        CheckpointError: the file cannot be read or has invalid settings.
    """
    text = saved.text("config.ron")
    try:
        return load_config(TrainConfig, None, text=text)
    except ConfigError as error:
        raise CheckpointError(f"{saved.path}: config.ron cannot be read: {error}") from None


def read_state(saved: Checkpoint) -> dict[str, Any]:
    """Return the fields of `State` in `state.ron`, by name.

    Raises:
        CheckpointError: a field is missing, unknown or invalid; the message names it.
    """
    text = saved.text("state.ron")
    try:
        plain = ron.loads(text)
        if not isinstance(plain, dict):
            raise ValueError(f"expected State(...), got {type(plain).__name__}")
        version = plain.pop("version", None)
        if not is_count(version):
            raise ValueError(f"version: expected a number from 1 to {STATE_VERSION}")
        if version > STATE_VERSION:
            raise ValueError(
                f"written by a newer version, {version}, this one reads up to {STATE_VERSION}; "
                "upgrade enn-trainer"
            )
        _check_fields(plain)
        if plain["step"] != saved.step:
            raise ValueError(f"step: expected {saved.step} as in the manifest")
        plain["obs_space"] = obs_space_of(plain["obs_space"])
        plain["action_space"] = action_space_of(plain["action_space"])
    except ValueError as error:
        raise CheckpointError(f"{saved.path}: state.ron cannot be read: {error}") from None
    return plain


def obs_space_of(plain: Any) -> ObsSpace:
    """Return the observation space that plain data describes.

    Raises:
        ValueError: the data does not describe one.
    """
    fields = _fields("obs_space", plain, {"global_features", "entities"})
    return ObsSpace(
        _texts("obs_space.global_features", fields["global_features"]),
        {
            name: Entity(_texts(f"{at}.features", _fields(at, entity, {"features"})["features"]))
            for name, entity in _by_name("obs_space.entities", fields["entities"]).items()
            for at in [f"obs_space.entities[{name!r}]"]
        },
    )


def action_space_of(plain: Any) -> dict[str, ActionSpace]:
    """Return the action spaces that plain data describes; each has a `kind` beside its fields.

    Raises:
        ValueError: the data does not describe them.
    """
    actions: dict[str, ActionSpace] = {}
    for name, space in _by_name("action_space", plain).items():
        at = f"action_space[{name!r}]"
        kind = space.get("kind") if isinstance(space, dict) else None
        cls = ACTION_SPACES.get(kind) if isinstance(kind, str) else None
        if cls is None:
            raise ValueError(f"{at}: expected one of the kinds {', '.join(ACTION_SPACES)}")
        values = _fields(at, space, {"kind", *(field.name for field in fields(cls))})
        del values["kind"]
        if "index_to_label" in values:
            _texts(f"{at}.index_to_label", values["index_to_label"])
            if not values["index_to_label"]:
                raise ValueError(f"{at}.index_to_label: expected choices, got none")
        actions[name] = rebuilt(cls, values, Allowance(0))
    return actions


def _is_seconds(value: object) -> bool:
    return type(value) in (int, float) and 0 <= value < math.inf  # type: ignore[operator]


def _is_folder(value: object) -> bool:
    """Return True for "" or a plain folder name, which leads to no other place."""
    return (
        isinstance(value, str)
        and len(value) < 256
        and value.isprintable()
        and not {*value} & {"/", "\\"}
        and value not in (".", "..")
    )


def _has_text_keys(value: object) -> bool:
    return isinstance(value, dict) and all(isinstance(key, str) for key in value)


_CHECKS: Mapping[str, tuple[Callable[[Any], bool], str]] = {
    "step": (is_count, "a number of at least 0"),
    "restart": (is_count, "a number of at least 0"),
    "next_eval_step": (lambda v: v is None or is_count(v), "a number of at least 0, or None"),
    "time_used": (_is_seconds, "a number of seconds"),
    "run_name": (_is_folder, "the name of a folder"),
    "memory": (
        lambda v: _has_text_keys(v) and is_count(v.get("asked", 0)),
        "the state of stop conditions, by name",
    ),
    "tracker_ids": (
        lambda v: _has_text_keys(v) and all(isinstance(one, str) for one in v.values()),
        "texts by name",
    ),
    "obs_space": (lambda v: isinstance(v, dict), "ObsSpace(...)"),
    "action_space": (lambda v: isinstance(v, dict), "actions by name"),
}


_OPTIONAL = {"time_used", "run_name", "memory", "tracker_ids"}
"""Fields that older saves of this version lack; `State` has defaults for them."""


def _check_fields(plain: Mapping[str, Any]) -> None:
    problems = [f"{name}: no such field" for name in plain if name not in _CHECKS]
    for name, (is_one, expected) in _CHECKS.items():
        if name not in plain and name not in _OPTIONAL:
            problems.append(f"{name}: expected {expected}, got nothing")
        elif name in plain and not is_one(plain[name]):
            problems.append(f"{name}: expected {expected}, got {short_repr(plain[name])}")
    if problems:
        raise ValueError("; ".join(problems[:10]))


def _fields(path: str, value: Any, names: set[str]) -> dict[str, Any]:
    if not isinstance(value, dict) or value.keys() != names:
        raise ValueError(f"{path}: expected the fields {', '.join(sorted(names))}, no others")
    return value


def _by_name(path: str, value: Any) -> dict[str, Any]:
    if not _has_text_keys(value):
        raise ValueError(f"{path}: expected a mapping of names in quotes")
    return value  # type: ignore[no-any-return]


def _texts(path: str, value: Any) -> list[str]:
    if not isinstance(value, list) or not all(isinstance(text, str) for text in value):
        raise ValueError(f"{path}: expected a list of names")
    return value
