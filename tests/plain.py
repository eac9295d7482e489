"""Tests of all modules without torch, in an environment without torch.

    python3.13 tests/plain.py

The environment is `.venv-plain-VERSION`, recreated when `pyproject.toml` changes.
"""

import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

ROOT = Path(__file__).parent.parent
TOOLS = ["hypothesis", "pytest", "pytest-timeout", "pytest-xdist", "setuptools>=77"]
TESTS = [
    "tests/entity_env",
    "tests/enn_trainer/config",
    "tests/enn_trainer/cli/test_config_command.py",
    "tests/rogue_net/native/test_library.py",
]
NEED_TORCH = [
    "tests/enn_trainer/config/test_torch_optimizers.py",
    "tests/entity_env/imports/test_imports.py",
    "tests/entity_env/imports/test_moved_modules.py",
    "tests/entity_env/vec/test_check_spaces.py",
]
NEED_EXTRAS = ["tests/entity_env/adapters"]
SAME_IN_EVERY_PYTHON = [
    "tests/enn_trainer/config/test_released_schemas.py",
    "tests/entity_env/examples",
    "tests/entity_env/play",
    "tests/entity_env/recording/test_record.py",
    "tests/entity_env/testing/test_check_bot.py",
    "tests/entity_env/testing/test_check_env.py",
    "tests/entity_env/testing/test_check_variation.py",
    "tests/entity_env/examples/test_examples.py",
    "tests/entity_env/test_kinds.py",
    "tests/entity_env/actions/test_chains.py",
]
"""Rules of environments and of checks: their modules run in other tests, too."""
UV = ROOT / ".venv/bin/uv"
"""Installs in a second; pip takes twenty."""


def installed() -> Path:
    """Return the Python of an environment without torch and other large packages."""
    folder = ROOT / f".venv-plain-{sys.version_info[0]}.{sys.version_info[1]}"
    python, stamp, project = folder / "bin/python", folder / "installed", ROOT / "pyproject.toml"
    if stamp.exists() and stamp.stat().st_mtime > project.stat().st_mtime:
        return python
    shutil.rmtree(folder, ignore_errors=True)
    has_uv = UV.exists()
    venv = [sys.executable, "-m", "venv", *(["--without-pip"] if has_uv else []), folder]
    subprocess.run(venv, check=True)
    dependencies = tomllib.loads(project.read_text())["project"]["dependencies"]
    light = [d for d in dependencies if not d.startswith("torch")]
    pip = [python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    if has_uv:
        pip = [UV, "pip", "install", "--quiet", "--python", python]
    subprocess.run([*pip, *TOOLS, *light], check=True)
    subprocess.run([*pip, "--no-deps", "--no-build-isolation", "-e", ROOT], check=True)
    stamp.touch()
    return python


def main() -> None:
    """Run the tests, and end with the status of pytest."""
    python = installed()
    assert subprocess.run([python, "-c", "import torch"], stderr=subprocess.DEVNULL).returncode
    # `conftest.py` of the trainer trains runs.
    plugins = ["no:cacheprovider", "tests.hypothesis_profiles", "tests.processor_times"]
    options = ["--noconftest", "-n", "auto", *(f"-p{name}" for name in plugins)]
    options += ["-m", "not slow and not alone and not soak"]
    left_out = [f"--ignore={p}" for p in (*NEED_TORCH, *NEED_EXTRAS, *SAME_IN_EVERY_PYTHON)]
    command = [python, "-m", "pytest", *options, *left_out, *TESTS]
    sys.exit(subprocess.run(command, cwd=ROOT).returncode)


if __name__ == "__main__":
    main()
