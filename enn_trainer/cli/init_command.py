"""The command `enn init`."""

import keyword
import re
import shlex
from collections.abc import Mapping, Sequence
from contextlib import ExitStack, closing
from pathlib import Path

from enn_trainer.base.errors import ConfigError, EnnTrainerError
from enn_trainer.cli.arguments import OneLineParser

_EPILOG = """\
Writes world.py, its test, settings and a README with the commands to type. DIR must be new or
empty, and its name a name that Python can import.

examples:
  enn init garden
  enn init coins --match
  enn init cards --turns
  enn init pole --from gymnasium:CartPole-v1
  enn init rps --from pettingzoo:classic.rps_v2"""
_SMALL = """
    // A small network and large steps, for a small environment. Raise d_model for a harder one.
    net: (d_model: 32, n_layer: 1),
    optim: (lr: 0.005, bs: 256),
    // num_envs is a multiple of the number of sides of a match.
    rollout: (num_envs: 64, steps: 16, processes: 1),
    total_timesteps: 30000,"""
_AGAINST_RANDOM = """
    // The agent plays itself and is evaluated against random play.
    eval: (episodes: 256, num_envs: 64, interval: 10000, opponent: "random"),"""


def parser() -> OneLineParser:
    """Return the parser of `enn init`."""
    description = "Write a starter environment, or an adapter of a Gymnasium or PettingZoo one."
    parser = OneLineParser(prog="enn init", description=description, epilog=_EPILOG)
    parser.add_argument("dir", type=Path, metavar="DIR", help="folder to create")
    parser.flag("--match", "write a game between two sides, which act at once")
    parser.flag(
        "--turns", "write a game between two sides that take turns, with or without --match"
    )
    source = "adapt gymnasium:ID or pettingzoo:MODULE, with an explicit mapping of its fields"
    parser.option("--from", "WORLD", source, dest="source")
    return parser


def init_command(arguments: Sequence[str]) -> None:
    """Run `enn init`: write an environment, its test, settings and README.

    Raises:
        ConfigError: the folder cannot be used, or the environment to adapt does not exist.
    """
    options = parser().parse_args(arguments)
    is_match = options.match or options.turns
    if is_match and options.source:
        flag = "--turns" if options.turns else "--match"
        raise ConfigError(f"{flag} and --from: expected at most one of them, got both")
    folder: Path = options.dir
    try:
        _check_folder(folder)
        if options.source:
            world, more = _adapter(options.source)
        else:
            name = "turns.py" if options.turns else "match.py" if is_match else "world.py"
            world, more = _starter(name), _SMALL + (_AGAINST_RANDOM if is_match else "")
        opponent = " --opponent random" if is_match else ""
        settings = _starter("settings.ron").format(more=more)
        readme = _starter("README.md").format(name=folder.resolve().name, opponent=opponent)
        files = {"world.py": world, "test_world.py": _starter("test_world.txt")}
        files |= {"settings.ron": settings, "README.md": readme}
        _write(folder, files)
    except OSError as error:
        expected = "expected a folder that can be created and written to"
        raise ConfigError(f"DIR: {expected}, got {folder} ({error.strerror})") from None
    lines = [f"cd {shlex.quote(str(folder))}", *re.findall("^- `(.*?)`", readme, re.MULTILINE)]
    print(f"wrote {', '.join(files)} in {folder}\n")
    print("next:", *lines, sep="\n  ")


def _starter(name: str) -> str:
    """Return the text of a file of `starters`."""
    return Path(__file__).with_name("starters").joinpath(name).read_text(encoding="utf-8")


def _check_folder(folder: Path) -> None:
    """Raise if the folder is not empty, or has a name that Python cannot import."""
    if folder.exists() or folder.is_symlink():
        if not folder.is_dir():
            raise ConfigError(f"DIR: expected a new or empty folder, got the file {folder}")
        if files := sorted(path.name for path in folder.iterdir()):
            names = ", ".join(files[:3]) + (f" and {len(files) - 3} more" if len(files) > 3 else "")
            raise ConfigError(f"DIR: expected a new or empty folder, got {folder}, with {names}")
    name = folder.resolve().name
    if not name.isidentifier() or keyword.iskeyword(name):
        words = re.sub(r"\W+", "_", name).strip("_") or "world"
        nearest = words if words.isidentifier() and not keyword.iskeyword(words) else f"my_{words}"
        expected = f"expected a name that Python can import, as in `import {nearest}.world`"
        raise ConfigError(f"DIR: {expected}, got {name!r}; try {folder.with_name(nearest)}")


def _adapter(named: str) -> tuple[str, str]:
    """Return the source of an adapter of an environment, and settings for it."""
    from enn_trainer.cli.load_world import load_world
    from enn_trainer.runtime.trust import TYPED
    from entity_env.errors import EntityEnvError
    from entity_env.named_world import LIBRARIES, gymnasium_id

    library, _, name = named.partition(":")
    if library not in LIBRARIES:
        raise ConfigError(f"--from: expected gymnasium:ID or pettingzoo:MODULE, got {named!r}")
    try:
        if library == "gymnasium":
            name = gymnasium_id(name, Path.cwd())
        create_env = load_world(f"{library}:{name}", {}, "--from", "--from", trust=TYPED)
        from enn_trainer.cli.starters.adapter import adapt, adapter_source, settings_of

        with closing(adapt(name) if library == "gymnasium" else create_env()) as world:
            return adapter_source(name, world), settings_of(world)
    except EntityEnvError as error:
        raise ConfigError(f"--from: {named}: {error}") from None
    except EnnTrainerError:
        raise
    except Exception as error:  # of the code of the environment
        raise ConfigError(f"--from: {named}: {type(error).__name__}: {error}") from None


def _write(folder: Path, files: Mapping[str, str]) -> None:
    """Write all files to a folder, or none; create the folder if it does not exist."""
    with ExitStack() as undo:
        if not folder.is_dir():
            folder.mkdir()
            undo.callback(folder.rmdir)
        for name, text in files.items():
            undo.callback((folder / name).unlink, missing_ok=True)
            (folder / name).write_text(text, encoding="utf-8")
        undo.pop_all()
