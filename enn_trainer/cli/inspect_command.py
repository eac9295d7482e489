"""The command `enn inspect`."""

import shlex
import time
from collections.abc import Sequence
from itertools import islice
from pathlib import Path

from rich.console import Console

from enn_trainer.base.errors import CheckpointError, ConfigError
from enn_trainer.base.tables import aligned, rows_of_spaces, show_lines
from enn_trainer.checkpoints.migrate.config_diff import lines_not_default
from enn_trainer.cli.arguments import FAILURE, OneLineParser
from enn_trainer.cli.guesses.typed_line import line_to_type
from enn_trainer.config import CloneRunConfig, TrainConfig
from enn_trainer.config.formats import read_file
from enn_trainer.config.load import load_config
from enn_trainer.config.schema import load_schema
from entity_env.recording.entity_gym_samples import is_entity_gym, open_entity_gym_samples
from entity_env.recording.read_recording import Recording
from entity_env.recording.recording_format import PREFIX, RecordingError
from entity_env.serialization.plain_open import read_plain

MAX_CONFIG_BYTES = 1 << 18
"""Largest size of a configuration file; slow formats need a second for it."""
MAX_ENTRIES = 10_000
COUNTING_S = 2.0
"""Time limit for counting the frames of a recording."""
_SECTIONS = {"env", "net", "optim", "ppo", "rollout"}
_EPILOG = """\
PATH is a run, a save (also RUN@STEP, RUN@latest, RUN@best), a recording (also of entity-gym), a
configuration or a schema. The status is 1 if it is damaged or unknown.

examples:
  enn inspect runs/xor
  enn inspect mine.rec
  enn inspect mine.ron"""


def parser() -> OneLineParser:
    """Return the parser of `enn inspect`."""
    description = "Describe a file or folder on one page. Nothing in it is executed."
    parser = OneLineParser(prog="enn inspect", description=description, epilog=_EPILOG)
    parser.run("path", "PATH", "a file or folder")
    return parser


def inspect_command(arguments: Sequence[str]) -> int:
    """Run `enn inspect`: describe a file or folder, and print the command to type next.

    Returns:
        0, or 1 if it is damaged or not a file of this program.
    """
    path, console = parser().parse_args(arguments).path, Console()
    try:
        show_lines(_page(path, console), console)
        return 0
    except (CheckpointError, ConfigError, RecordingError) as error:
        problem = f"cannot be used: {error}"
    except OSError as error:
        problem = f"cannot be read: {error.strerror}"
    except ValueError as error:
        problem = f"not a file of this program: {error}"
    show_lines([f"{path}: {problem}{line_to_type(str(path))}"], console)
    return FAILURE


def _page(path: Path, console: Console) -> list[str]:
    """Return a description of a path as lines; the description of a save is printed.

    Raises:
        CheckpointError, ConfigError, RecordingError: it is damaged.
        OSError: it cannot be read.
        ValueError: it is not a file of this program; the message describes it.
    """
    if "@" in path.name and not path.exists():
        from enn_trainer.checkpoints.lookup import resolve, split_member
        from enn_trainer.cli.show_save import show_save

        if split_member(path) is not None:
            show_save(path, console)
            return []
        path = resolve(path)
    path.stat()  # raises if the path does not exist
    try:
        if path.is_dir():
            return _page_of_folder(path, console)
        if not path.is_file():
            raise ValueError("a pipe, a socket or a device, which is not opened")
        return _page_of_file(path)
    except (CheckpointError, RecordingError):
        raise
    except ValueError:
        # Other files in the folder of a run, and files of a save.
        for folder in path.absolute().parents[:3]:
            kind = "save" if (folder / "manifest.json").is_file() else "run"
            if kind == "save" or any(folder.glob("step-*/manifest.json")):
                title = f"{path}: belongs to the {kind} {folder}"
                return [title, *_next("to see it", "inspect", folder)]
        raise


