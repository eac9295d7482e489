"""Trust in code that a save names: it has to ship with the program or be on the command line."""

import json
import shlex
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from enn_trainer.config import EnvConfig, TrainConfig
from enn_trainer.config.load import Names, load_config
from enn_trainer.errors import ConfigError
from enn_trainer.state_manager import StateManager
from entity_env.examples import __name__ as EXAMPLES
from entity_env.short_repr import short_repr

TRUST = "--trust"


class NamedEnv(NamedTuple):
    """An environment as a configuration names it.

    Attributes:
        path: path of its section, such as `("eval", "env")`.
        id: its name.
        kwargs: its arguments.
    """

    path: Names
    id: str
    kwargs: Mapping[str, Any]


class UntrustedCode(NamedTuple):
    """Code that only a save names.

    Attributes:
        field: the setting that names it, such as `eval.env.id`.
        text: its name.
        is_argument: True if an argument of an environment names it.
    """

    field: str
    text: str
    is_argument: bool

    def refusal(self, save: Path, remedy: str) -> ConfigError:
        """Return the error for a command line that would run it.

        Args:
            save: path of the save.
            remedy: advice, as text.
        """
        if self.is_argument:
            expected = "arguments without a colon, or given on the command line"
        else:
            expected = "an environment of `enn envs` or one named on the command line"
        may_be = "may be" if self.is_argument else "is"
        return ConfigError(
            f"{self.field}: expected {expected}, got {short_repr(self.text, 200)} from {save}, "
            f"which {may_be} code that would be imported and run; {remedy}"
        )


def envs_named_in(config: TrainConfig) -> list[NamedEnv]:
    """Return each environment that a configuration names: of training, evaluation and suites."""
    found = [NamedEnv(("env",), config.env.id, json.loads(config.env.kwargs))]
    if config.eval is None:
        return found
    env = config.env
    if config.eval.env is not None:
        env = config.eval.env
        found.append(NamedEnv(("eval", "env"), env.id, json.loads(env.kwargs)))
    for name, suite in config.eval.suites.items():
        if suite.env is not None:
            path, kwargs = ("eval", "suites", name, "env"), json.loads(suite.env.kwargs)
            found.append(NamedEnv(path, suite.env.id or env.id, kwargs))
    return found


def names_code(env_id: str) -> bool:
    """Return True if an environment id names code that does not ship with this program."""
    module, colon, _ = env_id.rpartition(":")
    return bool(colon) and module != EXAMPLES


def find_untrusted(
    saved: Iterable[NamedEnv],
    typed_ids: Collection[str | None],
    typed_kwargs: Collection[Mapping[str, Any]],
) -> UntrustedCode | None:
    """Return the first code of a save that the command line does not name, or None without any.

    Nothing is imported: importing a module of a stranger already runs it.

    Args:
        saved: the environments that the save names.
        typed_ids: names of environments that the command line, or a file given there, names.
        typed_kwargs: arguments of environments from there.
    """
    for env in saved:
        if not names_code(env.id):
            continue
        field = ".".join(env.path)
        if env.id not in typed_ids:
            return UntrustedCode(f"{field}.id", env.id, is_argument=False)
        code = next(code_in(env.kwargs), None)
        if code is not None and env.kwargs not in typed_kwargs:
            return UntrustedCode(f"{field}.kwargs", code, is_argument=True)
    return None


def check_run(manager: StateManager, line: str) -> None:
    """Raise if a run continues from a save that names code which the command line does not.

    Args:
        manager: state manager of the run.
        line: the command line with `--trust`, for the message.

    Raises:
        ConfigError: there is such code; the message names the field, the code and what to type.
    """
    if manager.resumed_from is None:
        return
    named, sources = envs_named_in(manager.config), manager.sources
    ids = {env.id for env in named if sources.is_given((*env.path, "id"))}
    kwargs = [env.kwargs for env in named if sources.is_given((*env.path, "kwargs"))]
    if manager.init_path is not None and manager.init_path.is_file():
        given = envs_named_in(load_config(type(manager.config), manager.init_path))
        ids |= {env.id for env in given}
        kwargs += [env.kwargs for env in given]
    untrusted = find_untrusted(named, ids, kwargs)
    if untrusted is not None:
        again = f"give {untrusted.field}=... again; or, " if untrusted.is_argument else ""
        remedy = f"{again}if you trust the save, type: {line}"
        raise untrusted.refusal(manager.resumed_from.path, remedy)


def line_with_trust(program: str, arguments: Sequence[str]) -> str:
    """Return a command line with `--trust`, as it can be typed."""
    return shlex.join([*program.split(), TRUST, *arguments])


def naming_env(config: TrainConfig) -> list[str]:
    """Return the arguments by which a line that resumes a run has its code trusted.

    Returns:
        [] if all environments ship with the program.
    """
    named = [env for env in envs_named_in(config) if names_code(env.id)]
    if not named:
        return []
    return [TRUST] if find_untrusted(named, {config.env.id}, []) else [f"env.id={config.env.id}"]


def naming_measured_env(env: EnvConfig) -> list[str]:
    """Return the arguments by which `enn eval` trusts the environment of a run.

    Returns:
        [] if it ships with the program.
    """
    if not names_code(env.id):
        return []
    is_in_kwargs = any(code_in(json.loads(env.kwargs)))
    return [TRUST] if is_in_kwargs else ["--env", env.id]


def code_in(value: object) -> Iterator[str]:
    """Yield texts that may name code, such as the id `module:Env-v0`, which imports a module."""
    if isinstance(value, str) and ":" in value:
        yield value
    elif isinstance(value, Mapping):
        for key, item in value.items():
            yield from code_in(key)
            yield from code_in(item)
    elif isinstance(value, list):
        for item in value:
            yield from code_in(item)
