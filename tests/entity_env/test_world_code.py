"""Saved episodes continue as long as the code of their world is the same."""

import importlib.util
import textwrap
from pathlib import Path
from typing import Any

import pytest

from entity_env.examples import Duel, Minefield, MineSweeper, Xor
from entity_env.world_code import EARLIER, code_of, is_same_code

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


def test_documentation_does_not_count(tmp_path: Path) -> None:
    before = digest(tmp_path, PLAIN)
    for old, new in [
        ('"""A world."""', '"""Another\n\n    text.\n    """'),
        ("    # The speed of all.\n", "\n"),
        ('"""Act."""', '"""Take a step."""'),
        ("World:\n", "World:\n\n"),
    ]:
        assert old in PLAIN
        assert is_same_code(before, digest(tmp_path, PLAIN.replace(old, new))), new


def test_the_view_does_not_count(tmp_path: Path) -> None:
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
def test_code_counts(tmp_path: Path, old: str, new: str) -> None:
    assert not is_same_code(digest(tmp_path, PLAIN), digest(tmp_path, PLAIN.replace(old, new)))


def test_a_digest_of_the_whole_source_alone_is_known(tmp_path: Path) -> None:
    """As saves have it that were made before there were two."""
    now = digest(tmp_path, PLAIN)
    assert is_same_code(now.partition(":")[0], now)
    assert not is_same_code("0" * 64, now)


@pytest.mark.parametrize("world", [Duel, Minefield, MineSweeper, Xor])
def test_examples_are_the_code_that_earlier_saves_have(world: type) -> None:
    for now in code_of(world).values():
        earlier = [old for old, new in EARLIER.items() if now.split(":")[1].startswith(new)]
        assert earlier
        for before in earlier:
            assert is_same_code(before + "0" * 48, now)
            assert is_same_code(f"{'1' * 64}:{before}{'0' * 48}", now)
