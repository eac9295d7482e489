"""Code blocks of the documentation, run page by page by sybil.

Every Python and shell block of a page runs in its order, in a folder that holds what pages name
without showing it: `configs` and `docs` of a checkout, `tests/doc_files`, and in `old/run` a run of
enn_trainer 0.1.16. A shell block is
fenced as `sh`, or indented and begins with a command; where commands begin with `$ `, the output is
below them. A block beside the words "Save this as `orchard.py`" is written to this file. HTML
comments before a block, which readers do not see, say how it runs:

    <!-- slow -->                     `make docs-slow` runs it, without a limit of time
    <!-- not run: needs a GPU -->     it is not run; `tests/test_docs.py` counts these
    <!-- setup: enn train Xor -->     is a shell block that readers do not see

Runs and evaluations are short, as `tests/short_runs.py` says, except those of a setup that has
`total_timesteps`. Output is compared word by word, where any number stands for every other, and
`...` for anything.
"""

import contextlib
import importlib
import os
import re
import shlex
import shutil
import sys
import tempfile
import textwrap
from collections.abc import Iterator
from dataclasses import dataclass
from doctest import ELLIPSIS
from pathlib import Path
from typing import Any

import pytest
from sybil import Document, Example, Region, Sybil
from sybil.parsers.rest import DocTestParser

from tests.fork_server import ENN, run_program

ROOT = Path(__file__).parent.parent
TIMEOUT_S = 200
PROGRAM = (
    "-c",
    "import runpy, sys; sys.path.insert(0, '')\n"
    "runpy.run_path(sys.argv.pop(1), run_name='__main__')",
)
SHORT = f"""
import sys
sys.path.append({str(ROOT)!r})
from tests.short_runs import short_runs
sys.path.pop()
runs = short_runs()
runs.__enter__()
"""
"""Source prepended to programs, which shortens their runs."""
INSTALLERS = ("pip", ".venv/bin/pip", "python3", "make", "git")
"""Commands that set up a machine; tests/install runs them in environments of their own."""
SHORTENED = ("train", "resume", "eval")
"""Commands of `enn` that train or evaluate, which are short."""
OLD_RUN = "tests/golden/published_checkpoints/treasure_hunt"
_COMMAND = re.compile(
    r"(\$ )?([A-Z]\w*=\S* |[A-Z]\w*='[^']*' )*(enn|python3?|(\.venv/bin/)?pip|make|git|torchrun) "
)
_ELEMENT = re.compile(
    r"<!-- (?P<option>setup|slow|not run)(?:: (?P<value>.*?))? -->\n"
    r"|^```(?P<language>\w*)[^\n]*\n(?P<fenced>.*?)^```$"
    r"|(?<=\n\n)(?P<indented>(?: {4}[^\n]*\n|\n(?= {4}))+)",
    re.DOTALL | re.MULTILINE,
)


@dataclass
class Block:
    """A block of a page: its language, "python" or "shell", its place and its options."""

    language: str
    source: str
    start: int
    end: int
    options: dict[str, str]
    is_setup: bool = False


def blocks(text: str) -> Iterator[Block]:
    """Yield the blocks of a page that are run or marked."""
    options: dict[str, str] = {}
    end = 0
    for found in _ELEMENT.finditer(text):
        option, value = found["option"], (found["value"] or "").strip()
        if option and option != "setup":
            options[option] = value
            continue
        source = value if option else textwrap.dedent(found["fenced"] or found["indented"] or "")
        language = found["language"] or ""
        if option or language == "sh" or (not language and _COMMAND.match(source)):
            language = "shell"
        if found["fenced"] and (name := saved_as(text[end : found.start()], text[found.end() :])):
            language, options["file"] = language.replace("text", "file"), name
        if language in ("python", "shell", "file"):
            yield Block(language, source, *found.span(), options, option == "setup")
        options, end = {}, found.end()


def saved_as(before: str, after: str) -> str | None:
    """Return the file that a page asks to save a block as, in the lines before or after it."""
    names = re.findall(r"Save this as `(\w+\.\w+)`", before + after[:60])
    return names[-1] if names else None


def parse(document: Document) -> Iterator[Region]:
    """Yield the blocks of a page for sybil."""
    for block in blocks(document.text):
        if "not run" not in block.options:
            yield Region(block.start, block.end, block, run_block)


