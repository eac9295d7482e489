"""Table of the code's structure: sizes, imports, names, words; and its limits.

    python benchmarks/structure.py [BEFORE [AFTER]] [--list]

BEFORE and AFTER are folders of checkouts, or commits; without them this checkout is measured.
`--list` prints the names behind the counts of the last column. The code is parsed, not imported,
except for the files of an update: one update of `Xor` is run and traced.
"""

import argparse
import io
import json
import os
import statistics
import subprocess
import sys
import tarfile
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import NamedTuple

from structure_code import (
    Module,
    above,
    bad_openers,
    c_code_lines,
    kind_checks,
    num_attributes,
    num_parameters,
    private_functions_called_once,
    read_modules,
    span_of,
)
from structure_counts import (
    PER_FRAME_WORDS,
    batch_methods,
    circles_of_typescript,
    code_lines_by_folder,
    conditions,
    files_naming,
    imports_up,
    long_without_heading,
    looks_into_parts,
    modules_below,
    num_tokens,
    reached,
    starred_locals,
)
from structure_language import docstrings_share, names_share
from structure_limits import FOLDERS, LIMITS, SLACK

ROOT = Path(__file__).parent.parent
MAX_PARAMETERS = 8
MAX_ATTRIBUTES = 12
COLLECTOR, TRAINER = "enn_trainer/experience/collector.py", "enn_trainer.run.trainer"
FOLLOWED = Path(__file__).with_name("followed_update.py")


def update_path(root: Path) -> list[str]:
    """Return the files of the packages that are executed by an update of `Xor`.

    Raises:
        CalledProcessError: the update fails.
    """
    with TemporaryDirectory() as folder:
        done = subprocess.run(
            [sys.executable, str(FOLLOWED)],
            cwd=folder,
            env={**os.environ, "PYTHONPATH": str(root), "PYTHONDONTWRITEBYTECODE": "1"},
            capture_output=True,
            text=True,
            check=True,
            timeout=300,
        )
    files = json.loads(done.stdout.splitlines()[-1])
    return sorted(str(Path(file).relative_to(root)) for file in files)


class Measure(NamedTuple):
    """A row of the table.

    Attributes:
        name: name of the measure.
        value: value that a limit bounds.
        label: text in the table; "" for the value.
        items: names behind the value.
    """

    name: str
    value: float
    label: str
    items: list[str]

    @property
    def text(self) -> str:
        """Value as displayed in the table."""
        return self.label or f"{self.value:,g}"


def measure(root: Path) -> list[Measure]:
    """Measure a checkout."""
    modules = read_modules(root)
    return [*_sizes(root, modules), *_imports(root, modules), *_language(modules)]


def _sizes(root: Path, modules: list[Module]) -> Iterator[Measure]:
    lines = sum(len(m.code_lines) for m in modules)
    yield Measure("lines of Python code", lines, f"{lines:,}", [])
    tokens = num_tokens(modules)
    yield Measure("tokens of Python code", tokens, f"{tokens:,}", [])
    sources = sorted((root / "rogue_net/native").glob("*.[ch]"))
    c_lines = sum(c_code_lines(path.read_text()) for path in sources)
    yield Measure("lines of C code", c_lines, f"{c_lines:,}", [])
    yield Measure("modules", len(modules), "", [])
    folders = Counter(m.path.rpartition("/")[0] for m in modules)
    del folders["entity_env/examples"]
    folder, most = folders.most_common(1)[0]
    yield Measure("files in the largest folder", most, f"{most} ({folder})", [])
    file_lines, file = max((len(m.text.splitlines()), m.path) for m in modules)
    yield Measure("longest file, lines", file_lines, f"{file_lines} ({file})", [])

    # Count the code lines of functions, without docstrings, comments and blanks.
    lengths = sorted(
        (len(m.code_lines.intersection(span_of(f))), name)
        for m in modules
        for name, f in m.functions
    )
    middle, high = statistics.median(n for n, _ in lengths), lengths[int(0.95 * len(lengths))][0]
    yield Measure("lines of a function: median, 95%", high, f"{middle:g}, {high}", [])
    longest = [f"{name} ({lines})" for lines, name in lengths[:-21:-1]]
    count, name = lengths[-1]
    yield Measure("longest function, lines", count, f"{count} ({name})", longest)
    bare = long_without_heading(modules)
    yield Measure("functions above 40 lines without a heading", len(bare), "", bare)
    parameters = [(name, num_parameters(f)) for m in modules for name, f in m.functions]
    many = above(MAX_PARAMETERS, parameters)
    yield Measure(f"functions of more than {MAX_PARAMETERS} parameters", len(many), "", many)
    attributes = [(name, num_attributes(node)) for m in modules for name, node in m.classes]
    many = above(MAX_ATTRIBUTES, attributes)
    yield Measure(f"classes of more than {MAX_ATTRIBUTES} attributes", len(many), "", many)
    once, count = private_functions_called_once(modules), len(lengths)
    text = f"{len(once)} of {count} functions"
    yield Measure("private functions called once", len(once), text, once)


