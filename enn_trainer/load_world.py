"""From what a command line says to environments."""

import difflib
import importlib
import importlib.util
import inspect
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from types import ModuleType
from typing import Any

from enn_trainer.errors import ConfigError
from entity_env.environment import Environment
from entity_env.examples import ENV_REGISTRY
from entity_env.match import Match


def load_world(
    name: str, kwargs: Mapping[str, Any], field: str
) -> Callable[[], Environment | Match]:
    """What `file.py:Name`, `package.module:Name` or the name of an example makes.

    Args:
        name: the name; of a class, or of a function.
        kwargs: its arguments.
        field: what the command line calls them.

    Raises:
        ConfigError: there is nothing of this name, or it does not take these arguments.
    """
    env = _load(name)
    if not callable(env):
        raise ConfigError(f"ENV: expected a class or a function, got {name}: {env!r}")
    signature = inspect.signature(env)
    try:
        signature.bind(**kwargs)
    except TypeError as error:
        raise ConfigError(f"{field}: {error}; {name} takes {signature}") from None
    return lambda: env(**kwargs)  # judged by who calls it


def _load(name: str) -> Any:
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
    name = f"loaded_{path.stem}"  # not that of a module which is there already
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None
    assert spec.loader is not None
    module = sys.modules[name] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
