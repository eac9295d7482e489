"""The command `enn doctor`. Parts that may crash, such as torch, are checked in subprocesses."""

import argparse
import importlib.metadata
import json
import os
import platform
import shlex
import shutil
import signal
import subprocess
import sys
import time
import warnings
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any, NamedTuple

from enn_trainer.base.tables import aligned
from enn_trainer.cli.arguments import FAILURE, OneLineParser
from enn_trainer.runtime.versions import package_version
from entity_env.imports.extras import (
    PROJECT,
    PUBLISHED,
    distributions,
    install_line,
    published_problem,
)

if TYPE_CHECKING:
    from packaging.requirements import Requirement

USUAL_FRAMES_PER_S = 24_301
"""Speed of MoveToOrigin on two cores of an AMD EPYC; see benchmarks/results/same_speed.md."""
TRIAL = ["env.id=MoveToOrigin", "rollout.num_envs=64", "rollout.steps=32", "rollout.processes=2"]
TRIAL += ["net.d_model=16", "net.n_layer=1", "optim.lr=0.003", "optim.bs=2048"]
"""Settings of the measurement of `USUAL_FRAMES_PER_S`."""
TRIAL_S = 2.0
LEAST_BYTES = 1 << 29
"""Memory that a run of a small network needs."""
TRUST = (
    "Ray and torchrun execute what their network sends: only use hosts of a trusted network; a "
    "Ray cluster started here listens on this machine only and requires a token"
)
_PIP = shlex.join([sys.executable, "-m", "pip"])
_INSTALL = f"{_PIP} install"
_ROOT = Path(__file__).parents[2]
_EPILOG = """\
The status is 1 if training cannot work. Nothing is sent over the network.

examples:
  enn doctor
  enn doctor --try
  enn doctor --json"""


class DoctorCheck(NamedTuple):
    """Result of a check.

    Attributes:
        name: name of the part.
        status: "ok", "missing" or "problem".
        found: description, such as the version.
        fix: command to type; "" if nothing needs a fix.
        blocks: True if training cannot work.
    """

    name: str
    status: str
    found: str
    fix: str = ""
    blocks: bool = False


def parser() -> OneLineParser:
    """Return the parser of `enn doctor`."""
    description = "Check whether training works here: list installed and missing parts, and fixes."
    parser = OneLineParser(prog="enn doctor", description=description, epilog=_EPILOG)
    parser.add_argument("--try", dest="trial", action="store_true", help="train for two seconds")
    parser.flag("--json", "print JSON")
    wait = "seconds to wait for torch (default: 120)"
    parser.option("--timeout", "S", wait, type=float, default=120.0)
    return parser


def doctor_command(arguments: Sequence[str]) -> int:
    """Run `enn doctor`: list the parts that training needs, and how to fix them.

    Returns:
        0, or 1 if training cannot work.
    """
    options = parser().parse_args(arguments)
    checks = list(_checks(options))
    can_train = not any(check.blocks for check in checks)
    if options.json:
        by_name = {check.name: check._asdict() for check in checks}
        report: dict[str, Any] = {"system": platform.platform(), "machine": platform.machine()}
        report |= {"processor": _processor(), "checks": by_name, "can_train": can_train}
        print(json.dumps(report, indent=1))
    else:
        print(*aligned([(c.name, c.status, c.found) for c in checks]), sep="\n")
        if fixes := dict.fromkeys(check.fix for check in checks if check.fix):
            print("", "to fix:", *(f"  {fix}" for fix in fixes), sep="\n")
    return 0 if can_train else FAILURE


def _checks(options: argparse.Namespace) -> Iterator[DoctorCheck]:
    yield DoctorCheck("network", "ok", TRUST)
    if published := published_problem(_PIP):
        problem, fix = published
        yield DoctorCheck(f"{PROJECT} {PUBLISHED}", "problem", problem, fix)
    try:
        yield from _check_packages()
        yield _check_numpy(options.timeout)
    except ModuleNotFoundError as error:  # packaging, or the metadata of this package
        is_ours = error.name == PROJECT  # it runs from a folder, without being installed
        fix = f"{_INSTALL} {_ROOT if is_ours else error.name}"
        yield DoctorCheck("packages", "missing", f"{error.name}", fix, blocks=not is_ours)
    yield from _check_torch(options.timeout)
    yield _check_compiled(options.timeout)
    yield from _check_machine()
    if options.trial:
        facts, problem = _call_in_subprocess("measure_speed", options.timeout)
        if problem:
            yield DoctorCheck("speed", "problem", f"training failed: {problem}", blocks=True)
        else:
            speed = facts["frames_per_s"]
            usual = f"{speed / USUAL_FRAMES_PER_S:.2f} times as fast as two cores of an AMD EPYC"
            yield DoctorCheck("speed", "ok", f"{speed:,.0f} frames/s in MoveToOrigin, {usual}")


# Packages


