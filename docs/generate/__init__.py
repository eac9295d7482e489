"""Pages of the reference that are made from the code: API, commands, settings, tags."""

from pathlib import Path

from . import api, commands, results, settings, tags

PAGES = (api.pages, commands.pages, results.pages, settings.pages, tags.pages)


def write_pages(root: Path) -> None:
    """Write all pages to `docs/reference/generated`, those that have changed."""
    folder = root / "docs/reference/generated"
    for pages in PAGES:
        for name, text in pages(root):
            path = folder / name
            path.parent.mkdir(parents=True, exist_ok=True)
            if not path.exists() or path.read_text() != text:
                path.write_text(text)
