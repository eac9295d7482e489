"""Settings of environments, evaluations and evaluation suites.

hyperstate's managers also read these classes and support only `Optional[int]`, not `int | None`: no
`from __future__ import annotations` here. The `Attributes:` of each class are its help.
"""

import json
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Any, Dict, Optional

from enn_trainer.config.validation import JSON_TEXT, PATH, Problems, Section, Validator, limited
from entity_env.errors import InvalidSampler, short_repr
from entity_env.vec.samplers import read_sampler

RECORDING = "capture_samples with a file to write to"
NAME_TAKEN = "entity_count"
"""Name that a suite cannot have: its tags would collide with `entity_count/Unit`."""


@dataclass
class EnvConfig(Section):
    """The environment and its arguments.

    Attributes:
        kwargs: Keyword arguments of the environment, as a JSON object; in files also a section.
        id: The environment: one of `enn envs`, package.module:Class, or path/file.py:Class.
        validate: Check everything that the environment returns against its spaces.
        vary: Arguments that vary between episodes: samplers by name, such as "int 0 20",
            "uniform 0 1" or "choice 4 8". env.vary applies only to training.
    """

    kwargs: str = field(default="{}", metadata=JSON_TEXT)
    id: str = field(default="MoveToOrigin", metadata=PATH)
    validate: bool = True
    vary: Dict[str, str] = field(default_factory=dict)

    def _check(self, check: Validator) -> None:
        check_samplers(check, self.vary, "vary")
        if self.vary and not check.messages:
            both = [name for name in self.vary if name in json.loads(self.kwargs)]
            check.require(
                not both, f"vary: expected arguments that are not in kwargs, got {', '.join(both)}"
            )


def check_samplers(check: Validator, texts: Dict[str, str], path: str) -> None:
    """Check the syntax of samplers.

    Args:
        check: Collector of problems.
        texts: Samplers by argument.
        path: Path of the setting, for messages.
    """
    for name, text in texts.items():
        try:
            read_sampler(text, f"{path}.{name}")
        except InvalidSampler as error:
            check.require(False, str(error))


@dataclass
class EvalEnvConfig(Section):
    """Environment of one suite.

    Attributes:
        kwargs: Arguments, as a JSON object, that override arguments of eval.env; if `id` is another
            environment, all of its arguments.
        id: The environment's id; as in eval.env if not set.
        validate: Check everything that the environment returns; as in eval.env if not set.
        vary: Arguments that vary between episodes; they extend and override eval.env.vary.
    """

    kwargs: str = field(default="{}", metadata=JSON_TEXT)
    id: Optional[str] = field(default=None, metadata=PATH)
    validate: Optional[bool] = None
    vary: Dict[str, str] = field(default_factory=dict)

    def _check(self, check: Validator) -> None:
        check_samplers(check, self.vary, "vary")


@dataclass
class EvalSuiteConfig(Section):
    """One of several evaluations at the same time. Fields that are not set are as in `eval`.

    Attributes:
        steps: Number of steps in each environment, instead of whole episodes.
        episodes: Number of whole episodes, instead of steps.
        max_steps: Limit of the steps in each environment when playing whole episodes.
        num_envs: Number of parallel environments.
        env: Changes of the environment.
        deterministic: Take the most probable actions instead of sampling.
        opponent: Opponent that plays the other side: path of a checkpoint, a bot (file.py:Name or
            module:Name), or "random"; "" for none.
        opponent_only: Let the opponent play itself, without the policy.
    """

    steps: Optional[int] = limited(None, at_least=1)
    episodes: Optional[int] = limited(None, at_least=1)
    max_steps: Optional[int] = limited(None, at_least=1)
    num_envs: Optional[int] = limited(None, at_least=1)
    env: Optional[EvalEnvConfig] = None
    deterministic: Optional[bool] = None
    opponent: Optional[str] = field(default=None, metadata=PATH)
    opponent_only: Optional[bool] = None

    def _check(self, check: Validator) -> None:
        check.require(
            self.steps is None or self.episodes is None,
            "steps, episodes: expected one of them, got both",
        )


