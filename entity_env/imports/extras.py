"""Optional dependencies (extras), the command that installs one, and errors for missing ones."""

import sys
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

from entity_env.errors import EntityEnvError

if TYPE_CHECKING:
    from importlib.metadata import Distribution

PROJECT = "enn-trainer"
PUBLISHED = "0.1.16"
"""Version under this name on the package index: an ancestor with other modules in `enn_trainer`."""
EXTRAS = {
    "browser": ("playwright",),
    "export": ("onnx", "onnxscript", "onnxruntime"),
    "gymnasium": ("gymnasium",),
    "pettingzoo": ("pettingzoo",),
    "mlflow": ("mlflow",),
    "plot": ("matplotlib",),
    "ray": ("ray",),
    "serve": ("websockets",),
    "tensorboard": ("tensorboard",),
    "tune": ("optuna", "scipy"),
    "video": ("imageio", "imageio_ffmpeg", "PIL"),
    "wandb": ("wandb",),
}
"""Modules that each extra installs."""


class MissingExtra(EntityEnvError, ImportError):  # noqa: N818 (published name)
    """Raised if an optional package is missing; the message has the command to install it."""


def distributions() -> list["Distribution"]:
    """Return the installed metadata of this project, except for the published ancestor."""
    from importlib import metadata  # takes 13 ms

    return [d for d in metadata.distributions(name=PROJECT) if d.version != PUBLISHED]


def published_problem(pip: str = "pip") -> tuple[str, str] | None:
    """Return the problem of an installed published ancestor, and its fix; None without one.

    Looks for its metadata by the name of their folder, which takes microseconds.
    """
    name = f"{PROJECT.replace('-', '_')}-{PUBLISHED}.dist-info"
    folder = next((folder for folder in sys.path if Path(folder, name).is_dir()), None)
    if folder is None:
        return None
    problem = f"expected one release with the folder enn_trainer/, got also {PUBLISHED} in {folder}"
    again = install_line(pip=pip, options="--force-reinstall --no-deps ")
    return problem, f"{pip} uninstall -y {PROJECT} && {again}"


def warn_about_published() -> None:
    """Warn of an installed published ancestor, which may replace modules of this project."""
    if problem := published_problem():
        warnings.warn(f"{PROJECT}: {'; '.join(problem)}", stacklevel=3)


def install_line(extra: str = "", pip: str = "pip", options: str = "") -> str:
    """Return the command that installs this project with an extra from its origin.

    The origin is the checkout or file that `direct_url.json` names, see PEP 610, or the checkout
    with this module. Other installations are named by their exact version, which `pip` keeps: the
    name alone stands for the published ancestor.

    Args:
        extra: name of an extra; "" for the project alone.
        pip: command that runs pip.
        options: options of `pip install`, each followed by a space.
    """
    import json
    import shlex
    from urllib.parse import urlsplit
    from urllib.request import url2pathname

    suffix = f"[{extra}]" if extra else ""
    installed = distributions()
    for distribution in installed:
        origin = json.loads(distribution.read_text("direct_url.json") or "{}")
        url = urlsplit(origin.get("url", ""))
        path = Path(url2pathname(url.path))
        if url.scheme == "file" and path.exists():
            options += "-e " * origin.get("dir_info", {}).get("editable", False)
            return f"{pip} install {options}{shlex.quote(f'{path}{suffix}')}"
    checkout = Path(__file__).parents[2]
    if not installed or (checkout / "pyproject.toml").is_file():
        return f"{pip} install {options}{shlex.quote(f'{checkout}{suffix}')}"
    version = installed[0].version
    return f"{pip} install {options}{shlex.quote(f'{PROJECT}{suffix}=={version}')}"


def missing_package(*modules: str) -> str:
    """Return the message that names the first missing module of extras; "" if none is missing."""
    name = next((name for name in modules if find_spec(name) is None), "")
    fix = remedy(ModuleNotFoundError(name=name))
    return f"expected the package {name}, which is not installed{fix}" if name else ""


def remedy(error: BaseException) -> str:
    """Return the command that installs a missing module, "" if no extra has it."""
    if not isinstance(error, ModuleNotFoundError):
        return ""
    top = (error.name or "").partition(".")[0]
    extra = next((name for name, modules in EXTRAS.items() if top in modules), None)
    return f"; {install_line(extra)}" if extra else ""


@contextmanager
def needs_extra() -> Iterator[None]:
    """Return a context for imports of an extra that raises `MissingExtra` for missing modules."""
    try:
        yield
    except ModuleNotFoundError as error:
        fix = remedy(error)
        if not fix:
            raise
        raise MissingExtra(f"expected the package {error.name}{fix}") from None
