"""Lookup of environments and bots by names from command lines and configurations."""

import contextlib
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
from itertools import islice
from pathlib import Path
from types import ModuleType
from typing import Any, Union, get_args, get_origin, get_type_hints

from entity_env.bot import Bot
from entity_env.environment import Environment
from entity_env.errors import UnknownWorld, did_you_mean, nearest_name
from entity_env.examples import ENV_REGISTRY
from entity_env.imports.extras import remedy
from entity_env.match import Match
from entity_env.vec.vec_env import VecEnv
from entity_env.world_code import FILE_MODULE_PREFIX


@dataclass(frozen=True)
class NamedWorld:
    """Factory of an environment by its name, so that a worker process imports it.

    Args:
        name: a name for `find_world`.
        folder: base of relative paths, and first on the search path of modules; the current folder
            on hosts that lack it.
        num_sides: number of sides of a match, 1 for an environment.
    """

    name: str
    folder: str
    num_sides: int = 1

    def __call__(self, **kwargs: Any) -> Any:
        """Create an environment."""
        folder = Path(self.folder)
        return find_world(self.name, folder if folder.is_dir() else Path.cwd())(**kwargs)


def find_world(name: str, folder: Path | None = None) -> Any:
    """Import `path/file.py:Name` or `package.module:Name`, or find an example by its name.

    A file or module is imported only once. `gymnasium:ID` and `pettingzoo:MODULE` are environments
    of these libraries, with an inferred mapping.

    Args:
        name: the name.
        folder: base of relative paths, and first on the search path of modules; None for the
            current folder.

    Raises:
        UnknownWorld: the name does not exist, or cannot be imported.
    """
    where, colon, attribute = name.rpartition(":")
    folder = Path.cwd() if folder is None else folder
    if not colon and name in ENV_REGISTRY:
        return ENV_REGISTRY[name]
    if not colon or "::" in name:
        likely = likely_name(name, folder)
        if name.endswith(".py"):
            example = likely or f"{name}:World"
            raise UnknownWorld(f"expected the name of a class after the file, as in {example}")
        if likely is not None:
            expected = "expected the name of an environment"
            raise UnknownWorld(f"{expected}, got {name!r}, did you mean {likely}?")
        ways = "file.py:Name, package.module:Name, gymnasium:ID, pettingzoo:MODULE"
        raise UnknownWorld(f"expected {ways} or one of {', '.join(ENV_REGISTRY)}; got {name!r}")
    library, _, inner_name = name.partition(":")
    if library in LIBRARIES:
        return LIBRARIES[library](inner_name, folder)
    module = _import(where, folder)
    if not hasattr(module, attribute):
        hint = did_you_mean(attribute, vars(module))
        raise UnknownWorld(f"expected an attribute of {where}, got {attribute!r}{hint}")
    return getattr(module, attribute)


def likely_name(name: str, folder: Path) -> str | None:
    """Return the name for `find_world` that an unknown name most likely stands for; else None.

    Files are read, not imported.

    Args:
        name: such as `CartPole-v1`, `treasure_hunt`, `file.py`, `file.py:name` or `file.py::Name`.
        folder: base of relative paths.
    """
    where, colon, attribute = name.replace("::", ":").rpartition(":")
    file = folder / (where or name)
    if file.suffix == ".py":
        likely = nearest_name(attribute, _world_classes(file))
        if not colon:
            likely = next(iter(_world_classes(file)), None)
        if likely is not None:
            return f"{where or name}:{likely}"
        files = islice(sorted(folder.glob("*.py")), _MAX_FILES)
        with_class = (
            f"{other.name}:{attribute}" for other in files if attribute in _world_classes(other)
        )
        return next(with_class, f"{where}:{attribute}" if "::" in name else None)
    if colon:
        return None
    if _GYMNASIUM_ID.fullmatch(name):
        return f"gymnasium:{name}"
    if (pettingzoo := importlib.util.find_spec("pettingzoo")) and pettingzoo.origin:
        for module in Path(pettingzoo.origin).parent.glob("*/*_v[0-9]*.py"):
            if module.stem == name:
                return f"pettingzoo:{module.parent.name}.{name}"
    parts = (known for known in ENV_REGISTRY if name.title() in re.findall("[A-Z][a-z]+", known))
    return nearest_name(name, ENV_REGISTRY) or next(parts, None)


def _world_classes(file: Path) -> list[str]:
    """Return the names of classes of environments in the text of a file, [] if it is unreadable."""
    with contextlib.suppress(OSError, ValueError):
        return _WORLD_CLASS.findall(file.read_text("utf-8"))
    return []


_MAX_FILES = 100
_WORLD_CLASS = re.compile(r"^class (\w+)\(.*(?:Environment|Match|VecEnv)\b", re.MULTILINE)
_GYMNASIUM_ID = re.compile(r"([\w.-]+/)?[\w.-]+-v\d+")
"""The form of ids of Gymnasium, such as `CartPole-v1` and `ALE/Pong-v5`."""
_BOT = re.compile(r"(.+\.py|[^\W\d]\w*(\.[^\W\d]\w*)*):[^\W\d]\w*")


def is_bot_name(name: str) -> bool:
    """Return whether a name has the form `path/file.py:Name` or `package.module:Name`."""
    return _BOT.fullmatch(name) is not None


def find_bot(name: str, folder: Path | None = None) -> type[Bot]:
    """Import the class of a bot by its name, as `find_world` does.

    Raises:
        UnknownWorld: the name does not exist, cannot be imported, or is not a `Bot` subclass with a
            constructor without arguments.
    """
    cls = find_world(name, folder)
    if not (inspect.isclass(cls) and issubclass(cls, Bot)):
        raise UnknownWorld(f"expected a subclass of entity_env.Bot, got {name}, which is none")
    try:
        inspect.signature(cls).bind()
    except TypeError as error:
        raise UnknownWorld(f"expected a bot class without arguments: {error}") from None
    return cls


