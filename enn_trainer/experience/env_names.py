"""Names of environments that are passed from Python, by which commands import them."""

import functools
import inspect
import sys
from pathlib import Path
from typing import Any

from enn_trainer.config import EnvConfig
from enn_trainer.experience.envs import EnvSource, makes_one_environment
from enn_trainer.runtime.trust import NAMELESS, PROGRAM
from entity_env.examples import ENV_REGISTRY
from entity_env.named_world import is_environment_factory
from entity_env.world_code import FILE_MODULE_PREFIX


def record_env_name(config: EnvConfig, env: EnvSource, folder: Path) -> bool:
    """Set `env.id` to the import name of the environment argument; return True if it changes.

    For a factory of vectorised environments, which may read `env.id`, the setting stays.

    Args:
        config: configuration of the environments.
        env: the environment argument of `train`.
        folder: the folder in which the run was started.
    """
    configured = config.id
    if inspect.isclass(env) or makes_one_environment(env):
        name = getattr(env, "__name__", "")
        is_example = name in ENV_REGISTRY and ENV_REGISTRY[name] is env
        config.id = name if is_example else _importable_name(env, folder)
    return config.id != configured


def _importable_name(env: Any, folder: Path) -> str:
    """Return `module:Name` or `file.py:Name`, or a name that commands do not import."""
    name, main = getattr(env, "__qualname__", ""), sys.modules["__main__"]
    module = sys.modules.get(getattr(env, "__module__", ""))
    if module is None or vars(module).get(name) is not env or not is_environment_factory(env):
        return _program_name(env)
    where = module.__name__ if module.__spec__ is None else module.__spec__.name
    file, script = (Path(getattr(m, "__file__", None) or "").resolve() for m in (module, main))
    is_script = where == "__main__"
    if is_script and file.suffix != ".py":  # as in a notebook
        return _program_name(env)

    # Files that were loaded by path are named by path, and so are modules in the script's folder,
    # unless that is the current folder.
    depth = where.count(".") + (file.stem == "__init__")
    is_sibling = file.parents[depth : depth + 1] == (script.parent,) and script.parent != folder
    if is_script or is_sibling or where.startswith(FILE_MODULE_PREFIX):
        where = str(file.relative_to(folder) if file.is_relative_to(folder) else file)
    return f"{where}:{name}"


def _program_name(env: Any) -> str:
    """Return the name of an environment that only the program of the run can import."""
    inner = env.func if isinstance(env, functools.partial) else env
    name = getattr(inner, "__name__", "")
    return f"{PROGRAM}:{name}" if name.isidentifier() else NAMELESS
