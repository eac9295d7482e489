"""The command `enn plot`: curves of one or several runs, from their `metrics.jsonl`."""

import argparse
import difflib
import importlib.util
import json
import sys
from collections.abc import Sequence
from pathlib import Path

from enn_trainer.checkpoints.lookup import find
from enn_trainer.checkpoints.saved_state import read_config, read_state
from enn_trainer.command import OneLineParser, failed
from enn_trainer.commands.check_command import positive
from enn_trainer.commands.curves import Curve, Run, curve_of, draw, grouped
from enn_trainer.errors import CheckpointError, ConfigError
from enn_trainer.tracking.open_track import METRICS_FILE, RUN_FILE
from enn_trainer.tracking.track_jsonl import NOT_TAGS, read_lines

DEFAULT_METRICS = ["episodic_reward.mean", "losses/entropy", "losses/approx_kl", "fps"]
FORMATS = (".png", ".pdf", ".svg")

_EPILOG = """\
A RUN is the folder of a run under data_dir/runs, its metrics.jsonl, or a --checkpoint-dir. Runs
whose settings differ in nothing but the seed (or trial and data_dir, which have no effect on
training) are drawn as their mean, with a 95% confidence band of the mean (Student's t). Where
several of them have one seed, there is no band.

examples:
  enn plot runs/Xor__demo__1__20261121-120000
  enn plot runs/Xor__* --metric episodic_reward.mean --smooth 10 --out xor.png"""


def plot_command(arguments: Sequence[str]) -> int:
    """Run `enn plot`: draw metrics of runs into a file.

    Returns:
        0, or 2 for a mistake in the arguments.
    """
    options = _parser().parse_args(arguments)
    try:
        if importlib.util.find_spec("matplotlib") is None:
            raise ConfigError(
                "enn plot: expected the package matplotlib, which is not installed; "
                "pip install 'enn-trainer[plot]'"
            )
        _check_writable(options.out)
        runs = [read_run(path) for path in dict.fromkeys(options.runs)]
        tags = list(dict.fromkeys(options.metric or _present(DEFAULT_METRICS, runs)))
        _check_known(tags, runs)
        curves: dict[str, list[Curve]] = {
            tag: [curve_of(label, group, tag, options.smooth) for label, group in grouped(runs)]
            for tag in tags
        }
        draw(curves, options.out)
        for tag, lines in curves.items():
            for text in (text for line in lines for text in line.left_out):
                print(f"{tag}: left out: {text}")
    except (ConfigError, CheckpointError) as error:
        return failed(error)
    print(f"wrote {options.out}")
    return 0


def read_run(path: Path) -> Run:
    """Return the metrics of a run.

    Args:
        path: folder under `data_dir/runs`, `metrics.jsonl`, or checkpoint folder of the run.

    Raises:
        ConfigError: there are no metrics, or they are damaged.
        CheckpointError: the path is a checkpoint folder that cannot be read.
    """
    # Find the file.
    file = path
    if path.is_dir():
        if not (path / METRICS_FILE).is_file() and any(path.glob("step-*")):
            path = _folder_of(path)
        file = path / METRICS_FILE
    if not file.is_file():
        raise ConfigError(
            f"RUN: expected the folder of a run, its {METRICS_FILE} or a --checkpoint-dir, got "
            f"{path}, where there is no {file.name}"
        )
    # Read the metrics.
    points: dict[str, dict[int, float]] = {}
    torn = None
    for line in read_lines(file):
        if torn is not None:
            raise ConfigError(f"RUN: {file}: line {torn} is damaged: expected JSON with a step")
        if line.row is None:
            torn = line.number  # fine in the last line, which may be half written
            continue
        step = line.row["step"]
        for tag, value in line.row.items():
            if tag not in NOT_TAGS:
                points.setdefault(tag, {})[step] = float(value)
    # Read the settings.
    about: dict[str, object] = {}
    beside = file.with_name(RUN_FILE)
    if beside.is_file():
        try:
            about = json.loads(beside.read_text())["config"]
        except (ValueError, KeyError, TypeError, RecursionError):
            raise ConfigError(f"RUN: {beside} is damaged: expected JSON with a config") from None
    return Run(file.parent.resolve().name, about, points)


def _folder_of(checkpoint_dir: Path) -> Path:
    """Return the folder under `data_dir/runs` of the run with a checkpoint folder."""
    saved = find(checkpoint_dir, lambda message: print(message, file=sys.stderr))
    run_name: str = read_state(saved).get("run_name", "")  # absent from the oldest saves
    if not run_name:
        return checkpoint_dir
    return Path(read_config(saved).data_dir) / "runs" / run_name


def _present(tags: Sequence[str], runs: Sequence[Run]) -> list[str]:
    """Return the tags that any of the runs has.

    Raises:
        ConfigError: there are none.
    """
    found = [tag for tag in tags if any(tag in run.points for run in runs)]
    if not found:
        raise ConfigError(f"RUN: expected {', '.join(tags)} in it, got none of them")
    return found


def _check_known(tags: Sequence[str], runs: Sequence[Run]) -> None:
    known = sorted({tag for run in runs for tag in run.points})
    for tag in tags:
        if tag not in known:
            near = difflib.get_close_matches(tag, known, n=3, cutoff=0.0)
            raise ConfigError(
                f"--metric: expected a tag of the runs, such as {', '.join(near)}; got {tag!r}"
            )


def _check_writable(out: Path) -> None:
    if out.suffix not in FORMATS:
        raise ConfigError(f"--out: expected a file that ends in {', '.join(FORMATS)}, got {out}")
    if out.is_dir() or not out.parent.is_dir():
        raise ConfigError(f"--out: expected a file in a folder that exists, got {out}")


def _parser() -> argparse.ArgumentParser:
    parser = OneLineParser(
        prog="enn plot",
        description="Draw return, entropy, KL and speed of runs, or other metrics.",
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("runs", nargs="+", type=Path, metavar="RUN")
    parser.add_argument(
        "--metric", nargs="+", action="extend", metavar="TAG", help="tags to draw, one chart each"
    )
    parser.add_argument("--out", type=Path, default=Path("plot.png"), metavar="FILE")
    parser.add_argument(
        "--smooth",
        type=positive,
        default=1,
        metavar="N",
        help="draw the mean of the last N updates",
    )
    return parser
