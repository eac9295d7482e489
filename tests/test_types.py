"""Type checkers on what users write: programs of README and `docs`, starters of `enn init`."""

import json
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest
import tomli_w

from enn_trainer.cli.init_command import init_command
from tests.doc_blocks import blocks

ROOT = Path(__file__).parents[1]
PAGES = [
    ROOT / "README.md",
    *sorted((ROOT / "docs").glob("*.md")),
    *(ROOT / "docs/start").glob("*.md"),
]
STARTERS = {
    "env": [],
    "match": ["--match"],
    "turns": ["--turns"],
    "gymnasium": ["--from", "gymnasium:CartPole-v1"],
    "pettingzoo": ["--from", "pettingzoo:classic.rps_v2"],
}
IN_PARTS = "# pyright: reportUndefinedVariable=false, reportMissingImports=false\n"
"""Precedes blocks of a page, which may use names of blocks before them."""
UNTYPED = {
    "check_untyped_defs": True,
    "disallow_untyped_defs": False,
    "disallow_incomplete_defs": False,
    "disallow_untyped_calls": False,
    "disallow_subclassing_any": False,
    "warn_return_any": False,
    "disable_error_code": ["name-defined", "import-not-found", "import-untyped"],
}
"""Options of mypy for programs without annotations."""


def programs() -> Iterator[tuple[str, str]]:
    """Yield the names and sources of README's environment and the programs of the documentation."""
    for page in PAGES:
        for number, block in enumerate(blocks(page.read_text())):
            if block.language == "python" and block.source.startswith(("import ", "from ")):
                head = "" if page.name == "README.md" else IN_PARTS
                yield f"program_{page.stem}_{number}.py", head + block.source
    for path in (ROOT / "docs/act.py", ROOT / "docs/own_network.py"):
        yield f"program_{path.name}", path.read_text()


def starters(folder: Path) -> Iterator[tuple[str, str]]:
    """Yield the names and sources of the starters and their tests."""
    for kind, options in STARTERS.items():
        init_command([str(folder / f"new_{kind}"), *options])
        yield f"starter_{kind}.py", (folder / f"new_{kind}/world.py").read_text()
        source = (folder / f"new_{kind}/test_world.py").read_text()
        yield f"test_starter_{kind}.py", source.replace("from world ", f"from starter_{kind} ")


@pytest.fixture(scope="module")
def sources(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    folder = tmp_path_factory.mktemp("sources")
    for name, source in [*programs(), *starters(tmp_path_factory.mktemp("starters"))]:
        (folder / name).write_text(source)
    return sorted(folder.glob("*.py"))


def test_pyright_accepts_the_programs_and_the_starters(sources: list[Path]) -> None:
    folder = sources[0].parent
    settings = {
        "typeCheckingMode": "basic",
        "pythonVersion": "3.11",
        "extraPaths": [str(ROOT)],
        "reportUnusedExpression": False,
    }
    (folder / "pyrightconfig.json").write_text(json.dumps(settings))
    command = [sys.executable, "-m", "pyright", "--pythonpath", sys.executable, "-p", str(folder)]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "0 errors" in done.stdout


def test_mypy_accepts_the_programs_and_the_starters_in_strict_mode(sources: list[Path]) -> None:
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["mypy"]
    modules = [path.stem for path in sources if path.stem.startswith("program")]
    settings["overrides"].append({"module": modules, **UNTYPED})
    config = sources[0].with_name("mypy.toml")
    config.write_text(tomli_w.dumps({"tool": {"mypy": settings}}))
    command = [sys.executable, "-m", "mypy", "--config-file", str(config), *map(str, sources)]
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT)
    assert done.returncode == 0, done.stdout + done.stderr
    assert f"no issues found in {len(sources)} source files" in done.stdout