def run_block(example: Example) -> None:
    """Run a block in the current folder."""
    block: Block = example.parsed
    slow = "slow" in block.options
    if slow and os.environ.get("DOCS") != "slow":
        pytest.skip("run by make docs-slow")
    if name := block.options.get("file"):
        Path(name).write_text(block.source)
    if block.language == "shell":
        for command, expected in commands(block.source):
            is_exact = slow or (block.is_setup and "total_timesteps=" in command)
            run_command(command, expected, slow=slow, is_short=not is_exact)
    elif name and block.language == "python":
        importlib.invalidate_caches()
        example.namespace.update(vars(importlib.import_module(Path(name).stem)))
    elif block.language == "file":
        return
    else:
        code = compile("\n" * example.line + block.source, example.path, "exec")
        from tests.short_runs import short_runs  # here, as it imports torch

        with short_runs():
            exec(code, example.namespace)


def commands(source: str) -> Iterator[tuple[str, str | None]]:
    """Yield the commands of a shell block, and the output of those that show it."""
    source = source.replace("\\\n", " ")
    if not source.startswith("$ "):
        yield from ((line, None) for line in source.splitlines() if line.strip())
        return
    for part in re.split(r"^\$ ", source, flags=re.MULTILINE)[1:]:
        command, _, output = part.partition("\n")
        yield command, output


def run_command(command: str, expected: str | None, *, slow: bool, is_short: bool) -> None:
    """Run a command of `enn` or `python`, and compare what it prints."""
    words = shlex.split(command, comments=True)
    if not words or words[0] in INSTALLERS:
        return
    settings = {"COLUMNS": "200"}
    if not slow and words[:2] != ["enn", "clone"]:
        settings |= {"ENN_ROLLOUT__PROCESSES": "1"}
    while "=" in words[0]:
        name, _, value = words.pop(0).partition("=")
        settings[name] = value
    words = [path for word in words for path in matching(word)]
    option, code, *arguments = {"enn": ENN, "python": PROGRAM}[words[0]]
    if is_short and (words[0] == "python" or words[1] in SHORTENED) and "--dry-run" not in words:
        code = SHORT + code
    with pytest.MonkeyPatch.context() as patch:
        for name, value in settings.items():
            patch.setenv(name, value)
        done = run_program(
            [option, code, *arguments, *words[1:]],
            cwd=Path.cwd(),
            timeout=3600 if slow else TIMEOUT_S,
        )
    output = (done.stdout + done.stderr).decode()
    if expected is None:
        assert done.returncode == 0, f"{command}\nended with {done.returncode}:\n{output}"
    else:
        pattern = re.escape(comparable(expected)).replace(re.escape("..."), ".*")
        assert re.fullmatch(pattern, comparable(output)), f"{command}\nprinted\n{output}"


def matching(word: str) -> list[str]:
    """Return the paths that a word of a command stands for, or the word if there are none."""
    paths = Path.cwd().glob(word) if "*" in word and not Path(word).is_absolute() else ()
    return [str(path) for path in sorted(paths)] or [word]


def comparable(output: str) -> str:
    """Return output with 0 for every number, `enn` for its path, and single spaces."""
    output = re.sub(r"\S*/bin/(?=enn )", "", output)
    output = re.sub(r"(-\d{8}-\d{6})-\d+", r"\1", output)  # folders of one second are numbered
    return " ".join(re.sub(r"[+-]?\.?\d[\d.,:]*(e[+-]?\d+)?", "0", output).split())


@pytest.fixture(scope="module")
def page_folder() -> Iterator[None]:
    """Let the blocks of a page run in a folder of their own, from which they can import."""
    modules = set(sys.modules)
    with tempfile.TemporaryDirectory() as folder, contextlib.chdir(folder):
        sys.path.insert(0, folder)
        for name in ("configs", "docs"):
            Path(name).symlink_to(ROOT / name)
        shutil.copytree(ROOT / "tests/doc_files", folder, dirs_exist_ok=True)
        shutil.copytree(ROOT / OLD_RUN, "old/run")
        yield
        sys.path.remove(folder)
        for name in set(sys.modules) - modules:
            if str(getattr(sys.modules[name], "__file__", "")).startswith(folder):
                del sys.modules[name]


def names_of_page(namespace: dict[str, Any]) -> None:
    """Let classes of a page belong to its program, as if it were run on its own."""
    namespace["__name__"] = "__main__"


PAGES = Sybil([parse], setup=names_of_page, fixtures=["page_folder"])
DOCSTRINGS = Sybil([DocTestParser(ELLIPSIS)], fixtures=["page_folder"])


def pages() -> list[Path]:
    """Return the pages of the documentation, without those that are made from the code."""
    written = sorted((ROOT / "docs").rglob("*.md"))
    return [ROOT / "README.md", *(path for path in written if "generated" not in path.parts)]


def has_doctests(path: Path) -> bool:
    """Return True for a file of the packages with examples in its docstrings."""
    in_package = path.relative_to(ROOT).parts[0] in ("entity_env", "rogue_net", "enn_trainer")
    return in_package and path.suffix == ".py" and ">>> " in path.read_text()
