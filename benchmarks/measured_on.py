"""Commit and processor of a measurement."""

import platform
import re
from pathlib import Path

import torch

from enn_trainer.checkpoints.manifest import git_revision


def short_revision() -> str:
    """Return the commit of the current folder in seven digits, with "-dirty" if files differ."""
    return re.sub(r"^(\w{7})\w*", r"\1", git_revision() or "none")


def processor() -> str:
    """Return the name of the processor and its instruction set in torch.

    Virtual machines use one name for processors with different instruction sets.
    """
    described = Path("/proc/cpuinfo")
    lines = described.read_text().splitlines() if described.exists() else []
    models = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    name = models[0] if models else platform.processor() or platform.machine()
    return f"{name} ({torch.backends.cpu.get_cpu_capability()})"
