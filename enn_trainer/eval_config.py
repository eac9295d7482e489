"""What a named suite of an evaluation has otherwise, and how it is put together with the rest.

hyperstate's type reader knows `Optional[int]` and not `int | None`: no
`from __future__ import annotations` here. It reads the `Attributes:` of each class as its help.
"""

import json
from collections.abc import Iterator
from dataclasses import dataclass, field, fields, replace
from typing import Any, Optional

from enn_trainer.config_checks import JSON_TEXT, json_object, refuse, usable_path, within
from enn_trainer.errors import ConfigError
from entity_env.short_repr import short_repr

NAME_TAKEN = "entity_count"
"""Metrics have names like `entity_count/Unit`, which a suite of this name would have as well."""


@dataclass
class EvalEnvConfig:
    """The environment of one suite.

    Attributes:
        kwargs: Arguments, as a JSON object, that replace those of the same names in eval.env; all
            of them if `id` is another one.
        id: The environment's id; as in eval.env if not set.
        validate: Check everything that the environment returns; as in eval.env if not set.
    """

    kwargs: str = field(default="{}", metadata=JSON_TEXT)
    id: Optional[str] = None
    validate: Optional[bool] = None

    def __post_init__(self) -> None:
        refuse(json_object("kwargs", self.kwargs), usable_path("id", self.id))


@dataclass
class EvalSuiteConfig:
    """One of several evaluations at the same time; what it leaves out is as in `eval`.

    Attributes:
        steps: Number of steps in each environment, instead of whole episodes.
        episodes: Number of whole episodes, instead of steps.
        max_steps: Number of steps in each environment after which whole episodes are given up.
        num_envs: Number of environments that run side by side.
        env: What the environment has otherwise.
        deterministic: Take the most probable choices instead of sampling.
        opponent: Path of a checkpoint whose policy plays the other side, or "random"; "" for none.
        opponent_only: Let the opponent play itself, and leave the policy out.
    """

    steps: Optional[int] = None
    episodes: Optional[int] = None
    max_steps: Optional[int] = None
    num_envs: Optional[int] = None
    env: Optional[EvalEnvConfig] = None
    deterministic: Optional[bool] = None
    opponent: Optional[str] = None
    opponent_only: Optional[bool] = None

    def __post_init__(self) -> None:
        refuse(
            within("steps", self.steps, 1),
            within("episodes", self.episodes, 1),
            within("max_steps", self.max_steps, 1),
            within("num_envs", self.num_envs, 1),
            usable_path("opponent", self.opponent),
            "steps, episodes: expected one of them, got both"
            if self.steps is not None and self.episodes is not None
            else None,
        )


def all_suites(evaluation: Any, env: Any) -> Iterator[tuple[str, Any]]:
    """The evaluations that a configuration asks for, the unnamed one first.

    Args:
        evaluation: an `EvalConfig`.
        env: an `EnvConfig`, that of rollouts.

    Returns:
        Pairs of a name, "" for the unnamed one, and an `EvalConfig` that has no suites, and whose
        environment is set.

    Raises:
        ConfigError: a suite cannot be put together; the problems begin with its path in `eval`.
    """
    whole = replace(evaluation, suites={}, env=evaluation.env or env)
    yield "", whole
    for name, suite in evaluation.suites.items():
        try:
            yield name, _with_suite(whole, suite)
        except ConfigError as error:
            where = suite_path(name)
            raise ConfigError(*(f"{where}.{problem}" for problem in error.problems)) from None


def suite_path(name: str) -> str:
    """What a suite is called in `eval`, in messages."""
    return f"suites[{name!r}]"


def bad_suite_name(name: str) -> str | None:
    """Say what is wrong with the name of a suite, which becomes a part of tags and file names."""
    if name.isprintable() and name.strip() == name != NAME_TAKEN and name and "/" not in name:
        return None
    return (
        f"suites: expected names that can be printed, without '/', not {NAME_TAKEN!r} and not "
        f"empty, got {short_repr(name)}"
    )


def _with_suite(evaluation: Any, suite: EvalSuiteConfig) -> Any:
    changes: dict[str, Any] = {
        f.name: getattr(suite, f.name) for f in fields(suite) if getattr(suite, f.name) is not None
    }
    if suite.steps is not None:
        changes["episodes"] = None
    if suite.episodes is not None:
        changes["steps"] = None
    if suite.opponent == "":
        changes |= {"opponent": None, "opponent_only": bool(suite.opponent_only)}
    if suite.env is not None:
        changes["env"] = with_env(evaluation.env, suite.env)
    unrecorded = {"capture_samples": "", "capture_samples_subsample": 1}  # a file has one suite
    return replace(evaluation, **unrecorded, **changes)


def with_env(env: Any, change: EvalEnvConfig) -> Any:
    """An `EnvConfig` with what is otherwise; arguments of another world are its own defaults."""
    same = change.id in (None, env.id)
    kwargs = {**(json.loads(env.kwargs) if same else {}), **json.loads(change.kwargs)}
    return replace(
        env,
        id=env.id if change.id is None else change.id,
        kwargs=json.dumps(kwargs),
        validate=env.validate if change.validate is None else change.validate,
    )
