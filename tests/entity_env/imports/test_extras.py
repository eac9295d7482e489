"""Missing optional packages are reported with the install command."""

import subprocess
import sys
import tomllib
from collections.abc import Sequence
from pathlib import Path

import pytest

from entity_env.errors import UnknownWorld
from entity_env.imports.extras import EXTRAS, MissingExtra, needs_extra, remedy
from entity_env.named_world import find_world

ROOT = Path(__file__).parents[3]


def test_extras_match_the_package_metadata() -> None:
    """`docs` and `dev` are for developers."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert set(EXTRAS) == set(project["optional-dependencies"]) - {"docs", "dev"}


def test_missing_gymnasium_is_reported_with_the_install_command() -> None:
    modules = ["from_gymnasium", "from_gymnasium_vector", "from_pettingzoo", "to_gymnasium"]
    code = "import sys, traceback\nsys.modules['gymnasium'] = None\n"
    for module in modules:
        code += f"try: import entity_env.adapters.{module}\nexcept ImportError: "
        code += f"traceback.print_exc(); print('{module}', file=sys.stderr)\n"
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60
    )
    assert "ModuleNotFoundError" not in done.stderr
    lines = done.stderr.splitlines()
    last = "MissingExtra: expected the package gymnasium; pip install 'enn-trainer[gymnasium]'"
    for module in modules:
        assert lines[lines.index(module) - 1] == f"entity_env.imports.extras.{last}"


@pytest.mark.parametrize(("extra", "modules"), EXTRAS.items())
def test_missing_modules_name_their_extra(
    extra: str, modules: Sequence[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    for module in modules:
        monkeypatch.setitem(sys.modules, module, None)
        with pytest.raises(MissingExtra, match=rf"\[{extra}\]'$"), needs_extra():
            __import__(f"{module}.part")
        world = tmp_path / f"with_{module}.py"
        world.write_text(f"import {module}\n")
        with pytest.raises(UnknownWorld, match=rf"; pip install 'enn-trainer\[{extra}\]'$"):
            find_world(f"{world}:World")


def test_unrelated_import_errors_are_unchanged() -> None:
    with pytest.raises(ModuleNotFoundError, match="no_such_module") as error, needs_extra():
        __import__("no_such_module")
    assert remedy(error.value) == ""
    assert remedy(ValueError("gymnasium")) == ""
