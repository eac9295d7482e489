"""Share of names, docstrings, messages and pages in words that are no terms of the field."""

import ast
import io
import re
import tokenize
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from structure_code import Module

NAMES = re.compile(
    r"_*(own|told|about|found|given|shown|taken|kept|others|theirs|beside|anew|whose|here|there"
    r"|nobody|known|one|of_\w+)"
)
"""Names that are pronouns, adverbs or participles."""
WORDS = re.compile(
    r"\b(who|whose|those\s+of|of\s+which|told|anew|beside|elsewhere|so\s+many|as\s+many\s+as"
    r"|what\s+is)\b",
    re.I,
)
"""Words that refer to something without naming it."""
SENTENCE = 3
"""Least number of words in a string that people read."""
UNREAD_PAGES = {"decisions", "generated"}
"""Folders of `docs/` that are not measured: records of the past, and pages made from the code."""


class Share(NamedTuple):
    """Share of texts that are no terms of the field.

    Attributes:
        places: "path:line: text" of each of them.
        total: the number of all texts.
    """

    places: list[str]
    total: int

    def per(self, count: int) -> float:
        """Return the number of places in `count` texts."""
        return count * len(self.places) / max(self.total, 1)


def assigned_names(module: Module) -> Iterator[tuple[int, str]]:
    """Yield line and name of each variable, argument, attribute and field that is assigned.

    `one` is allowed as a variable of comprehensions and lambdas.
    """
    targets = (node.target for node in module.nodes if isinstance(node, ast.comprehension))
    arguments = (node.args for node in module.nodes if isinstance(node, ast.Lambda))
    short_lived = {id(name) for node in (*targets, *arguments) for name in ast.walk(node)}
    for node in module.nodes:
        match node:
            case ast.Name(id=name, ctx=ast.Store()) | ast.arg(arg=name):
                if name != "one" or id(node) not in short_lived:
                    yield node.lineno, name
            case ast.Attribute(attr=name, ctx=ast.Store()):
                yield node.lineno, name


def comments(module: Module) -> Iterator[tuple[int, str]]:
    """Yield line and text of each comment."""
    for token in tokenize.generate_tokens(io.StringIO(module.text).readline):
        if token.type == tokenize.COMMENT:
            yield token.start[0], token.string


def strings(module: Module) -> Iterator[tuple[int, str]]:
    """Yield line and text of each string of several words that is no docstring."""
    docstrings = set(module.docstrings)
    for node in module.nodes:
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            text = node.value.strip()
            if len(text.split()) >= SENTENCE and (node.lineno, text) not in docstrings:
                yield node.lineno, text


def names_share(modules: Sequence[Module]) -> Share:
    """Return the assigned names that are pronouns, adverbs or participles."""
    names = [(module.path, *name) for module in modules for name in assigned_names(module)]
    places = [f"{path}:{line}: {name}" for path, line, name in names if NAMES.fullmatch(name)]
    return Share(places, len(names))


def docstrings_share(modules: Sequence[Module]) -> Share:
    """Return the docstrings with one of `WORDS`."""
    return _with_words((m.path, *text) for m in modules for text in m.docstrings)


def comments_share(modules: Sequence[Module]) -> Share:
    """Return the comments with one of `WORDS`."""
    return _with_words((m.path, *text) for m in modules for text in comments(m))


def messages_share(modules: Sequence[Module]) -> Share:
    """Return the messages, help texts and other strings of several words with one of `WORDS`."""
    return _with_words((m.path, *text) for m in modules for text in strings(m))


def _with_words(texts: Iterable[tuple[str, int, str]]) -> Share:
    texts = list(texts)
    places = [
        f"{path}:{line}: {text.splitlines()[0][:80]}"
        for path, line, text in texts
        if WORDS.search(text)
    ]
    return Share(places, len(texts))


def pages_share(root: Path) -> Share:
    """Return the uses of `WORDS` in the documentation, of all words of it."""
    pages = (path.relative_to(root) for path in sorted((root / "docs").rglob("*.md")))
    read = [Path("README.md"), Path("CONTRIBUTING.md"), *pages]
    lines = [
        (f"{page}:{i}", line)
        for page in read
        if UNREAD_PAGES.isdisjoint(page.parts)
        for i, line in enumerate((root / page).read_text().splitlines(), 1)
    ]
    places = [f"{place}: {word[0]}" for place, line in lines for word in WORDS.finditer(line)]
    return Share(places, sum(len(line.split()) for _, line in lines))
