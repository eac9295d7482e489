"""Configurations that ship with the program, by name and by world."""

from pathlib import Path

import pytest

from enn_trainer.base.errors import ConfigError
from enn_trainer.config import shipped
from enn_trainer.config.load import load_config
from enn_trainer.config.shipped import configs_of_world, find_config, shipped_configs
from enn_trainer.config.train_config import TrainConfig
from entity_env.examples import ENV_REGISTRY


def test_every_configuration_of_the_project_is_shipped() -> None:
    files = Path(__file__).parents[3].glob("configs/*.ron")
    assert shipped_configs() == {path.stem: path for path in files}


def test_configurations_inside_the_installed_package_are_preferred(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A wheel has them in the package; a folder next to it belongs to another package."""
    for folder in ("enn_trainer/configs", "configs"):
        (tmp_path / folder).mkdir(parents=True)
    (tmp_path / "enn_trainer/configs/mine.ron").touch()
    (tmp_path / "configs/foreign.ron").touch()
    monkeypatch.setattr(shipped, "_PACKAGE", tmp_path / "enn_trainer")
    assert list(shipped_configs()) == ["mine"]


@pytest.mark.parametrize(
    ("world", "first", "number"),
    [
        ("TreasureHunt", "treasure_hunt", 1),
        ("Minefield", "minefield", 4),  # named like it
        ("MultiSnake", "multisnake_1snakes11len", 2),  # of two equally long names
        ("MineSweeper", None, 0),
        ("treasure_hunt", None, 0),
        ("worlds.py:TreasureHunt", None, 0),
    ],
)
def test_configuration_with_the_name_of_the_environment_is_preferred(
    world: str, first: str | None, number: int
) -> None:
    result = [path.stem for path in configs_of_world(world)]
    assert len(result) == number
    assert result[:1] == ([] if first is None else [first])


@pytest.mark.parametrize("world", ENV_REGISTRY)
def test_preferred_configuration_trains_in_its_environment(world: str) -> None:
    for path in configs_of_world(world)[:1]:
        assert load_config(TrainConfig, path).env.id == world


def test_name_of_a_shipped_configuration_is_accepted_unless_a_file_exists(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert find_config(None) is None
    assert find_config(Path("xor")) == shipped_configs()["xor"]
    Path("xor").write_text("")
    assert find_config(Path("xor")) == Path("xor")


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("move_to_orgin", "did you mean move_to_origin?"),
        ("configs/treasure_hnt.ron", "did you mean treasure_hunt?"),
        ("zzz", "got zzz: cherry_pick, count, "),
        (".", "got .: cherry_pick"),
    ],
)
def test_unknown_configuration_name_gets_a_suggestion(name: str, expected: str) -> None:
    with pytest.raises(
        ConfigError, match=r"^--config: expected a file, or the name of a shipped configuration"
    ) as error:
        find_config(Path(name))
    assert expected in str(error.value)
