"""`StateManager`: loads and saves the configuration and state of a run."""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from enn_trainer.base.errors import CheckpointError, ConfigError
from enn_trainer.base.group import ALONE, Group
from enn_trainer.checkpoints import disk, lookup, writer
from enn_trainer.checkpoints import format as saves
from enn_trainer.checkpoints.migrate.config_diff import (
    FROM_PYTHON,
    changes,
    difference,
    keep_precision,
    reported_changes,
)
from enn_trainer.checkpoints.migrate.evolve import InitFrom, state_from
from enn_trainer.checkpoints.migrate.evolve_rules import PARTS
from enn_trainer.checkpoints.run_dir import RunDir, new_run_dir
from enn_trainer.checkpoints.run_lock import RunLock
from enn_trainer.checkpoints.saved_state import read_config
from enn_trainer.checkpoints.state import State, init_train_state, with_common_parts
from enn_trainer.checkpoints.state_files import FileContent, as_bytes, copied, restore
from enn_trainer.config import TrainConfig
from enn_trainer.config.hyperstate_door import ManagerBase
from enn_trainer.config.load import Sources, dump_config, load_with_sources
from enn_trainer.config.schedules import hyperstate_schedules, read_hyperstate_schedules
from enn_trainer.experience.episodes import Measured
from enn_trainer.runtime.start_folder import absolute, located
from enn_trainer.runtime.trust import Trust

_COPY = "copy"
"""Message of rank 0 before it copies the state."""


