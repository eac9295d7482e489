"""The command `enn check`."""

import argparse
import difflib
import importlib
import importlib.util
import inspect
import json
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

from enn_trainer.command import USAGE_ERROR, OneLineParser
from enn_trainer.errors import ConfigError
from entity_env.check_env import check_env
from entity_env.environment import Environment
from entity_env.examples import ENV_REGISTRY
from entity_env.match import Match


def check_command(arguments: Sequence[str]) -> int:
    """`enn check`: say everything that is wrong with an environment.

    Returns:
        0 if nothing is wrong, 1 if something is, 2 if the arguments name no environment.
    """
    options = _parser().parse_args(arguments)
    try:
        create_env = _with_kwargs(_load(options.env), options.env, options.kwargs)
    except ConfigError as error:
        print(f"error: {error}", file=sys.stderr)
        return USAGE_ERROR
    report = check_env(create_env, options.episodes, options.max_steps, options.seed)
    report.name = options.env.rpartition(":")[2]
    print(report)
    return 0 if report.ok else 1


def _load(name: str) -> Any:
    """What `file.py:Name`, `package.module:Name` or the name of an example stands for."""
    where, colon, attribute = name.rpartition(":")
    if not colon:
        if name in ENV_REGISTRY:
            return ENV_REGISTRY[name]
        nearest = difflib.get_close_matches(name, ENV_REGISTRY, n=1)
        hint = f", did you mean {nearest[0]}?" if nearest else ""
        raise ConfigError(
            f"ENV: expected file.py:Name, package.module:Name or one of "
            f"{', '.join(ENV_REGISTRY)}; got {name!r}{hint}"
        )
    module = _import(where)
    if not hasattr(module, attribute):
        nearest = difflib.get_close_matches(attribute, vars(module), n=1)
        hint = f", did you mean {nearest[0]}?" if nearest else ""
        raise ConfigError(f"ENV: expected something in {where}, got {attribute!r}{hint}")
    return getattr(module, attribute)


def _import(where: str) -> ModuleType:
    path = Path(where)
    if path.suffix == ".py" and not path.is_file():
        raise ConfigError(f"ENV: expected a file, got {where}, which does not exist")
    folder = path.resolve().parent if path.suffix == ".py" else Path.cwd()
    sys.path.insert(0, str(folder))  # as if it were run: its neighbours can be imported
    try:
        return _import_file(path) if path.suffix == ".py" else importlib.import_module(where)
    except Exception as error:
        message = " ".join(str(error).split())
        raise ConfigError(f"ENV: importing {where}: {type(error).__name__}: {message}") from None
    finally:
        sys.path.remove(str(folder))


def _import_file(path: Path) -> ModuleType:
    name = f"checked_{path.stem}"  # not that of a module which is there already
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None
    assert spec.loader is not None
    module = sys.modules[name] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def _with_kwargs(env: Any, name: str, text: str) -> Callable[[], Environment | Match]:
    if not callable(env):
        raise ConfigError(f"ENV: expected a class or a function, got {name}: {env!r}")
    try:
        kwargs = json.loads(text)
    except ValueError as error:
        raise ConfigError(f"--kwargs: expected JSON, got {text!r} ({error})") from None
    if not isinstance(kwargs, dict):
        raise ConfigError(f'--kwargs: expected JSON such as {{"size": 3}}, got {text!r}')
    signature = inspect.signature(env)
    try:
        signature.bind(**kwargs)
    except TypeError as error:
        raise ConfigError(f"--kwargs: {error}; {name} takes {signature}") from None
    return lambda: env(**kwargs)


def _parser() -> argparse.ArgumentParser:
    parser = OneLineParser(
        prog="enn check",
        description="Play random actions and say everything that is wrong with an environment.",
    )
    parser.add_argument(
        "env", metavar="ENV", help="file.py:Name, package.module:Name, or one of `enn envs`"
    )
    parser.add_argument("--kwargs", default="{}", metavar="JSON", help="arguments of ENV")
    parser.add_argument("--episodes", type=_positive, default=3, metavar="N")
    parser.add_argument("--max-steps", type=_positive, default=1000, metavar="N")
    parser.add_argument("--seed", type=int, default=0, metavar="N")
    return parser


def _positive(text: str) -> int:
    number = int(text)
    if number < 1:
        raise argparse.ArgumentTypeError(f"expected a positive number, got {number}")
    return number
