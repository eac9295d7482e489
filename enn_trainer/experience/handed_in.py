"""Names of environments that programs hand in, for commands to find them by."""

import inspect
import sys
from pathlib import Path
from typing import Any

from enn_trainer.config import EnvConfig
from enn_trainer.experience.envs import EnvSource, makes_one_environment
from entity_env.examples import ENV_REGISTRY
from entity_env.named_world import is_environment_factory
from entity_env.world_code import OF_FILES

HANDED_IN = "handed in"
"""Value of `env.id` for an environment that no command can find, such as that of a lambda."""


def record_world(config: EnvConfig, env: EnvSource, folder: Path) -> bool:
    """Set `env.id` to the name of the environment that was handed in; return True if it changes.

    A factory of vectorised environments may read `env.id`, which stays.

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
    """Return `module:Name` or `file.py:Name`, or `HANDED_IN` if neither leads to it."""
    name, main = getattr(env, "__qualname__", ""), sys.modules["__main__"]
    module = sys.modules.get(getattr(env, "__module__", ""))
    if module is None or vars(module).get(name) is not env or not is_environment_factory(env):
        return HANDED_IN
    where = module.__name__ if module.__spec__ is None else module.__spec__.name
    file, script = (Path(getattr(m, "__file__", None) or "").resolve() for m in (module, main))
    is_script = where == "__main__"
    if is_script and file.suffix != ".py":  # typed in, as in a notebook
        return HANDED_IN

    # Modules of files are found by their paths, and so are those beside the script, unless it is in
    # the current folder.
    depth = where.count(".") + (file.stem == "__init__")
    is_beside = file.parents[depth : depth + 1] == (script.parent,) and script.parent != folder
    if is_script or is_beside or where.startswith(OF_FILES):
        where = str(file.relative_to(folder) if file.is_relative_to(folder) else file)
    return f"{where}:{name}"
