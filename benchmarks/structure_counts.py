"""Structure metrics that compare modules, names and words."""

import ast
import io
import re
import tokenize
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from structure_code import Module
from structure_limits import LAYERS

TAKE_ANY = {"zip", "print", "map", "chain", "product", "min", "max", "union", "join", "partial"}
"""Functions of Python with any number of arguments."""
PER_FRAME_WORDS = ("numbers", "kinds", "identity", "past")
"""Names of per-frame data that should be used only in their own modules."""
HOMES = {
    "numbers": ("continuous", "numbers", "gaussian"),
    "kinds": ("kinds", "columns", "mapping", "observation.py"),
    "identity": ("identity", "mapping", "memor"),
    "past": ("past", "memor", "recall"),
}
"""Path fragments of those modules."""
CORE = (
    "experience/players.py",
    "experience/collector.py",
    "run/open_run.py",
    "evaluation/evaluation.py",
    "evaluation/evaluator.py",
)
"""Modules of enn_trainer in which conditions on optional features are counted."""
BATCH_METHODS = {"cat", "take", "slice"}
LONG_FUNCTION = 40


def layer_of(path: str) -> str | None:
    """Return the layer of a file of enn_trainer; None for other files."""
    package, _, inside = path.partition("/")
    if package != "enn_trainer":
        return None
    begins = [(begin, layer) for layer, text in LAYERS.items() for begin in text.split()]
    return next((layer for begin, layer in begins if inside.startswith(begin)), "run")


def imported(module: Module, names: Mapping[str, Module], at_top: bool = False) -> set[str]:
    """Return the dotted names of the modules imported by a module.

    Args:
        module: the module.
        names: all modules by dotted name.
        at_top: True to count only imports that run when the module is imported.
    """
    nodes: Any = module.nodes
    if at_top:
        nodes = list(_statements_at_top(module.nodes[0]))
    names_imported: set[str] = set()
    for node in nodes:
        if isinstance(node, ast.ImportFrom) and node.module is not None:
            for alias in node.names:
                full = f"{node.module}.{alias.name}"
                names_imported.add(full if full in names else node.module)
        elif isinstance(node, ast.Import):
            names_imported |= {alias.name for alias in node.names}
    return names_imported & names.keys()


def _statements_at_top(node: ast.AST) -> Iterator[ast.AST]:
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda):
            continue
        if isinstance(child, ast.If) and "TYPE_CHECKING" in ast.unparse(child.test):
            continue
        yield child
        yield from _statements_at_top(child)


def imports_up(modules: Sequence[Module]) -> list[str]:
    """Return the pairs of layers with imports from the lower to the higher one."""
    names, order = {m.dotted: m for m in modules}, list(LAYERS)
    pairs = Counter[tuple[str, str]]()
    for module in modules:
        lower = layer_of(module.path)
        for name in imported(module, names):
            higher = layer_of(names[name].path)
            if lower and higher and order.index(lower) < order.index(higher):
                pairs[lower, higher] += 1
    return [f"{lower} -> {higher} ({n})" for (lower, higher), n in pairs.most_common()]


def reached(modules: Sequence[Module], start: str) -> list[str]:
    """Return the modules executed by importing one of them, including `__init__` of packages."""
    names = {m.dotted: m for m in modules}
    below, queue = set[str](), [start] if start in names else []
    while queue:
        for name in imported(names[queue.pop()], names, at_top=True):
            parts = name.split(".")
            packages = {".".join(parts[:i]) for i in range(1, len(parts) + 1)}
            new = (packages & names.keys()) - below - {start}
            below |= new
            queue += new
    return sorted(names[name].path for name in below)


def modules_below(modules: Sequence[Module], start: str) -> list[str]:
    """Return the paths of the transitive imports of a module, without `__init__.py` files."""
    names = {module.dotted: module for module in modules if "__init__" not in module.path}
    below, queue = set[str](), [module for module in modules if module.path == start]
    while queue:
        imports = [names[name] for name in imported(queue.pop(), names)]
        new = [module for module in imports if module.path not in below]
        below |= {module.path for module in new}
        queue += new
    return sorted(below - {start})


def starred_locals(modules: Sequence[Module]) -> list[str]:
    """Return the calls with a starred name as argument, except of variadic functions."""
    variadic = {
        name.rpartition(":")[2].rpartition(".")[2]
        for module in modules
        for name, function in module.functions
        if function.args.vararg is not None
    } | TAKE_ANY
    calls = []
    for module in modules:
        for node in module.nodes:
            if not isinstance(node, ast.Call):
                continue
            starred = [a for a in node.args if isinstance(a, ast.Starred)]
            callee = ast.unparse(node.func).rpartition(".")[2]
            if any(isinstance(a.value, ast.Name) for a in starred) and callee not in variadic:
                calls.append(f"{module.path}:{node.lineno}: {ast.unparse(node)[:80]}")
    return calls


