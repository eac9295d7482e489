"""What is called otherwise: read, checked and applied."""

from pathlib import Path

import pytest

from enn_trainer.base.errors import ConfigError
from enn_trainer.checkpoints.migrate.evolve_rules import Rules, read_renames, rename_lines
from entity_env import CategoricalActionSpace, Entity, ObsSpace
from entity_env.spaces import Spaces

SPACE = ObsSpace(["hour"], {"Trap": Entity(["x"]), "a=b.c": Entity(["x", "y.z"])})
DO = {"move": CategoricalActionSpace(["up", "down"])}
SPACES = Spaces(SPACE, DO)


def test_every_kind_of_name_can_be_renamed() -> None:
    texts = ["Trap=Mine", "a=b.c.y.z=depth", "global:hour=t", "action:move=walk"]
    rules = Rules(read_renames([*texts, "label:move.up=north"], SPACES))
    assert rules.spaces(SPACES) == (
        ObsSpace(["t"], {"Mine": Entity(["x"]), "a=b.c": Entity(["x", "depth"])}),
        {"walk": CategoricalActionSpace(["north", "down"])},
    )


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("Trop=Mine", r"one of Trap, a=b.c, .*; got 'Trop=Mine'; did you mean Trap\?"),
        ("Trap", "expected Type=New.*; got 'Trap'$"),
        ("Trap=", "expected a new name after ="),
    ],
)
def test_invalid_renames_are_refused_with_the_valid_names(text: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        read_renames([text], SPACES)


def test_unknown_new_names_are_refused_with_the_closest_name() -> None:
    """A typo there would throw away what was learnt of the old name."""
    texts = ["Trap=Mime", "a=b.c.x=q", "global:hour=tim", "action:move=walk", "label:move.up=nort"]
    rules = Rules(read_renames(texts, SPACES))
    obs_space = ObsSpace(["time"], {"Mine": Entity(["x"]), "a=b.c": Entity(["px", "y.z"])})
    with pytest.raises(ConfigError) as error:
        rules.check_new_names(
            Spaces(obs_space, {"walk": CategoricalActionSpace(["north", "down"])})
        )
    mime, x, hour, label = error.value.problems
    assert mime.startswith("rename: Trap=Mime: expected a new name of the environment, one of")
    assert mime.endswith("Mine, a=b.c; got 'Mime'; did you mean Mine?")
    assert x.startswith("rename: a=b.c.x=q: ")
    assert hour.endswith("one of time; got 'tim'; did you mean time?")
    assert label.startswith("rename: label:move.up=nort: ")
    assert label.endswith("down, north; got 'nort'; did you mean north?")
    known = Rules(read_renames(["action:move=walk", "label:move.up=north"], SPACES))
    known.check_new_names(Spaces(obs_space, {"walk": CategoricalActionSpace(["north"])}))


def test_two_names_cannot_become_one() -> None:
    for texts in (["Trap=a=b.c"], ["a=b.c.x=y.z"], ["label:move.up=down"]):
        with pytest.raises(ConfigError, match="rename: two names become one"):
            Rules(read_renames(texts, SPACES)).spaces(SPACES)
    with pytest.raises(ConfigError, match="expected every name once, got Trap twice"):
        read_renames(["Trap=A", "Trap=B"], SPACES)


def test_names_can_be_exchanged() -> None:
    rules = Rules(read_renames(["label:move.up=down", "label:move.down=up"], SPACES))
    assert rules.spaces(SPACES)[1]["move"] == CategoricalActionSpace(["down", "up"])


def test_rules_may_be_in_a_file(tmp_path: Path) -> None:
    (tmp_path / "rules.txt").write_text("# of May\n\n  Trap=Mine\n")
    assert rename_lines(tmp_path / "rules.txt") == ["Trap=Mine"]
    with pytest.raises(ConfigError, match="--rename-file: expected a text file"):
        rename_lines(tmp_path / "none.txt")