def _imports(root: Path, modules: list[Module]) -> Iterator[Measure]:
    up = imports_up(modules)
    yield Measure("imports between layers of enn_trainer that run up", len(up), "", up)
    below = reached(modules, TRAINER)
    yield Measure("modules that the trainer imports", len(below), "", below)
    collected = modules_below(modules, COLLECTOR)
    below = [path for path in collected if path.startswith("enn_trainer/")]
    yield Measure("modules of enn_trainer below the collector", len(below), "", below)
    circles = [" ".join(circle) for circle in circles_of_typescript(root)]
    yield Measure("circles of imports in the page", len(circles), "", circles)
    path = update_path(root)
    yield Measure("files that an update calls", len(path), "", path)
    checks = [place for module in modules for place in kind_checks(module)]
    yield Measure("checks of the kind of an action", len(checks), "", checks)
    for word in PER_FRAME_WORDS:
        files = files_naming(modules, word)
        yield Measure(f"files that name {word} outside its modules", len(files), "", files)
    optional = conditions(modules)
    name = "conditions in players, collector, open_run and evaluation"
    yield Measure(name, len(optional), "", optional)
    written = batch_methods(modules)
    num_files = len({name.partition(":")[0] for name in written})
    text = f"{len(written)} in {num_files} files"
    yield Measure("methods cat, take and slice", len(written), text, written)
    places = looks_into_parts(modules)
    yield Measure("places that look into the parts of a state", len(places), "", places)
    starred = starred_locals(modules)
    yield Measure("calls with a starred name", len(starred), "", starred)


def _language(modules: list[Module]) -> Iterator[Measure]:
    shares = {
        "names that are pronouns or participles, %": names_share(modules),
        "docstrings with who, whose, of which and the like, %": docstrings_share(modules),
    }
    for name, share in shares.items():
        percent = share.per(100)
        yield Measure(name, percent, f"{percent:.1f}", share.places)
    openers = [place for module in modules for place in bad_openers(module)]
    name = "docstrings that open with a question word or pronoun"
    yield Measure(name, len(openers), "", openers)
    comments = sum(m.num_comments for m in modules) / sum(len(m.text.splitlines()) for m in modules)
    yield Measure("comment lines per 100", 100 * comments, f"{100 * comments:.1f}", [])


def beyond_limits(root: Path) -> list[str]:
    """Return a message for each measure and folder above its limit, and for folders without one."""
    messages = []
    for name, value, _, items in measure(root):
        if value > LIMITS.get(name, value):
            names = "".join(f"\n    {item}" for item in items)
            messages.append(f"{name}: expected at most {LIMITS[name]:g}, got {value:g}{names}")
    for folder, lines in code_lines_by_folder(read_modules(root)).items():
        limit = FOLDERS.get(folder)
        if limit is None or lines > limit * SLACK:
            messages.append(f"{folder}: expected at most {limit} lines and 3% more, got {lines}")
    return messages


def checkout(where: str, stack: ExitStack) -> Path:
    """Return the folder of a checkout; a commit is exported into a temporary one."""
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
        print(f"| {row[0].name} | {' | '.join(one.text for one in row)} |")
    for name, _, _, items in columns[-1] if options.list else ():
        if items:
            print(f"\n{name}:", *items, sep="\n    ")


if __name__ == "__main__":
    main()