def files_naming(modules: Sequence[Module], word: str) -> list[str]:
    """Return the files that use a name of per-frame data outside its modules."""
    paths = []
    for module in modules:
        if "/examples/" in module.path or any(home in module.path for home in HOMES[word]):
            continue
        names = {n.id for n in module.nodes if isinstance(n, ast.Name)}
        names |= {n.attr for n in module.nodes if isinstance(n, ast.Attribute)}
        names |= {n.arg for n in module.nodes if isinstance(n, ast.arg | ast.keyword) and n.arg}
        if word in names:
            paths.append(module.path)
    return paths


def conditions(modules: Sequence[Module]) -> list[str]:
    """Return the conditions on optional features in the modules of `CORE`."""
    places = []
    for module in modules:
        if module.path not in {f"enn_trainer/{path}" for path in CORE}:
            continue
        for node in module.nodes:
            text = ast.unparse(node) if isinstance(node, ast.Compare | ast.Call) else ""
            is_none = isinstance(node, ast.Compare) and any(
                isinstance(op, ast.Is | ast.IsNot) for op in node.ops
            )
            is_size = isinstance(node, ast.Compare) and "group.size" in text
            if is_none or is_size or text.startswith("isinstance("):
                places.append(f"{module.path}:{node.lineno}: {text}")
    return places


def batch_methods(modules: Sequence[Module]) -> list[str]:
    """Return the methods and functions that split or concatenate batches."""
    names = [name for module in modules for name, _ in module.functions]
    return [n for n in names if re.split(r"[.:]", n)[-1] in BATCH_METHODS]


def looks_into_parts(modules: Sequence[Module]) -> list[str]:
    """Return the locations that access a part of the state by name."""
    places = []
    for module in modules:
        for node in module.nodes:
            match node:
                case ast.Subscript(
                    value=ast.Attribute(attr="parts"), slice=ast.Name() | ast.Constant()
                ):
                    pass
                case ast.Call(func=ast.Attribute(value=ast.Attribute(attr="parts"), attr="get")):
                    pass
                case ast.Compare(
                    ops=[ast.In() | ast.NotIn()], comparators=[ast.Attribute(attr="parts")]
                ):
                    pass
                case _:
                    continue
            places.append(f"{module.path}:{node.lineno}: {ast.unparse(node)}")
    return places


def long_without_heading(modules: Sequence[Module]) -> list[str]:
    """Return the functions of more than `LONG_FUNCTION` lines without a comment line."""
    functions = []
    for module in modules:
        comments = _comment_lines(module.text)
        for name, function in module.functions:
            span = range(function.lineno, (function.end_lineno or function.lineno) + 1)
            lines = len(module.code_lines.intersection(span))
            if lines > LONG_FUNCTION and comments.isdisjoint(span):
                functions.append(f"{name} ({lines})")
    return functions


def _comment_lines(text: str) -> set[int]:
    tokens = tokenize.generate_tokens(io.StringIO(text).readline)
    lines = text.splitlines()
    comments = [t.start[0] for t in tokens if t.type == tokenize.COMMENT]
    return {line for line in comments if lines[line - 1].lstrip().startswith("#")}


def num_tokens(modules: Sequence[Module]) -> int:
    """Return the number of code tokens, without comments, docstrings and layout."""
    layout = {tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT, tokenize.COMMENT}
    layout.add(tokenize.ENDMARKER)
    return sum(
        token.type not in layout and token.start[0] in module.code_lines
        for module in modules
        for token in tokenize.generate_tokens(io.StringIO(module.text).readline)
    )


def circles_of(edges: Mapping[str, set[str]]) -> list[list[str]]:
    """Return the strongly connected components with more than one node.

    Args:
        edges: successors of each node.
    """
    reach: dict[str, set[str]] = {}
    for start in edges:
        seen, queue = set[str](), [start]
        while queue:
            new = edges.get(queue.pop(), set()) - seen
            seen |= new
            queue += new
        reach[start] = seen
    groups = {
        tuple(sorted({a, *(b for b in reach[a] if a in reach.get(b, ()))}))
        for a in edges
        if a in reach[a]
    }
    return [list(group) for group in sorted(groups)]


def circles_of_typescript(root: Path) -> list[list[str]]:
    """Return the import cycles of the page's files; type imports are ignored."""
    edges = defaultdict[str, set[str]](set)
    for file in sorted((root / "enn_trainer/viewer/page/src").glob("*.ts")):
        pattern = r'^import (?!type\b)[^;]*?from "\./([\w-]+)\.js"'
        edges[file.stem] |= set(re.findall(pattern, file.read_text(), re.MULTILINE))
    return circles_of(edges)


def code_lines_by_folder(modules: Sequence[Module]) -> dict[str, int]:
    """Return the number of code lines of each folder."""
    lines = Counter[str]()
    for module in modules:
        lines[module.path.rpartition("/")[0]] += len(module.code_lines)
    return dict(sorted(lines.items()))
