"""A study: the plan of a search, and its trials in a journal of Optuna.

runs/tune/xor/
  study.json               the plan, its limits, and the versions that it began with
  config.ron               the configuration that trials change
  journal.log              trials, by Optuna
  trial-0007/seed-1        a run; its output is in `seed-1.txt`
"""

import json
import os
import re
import socket
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import asdict, dataclass, fields, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, final

import numpy as np

from enn_trainer.base.errors import ConfigError
from enn_trainer.checkpoints.disk import MAX_TEXT_BYTES, read_plain_file, replace_file
from enn_trainer.checkpoints.named_code import code_in_config
from enn_trainer.checkpoints.run_lock import claim, folder_lock
from enn_trainer.config import TrainConfig
from enn_trainer.config.load import load_config
from enn_trainer.config.schedules import settings_of
from enn_trainer.config.train_config import read_best
from enn_trainer.runtime.trust import NamedCode
from enn_trainer.tuning.judge import Curve, Score
from enn_trainer.tuning.ranges import Range, overrides_of, problem_of, read_range
from enn_trainer.tuning.trials import RunRecord

if TYPE_CHECKING:
    from optuna.samplers import BaseSampler
    from optuna.study import Study as OptunaStudy
    from optuna.trial import FrozenTrial

Sampler = Literal["tpe", "random", "qmc"]
Prune = Literal["median", "none"]
Keep = Literal["best", "all", "none"]
PLAN, CONFIG, JOURNAL = "study.json", "config.ron", "journal.log"
GRACE_S = 5
"""Seconds after which the journal's lock of a killed process is removed; it takes milliseconds."""
MOST_REFUSED = 50
"""Largest number of successive draws that the configuration refuses."""


@dataclass(frozen=True)
class Plan:
    """Plan of a search; another plan is another search.

    Attributes:
        config: the configuration that trials change, as RON.
        ranges: texts of the ranges by setting.
        metric: metric and direction, such as "eval/episodic_reward.mean max".
        seeds: largest number of seeds of a trial.
        sampler: sampler of parameters.
        prune: rule by which trials end early.
    """

    config: str
    ranges: Mapping[str, str]
    metric: str
    seeds: int = 1
    sampler: Sampler = "tpe"
    prune: Prune = "median"

    @cached_property
    def base(self) -> TrainConfig:
        """The configuration that trials change."""
        return load_config(TrainConfig, None, text=self.config)

    @cached_property
    def all_ranges(self) -> list[Range]:
        """The parsed ranges."""
        return [read_range(field, text) for field, text in self.ranges.items()]

    @property
    def tag(self) -> str:
        """Tag of the metric."""
        return read_best(self.metric).key

    @property
    def sign(self) -> int:
        """1 if larger values of the metric are better, else -1."""
        return read_best(self.metric).sign

    @property
    def first_fresh_seed(self) -> int:
        """First seed that no trial uses in the search."""
        return self.base.seed + self.seeds


@dataclass(frozen=True)
class Limits:
    """Limits of a search, which may change when it continues.

    Attributes:
        trials: number of trials, without refused ones; None for no limit.
        budget_s: seconds of training in trials, per job, after which no trial begins.
        jobs: number of runs at the same time.
        confirm: number of fresh seeds of the best trials; 0 for none.
        keep: trials that keep their checkpoints.
    """

    trials: int | None = None
    budget_s: float | None = None
    jobs: int = 1
    confirm: int = 3
    keep: Keep = "best"

    def changed(self, changes: Mapping[str, Any]) -> "Limits":
        """Return limits with the changes that are not None."""
        return replace(self, **{name: v for name, v in changes.items() if v is not None})


