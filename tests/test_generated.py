"""Files that are made from the code are up to date."""

import importlib
from pathlib import Path

import pytest

from tests.page_sources import SOURCES, run_node

ROOT = Path(__file__).parent.parent


@pytest.mark.slow
def test_generated_files_are_up_to_date(
    page_sources: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(ROOT)
    expected = importlib.import_module("docs.generate.files").generated_files()
    run_node(page_sources, "node", "build.mjs")
    page = SOURCES.with_suffix(".html").relative_to(ROOT)
    expected[str(page)] = (page_sources.parent / page.name).read_text()
    folder = ROOT / "enn_trainer/cli/completion"
    committed = {*expected, *(str(path.relative_to(ROOT)) for path in folder.iterdir())}
    stale = [path for path in sorted(committed) if (ROOT / path).read_text() != expected.get(path)]
    assert not stale, f"{', '.join(stale)}: out of date; type: make generated"
