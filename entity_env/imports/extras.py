"""Optional dependencies (extras), and errors for missing ones."""

from collections.abc import Iterator
from contextlib import contextmanager

from entity_env.errors import EntityEnvError

EXTRAS = {
    "browser": ("playwright",),
    "gymnasium": ("gymnasium",),
    "pettingzoo": ("pettingzoo",),
    "mlflow": ("mlflow",),
    "plot": ("matplotlib",),
    "ray": ("ray",),
    "serve": ("websockets",),
    "video": ("imageio", "imageio_ffmpeg", "PIL"),
}
"""Modules that each extra installs."""


class MissingExtra(EntityEnvError, ImportError):  # noqa: N818 (published name)
    """Raised if an optional package is missing; the message has the command to install it."""


def remedy(error: BaseException) -> str:
    """Return the command that installs a missing module, "" if no extra has it."""
    if not isinstance(error, ModuleNotFoundError):
        return ""
    top = (error.name or "").partition(".")[0]
    extra = next((name for name, modules in EXTRAS.items() if top in modules), None)
    return f"; pip install 'enn-trainer[{extra}]'" if extra else ""


@contextmanager
def needs_extra() -> Iterator[None]:
    """Return a context for imports of an extra that raises `MissingExtra` for missing modules."""
    try:
        yield
    except ModuleNotFoundError as error:
        if not remedy(error):
            raise
        raise MissingExtra(f"expected the package {error.name}{remedy(error)}") from None
