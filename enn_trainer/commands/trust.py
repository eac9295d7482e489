"""Code that a save names: refused unless it ships with the program or the command line names it."""

import json
import shlex
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from enn_trainer.config import TrainConfig
from enn_trainer.errors import ConfigError
from enn_trainer.settings.config_io import load_config
from enn_trainer.state_manager import StateManager
from entity_env.examples import __name__ as EXAMPLES

TRUST = "--trust"


class NamedEnv(NamedTuple):
    """An environment as a configuration names it.

    Attributes:
        field: path of its section, such as `eval.env`.
        id: its name.
        kwargs: its arguments.
    """

    field: str
    id: str
    kwargs: Mapping[str, Any]


def envs_named_in(config: TrainConfig) -> list[NamedEnv]:
    """Return each environment that a configuration names: of training, evaluation and suites."""
    found = [NamedEnv("env", config.env.id, json.loads(config.env.kwargs))]
    if config.eval is None:
        return found
    env = config.env
    if config.eval.env is not None:
        env = config.eval.env
        found.append(NamedEnv("eval.env", env.id, json.loads(env.kwargs)))
    for name, suite in config.eval.suites.items():
        if suite.env is not None:
            field, kwargs = f"eval.suites.{name}.env", json.loads(suite.env.kwargs)
            found.append(NamedEnv(field, suite.env.id or env.id, kwargs))
    return found


def names_code(env_id: str) -> bool:
    """Return whether the name of an environment is that of code which does not ship with enn."""
    module, colon, _ = env_id.rpartition(":")
    return bool(colon) and module != EXAMPLES


def check_trusted(
    saved: Iterable[NamedEnv],
    typed_ids: Collection[str],
    typed_kwargs: Collection[Mapping[str, Any]],
    save: Path,
    remedy: str,
) -> None:
    """Raise if a save names code that nobody at this command line named.

    Nothing is imported: importing a module of a stranger already runs it.

    Args:
        saved: the environments that the save names.
        typed_ids: names of environments that the command line, or a file given there, names.
        typed_kwargs: arguments of environments from there.
        save: path of the save, for the message.
        remedy: what to type, for the message.

    Raises:
        ConfigError: names the field, the code and what to type.
    """
    for env in saved:
        if not names_code(env.id):
            continue
        code = [f"{env.field}.kwargs: {text!r}" for text in _code_in(env.kwargs)]
        if env.id not in typed_ids:
            code.insert(0, f"{env.field}.id: {env.id!r}")
        elif env.kwargs in typed_kwargs:
            code = []
        if code:
            field, _, named = code[0].partition(": ")
            raise ConfigError(
                f"{field}: expected an environment of `enn envs` or one named on the command line, "
                f"got {named} from {save}, which is code that would be imported and run; if you "
                f"trust the save, type: {remedy}"
            )


def check_run(manager: StateManager, line: str) -> None:
    """Raise if a run continues from a save that names code which nobody named here.

    Args:
        manager: of the run.
        line: the command line with `--trust`, for the message.

    Raises:
        ConfigError: as `check_trusted`.
    """
    if manager.resumed_from is None:
        return

    def is_saved(path: str) -> bool:
        return manager.sources.of(path).startswith("checkpoint ")

    named = envs_named_in(manager.config)
    ids = {env.id for env in named if not is_saved(f"{env.field}.id")}
    kwargs = [env.kwargs for env in named if not is_saved(f"{env.field}.kwargs")]
    if manager.init_path is not None and manager.init_path.is_file():
        given = envs_named_in(load_config(type(manager.config), manager.init_path))
        ids |= {env.id for env in given}
        kwargs += [env.kwargs for env in given]
    check_trusted(named, ids, kwargs, manager.resumed_from.path, line)


def line_with_trust(program: str, arguments: Sequence[str]) -> str:
    """Return a command line with `--trust`, as it can be typed."""
    return shlex.join([*program.split(), TRUST, *arguments])


def naming_env(config: TrainConfig) -> str:
    """Return what to append to a line that resumes a run, so that its code is trusted.

    Returns:
        "" if all environments ship with the program.
    """
    named = [env for env in envs_named_in(config) if names_code(env.id)]
    if not named:
        return ""
    is_env_enough = all(env.id == config.env.id for env in named)
    if is_env_enough and not any(text for env in named for text in _code_in(env.kwargs)):
        return f" {shlex.quote(f'env.id={config.env.id}')}"
    return f" {TRUST}"


def _code_in(value: object) -> Iterator[str]:
    """Yield texts that may name code, such as the id `module:Env-v0`, which imports a module."""
    if isinstance(value, str) and ":" in value:
        yield value
    elif isinstance(value, Mapping):
        for item in value.values():
            yield from _code_in(item)
    elif isinstance(value, list):
        for item in value:
            yield from _code_in(item)
