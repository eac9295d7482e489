"""Saved episodes continue as long as the code of their world is the same."""

import importlib.util
import textwrap
from pathlib import Path
from typing import Any

import pytest

from entity_env.examples import Duel, Minefield, MineSweeper, Xor
from entity_env.named_world import find_world
from entity_env.world_code import (
    EARLIER,
    changed_classes,
    code_of,
    is_same_code,
    portable_name,
    shared_classes,
)

PLAIN = '''
class World:
    """A world."""

    # The speed of all.
    speed = 1

    def act(self):
        """Act."""
        text = """not documentation"""
        return text, self.speed
'''


def digest(tmp_path: Path, source: str) -> str:
    path = tmp_path / f"world_{abs(hash(source))}.py"
    path.write_text(textwrap.dedent(source))
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None
    assert spec.loader is not None
    module: Any = importlib.util.module_from_spec(spec)
    __import__("sys").modules[path.stem] = module
    spec.loader.exec_module(module)
    return next(iter(code_of(module.World).values()))


def test_documentation_does_not_change_the_code(tmp_path: Path) -> None:
    before = digest(tmp_path, PLAIN)
    for old, new in [
        ('"""A world."""', '"""Another\n\n    text.\n    """'),
        ("    # The speed of all.\n", "\n"),
        ('"""Act."""', '"""Take a step."""'),
        ("World:\n", "World:\n\n"),
    ]:
        assert old in PLAIN
        assert is_same_code(before, digest(tmp_path, PLAIN.replace(old, new))), new


def test_view_method_does_not_change_the_code(tmp_path: Path) -> None:
    """A page that draws episodes in another way has no effect on them."""
    before = digest(tmp_path, PLAIN)
    for body in ("return None", '"""Draw."""\n        if self:\n            return None'):
        viewed = f"{PLAIN}\n    def view(self):\n        {body}\n"
        assert is_same_code(before, digest(tmp_path, viewed)), body
    with_argument = f"{PLAIN}\n    def view(self, place):\n        return place\n"
    assert not is_same_code(before, digest(tmp_path, with_argument)), "a method of its own"


@pytest.mark.parametrize(
    ("old", "new"), [("speed = 1", "speed = 2"), ("not documentation", "other"), ("text,", "")]
)
def test_edited_code_is_changed(tmp_path: Path, old: str, new: str) -> None:
    assert not is_same_code(digest(tmp_path, PLAIN), digest(tmp_path, PLAIN.replace(old, new)))


def test_digest_of_the_whole_source_matches(tmp_path: Path) -> None:
    """As saves have it that were made before there were two."""
    now = digest(tmp_path, PLAIN)
    assert is_same_code(now.partition(":")[0], now)
    assert not is_same_code("0" * 64, now)


@pytest.mark.parametrize("world", [Duel, Minefield, MineSweeper, Xor])
def test_examples_match_digests_of_earlier_releases(world: type) -> None:
    for now in code_of(world).values():
        earlier = [old for old, new in EARLIER.items() if now.split(":")[1].startswith(new)]
        assert earlier
        for before in earlier:
            assert is_same_code(before + "0" * 48, now)
            assert is_same_code(f"{'1' * 64}:{before}{'0' * 48}", now)


ONE, OTHER = f"{'1' * 64}:{'2' * 64}", f"{'3' * 64}:{'4' * 64}"
HERE = "loaded_world_01234567.World"
THERE = "loaded_world_89abcdef.World"


def world_in(folder: Path, source: str = PLAIN) -> Any:
    folder.mkdir()
    (folder / "a world.py").write_text(textwrap.dedent(source))
    return find_world("a world.py:World", folder)


def test_files_with_equal_names_have_equal_portable_names(tmp_path: Path) -> None:
    """The code is that of another folder, or of another machine."""
    worlds = [world_in(tmp_path / name) for name in ("here", "there")]
    assert worlds[0] is not worlds[1]
    assert worlds[0].__module__ != worlds[1].__module__
    codes = [code_of(world) for world in worlds]
    assert [*codes[0]] == ["a world.World"]
    assert codes[0] == codes[1]


def test_classes_with_equal_names_are_numbered(tmp_path: Path) -> None:
    base = world_in(tmp_path / "base")
    derived = type("World", (base,), {})
    other = world_in(tmp_path / "other", PLAIN.replace("speed = 1", "speed = 2"))
    code = code_of(base, other)
    assert [*code] == ["a world.World", "a world.World 2"]
    assert code_of(derived)["a world.World"] == code["a world.World"]
    assert not changed_classes(code, code)
    assert not changed_classes(code, code_of(other, base))
    assert changed_classes(code, code_of(base)) == ["a world.World"]
    edited = {**code, "a world.World 2": ONE}
    assert changed_classes(code, edited) == ["a world.World"]


@pytest.mark.parametrize(
    ("before", "now", "changed"),
    [
        ({HERE: ONE}, {"world.World": ONE}, []),
        ({HERE: ONE}, {"world.World": OTHER}, ["world.World"]),
        ({HERE: ONE, THERE: OTHER}, {"world.World": OTHER, "world.World 2": ONE}, []),
        ({HERE: ONE, THERE: ONE}, {"world.World": OTHER, "world.World 2": ONE}, ["world.World"]),
        ({"__main__.World": ONE}, {"world.World": ONE}, []),
        ({"package.World": ONE, "package.Base": OTHER}, {"package.World": ONE}, []),
        ({}, {"world.World": ONE}, []),
    ],
)
def test_changed_classes_match_by_class_name_and_code(
    before: dict[str, str], now: dict[str, str], changed: list[str]
) -> None:
    assert changed_classes(before, now) == changed
    assert shared_classes(before, now) == ({"World"} if before else set())


def test_portable_name_only_drops_the_path_digest() -> None:
    assert portable_name(HERE) == portable_name(THERE) == "world.World"
    for name in ("loaded_world.World", "my.loaded_world_01234567.World", "package.World"):
        assert portable_name(name) == name
