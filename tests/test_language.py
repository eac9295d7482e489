"""Language of docstrings and names: no folder has more violations of a rule than before.

`language_allowances.json` has the number for each rule and folder; a folder without an entry may
have none. After a folder has improved, `python -m tests.test_language` lowers its numbers.
"""

import importlib.util
import json
import re
import subprocess
import sys
from collections import Counter
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parent.parent
FOLDERS = ("entity_env", "rogue_net", "enn_trainer", "benchmarks")
ALLOWANCES = Path(__file__).parent / "language_allowances.json"


@cache
def modules() -> list[Any]:
    """Parse every file of the packages and of `benchmarks/`, by `benchmarks/structure.py`."""
    spec = importlib.util.spec_from_file_location("structure", ROOT / "benchmarks/structure.py")
    assert spec is not None
    assert spec.loader is not None
    structure = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(structure)
    paths = [path for folder in FOLDERS for path in sorted((ROOT / folder).rglob("*.py"))]
    found = [structure.Module(ROOT, path) for path in paths]
    for module in found:
        module.openers = structure.bad_openers(module)
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


def counts(rule: str) -> dict[str, int]:
    """Return the number of violations of a rule in each folder that has any."""
    folders = Counter(place.partition(":")[0].rpartition("/")[0] for place in RULES[rule]())
    return dict(sorted(folders.items()))


def allowances() -> dict[str, dict[str, int]]:
    allowed: dict[str, dict[str, int]] = json.loads(ALLOWANCES.read_text())
    return allowed


@pytest.mark.parametrize("rule", RULES)
def test_no_folder_has_more_violations_than_before(rule: str) -> None:
    allowed, found = allowances()[rule], counts(rule)
    over = [folder for folder, count in found.items() if count > allowed.get(folder, 0)]
    places = [
        place for place in RULES[rule]() if place.partition(":")[0].rpartition("/")[0] in over
    ]
    assert not over, f"{rule}: {over} may have {allowed}, have {found}:\n" + "\n".join(places)


@pytest.mark.parametrize("rule", RULES)
def test_allowances_are_as_low_as_the_code_permits(rule: str) -> None:
    allowed, found = allowances()[rule], counts(rule)
    loose = {
        folder: found.get(folder, 0) for folder in allowed if allowed[folder] > found.get(folder, 0)
    }
    assert not loose, f"{rule}: fewer now: {loose}; run python -m tests.test_language"


def lower_allowances() -> None:
    """Write the allowances with those numbers lowered of which there are fewer now."""
    lowered = {}
    for rule, allowed in allowances().items():
        found = counts(rule)
        lowered[rule] = {
            folder: min(n, found[folder]) for folder, n in allowed.items() if folder in found
        }
    ALLOWANCES.write_text(json.dumps(lowered, indent=2) + "\n")


if __name__ == "__main__":
    lower_allowances()
