"""Tests in parallel: one thread of torch for each process, and one process for tests of time."""

import importlib
import os
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

if "PYTEST_XDIST_WORKER" in os.environ:
    os.environ.setdefault("OMP_NUM_THREADS", "1")  # before torch is imported

import pytest

from tests.enn_trainer.viewer.tabs import CHROMIUM, OPTIONS
from tests.page_sources import copy_page_sources, missing

GROUP = "tests of kills, times and threads"


def pytest_configure(config: pytest.Config) -> None:
    """Let pytest-xdist hand out modules in the order below, not those with most tests first.

    Hide GPUs from tests that are not of GPUs, which compare tensors of the processor.
    """
    if hasattr(config.option, "loadscopereorder"):
        config.option.loadscopereorder = False
    if "gpu" not in config.option.markexpr:
        os.environ["CUDA_VISIBLE_DEVICES"] = ""


@pytest.fixture
def benchmark(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Import a script of `benchmarks/`, which is no package, by its name."""
    monkeypatch.syspath_prepend(Path(__file__).parent.parent / "benchmarks")
    return importlib.import_module


@pytest.fixture(scope="session")
def page_sources(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of the sources of the replay page, with what builds them."""
    return copy_page_sources(tmp_path_factory.mktemp("viewer"))


@pytest.fixture(scope="session")
def browser() -> Iterator[Any]:
    """Return Chromium, or skip where there is none."""
    if CHROMIUM is None:
        missing("there is no chromium; apt-get install chromium")
    try:
        import playwright.sync_api as playwright
    except ImportError:
        missing("there is no playwright; pip install '.[browser]'")
    with playwright.sync_playwright() as started:
        chromium = started.chromium.launch(executable_path=CHROMIUM, args=OPTIONS)
        yield chromium
        chromium.close()


@pytest.fixture(scope="session", autouse=True)
def _no_runs_in_the_checkout() -> Iterator[None]:
    """Raise if a test leaves the folder of a run here."""
    runs = Path(__file__).parent.parent / "runs"
    before = set(runs.glob("*"))
    yield
    left = sorted(path.name for path in set(runs.glob("*")) - before)
    assert not left, f"tests made {left} in {runs}; let them run in tmp_path"


@pytest.hookimpl(tryfirst=True)  # before pytest-xdist reads the groups
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Run all tests of a module in one process, so that fixtures are created once.

    Those that are marked `alone` kill processes, measure time or count threads. One process runs
    them one after the other, so that they never disturb each other.

    What takes long begins first, so that all processes end at about the same time.
    """
    groups = {}
    for item in items:
        is_alone = item.get_closest_marker("alone") is not None
        groups[item] = GROUP if is_alone else item.nodeid.partition("::")[0]
        item.add_marker(pytest.mark.xdist_group(groups[item]))
    num_slow = Counter(groups[item] for item in items if item.get_closest_marker("slow"))
    items.sort(key=lambda item: -num_slow[groups[item]])