@final
class Study:
    """Trials of a search, shared by all processes that work on its folder.

    Args:
        folder: folder with the files of the study.
        plan: its plan.

    Raises:
        ConfigError: the journal is damaged.
    """

    def __init__(self, folder: Path, plan: Plan) -> None:
        import optuna
        from optuna.storages.journal import JournalFileBackend

        optuna.logging.set_verbosity(optuna.logging.WARNING)
        self.folder, self.plan, self.host = folder, plan, socket.gethostname()
        self._active: set[int] = set()
        lock: Any = JournalLock(folder / JOURNAL)
        try:
            backend = JournalFileBackend(str(folder / JOURNAL), lock)
            self._storage = optuna.storages.JournalStorage(backend)
            self.optuna: OptunaStudy = optuna.create_study(
                study_name="tune",
                storage=self._storage,
                direction="maximize" if plan.sign > 0 else "minimize",
                load_if_exists=True,
            )
            for trial in self.trials():
                self.runs(trial.number)
            self.confirmed()
        except (ValueError, KeyError, TypeError, RecursionError):
            raise ConfigError(
                f"{folder / JOURNAL}: damaged, expected a journal of Optuna"
            ) from None

    # Trials.

    def trials(self, *states: str) -> "list[FrozenTrial]":
        """Return the trials that were not refused, in these states: COMPLETE, RUNNING and so on."""
        trials = self.optuna.get_trials(deepcopy=False)
        allowed = [trial for trial in trials if "refused" not in trial.user_attrs]
        return [trial for trial in allowed if not states or trial.state.name in states]

    def trial(self, number: int) -> "FrozenTrial":
        """Return a trial as it is now."""
        return self.optuna.get_trials(deepcopy=False)[number]

    def runs(self, number: int) -> dict[int, RunRecord]:
        """Return the records of the runs of a trial in the search, by seed."""
        attrs = self.trial(number).user_attrs
        records = {key: value for key, value in attrs.items() if key.startswith("seed ")}
        return {int(key.split()[1]): RunRecord._make(value) for key, value in records.items()}

    def scores(self, number: int) -> list[float]:
        """Return the scores of the seeds of a trial, signed, in the order of seeds."""
        records = sorted(self.runs(number).items())
        return [self.plan.sign * run.score for _, run in records if run.score is not None]

    def completed_scores(self) -> dict[int, Score]:
        """Return the scores of the completed trials in the search, by trial."""
        completed = [trial.number for trial in self.trials("COMPLETE")]
        return {number: Score.of(self.scores(number)) for number in completed}

    def confirmed(self) -> dict[int, dict[int, RunRecord]]:
        """Return the records of runs with fresh seeds, by trial and seed."""
        records: dict[int, dict[int, RunRecord]] = {}
        for key, value in self.optuna.user_attrs.items():
            if match := re.fullmatch(r"confirm (\d+) (\d+)", key):
                records.setdefault(int(match[1]), {})[int(match[2])] = RunRecord._make(value)
        return records

    def completed_curves(self) -> list[Curve]:
        """Return the reported values of the completed trials, signed."""
        sign, trials = self.plan.sign, self.trials("COMPLETE")
        return [{s: sign * v for s, v in t.intermediate_values.items()} for t in trials]

    def overrides(self, number: int) -> list[str]:
        """Return the assignments of the settings of a trial; [] for trial 0."""
        params = self.trial(number).params
        return overrides_of(self.plan.all_ranges, params) if number else []

    def arguments(self, number: int, seed: int) -> list[str]:
        """Return the arguments of `enn train` for a run of a trial."""
        config = ["--config", str(self.folder / CONFIG)]
        return [*config, *self.overrides(number), f"seed={seed}", f"trial={number}"]

    def run_dir(self, number: int, seed: int) -> Path:
        """Return the folder of a run."""
        return self.trial_dir(number) / f"seed-{seed}"

    def trial_dir(self, number: int) -> Path:
        """Return the folder of the runs of a trial."""
        return self.folder / f"trial-{number:04}"

    # Changes.

    def report(self, number: int, step: int, value: float) -> None:
        """Record a value of the first seed of a running trial, unless there is one at the step."""
        if step not in self.trial(number).intermediate_values:
            self._storage.set_trial_intermediate_value(self._id(number), step, value)

    def record(self, number: int, seed: int, run: RunRecord) -> None:
        """Record a run of a running trial."""
        self._storage.set_trial_user_attr(self._id(number), f"seed {seed}", [*run])

    def record_confirmed(self, number: int, seed: int, run: RunRecord) -> None:
        """Record a run with a fresh seed."""
        self.optuna.set_user_attr(f"confirm {number} {seed}", [*run])

    def tell(self, number: int, state: str, value: float | None = None) -> None:
        """End a trial."""
        from optuna.trial import TrialState

        self.optuna.tell(number, value, TrialState[state])

    @contextmanager
    def next_trial(self, limits: Limits, anyway: bool) -> Iterator[int | None]:
        """Claim a trial while the context is open: one without a process, or a new one.

        Args:
            limits: limits of the search.
            anyway: take up trials of other hosts too.

        Yields:
            Its number; None if there is no more.

        Raises:
            ConfigError: the configuration refused the last `MOST_REFUSED` draws.
        """
        with ExitStack() as stack:
            with folder_lock(self.folder):
                number = self._orphan(stack, anyway)
                if number is None and self._has_next(limits):
                    number = self._ask()
                    stack.enter_context(self._claimed(number))
            yield number

    @contextmanager
    def _claimed(self, number: int) -> Iterator[bool]:
        """Claim a trial among threads and processes; yield False if another one has it."""
        if number in self._active:
            yield False
            return
        with claim(self.trial_dir(number)) as is_claimed:
            if is_claimed:
                self._active.add(number)
            try:
                yield is_claimed
            finally:
                if is_claimed:
                    self._active.discard(number)

    def _orphan(self, stack: ExitStack, anyway: bool) -> int | None:
        """Claim a running trial that no driver follows."""
        for trial in self.trials("RUNNING"):
            if anyway or trial.user_attrs.get("host") == self.host:
                with ExitStack() as claims:
                    is_claimed = claims.enter_context(self._claimed(trial.number))
                    # It may have ended before its claim was released.
                    if is_claimed and not self.trial(trial.number).state.is_finished():
                        stack.enter_context(claims.pop_all())
                        return trial.number
        return None

    def _has_next(self, limits: Limits) -> bool:
        trials = self.trials()
        if limits.trials is not None and len(trials) >= limits.trials:
            return False
        used_s = sum(run.seconds for t in trials for run in self.runs(t.number).values())
        return limits.budget_s is None or used_s < limits.budget_s * limits.jobs

    def _ask(self) -> int:
        """Draw the parameters of new trials until the configuration takes them, and add it."""
        from optuna.trial import TrialState, create_trial

        study_id = self._storage.get_study_id_from_name("tune")
        for _ in range(MOST_REFUSED):
            number = len(self.optuna.get_trials(deepcopy=False))
            params = self._reference() if number == 0 else self._drawn(number)
            overrides = overrides_of(self.plan.all_ranges, params) if number else []
            problem = problem_of(self.plan.config, overrides)
            trial = create_trial(
                state=TrialState.FAIL if problem else TrialState.RUNNING,
                params=params,
                distributions={name: self._distributions[name] for name in params},
                user_attrs={
                    "overrides": overrides,
                    "host": self.host,
                    **({"refused": problem} if problem else {}),
                },
            )
            trial_id = self._storage.create_new_trial(study_id, trial)
            if not problem:  # without locks, another host may have added a trial of this number
                return self._storage.get_trial_number_from_id(trial_id)
        raise ConfigError(
            f"ranges: expected combinations that the configuration takes, got {MOST_REFUSED} "
            f"others in a row; the last one: {', '.join(overrides)}: {problem}"
        )

    @cached_property
    def _distributions(self) -> dict[str, Any]:
        return {r.field: r.distribution for r in self.plan.all_ranges}

    def _reference(self) -> dict[str, Any]:
        """Return the parameters of the configuration as it is; {} if one is outside its range."""
        values = dict(settings_of(self.plan.base))
        params = {r.field: r.param(values.get(r.field)) for r in self.plan.all_ranges}
        return {} if None in params.values() else params

    def _drawn(self, number: int) -> dict[str, Any]:
        """Draw parameters, a function of the seed, the number and the trials so far."""
        import optuna

        sequence = np.random.SeedSequence([self.plan.base.seed, number])
        seed = int(sequence.generate_state(1)[0])
        if self.plan.sampler == "qmc":
            return _quasi_random(self.plan.all_ranges, self.plan.base.seed, number)
        sampler: BaseSampler = optuna.samplers.RandomSampler(seed)
        if self.plan.sampler == "tpe":
            with warnings.catch_warnings():  # multivariate was experimental
                warnings.simplefilter("ignore")
                sampler = optuna.samplers.TPESampler(
                    multivariate=True, constant_liar=True, seed=seed
                )
        # A copy in memory, so that a trial appears in the journal as a whole.
        copy = optuna.create_study(sampler=sampler, direction=self.optuna.direction)
        states = ("COMPLETE", "PRUNED", "RUNNING")
        copy.add_trials([trial for trial in self.trials(*states) if trial.params])
        return copy.ask(self._distributions).params

    def _id(self, number: int) -> int:
        study_id = self._storage.get_study_id_from_name("tune")
        return self._storage.get_trial_id_from_study_id_trial_number(study_id, number)


