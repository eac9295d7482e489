"""Loading and saving of the configuration and state of a run."""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from enn_trainer.base.errors import CheckpointError, ConfigError
from enn_trainer.base.group import ALONE, Group
from enn_trainer.base.tables import aligned
from enn_trainer.checkpoints import disk, lookup, writer
from enn_trainer.checkpoints import format as saves
from enn_trainer.checkpoints.migrate.config_diff import changes, shown, worth_a_line
from enn_trainer.checkpoints.migrate.evolve import InitFrom, state_from
from enn_trainer.checkpoints.migrate.evolve_tensors import PARTS
from enn_trainer.checkpoints.run_dir import RunDir, new_run_dir
from enn_trainer.checkpoints.run_lock import RunLock
from enn_trainer.checkpoints.state import State, init_train_state, with_common_parts
from enn_trainer.checkpoints.state_files import FileContent, as_bytes, copied, read_config, restore
from enn_trainer.config import TrainConfig
from enn_trainer.config.hyperstate_door import ManagerBase
from enn_trainer.config.load import Sources, load_with_sources
from enn_trainer.config.schedules import hyperstate_schedules, read_hyperstate_schedules
from enn_trainer.experience.episodes import Measured
from enn_trainer.runtime.start_folder import absolute, located
from enn_trainer.runtime.trust import Trust

_COPY = "copy"
"""Message of rank 0 before it copies the state."""


