"""The command `enn tune`."""

import argparse
import os
import re
from collections.abc import Sequence
from pathlib import Path
from typing import get_args

from enn_trainer.base.errors import ConfigError
from enn_trainer.cli.arguments import OneLineParser, line_with_trust, not_negative, positive
from enn_trainer.cli.typed_settings import parse_typed, typed_settings
from enn_trainer.config import TrainConfig
from enn_trainer.config.load import dump_config, load_with_sources
from enn_trainer.runtime.start_folder import RUNS, path_of_run
from enn_trainer.runtime.trust import Trust, env_label
from enn_trainer.tuning.driver import Driver
from enn_trainer.tuning.ranges import is_range, ranges_of_file
from enn_trainer.tuning.report import lines, write_report
from enn_trainer.tuning.search import open_search
from enn_trainer.tuning.study import Keep, Plan, Prune, Sampler, Study, is_study, read_plan
from entity_env.imports.extras import missing_package

UNITS = {"": 1, "s": 1, "m": 60, "h": 3600, "d": 86400}
"""Seconds of the units of a time."""
_CHOICES = {
    "--sampler": ("how to draw settings (default: tpe)", get_args(Sampler)),
    "--prune": ("end runs below the median early (default: median)", get_args(Prune)),
    "--keep": ("trials with checkpoints: the best three, all or none", get_args(Keep)),
}
_OF_PLAN = ("config", "ranges", "metric", "seeds", "sampler", "prune", "to")
_OF_LIMITS = ("trials", "budget", "jobs", "confirm", "keep")
_EPILOG = """\
A range is `uniform LOW HIGH`, `loguniform LOW HIGH`, `1-loguniform LOW HIGH` (of 1 - x, as for
discounts), `int LOW HIGH` or `choice VALUE VALUE`. All other settings are fixed, as for enn train.
The folder of a search continues it: after a kill, for more trials, or in a second process.

examples:
  enn tune Xor 'optim.lr=loguniform 1e-4 1e-2' eval.episodes=32 eval.interval=10000 \
--metric 'eval/episodic_reward.mean max' --trials 40 --to runs/tune/xor
  enn tune runs/tune/xor --trials 80
  enn tune runs/tune/xor --show"""


def parser() -> OneLineParser:
    """Return the parser of `enn tune`."""
    description = "Search settings: train trials, and the best ones again with fresh seeds."
    parser = OneLineParser(prog="enn tune", description=description, epilog=_EPILOG)
    words = "an environment, settings and ranges; or the folder of a search to continue"
    parser.add_argument("words", nargs="*", metavar="FIELD=RANGE", help=words)
    parser.option("--config", "FILE", "a configuration file, or a shipped one", type=Path)
    parser.option("--ranges", "FILE", "a file with 'ranges: {FIELD: RANGE}'", type=Path)
    parser.option("--metric", "TAG", "metric to search for: 'TAG max' or 'TAG min'")
    parser.option("--trials", "N", "number of trials", type=positive)
    parser.option(
        "--budget", "TIME", "time of training, such as 20m: then no trial begins", type=_seconds
    )
    parser.option(
        "--jobs", "N", "runs at the same time, one thread each (default: 1)", type=positive
    )
    parser.option("--seeds", "N", "most seeds of a trial (default: 1)", type=positive)
    confirm = "fresh seeds of the best three trials and of the settings as they are (default: 3)"
    parser.option("--confirm", "N", confirm, type=not_negative)
    for flag, (help, choices) in _CHOICES.items():
        parser.option(flag, "|".join(choices), help, choices=choices)
    folder = "folder of the search (default: runs/tune/<world>)"
    parser.option("--to", "DIR", folder, type=Path)
    parser.flag("--show", "print the table of a search, and the best settings")
    parser.flag("--trust", "use the code that the folder of a search names")
    parser.flag("--anyway", "continue with changed code or packages, and trials of lost hosts")
    return parser


def tune_command(arguments: Sequence[str]) -> int:
    """Run `enn tune`: begin, continue or show a search.

    Raises:
        ConfigError, CheckpointError: a mistake in the arguments, or in the folder.
    """
    options = parse_typed(parser(), arguments, TrainConfig)
    folder = path_of_run(options.words[0]) if options.words else Path()
    if is_study(folder):
        excluded = [*_OF_PLAN, *(_OF_LIMITS if options.show else ())]
        unused = [f"--{name}" for name in excluded if vars(options)[name] is not None]
        if unused := [*options.words[1:], *unused]:
            raise ConfigError(f"{unused[0]}: expected nothing that the search in {folder} has")
        to, plan = folder, None
    elif options.show:
        got = " ".join(options.words) or "none"
        raise ConfigError(f"DIR: expected the folder of a search, got {got}")
    else:
        plan = _plan(options)
        to = options.to or RUNS / "tune" / env_label(plan.base.env.id).rpartition(":")[2]
    if options.show:
        if missing := missing_package("optuna"):
            raise ConfigError(f"enn tune: {missing}")
        study = Study(to, read_plan(to)[0])
        write_report(study)
        print(*lines(study), sep="\n")
        return 0
    limits = {name: vars(options)[name] for name in _OF_LIMITS}
    limits["budget_s"] = limits.pop("budget")
    trust = Trust(is_complete=options.trust, line=line_with_trust("enn tune", arguments))
    study, new_limits = open_search(to, plan, limits, options.anyway, trust=trust)
    print(f"search in {to}; enn tune {to} continues it")
    status = Driver(study, new_limits, options.anyway).run()
    print(*lines(study), sep="\n")
    return status


def _plan(options: argparse.Namespace) -> Plan:
    """Return the plan of a command line."""
    ranges = {} if options.ranges is None else ranges_of_file(options.ranges)
    settings = []
    for word in options.words:
        field, _, text = word.partition("=")
        if is_range(field, text):
            ranges[field] = text
        else:
            settings.append(word)
    typed = typed_settings(TrainConfig, settings, options.config, is_new=True)
    config, _ = load_with_sources(
        TrainConfig, typed.config, typed.overrides, environment=os.environ
    )
    if options.metric is None:
        raise ConfigError(
            "--metric: expected 'TAG max' or 'TAG min', as in "
            "'eval/episodic_reward.mean max', got none"
        )
    chosen = {name: vars(options)[name] for name in ("seeds", "sampler", "prune")}
    chosen = {name: value for name, value in chosen.items() if value is not None}
    return Plan(dump_config(config), ranges, options.metric, **chosen)


def _seconds(text: str) -> float:
    """Parse a time such as 90, 90s, 20m, 2h or 1d to seconds."""
    match = re.fullmatch(r"(\d+(?:\.\d+)?)([smhd]?)", text)
    if match is None:
        raise argparse.ArgumentTypeError(f"expected a time, as in 20m, got {text!r}")
    return float(match[1]) * UNITS[match[2]]
