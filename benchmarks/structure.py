"""Table of the code's structure: sizes, parameters, docstring openers, imports.

    python benchmarks/structure.py [BEFORE [AFTER]] [--list]

BEFORE and AFTER are folders of checkouts, or commits; without them this checkout is measured.
`--list` adds the names behind the counts of the last column. The code is parsed, never imported.
"""

import argparse
import ast
import io
import re
import statistics
import subprocess
import tarfile
import tokenize
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from fnmatch import fnmatch
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

ROOT = Path(__file__).parent.parent
PACKAGES = ("entity_env", "rogue_net", "enn_trainer")
MAX_PARAMETERS = 8
MAX_ATTRIBUTES = 12
OPENERS = re.compile(r"\W*(what|whether|how|which|where|who|whose|that|those|of|as)\b", re.I)
"""Openers of docstrings that begin with neither a verb nor a noun."""
ACTION_KINDS = re.compile(
    r"(Vec)?(Global)?(Categorical|SelectEntity)(Action|ActionSpace|ActionMask|Head)"
    "|GlobalChooser|EntityChooser|Selector"
)
"""Names of the classes of which there is one for each kind of action."""
COLLECTORS = ("enn_trainer/experience/collector.py", "enn_trainer/ppo/rollout.py")
"""The module that collects frames: the first that exists."""
UPDATE_PATH = """
    loop run state callbacks lanes acting agent capture frame_memory ppo/snapshot ppo/work
    ppo/rollout ppo/storage ppo/advantages ppo/returns ppo/annealing ppo/optimize ppo/minibatches
    ppo/minibatch_loss ppo/losses ppo/gradients ppo/optimizers ppo/sums
"""
"""Modules of enn_trainer to open to follow an update, where docs/architecture.md lists no files."""
EXCEPTIONS = {
    "*config.py:*": "settings: users read one list for each section of the file",
    "rogue_net/relpos*.py:RelposEncodingConfig": "settings, beside the module that reads them",
    "rogue_net/native/*": "arguments and structs of the compiled code, in its order",
    "*:Observation.__init__": "published: the keyword arguments of an observation",
    "*:ParallelEnvList.__init__": "published keyword arguments",
    "*:StateManager.__init__": "published keyword arguments",
    "*:ArrayEnvs": "published base of worlds, of whose code saved runs hold digests",
    "enn_trainer/state.py:State": "published: one visible block of all that a resumed run needs",
}
"""Functions and classes that may have more parameters or attributes, by pattern; and the reason."""


class Module:
    """A parsed file; its path is relative to the checkout."""

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
        # Every string that is a statement: also those below attributes.
        self.docstrings = [
            (string.lineno, string.value.strip())
            for string in strings
            if isinstance(string, ast.Constant) and isinstance(string.value, str)
        ]
        documented = {line for s in strings if isinstance(s, ast.Constant) for line in _span(s)}
        self.code_lines, self.num_comments = _code_lines(self.text, documented)


def _definitions(node: ast.AST, prefix: str) -> Iterator[tuple[str, Any]]:
    for child in ast.iter_child_nodes(node):
        inner = prefix
        if isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            yield prefix + child.name, child
            inner = f"{prefix}{child.name}."
        yield from _definitions(child, inner)


def _span(node: ast.stmt | ast.expr) -> range:
    return range(node.lineno, (node.end_lineno or node.lineno) + 1)


def _code_lines(text: str, documented: set[int]) -> tuple[set[int], int]:
    """Return the lines that hold code, and how many hold a comment alone."""
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
    return [Module(root, path) for name in PACKAGES for path in sorted((root / name).rglob("*.py"))]


def bad_openers(module: Module) -> list[str]:
    """Return the docstrings that open with one of `OPENERS`, with their places."""
    bad = [(line, text) for line, text in module.docstrings if OPENERS.match(text)]
    return [f"{module.path}:{line}: {text.splitlines()[0]}" for line, text in bad]


def num_parameters(function: ast.FunctionDef) -> int:
    """Return the number of parameters of a function without `self` or `cls`."""
    args = function.args
    named = [a.arg for a in (*args.posonlyargs, *args.args, *args.kwonlyargs)]
    starred = (args.vararg is not None) + (args.kwarg is not None)
    return len(named) + starred - (named[:1] in (["self"], ["cls"]))


