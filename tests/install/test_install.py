"""What users install trains, saves, loads and acts: wheels, the source archive, a checkout."""

import json
import os
import re
import shutil
import subprocess
import sys
import sysconfig
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import pytest

ROOT = Path(__file__).parents[2]
PACKAGES = ("entity_env", "rogue_net", "enn_trainer")
MAX_WHEEL, MAX_SDIST = 11 * 2**17, 2 * 2**20
PROGRAM = """
from pathlib import Path

import rogue_net.native.library
from enn_trainer import StateManager, TrainConfig, init_train_state, load_agent, train
from enn_trainer.checkpoints.state import State
from entity_env.examples import TreasureHunt

sizes = "rollout.num_envs=16 rollout.steps=32 optim.bs=512 net.d_model=16 net.n_layer=1"
overrides = ["total_timesteps=5000", *sizes.split()]
manager = StateManager(TrainConfig, State, init_train_state, None, "run", overrides)
train(manager, TreasureHunt)
world = TreasureHunt()
world.seed(0)
answer = load_agent("run").act(world.reset())
print("trained", manager.state.step)
print("acts", sorted(answer.actions) == sorted(world.action_space()))
print("compiled", rogue_net.native.library.AVAILABLE)
print("from", Path(rogue_net.__file__).parent.parent)
"""

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]


class Built(NamedTuple):
    """The files of a release."""

    sdist: Path
    wheel: Path
    pure: Path


def run(*command: object, folder: Path, **environment: str) -> str:
    """Run a command in a folder, without the source tree on Python's path; return its output."""
    done = subprocess.run(
        [str(word) for word in command],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": "", "SOURCE_DATE_EPOCH": "1790000000", **environment},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stdout
    return done.stdout


def checkout(folder: Path) -> Path:
    """Return a copy of the files in version control."""
    files = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    for name in files.split("\0"):
        if (ROOT / name).is_file() and not name.startswith(("tests/", "benchmarks/")):
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(ROOT / name, folder / name)
    return folder


def build(source: Path, out: Path, *options: str, **environment: str) -> None:
    """Build in a checkout, as `make dist` does."""
    command = (sys.executable, "-m", "build", "--no-isolation", "--outdir", out, *options, ".")
    run(*command, folder=source, **environment)


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Built:
    folder = tmp_path_factory.mktemp("built")
    out = folder / "dist"
    build(checkout(folder / "binary"), out)
    build(checkout(folder / "pure"), out, "--wheel", ENN_PURE="1")
    (sdist,), (wheel,), (pure,) = (
        list(out.glob(name)) for name in ("*.tar.gz", "*-cp311-abi3-*.whl", "*-py3-none-any.whl")
    )
    return Built(sdist, wheel, pure)


def environment_with(folder: Path, *install: object, **variables: str) -> Path:
    """Return the Python of an environment that sees what this one has installed, but not us."""
    run(sys.executable, "-m", "venv", "--without-pip", folder, folder=folder.parent)
    python = folder / "bin" / "python"
    packages = next(folder.glob("lib/python*/site-packages"))
    (packages / "outer.pth").write_text(sysconfig.get_path("purelib") + "\n")
    pip = (sys.executable, "-m", "pip", "--python", python, "install", "--no-index", "--no-deps")
    offline = ("--ignore-installed", "--no-build-isolation")
    run(*pip, *offline, *install, folder=folder.parent, **variables)
    return python


INSTALLS: dict[str, tuple[bool, Callable[[Built, Path], tuple[object, ...]], dict[str, str]]] = {
    "wheel": (True, lambda built, _: (built.wheel,), {}),
    "pure_wheel": (False, lambda built, _: (built.pure,), {}),
    "sdist": (True, lambda built, _: (built.sdist,), {}),
    "sdist_without_a_compiler": (False, lambda built, _: (built.sdist,), {"CC": "/bin/false"}),
    "editable": (True, lambda _, folder: ("-e", checkout(folder)), {}),
}
"""Compiled or not, what to install, and environment variables."""


@pytest.mark.parametrize("name", INSTALLS)
def test_installed_package_trains_saves_loads_and_acts(
    name: str, built: Built, tmp_path: Path
) -> None:
    is_compiled, source, variables = INSTALLS[name]
    install = source(built, tmp_path / "checkout")
    python = environment_with(tmp_path / "venv", *install, **variables)
    (tmp_path / "program.py").write_text(PROGRAM)
    output = run(python, "program.py", folder=tmp_path)
    place = tmp_path / "checkout" if name == "editable" else python.parent.parent
    lines = output.splitlines()[-4:]
    assert lines[:3] == ["trained 5120", "acts True", f"compiled {is_compiled}"]
    assert lines[3].startswith(f"from {place}")
    enn = python.parent / "enn"
    assert "usage: enn" in run(enn, "--help", folder=tmp_path)
    place = "checkout/configs" if name == "editable" else "site-packages/enn_trainer/configs"
    for by_name in (("--config", "move_to_origin"), ("MoveToOrigin",)):
        shown = run(enn, "train", *by_name, "--print-config", folder=tmp_path)
        assert f"{place}/move_to_origin.ron" in shown
    assert doctor(enn, tmp_path)["compiled part"] == ("ok" if is_compiled else "missing")


def doctor(enn: Path, folder: Path) -> dict[str, str]:
    """Return the status of each check of `enn doctor`, which exits with 0."""
    checks = json.loads(run(enn, "doctor", "--json", folder=folder))["checks"]
    return {name: check["status"] for name, check in checks.items()}


def test_install_command_of_the_readme_works(tmp_path: Path) -> None:
    """Runs the displayed lines, with the third-party packages of this environment."""
    source = checkout(tmp_path / "checkout")
    readme = (ROOT / "README.md").read_text()
    lines = re.findall(r"^ {4}(python3 -m venv .*)\n {4}(.*pip install \.)$", readme, re.MULTILINE)
    ((create, install),) = lines
    assert install.startswith("pip install torch --index-url https://download.pytorch.org/whl/cpu ")
    (tmp_path / "python3").symlink_to(sys.executable)
    path = f"{tmp_path}:{os.environ['PATH']}"
    run("bash", "-c", create, folder=source, PATH=path)
    packages = next(source.glob(".venv/lib/python*/site-packages"))
    (packages / "outer.pth").write_text(sysconfig.get_path("purelib") + "\n")
    activated = f"{source / '.venv/bin'}:{path}"
    run("bash", "-c", install, folder=source, PATH=activated, PIP_NO_DEPS="1")
    (tmp_path / "program.py").write_text(PROGRAM)
    output = run(source / ".venv/bin/python", tmp_path / "program.py", folder=tmp_path)
    assert output.splitlines()[-1] == f"from {packages}"
    assert doctor(source / ".venv/bin/enn", tmp_path)["compiled part"] == "ok"


def make(folder: Path, python: str) -> "subprocess.CompletedProcess[str]":
    """Run the rule of the Makefile that makes the environment, with a Python that is a script."""
    script = folder / "python"
    script.write_text(f'#!/bin/sh\n[ "$1" = -m ] || exit 0\n{python}\n')
    script.chmod(0o755)
    shutil.copy(ROOT / "Makefile", folder)
    command = ["make", ".venv/bin/pip", f"PYTHON={script}"]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=60)