def _page_of_folder(path: Path, console: Console) -> list[str]:
    from enn_trainer.checkpoints.format import METRICS_FILE
    from enn_trainer.checkpoints.run_dir import RunDir, is_any_save
    from enn_trainer.cli.show_save import lines_of_notices, show_save

    entries = list(islice(path.iterdir(), MAX_ENTRIES))
    if len(entries) in (0, MAX_ENTRIES):
        raise ValueError(f"a folder with {len(entries):,} or more files" if entries else "a folder")
    if is_any_save(path):
        show_save(path, console, non_default=True)
        return []
    if saves := RunDir(path).all_saves():
        title = f"{path}: a run; saves: {len(saves)}, from {saves[0].name}; the newest valid one:"
        show_lines([title], console)
        show_save(path, console, non_default=True, run=path)
        return []
    if num_runs := sum(bool(RunDir(entry).saved_paths()) for entry in entries):
        return [f"{path}: a folder with runs: {num_runs}", *_next("to list them", "runs", path)]
    if (path / METRICS_FILE).is_file():
        title = f"{path}: a run without saves"
        return [title, *lines_of_notices(path), *_next("to draw it", "plot", path)]
    raise ValueError(f"a folder without saves; entries: {len(entries)}")


def _page_of_file(path: Path) -> list[str]:
    # Does not block, even if a pipe has replaced the file since the check.
    with read_plain(path.resolve()) as file:
        begin = file.read(4096) or b""
    if begin.startswith(PREFIX[:8]):
        return _page_of_recording(Recording.open(path))
    if is_entity_gym(begin):
        return _page_of_recording(open_entity_gym_samples(path))
    is_small = path.stat().st_size <= MAX_CONFIG_BYTES
    if begin and is_small and path.suffix in (".ron", ".yaml", ".yml", ".toml", ".json"):
        return _page_of_config(path)
    if begin.startswith((b"\x80", b"PK\x03\x04")):  # the latter is a zip, as torch.save writes
        raise ValueError("it may hold a pickle, which can run any code, so it is not opened")
    is_text = begin.isascii() and b"\0" not in begin
    raise ValueError("text" if begin and is_text else "a binary file" if begin else "an empty file")


def _page_of_recording(recording: Recording) -> list[str]:
    # Count frames within the time limit.
    frames, ended, varied = 0, 0, set[str]()
    deadline, more = time.monotonic() + COUNTING_S, ""
    for step in recording.steps():
        frames += len(step.decisions)
        ended += int((step.terminated | step.truncated).sum())
        varied |= {name for drawn in step.parameters.values() for name in drawn}
        if time.monotonic() > deadline:
            more = " or more"
            break

    path, num_envs = recording.path, recording.num_envs
    facts = [
        ("environments", "unknown" if num_envs is None else str(num_envs)),
        ("frames", f"{frames:,}{more}, 1 of {recording.subsample} recorded"),
        ("episodes", f"{ended:,}{more} finished"),
    ]
    if varied:
        facts.append(("arguments", f"{', '.join(sorted(varied))}, drawn for each episode"))
    facts.append(("complete", "yes" if recording.complete else "no, the torn end is skipped"))
    facts += rows_of_spaces(recording.obs_space, recording.action_space)
    clone = "clone", path, "env.id=WORLD", "--checkpoint-dir", "NEW"
    return [f"{path}: a recording", *aligned(facts), *_next("to imitate it", *clone)]


def _page_of_config(path: Path) -> list[str]:
    values = read_file(path)
    names = {*values} if isinstance(values, dict) else set()
    if {"name", "version", "fields"} <= names:
        schema = load_schema(path)
        title = f"{path}: the schema of {schema.name}, version {schema.version}"
        return [title, *_next("to compare it", "config", "check-schema", path)]
    version = values["version"] if "version" in names else None
    if type(version) is not int and not _SECTIONS & names:
        raise ValueError(f"a {path.suffix} file without settings of this program")

    cls, train = TrainConfig, ["train"]
    if "clone" in names:
        cls, train = CloneRunConfig, ["clone", "RECORDING"]
    config = load_config(cls, path)
    title = f"{path}: a configuration, version {version}, of {config.env.id}"
    lines = [
        title,
        *lines_not_default(config),
        *_next("to train with it", *train, "--config", path),
    ]
    if version != cls.version():
        lines += _next("to upgrade it", "config", "upgrade-config", path)[1:]
    return lines


def _next(purpose: str, *command: object) -> list[str]:
    """Return lines about a command to type next."""
    return ["", f"{purpose}:  {shlex.join(['enn', *map(str, command)])}"]