# The base is of unknown type to mypy where hyperstate is not installed.
class StateManager(ManagerBase[TrainConfig, State]):  # type: ignore[misc, unused-ignore]
    """Loads the configuration, makes or restores the state, and saves both.

    It has the interface of hyperstate's manager, but loading, overrides and checkpoints are this
    project's own. The state is restored from the newest valid save in `checkpoint_dir`, if
    `existing` allows that; else from `init_path` if that is a checkpoint; else it is new. Either
    may hold checkpoints of enn_trainer 0.1.16.

    Args:
        config_cls: `TrainConfig`.
        state_cls: `State`.
        initial_state: makes the state of a new run; that of a resumed one takes over what is saved.
        init_path: a configuration file, or a checkpoint to start from, see `lookup.resolve`.
        checkpoint_dir: the folder of the run, for its saves.
        overrides: settings in the form `net.d_model=64`.
        ignore_extra_fields: not supported; unknown fields are errors.
        checkpoint_key: `step`.
        environment: environment variables; those that begin with `ENN_` are settings, which
            `overrides` overrule.
        existing: what to do with a run that is in `checkpoint_dir` already: "continue" it if there
            is one, "resume" it and fail if there is none, "refuse" to start, or "replace" it: it is
            set aside when the new run begins.
        init_from: a checkpoint with the initial weights and input statistics of a new run, upgraded
            to its environment where that differs. Not used by a run that continues.
        init_parts: the parts to take from it: some of "policy", "value" and "norm".
        init_renames: names that differ in the environment of the checkpoint, such as "Trap=Mine".

    Raises:
        ConfigError: an argument cannot be used. Mistakes in the configuration or the state are
            raised when either is first read.
    """

    save_interval_s: float | None = None  # overrules `checkpoint.every_seconds`
    is_dry: bool = False  # its saves are temporary, see `dry_run`
    is_saved_by_default: bool = False  # a run without `checkpoint_dir` gets a folder of its own
    trusts_save: bool = False  # code that only the save names may run
    trust: Trust | None = None  # of a dry run: the trust of its run
    interrupted_by: int = 0  # the signal that requested that the last run stops
    group: Group = ALONE  # processes of the run, see `joining.join`
    follows: bool = False  # it is not the one of rank 0, and saves nothing
    say: Callable[[str], None] = staticmethod(print)
    """Prints messages about saves and the configuration, one line each."""
    random_return: Callable[[], Measured | None] = staticmethod(lambda: None)
    """Measures the return of random play, for display; commands set it, Python programs may."""

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
        existing: lookup.Existing = "continue",
        init_from: str | Path | None = None,
        init_parts: Sequence[str] = PARTS,
        init_renames: Sequence[str] = (),
    ) -> None:
        # Arguments.
        if existing not in lookup.EXISTING:
            known = ", ".join(lookup.EXISTING)
            raise ConfigError(f"existing: expected one of {known}, got {existing!r}")
        if ignore_extra_fields or checkpoint_key != "step":
            raise ConfigError("StateManager: ignore_extra_fields and checkpoint_key are fixed")

        # Saves.
        self.start_folder = Path.cwd()  # relative paths begin there
        self._saver = writer.RunSaver(lambda line: self.say(self._as_shown(line)))
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
                    "begins a new run, the second continues one"
                )
            self.init_from = InitFrom(Path(init_from), init_parts, init_renames)
        elif tuple(init_parts) != PARTS or init_renames:
            raise ConfigError("--init-parts, --rename: expected --init-from beside them")
        self.init_path = init_path
        self.checkpoint_dir = None if checkpoint_dir is None else Path(checkpoint_dir)
        self._initial_state = initial_state
        self._deserialize_ctx: dict[str, Any] = {}

        # Configuration and state, read when they are first used.
        self.config_cls, self.state_cls = config_cls, state_cls
        self.overrides = overrides
        self._config: TrainConfig | None = None
        self._sources: Sources | None = None
        self._state: State | None = None

    @classmethod
    def adopt(cls, manager: ManagerBase[TrainConfig, State]) -> "StateManager":
        """Return a manager of this class for the run of a hyperstate manager.

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
            read_hyperstate_schedules(manager._config, manager._schedules, fixed)
            if changes(manager._config, ours._read_config(None)[0]):
                ours._config = manager._config  # changed after loading
        ours._state = None if manager._state is None else with_common_parts(manager._state)
        return ours

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
        """Configuration of the checkpoint if there is one, with the overrides."""
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
        """Replace the state, for example by an upgraded one."""
        self._state = state

    def set_deserialize_ctx(self, key: str, value: Any) -> None:
        """Set a value of the second argument of `initial_state`."""
        self._deserialize_ctx[key] = value

    @property
    def resumed_from(self) -> saves.Checkpoint | None:
        """Save that the state comes from; None for a new run."""
        if not self._searched:
            self._resumed = self._find_save()
            self._searched = True
        if self._resumed is None:
            return None
        return replace(self._resumed, path=located(self._resumed.path, self.start_folder))

    @property
    def is_interrupted(self) -> bool:
        """True if a signal requested that the last run stops."""
        return self.interrupted_by != 0

    def set_aside(self) -> None:
        """Set aside what another run left in the folder of a new one; call it after all checks.

        With `existing="replace"` these are its saves and everything else of it; otherwise there may
        be metrics without saves. `begin` makes it final, `put_back` undoes it.
        """
        run_dir = self.checkpoint_dir
        if run_dir is None or self._is_clear:
            return
        self._is_clear = True
        if self.existing == "replace" or not RunDir(run_dir).all_saves():
            self._aside = RunDir(run_dir).set_aside()
            self._saver.forget()

    def put_back(self) -> None:
        """Put back what was set aside for a run that did not begin."""
        aside, self._aside = self._aside, None
        if aside is not None:
            self._is_clear = False
            RunDir(aside.parent).put_back(aside)

    def begin(self) -> Path | None:
        """Save a new run, so that there is always a save to resume from.

        What another run left in the folder is set aside first, see `set_aside`.

        Returns:
            The save; None when there is no `checkpoint_dir`.

        Raises:
            CheckpointError: it could not be written; `put_back` restores the previous run.
        """
        self.set_aside()
        first = self.save("begin")

        # The folder belongs to the new run now.
        aside, self._aside = self._aside, None
        if self.existing == "replace":
            self.existing = "continue"
        if aside is None:
            return first
        self.say(f"{self.checkpoint_dir}: the run that was here is in {aside} now")
        saved = self._resumed
        if saved is not None and not saved.path.exists():  # the run starts from one of these
            self._resumed = replace(saved, path=aside / saved.path.name)
        return first

    @property
    def owns_folder(self) -> bool:
        """False while another process may have the folder of the run, which was removed."""
        return not self.follows and (self._lock is None or self._lock.is_current)

    @property
    def is_resumed_in_place(self) -> bool:
        """True if the state comes from a save in the folder of the run."""
        saved, run_dir = self.resumed_from, self.checkpoint_dir
        if self.follows:
            return self._is_in_place
        if saved is None or run_dir is None or self.existing == "replace":
            return False
        return saved.path.parent.resolve() == run_dir.resolve()

    def hand_back(self, manager: ManagerBase[TrainConfig, State]) -> None:
        """Copy the configuration and state of this manager to the one it was adopted from."""
        if manager is self:
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
        """Do what the manager of rank 0 does, and save nothing.

        Args:
            config: its configuration.
            sources: sources of the values.
            saved: the save that it resumes, whose files are open.
            is_in_place: its `is_resumed_in_place`.
        """
        self.checkpoint_dir, self.is_saved_by_default = None, False
        self._resumed, self._searched = saved, True
        self._config, self._sources, self._is_in_place = config, sources, is_in_place
        self.say, self.follows, self.existing = lambda line: None, True, "continue"
        self.random_return = lambda: None

    def leave(self, error: BaseException) -> None:
        """Go on without the other ranks after an error, which they are told."""
        self.group.fail(error)
        self.group = ALONE

    @contextmanager
    def training(self) -> Iterator[None]:
        """Return a context that makes and locks the folder of the run, and ends saves at its exit.

        The default folder is removed if nothing was saved in it.

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
            if self.existing != "replace":  # then saves that are there are set aside
                self._check_no_newer_save(run_dir)
                self._saver.adopt_saves(absolute(run_dir, self.start_folder))
            try:
                yield
            finally:
                self._lock = None
                try:
                    self._wait()
                except KeyboardInterrupt:  # whoever has the lock removes what is half written
                    self._saver.after_writing(lock.pop_all().close)
                    raise

    @contextmanager
    def call_before_saves(self, prepare: Callable[[], None]) -> Iterator[None]:
        """Return a context in which `prepare` is called before the state is copied for a save."""
        self._before_save.append(prepare)
        try:
            yield
        finally:
            self._before_save.remove(prepare)

    def step(  # type: ignore[override, unused-ignore]
        self, metrics: Mapping[str, float] | None = None
    ) -> Path | None:
        """Begin to save a copy of the state if a save is due. To be called after each update.

        Args:
            metrics: metrics that were measured at this step, by tag.

        Returns:
            The save that was completed since the last call.

        Raises:
            CheckpointError: the folder was removed, and another process trained there since.
        """

        def step() -> Path | None:
            if self.checkpoint_dir is None:
                return None
            self._renew_lock(self.checkpoint_dir)
            return self._shown(self._saver.step(self._saveable(self.checkpoint_dir, metrics or {})))

        return self._led(step)

    def save(
        self, why: str, metrics: Mapping[str, float] | None = None, supersedes: bool = True
    ) -> Path | None:
        """Save now and return the path, or None when there is no `checkpoint_dir`.

        Args:
            why: reason of the save, for the manifest.
            metrics: metrics that were measured at this step, by tag.
            supersedes: True to replace a save of this step that lacks some of the metrics.

        Raises:
            CheckpointError: it could not be written; the message names the newest valid save.
        """

        def save() -> Path | None:
            if self.checkpoint_dir is None:
                return None
            self._renew_lock(self.checkpoint_dir)
            run = self._saveable(self.checkpoint_dir, metrics or {})
            try:
                return self._shown(self._saver.save(replace(run, supersedes=supersedes), why))
            except CheckpointError as error:
                raise CheckpointError(self._as_shown(str(error))) from None

        return self._led(save)

    def wait(self) -> Path | None:
        """Wait until nothing is being written, and return the save that was completed meanwhile."""
        return self._led(self._wait)

    def take_save_numbers(self) -> dict[str, float]:
        """Return the measurements of saves since the last call, by tag."""
        return self._saver.take_numbers()

    def checkpoint(self, target_dir: str) -> None:
        """Save into a folder, which is made if needed; no save there is deleted.

        A valid save of this step that is there already is kept; if its content differs, `say` gets
        a message.

        Raises:
            CheckpointError: it could not be written.
        """

        def save() -> None:
            self._wait()
            run = self._saveable(Path(target_dir), {})
            disk.make_run_dir(run.run_dir)
            content = as_bytes(run.copy())
            writer.save(run.run_dir, run.step, content, "asked for", run.facts, self.say)

        self._led(save)

    def config_dict(self) -> dict[str, Any]:
        """Return the configuration as nested dicts."""
        return {"version": self.config_cls.version(), **asdict(self.config)}

    def newest_save(self) -> Path | None:
        """Return the newest valid save of the run in `checkpoint_dir`, or None."""
        paths = [] if self.checkpoint_dir is None else RunDir(self.checkpoint_dir).saved_paths()
        return next((path for path in paths if saves.is_valid(path)), None)

    def _remove_unused(self, made: Path) -> None:
        """Remove the default folder if nothing was saved in it."""
        if not RunDir(made).saved_paths():
            disk.remove(made)
            self._checkpoint_dir = None

    def _shown(self, saved: Path | None) -> Path | None:
        """Return the path of a save in the folder of the run in the form of `checkpoint_dir`."""
        run_dir = self.checkpoint_dir
        return saved if saved is None or run_dir is None else run_dir / saved.name

    def _as_shown(self, text: str) -> str:
        """Return a message that has the absolute path of the run with `checkpoint_dir` instead."""
        run_dir = self.checkpoint_dir
        if run_dir is None:
            return text
        return text.replace(str(absolute(run_dir, self.start_folder)), str(run_dir))

    def _renew_lock(self, run_dir: Path) -> None:
        """Make the folder and its lock again if one of them was removed during the run."""
        if self._lock is None or self._lock.is_current:
            return
        self._saver.wait()  # as renewing the lock removes unfinished saves
        absolute_dir = absolute(run_dir, self.start_folder)
        self._lock.renew(lambda: self._saver.foreign_save(absolute_dir))
        self._saver.begin_anew()
        self.say(f"{run_dir}: this folder, or its lock, was removed during the run; made again")

    def _saveable(self, run_dir: Path, metrics: Mapping[str, float]) -> writer.Saveable:
        """Return the run as it is now, with the metrics of this step.

        Its folder is absolute: saves are written by a thread, while environments run.
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
        policy = replace(policy, every_seconds=every_s)  # a copy, as settings may change
        return writer.Saveable(run_dir, self.state.step, facts, policy, self._copied)

    def _copied(self) -> dict[str, FileContent]:
        self.group.share(_COPY, "saving")
        self._prepare()
        return copied(self.config, self.state)

    def _prepare(self) -> None:
        for prepare in self._before_save:
            prepare()

    def _wait(self) -> Path | None:
        return self._shown(self._saver.wait())

    def _led(self, save: Callable[[], Path | None]) -> Path | None:
        """Let rank 0 save, and return the path; the others give what is theirs when it copies."""
        path = None if self.follows else save()
        told: Any = self.group.share([None if path is None else str(path)], "saving")
        while told == _COPY:
            self._prepare()
            told = self.group.share(None, "saving")
        return path if told[0] is None else Path(told[0])

    def _check_no_newer_save(self, run_dir: Path) -> None:
        """Raise if another process saved in the folder after the save to resume was chosen."""
        ours = self.resumed_from if self.is_resumed_in_place else None
        for path in RunDir(run_dir).saved_paths():
            if self._state is not None:  # the run may have saved in this process already
                is_known = (saves.step_of(path) or 0) <= self._state.step
            else:
                is_known = ours is not None and path.name == ours.path.name
            if is_known:
                return
            if saves.is_valid(path):
                raise CheckpointError(
                    f"{run_dir}: another process saved {path.name} while this one began; start "
                    "again, to go on from there"
                )

    @property
    def _init_save(self) -> Path | None:
        """Value of `init_path` if that is a checkpoint or a run, not a configuration file."""
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
        """Read the configuration of a save or, without one, the file, and apply the overrides."""
        path = self.init_path
        if saved is not None or self._init_save is not None:
            path = None
        elif path is not None and not path.exists():
            raise ConfigError(f"{path}: expected a configuration file, there is none")
        return load_with_sources(
            self.config_cls,
            path,
            self.overrides or [],
            None if saved is None else saved.text("config.ron"),
            self.environment,
            "" if saved is None else f"checkpoint {saved.path}",
        )

    def _checked_config(self) -> tuple[TrainConfig, Sources]:
        """Read the configuration, and print how it differs from that of the save and the file."""
        saved, file = self.resumed_from, self.init_path
        if saved is None:
            return self._read_config(None)
        try:
            config, sources = self._read_config(saved)
        except ConfigError:
            read_config(saved)  # raises if the saved configuration is wrong, not the overrides
            raise
        overridden = worth_a_line(changes(read_config(saved), config))
        if overridden:
            self.say(f"changed from the save: {', '.join(map(str, overridden))}")
        different = []
        if file is not None and file.is_file():
            of_file, given = self._read_config(None)
            different = changes(config, of_file)
            # Programs hand in their environment, which the file need not name.
            if config.env.id != of_file.env.id and not given.is_given(("env", "id")):
                different = [change for change in different if change.path != "env.id"]
        if different:
            fields = ", ".join(change.path for change in different)
            rows = [
                (change.path, shown(change.before), shown(change.after)) for change in different
            ]
            self.say(
                f"resuming {saved.path} with its own configuration; {file} differs in {fields}\n  "
                + "\n  ".join(aligned([("field", "saved", "file"), *rows]))
                + "\n  give these on the command line to change them"
            )
        return config, sources


def load_checkpoint(path: str | Path) -> StateManager:
    """Open a checkpoint, or the newest valid one of a run; also of enn_trainer 0.1.16.

    The result's `config` and `state` are read when they are first used.

    Raises:
        CheckpointError: there is no valid checkpoint.
    """
    manager = StateManager(init_path=path)
    if manager.resumed_from is None:
        raise CheckpointError(f"{path}: expected a checkpoint directory")
    return manager
