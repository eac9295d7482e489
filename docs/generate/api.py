"""Pages of the API: one per folder of code, with every public module of it."""

from collections.abc import Iterator
from pathlib import Path

PACKAGES = ("entity_env", "rogue_net", "enn_trainer")


def pages(root: Path) -> Iterator[tuple[str, str]]:
    """Yield the name and the text of each page."""
    folders = [
        path.parent for name in PACKAGES for path in sorted((root / name).rglob("__init__.py"))
    ]
    names = []
    for folder in folders:
        package = ".".join(folder.relative_to(root).parts)
        modules = [f"{package}.{path.stem}" for path in sorted(folder.glob("[a-z]*.py"))]
        yield f"api/{package}.md", page(package, modules)
        names.append(package)
    listed = "\n".join(names)
    yield "api/index.md", f"# API\n\n```{{toctree}}\n:maxdepth: 1\n\n{listed}\n```\n"


def page(package: str, modules: list[str]) -> str:
    """Return the text of a page."""
    parts = [f"# {package}", automodule(package)]
    for module in modules:
        parts += [f"## {module}", automodule(module)]
    return "\n\n".join(parts) + "\n"


def automodule(name: str) -> str:
    """Return the directive that documents what a module defines, not what it exports of others."""
    return f"```{{eval-rst}}\n.. automodule:: {name}\n   :members:\n   :ignore-module-all:\n```"
