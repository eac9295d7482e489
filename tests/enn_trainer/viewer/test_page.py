"""The committed page is what its sources build, small, strict, and part of the wheel."""

import base64
import hashlib
import json
import re
import tomllib
from pathlib import Path

import numpy as np
import pytest

from enn_trainer import replay
from enn_trainer.viewer.page import PAGE, page_blocks
from enn_trainer.viewer.replay import Replay
from enn_trainer.viewer.replay_chunks import decode_chunk
from enn_trainer.viewer.replay_format import write_replay
from entity_env.examples import Duel, MultiSnake
from tests.enn_trainer.chains_world import Camp
from tests.enn_trainer.numbers_world import Targets
from tests.enn_trainer.viewer.replays import agent_of, played, small_replay, smooth
from tests.page_sources import SOURCES, run_node

ROOT = Path(__file__).parents[3]


@pytest.mark.slow
def test_the_sources_have_no_type_errors(page_sources: Path) -> None:
    run_node(page_sources, "node", "node_modules/typescript/bin/tsc", "--noEmit")


@pytest.mark.slow
def test_the_page_reads_what_python_writes(page_sources: Path, tmp_path: Path) -> None:
    replays = [played(Duel, 70, 1), played(MultiSnake, 10, 2)]
    replays += [replay(agent_of(world), world, episodes=2) for world in (Targets, Camp)]
    for seed in range(12):
        replays.append(small_replay(9 * seed + 1, 2, 1 + seed % 2, seed, kinds=seed % 3 > 0))
    written = [columns(one, tmp_path) for one in replays]
    rounded, size = smooth(small_replay()), 100.0
    for _ in range(4):  # rungs
        written.append(columns(rounded, tmp_path, size))
        size = (tmp_path / "replay.html").stat().st_size / 1e6 - 1e-6
    path = tmp_path / "columns.json"
    path.write_text(json.dumps(written))
    run_node(page_sources, "node", "build.mjs", "--test")
    run_node(page_sources, "node", "--test", "build/", REPLAY_COLUMNS=str(path))


def columns(shown: Replay, folder: Path, max_mb: float = 100) -> dict[str, object]:
    """Write a replay; return its blocks and the columns that Python reads in each chunk."""
    path = folder / "replay.html"
    write_replay(shown, path, max_mb)
    blocks = page_blocks(path.read_bytes())
    header = json.loads(blocks["header"].unpacked(1 << 24) or b"")
    found, number = [], 0
    for schema in header["episodes"]:
        for i, _ in enumerate(schema["chunks"]):
            raw = blocks[str(number)].unpacked(1 << 28)
            assert raw is not None
            steps = min(64, schema["steps"] - 64 * i)
            flat = decode_chunk(header, schema, steps, raw)
            stored = {  # counts and positions are uint32 in the file
                n: v.astype(np.uint32) if v.dtype == np.int64 else v for n, v in flat.items()
            }
            found.append({n: base64.b64encode(v.tobytes()).decode() for n, v in stored.items()})
            number += 1
    packed = {name: base64.b64encode(block.packed).decode() for name, block in blocks.items()}
    return {"blocks": packed, "columns": found}


def element(name: str) -> str:
    [content] = re.findall(rf"<{name}>(.*?)</{name}>", PAGE.read_text(), re.DOTALL)
    return str(content)


def test_script_and_style_are_small() -> None:
    assert len((element("script") + element("style")).encode()) < 200_000


def test_content_policy_allows_only_the_inline_script_and_style() -> None:
    [policy] = re.findall(r'Content-Security-Policy" content="([^"]*)"', PAGE.read_text())
    rules = dict(rule.split(" ", 1) for rule in policy.split("; "))
    for name in ("script", "style"):
        digest = hashlib.sha256(element(name).encode()).digest()
        assert rules[f"{name}-src"] == f"'sha256-{base64.b64encode(digest).decode()}'"
    assert (rules["default-src"], rules["img-src"]) == ("'none'", "data: blob:")
    page = PAGE.read_text()
    assert page.index("Content-Security-Policy") < page.index("<style>") < page.index("<script>")
    assert page.count("<script") == page.count("<style") == 1


def test_page_has_no_urls_and_no_text_to_code_functions() -> None:
    page = PAGE.read_text()
    assert not re.findall(r"\b(?:https?|wss?|ftp)://", page)
    assert not re.findall(
        r"insertAdjacentHTML|outerHTML|document\.write|\beval\(|new Function", page
    )
    # uPlot writes one constant, the entity for a space.
    assert all(len(text) < 20 for text in re.findall(r"innerHTML=[^;,]*", page))
    ours = "".join(path.read_text() for path in (SOURCES / "src").glob("*.ts"))
    assert "innerHTML" not in ours
    assert "MIT License" in page
    assert "Leon Sorokin" in page


def test_wheel_contains_only_the_built_page() -> None:
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["setuptools"]
    assert "viewer/page.html" in settings["package-data"]["enn_trainer"]
    assert not [name for name in settings["package-data"]["enn_trainer"] if "viewer/page/" in name]
    assert not [*SOURCES.glob("**/__init__.py")]


def test_exact_versions_are_locked() -> None:
    wanted = json.loads((SOURCES / "package.json").read_text())["devDependencies"]
    locked = json.loads((SOURCES / "package-lock.json").read_text())["packages"]
    assert wanted.keys() == {"axe-core", "esbuild", "typescript", "uplot"}
    for name, version in wanted.items():
        assert locked[f"node_modules/{name}"]["version"] == version
    assert all("integrity" in entry for name, entry in locked.items() if name)
