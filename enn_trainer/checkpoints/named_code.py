"""Code named by configurations and checkpoints: environments, arguments, bots, Ray settings."""

import json
from collections.abc import Collection, Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

from enn_trainer.checkpoints.format import Checkpoint
from enn_trainer.checkpoints.saved_state import read_plain_parts
from enn_trainer.config import EnvConfig, TrainConfig
from enn_trainer.config.eval_config import EvalEnvConfig
from enn_trainer.runtime.trust import TYPED, Key, Kind, NamedCode, Trust, names_code, texts_of_code
from enn_trainer.selfplay.league import League, Member
from entity_env.named_world import is_bot_name
from entity_env.vec.samplers import Sampler
from entity_env.vec.variation import read_samplers

if TYPE_CHECKING:
    from enn_trainer.checkpoints.state_manager import StateManager

ENVIRONMENT_KINDS: tuple[Kind, ...] = ("environment", "argument")
"""Kinds of code that the environment passed to `train` replaces."""


class NamedEnv(NamedTuple):
    """Environment named by a configuration.

    Attributes:
        path: path of the section, such as `("eval", "env")`.
        id: name of the environment.
        kwargs: arguments of the constructor.
        vary: samplers of arguments that vary.
    """

    path: tuple[str, ...]
    id: str
    kwargs: Mapping[str, Any]
    vary: Mapping[str, str] = {}

    def code(self, source: str = "") -> Iterator[NamedCode]:
        """Yield the code that it names; texts in arguments count if the name itself is code."""
        if not names_code(self.id):
            return
        yield NamedCode("environment", self.id, (*self.path, "id"), source)
        for text in texts_of_code(self.kwargs):
            yield NamedCode("argument", text, (*self.path, "kwargs"), source)
        yield from code_of_samplers(self.vary, (*self.path, "vary"), source)


def code_of_samplers(
    texts: Mapping[str, str], path: tuple[str, ...], source: str
) -> Iterator[NamedCode]:
    """Yield the values of samplers that may name code.

    Args:
        texts: samplers by argument name.
        path: path of the setting.
        source: the file, for messages.
    """
    for name, sampler in read_samplers(texts).items():
        for text in texts_of_code([name, *_values(sampler)]):
            yield NamedCode("argument", text, (*path, name), source)


def _values(sampler: Sampler) -> list[Any]:
    return [json.loads(text) for text in sampler.values]


def envs_named_in(config: TrainConfig) -> list[NamedEnv]:
    """Return the environments of a configuration: for training, evaluation and suites."""
    base, evaluation = config.env, config.eval
    envs: dict[tuple[str, ...], EnvConfig | EvalEnvConfig | None] = {("env",): config.env}
    if evaluation is not None:
        envs["eval", "env"], base = evaluation.env, evaluation.env or base
        for name, suite in evaluation.suites.items():
            envs["eval", "suites", name, "env"] = suite.env
    return [
        NamedEnv(path, env.id or base.id, json.loads(env.kwargs), env.vary)
        for path, env in envs.items()
        if env is not None
    ]


def code_in_config(config: TrainConfig, source: str = "") -> list[NamedCode]:
    """Return all code that a configuration names.

    Args:
        config: the configuration.
        source: the file, for messages.
    """
    codes = [code for env in envs_named_in(config) for code in env.code(source)]
    if names_code(config.env.id):
        for name, curriculum in config.curricula.items():
            path = "curricula", name
            for lesson in curriculum.all_lessons():
                for code in code_of_samplers(lesson.texts(), path, source):
                    codes.append(code._replace(path=path, is_listed=True))
    return [*codes, *_bots(config, source), *code_of_ray(config, source)]


def _bots(config: TrainConfig, source: str) -> Iterator[NamedCode]:
    """Yield the bots that settings name."""
    named: list[tuple[tuple[str, ...], str | None, bool]] = []
    if config.eval is not None:
        named.append((("eval", "opponent"), config.eval.opponent, False))
        for name, suite in config.eval.suites.items():
            named.append((("eval", "suites", name, "opponent"), suite.opponent, False))
    if config.selfplay is not None:
        named += [(("selfplay", "opponents"), entry, True) for entry in config.selfplay.opponents]
    for path, text, is_listed in named:
        if text is not None and is_bot_name(text):
            yield NamedCode("bot", text, path, source, is_listed)