def num_attributes(node: ast.ClassDef) -> int:
    """Return the number of fields of a dataclass or tuple, and of names assigned on `self`."""
    decorators = {ast.unparse(d).partition("(")[0] for d in node.decorator_list}
    found = set()
    if "dataclass" in decorators or "NamedTuple" in map(ast.unparse, node.bases):
        found = {ast.unparse(one.target) for one in node.body if isinstance(one, ast.AnnAssign)}
    attributes = [n for n in ast.walk(node) if isinstance(n, ast.Attribute)]
    assigned = [n for n in attributes if isinstance(n.ctx, ast.Store)]
    return len(found | {n.attr for n in assigned if ast.unparse(n.value) == "self"})


def above(limit: int, counts: Sequence[tuple[str, int]]) -> list[str]:
    """Return the names whose counts are above a limit, without the `EXCEPTIONS`."""
    found = [(name, count) for name, count in counts if count > limit]
    found = [(n, c) for n, c in found if not any(fnmatch(n, pattern) for pattern in EXCEPTIONS)]
    return [f"{name} ({count})" for name, count in sorted(found, key=lambda one: -one[1])]


def kind_checks(module: Module) -> list[str]:
    """Return the places that ask for the kind of an action, outside the module of that kind."""
    if module.path.startswith("entity_env/examples/"):
        return []
    imports = [a for n in module.nodes if isinstance(n, ast.ImportFrom) for a in n.names]
    kinds = {a.asname or a.name for a in imports if ACTION_KINDS.fullmatch(a.name)}
    found = []
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
            found.append(f"{module.path}:{pattern.lineno}")
    return found


def modules_below(modules: list[Module], start: str) -> list[str]:
    """Return the paths that a module imports, directly or not, without files `__init__.py`."""
    by_name = {module.dotted: module for module in modules if "__init__" not in module.path}
    below, queue = set[str](), [module for module in modules if module.path == start]
    while queue:
        names = set[str]()
        for node in queue.pop().nodes:
            if isinstance(node, ast.ImportFrom):
                names |= {node.module or "", *(f"{node.module}.{a.name}" for a in node.names)}
            elif isinstance(node, ast.Import):
                names |= {alias.name for alias in node.names}
        new = [by_name[n] for n in names & by_name.keys() if by_name[n].path not in below]
        below |= {module.path for module in new}
        queue += new
    return sorted(below - {start})


def private_functions_called_once(modules: list[Module]) -> list[str]:
    """Return the private functions whose name is used once in their package."""
    uses = Counter[tuple[str, str]]()
    for module in modules:
        names = [n.id for n in module.nodes if isinstance(n, ast.Name)]
        names += [n.attr for n in module.nodes if isinstance(n, ast.Attribute)]
        uses.update((module.package, name) for name in names)
    functions = [(m.package, name, f.name) for m in modules for name, f in m.functions]
    private = [f for f in functions if f[2].startswith("_") and not f[2].startswith("__")]
    return [name for package, name, short in private if uses[package, short] == 1]


def c_code_lines(text: str) -> int:
    """Return the number of lines of C that are neither blank nor comment."""
    strings_and_comments = r'("(?:\\.|[^"\\])*")|/\*.*?\*/|//[^\n]*'
    kept = re.sub(strings_and_comments, lambda m: m[1] or "", text, flags=re.DOTALL)
    return sum(bool(line.strip()) for line in kept.splitlines())


def update_path(root: Path) -> list[str]:
    """Return the files that one opens to follow an update.

    These are the ones named in docs/architecture.md below the heading "One update", else those of
    `UPDATE_PATH` that exist.

    Raises:
        FileNotFoundError: the document names a file that does not exist.
    """
    document = root / "docs/architecture.md"
    text = document.read_text() if document.exists() else ""
    section = re.search(r"^#+ One update$(.*?)(?=^#|\Z)", text, re.DOTALL | re.MULTILINE)
    if section is None:
        paths = [f"enn_trainer/{name}.py" for name in UPDATE_PATH.split()]
        return [path for path in paths if (root / path).exists()]
    places = re.findall(rf"`((?:{'|'.join(PACKAGES)})/[\w/]+\.py)", section[1])
    paths = list(dict.fromkeys(places))
    if missing := [path for path in paths if not (root / path).exists()]:
        raise FileNotFoundError(f"{document}: One update: {', '.join(missing)}: no such file")
    return paths


