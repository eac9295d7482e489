"""Import of the compiled part, without torch."""

import hashlib
import importlib
import os
import shlex
import warnings
from pathlib import Path
from types import ModuleType

SWITCH = "ROGUE_NET_NATIVE"
"""Environment variable; 0 disables the compiled part in favour of torch."""

POISON = "ROGUE_NET_POISON"
"""Environment variable; 1 fills new arrays with NaN, to detect reads of uninitialised memory."""


def _import_compiled() -> tuple[ModuleType | None, str]:
    """Return the compiled module, or None, and the reason if it is None."""
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
                f"{module.__file__}: older than its C sources, so torch is used instead; "
                "compile it: pip install -e .",
                stacklevel=2,
            )
            return None, "older than its sources"
    return module, ""


MODULE, PROBLEM = _import_compiled()
"""The compiled module, or None; and the reason why it is None, otherwise empty."""
AVAILABLE = MODULE is not None
INSTRUCTIONS: str | None = None if MODULE is None else MODULE.instructions
"""The instruction set in use, such as "x86-64-v4"; None without compiled code."""


def advice() -> str | None:
    """Return why the compiled part is not in use, and how to enable it; None if it is in use."""
    if AVAILABLE:
        return None
    checkout = Path(__file__).parents[2]
    remedy = "with a C compiler, in a checkout, type: pip install ."
    if os.environ.get(SWITCH) == "0":
        remedy = f"type: unset {SWITCH}"
    elif (checkout / "setup.py").is_file():
        remedy = f"with a C compiler, type: pip install -e {shlex.quote(str(checkout))}"
    return f"compiled part {PROBLEM}: about half as fast; {remedy}"