def _check_packages() -> Iterator[DoctorCheck]:
    """Check Python, this package, its requirements and its extras, by their metadata."""
    from packaging.requirements import Requirement
    from packaging.specifiers import SpecifierSet

    ours = next(iter(distributions()), None)
    if ours is None:
        raise importlib.metadata.PackageNotFoundError(PROJECT)
    python, required = platform.python_version(), ours.metadata["Requires-Python"] or ""
    if SpecifierSet(required).contains(python, prereleases=True):
        yield DoctorCheck("python", "ok", python)
    else:
        yield DoctorCheck("python", "problem", f"{python}, expected {required}", blocks=True)
    yield DoctorCheck(PROJECT, "ok", f"{ours.version} in {_ROOT}")

    requirements = [r for line in ours.requires or [] if (r := Requirement(line)).name != PROJECT]
    needed = [r for r in requirements if _applies(r)]
    for extra in ["", *(ours.metadata.get_all("Provides-Extra") or [])]:
        if extra:
            needed = [r for r in requirements if _applies(r, extra) and not _applies(r)]
        missing = [f"{r.name}{r.specifier}" for r in needed if not _fits(r)]
        name = f"extra {extra}" if extra else "packages"
        if not missing:
            versions = ", ".join(f"{r.name} {package_version(r.name)}" for r in needed)
            yield DoctorCheck(name, "ok", versions)
        elif extra:  # nothing is broken
            yield DoctorCheck(name, "missing", f"{', '.join(missing)}; {install_line(extra, _PIP)}")
        else:
            fix = f"{_INSTALL} {shlex.join(missing)}"
            yield DoctorCheck(name, "missing", ", ".join(missing), fix, blocks=True)


def _applies(requirement: "Requirement", extra: str = "") -> bool:
    return requirement.marker is None or requirement.marker.evaluate({"extra": extra})


def _fits(requirement: "Requirement") -> bool:
    version = package_version(requirement.name)
    return version is not None and requirement.specifier.contains(version, prereleases=True)


def _check_numpy(timeout_s: float) -> DoctorCheck:
    """Check numpy and list the packages that pin it below 2 or do not support its version."""
    from packaging.requirements import Requirement

    facts, problem = _call_in_subprocess("numpy_facts", timeout_s)
    if problem:
        again = f"{_INSTALL} --force-reinstall numpy"
        return DoctorCheck("numpy", "problem", f"cannot be imported: {problem}", again, blocks=True)
    version, holding, unfit = facts["version"], set(), set()
    for package in importlib.metadata.distributions():
        with suppress(Exception):  # a damaged installation of another package
            lines = [line for line in package.requires or [] if line.startswith("numpy")]
            for req in filter(_applies, map(Requirement, lines)):
                if req.name == "numpy" and not req.specifier.contains(version, prereleases=True):
                    unfit.add(f"{package.name} ({req})")
                elif req.name == "numpy" and version < "2" and not req.specifier.contains("2.0"):
                    holding.add(package.name)
    held = f"; held below 2 by {', '.join(sorted(holding))}" if holding else ""
    if not unfit:
        return DoctorCheck("numpy", "ok", version + held)
    # ragged-buffer is needed for environments and recordings of entity-gym only.
    without = f"{_PIP} uninstall -y ragged-buffer && "
    fix = without * ("ragged-buffer" in holding) + f"{_INSTALL} 'numpy>=2'"
    text = f"{version}, which does not suit {', '.join(sorted(unfit))}{held}"
    return DoctorCheck("numpy", "problem", text, fix)


# Parts that are checked in a subprocess


def _call_in_subprocess(function: str, timeout_s: float) -> tuple[dict[str, Any], str]:
    """Call a function of this module in a subprocess; return its result, or {} and the problem."""
    code = f"import sys; sys.path[:] = {sys.path!r}; import json, {__name__} as m; "
    code += f"print(); print(json.dumps(m.{function}()))"
    command = [sys.executable, "-P", "-W", "ignore", "-c", code]
    quiet: dict[str, Any] = {"stdin": subprocess.DEVNULL, "capture_output": True}
    try:
        done = subprocess.run(command, **quiet, text=True, errors="replace", timeout=timeout_s)
    except subprocess.TimeoutExpired:
        return {}, f"no answer within {timeout_s:g} s"
    if done.returncode < 0:
        return {}, f"the process was killed by {signal.Signals(-done.returncode).name}"
    with suppress(ValueError, IndexError):
        return json.loads(done.stdout.splitlines()[-1]), ""
    return {}, (done.stderr.strip().splitlines() or ["it ended without an answer"])[-1]


def numpy_facts() -> dict[str, Any]:
    """Return the version of numpy, after a computation."""
    import numpy as np

    assert np.ones(3) @ np.ones(3) == 3
    return {"version": np.__version__}


