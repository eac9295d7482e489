"""Choice of the precision of a network by its width and the processor, for `precision="auto"`."""

from pathlib import Path
from typing import NamedTuple

import torch

from rogue_net.config import Precision

LEAST_D_MODEL = {"cpu": 65, "cuda": 256}
"""Smallest d_model that runs faster in bfloat16 than in float32, by the type of device.

On the CPU it is measured; on GPUs it is an estimate of the width at which the time of products
exceeds that of starting operations, see docs/decisions/0047-precision.md."""
_FAST_INSTRUCTIONS = ("avx512_bf16", "amx_bf16", "bf16")
"""Instructions for products of bfloat16 in /proc/cpuinfo: two of x86-64, and that of aarch64."""


class PrecisionChoice(NamedTuple):
    """Precision of a network, and the reason for it."""

    precision: Precision
    reason: str


def auto_precision(d_model: int, device: torch.device) -> PrecisionChoice:
    """Choose the precision of a network by a table of widths and processors, without measuring.

    Args:
        d_model: width of the network.
        device: the device that the network runs on.
    """
    if device.type == "cuda":
        name = torch.cuda.get_device_name(device)
        is_fast = torch.cuda.get_device_capability(device) >= (8, 0)
        return choice_of(d_model, "cuda", name if is_fast else None)
    return choice_of(d_model, device.type, fast_bfloat16_instructions())


def choice_of(d_model: int, device_type: str, fast_products: str | None) -> PrecisionChoice:
    """Look up the precision in the table.

    Args:
        d_model: width of the network.
        device_type: "cpu", "cuda" or another type of device, which uses float32.
        fast_products: GPU or instructions that multiply bfloat16 fast; None without.
    """
    least = LEAST_D_MODEL.get(device_type)
    if least is None or fast_products is None:
        return PrecisionChoice("float32", "no fast bfloat16 products on this device")
    if d_model < least:
        return PrecisionChoice("float32", f"d_model={d_model} is below {least}")
    reason = f"d_model={d_model} is at least {least}, and bfloat16 is fast with {fast_products}"
    return PrecisionChoice("bfloat16", reason)


def fast_bfloat16_instructions(cpuinfo: Path = Path("/proc/cpuinfo")) -> str | None:
    """Return the instructions of this processor for fast bfloat16 products; None without.

    PyTorch uses them through oneDNN.

    Args:
        cpuinfo: description of the processor by Linux; other systems have none.
    """
    has_onednn = torch.backends.mkldnn.is_available()  # type: ignore[no-untyped-call]  # of torch
    if not (has_onednn and cpuinfo.exists()):
        return None
    words = cpuinfo.read_text().split()
    return next((name for name in _FAST_INSTRUCTIONS if name in words), None)
