"""Environments by the names that a command line or a configuration gives them."""

import functools
import importlib
import importlib.util
import inspect
import re
import sys
import types
import warnings
import zlib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any, Union, get_args, get_origin, get_type_hints

from entity_env.bot import Bot
from entity_env.environment import Environment
from entity_env.errors import UnknownWorld, did_you_mean
from entity_env.examples import ENV_REGISTRY
from entity_env.imports.extras import remedy
from entity_env.match import Match
from entity_env.vec.vec_env import VecEnv
from entity_env.world_code import OF_FILES


@dataclass(frozen=True)
class NamedWorld:
    """Factory of an environment by its name, which a worker process imports by itself.

    Args:
        name: a name for `find_world`.
        folder: the folder of relative paths, in which modules are searched first; the current one
            on a host that does not have it.
        num_sides: the number of sides of a match, 1 for an environment.
    """

    name: str
    folder: str
    num_sides: int = 1

    def __call__(self, **kwargs: Any) -> Any:
        """Make an environment."""
        folder = Path(self.folder)
        return find_world(self.name, folder if folder.is_dir() else Path.cwd())(**kwargs)


def find_world(name: str, folder: Path | None = None) -> Any:
    """Import `path/file.py:Name` or `package.module:Name`, or find an example by its name.

    The file or module is imported, once. `gymnasium:ID` and `pettingzoo:MODULE` are the worlds of
    these libraries, with an inferred mapping.

    Args:
        name: the name.
        folder: the folder of relative paths, in which modules are searched first; by default the
            current folder.

    Raises:
        UnknownWorld: there is nothing of this name, or it cannot be imported.
    """
    where, colon, attribute = name.rpartition(":")
    if not colon:
        if name in ENV_REGISTRY:
            return ENV_REGISTRY[name]
        if name.endswith(".py"):
            raise UnknownWorld(f"expected the name of a class behind the file, as in {name}:World")
        ways = "file.py:Name, package.module:Name, gymnasium:ID, pettingzoo:MODULE"
        known = f"{ways} or one of {', '.join(ENV_REGISTRY)}"
        raise UnknownWorld(f"expected {known}; got {name!r}{did_you_mean(name, ENV_REGISTRY)}")
    folder = Path.cwd() if folder is None else folder
    library, _, named_there = name.partition(":")
    if library in LIBRARIES:
        return LIBRARIES[library](named_there, folder)
    module = _import(where, folder)
    if not hasattr(module, attribute):
        hint = did_you_mean(attribute, vars(module))
        raise UnknownWorld(f"expected something in {where}, got {attribute!r}{hint}")
    return getattr(module, attribute)


_BOT = re.compile(r"(.+\.py|[^\W\d]\w*(\.[^\W\d]\w*)*):[^\W\d]\w*")


def names_bot(name: str) -> bool:
    """Return whether a name has the form of a bot: `path/file.py:Name` or `package.module:Name`."""
    return _BOT.fullmatch(name) is not None


def find_bot(name: str, folder: Path | None = None) -> type[Bot]:
    """Import the class of a bot by a name, as `find_world` does.

    Raises:
        UnknownWorld: there is nothing of this name, it cannot be imported, or is no such class.
    """
    found = find_world(name, folder)
    if not (inspect.isclass(found) and issubclass(found, Bot)):
        raise UnknownWorld(f"expected a subclass of entity_env.Bot, got {name}, which is none")
    try:
        inspect.signature(found).bind()
    except TypeError as error:
        raise UnknownWorld(f"expected a bot that is made without arguments: {error}") from None
    return found


def is_environment_factory(make: object) -> bool:
    """Return whether calling an object is known to make an environment; does not call it.

    Args:
        make: a subclass of `Environment`, `Match` or `VecEnv`; a function whose return annotation
            is one, or a union of them; or a `functools.partial` of either.
    """
    if isinstance(make, functools.partial):
        return is_environment_factory(make.func)
    if inspect.isclass(make):
        return issubclass(make, Environment | Match | VecEnv)
    if not callable(make):
        return False
    made = _return_annotation(make if inspect.isroutine(make) else type(make).__call__)
    kinds = get_args(made) if get_origin(made) in (Union, types.UnionType) else (made,)
    return all(inspect.isclass(k) and issubclass(k, Environment | Match | VecEnv) for k in kinds)


def _return_annotation(function: Any) -> Any:
    """Return the resolved return annotation of a function, None without one."""
    made = getattr(function, "__annotations__", {}).get("return")
    if not isinstance(made, str):
        return made
    alone = types.SimpleNamespace(__annotations__={"return": made})  # not the arguments' as well
    try:
        return get_type_hints(alone, inspect.unwrap(function).__globals__)["return"]
    except (NameError, AttributeError, SyntaxError, TypeError):
        return None


@functools.cache
def _gymnasium_world(env_id: str, folder: Path) -> type[Environment]:
    """Return the class of a registered environment of Gymnasium, `module:ID` or `ID`."""
    registry = _import("gymnasium", folder).registry
    from entity_env.adapters.from_gymnasium import FromGymnasium

    env_id = gymnasium_id(env_id, folder)
    name = env_id.rpartition(":")[2]
    if name not in registry:
        hint = did_you_mean(name, registry)
        hint = hint or "; if a module of its own registers it, write gymnasium:MODULE:ID"
        raise UnknownWorld(f"expected an id that is registered in Gymnasium, got {name!r}{hint}")
    world = FromGymnasium.of(env_id)
    world.__doc__ = f"{name} of Gymnasium, with an inferred mapping."
    return world


