"""Language of docstrings and names: the packages and `benchmarks/` keep its rules."""

import importlib
import re
import subprocess
import sys
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parent.parent
FOLDERS = ("entity_env", "rogue_net", "enn_trainer", "benchmarks")


@cache
def modules() -> list[Any]:
    """Parse every file of the packages and of `benchmarks/`, by `benchmarks/structure_code.py`."""
    sys.path.insert(0, str(ROOT / "benchmarks"))
    try:
        code = importlib.import_module("structure_code")
    finally:
        sys.path.remove(str(ROOT / "benchmarks"))
    paths = [path for folder in FOLDERS for path in sorted((ROOT / folder).rglob("*.py"))]
    found = [code.Module(ROOT, path) for path in paths]
    for module in found:
        module.openers = code.bad_openers(module)
    return found


def openers() -> list[str]:
    """Return the docstrings that open with a question word or pronoun."""
    return [place for module in modules() for place in module.openers]


def refusals() -> list[str]:
    """Return the functions whose work is to raise that are not called `check_*` or `validate_*`."""
    functions = [place for module in modules() for place in module.functions]
    return [name for name, node in functions if re.match("_*refuse", node.name)]


def not_imperative() -> list[str]:
    """Return the functions whose docstring does not open with a verb in the imperative."""
    command = [
        sys.executable,
        "-m",
        "ruff",
        "check",
        "--isolated",
        "--no-cache",
        "--select",
        "D401",
    ]
    done = subprocess.run(
        [*command, "--output-format", "concise", "--exit-zero", *FOLDERS],
        cwd=ROOT,
        check=True,
        timeout=60,
        capture_output=True,
        text=True,
    )
    return [line for line in done.stdout.splitlines() if ": D401 " in line]


RULES: dict[str, Callable[[], list[str]]] = {
    "docstrings that open with a question word or pronoun": openers,
    "docstrings of functions that open with no verb in the imperative": not_imperative,
    "functions called refuse_*": refusals,
}


@pytest.mark.slow
@pytest.mark.parametrize("rule", RULES)
def test_there_are_no_violations(rule: str) -> None:
    places = RULES[rule]()
    assert not places, f"{rule}:\n" + "\n".join(places)
