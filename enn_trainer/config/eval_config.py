"""Settings of environments and evaluations, and the named suites of these.

hyperstate's managers read these classes too, and know `Optional[int]` and not `int | None`: no
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
"""Metrics have names like `entity_count/Unit`, which a suite of this name would have as well."""


@dataclass
class EnvConfig(Section):
    """The environment to run, and its arguments.

    Attributes:
        kwargs: Keyword arguments of the environment, as a JSON object; files may have a section.
        id: The environment: one of `enn envs`, package.module:Class, or path/file.py:Class.
        validate: Check everything that the environment returns against its spaces.
        vary: Arguments that vary from episode to episode, in env those of training alone: samplers
            by name, such as "int 0 20", "uniform 0 1" or "choice 4 8".
    """

    kwargs: str = field(default="{}", metadata=JSON_TEXT)
    id: str = field(default="MoveToOrigin", metadata=PATH)
    validate: bool = True
    vary: Dict[str, str] = field(default_factory=dict)

    def _check(self, check: Validator) -> None:
        check_samplers(check, self.vary, "vary")
        if self.vary and not check.found:
            both = [name for name in self.vary if name in json.loads(self.kwargs)]
            check.require(
                not both, f"vary: expected arguments that are not in kwargs, got {', '.join(both)}"
            )


def check_samplers(check: Validator, texts: Dict[str, str], path: str) -> None:
    """Collect the problems of samplers that cannot be read.

    Args:
        check: collects the problems.
        texts: samplers by the name of the argument.
        path: path of the setting that has them.
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
        kwargs: Arguments, as a JSON object, that replace those of the same names in eval.env; all
            of them if `id` is another one.
        id: The environment's id; as in eval.env if not set.
        validate: Check everything that the environment returns; as in eval.env if not set.
        vary: Arguments that vary from episode to episode, beside or in place of those of eval.env.
    """

    kwargs: str = field(default="{}", metadata=JSON_TEXT)
    id: Optional[str] = field(default=None, metadata=PATH)
    validate: Optional[bool] = None
    vary: Dict[str, str] = field(default_factory=dict)

    def _check(self, check: Validator) -> None:
        check_samplers(check, self.vary, "vary")


@dataclass
class EvalSuiteConfig(Section):
    """One of several evaluations at the same time. Fields that are left out are as in `eval`.

    Attributes:
        steps: Number of steps in each environment, instead of whole episodes.
        episodes: Number of whole episodes, instead of steps.
        max_steps: Number of steps in each environment after which whole episodes are given up.
        num_envs: Number of environments that run side by side.
        env: Changes of the environment.
        deterministic: Take the most probable choices instead of sampling.
        opponent: Path of a checkpoint whose policy plays the other side, a bot (file.py:Name or
            module:Name), or "random"; "" for none.
        opponent_only: Let the opponent play itself, and leave the policy out.
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
        steps: Number of steps in each environment per evaluation; one of steps and episodes is set.
        interval: Number of environment steps between evaluations.
        num_envs: Number of environments that run side by side; as in rollouts if not set.
        processes: Number of processes that share the environments; as in rollouts if not set.
        env: The environment to evaluate in; as in rollouts if not set. Its id is that of
            rollouts if it has none.
        capture_videos: Render videos of the environments.
        capture_samples: Write the samples of evaluations to this file; if its path is relative,
            in the folder of the run, or under data_dir if that is set.
        capture_logits: Keep the log-probabilities of all choices with the samples.
        capture_samples_subsample: Keep one of this many frames, chosen at random.
        run_on_first_step: Evaluate before the first update, too.
        opponent: Path of a checkpoint whose policy plays the other side, a bot (file.py:Name or
            module:Name), or "random".
        opponent_only: Let the opponent play itself, and leave the policy out.
        episodes: Number of whole episodes per evaluation, as many in each environment.
        max_steps: Number of steps in each environment after which whole episodes are given up.
        deterministic: Take the most probable choices instead of sampling.
        seed: Seed of episodes and choices; that of the run if not set.
        suites: More evaluations at the same time by their names, with other settings.
        capture_replays: Write a page on which the first episodes can be watched.
        ray: Play evaluations on a Ray cluster: "auto" for the one that runs or one on this machine,
            or HOST:PORT; here if not set.
        lag: Number of updates after which the results of an evaluation count, which goes on beside
            them; needs ray.
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
            # A suite's name becomes a part of tags and file names.
            check.require(
                name.isprintable()
                and name.strip() == name not in ("", NAME_TAKEN)
                and "/" not in name,
                f"suites: expected names that can be printed, without '/', not {NAME_TAKEN!r} "
                f"and not empty, got {short_repr(name)}",
            )
        check.only_with("opponent_only", self.opponent is not None, "an opponent")
        check.only_with("lag", self.ray is not None, "eval.ray")
        check_address(check, self.ray)
        for name in ("capture_videos", "capture_samples", "capture_replays"):
            check.require(
                self.ray is None or not getattr(self, name),
                f"{name}: expected no eval.ray beside it, as files are written where an evaluation "
                "is played; leave one of them out",
            )
        check.only_with("capture_samples_subsample", bool(self.capture_samples), RECORDING)


