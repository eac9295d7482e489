"""Pages of the API: one per folder of code with every public module of it, and an index."""

import ast
from collections.abc import Iterator, Mapping
from pathlib import Path

PACKAGES = ("entity_env", "rogue_net", "enn_trainer")


def pages(root: Path) -> Iterator[tuple[str, str]]:
    """Yield the name and the text of each page."""
    folders = [
        path.parent for name in PACKAGES for path in sorted((root / name).rglob("__init__.py"))
    ]
    packages, sections = [], []
    for folder in folders:
        package = ".".join(folder.relative_to(root).parts)
        summaries = {
            f"{package}.{path.stem}": summary(path) for path in sorted(folder.glob("[a-z]*.py"))
        }
        yield f"api/{package}.md", page(package, [*summaries])
        packages.append(package)
        sections.append(section(package, summary(folder / "__init__.py"), summaries))
    listed = "\n".join(packages)
    toctree = f"```{{toctree}}\n:hidden:\n:maxdepth: 1\n\n{listed}\n```"
    yield "api/index.md", "\n\n".join(["# API", toctree, *sections]) + "\n"


def summary(path: Path) -> str:
    """Return the first line of the docstring of a module."""
    return (ast.get_docstring(ast.parse(path.read_text())) or "").partition("\n")[0]


def section(package: str, text: str, summaries: Mapping[str, str]) -> str:
    """Return the section of the index for a folder: its summary, and a table of its modules."""
    lines = [f"## [{package}]({package}.md)", "", text]
    if summaries:
        lines += ["", "| module | content |", "| --- | --- |"]
    for module, line in summaries.items():
        escaped = line.replace("|", "\\|")
        lines.append(f"| {{py:mod}}`{module}` | {escaped} |")
    return "\n".join(lines)


def page(package: str, modules: list[str]) -> str:
    """Return the text of a page."""
    parts = [f"# {package}", automodule(package)]
    for module in modules:
        parts += [f"## {module}", automodule(module)]
    return "\n\n".join(parts) + "\n"


def automodule(name: str) -> str:
    """Return the directive that documents what a module defines, not what it exports of others."""
    return f"```{{eval-rst}}\n.. automodule:: {name}\n   :members:\n   :ignore-module-all:\n```"