# The base is of unknown type to mypy where hyperstate is not installed.
class StateManager(ManagerBase[TrainConfig, State]):  # type: ignore[misc, unused-ignore]
    """Loads the configuration, makes or restores the state, and saves both.

    It has the interface of hyperstate's manager, with its own loading, overrides and checkpoints.
    The state is restored from the newest valid checkpoint in `checkpoint_dir`, if `existing` allows
    that; else from `init_path` if that is a checkpoint; else it is new. Either may have checkpoints
    of enn_trainer 0.1.16.

    Args:
        config_cls: `TrainConfig`, or a configuration, as for `config`.
        state_cls: `State`.
        initial_state: makes the state of a new run; when resuming, the saved state is loaded into
            it.
        init_path: a configuration file, or a checkpoint to start from, see `lookup.resolve`.
        checkpoint_dir: the folder of the run, for its checkpoints.
        overrides: settings in the form `net.d_model=64`.
        ignore_extra_fields: not supported; unknown fields are errors.
        checkpoint_key: `step`.
        environment: environment variables; variables that start with `ENN_` are settings, with
            lower precedence than `overrides`.
        existing: handling of an existing run in `checkpoint_dir`: "continue" it if there is one,
            "resume" it or fail if there is none, "refuse" to start, or "replace" it: it is set
            aside when the new run begins.
        init_from: a checkpoint with the initial weights and input statistics of a new run, upgraded
            to its environment where that differs. Ignored by a resumed run.
        init_parts: the parts to load from it: some of "policy", "value" and "norm".
        init_renames: names that differ in the environment of the checkpoint, such as "Trap=Mine".
        config: a configuration made in Python, which is copied, instead of a file.

    Raises:
        ConfigError: an argument is invalid. Errors in the configuration or the state are raised
            when either is first read.
    """

    save_interval_s: float | None = None  # overrides `checkpoint.every_seconds`
    is_dry: bool = False  # its checkpoints are temporary, see `dry_run`
    is_saved_by_default: bool = False  # create a folder for a run without `checkpoint_dir`
    trusts_save: bool = False  # allow code that only the checkpoint names
    trust: Trust | None = None  # in a dry run, the trust of the real run
    interrupted_by: int = 0  # the signal that stopped the last run
    group: Group = ALONE  # processes of the run, see `joining.join`
    follows: bool = False  # True in other ranks than 0, which save nothing
    say: Callable[[str], None] = staticmethod(print)
    """Prints messages about checkpoints and the configuration, one line each."""
    random_return: Callable[[], Measured | None] = staticmethod(lambda: None)
    """Measures the return of random play, for display; set by commands."""

    def __init__(
        self,
        config_cls: type[TrainConfig] | TrainConfig = TrainConfig,
        state_cls: type[State] = State,
        initial_state: Callable[[TrainConfig, dict[str, Any]], State] = init_train_state,
        init_path: str | Path | None = None,
        checkpoint_dir: str | Path | None = None,
        overrides: list[str] | None = None,
        ignore_extra_fields: bool = False,
        checkpoint_key: str = "step",
        environment: Mapping[str, str] | None = None,
        existing: lookup.Existing = "continue",
        init_from: str | Path | None = None,
        init_parts: Sequence[str] = PARTS,
        init_renames: Sequence[str] = (),
        config: TrainConfig | None = None,
    ) -> None:
        # Arguments.
        if existing not in lookup.EXISTING:
            choices = ", ".join(lookup.EXISTING)
            raise ConfigError(f"existing: expected one of {choices}, got {existing!r}")
        if ignore_extra_fields or checkpoint_key != "step":
            raise ConfigError("StateManager: ignore_extra_fields and checkpoint_key are fixed")
        config = config_cls if isinstance(config_cls, TrainConfig) else config
        if config is not None and init_path is not None:
            raise ConfigError("config, init_path: expected one of them, got both")

        # Checkpoints.
        self.start_folder = Path.cwd()  # base of relative paths
        self._saver = writer.RunSaver(lambda line: self.say(self._with_relative_paths(line)))
        self._before_save: list[Callable[[], None]] = []
        self._lock: RunLock | None = None
        self._aside: Path | None = None
        self.environment = environment
        self.existing = existing

        # Sources of the state.
        if init_path is not None:
            init_path = lookup.resolve(Path(init_path), lambda line: self.say(line))
        self.init_from: InitFrom | None = None
        if init_from is not None:
            if init_path is not None and init_path.is_dir():
                raise ConfigError(
                    "--init-from and --resume-from: expected one of them, got both; the first "
                    "starts a new run, the second continues a run"
                )
            self.init_from = InitFrom(Path(init_from), init_parts, init_renames)
        elif tuple(init_parts) != PARTS or init_renames:
            raise ConfigError("--init-parts, --rename: expected --init-from too, got none")
        self.init_path = init_path
        self.checkpoint_dir = None if checkpoint_dir is None else Path(checkpoint_dir)
        self._initial_state = initial_state
        self._deserialize_ctx: dict[str, Any] = {}

        # Configuration and state, read on first use.
        self.config_cls = config_cls if isinstance(config_cls, type) else type(config_cls)
        self.state_cls, self.overrides = state_cls, overrides
        self._python_config = None if config is None else dump_config(config)
        self._config: TrainConfig | None = None
        self._sources: Sources | None = None
        self._state: State | None = None

    @classmethod
    def adopt(cls, manager: ManagerBase[TrainConfig, State] | TrainConfig) -> "StateManager":
        """Return a manager of this class for a configuration, or the run of a hyperstate manager.

        A configuration or state that is already loaded, and perhaps modified, is kept.
        """
        if isinstance(manager, cls | TrainConfig):
            return cls(manager) if isinstance(manager, TrainConfig) else manager
        adopted = cls(
            manager.config_cls,
            manager.state_cls,
            manager._initial_state,
            manager.init_path,
            manager.checkpoint_dir,
            manager.overrides,
        )
        if manager._config is not None:
            fixed = manager.config_cls.fixed_during_run()
            read_hyperstate_schedules(manager._config, manager._schedules, fixed)
            if changes(manager._config, adopted._read_config(None)[0]):
                adopted._config = manager._config  # changed after loading
        adopted._state = None if manager._state is None else with_common_parts(manager._state)
        return adopted

    @property
    def checkpoint_dir(self) -> Path | None:
        """Folder of the run; absolute if the current folder has changed since the start."""
        run_dir: Path | None = self._checkpoint_dir
        return None if run_dir is None else located(run_dir, self.start_folder)

    @checkpoint_dir.setter
    def checkpoint_dir(self, value: Path | None) -> None:
        self._checkpoint_dir, self._is_clear = value, False
        self._resumed: saves.Checkpoint | None = None
        self._searched = False
        self._saver.forget()

    @property
    def config(self) -> TrainConfig:
        """Configuration of the run: of the checkpoint or the file, with the overrides."""
        if self._config is None:
            self._config, self._sources = self._checked_config()
        return self._config

    @property
    def sources(self) -> Sources:
        """Source of each value of the configuration."""
        if self._sources is None:
            self._sources = self._checked_config()[1]
        return self._sources

    @property
    def state(self) -> State:
        """State of the run, restored or new."""
        if self._state is None:
            ctx, make, saved = self._deserialize_ctx, self._initial_state, self.resumed_from
            if saved is not None:
                state = restore(saved, self.config, ctx.get("agent"), make)
                saved.release()
            elif self.init_from is not None and not self.follows:
                path = located(self.init_from.path, self.start_folder)
                source = replace(self.init_from, path=path)
                state = state_from(source, self.config, ctx, make, self.say)
            else:
                state = make(self.config, ctx)
            self._state = with_common_parts(state)
        return self._state

    def take_state(self, state: State) -> None:
        """Set the state, for example to an upgraded one."""
        self._state = state

    def set_deserialize_ctx(self, key: str, value: Any) -> None:
        """Set a value of the second argument of `initial_state`."""
        self._deserialize_ctx[key] = value

    @property
    def resumed_from(self) -> saves.Checkpoint | None:
        """Checkpoint that the state is restored from; None for a new run."""
        if not self._searched:
            self._resumed = self._find_save()
            self._searched = True
        if self._resumed is None:
            return None
        return replace(self._resumed, path=located(self._resumed.path, self.start_folder))

    @property
    def is_interrupted(self) -> bool:
        """True if a signal stopped the last run."""
        return self.interrupted_by != 0

    def set_aside(self) -> None:
        """Set aside the files of an earlier run in the folder, after all checks of the new run.

        With `existing="replace"` these are its checkpoints and all other files; otherwise there may
        be metrics without checkpoints. `begin` makes it final, `put_back` undoes it.
        """
        run_dir = self.checkpoint_dir
        if run_dir is None or self._is_clear:
            return
        self._is_clear = True
        if self.existing == "replace" or not RunDir(run_dir).all_saves():
            self._aside = RunDir(run_dir).set_aside()
            self._saver.forget()

    def put_back(self) -> None:
        """Undo `set_aside` for a run that did not start."""
        aside, self._aside = self._aside, None
        if aside is not None:
            self._is_clear = False
            RunDir(aside.parent).put_back(aside)

    def begin(self) -> Path | None:
        """Save a new run, so that there is always a checkpoint to resume from.

        Files of an earlier run are set aside first, see `set_aside`.

        Returns:
            Path of the checkpoint; None without a `checkpoint_dir`.

        Raises:
            CheckpointError: it could not be written; `put_back` restores the earlier run.
        """
        self.set_aside()
        first = self.save("begin")

        # From now on the folder belongs to the new run.
        aside, self._aside = self._aside, None
        if self.existing == "replace":
            self.existing = "continue"
        if aside is None:
            return first
        self.say(f"{self.checkpoint_dir}: the run that was here is in {aside} now")
        saved = self._resumed
        if saved is not None and not saved.path.exists():  # the run starts from a moved one
            self._resumed = replace(saved, path=aside / saved.path.name)
        return first

    @property
    def owns_folder(self) -> bool:
        """False if the folder or its lock was removed, so that another process may own it."""
        return not self.follows and (self._lock is None or self._lock.is_current)

    @property
    def is_resumed_in_place(self) -> bool:
        """True if the state is restored from a checkpoint in the folder of the run."""
        saved, run_dir = self.resumed_from, self.checkpoint_dir
        if self.follows:
            return self._is_in_place
        if saved is None or run_dir is None or self.existing == "replace":
            return False
        return saved.path.parent.resolve() == run_dir.resolve()

    def copy_to(self, manager: ManagerBase[TrainConfig, State] | TrainConfig) -> None:
        """Copy configuration and state to the manager that this one was adopted from."""
        if manager is self or isinstance(manager, TrainConfig):
            return
        manager._config, manager._state = self.config, self.state
        manager._schedules = hyperstate_schedules(self.config)

    def follow(
        self,
        config: TrainConfig,
        sources: Sources,
        saved: saves.Checkpoint | None,
        is_in_place: bool,
    ) -> None:
        """Follow the manager of rank 0, without saving.

        Args:
            config: configuration of rank 0.
            sources: sources of the values.
            saved: the checkpoint that rank 0 resumes, with open files.
            is_in_place: `is_resumed_in_place` of rank 0.
        """
        self.checkpoint_dir, self.is_saved_by_default = None, False
        self._resumed, self._searched = saved, True
        self._config, self._sources, self._is_in_place = config, sources, is_in_place
        self.say, self.follows, self.existing = lambda line: None, True, "continue"
        self.random_return = lambda: None

    def leave(self, error: BaseException) -> None:
        """Report an error to the other ranks, and leave their group."""
        self.group.fail(error)
        self.group = ALONE

    @contextmanager
    def training(self) -> Iterator[None]:
        """Return a context that creates and locks the folder of the run.

        At exit it waits for a checkpoint in progress, and removes an empty default folder.

        Raises:
            CheckpointError: another process trains there, or the folder cannot be written to.
        """
        with ExitStack() as lock:
            lock.push(lambda kind, error, trace: None if error is None else self.leave(error))
            if self.checkpoint_dir is None and not self.is_saved_by_default:
                yield
                return
            run_dir = self.checkpoint_dir
            if run_dir is None:
                runs = Path(self.config.data_dir, "runs")
                world = self.config.env.id.rpartition(":")[2]
                run_dir = new_run_dir(located(runs, self.start_folder), world)
                self._checkpoint_dir = runs / run_dir.name
                lock.callback(self._remove_unused, absolute(run_dir, self.start_folder))
            disk.make_run_dir(run_dir)
            self._lock = lock.enter_context(RunDir(run_dir).lock(self.say))
            if self.existing != "replace":  # which sets existing checkpoints aside
                self._check_no_newer_save(run_dir)
                self._saver.adopt_saves(absolute(run_dir, self.start_folder))
            try:
                yield
            finally:
                self._lock = None
                try:
                    self._wait()
                except KeyboardInterrupt:  # the lock protects the checkpoint in progress
                    self._saver.after_writing(lock.pop_all().close)
                    raise

    @contextmanager
    def call_before_saves(self, prepare: Callable[[], None]) -> Iterator[None]:
        """Return a context in which `prepare` is called before each copy of the state."""
        self._before_save.append(prepare)
        try:
            yield
        finally:
            self._before_save.remove(prepare)

    def step(  # type: ignore[override, unused-ignore]
        self, metrics: Mapping[str, float] | None = None
    ) -> Path | None:
        """Start saving a copy of the state if a checkpoint is due. Call it after each update.

        Args:
            metrics: metrics that were measured at this step, by tag.

        Returns:
            Path of the checkpoint that was completed since the last call, if any.

        Raises:
            CheckpointError: the folder was removed, and another process has trained there since.
        """

        def step() -> Path | None:
            if self.checkpoint_dir is None:
                return None
            self._renew_lock(self.checkpoint_dir)
            run = self._saveable(self.checkpoint_dir, metrics or {})
            return self._relative(self._saver.step(run))

        return self._save_on_rank_0(step)

    def save(
        self, why: str, metrics: Mapping[str, float] | None = None, supersedes: bool = True
    ) -> Path | None:
        """Save now and return the path; None without a `checkpoint_dir`.

        Args:
            why: reason for saving, for the manifest.
            metrics: metrics that were measured at this step, by tag.
            supersedes: True to replace a checkpoint of this step that lacks some of the metrics.

        Raises:
            CheckpointError: it could not be written; the message names the newest valid checkpoint.
        """

        def save() -> Path | None:
            if self.checkpoint_dir is None:
                return None
            self._renew_lock(self.checkpoint_dir)
            run = self._saveable(self.checkpoint_dir, metrics or {})
            try:
                return self._relative(self._saver.save(replace(run, supersedes=supersedes), why))
            except CheckpointError as error:
                raise CheckpointError(self._with_relative_paths(str(error))) from None

        return self._save_on_rank_0(save)

    def wait(self) -> Path | None:
        """Wait for a checkpoint in progress, and return its path."""
        return self._save_on_rank_0(self._wait)

    def pop_save_metrics(self) -> dict[str, float]:
        """Return the metrics of saving since the last call, by tag."""
        return self._saver.pop_metrics()

    def checkpoint(self, target_dir: str) -> None:
        """Save into another folder, which is created if needed, without deleting checkpoints there.

        An existing valid checkpoint of this step is kept; if its weights differ, `say` gets a
        message.

        Raises:
            CheckpointError: it could not be written.
        """

        def save() -> None:
            self._wait()
            run = self._saveable(Path(target_dir), {})
            disk.make_run_dir(run.run_dir)
            content = as_bytes(run.copy())
            writer.save(run.run_dir, run.step, content, "asked for", run.facts, self.say)

        self._save_on_rank_0(save)

    def config_dict(self) -> dict[str, Any]:
        """Return the configuration as nested dicts."""
        return {"version": self.config_cls.version(), **asdict(self.config)}

    def newest_save(self) -> Path | None:
        """Return the path of the newest valid checkpoint in `checkpoint_dir`, or None."""
        paths = [] if self.checkpoint_dir is None else RunDir(self.checkpoint_dir).saved_paths()
        return next((path for path in paths if saves.is_valid(path)), None)

    def _remove_unused(self, run_dir: Path) -> None:
        """Remove the default folder if nothing was saved in it."""
        if not RunDir(run_dir).saved_paths():
            disk.remove(run_dir)
            self._checkpoint_dir = None

    def _relative(self, saved: Path | None) -> Path | None:
        """Return the path of a checkpoint below `checkpoint_dir`, relative if that is."""
        run_dir = self.checkpoint_dir
        return saved if saved is None or run_dir is None else run_dir / saved.name

    def _with_relative_paths(self, text: str) -> str:
        """Replace the absolute path of the run in a message by `checkpoint_dir`."""
        run_dir = self.checkpoint_dir
        if run_dir is None:
            return text
        return text.replace(str(absolute(run_dir, self.start_folder)), str(run_dir))

    def _renew_lock(self, run_dir: Path) -> None:
        """Recreate the folder and its lock if one of them was removed during the run."""
        if self._lock is None or self._lock.is_current:
            return
        self._saver.wait()  # as renewing the lock removes unfinished checkpoints
        absolute_dir = absolute(run_dir, self.start_folder)
        self._lock.renew(lambda: self._saver.foreign_save(absolute_dir))
        self._saver.reset()
        self.say(f"{run_dir}: this folder, or its lock, was removed during the run; recreated")

    def _saveable(self, run_dir: Path, metrics: Mapping[str, float]) -> writer.Saveable:
        """Return the current state of the run for saving, with the metrics of this step.

        The folder is absolute, as environments may change the current folder meanwhile.
        """
        run_dir = absolute(run_dir, self.start_folder)
        policy = self.config.checkpoint
        every_s = policy.every_seconds if self.save_interval_s is None else self.save_interval_s
        facts = {
            "time_used": self.state.time_used,
            "metrics": {k: float(value) for k, value in metrics.items() if math.isfinite(value)},
            "seed": self.config.seed,
            "config_version": self.config_cls.version(),
            "run_name": self.state.run_name,
        }
        policy = replace(policy, every_seconds=every_s)  # a copy, as schedules change settings
        return writer.Saveable(run_dir, self.state.step, facts, policy, self._copy_state)

    def _copy_state(self) -> dict[str, FileContent]:
        self.group.broadcast(_COPY, "saving")
        self._prepare()
        return copied(self.config, self.state)

    def _prepare(self) -> None:
        for prepare in self._before_save:
            prepare()

    def _wait(self) -> Path | None:
        return self._relative(self._saver.wait())

    def _save_on_rank_0(self, save: Callable[[], Path | None]) -> Path | None:
        """Save on rank 0, and return the path on all ranks.

        Other ranks contribute their part of the state when rank 0 copies it.
        """
        path = None if self.follows else save()
        message: Any = self.group.broadcast([None if path is None else str(path)], "saving")
        while message == _COPY:
            self._prepare()
            message = self.group.broadcast(None, "saving")
        return path if message[0] is None else Path(message[0])

    def _check_no_newer_save(self, run_dir: Path) -> None:
        """Raise if another process has saved in the folder since this run chose its checkpoint."""
        resumed = self.resumed_from if self.is_resumed_in_place else None
        for path in RunDir(run_dir).saved_paths():
            if self._state is not None:  # the run may have saved in this process already
                is_known = (saves.step_of(path) or 0) <= self._state.step
            else:
                is_known = resumed is not None and path.name == resumed.path.name
            if is_known:
                return
            if saves.is_valid(path):
                raise CheckpointError(
                    f"{run_dir}: another process saved {path.name} while this one started; restart "
                    "to continue from there"
                )

    @property
    def _init_save(self) -> Path | None:
        """`init_path` if it is a checkpoint or a run, not a configuration file."""
        path = self.init_path
        return path if path is not None and path.is_dir() else None

    def _find_save(self) -> saves.Checkpoint | None:
        if self.checkpoint_dir is not None:
            saved = lookup.find_to_continue(self.checkpoint_dir, self.existing, self.say)
            if saved is not None:
                unused = self._init_save if self.init_from is None else self.init_from.path
                if unused is not None:
                    self.say(f"continuing {saved.path}; {unused} is not used")
                return saved
        elif self.existing in ("resume", "replace"):
            flag = "--resume" if self.existing == "resume" else "--force"
            raise ConfigError(f"{flag}: expected the folder of a run as --checkpoint-dir, got none")
        start = self._init_save
        return None if start is None else lookup.find(start, self.say, to_continue=True)

    def _read_config(self, saved: saves.Checkpoint | None) -> tuple[TrainConfig, Sources]:
        """Read the configuration of a checkpoint, or else the file, and apply the overrides."""
        path = self.init_path
        if saved is not None or self._init_save is not None:
            path = None
        elif path is not None and not path.exists():
            raise ConfigError(f"{path}: expected a configuration file, got none")
        text, source = self._python_config, FROM_PYTHON
        if saved is not None:
            text, source = saved.text("config.ron"), f"checkpoint {saved.path}"
        cls, overrides = self.config_cls, self.overrides or []
        config, sources = load_with_sources(cls, path, overrides, text, self.environment, source)
        if text is not None and saved is None:
            sources.forget_defaults(config)
        return config, sources

    def _checked_config(self) -> tuple[TrainConfig, Sources]:
        """Read the configuration, and print differences from the checkpoint and the start."""
        saved, start = self.resumed_from, self.init_path
        if saved is None:
            return self._read_config(None)
        try:
            config, sources = self._read_config(saved)
        except ConfigError:
            read_config(saved)  # raises if the saved configuration is wrong, not the overrides
            raise
        before = read_config(saved)
        for section in keep_precision(config, before):
            sources[section, "precision"] = f"checkpoint {saved.path}"
        overridden = reported_changes(changes(before, config))
        if overridden:
            self.say(f"changed from the save: {', '.join(map(str, overridden))}")
        diff = []
        if self._python_config is not None or (start is not None and start.is_file()):
            other, other_sources = self._read_config(None)
            keep_precision(other, config)
            diff = changes(config, other)
            # The program may pass the environment, which the configuration does not name then.
            if config.env.id != other.env.id and not other_sources.is_explicit(("env", "id")):
                diff = [change for change in diff if change.path != "env.id"]
        if diff:
            self.say(f"resuming {saved.path} with its own configuration; {difference(diff, start)}")
        return config, sources


def load_checkpoint(path: str | Path) -> StateManager:
    """Open a checkpoint, or the newest valid one of a run; also of enn_trainer 0.1.16.

    `config` and `state` of the result are read on first use.

    Raises:
        CheckpointError: there is no valid checkpoint.
    """
    manager = StateManager(init_path=path)
    if manager.resumed_from is None:
        raise CheckpointError(f"{path}: expected a checkpoint directory")
    return manager
