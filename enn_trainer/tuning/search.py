"""Searches from Python and from the command line: `tune`."""

import re
from collections.abc import Mapping
from dataclasses import asdict, is_dataclass
from difflib import get_close_matches
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from enn_trainer.base.errors import ConfigError
from enn_trainer.checkpoints.disk import make_run_dir
from enn_trainer.config import TrainConfig
from enn_trainer.config.load import as_overrides, dump_config, load_config
from enn_trainer.config.schedules import settings_of
from enn_trainer.config.shipped import find_config
from enn_trainer.runtime.trust import TYPED, Trust, import_named
from enn_trainer.runtime.versions import package_version
from enn_trainer.tuning.driver import Driver
from enn_trainer.tuning.ranges import check_ranges
from enn_trainer.tuning.report import table
from enn_trainer.tuning.study import (
    CONFIG,
    Keep,
    Limits,
    Plan,
    Prune,
    Sampler,
    Study,
    code_of_plan,
    is_study,
    read_plan,
    write_plan,
)
from enn_trainer.tuning.trials import TrialRun, read_metric
from entity_env.errors import UnknownWorld
from entity_env.imports.extras import missing_package
from entity_env.world_code import code_of_modules

TRIED = ("total_timesteps=1", "track=false", "mlflow_tracking_uri=None")
"""Settings of the run of one update that shows which metrics are logged."""
EPISODE_METRICS = ("episodic_reward", "episode_length")
"""Metrics of episodes, which no episode may have ended in time to log."""


def tune(
    config: TrainConfig | str | Path | None,
    ranges: Mapping[str, str],
    *,
    metric: str,
    to: str | Path,
    settings: Mapping[str, object] | None = None,
    trials: int | None = None,
    budget_s: float | None = None,
    jobs: int = 1,
    seeds: int = 1,
    confirm: int = 3,
    sampler: Sampler = "tpe",
    prune: Prune = "median",
    keep: Keep = "best",
    anyway: bool = False,
) -> list[dict[str, Any]]:
    """Search settings: train trials with drawn settings, and the best ones again with fresh seeds.

    Continues the search in the folder, if there is one. Needs the extra `tune`.

    Args:
        config: the configuration: an object, a file, or the name of a shipped one; None for the
            defaults. Its environment is the one of `env.id`.
        ranges: ranges by setting, such as `{"optim.lr": "loguniform 1e-4 1e-2"}`: `uniform`,
            `loguniform`, `1-loguniform` and `int` with two bounds, or `choice` with values.
        metric: metric and direction, such as "eval/episodic_reward.mean max".
        to: folder of the search.
        settings: further settings by path.
        trials: number of trials.
        budget_s: seconds of training, per job, after which no trial begins.
        jobs: number of runs at the same time, each with one thread.
        seeds: largest number of seeds of a trial.
        confirm: number of fresh seeds of the three best trials and of the configuration as it is.
        sampler: "tpe", "random" or "qmc".
        prune: "median" to end runs below the median early, or "none".
        keep: trials that keep their checkpoints: "best" for three, "all" or "none".
        anyway: continue a search although code of the environment or packages have changed, and
            take up trials that other hosts began.

    Returns:
        A row for each trial, by column.

    Raises:
        ConfigError: a setting, a range or the metric is invalid; the extra is missing; or the
            folder has another search.
    """
    overrides = as_overrides(TrainConfig, settings or {})
    if isinstance(config, TrainConfig):
        loaded = load_config(TrainConfig, None, overrides, text=dump_config(config))
    else:
        loaded = load_config(
            TrainConfig, None if config is None else find_config(Path(config)), overrides
        )
    plan = Plan(dump_config(loaded), dict(ranges), metric, seeds, sampler, prune)
    limits = Limits(trials, budget_s, jobs, confirm, keep)
    study, limits = open_search(Path(to), plan, asdict(limits), anyway)
    Driver(study, limits, anyway).run()
    return table(study)