def is_address(text: str) -> bool:
    """Return True for the address of a Ray cluster: "auto" or HOST:PORT."""
    host, _, port = text.rpartition(":")
    return text == "auto" or (bool(host) and port.isdecimal() and 0 < int(port) < 65536)


def check_address(check: Validator, ray: Optional[str]) -> None:
    """Collect the problem of a setting `ray` that is no address of a cluster."""
    check.require(
        ray is None or is_address(ray), f"ray: expected auto or HOST:PORT, got {short_repr(ray)}"
    )


def all_suites(evaluation: EvalConfig, env: EnvConfig) -> Iterator[tuple[str, Any]]:
    """Yield the evaluations that a configuration asks for by name, the unnamed one first.

    Args:
        evaluation: With suites.
        env: The environment of rollouts.

    Returns:
        Pairs of a name, "" for the unnamed one, and an `EvalConfig` without suites, whose
        environment is set.

    Raises:
        ConfigError: a suite does not fit the rest; the problems begin with its path in `eval`.
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
    """Return an evaluation with what one of its suites changes."""
    changes = _given(suite)
    if suite.steps is not None or suite.episodes is not None:
        changes |= {"steps": suite.steps, "episodes": suite.episodes}
    if suite.opponent == "":
        changes |= {"opponent": None, "opponent_only": bool(suite.opponent_only)}
    if suite.env is not None and evaluation.env is not None:
        changes["env"] = with_env(evaluation.env, suite.env)
    # A file of samples has those of one evaluation, the unnamed one.
    changes |= {"capture_samples": "", "capture_samples_subsample": 1}
    return replace(evaluation, **changes)


def with_env(env: EnvConfig, change: EvalEnvConfig) -> EnvConfig:
    """Return an environment with what a suite changes; another one starts from its own defaults."""
    same, own = change.id in (None, env.id), json.loads(change.kwargs)
    kwargs, vary = (json.loads(env.kwargs), env.vary) if same else ({}, {})
    # An argument is either fixed or varies, as the suite says.
    kwargs = {**{name: v for name, v in kwargs.items() if name not in change.vary}, **own}
    vary = {**{name: text for name, text in vary.items() if name not in own}, **change.vary}
    with Problems() as problems, problems.collect("env."):
        changed = replace(env, **{**_given(change), "kwargs": json.dumps(kwargs), "vary": vary})
    return changed


def _given(section: Section) -> dict[str, Any]:
    """Return the fields of a section that are set."""
    return {name: value for name, value in vars(section).items() if value is not None}


def origin_of(evaluation: EvalConfig, name: str, field: str) -> str:
    """Return the setting that defines a field of a suite: its own, of `eval` or of rollouts."""
    own = evaluation.suites.get(name)
    if own is not None and getattr(own, field) is not None:
        return f"eval.{suite_path(name)}.{field}"
    return f"rollout.{field}" if getattr(evaluation, field) is None else f"eval.{field}"
