"""The documentation builds without a warning, from its pages and from the code."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent


@pytest.mark.slow
@pytest.mark.timeout(900)  # half a minute of processor time, beside other processes
def test_site_builds_without_warnings(tmp_path: Path) -> None:
    """Also without a network: `-n` makes every name of ours that does not resolve a warning."""
    site = tmp_path / "site"
    command = ["sphinx", "-q", "-W", "--keep-going", "-n", "-E", "docs", str(site)]
    done = subprocess.run(
        [sys.executable, "-m", *command], cwd=ROOT, timeout=880, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    assert (site / "search.html").exists()
    assert "SelectEntityActionMask" in (site / "searchindex.js").read_text()
    for page in site.rglob("*.html"):
        loaded = re.findall(
            r'<(?:script|link|img)[^>]+(?:src|href)="(https?:[^"]*)', page.read_text()
        )
        assert not loaded, page
