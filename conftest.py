"""Tests of the blocks of code in README, the documentation and docstrings."""

from importlib.util import find_spec
from pathlib import Path

import pytest

pytest_plugins = ["tests.hypothesis_profiles", "tests.processor_times"]

if find_spec("sybil"):  # without the development tools, documentation is not tested
    from sybil.integration.pytest import SybilFile

    from tests.doc_blocks import DOCSTRINGS, PAGES, has_doctests, page_folder, pages

    __all__ = ["page_folder"]

    def pytest_collect_file(file_path: Path, parent: pytest.Collector) -> pytest.Collector | None:
        """Collect pages and docstrings by sybil."""
        is_page = file_path in pages()
        if not is_page and not has_doctests(file_path):
            return None
        sybil = PAGES if is_page else DOCSTRINGS
        found: pytest.Collector = SybilFile.from_parent(parent, path=file_path, sybils=[sybil])
        found.add_marker("slow")
        found.add_marker(pytest.mark.xdist_group(found.nodeid))  # one process runs a page, in order
        return found
