"""Digests of the source of environments, to detect changes since a state was saved."""

import ast
import hashlib
import inspect
import re
import sys
import textwrap
from collections.abc import Mapping, Sequence
from pathlib import Path

from entity_env.environment import Environment
from entity_env.match import Match
from entity_env.plain_state import PlainState
from entity_env.vec.vec_env import VecEnv

_INTERFACE = {*Environment.__mro__, *Match.__mro__, *PlainState.__mro__, *VecEnv.__mro__}
FILE_MODULE_PREFIX = "loaded_"
"""Prefix of modules imported from files; their names end with a digest of the path."""
_FILE_MODULE = re.compile(rf"^{FILE_MODULE_PREFIX}(.+)_[0-9a-f]{{8}}\.")
"""Start of the qualified name of a class in a module imported from a file."""
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
"""Digests of environments of this package in earlier releases, whole or bare, and the current bare
digest of code with the same episodes and states: the first 16 digits of both."""


def code_of(*worlds: type) -> dict[str, str]:
    """Compute digests of the source of classes and their base classes, by qualified name.

    Skips the interface classes of this package, the standard library, and classes without a source
    file, such as those defined at a prompt.

    Args:
        worlds: classes of environments and matches.

    Returns:
        By name, "WHOLE:BARE": SHA-256 of the source, and of the source without docstrings, comments
        and the method `view`, which have no effect on episodes. A module imported from a file is
        named by its file without the folder, so that names are portable. Classes with the same
        name are numbered in the order of inheritance.
    """
    classes = [cls for cls in _with_bases(worlds) if cls not in _INTERFACE]
    digests: dict[str, str] = {}
    for cls in classes:
        if cls.__module__.partition(".")[0] in sys.stdlib_module_names:
            continue
        try:
            source = inspect.getsource(cls)
            bare = _strip_documentation(source)
        except (OSError, TypeError, SyntaxError):  # no file, or the file has changed
            continue
        name = portable_name(f"{cls.__module__}.{cls.__qualname__}")
        count = sum(_without_number(other) == name for other in digests)
        name = f"{name} {count + 1}" if count else name
        digests[name] = f"{_digest(source)}:{_digest(bare)}"
    return dict(sorted(digests.items()))


def code_of_modules(world: object) -> dict[str, str]:
    """Compute digests of the source of the modules that define an environment, by portable name.

    They are the modules of a class and its base classes, or of a function that creates an
    environment, and the modules that these use in their folders. Skips the interface modules of
    this package and the standard library.

    Args:
        world: the class or function.

    Returns:
        SHA-256 of the source without docstrings, comments and the method `view`.
    """
    parts = world.__mro__ if isinstance(world, type) else [getattr(world, "func", world)]
    names = [part.__module__ for part in parts if part not in _INTERFACE]
    folders = {_folder(name) for name in names} - {None}
    digests: dict[str, str] = {}
    for name in names:  # grows by the modules that they use
        portable = portable_name(f"{name}.")[:-1]
        if _folder(name) not in folders or portable in digests:
            continue
        digests[portable] = _digest(_strip_documentation(inspect.getsource(sys.modules[name])))
        values = vars(sys.modules[name]).values()
        names += [
            v.__name__ if inspect.ismodule(v) else getattr(v, "__module__", "") for v in values
        ]
    return dict(sorted(digests.items()))


def _folder(module: str) -> Path | None:
    """Return the folder of a module; None without a source file, or in the standard library."""
    file = getattr(sys.modules.get(module), "__file__", None) or ""
    is_code = file.endswith(".py") and module.partition(".")[0] not in sys.stdlib_module_names
    return Path(file).parent if is_code else None


def _with_bases(worlds: Sequence[type]) -> list[type]:
    """Return classes and their base classes without duplicates, in the order of inheritance."""
    return [*dict.fromkeys(cls for world in worlds for cls in world.__mro__)]


def portable_name(name: str) -> str:
    """Return the qualified name of a class without the digest of the path of its file."""
    return _FILE_MODULE.sub(r"\1.", name)


def _without_number(name: str) -> str:
    return _NUMBER.sub("", name)


def changed_classes(before: Mapping[str, str], now: Mapping[str, str]) -> list[str]:
    """Return the names of classes with changed code.

    Classes are matched by class name, in any module or file; classes without a match are ignored.

    Args:
        before: digests of a checkpoint; names of modules may contain digests of paths.
        now: digests of `code_of`.
    """
    unmatched = {name: [digest for _, digest in x] for name, x in _by_class(now).items()}
    changed = []
    for class_name, entries in _by_class(before).items():
        if class_name not in unmatched:
            continue
        for name, digest in entries:
            same = next((one for one in unmatched[class_name] if is_same_code(digest, one)), None)
            if same is None:
                changed.append(name)
            else:
                unmatched[class_name].remove(same)
    return changed


def shared_classes(before: Mapping[str, str], now: Mapping[str, str]) -> set[str]:
    """Return the class names, without modules, that two sets of digests share."""
    return _by_class(before).keys() & _by_class(now).keys()


def _by_class(digests: Mapping[str, str]) -> dict[str, list[tuple[str, str]]]:
    """Group portable names and digests by class name without the module."""
    by_class: dict[str, list[tuple[str, str]]] = {}
    for name, digest in digests.items():
        portable = _without_number(portable_name(name))
        by_class.setdefault(portable.rpartition(".")[2], []).append((portable, digest))
    return by_class


def is_same_code(before: str, now: str) -> bool:
    """Return whether two digests of `code_of` are of the same code, ignoring documentation.

    Args:
        before: of a checkpoint; in earlier releases only the digest of the whole source.
        now: of this program.
    """
    current, saved = now.split(":"), before.split(":")
    equivalents = {EARLIER.get(part[:16]) for part in saved}
    return current[-1][:16] in equivalents or not {*saved}.isdisjoint(current)


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


def _strip_documentation(source: str) -> str:
    """Strip docstrings, comment lines, empty lines and `view(self)` from source."""
    lines = textwrap.dedent(source).splitlines()
    tree = ast.parse("\n".join(lines))
    omitted: list[ast.stmt] = []
    for node in ast.walk(tree):
        if isinstance(node, ast.ClassDef | ast.FunctionDef) and ast.get_docstring(node) is not None:
            omitted.append(node.body[0])
    for method in (node for cls in tree.body if isinstance(cls, ast.ClassDef) for node in cls.body):
        if isinstance(method, ast.FunctionDef) and method.name == "view":
            omitted += [method] if ast.unparse(method.args) == "self" else []
    for part in omitted:
        for i in range(part.lineno - 1, part.end_lineno or part.lineno):
            lines[i] = ""
    return "\n".join(line.rstrip() for line in lines if line.strip() and line.strip()[0] != "#")