def compiled_facts() -> dict[str, Any]:
    """Return the instruction set of the compiled part, or why it is not used."""
    from rogue_net.native import INSTRUCTIONS, PROBLEM

    return {"instructions": INSTRUCTIONS, "problem": PROBLEM}


def torch_facts() -> dict[str, Any]:
    """Return the version and build of torch, and the device, after a computation."""
    start = time.perf_counter()
    import torch

    seconds = time.perf_counter() - start
    assert torch.ones(3) @ torch.ones(3) == 3
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        count = torch.cuda.device_count() if torch.cuda.is_available() else 0
    builds = {"ROCm": torch.version.hip, "CUDA": torch.version.cuda}
    build = next((f"{kind} {version}" for kind, version in builds.items() if version), "CPU")
    device = ", ".join(torch.cuda.get_device_name(i) for i in range(count))
    if not count and build != "CPU":
        why = "; ".join(" ".join(str(one.message).split()) for one in caught)
        device = f"CPU, as torch for {build} finds no GPU: {why or 'no driver or no GPU'}"
    return {
        "torch": f"{torch.__version__}, {build} build, imported in {seconds:.1f} s",
        "device": device or "CPU" + ", as MPS is not used" * torch.backends.mps.is_available(),
        "is_unused": not count and build != "CPU",
    }


def measure_speed() -> dict[str, Any]:
    """Train in a temporary folder and return the number of frames per second."""
    from enn_trainer.checkpoints.state_manager import StateManager
    from enn_trainer.run.trainer import Trainer
    from entity_env.examples import MoveToOrigin

    with TemporaryDirectory() as folder:
        overrides = [*TRIAL, f"data_dir={folder}", "total_timesteps=1000000000"]
        with Trainer(StateManager(overrides=overrides), MoveToOrigin) as trainer:
            for _ in range(2):  # the first updates are slower
                trainer.step()
            before, start = trainer.state.step, time.perf_counter()
            while (took := time.perf_counter() - start) < TRIAL_S:
                trainer.step()
            return {"frames_per_s": (trainer.state.step - before) / took}


def _check_torch(timeout_s: float) -> Iterator[DoctorCheck]:
    facts, problem = _call_in_subprocess("torch_facts", timeout_s)
    if problem:
        is_missing = "No module named 'torch'" in problem
        status, option = ("missing", "") if is_missing else ("problem", "--force-reinstall ")
        yield DoctorCheck("torch", status, problem, f"{_INSTALL} {option}torch", blocks=True)
        return
    yield DoctorCheck("torch", "ok", facts["torch"])
    yield DoctorCheck("device", "problem" if facts["is_unused"] else "ok", facts["device"])


def _check_compiled(timeout_s: float) -> DoctorCheck:
    facts, problem = _call_in_subprocess("compiled_facts", timeout_s)
    problem = problem or facts["problem"]
    if not problem:
        return DoctorCheck("compiled part", "ok", facts["instructions"])
    fix = f"{_INSTALL} --force-reinstall WHEEL  (the wheel for this system)"
    if "ROGUE_NET_NATIVE" in problem:
        fix = "unset ROGUE_NET_NATIVE"
    elif (_ROOT / "setup.py").is_file():
        fix = f"{_INSTALL} -e {_ROOT}  (with a C compiler, such as gcc)"
    status = "missing" if problem == "not compiled" else "problem"
    return DoctorCheck("compiled part", status, f"{problem}; training is slower without it", fix)


# Machine


def _check_machine() -> Iterator[DoctorCheck]:
    """Check cores and memory, within the limits of the control group (container or job)."""
    count = os.cpu_count() or 1
    usable = float(len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else count)
    for quota, period in _limits("cpu.max"):
        usable = min(usable, int(quota) / int(period))
    yield DoctorCheck("cores", "ok", f"{usable:g} of {count} usable, {_processor()}")

    size = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    size = min([size, *(int(limit) for (limit,) in _limits("memory.max"))])
    text = f"{size / 1e9:.1f} GB"
    with suppress(OSError):
        shm = shutil.disk_usage("/dev/shm").total
        text += f"; /dev/shm {shm / 1e9:.1f} GB, which workers do not need"
    yield DoctorCheck("memory", "ok" if size >= LEAST_BYTES else "problem", text)


def _limits(file: str) -> Iterator[list[str]]:
    """Yield the limits of the control group of this process and of its parent groups."""
    with suppress(OSError):
        group = Path(Path("/proc/self/cgroup").read_text().rpartition("::")[2].strip())
        for folder in (group, *group.parents):
            with suppress(OSError):
                words = Path(f"/sys/fs/cgroup{folder}", file).read_text().split()
                if words[0] != "max":
                    yield words


def _processor() -> str:
    with suppress(OSError, StopIteration):
        lines = Path("/proc/cpuinfo").read_text().splitlines()
        return next(s.partition(":")[2].strip() for s in lines if s.startswith("model name"))
    return platform.processor() or platform.machine()