def test_make_removes_an_environment_that_could_not_be_completed(tmp_path: Path) -> None:
    """Debian's Python without venv makes one without pip."""
    done = make(tmp_path, "mkdir -p .venv/bin && touch .venv/bin/python && exit 1")
    assert done.returncode
    assert "apt install python3-venv" in done.stderr
    assert not (tmp_path / ".venv").exists()


def test_make_recreates_an_incomplete_environment(tmp_path: Path) -> None:
    (tmp_path / ".venv/bin").mkdir(parents=True)
    (tmp_path / ".venv/bin/python").touch()
    done = make(tmp_path, "mkdir -p .venv/bin && touch .venv/bin/pip")
    assert done.returncode == 0, done.stderr
    assert {path.name for path in (tmp_path / ".venv/bin").iterdir()} == {"pip"}


def test_wheel_has_all_files_but_no_c_sources(built: Built) -> None:
    names = set(zipfile.ZipFile(built.wheel).namelist())
    pure = set(zipfile.ZipFile(built.pure).namelist())
    assert names - pure == {"rogue_net/native/_native.abi3.so"} | {
        name for name in names if ".dist-info/" in name and name not in pure
    }
    assert not [name for name in names | pure if name.endswith((".c", ".h"))]
    files = [path for name in PACKAGES for path in (ROOT / name).rglob("*")]
    assert {
        str(path.relative_to(ROOT)) for path in files if path.suffix in (".py", ".typed", ".txt")
    } <= pure
    configs = {f"enn_trainer/configs/{path.name}" for path in (ROOT / "configs").iterdir()}
    assert {name for name in names if name.startswith("enn_trainer/configs/")} == configs <= pure


def test_wheel_and_sdist_are_small(built: Built) -> None:
    assert built.wheel.stat().st_size < MAX_WHEEL
    assert built.pure.stat().st_size < MAX_WHEEL
    assert built.sdist.stat().st_size < MAX_SDIST


def test_wheels_are_reproducible(built: Built, tmp_path: Path) -> None:
    build(checkout(tmp_path / "again"), tmp_path / "dist")
    build(checkout(tmp_path / "pure"), tmp_path / "dist", "--wheel", ENN_PURE="1")
    for wheel in (built.wheel, built.pure):
        assert (tmp_path / "dist" / wheel.name).read_bytes() == wheel.read_bytes()


def test_wheels_pass_release_checks(built: Built, tmp_path: Path) -> None:
    tools = Path(sys.executable).parent
    run(tools / "abi3audit", "--strict", built.wheel, folder=tmp_path)
    assert "manylinux" in run(tools / "auditwheel", "show", built.wheel, folder=tmp_path)
    wheels = (built.wheel, built.pure)
    run(
        tools / "check-wheel-contents",
        "--config",
        ROOT / "pyproject.toml",
        *wheels,
        folder=tmp_path,
    )
    run(tools / "twine", "check", "--strict", *built, folder=tmp_path)


def test_older_builds_that_shadow_the_new_one_are_removed(
    tmp_path: Path,
) -> None:
    source = checkout(tmp_path)
    old = source / "rogue_net/native/_native.cpython-311-x86_64-linux-gnu.so"
    old.write_bytes(b"")
    run(sys.executable, "setup.py", "-q", "build_ext", "--inplace", folder=source)
    assert not old.exists()
    assert (source / "rogue_net/native/_native.abi3.so").exists()
