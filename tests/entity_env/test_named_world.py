"""Likely names of environments."""

from pathlib import Path

import pytest

from entity_env.errors import UnknownWorld
from entity_env.named_world import find_world, likely_name

WORLDS = """
import no_such_package


class Helper:
    pass


class Orchard(PlainState, Environment):
    pass


class Duel(entity_env.Match):
    pass
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "orchard.py").write_text(WORLDS)
    (tmp_path / "data.py").write_bytes(b"\xff\xfe")
    (tmp_path / "empty.py").touch()
    return tmp_path


@pytest.mark.parametrize(
    ("name", "likely"),
    [
        ("CartPole-v1", "gymnasium:CartPole-v1"),
        ("ALE/Pong-v5", "gymnasium:ALE/Pong-v5"),
        ("treasure_hunt", "TreasureHunt"),
        ("treasurehunt", "TreasureHunt"),
        ("TresureHunt", "TreasureHunt"),
        ("snake", "MultiSnake"),
        ("orchard.py", "orchard.py:Orchard"),
        ("./orchard.py", "./orchard.py:Orchard"),
        ("orchard.py:orchard", "orchard.py:Orchard"),
        ("orchard.py:Dual", "orchard.py:Duel"),
        ("orchard.py::Orchard", "orchard.py:Orchard"),
        ("missing.py:Orchard", "orchard.py:Orchard"),
        ("missing.py::Other", "missing.py:Other"),
        ("missing.py:Other", None),
        ("orchard.py:Helper", None),
        ("empty.py", None),
        ("data.py", None),
        ("module:Orchard", None),
        ("chess", None),
        (f"{'long' * 99}.py", None),
    ],
)
def test_likely_name_is_found_without_imports(name: str, likely: str | None, folder: Path) -> None:
    assert likely_name(name, folder) == likely


def test_module_of_pettingzoo_is_named_with_its_family(folder: Path) -> None:
    pytest.importorskip("pettingzoo")
    assert likely_name("tictactoe_v3", folder) == "pettingzoo:classic.tictactoe_v3"


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("CartPole-v1", "got 'CartPole-v1', did you mean gymnasium:CartPole-v1?"),
        ("orchard.py", "the name of a class after the file, as in orchard.py:Orchard"),
        ("empty.py", "the name of a class after the file, as in empty.py:World"),
        ("chess", "gymnasium:ID, pettingzoo:MODULE or one of MoveToOrigin, .* got 'chess'$"),
    ],
)
def test_error_about_an_unknown_environment_names_the_likely_one(
    name: str, message: str, folder: Path
) -> None:
    with pytest.raises(UnknownWorld, match=message.replace("?", r"\?")):
        find_world(name, folder)
