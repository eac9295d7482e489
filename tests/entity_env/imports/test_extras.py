"""Missing optional packages are reported with the install command."""

import json
import subprocess
import sys
import tomllib
import warnings
from collections.abc import Sequence
from pathlib import Path

import pytest

from entity_env.errors import UnknownWorld
from entity_env.imports import extras
from entity_env.imports.extras import (
    EXTRAS,
    PROJECT,
    PUBLISHED,
    MissingExtra,
    distributions,
    install_line,
    missing_package,
    needs_extra,
    published_problem,
    remedy,
    warn_about_published,
)
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
    last = f"MissingExtra: expected the package gymnasium; {install_line('gymnasium')}"
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
        with pytest.raises(UnknownWorld, match=rf"; pip install .*\[{extra}\]'$"):
            find_world(f"{world}:World")


def test_unrelated_import_errors_are_unchanged() -> None:
    with pytest.raises(ModuleNotFoundError, match="no_such_module") as error, needs_extra():
        __import__("no_such_module")
    assert remedy(error.value) == ""
    assert remedy(ValueError("gymnasium")) == ""


def add_metadata(folder: Path, version: str, origin: object = None) -> Path:
    """Write the metadata of an installed release, with its origin if it has one."""
    info = folder / f"enn_trainer-{version}.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {PROJECT}\nVersion: {version}\n")
    if origin is not None:
        (info / "direct_url.json").write_text(json.dumps(origin))
    return info


@pytest.fixture
def packages(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The only folder of installed packages, of a program that is in no checkout."""
    folder = tmp_path / "site-packages"
    module = folder / "entity_env/imports/extras.py"
    module.parent.mkdir(parents=True)
    monkeypatch.setattr(extras, "__file__", str(module))
    monkeypatch.setattr(sys, "path", [str(folder)])
    return folder


EDITABLE = {"dir_info": {"editable": True}}
FOLDER: dict[str, object] = {"dir_info": {}}
FILE: dict[str, object] = {"archive_info": {}}


@pytest.mark.parametrize(
    ("name", "origin", "line"),
    [
        ("my checkout", EDITABLE, "pip install -e '{}[serve]'"),
        ("checkout", FOLDER, "pip install '{}[serve]'"),
        ("enn_trainer-9.9-py3-none-any.whl", FILE, "pip install '{}[serve]'"),
    ],
)
def test_install_command_names_the_origin_of_the_installation(
    name: str, origin: dict[str, object], line: str, packages: Path, tmp_path: Path
) -> None:
    source = tmp_path / name
    info = add_metadata(packages, "9.9", {**origin, "url": source.as_uri()})
    source.touch()
    assert install_line("serve") == line.format(source)
    assert install_line("serve", "python -m pip") == f"python -m {line.format(source)}"
    source.unlink()
    assert install_line("serve") == "pip install 'enn-trainer[serve]==9.9'"
    (info / "direct_url.json").unlink()
    assert install_line("serve") == "pip install 'enn-trainer[serve]==9.9'"


def test_install_command_names_a_checkout_that_is_not_installed(packages: Path) -> None:
    add_metadata(packages, PUBLISHED, {"url": packages.as_uri(), "dir_info": {}})
    assert distributions() == []
    assert install_line("serve") == f"pip install '{packages}[serve]'"
    add_metadata(packages, "9.9")
    (packages / "pyproject.toml").touch()
    assert install_line("serve") == f"pip install '{packages}[serve]'"


def test_published_release_is_reported_with_the_fix(packages: Path, tmp_path: Path) -> None:
    add_metadata(packages, "9.9", {**EDITABLE, "url": tmp_path.as_uri()})
    assert published_problem() is None
    add_metadata(packages, PUBLISHED)
    with pytest.warns(UserWarning, match=r"^enn-trainer: expected one release") as caught:
        warn_about_published()
    problem, fix = str(caught[0].message).split("; ")
    assert problem.endswith(f"got also 0.1.16 in {packages}")
    options = "--force-reinstall --no-deps"
    assert fix == f"pip uninstall -y enn-trainer && pip install {options} -e {tmp_path}"
    assert [d.version for d in distributions()] == ["9.9"]


def test_import_of_the_trainer_warns_of_the_published_release(tmp_path: Path) -> None:
    add_metadata(tmp_path, PUBLISHED)
    code = f"import sys; sys.path.append({str(tmp_path)!r}); import enn_trainer"
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, timeout=60, capture_output=True, text=True
    )
    assert done.returncode == 0
    assert f"got also 0.1.16 in {tmp_path}; " in done.stderr


def test_installation_without_the_published_release_gives_no_warning() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        warn_about_published()


def test_first_missing_package_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "tensorboard", None)
    expected = "expected the package tensorboard, which is not installed; "
    assert missing_package("json", "tensorboard", "wandb") == expected + install_line("tensorboard")
    assert missing_package("json") == ""
