"""Search for the compiled part, without torch."""

import hashlib
import importlib
import os
import shlex
import warnings
from pathlib import Path
from types import ModuleType

SWITCH = "ROGUE_NET_NATIVE"
"""The environment variable that, set to 0, leaves everything to torch."""

POISON = "ROGUE_NET_POISON"
"""The environment variable that, set to 1, fills new arrays with NaN, to find what reads them."""


def _compiled() -> tuple[ModuleType | None, str]:
    """Return the compiled module, or None and the reason."""
    if os.environ.get(SWITCH) == "0":
        return None, f"switched off by {SWITCH}=0"
    try:
        module = importlib.import_module("rogue_net.native._native")
    except ModuleNotFoundError:
        return None, "not compiled"
    except ImportError as error:
        return None, f"cannot be loaded: {' '.join(str(error).split())}"
    files = sorted(Path(__file__).parent.glob("*.[ch]"))  # none where only Python was installed
    if files:
        source = hashlib.sha256(b"".join(file.read_bytes() for file in files)).hexdigest()
        if source != module.source:
            warnings.warn(
                f"{module.__file__}: expected to be compiled from the files beside it, which have "
                "changed since; torch is used in its place. Install again: pip install -e .",
                stacklevel=2,
            )
            return None, "older than its sources"
    return module, ""


MODULE, PROBLEM = _compiled()
"""The compiled module; or None and the reason, which is empty beside a module."""
AVAILABLE = MODULE is not None
INSTRUCTIONS: str | None = None if MODULE is None else MODULE.instructions
"""The instruction set in use, such as "x86-64-v4"; None without compiled code."""


def advice() -> str | None:
    """Return a line on why the compiled part is not in use and the remedy; None if it is."""
    if AVAILABLE:
        return None
    checkout = Path(__file__).parents[2]
    remedy = "with a C compiler, in a checkout, type: pip install ."
    if os.environ.get(SWITCH) == "0":
        remedy = f"type: unset {SWITCH}"
    elif (checkout / "setup.py").is_file():
        remedy = f"with a C compiler, type: pip install -e {shlex.quote(str(checkout))}"
    return f"compiled part {PROBLEM}: about half as fast; {remedy}"