def code_of_ray(config: TrainConfig, source: str) -> Iterator[NamedCode]:
    """Yield the settings that connect to a Ray cluster or send files and programs to its hosts."""
    rollout, evaluation = config.rollout, config.eval
    addresses = {("rollout", "ray"): rollout.ray}
    if evaluation is not None:
        addresses["eval", "ray"] = evaluation.ray
    for path, address in addresses.items():
        if address is not None:
            yield NamedCode("ray", address, path, source)
    for name in rollout.ray_files:
        yield NamedCode("ray_files", name, ("rollout", "ray_files"), source, True)
    if rollout.ray_env is not None:
        yield NamedCode("ray_env", rollout.ray_env, ("rollout", "ray_env"), source)


def code_of_members(members: Iterable[Member], source: str) -> list[NamedCode]:
    """Return the bots among the members of a league, in its pool or not.

    Args:
        members: members of a league.
        source: the checkpoint, for messages.
    """
    path = "selfplay", "opponents"
    return [
        NamedCode("bot", member.origin, path, f"opponent {member.name} of {source}", True)
        for member in members
        if member.kind in ("bot", "custom") and is_bot_name(member.origin)
    ]


def keys_of_bots(paths: Iterable[object]) -> frozenset[Key]:
    """Return the keys of the bots among the player paths that the user passed."""
    return frozenset(("bot", path) for path in paths if isinstance(path, str) and is_bot_name(path))


def code_in_state(
    manager: "StateManager", saved: Checkpoint, without: Collection[Kind] = ()
) -> Iterator[NamedCode]:
    """Yield the code that the state of a checkpoint names and a resumed run uses.

    Args:
        manager: state manager of the run.
        saved: the checkpoint.
        without: kinds of code to leave out.

    Raises:
        CheckpointError: a file is damaged.
    """
    source, config, restored = str(saved.path), manager.config, manager._state
    has_bots = config.selfplay is not None and "bot" not in without
    if has_bots and restored is not None:  # the checkpoint may be deleted by now
        league = restored.part(League)
        yield from code_of_members(() if league is None else league.members, source)
        has_bots = False
    has_arguments = names_code(config.env.id) and "argument" not in without
    if not (has_bots or has_arguments):
        return
    parts = read_plain_parts(saved)
    if has_bots:
        yield from code_of_members(parts.members, source)
    if has_arguments:
        path = "env", "vary"
        yield from code_of_samplers(parts.parameters, path, source)
        envs = parts.episodes.get("envs")
        for text in texts_of_code(envs.get("arguments") if isinstance(envs, dict) else None):
            yield NamedCode("argument", text, path, f"an episode of {source}")


def trust_of_run(manager: "StateManager", line: str = "") -> Trust:
    """Return which code named by the configuration and the checkpoint the user trusts.

    Args:
        manager: state manager of the run.
        line: the command line with `--trust`, for messages.

    Raises:
        ConfigError: the configuration file cannot be read.
    """
    if manager.trust is not None:
        return manager.trust
    saved = manager.resumed_from
    if saved is None or manager.trusts_save:
        return TYPED
    codes, sources = code_in_config(manager.config), manager.sources
    keys: set[Key] = {code.key for code in codes if sources.is_explicit(code.path)}
    if manager.init_path is not None and manager.init_path.is_file():
        config, _ = manager._read_config(None)  # the file with the overrides
        keys |= {code.key for code in code_in_config(config)}
    return Trust(frozenset(keys), line=line)


def check_run(manager: "StateManager", line: str = "", without: Collection[Kind] = ()) -> Trust:
    """Raise if a run resumes from a checkpoint that names code which the user does not name.

    Nothing is imported, as importing a module already executes it.

    Args:
        manager: state manager of the run.
        line: the command line with `--trust`, for the message.
        without: kinds of code to leave out, as the program passes its own.

    Returns:
        The trusted code.

    Raises:
        ConfigError: there is such code; names the setting, the code and the command to type.
        CheckpointError: the checkpoint is damaged.
    """
    trust, saved, config = trust_of_run(manager, line), manager.resumed_from, manager.config
    if saved is not None and not trust.is_complete:
        codes = code_in_config(config, str(saved.path))
        trust.check(code for code in codes if code.kind not in without)
        trust.check(code_in_state(manager, saved, without))
    return trust
