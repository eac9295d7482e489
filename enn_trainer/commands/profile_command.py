"""The command `enn profile`."""

import argparse
import os
import signal
import sys
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

from rich.console import Console

from enn_trainer.command import STOPPED_AT_ONCE, OneLineParser, failed
from enn_trainer.commands.check_command import positive
from enn_trainer.commands.eval_report import writable, write_report
from enn_trainer.commands.load_world import factory_of
from enn_trainer.commands.profile_advice import bottleneck_advice
from enn_trainer.commands.profile_run import WARM_UP_UPDATES, Part, Profile, profile
from enn_trainer.errors import CheckpointError, ConfigError, NotFiniteError
from enn_trainer.interrupt import StoppedAtOnce, stopped_by
from enn_trainer.state_manager import StateManager
from enn_trainer.tables import show_table
from entity_env.errors import EntityEnvError

SECONDS = 10.0

_EPILOG = """\
Settings are those of enn train. What is learned is discarded.

examples:
  enn profile env.id=Minefield rollout.processes=2
  enn profile --config mine.ron env.id=my_file.py:MyEnv --json profile.json"""


def profile_command(arguments: Sequence[str]) -> int:
    """Run `enn profile`: train for some seconds, and print where the time goes.

    Returns:
        0, 1 if the run fails, 2 for a mistake in the arguments, 130 if it is interrupted.
    """
    options = _parser().parse_intermixed_args(arguments)
    try:
        if options.config and not options.config.is_file():
            raise ConfigError(f"--config: expected a configuration file, got {options.config}")
        path = None if options.json is None else writable(options.json, "--json")
        manager = StateManager(
            init_path=options.config, overrides=options.overrides, environment=os.environ
        )
        create_envs = factory_of(manager.config.env, "env")
        with stopped_by(signal.SIGINT):
            measured = profile(manager, create_envs, SECONDS, options.updates)
        show(measured, Console())
        if path is not None:
            more = {"frames_per_s": measured.frames_per_s, "limit": bottleneck_advice(measured)}
            write_report(path, {**asdict(measured), **more})
    except (ConfigError, CheckpointError, EntityEnvError, NotFiniteError) as error:
        return failed(error)
    except StoppedAtOnce:
        print("interrupted; nothing was measured", file=sys.stderr)
        return STOPPED_AT_ONCE
    return 0


def show(measured: Profile, console: Console) -> None:
    """Print a profile: a table of times, cores and memory, and the advice."""
    # Times, in the run and in its workers.
    whole = Part("an update", "rest", measured.update_ms, measured.update_ms)
    rows = [_row(part, measured) for part in (*measured.parts, whole)]
    rows += [[f"in workers: {p.name}", "", "", "", _core_ms(p)] for p in measured.in_workers]
    show_table(("part", "share", "ms/update", "us/frame", "core-ms/update"), rows, console)
    # Speed, cores, memory and saves.
    memory = f"{measured.peak_mb:.0f} MB of memory at most"
    if measured.workers_peak_mb:
        memory += f", workers {measured.workers_peak_mb:.0f} MB together"
    if measured.gpu_peak_mb is not None:
        memory += f", tensors on the GPU {measured.gpu_peak_mb:.0f} MB"
    saves = f"a save takes {measured.save_ms:.0f} ms"
    if measured.saved_every_s:
        share = measured.save_ms / 1e3 / measured.saved_every_s
        every_s = f"{measured.saved_every_s:g} s"
        saves += f", {share:.2%} of the time at one every {every_s}, most of it beside training"
    steps = "process steps" if measured.processes == 1 else "processes step"
    for line in (
        f"{measured.frames_per_s:,.0f} frames/s over {measured.updates} updates of "
        f"{measured.frames:,} frames, after {WARM_UP_UPDATES} warm-up updates",
        f"{measured.cores_used:.2f} of {measured.cores} cores used, {measured.processes} {steps} "
        "the environments",
        memory,
        saves,
        f"\n{bottleneck_advice(measured)}",
    ):
        console.out(line, highlight=False)


def _row(part: Part, measured: Profile) -> list[str]:
    share = f"{part.wall_ms / measured.update_ms:.1%}"
    per_frame = f"{1e3 * part.wall_ms / measured.frames:.2f}"
    return [part.name, share, f"{part.wall_ms:.2f}", per_frame, _core_ms(part)]


def _core_ms(part: Part) -> str:
    """Return the time of all threads or processes, "" where it is that of the run."""
    return f"{part.core_ms:.2f}" if part.core_ms > 1.001 * part.wall_ms else ""


def _parser() -> argparse.ArgumentParser:
    parser = OneLineParser(
        prog="enn profile",
        description="Train for some seconds, and print where the time goes.",
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("overrides", nargs="*", metavar="FIELD=VALUE", help="settings")
    parser.add_argument("--config", type=Path, metavar="FILE", help="a configuration file")
    parser.add_argument(
        "--updates",
        type=positive,
        metavar="N",
        help=f"measure N updates (default: {SECONDS:g} seconds)",
    )
    parser.add_argument("--json", type=Path, metavar="FILE", help="also write the numbers to FILE")
    return parser