def _quasi_random(ranges: Sequence[Range], seed: int, number: int) -> dict[str, Any]:
    """Return the parameters at a point of a scrambled Sobol sequence."""
    from scipy.stats.qmc import Sobol

    engine = Sobol(len(ranges), rng=seed)
    point = engine.random(2 ** number.bit_length())[number]
    return {r.field: r.at(float(share)) for r, share in zip(ranges, point, strict=True)}


@final
class JournalLock:
    """Optuna's lock of a journal file, which removes an incomplete last line when acquired.

    A killed process or a full disk leaves one, and a line after it would damage the journal.

    Args:
        path: the journal.
    """

    def __init__(self, path: Path) -> None:
        from optuna.storages.journal import JournalFileSymlinkLock

        self._path, self._lock = path, JournalFileSymlinkLock(str(path), grace_period=GRACE_S)

    def acquire(self) -> bool:
        """Wait for the lock."""
        self._lock.acquire()
        with suppress(FileNotFoundError), self._path.open("rb+") as file:
            size = file.seek(0, os.SEEK_END)
            file.seek(max(0, size - 1))
            if file.read() not in (b"", b"\n"):
                file.seek(0)
                file.truncate(file.read().rfind(b"\n") + 1)
        return True

    def release(self) -> None:
        """Release the lock."""
        self._lock.release()


