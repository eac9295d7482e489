"""Wheels of all dependencies exist wherever this project is to be installed, for every extra."""

import os
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PLATFORMS = ("x86_64-manylinux_2_28", "aarch64-manylinux_2_28", "aarch64-apple-darwin")
PYTHONS = ("3.11", "3.12", "3.13", "3.14")
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
EXTRAS = [name for name in PROJECT["optional-dependencies"] if name != "dev"]

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]


def resolve(*options: str) -> set[str]:
    """Return the names of all packages that the project needs, by uv, from wheels alone.

    `pip install --platform` evaluates markers for the machine that it runs on instead.
    """
    tool = Path(sys.executable).with_name("uv")
    # Of docstring_parser 0.13, which hyperstate needs, the index has the source alone.
    wheels = ("--only-binary", ":all:", "--no-binary", "docstring-parser")
    command = [tool, "pip", "compile", "--quiet", "--native-tls", *wheels, *options]
    # Of Python 3.14, onnxruntime has wheels for macOS 14 and later.
    environment = {**os.environ, "MACOSX_DEPLOYMENT_TARGET": "14.0"}
    done = subprocess.run(
        [*command, ROOT / "pyproject.toml"],
        capture_output=True,
        text=True,
        timeout=300,
        env=environment,
    )
    assert done.returncode == 0, done.stderr
    return {line.partition("==")[0] for line in done.stdout.splitlines() if "==" in line}


@pytest.mark.parametrize("python", PYTHONS)
@pytest.mark.parametrize("platform", PLATFORMS)
def test_dependencies_have_wheels_for_every_platform_and_python(platform: str, python: str) -> None:
    extras = [word for name in EXTRAS for word in ("--extra", name)]
    names = resolve("--python-platform", platform, "--python-version", python, *extras)
    assert {"torch", "numpy", "safetensors", "msgpack", "matplotlib", "sphinx"} <= names
    has_hyperstate = platform.startswith("x86_64") and python in ("3.11", "3.12")
    assert ("hyperstate" in names) == ("python-ron" in names) == has_hyperstate
    assert ("ragged-buffer" in names) == (platform.startswith("x86_64") and python == "3.11")


@pytest.mark.parametrize("extra", EXTRAS)
def test_each_extra_is_compatible_with_the_dependencies(extra: str) -> None:
    assert "torch" in resolve("--extra", extra)


def test_all_extras_are_compatible() -> None:
    command = [sys.executable, "-m", "pip", "check"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stdout