def is_environment_factory(make: object) -> bool:
    """Return whether an object creates environments when called, without calling it.

    Args:
        make: True for a subclass of `Environment`, `Match` or `VecEnv`, a function annotated to
            return one of them or their union, or a `functools.partial` of these.
    """
    if isinstance(make, functools.partial):
        return is_environment_factory(make.func)
    if inspect.isclass(make):
        return issubclass(make, Environment | Match | VecEnv)
    if not callable(make):
        return False
    result = _return_annotation(make if inspect.isroutine(make) else type(make).__call__)
    union = get_args(result) if get_origin(result) in (Union, types.UnionType) else (result,)
    return all(inspect.isclass(k) and issubclass(k, Environment | Match | VecEnv) for k in union)


def _return_annotation(function: Any) -> Any:
    """Return the resolved return annotation of a function, None if it has none."""
    annotation = getattr(function, "__annotations__", {}).get("return")
    if not isinstance(annotation, str):
        return annotation
    # Without the annotations of arguments, which may not resolve.
    holder = types.SimpleNamespace(__annotations__={"return": annotation})
    try:
        return get_type_hints(holder, inspect.unwrap(function).__globals__)["return"]
    except (NameError, AttributeError, SyntaxError, TypeError):
        return None


@functools.cache
def _gymnasium_world(env_id: str, folder: Path) -> type[Environment]:
    """Return the class of a registered Gymnasium environment, `module:ID` or `ID`."""
    registry = _import("gymnasium", folder).registry
    from entity_env.adapters.from_gymnasium import FromGymnasium

    env_id = gymnasium_id(env_id, folder)
    name = env_id.rpartition(":")[2]
    if name not in registry:
        versions = [known for known in registry if known.rpartition("-v")[0] == name]
        hint = did_you_mean(versions[-1] if versions else name, registry)
        hint = hint or "; to import the module that registers it, write gymnasium:MODULE:ID"
        raise UnknownWorld(f"expected an id that is registered in Gymnasium, got {name!r}{hint}")
    world = FromGymnasium.of(env_id)
    world.__doc__ = f"{name} of Gymnasium, with an inferred mapping."
    return world


@functools.cache
def _pettingzoo_world(name: str, folder: Path) -> type[Match]:
    """Return the class of the environment in a module of PettingZoo or a third party.

    The parallel API is preferred to the agent-environment-cycle (AEC) API.
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
            warnings.simplefilter("ignore", DeprecationWarning)  # every PettingZoo module warns
            module = _import(name, folder)
    except UnknownWorld as error:
        raise UnknownWorld(f"{error}{hint}") from None
    members = {"__doc__": f"{name} of PettingZoo, with an inferred mapping."}
    if hasattr(module, "parallel_env"):
        return partial_class(FromPettingZoo, members, module.parallel_env)
    if hasattr(module, "env"):
        return partial_class(FromPettingZooTurns, members, module.env)
    raise UnknownWorld(
        f"expected a module with parallel_env (agents act at once) or env (agents take turns), "
        f"got {name}"
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
"""Modules that register Gymnasium ids when imported, by prefix of the ids."""


def gymnasium_id(env_id: str, folder: Path) -> str:
    """Import the module that registers a Gymnasium id, and return `module:ID` or `ID`.

    Args:
        env_id: `module:ID` or `ID`; the module of an unregistered id is looked up in
            `REGISTERED_BY`.
        folder: first on the search path of modules.

    Raises:
        UnknownWorld: the module cannot be imported.
    """
    module, _, name = env_id.rpartition(":")
    if module:
        _import(module, folder)
        return env_id
    library = next((m for begin, m in REGISTERED_BY.items() if name.startswith(begin)), None)
    if library is None or name in _import("gymnasium", folder).registry:
        return env_id
    try:
        _import(library, folder)
    except UnknownWorld as error:
        by = f"the module {library} (pip install {library})"
        raise UnknownWorld(f"{name} is registered by {by}: {error}") from None
    return f"{library}:{name}"


LIBRARIES: dict[str, Callable[[str, Path], Any]] = {
    "gymnasium": _gymnasium_world,
    "pettingzoo": _pettingzoo_world,
}
"""Libraries of environments, by the prefix before the first colon of a name."""


def _import(where: str, folder: Path) -> ModuleType:
    path = folder / where
    is_file = path.suffix == ".py"
    if is_file and not path.is_file():
        raise UnknownWorld(f"expected a file, got {where}, which does not exist")
    search_path = str(path.resolve().parent if is_file else folder)
    sys.path.insert(0, search_path)  # as for a script: modules in its folder can be imported
    try:
        return _import_file(path.resolve()) if is_file else importlib.import_module(where)
    except (Exception, SystemExit) as error:
        message = f"{type(error).__name__}: {' '.join(str(error).split())}"
        if isinstance(error, ModuleNotFoundError) and (hint := remedy(error)):
            message = f"expected the package {error.name}, which is not installed{hint}"
        raise UnknownWorld(f"importing {where}: {message}") from None
    finally:
        sys.path.remove(search_path)
        if search_path not in sys.path:  # for later imports, with the lowest priority
            sys.path.append(search_path)


def _import_file(path: Path) -> ModuleType:
    # A unique name: not that of another module, nor of a file in another folder.
    name = f"{FILE_MODULE_PREFIX}{path.stem}_{zlib.crc32(str(path).encode()):08x}"
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
