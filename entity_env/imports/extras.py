"""Extras of the package: what each of them installs, and errors where one is missing."""

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
"""The modules that each extra is for."""


class MissingExtra(EntityEnvError, ImportError):  # noqa: N818 (names what is missing)
    """An optional package that is not installed; the message is the command that installs it."""


def remedy(error: BaseException) -> str:
    """Return the command that cures a failed import, "" if no extra has the missing module."""
    if not isinstance(error, ModuleNotFoundError):
        return ""
    top = (error.name or "").partition(".")[0]
    extra = next((name for name, modules in EXTRAS.items() if top in modules), None)
    return f"; pip install 'enn-trainer[{extra}]'" if extra else ""


@contextmanager
def needs_extra() -> Iterator[None]:
    """Return a context for imports of an extra, in which a missing one is a `MissingExtra`."""
    try:
        yield
    except ModuleNotFoundError as error:
        if not remedy(error):
            raise
        raise MissingExtra(f"expected the package {error.name}{remedy(error)}") from None