@dataclass
class EvalConfig(Section):
    """Settings of the evaluations during a run.

    Attributes:
        steps: Number of steps in each environment per evaluation; set either steps or episodes.
        interval: Number of environment steps between evaluations.
        num_envs: Number of parallel environments; as in rollouts if not set.
        processes: Number of worker processes for the environments; as in rollouts if not set.
        env: The environment to evaluate in; as in rollouts if not set. If it has no id, the id of
            the environment of rollouts.
        capture_videos: Render videos of the environments.
        capture_samples: Record the samples of evaluations to this file; a relative path is in the
            folder of the run, or in data_dir if that is set.
        capture_logits: Record the log-probabilities of all choices with the samples.
        capture_samples_subsample: Record 1 of this many frames, chosen at random.
        run_on_first_step: Also evaluate before the first update.
        opponent: Opponent that plays the other side: path of a checkpoint, a bot (file.py:Name or
            module:Name), or "random".
        opponent_only: Let the opponent play itself, without the policy.
        episodes: Number of whole episodes per evaluation, equally many in each environment.
        max_steps: Limit of the steps in each environment when playing whole episodes.
        deterministic: Take the most probable actions instead of sampling.
        seed: Seed of episodes and actions; the seed of the run if not set.
        suites: Additional evaluations with other settings, by name.
        capture_replays: Write a replay page of the first episodes.
        ray: Evaluate on a Ray cluster: "auto" for a running cluster or a new one on this machine,
            or HOST:PORT; on this machine if not set.
        lag: Evaluate in the background, and report the results this many updates later; needs ray.
    """

    steps: Optional[int] = limited(None, at_least=1)
    interval: int = limited(100_000, at_least=1)
    num_envs: Optional[int] = limited(None, at_least=1)
    processes: Optional[int] = limited(None, at_least=1)
    env: Optional[EnvConfig] = None
    capture_videos: bool = False
    capture_samples: str = field(default="", metadata=PATH)
    capture_logits: bool = True
    capture_samples_subsample: int = limited(1, at_least=1)
    run_on_first_step: bool = True
    opponent: Optional[str] = field(default=None, metadata=PATH)
    opponent_only: bool = False
    episodes: Optional[int] = limited(None, at_least=1)
    max_steps: int = limited(10_000, at_least=1)
    deterministic: bool = False
    seed: Optional[int] = limited(None, at_least=0)
    suites: Dict[str, EvalSuiteConfig] = field(default_factory=dict)
    capture_replays: bool = False
    ray: Optional[str] = None
    lag: int = limited(0, at_least=0)

    def _check(self, check: Validator) -> None:
        check.require(
            (self.steps is None) != (self.episodes is None),
            "steps, episodes: expected exactly one of them, got "
            + ("neither" if self.steps is None else "both"),
        )
        for name in self.suites:
            # The name of a suite becomes a part of tags and file names.
            check.require(
                name.isprintable()
                and name.strip() == name not in ("", NAME_TAKEN)
                and "/" not in name,
                f"suites: expected printable names without '/', not empty and not "
                f"{NAME_TAKEN!r}, got {short_repr(name)}",
            )
        check.only_with("opponent_only", self.opponent is not None, "an opponent")
        check.only_with("lag", self.ray is not None, "eval.ray")
        check_address(check, self.ray)
        for name in ("capture_videos", "capture_samples", "capture_replays"):
            check.require(
                self.ray is None or not getattr(self, name),
                f"{name}: cannot be combined with eval.ray, because workers of the cluster cannot "
                "write files here; remove one of them",
            )
        check.only_with("capture_samples_subsample", bool(self.capture_samples), RECORDING)


def is_address(text: str) -> bool:
    """Return True for the address of a Ray cluster: "auto" or HOST:PORT."""
    host, _, port = text.rpartition(":")
    return text == "auto" or (bool(host) and port.isdecimal() and 0 < int(port) < 65536)


def check_address(check: Validator, ray: Optional[str]) -> None:
    """Check that a setting `ray` is the address of a cluster."""
    check.require(
        ray is None or is_address(ray), f"ray: expected auto or HOST:PORT, got {short_repr(ray)}"
    )


def all_suites(evaluation: EvalConfig, env: EnvConfig) -> Iterator[tuple[str, Any]]:
    """Yield the evaluations of a configuration by name, the unnamed one first.

    Args:
        evaluation: Settings with suites.
        env: The environment of rollouts.

    Yields:
        Pairs of a name ("" for the unnamed evaluation) and an `EvalConfig` that has an environment
        and no suites.

    Raises:
        ConfigError: a suite is invalid; the problems begin with its path in `eval`.
    """
    whole = replace(evaluation, suites={}, env=evaluation.env or replace(env, vary={}))
    yield "", whole
    for name, suite in evaluation.suites.items():
        with Problems() as problems, problems.collect(f"{suite_path(name)}."):
            changed = _with_suite(whole, suite)
        yield name, changed


def suite_path(name: str) -> str:
    """Return the path of a suite in `eval`, for messages."""
    return f"suites[{name!r}]"


def _with_suite(evaluation: EvalConfig, suite: EvalSuiteConfig) -> EvalConfig:
    """Apply the changes of a suite to an evaluation."""
    changes = _values(suite)
    if suite.steps is not None or suite.episodes is not None:
        changes |= {"steps": suite.steps, "episodes": suite.episodes}
    if suite.opponent == "":
        changes |= {"opponent": None, "opponent_only": bool(suite.opponent_only)}
    if suite.env is not None and evaluation.env is not None:
        changes["env"] = with_env(evaluation.env, suite.env)
    # Only samples of the unnamed evaluation are recorded.
    changes |= {"capture_samples": "", "capture_samples_subsample": 1}
    return replace(evaluation, **changes)


def with_env(env: EnvConfig, change: EvalEnvConfig) -> EnvConfig:
    """Apply the changes of a suite to an environment; another id starts from its defaults."""
    is_same, fixed = change.id in (None, env.id), json.loads(change.kwargs)
    kwargs, vary = (json.loads(env.kwargs), env.vary) if is_same else ({}, {})
    # The suite determines whether an argument is fixed or varies.
    kwargs = {**{name: v for name, v in kwargs.items() if name not in change.vary}, **fixed}
    vary = {**{name: text for name, text in vary.items() if name not in fixed}, **change.vary}
    with Problems() as problems, problems.collect("env."):
        changed = replace(env, **{**_values(change), "kwargs": json.dumps(kwargs), "vary": vary})
    return changed


def _values(section: Section) -> dict[str, Any]:
    """Return the fields of a section that are not None."""
    return {name: value for name, value in vars(section).items() if value is not None}


def origin_of(evaluation: EvalConfig, name: str, field: str) -> str:
    """Return the setting that defines a field of a suite, in it, in `eval` or in `rollout`."""
    suite = evaluation.suites.get(name)
    if suite is not None and getattr(suite, field) is not None:
        return f"eval.{suite_path(name)}.{field}"
    return f"rollout.{field}" if getattr(evaluation, field) is None else f"eval.{field}"
