"""Configurations that ship with this program, by their names and by their worlds."""

from pathlib import Path

from enn_trainer.base.errors import ConfigError
from enn_trainer.config.formats import read_file
from entity_env.errors import did_you_mean

_PACKAGE = Path(__file__).parent.parent


def shipped_configs() -> dict[str, Path]:
    """Return the files of all configurations that ship with this program, by their names."""
    installed = _PACKAGE / "configs"
    folder = installed if installed.is_dir() else _PACKAGE.parent / "configs"  # a checkout
    return {path.stem: path for path in sorted(folder.glob("*.ron"))}


def configs_of_world(world: str) -> list[Path]:
    """Return the shipped configurations of an example environment, the one to use first.

    That is the one named like it, such as `treasure_hunt` for `TreasureHunt`; else the one with the
    shortest name, and of several the first in alphabetical order.
    """

    def preference(path: Path) -> tuple[bool, int, str]:
        is_namesake = path.stem.replace("_", "") == world.lower()
        return not is_namesake, len(path.stem), path.stem

    all_configs = shipped_configs().values()
    found = [p for p in all_configs if read_file(p).get("env", {}).get("id") == world]
    return sorted(found, key=preference)


def find_config(given: Path | None) -> Path | None:
    """Return the file that `--config` names: a path, or the name of a shipped configuration.

    Raises:
        ConfigError: it is neither.
    """
    if given is None or given.is_file():
        return given
    shipped = shipped_configs()
    if str(given) in shipped:
        return shipped[str(given)]
    hint = did_you_mean(given.stem, shipped) or f": {', '.join(shipped)}"
    raise ConfigError(
        f"--config: expected a configuration file, or the name of one that ships with this "
        f"program, got {given}{hint}"
    )