# Files of a study.


def write_plan(folder: Path, plan: Plan, limits: Limits, versions: Mapping[str, Any]) -> None:
    """Write the files of a study, atomically; the plan is last."""
    replace_file(folder / CONFIG, plan.config.encode())
    content = {"version": 1, "limits": asdict(limits), "versions": versions}
    content["plan"] = {f.name: getattr(plan, f.name) for f in fields(plan) if f.name != "config"}
    replace_file(folder / PLAN, (json.dumps(content, indent=1) + "\n").encode())


def is_study(folder: Path) -> bool:
    """Return True for the folder of a study."""
    return (folder / PLAN).is_file()


def read_plan(folder: Path) -> tuple[Plan, Limits, dict[str, Any]]:
    """Read the plan of a study, its limits, and its versions.

    Raises:
        ConfigError: the files are damaged.
        CheckpointError: they cannot be read.
    """
    text = read_plain_file(folder / PLAN, MAX_TEXT_BYTES)
    config = read_plain_file(folder / CONFIG, MAX_TEXT_BYTES).decode()
    try:
        content = json.loads(text)
        plan, limits = Plan(config, **content["plan"]), Limits(**content["limits"])
        return plan, limits, dict(content["versions"])
    except (ValueError, KeyError, TypeError, RecursionError):
        raise ConfigError(f"{folder / PLAN}: damaged, expected the plan of a search") from None


def code_of_plan(plan: Plan, source: str) -> Iterator[NamedCode]:
    """Yield the code that the configuration of a plan and its ranges name.

    Args:
        plan: the plan.
        source: the file, for messages.
    """
    yield from code_in_config(plan.base, source)
    for searched in plan.all_ranges:
        for param in searched.tried():
            with suppress(ConfigError):
                changes = [searched.override(param)]
                config = load_config(TrainConfig, None, changes, text=plan.config)
                yield from code_in_config(config, source)
