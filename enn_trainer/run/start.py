"""Start of a run from Python: a configuration or settings, an environment, and a folder."""

from collections.abc import Mapping
from pathlib import Path
from typing import Literal, TypeAlias

from enn_trainer.base.errors import ConfigError
from enn_trainer.checkpoints.lookup import Existing
from enn_trainer.checkpoints.state import State
from enn_trainer.checkpoints.state_manager import StateManager
from enn_trainer.config import TrainConfig
from enn_trainer.config.hyperstate_door import ManagerBase
from enn_trainer.config.load import as_overrides
from enn_trainer.experience.envs import EnvSource
from entity_env.errors import short_repr

Manager: TypeAlias = ManagerBase[TrainConfig, State]
Resume: TypeAlias = bool | Literal["if exists"]
EXISTING: dict[Resume, Existing] = {False: "refuse", True: "resume", "if exists": "continue"}
"""Handling of an existing run by the argument `resume` of `train`."""
ARGUMENTS = {
    "config": "pass the configuration first: train(config, env)",
    "checkpoint_dir": "pass folder",
    "existing": "pass resume or overwrite",
    "overrides": "pass settings",
    **{
        name: f"pass StateManager({name}=...) first"
        for name in ("init_path", "init_from", "init_parts", "init_renames")
    },
}
"""Arguments of `StateManager`, and what to pass to `train` instead."""


def manager_and_env(
    first: Manager | TrainConfig | EnvSource | None,
    env: EnvSource | None,
    *,
    folder: str | Path | None = None,
    resume: Resume = False,
    overwrite: bool = False,
    settings: Mapping[str, object],
) -> tuple[Manager, EnvSource]:
    """Return the state manager and the environment of a run; for the arguments see `train`.

    Args:
        first: a state manager or a configuration, before an environment; or an environment.
        env: the environment, if `first` is another argument.
        folder: folder of the run.
        resume: continue the run in the folder.
        overwrite: start over in the folder.
        settings: settings by path, or by the last part of their path.

    Raises:
        ConfigError: arguments are missing, unknown or exclude each other.
    """
    # The environment.
    if env is None and not isinstance(first, ManagerBase | TrainConfig):
        first, env = None, first
    if env is None:
        raise ConfigError("env: expected the class of an environment, got none")
    if not isinstance(first, ManagerBase | TrainConfig | None):
        expected = "expected a StateManager or a TrainConfig before the environment"
        raise ConfigError(f"state_manager: {expected}, got {short_repr(first)}")

    # A state manager, which has its settings and folder.
    if isinstance(first, ManagerBase):
        options = {"folder": folder is not None, "resume": resume, "overwrite": overwrite}
        if passed := [*(name for name, is_set in options.items() if is_set), *settings]:
            raise ConfigError(
                f"{', '.join(passed)}: expected a TrainConfig or only the environment in front, "
                "got a StateManager; pass checkpoint_dir, existing and overrides to that"
            )
        return first, env

    # A configuration, or none.
    for name in settings.keys() & ARGUMENTS.keys():
        raise ConfigError(f"{name}: no argument of train without a StateManager; {ARGUMENTS[name]}")
    if resume not in EXISTING:
        raise ConfigError(f"resume: expected True, False or 'if exists', got {short_repr(resume)}")
    if resume and overwrite:
        raise ConfigError("resume, overwrite: expected one of them, got both")
    if (resume or overwrite) and folder is None:
        name = "resume" if resume else "overwrite"
        raise ConfigError(f"{name}: expected the folder of the run too, got none")
    config_cls = TrainConfig if first is None else type(first)
    manager = StateManager(
        config_cls,
        config=first,
        checkpoint_dir=folder,
        overrides=as_overrides(config_cls, settings),
        existing="replace" if overwrite else EXISTING[resume],
    )
    manager.is_saved_by_default = True
    return manager, env
