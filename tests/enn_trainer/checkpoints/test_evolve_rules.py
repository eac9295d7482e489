"""What is called otherwise: read, checked and applied."""

from pathlib import Path

import pytest

from enn_trainer.checkpoints.evolve_rules import Rules, read_renames, rename_lines
from enn_trainer.errors import ConfigError
from entity_env import CategoricalActionSpace, Entity, ObsSpace

SPACE = ObsSpace(["hour"], {"Trap": Entity(["x"]), "a=b.c": Entity(["x", "y.z"])})
DO = {"move": CategoricalActionSpace(["up", "down"])}


def test_every_kind_of_name_can_be_renamed() -> None:
    texts = ["Trap=Mine", "a=b.c.y.z=depth", "global:hour=t", "action:move=walk"]
    rules = Rules(read_renames([*texts, "label:move.up=north"], SPACE, DO))
    assert rules.spaces(SPACE, DO) == (
        ObsSpace(["t"], {"Mine": Entity(["x"]), "a=b.c": Entity(["x", "depth"])}),
        {"walk": CategoricalActionSpace(["north", "down"])},
    )


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("Trop=Mine", r"which has Trap, a=b.c, .*; got 'Trop=Mine'; did you mean Trap\?"),
        ("Trap", "expected Type=New"),
        ("Trap=", "expected a new name after ="),
    ],
)
def test_mistakes_are_told_with_what_there_is(text: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        read_renames([text], SPACE, DO)


def test_two_names_cannot_become_one() -> None:
    for texts in (["Trap=a=b.c"], ["a=b.c.x=y.z"], ["label:move.up=down"]):
        with pytest.raises(ConfigError, match="rename: two names become one"):
            Rules(read_renames(texts, SPACE, DO)).spaces(SPACE, DO)
    with pytest.raises(ConfigError, match="expected every name once, got Trap twice"):
        read_renames(["Trap=A", "Trap=B"], SPACE, DO)


def test_names_can_be_exchanged() -> None:
    rules = Rules(read_renames(["label:move.up=down", "label:move.down=up"], SPACE, DO))
    assert rules.spaces(SPACE, DO)[1]["move"] == CategoricalActionSpace(["down", "up"])


def test_rules_may_be_in_a_file(tmp_path: Path) -> None:
    (tmp_path / "rules.txt").write_text("# of May\n\n  Trap=Mine\n")
    assert rename_lines(tmp_path / "rules.txt") == ["Trap=Mine"]
    with pytest.raises(ConfigError, match="--rename-file: expected a text file"):
        rename_lines(tmp_path / "none.txt")
