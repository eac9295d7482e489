"""Parsed modules of a checkout, and counts of their contents."""

import ast
import io
import re
import tokenize
from collections import Counter
from collections.abc import Iterator, Sequence
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

from structure_limits import EXCEPTIONS

PACKAGES = ("entity_env", "rogue_net", "enn_trainer")
OPENERS = re.compile(r"\W*(what|whether|how|which|where|who|whose|that|those|of|as)\b", re.I)
"""Words that docstrings should not start with: neither a verb nor a noun."""
ACTION_KINDS = re.compile(
    r"(Vec)?(Global)?(Categorical|SelectEntity)(Action|ActionSpace|ActionMask|Head)"
    "|GlobalChooser|EntityChooser|Selector"
)
"""Names of the classes that exist once per kind of action."""


class Module:
    """Parsed file; its path is relative to the checkout."""

    def __init__(self, root: Path, path: Path) -> None:
        self.path = str(path.relative_to(root))
        self.package = self.path.split("/")[0]
        self.dotted = self.path.removesuffix(".py").removesuffix("/__init__").replace("/", ".")
        self.text = path.read_text()
        self.nodes = list(ast.walk(ast.parse(self.text)))
        definitions = list(_definitions(self.nodes[0], f"{self.path}:"))
        self.functions = [(n, d) for n, d in definitions if not isinstance(d, ast.ClassDef)]
        self.classes = [(n, d) for n, d in definitions if isinstance(d, ast.ClassDef)]
        strings = [node.value for node in self.nodes if isinstance(node, ast.Expr)]
        # Every string statement, including the docstrings of variables.
        self.docstrings = [
            (string.lineno, string.value.strip())
            for string in strings
            if isinstance(string, ast.Constant) and isinstance(string.value, str)
        ]
        documented = {line for s in strings if isinstance(s, ast.Constant) for line in span_of(s)}
        self.code_lines, self.num_comments = _code_lines(self.text, documented)


def _definitions(node: ast.AST, prefix: str) -> Iterator[tuple[str, Any]]:
    for child in ast.iter_child_nodes(node):
        inner = prefix
        if isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            yield prefix + child.name, child
            inner = f"{prefix}{child.name}."
        yield from _definitions(child, inner)


def span_of(node: ast.stmt | ast.expr) -> range:
    """Return the lines of a statement or expression."""
    return range(node.lineno, (node.end_lineno or node.lineno) + 1)


def _code_lines(text: str, documented: set[int]) -> tuple[set[int], int]:
    """Return the lines of code, and the number of lines that contain only a comment."""
    code, comments = set[int](), set[int]()
    layout = (tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT, tokenize.ENDMARKER)
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type == tokenize.COMMENT:
            comments.add(token.start[0])
        elif token.type not in layout:
            code |= set(range(token.start[0], token.end[0] + 1))
    blank = {i for i, line in enumerate(text.splitlines(), 1) if not line.strip()}
    return code - documented - blank, len(comments - code)


def read_modules(root: Path) -> list[Module]:
    """Parse the modules of the packages of a checkout."""
    return [Module(root, path) for name in PACKAGES for path in sorted((root / name).rglob("*.py"))]


def bad_openers(module: Module) -> list[str]:
    """Return the docstrings that start with one of `OPENERS`, with their locations."""
    bad = [(line, text) for line, text in module.docstrings if OPENERS.match(text)]
    return [f"{module.path}:{line}: {text.splitlines()[0]}" for line, text in bad]


def num_parameters(function: ast.FunctionDef) -> int:
    """Return the number of parameters of a function, without `self` or `cls`."""
    args = function.args
    named = [a.arg for a in (*args.posonlyargs, *args.args, *args.kwonlyargs)]
    starred = (args.vararg is not None) + (args.kwarg is not None)
    return len(named) + starred - (named[:1] in (["self"], ["cls"]))


def num_attributes(node: ast.ClassDef) -> int:
    """Return the number of fields of a dataclass or tuple, and of names assigned on `self`."""
    decorators = {ast.unparse(d).partition("(")[0] for d in node.decorator_list}
    fields = set()
    if "dataclass" in decorators or "NamedTuple" in map(ast.unparse, node.bases):
        fields = {ast.unparse(one.target) for one in node.body if isinstance(one, ast.AnnAssign)}
    attributes = [n for n in ast.walk(node) if isinstance(n, ast.Attribute)]
    assigned = [n for n in attributes if isinstance(n.ctx, ast.Store)]
    return len(fields | {n.attr for n in assigned if ast.unparse(n.value) == "self"})


def above(limit: int, counts: Sequence[tuple[str, int]]) -> list[str]:
    """Return the names with counts above a limit, except `EXCEPTIONS`."""
    exceeding = [(name, count) for name, count in counts if count > limit]
    exceeding = [
        (n, c) for n, c in exceeding if not any(fnmatch(n, pattern) for pattern in EXCEPTIONS)
    ]
    return [f"{name} ({count})" for name, count in sorted(exceeding, key=lambda one: -one[1])]


def kind_checks(module: Module) -> list[str]:
    """Return the locations of checks for the kind of an action, outside the module of that kind."""
    if module.path.startswith("entity_env/examples/"):
        return []
    imports = [a for n in module.nodes if isinstance(n, ast.ImportFrom) for a in n.names]
    kinds = {a.asname or a.name for a in imports if ACTION_KINDS.fullmatch(a.name)}
    places = []
    for node in module.nodes:
        match node:
            case ast.Call(func=ast.Name(id="isinstance" | "issubclass"), args=[_, classes]):
                pattern: Any = classes
            case ast.Compare(left=ast.Call(func=ast.Name(id="type")), comparators=[classes]):
                pattern = classes
            case ast.MatchClass(cls=classes):
                pattern = classes
            case _:
                continue
        if kinds & {name.id for name in ast.walk(pattern) if isinstance(name, ast.Name)}:
            places.append(f"{module.path}:{pattern.lineno}")
    return places


def private_functions_called_once(modules: list[Module]) -> list[str]:
    """Return the private functions that are referenced once in their package."""
    uses = Counter[tuple[str, str]]()
    for module in modules:
        names = [n.id for n in module.nodes if isinstance(n, ast.Name)]
        names += [n.attr for n in module.nodes if isinstance(n, ast.Attribute)]
        uses.update((module.package, name) for name in names)
    functions = [(m.package, name, f.name) for m in modules for name, f in m.functions]
    private = [f for f in functions if f[2].startswith("_") and not f[2].startswith("__")]
    return [name for package, name, short in private if uses[package, short] == 1]


def c_code_lines(text: str) -> int:
    """Return the number of lines of C code, without blank lines and comments."""
    strings_and_comments = r'("(?:\\.|[^"\\])*")|/\*.*?\*/|//[^\n]*'
    code = re.sub(strings_and_comments, lambda m: m[1] or "", text, flags=re.DOTALL)
    return sum(bool(line.strip()) for line in code.splitlines())
