"""Where a run's configuration and state come from, and when they are saved."""

import dataclasses
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import hyperstate
import hyperstate.schedule

from enn_trainer.checkpoints import checkpoint as saves
from enn_trainer.checkpoints.evolve_tensors import PARTS
from enn_trainer.checkpoints.init_from import InitFrom, state_from
from enn_trainer.checkpoints.state_files import WEIGHTS, restore, to_files
from enn_trainer.config import TrainConfig
from enn_trainer.errors import CheckpointError, ConfigError
from enn_trainer.schedules import (
    as_written,
    follow_schedules,
    read_scheduled,
    scheduled_fields,
)
from enn_trainer.settings.config_io import load_with_sources
from enn_trainer.settings.config_sources import Sources
from enn_trainer.state import State, init_train_state

KEEP_SAVES = 3


class StateManager(hyperstate.StateManager[TrainConfig, State]):
    """Loads the configuration, makes or restores the state, and saves both.

    It has the interface of hyperstate's manager, but loading, overrides and checkpoints are this
    project's own. The state is restored from the newest valid save in `checkpoint_dir`; else
    from `init_path` if that is a checkpoint; else it begins.

    Args:
        config_cls: `TrainConfig`.
        state_cls: `State`.
        initial_state: makes the state of a run that begins.
        init_path: a configuration file, or a checkpoint to start from.
        checkpoint_dir: the folder of the run, for its saves.
        overrides: settings in the form `net.d_model=64`.
        ignore_extra_fields: not supported; unknown fields are errors.
        checkpoint_key: `step`.
        environment: environment variables; those that begin with ENN_ are settings, which
            `overrides` overrule.
        init_from: a checkpoint whose weights and input statistics a run that begins has at first,
            upgraded to its world where that differs. A run that continues has its own.
        init_parts: which of them: some of "policy", "value" and "norm".
        init_renames: what the world of the checkpoint calls otherwise, such as "Trap=Mine".
    """

    save_interval_s: float = 60.0
    is_dry: bool = False  # nothing of what it saves is kept, see `dry_run`
    is_interrupted: bool = False  # the last run was asked to stop by a signal
    say: Callable[[str], None] = staticmethod(print)

    def __init__(
        self,
        config_cls: type[TrainConfig] = TrainConfig,
        state_cls: type[State] = State,
        initial_state: Callable[[TrainConfig, dict[str, Any]], State] = init_train_state,
        init_path: str | Path | None = None,
        checkpoint_dir: str | Path | None = None,
        overrides: list[str] | None = None,
        ignore_extra_fields: bool = False,
        checkpoint_key: str = "step",
        environment: Mapping[str, str] | None = None,
        init_from: str | Path | None = None,
        init_parts: Sequence[str] = PARTS,
        init_renames: Sequence[str] = (),
    ) -> None:
        if ignore_extra_fields or checkpoint_key != "step":
            raise ConfigError("StateManager: ignore_extra_fields and checkpoint_key are fixed")
        self._last_save_s = time.monotonic()
        self.environment = environment
        self.init_from: InitFrom | None = None
        if init_from is not None:
            if init_path is not None and Path(init_path).is_dir():
                raise ConfigError(
                    "--init-from and --resume-from: expected one of them, got both; the first "
                    "begins a new run, the second continues one"
                )
            self.init_from = InitFrom(Path(init_from), init_parts, init_renames)
        elif tuple(init_parts) != PARTS or init_renames:
            raise ConfigError("--init-parts, --rename: expected --init-from beside them")
        self._sources: Sources | None = None
        super().__init__(config_cls, state_cls, initial_state, init_path, checkpoint_dir, overrides)

    @classmethod
    def adopt(cls, manager: "hyperstate.StateManager[TrainConfig, State]") -> "StateManager":
        """This project's manager for the run that a hyperstate manager describes.

        A configuration or state that was already loaded, and perhaps changed, is kept.
        """
        if isinstance(manager, cls):
            return manager
        ours = cls(
            manager.config_cls,
            manager.state_cls,
            manager._initial_state,
            manager.init_path,
            manager.checkpoint_dir,
            manager.overrides,
        )
        if manager._config is not None:
            fixed = manager.config_cls.fixed_during_run()
            _schedule_as_ours(manager._config, manager._schedules, fixed)
            if differences(manager._config, ours._configured()[0]):
                ours._config = manager._config  # changed after loading
        ours._state = manager._state
        return ours

    @property
    def checkpoint_dir(self) -> Path | None:
        """The folder of the run."""
        return self._checkpoint_dir

    @checkpoint_dir.setter
    def checkpoint_dir(self, value: Path | None) -> None:
        self._checkpoint_dir = value
        self._resumed: saves.Checkpoint | None = None
        self._searched = False

    @property
    def config(self) -> TrainConfig:
        """The configuration: of the checkpoint if there is one, with the overrides."""
        if self._config is None:
            self._config, self._sources = self._read_config()
        return self._config

    @property
    def sources(self) -> Sources:
        """Where each value of the configuration comes from."""
        if self._sources is None:
            self._sources = self._read_config()[1]
        return self._sources

    @property
    def state(self) -> State:
        """The state, restored or new."""
        if self._state is None:
            agent = self._deserialize_ctx.get("agent")
            saved = self.resumed_from
            if saved is not None:
                self._state = restore(saved, self.config, agent)
            elif self.init_from is not None:
                ctx, make = self._deserialize_ctx, self._initial_state
                self._state = state_from(self.init_from, self.config, ctx, make, self.say)
            else:
                self._state = self._initial_state(self.config, self._deserialize_ctx)
        return self._state

    def take_state(self, state: State) -> None:
        """Go on with another form of the state, and save that."""
        self._state = state

    @property
    def has_input_statistics(self) -> bool:
        """Whether the network of a run that begins knows what its input is like."""
        return self.init_from is not None and "norm" in self.init_from.parts

    @property
    def resumed_from(self) -> saves.Checkpoint | None:
        """The save that the state comes from; None for a run that begins."""
        if not self._searched:
            self._resumed = self._find_save()
            self._searched = True
        return self._resumed

    def hand_back(self, manager: "hyperstate.StateManager[TrainConfig, State]") -> None:
        """Show the configuration and state of this manager in the one it was adopted from."""
        manager._config, manager._state = self.config, self.state
        manager._schedules = _schedules_as_theirs(self.config)

    def step(self) -> Path | None:  # type: ignore[override]
        """Save if the last save is long enough ago; where. Called after each update."""
        due = time.monotonic() - self._last_save_s >= self.save_interval_s
        return self.save("interval") if due else None

    def save(self, why: str) -> Path | None:
        """Save now; None when there is no `checkpoint_dir`."""
        if self.checkpoint_dir is None:
            return None
        files = to_files(self.config, self.state)
        saved = saves.save(self.checkpoint_dir, self.state.step, files, why)
        if not saves.holds(saved, WEIGHTS, files[WEIGHTS]):
            self.say(f"{saved.path}: there already, with other weights; a save is never changed")
        saves.keep_newest(self.checkpoint_dir, KEEP_SAVES)
        self._last_save_s = time.monotonic()
        return saved.path

    def checkpoint(self, target_dir: str) -> None:
        """Save into the given folder of a run."""
        saves.save(
            Path(target_dir), self.state.step, to_files(self.config, self.state), "asked for"
        )

    def config_dict(self) -> dict[str, Any]:
        """The configuration as nested dicts."""
        return {"version": self.config_cls.version(), **dataclasses.asdict(self.config)}

    def _find_save(self) -> saves.Checkpoint | None:
        if self.checkpoint_dir is not None:
            saved = saves.newest(self.checkpoint_dir, self.say)
            if saved is not None:
                if self.init_from is not None:
                    self.say(f"continuing {saved.path}; {self.init_from.path} is not used")
                if self.init_path is not None and self.init_path.is_dir():
                    self.say(f"continuing {saved.path}; {self.init_path} is not used")
                return saved
        if self.init_path is not None and self.init_path.is_dir():
            return saves.find(self.init_path, self.say)
        return None

    def _configured(self) -> tuple[TrainConfig, Sources]:
        """What the configuration file and the overrides say, whatever was saved."""
        path = self.init_path
        if path is not None and not path.exists():
            raise ConfigError(f"{path}: expected a configuration file, there is none")
        if path is not None and path.is_dir():
            path = None
        return load_with_sources(
            self.config_cls, path, self.overrides or [], environment=self.environment
        )

    def _read_config(self) -> tuple[TrainConfig, Sources]:
        saved = self.resumed_from
        if saved is None:
            return self._configured()
        text = saved.read("config.ron").decode()
        config, sources = load_with_sources(
            self.config_cls,
            None,
            self.overrides or [],
            text=text,
            environment=self.environment,
            text_source=f"checkpoint {saved.path}",
        )
        if self.init_path is not None and self.init_path.is_file():
            different = differences(self._configured()[0], config)
            if different:
                self.say(
                    f"resuming {saved.path} with its own configuration; {self.init_path} differs "
                    f"in {', '.join(different)} (override these on the command line to change them)"
                )
        return config, sources


