"""Memory metrics of the process and the GPU, cheap enough to be measured once an update."""

import os
from pathlib import Path

import torch

from entity_env.process import peak_bytes

MB = 2**20
_STATM = Path("/proc/self/statm")


def system_numbers(device: torch.device) -> dict[str, float]:
    """Return the memory in use by tag, in MB (2**20 bytes).

    Args:
        device: the device of the networks.

    Returns:
        `system/rss_mb`, the resident memory of this process without workers (its peak on systems
        without /proc); on a GPU also `system/gpu_memory_mb`, the memory of tensors now, and
        `system/gpu_peak_mb`, its peak.
    """
    scalars = {"system/rss_mb": _rss_bytes() / MB}
    if device.type == "cuda":
        scalars["system/gpu_memory_mb"] = torch.cuda.memory_allocated(device) / MB
        scalars["system/gpu_peak_mb"] = torch.cuda.max_memory_allocated(device) / MB
    return scalars


def _rss_bytes() -> int:
    if _STATM.exists():
        return int(_STATM.read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    return peak_bytes()
