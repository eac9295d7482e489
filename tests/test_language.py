"""Language of names, docstrings, messages and pages: its rules, and limits of what breaks them."""

import re
import subprocess
import sys
from collections.abc import Callable
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

ROOT = Path(__file__).parent.parent
FOLDERS = ("entity_env", "rogue_net", "enn_trainer", "benchmarks")
LIMITS = {
    "names": 0.3,
    "docstrings": 0.7,
    "comments": 0.3,
    "messages": 0.4,
    "pages": 1.9,
}
"""Largest share of words that are no terms of the field, in percent; of pages in 1,000 words.

A limit is lowered whenever a share falls. What remains has a reason, such as a published name.
"""


@cache
def parse(code: ModuleType) -> list[Any]:
    """Parse every file of the packages and of `benchmarks/`, once for all tests."""
    paths = [path for folder in FOLDERS for path in sorted((ROOT / folder).rglob("*.py"))]
    return [code.Module(ROOT, path) for path in paths]


@pytest.fixture
def code(benchmark: Any) -> Any:
    return benchmark("structure_code")


def openers(code: Any) -> list[str]:
    """Return the docstrings that open with a question word or pronoun."""
    return [place for module in parse(code) for place in code.bad_openers(module)]


def refusals(code: Any) -> list[str]:
    """Return the functions whose work is to raise that are not called `check_*` or `validate_*`."""
    functions = [place for module in parse(code) for place in module.functions]
    return [name for name, node in functions if re.match("_*refuse", node.name)]


def not_imperative(code: Any) -> list[str]:
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


RULES: dict[str, Callable[[Any], list[str]]] = {
    "docstrings that open with a question word or pronoun": openers,
    "docstrings of functions that open with no verb in the imperative": not_imperative,
    "functions called refuse_*": refusals,
}


@pytest.mark.slow
@pytest.mark.parametrize("rule", RULES)
def test_there_are_no_violations(rule: str, code: Any) -> None:
    places = RULES[rule](code)
    assert not places, f"{rule}:\n" + "\n".join(places)


@pytest.mark.slow
@pytest.mark.parametrize("measure", LIMITS)
def test_share_of_words_that_name_nothing_is_within_its_limit(
    measure: str, code: Any, benchmark: Any
) -> None:
    of_pages = measure == "pages"
    share_of = getattr(benchmark("structure_language"), f"{measure}_share")
    share = share_of(ROOT if of_pages else parse(code))
    per = share.per(1000 if of_pages else 100)
    assert per <= LIMITS[measure], f"{measure}: {per:.2f}\n" + "\n".join(share.places)