@functools.cache
def _pettingzoo_world(name: str, folder: Path) -> type[Match]:
    """Return the class of the environment of a module, of PettingZoo or any other.

    It is the one in which all agents act at once, if there is one, and else that of turns.
    """
    root = Path(str(_import("pettingzoo", folder).__file__)).parent
    from entity_env.adapters.from_pettingzoo import FromPettingZoo
    from entity_env.adapters.from_pettingzoo_turns import FromPettingZooTurns
    from entity_env.adapters.gymnasium_api import partial_class

    short = name.removeprefix("pettingzoo.")
    shipped = [f"{file.parent.name}.{file.stem}" for file in root.glob("*/*_v[0-9]*.py")]
    hint = did_you_mean(short, shipped)
    if short in shipped:
        name, hint = f"pettingzoo.{short}", f"; pip install 'pettingzoo[{short.split('.')[0]}]'"
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)  # PettingZoo's own of each module
            module = _import(name, folder)
    except UnknownWorld as error:
        raise UnknownWorld(f"{error}{hint}") from None
    members = {"__doc__": f"{name} of PettingZoo, with an inferred mapping."}
    if hasattr(module, "parallel_env"):
        return partial_class(FromPettingZoo, members, module.parallel_env)
    if hasattr(module, "env"):
        return partial_class(FromPettingZooTurns, members, module.env)
    raise UnknownWorld(
        f"expected a module with parallel_env, in which all agents act at once, or with env, in "
        f"which they take turns, got {name}"
    )


REGISTERED_BY = {
    **dict.fromkeys(("MiniGrid-", "BabyAI-"), "minigrid"),
    **dict.fromkeys(("highway-", "merge-", "roundabout-", "intersection-"), "highway_env"),
    **dict.fromkeys(("parking-", "racetrack-", "exit-", "two-way-", "u-turn-"), "highway_env"),
    **dict.fromkeys(("Fetch", "Hand", "Adroit", "Franka", "PointMaze"), "gymnasium_robotics"),
    **dict.fromkeys(("AntMaze", "MaMuJoCo"), "gymnasium_robotics"),
    "ALE/": "ale_py",
    "Foraging-": "lbforaging",
    "MiniWorld-": "miniworld",
    "Panda": "panda_gym",
    "mo-": "mo_gymnasium",
    "popgym-": "popgym",
    "rware-": "rware",
}
"""Modules that register ids of Gymnasium as they are imported, by how the ids begin."""


def gymnasium_id(env_id: str, folder: Path) -> str:
    """Return `module:ID` or `ID` of an environment of Gymnasium, whose module has been imported.

    Args:
        env_id: the same; the module of an id that is not registered is added if it is known.
        folder: in which modules are searched first.

    Raises:
        UnknownWorld: the module cannot be imported.
    """
    module, _, name = env_id.rpartition(":")
    if module:
        _import(module, folder)
        return env_id
    known = next((m for begin, m in REGISTERED_BY.items() if name.startswith(begin)), None)
    if known is None or name in _import("gymnasium", folder).registry:
        return env_id
    try:
        _import(known, folder)
    except UnknownWorld as error:
        by = f"the module {known} (pip install {known})"
        raise UnknownWorld(f"{name} is registered by {by}: {error}") from None
    return f"{known}:{name}"


LIBRARIES: dict[str, Callable[[str, Path], Any]] = {
    "gymnasium": _gymnasium_world,
    "pettingzoo": _pettingzoo_world,
}
"""Names before the first colon that stand for a library, of which the rest names a world."""


def _import(where: str, folder: Path) -> ModuleType:
    path = folder / where
    is_file = path.suffix == ".py"
    if is_file and not path.is_file():
        raise UnknownWorld(f"expected a file, got {where}, which does not exist")
    neighbours = str(path.resolve().parent if is_file else folder)
    sys.path.insert(0, neighbours)  # as if it were run: its neighbours can be imported
    try:
        return _import_file(path.resolve()) if is_file else importlib.import_module(where)
    except (Exception, SystemExit) as error:
        message = f"{type(error).__name__}: {' '.join(str(error).split())}"
        if isinstance(error, ModuleNotFoundError) and (cure := remedy(error)):
            message = f"expected the package {error.name}, which is not installed{cure}"
        raise UnknownWorld(f"importing {where}: {message}") from None
    finally:
        sys.path.remove(neighbours)
        if neighbours not in sys.path:  # for what is imported later, now behind everything else
            sys.path.append(neighbours)


def _import_file(path: Path) -> ModuleType:
    # Not the name of a module which is there already, nor of a file elsewhere.
    name = f"{OF_FILES}{path.stem}_{zlib.crc32(str(path).encode()):08x}"
    if name in sys.modules:
        return sys.modules[name]
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None
    assert spec.loader is not None
    module = sys.modules[name] = importlib.util.module_from_spec(spec)
    try:
        spec.loader.exec_module(module)
    except BaseException:
        del sys.modules[name]
        raise
    return module
