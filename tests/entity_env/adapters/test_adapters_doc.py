"""The code of docs/adapters.md."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent.parent.parent


@pytest.mark.slow
def test_blocks_of_the_page_run_one_after_the_other(tmp_path: Path) -> None:
    page = (ROOT / "docs/adapters.md").read_text()
    blocks = re.findall(r"```python\n(.*?)```", page, re.DOTALL)
    assert len(blocks) == 7
    (tmp_path / "page.py").write_text("\n".join(blocks))
    subprocess.run([sys.executable, "page.py"], cwd=tmp_path, check=True, timeout=120)
