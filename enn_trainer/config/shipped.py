"""Shipped configurations, by name and by environment."""

from pathlib import Path

from enn_trainer.base.errors import ConfigError
from enn_trainer.config.formats import read_file
from entity_env.errors import did_you_mean

_PACKAGE = Path(__file__).parent.parent


def shipped_configs() -> dict[str, Path]:
    """Return the files of all shipped configurations, by name."""
    installed = _PACKAGE / "configs"
    folder = installed if installed.is_dir() else _PACKAGE.parent / "configs"  # a checkout
    return {path.stem: path for path in sorted(folder.glob("*.ron"))}


def configs_of_world(world: str) -> list[Path]:
    """Return the shipped configurations of a built-in environment, in order of preference.

    A configuration with the name of the environment, such as `treasure_hunt` for `TreasureHunt`, is
    first; then names are sorted by length and alphabetically.
    """

    def preference(path: Path) -> tuple[bool, int, str]:
        is_namesake = path.stem.replace("_", "") == world.lower()
        return not is_namesake, len(path.stem), path.stem

    all_configs = shipped_configs().values()
    paths = [p for p in all_configs if read_file(p).get("env", {}).get("id") == world]
    return sorted(paths, key=preference)


def find_config(path: Path | None) -> Path | None:
    """Return the file of `--config`: a path, or the name of a shipped configuration.

    Raises:
        ConfigError: there is no such file or configuration.
    """
    if path is None or path.is_file():
        return path
    shipped = shipped_configs()
    if str(path) in shipped:
        return shipped[str(path)]
    hint = did_you_mean(path.stem, shipped) or f": {', '.join(shipped)}"
    raise ConfigError(
        f"--config: expected a file, or the name of a shipped configuration, got {path}{hint}"
    )
