"""Digests of the code of environments, to see if it changed since a state was saved."""

import ast
import hashlib
import inspect
import re
import sys
import textwrap
from collections.abc import Mapping, Sequence

from entity_env.environment import Environment
from entity_env.match import Match
from entity_env.plain_state import PlainState
from entity_env.vec.vec_env import VecEnv

_INTERFACE = {*Environment.__mro__, *Match.__mro__, *PlainState.__mro__, *VecEnv.__mro__}
OF_FILES = "loaded_"
"""Prefix of the names of modules that are imported from files; a digest of the path ends them."""
_OF_FILE = re.compile(rf"^{OF_FILES}(.+)_[0-9a-f]{{8}}\.")
"""Begin of the name of a class in a module that was imported from a file."""
_NUMBER = re.compile(r" \d+$")

EARLIER = {
    "5a70093d0a4b2e30": "cf7504ab2ccaafdf",  # ArrayEnvs
    "fc2fb8e304fd0917": "8d51c410082338b4",  # CherryPick
    "9f0f8bc3690ed725": "cbf5ff406381cd81",  # Count
    "8d5c77f8494fd2a3": "df058ca4e7a79c29",  # Drawn
    "3847ea8e229cb73f": "a772f9c5765afe8c",  # Duel
    "e5e8d7363e43a68d": "a772f9c5765afe8c",  # Duel without the argument `squad`
    "da26e70a8b9e11f9": "8d64ac5c2b9c0a55",  # FloorIsLava
    "32951346efb6c17d": "487dd36b115fb7c8",  # Minefield
    "499d0881997aaab3": "487dd36b115fb7c8",  # Minefield without `set_parameters`
    "d30027cd6dc18298": "aa147707f96d60aa",  # VecMinefield
    "57d005636c3dd3ca": "d785e2a614beacb8",  # MineSweeper
    "6d7f063833b0987c": "cfb83a45f7a184b8",  # MoveToOrigin
    "5537bc632416fa28": "ce8c9f38aa9e8087",  # MultiArmedBandit
    "6f329a3199812611": "e3dfa7071eaa2f17",  # MultiSnake
    "5312dc22ea0692ec": "2dc087ff0bb3b1b7",  # VecMultiSnake
    "4011eefac98c035d": "e9010aee4752ef12",  # NotHotdog
    "800e8f0c070db1e8": "28032cfd8eabd92e",  # PickMatchingBalls
    "841f854d3087dcd6": "6b6eab3487c7ece9",  # RockPaperScissors
    "d0707d8981821c1a": "a5c7f738126848b8",  # TreasureHunt
    "c2f2725337684fb9": "56fe77266ed8e0b7",  # Xor
    "6a5629f7b31a93e5": "1a8c6f06a194f96b",  # CreditOneOfMany
    "4e8317af7d0a783d": "a5b2440a08804797",  # DelayedIdentity
    "2b0d9766ac690a0c": "1b00b5a800bfe9b5",  # Identity
    "5b87117d1a197767": "47b4bb4f56ff4e8e",  # PickTheMarked
}
"""Digests of this package's worlds in earlier releases, whole or bare, and the bare digests of code
with the same episodes and states: the first 16 digits of both."""


def code_of(*worlds: type) -> dict[str, str]:
    """Return digests of the source of classes and of their base classes, by name.

    Classes of this package's interface and of the standard library are left out, and so is a class
    without source here, such as one that was made at a prompt.

    Args:
        worlds: classes of environments and matches.

    Returns:
        Two SHA-256 each, "WHOLE:BARE", of the source as it is and without docstrings, comments and
        the method `view`, which have no effect on episodes. A module that was imported from a file
        has the name of the file without its folder, so that names are those of other folders and
        machines; further classes of one name are numbered in the order of inheritance.
    """
    classes = [cls for cls in _with_bases(worlds) if cls not in _INTERFACE]
    digests: dict[str, str] = {}
    for cls in classes:
        if cls.__module__.partition(".")[0] in sys.stdlib_module_names:
            continue
        try:
            source = inspect.getsource(cls)
            bare = _bare(source)
        except (OSError, TypeError, SyntaxError):  # no file, or not that of the class any more
            continue
        name = portable_name(f"{cls.__module__}.{cls.__qualname__}")
        count = sum(_without_number(other) == name for other in digests)
        name = f"{name} {count + 1}" if count else name
        digests[name] = f"{_digest(source)}:{_digest(bare)}"
    return dict(sorted(digests.items()))


def _with_bases(worlds: Sequence[type]) -> list[type]:
    """Return classes and their base classes, each once, in the order of inheritance."""
    return [*dict.fromkeys(cls for world in worlds for cls in world.__mro__)]


def portable_name(name: str) -> str:
    """Return the name of a class without the path of the file that its module was imported from."""
    return _OF_FILE.sub(r"\1.", name)


def _without_number(name: str) -> str:
    return _NUMBER.sub("", name)


def changed_classes(before: Mapping[str, str], now: Mapping[str, str]) -> list[str]:
    """Return the classes of a save whose code is known to differ, by name.

    Classes are found by their own name, whatever the module or file.

    Args:
        before: digests of a save, which may name modules by digests of their paths.
        now: digests of `code_of`.
    """
    left = {name: [digest for _, digest in of_name] for name, of_name in _by_class(now).items()}
    changed = []
    for class_name, of_name in _by_class(before).items():
        if class_name not in left:
            continue
        for name, digest in of_name:
            same = next((one for one in left[class_name] if is_same_code(digest, one)), None)
            if same is None:
                changed.append(name)
            else:
                left[class_name].remove(same)
    return changed


def shared_classes(before: Mapping[str, str], now: Mapping[str, str]) -> set[str]:
    """Return the names, without modules, of classes that two sets of digests have."""
    return _by_class(before).keys() & _by_class(now).keys()


def _by_class(digests: Mapping[str, str]) -> dict[str, list[tuple[str, str]]]:
    """Return portable names and digests by the own name of the class."""
    by_class: dict[str, list[tuple[str, str]]] = {}
    for name, digest in digests.items():
        portable = _without_number(portable_name(name))
        by_class.setdefault(portable.rpartition(".")[2], []).append((portable, digest))
    return by_class


def is_same_code(before: str, now: str) -> bool:
    """Return whether two digests of `code_of` are of the same code, documentation aside.

    Args:
        before: of a save; those of earlier releases are of the whole source alone.
        now: of this program.
    """
    parts, earlier = now.split(":"), before.split(":")
    same = {EARLIER.get(part[:16]) for part in earlier}
    return parts[-1][:16] in same or not {*earlier}.isdisjoint(parts)


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


def _bare(source: str) -> str:
    """Return source without docstrings, lines of comments, empty lines and `view(self)`."""
    lines = textwrap.dedent(source).splitlines()
    tree = ast.parse("\n".join(lines))
    left_out: list[ast.stmt] = []
    for node in ast.walk(tree):
        if isinstance(node, ast.ClassDef | ast.FunctionDef) and ast.get_docstring(node) is not None:
            left_out.append(node.body[0])
    for method in (node for cls in tree.body if isinstance(cls, ast.ClassDef) for node in cls.body):
        if isinstance(method, ast.FunctionDef) and method.name == "view":
            left_out += [method] if ast.unparse(method.args) == "self" else []
    for part in left_out:
        for i in range(part.lineno - 1, part.end_lineno or part.lineno):
            lines[i] = ""
    return "\n".join(line.rstrip() for line in lines if line.strip() and line.strip()[0] != "#")