class Measure(NamedTuple):
    """A row of the table, and the names behind its value."""

    name: str
    value: str
    items: list[str]


def measure(root: Path) -> list[Measure]:
    """Measure a checkout."""
    modules = read_modules(root)
    functions = [function for module in modules for function in module.functions]
    rows = [Measure("modules", f"{len(modules)}", [])]

    def add(name: str, items: list[str], value: str = "{}") -> None:
        rows.append(Measure(name, value.format(len(items)), items))

    # Sizes. The lines of a function are those of its code, without docstring, comments and blanks.
    folder, most = Counter(m.path.rpartition("/")[0] for m in modules).most_common(1)[0]
    file_lines, file = max((len(m.text.splitlines()), m.path) for m in modules)
    lengths = sorted(
        (len(m.code_lines.intersection(_span(f))), name) for m in modules for name, f in m.functions
    )
    middle, high = statistics.median(n for n, _ in lengths), lengths[int(0.95 * len(lengths))][0]
    add("files in the largest folder", [], f"{most} ({folder})")
    add("longest file, lines", [], f"{file_lines} ({file})")
    add("lines of a function: median, 95%", [], f"{middle:g}, {high}")
    longest = [f"{name} ({lines})" for lines, name in lengths[:-21:-1]]
    add("longest function, lines", longest, f"{lengths[-1][0]} ({lengths[-1][1]})")
    parameters = [(name, num_parameters(function)) for name, function in functions]
    add(f"functions of more than {MAX_PARAMETERS} parameters", above(MAX_PARAMETERS, parameters))
    attributes = [(name, num_attributes(node)) for m in modules for name, node in m.classes]
    add(f"classes of more than {MAX_ATTRIBUTES} attributes", above(MAX_ATTRIBUTES, attributes))
    once = private_functions_called_once(modules)
    add("private functions called once", once, f"{{}} of {len(functions)} functions")

    # Language and dependencies.
    openers = [place for module in modules for place in bad_openers(module)]
    share = len(openers) / sum(len(module.docstrings) for module in modules)
    add("docstrings that open with a question word or pronoun", openers, f"{{}} ({share:.1%})")
    checks = [place for module in modules for place in kind_checks(module)]
    num_files = len({place.partition(":")[0] for place in checks})
    add("checks of the kind of an action", checks, f"{{}} in {num_files} files")
    collector = next(path for path in COLLECTORS if (root / path).exists())
    below = [path for path in modules_below(modules, collector) if path.startswith("enn_trainer/")]
    add("modules of enn_trainer below the collector", below)
    add("files to open to follow one update", update_path(root))

    # Lines without blanks, comments and docstrings.
    sources = sorted((root / "rogue_net/native").glob("*.[ch]"))
    comments = sum(m.num_comments for m in modules) / sum(len(m.text.splitlines()) for m in modules)
    add("lines of Python code", [], f"{sum(len(m.code_lines) for m in modules):,}")
    add("lines of C code", [], f"{sum(c_code_lines(path.read_text()) for path in sources):,}")
    add("comment lines per 100", [], f"{100 * comments:.1f}")
    return rows


def checkout(where: str, stack: ExitStack) -> Path:
    """Return the folder of a checkout; of a commit, one that it is exported into."""
    if Path(where).is_dir():
        return Path(where)
    archive = subprocess.run(
        ["git", "-C", str(ROOT), "archive", where], capture_output=True, check=True
    )
    folder = stack.enter_context(TemporaryDirectory())
    with tarfile.open(fileobj=io.BytesIO(archive.stdout)) as tar:
        tar.extractall(folder, filter="data")
    return Path(folder)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("before", nargs="?", default=str(ROOT), help="a folder or a commit")
    parser.add_argument("after", nargs="?", help="another one, for a second column")
    parser.add_argument("--list", action="store_true", help="print the names behind the counts")
    options = parser.parse_args()
    heads = [options.before, options.after] if options.after else [options.before]
    with ExitStack() as stack:
        columns = [measure(checkout(where, stack)) for where in heads]
    print(f"| | {' | '.join(heads)} |\n| --- |{' --- |' * len(heads)}")
    for row in zip(*columns, strict=True):
        print(f"| {row[0].name} | {' | '.join(one.value for one in row)} |")
    for name, _, items in columns[-1] if options.list else ():
        if items:
            print(f"\n{name}:", *items, sep="\n    ")


if __name__ == "__main__":
    main()