def _schedule_as_ours(
    section: Any, schedules: dict[str, Any], fixed: dict[str, str], path: str = ""
) -> None:
    """Let what hyperstate loaded follow the schedules that it keeps beside it, by section."""
    for name, schedule in schedules.items():
        value = getattr(section, name)
        if isinstance(schedule, dict):
            _schedule_as_ours(value, schedule, fixed, f"{path}{name}.")
        else:
            kind = int if isinstance(value, int) else float
            setattr(section, name, read_scheduled(schedule.unparsed, kind, path + name, fixed))


def _schedules_as_theirs(config: TrainConfig) -> dict[str, Any]:
    """The schedules of a configuration as hyperstate keeps them, by section."""
    nested: dict[str, Any] = {}
    for path, value in scheduled_fields(config).items():
        *sections, name = path.split(".")
        within = nested
        for section in sections:
            within = within.setdefault(section, {})
        within[name] = hyperstate.schedule.Schedule(follow_schedules, value.schedule.text)
    return nested


def differences(one: object, other: object, path: str = "") -> list[str]:
    """The paths of the fields in which two configurations differ."""
    if dataclasses.is_dataclass(one) and type(one) is type(other):
        return [
            difference
            for f in dataclasses.fields(one)
            for difference in differences(
                getattr(one, f.name), getattr(other, f.name), f"{path}.{f.name}".lstrip(".")
            )
        ]
    return [] if as_written(one) == as_written(other) else [path]


def load_checkpoint(path: str | Path) -> StateManager:
    """Open a checkpoint, or the newest valid one of a run.

    The result's `config` and `state` are read when they are first used.

    Raises:
        CheckpointError: there is no valid checkpoint.
    """
    manager = StateManager(init_path=path)
    if manager.resumed_from is None:
        raise CheckpointError(f"{path}: expected a checkpoint directory")
    return manager
