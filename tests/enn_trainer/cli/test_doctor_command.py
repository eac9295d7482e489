"""`enn doctor`: broken and missing parts are named with the line to type, and end with status 1."""

import json
import os
import re
import shlex
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import enn_trainer
from enn_trainer.cli import doctor_command, run
from entity_env.imports.extras import install_line

ROOT = Path(__file__).parents[3]
METADATA = """\
Metadata-Version: 2.1
Name: enn-trainer
Version: 9.9
Requires-Python: {python}
Requires-Dist: torch>=2.6
Requires-Dist: numpy>=1.26
Requires-Dist: nowhere-to-be-found>=3; python_version < "3.0"
{requires}
Provides-Extra: plot
Provides-Extra: dev
Requires-Dist: matplotlib>=3.8; extra == "plot"
Requires-Dist: enn-trainer[plot]; extra == "dev"
Requires-Dist: surely-not-installed>=2; extra == "dev"
"""


Asked = tuple[dict[str, Any], str]
ANSWERS: dict[object, Asked] = {}
ask: Callable[[str, float], Asked] = doctor_command._call_in_subprocess


@pytest.fixture(autouse=True)
def _ask_once(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Start one process for each question about an environment, not one for each test."""

    def ask_once(function: str, timeout_s: float) -> Asked:
        modules = sorted((path.name, path.read_text()) for path in tmp_path.glob("*.py"))
        key = function, os.environ.get("ROGUE_NET_NATIVE"), *modules
        if key not in ANSWERS:
            ANSWERS[key] = ask(function, timeout_s)
        return ANSWERS[key]

    monkeypatch.setattr(doctor_command, "_call_in_subprocess", ask_once)


def examined(capsys: pytest.CaptureFixture[str], *options: str) -> tuple[int, dict[str, Any]]:
    """Run `enn doctor --json`, and return the status and the checks by name."""
    capsys.readouterr()
    status = run(["doctor", "--json", *options])
    captured = capsys.readouterr()
    assert captured.err == ""
    report = json.loads(captured.out)
    assert report["can_train"] == (status == 0)
    return status, report["checks"]


def add_package(folder: Path, name: str, version: str, *requires: str) -> None:
    """Write the metadata of an installed package."""
    info = folder / f"{name}-{version}.dist-info"
    info.mkdir(parents=True)
    lines = [f"Name: {name}", f"Version: {version}", *(f"Requires-Dist: {one}" for one in requires)]
    (info / "METADATA").write_text("\n".join(["Metadata-Version: 2.1", *lines]) + "\n")


def add_ours(folder: Path, python: str = ">=3.11", requires: str = "") -> None:
    """Write the metadata of this package."""
    (folder / "enn_trainer-9.9.dist-info").mkdir()
    text = METADATA.format(python=python, requires=requires or "Requires-Dist: packaging")
    (folder / "enn_trainer-9.9.dist-info" / "METADATA").write_text(text)


@pytest.fixture
def first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder from which packages are imported first."""
    monkeypatch.syspath_prepend(tmp_path)
    return tmp_path


@pytest.mark.slow
def test_all_parts_are_listed(capsys: pytest.CaptureFixture[str]) -> None:
    status, checks = examined(capsys)
    assert status == 0
    parts = ["python", "enn-trainer", "packages", "numpy", "torch", "device", "compiled part"]
    assert {*parts, "cores", "memory", "extra plot", "extra gymnasium"} <= checks.keys()
    assert "speed" not in checks
    for check in checks.values():
        assert check.keys() == {"name", "status", "found", "fix", "blocks"}
        assert check["status"] in ("ok", "missing", "problem")
    import numpy as np
    import torch

    assert checks["python"]["found"] == sys.version.split()[0]
    assert checks["torch"]["found"].startswith(f"{torch.__version__}, ")
    assert "imported in" in checks["torch"]["found"]
    assert checks["numpy"]["found"].startswith(np.__version__)
    assert " GB; /dev/shm " in checks["memory"]["found"]


@pytest.mark.slow
def test_report_contains_the_system(capsys: pytest.CaptureFixture[str]) -> None:
    run(["doctor", "--json"])
    report = json.loads(capsys.readouterr().out)
    keys = {"system", "machine", "processor", "checks", "can_train"}
    assert report.keys() == keys
    assert report["machine"] == os.uname().machine


@pytest.mark.slow
def test_table_ends_with_the_fixes(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ROGUE_NET_NATIVE", "0")
    assert run(["doctor"]) == 0  # slower, but it trains
    out = capsys.readouterr().out
    assert re.match(r"network +ok +Ray and torchrun execute what their network sends: ", out)
    assert out.endswith("\nto fix:\n  unset ROGUE_NET_NATIVE\n")
    line = next(line for line in out.splitlines() if line.startswith("compiled part"))
    assert line.split()[2] == "problem"
    assert "training is slower without it" in line


# Torch


@pytest.mark.slow
@pytest.mark.parametrize(
    ("code", "result"),
    [
        ("raise ImportError('libc10.so: undefined symbol')", "libc10.so: undefined symbol"),
        ("import os, signal; os.kill(os.getpid(), signal.SIGSEGV)", "killed by SIGSEGV"),
        ("import sys; sys.exit(0)", "ended without an answer"),
        ("import os; print('{'); os._exit(0)", "ended without an answer"),
        ("import time; time.sleep(60)", "no answer within 0.5 s"),
        ("__version__ = '2.13.0'", "has no attribute 'ones'"),
    ],
)
def test_broken_torch_is_reported(
    code: str, result: str, first: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The test has imported torch already, so this shows that a process of its own is asked."""
    (first / "torch.py").write_text(code)
    options = ["--timeout", "0.5"] if "sleep" in code else []
    status, checks = examined(capsys, *options)
    assert status == 1
    assert checks["torch"]["status"] == "problem"
    assert result in checks["torch"]["found"]
    assert checks["torch"]["fix"].endswith("pip install --force-reinstall torch")
    assert "device" not in checks
    if not options:
        assert checks["numpy"]["status"] == checks["compiled part"]["status"] == "ok"


@pytest.mark.slow
def test_gpu_that_torch_cannot_use_is_named(
    first: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (first / "torch.py").write_text(
        """
import warnings
from types import SimpleNamespace
import numpy
__version__ = "2.13.0+cu130"
ones = numpy.ones
version = SimpleNamespace(cuda="13.0", hip=None)
def is_available():
    warnings.warn("the NVIDIA driver on your system is too old")
    return False
cuda = SimpleNamespace(is_available=is_available)
backends = SimpleNamespace(mps=SimpleNamespace(is_available=lambda: False))
"""
    )
    status, checks = examined(capsys)
    assert status == 0  # it trains on the CPU
    assert "CUDA 13.0 build" in checks["torch"]["found"]
    assert "driver on your system is too old" in checks["device"]["found"]


@pytest.mark.slow
def test_gpus_are_named(first: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (first / "torch.py").write_text(
        """
from types import SimpleNamespace
import numpy
__version__ = "2.13.0+cu130"
ones = numpy.ones
version = SimpleNamespace(cuda="13.0", hip=None)
cuda = SimpleNamespace(
    is_available=lambda: True, device_count=lambda: 2, get_device_name=lambda i: f"GPU {i}"
)
backends = SimpleNamespace(mps=SimpleNamespace(is_available=lambda: False))
"""
    )
    assert examined(capsys)[1]["device"]["found"] == "GPU 0, GPU 1"


@pytest.mark.slow
def test_missing_installation_is_reported(tmp_path: Path) -> None:
    """A Python without any package, with this checkout on its path."""
    (tmp_path / "packaging").symlink_to(Path(sys.modules["packaging"].__path__[0]))
    add_ours(tmp_path)
    command = [sys.executable, "-S", "-c", "from enn_trainer.cli import main; main()", "doctor"]
    paths = {"PYTHONPATH": f"{ROOT}{os.pathsep}{tmp_path}", "PATH": os.environ["PATH"]}
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, env=paths)
    assert done.returncode == 1
    assert done.stderr == ""
    rows = {line.split("  ")[0]: line.split() for line in done.stdout.splitlines()}
    assert rows["packages"][1] == rows["torch"][1] == "missing"
    assert rows["numpy"][1] == "problem"
    assert "device" not in rows
    fixes = done.stdout.partition("to fix:\n")[2]
    assert "pip install 'torch>=2.6' 'numpy>=1.26'" in fixes

    # Without its metadata, and without the package that reads metadata.
    (tmp_path / "packaging").unlink()
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, env=paths)
    assert done.returncode == 1
    assert "pip install packaging" in done.stdout


def test_doctor_imports_no_torch() -> None:
    answers = {
        name: doctor_command._call_in_subprocess(name, 60.0)
        for name in ("numpy_facts", "torch_facts", "compiled_facts")
    }
    code = (
        "import sys; from enn_trainer.cli import doctor_command, run; "
        f"doctor_command._call_in_subprocess = lambda name, timeout_s: {answers!r}[name]; "
        "run(['doctor']); "
        "found = {'torch', 'numpy'} & {*sys.modules}; assert not found, found"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, check=True, cwd=ROOT, timeout=120
    )
    assert b"torch" in done.stdout


# Packages


@pytest.mark.slow
def test_missing_and_old_requirements_are_named(
    first: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    add_ours(first, requires="Requires-Dist: no-such-package>=1\nRequires-Dist: rich>=999")
    status, checks = examined(capsys)
    assert status == 1
    result = checks["packages"]
    assert result["status"] == "missing"
    assert result["found"] == "no-such-package>=1, rich>=999"
    assert shlex.split(result["fix"])[-2:] == ["no-such-package>=1", "rich>=999"]


def test_extras_list_versions_or_the_install_command(
    first: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    import matplotlib

    add_ours(first)
    status, checks = examined(capsys)
    assert status == 0
    assert checks["extra plot"]["found"] == f"matplotlib {matplotlib.__version__}"
    missing = checks["extra dev"]
    assert missing["status"] == "missing"
    assert missing["found"].startswith("surely-not-installed>=2; ")
    assert missing["found"].endswith(install_line("dev", f"{sys.executable} -m pip"))
    assert missing["fix"] == ""  # nothing is broken


def test_old_python_versions_are_reported(first: Path, capsys: pytest.CaptureFixture[str]) -> None:
    add_ours(first, python=">=3.99")
    status, checks = examined(capsys)
    assert status == 1
    assert checks["python"]["found"].endswith(", expected >=3.99")


def test_packages_that_are_not_installed_are_reported_as_missing(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(doctor_command, "distributions", list)
    status, checks = examined(capsys)
    assert status == 0
    assert checks["packages"]["status"] == "missing"
    assert checks["packages"]["fix"].endswith(f"pip install {ROOT}")


def test_published_release_is_reported_with_the_fix(
    first: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    add_package(first, "enn_trainer", "0.1.16", "no-such-package")
    status, checks = examined(capsys)
    assert status == 0
    check = checks["enn-trainer 0.1.16"]
    assert check["status"] == "problem"
    assert str(first) in check["found"]
    assert f"{sys.executable} -m pip uninstall -y enn-trainer && " in check["fix"]
    assert checks["enn-trainer"]["found"].startswith(f"{enn_trainer.__version__} in ")
    assert checks["packages"]["status"] == "ok", "requirements of this release alone"


def test_packages_that_need_numpy_2_are_named(first: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        doctor_command, "_call_in_subprocess", lambda *_: ({"version": "1.26.4"}, "")
    )
    add_package(first, "jax", "0.9", "numpy>=2.0", 'numpy>=9; python_version < "3.0"')
    add_package(first, "ragged-buffer", "0.4.8", "numpy~=1.21")
    add_package(first, "other", "1", 'numpy>=2; extra == "gpu"', "numpy-like>=2")
    (first / "broken-1.dist-info").mkdir()
    check = doctor_command._check_numpy(1.0)
    assert (check.status, check.blocks) == ("problem", False)
    unfit, _, holding = check.found.partition("held below 2 by")
    assert unfit.startswith("1.26.4, which does not suit ")
    assert "jax (numpy>=2.0)" in unfit
    assert "numpy>=9" not in unfit
    assert "ragged-buffer" in holding
    assert "jax" not in holding
    assert "other" not in check.found
    assert "pip uninstall -y ragged-buffer && " in check.fix
    assert check.fix.endswith("pip install 'numpy>=2'")
    monkeypatch.setattr(
        doctor_command, "_call_in_subprocess", lambda *_: ({"version": "2.4.0"}, "")
    )
    assert "held" not in doctor_command._check_numpy(1.0).found


@pytest.mark.slow
def test_broken_numpy_stops_training(first: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (first / "numpy.py").write_text("raise ImportError('libopenblas')")
    status, checks = examined(capsys)
    assert status == 1
    assert "libopenblas" in checks["numpy"]["found"]
    assert checks["numpy"]["blocks"]


# Compiled part and machine


@pytest.mark.parametrize(
    ("facts", "status", "fix"),
    [
        ({"instructions": None, "problem": "not compiled"}, "missing", f"-e {ROOT}"),
        ({"instructions": None, "problem": "older than its sources"}, "problem", f"-e {ROOT}"),
        ({"instructions": "x86-64-v3", "problem": ""}, "ok", ""),
    ],
)
def test_compiled_part_suggests_a_fix(
    facts: dict[str, Any], status: str, fix: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(doctor_command, "_call_in_subprocess", lambda *_: (facts, ""))
    check = doctor_command._check_compiled(1.0)
    assert (check.status, check.blocks) == (status, False)
    assert fix in check.fix
    assert facts["problem"] in check.found
    assert ("C compiler" in check.fix) == bool(fix)
    monkeypatch.setattr(doctor_command, "_ROOT", Path("/nowhere"))  # installed from a wheel
    assert ("--force-reinstall WHEEL" in doctor_command._check_compiled(1.0).fix) == bool(fix)


def test_container_limits_are_applied(monkeypatch: pytest.MonkeyPatch) -> None:
    limits = {"cpu.max": [["150000", "100000"]], "memory.max": [["400000000"]]}
    monkeypatch.setattr(doctor_command, "_limits", lambda file: iter(limits[file]))
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0, 1, 2, 3})
    cores, memory = doctor_command._check_machine()
    assert cores.found.startswith("1.5 of ")
    assert memory.status == "problem"
    assert memory.found.startswith("0.4 GB")


def test_limits_include_parent_control_groups(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    files = {
        "/proc/self/cgroup": "0::/jobs/mine\n",
        "/sys/fs/cgroup/jobs/mine/cpu.max": "max 100000\n",
        "/sys/fs/cgroup/jobs/cpu.max": "200000 100000\n",
    }

    def read(path: Path) -> str:
        if str(path) not in files:
            raise FileNotFoundError(str(path))
        return files[str(path)]

    monkeypatch.setattr(Path, "read_text", read)
    assert list(doctor_command._limits("cpu.max")) == [["200000", "100000"]]
    assert list(doctor_command._limits("memory.max")) == []


# Training


@pytest.mark.slow
def test_trial_trains_without_leaving_files(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    ask_once = doctor_command._call_in_subprocess

    def ask_for_less(function: str, timeout_s: float) -> Asked:
        if function != "measure_speed":
            return ask_once(function, timeout_s)
        return ask(f"__dict__.update(TRIAL_S=0.1) or m.{function}", timeout_s)

    monkeypatch.setattr(doctor_command, "_call_in_subprocess", ask_for_less)
    status, checks = examined(capsys, "--try")
    assert status == 0
    speed, _, unit = checks["speed"]["found"].partition(" frames/s in MoveToOrigin, ")
    assert float(speed.replace(",", "")) > 0
    ratio = float(unit.partition(" times as fast as")[0])
    assert ratio == pytest.approx(float(speed.replace(",", "")) / 24_301, abs=0.006)
    assert list(tmp_path.iterdir()) == []


def test_usual_speed_matches_the_committed_results() -> None:
    text = (ROOT / "benchmarks/results/same_speed.md").read_text()
    row = next(line for line in text.splitlines() if line.startswith("| move_to_origin"))
    assert f"{doctor_command.USUAL_FRAMES_PER_S:,}" in row.split(" | ")
    assert "AMD EPYC with two cores" in text


def test_failed_trial_is_reported(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        doctor_command, "_call_in_subprocess", lambda *_: ({}, "RuntimeError: no memory")
    )
    assert run(["doctor", "--try"]) == 1
    assert "training failed: RuntimeError: no memory" in capsys.readouterr().out
