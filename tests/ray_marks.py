"""Marks of tests that need a Ray cluster."""

from importlib.util import find_spec

import pytest

NEEDS_RAY = [
    pytest.mark.skipif(find_spec("ray") is None, reason="the extra ray is not installed"),
    pytest.mark.filterwarnings("ignore::FutureWarning"),
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
    pytest.mark.slow,
    pytest.mark.alone,
]
"""For `pytestmark`: skipped without the extra; Ray's own warnings are no errors."""