def open_search(
    folder: Path,
    plan: Plan | None,
    limits: Mapping[str, Any],
    anyway: bool = False,
    trust: Trust = TYPED,
) -> tuple[Study, Limits]:
    """Open the search in a folder, or begin a new one after all checks.

    Args:
        folder: folder of the search.
        plan: its plan; None to continue whatever search is there.
        limits: fields of `Limits` to change; those that are None stay.
        anyway: see `tune`.
        trust: trust in the code that the folder names, if `plan` is None.

    Raises:
        ConfigError: see `tune`; or the folder names code that is not trusted.
    """
    if missing := missing_package("optuna", "scipy"):
        raise ConfigError(f"enn tune: {missing}")
    if is_study(folder):
        saved, before, versions = read_plan(folder)
        if plan is None:
            trust.check(code_of_plan(saved, str(folder)))
        if plan is not None and (changed := difference(content_of(saved), content_of(plan))):
            raise ConfigError(
                f"{folder}: expected the search that it has, got another one: {changed}; use "
                "another folder"
            )
        changed = difference(versions, versions_of(saved.base))
        if changed and not anyway:
            raise ConfigError(
                f"{folder}: expected code and packages of the first trials, got others: {changed}; "
                "--anyway continues"
            )
        plan, new_limits = saved, before.changed(limits)
        if new_limits != before:
            write_plan(folder, plan, new_limits, versions)
        return Study(folder, plan), new_limits
    if plan is None:
        raise ConfigError(f"DIR: expected the folder of a search, got {folder}")
    new_limits = Limits().changed(limits)
    check_plan(plan, new_limits)
    versions = versions_of(plan.base)
    check_metric(plan)
    make_run_dir(folder)
    write_plan(folder, plan, new_limits, versions)
    return Study(folder, plan), new_limits


def check_plan(plan: Plan, limits: Limits) -> None:
    """Check ranges, metric and limits.

    Raises:
        ConfigError: one of them is invalid.
    """
    if not plan.ranges:
        raise ConfigError("ranges: expected FIELD=RANGE, as in 'optim.lr=loguniform 1e-4 1e-2'")
    for name in ("seed", "trial"):
        if name in plan.ranges:
            raise ConfigError(f"{name}: expected another setting, got one that each run has itself")
    if limits.trials is None and limits.budget_s is None:
        raise ConfigError("--trials, --budget: expected one of them, got neither")
    if plan.tag.startswith("eval/") and plan.base.eval is None:
        raise ConfigError(
            f"--metric: expected evaluations for {plan.tag}, got none; set eval.interval and a "
            "length, such as eval.episodes"
        )
    check_ranges(plan.config, plan.all_ranges)


def check_metric(plan: Plan) -> None:
    """Check that a run logs the metric, by one update in a folder that is removed.

    Raises:
        ConfigError: the metric is not logged, or the run fails.
    """
    with TemporaryDirectory(prefix="tune-") as folder:
        config = Path(folder, CONFIG)
        config.write_text(plan.config)
        run_dir = Path(folder, "run")
        run = TrialRun(run_dir, ["--config", str(config), *TRIED]).follow(plan.tag)
        tags = read_metric(run_dir, plan.tag).tags
        if run.ending == "failed" and not tags:
            raise ConfigError(f"enn train: {run.error}")
    # No episode may have ended in time: their metrics have the statistics of some other metric.
    evaluated = [""] if plan.base.eval is None else ["", "eval/"]
    suffixes = {tag.rpartition(".")[2] for tag in tags if "." in tag}
    names = [f"{prefix}{name}" for prefix in evaluated for name in EPISODE_METRICS]
    known = tags | {f"{name}.{suffix}" for name in names for suffix in suffixes}
    if plan.tag not in known:
        near = get_close_matches(plan.tag, sorted(known), n=1, cutoff=0.0)
        hint = f"; the nearest is {near[0]}" if near else ""
        raise ConfigError(f"--metric: expected a metric of the run, got {plan.tag}{hint}")


def difference(before: Mapping[str, object], now: Mapping[str, object]) -> str:
    """Return the differences of two mappings in words, "" if there is none."""
    names = [name for name in sorted({*before, *now}) if before.get(name) != now.get(name)]
    return ", ".join(f"{n}: {before.get(n)} before, {now.get(n)} now" for n in names)


def content_of(plan: Plan) -> dict[str, object]:
    """Return the settings of a plan by path, without the name of the program, and its ranges."""
    settings = {path: v for path, v in settings_of(plan.base) if not is_dataclass(v)}
    options = {f"--{name}": getattr(plan, name) for name in ("metric", "seeds", "sampler", "prune")}
    ranges = {f"range of {name}": text for name, text in plan.ranges.items()}
    return {**settings, "name": "", **options, **ranges}


def versions_of(config: TrainConfig) -> dict[str, str | None]:
    """Return the versions of packages, and digests of the modules of the environments, by name.

    Raises:
        ConfigError: an environment does not exist.
    """
    packages, code = ["enn-trainer", "torch", "numpy", "optuna"], dict[str, str]()
    sections = {"env": config.env, "eval.env": None if config.eval is None else config.eval.env}
    for path, section in sections.items():
        if section is not None:
            try:
                code |= code_of_modules(import_named(section.id, f"{path}.id", TYPED))
            except UnknownWorld as error:
                raise ConfigError(f"{path}.id: {error}") from None
            library = re.match(r"\w+(?=[.:])", section.id)  # of gymnasium:ID or package.module:Name
            packages += [library[0]] if library else []
    return {
        **{name: package_version(name) for name in packages},
        **{f"code of {name}": digest[:16] for name, digest in code.items()},
    }
