"""Page of tags: those that runs of two worlds write, with their meaning in `docs/tracking.md`."""

import contextlib
import json
import re
import tempfile
from collections.abc import Iterator
from pathlib import Path

from enn_trainer import StateManager, train
from entity_env.examples import Duel, MineSweeper

SMALL = (
    "total_timesteps=256 rollout.num_envs=16 rollout.steps=8 rollout.processes=1 optim.bs=64 "
    "eval.episodes=16 eval.interval=128 eval.num_envs=16"
)


def pages(root: Path) -> Iterator[tuple[str, str]]:
    """Yield the name and the text of the page.

    Raises:
        ValueError: `docs/tracking.md` describes no such tag.
    """
    patterns = described((root / "docs/tracking.md").read_text())
    rows = []
    for tag in sorted(written()):
        of_frames = tag.removeprefix("eval/")
        fits = [text for pattern, text in patterns if re.fullmatch(pattern, of_frames)]
        meaning = fits[0] if fits else None
        if meaning is None:
            raise ValueError(f"docs/tracking.md: expected a description of the tag {tag}, got none")
        meaning = meaning if of_frames == tag else f"in evaluations: {meaning}"
        rows.append(f"| `{tag}` | {meaning} |")
    introduction = (
        "# Tags\n\nAll tags that small runs of `Duel` and `MineSweeper` write, with evaluations; "
        "[Tracking](../../tracking.md#tags) explains them by kind.\n\n| tag | meaning |\n"
        "| --- | --- |"
    )
    yield "tags.md", "\n".join([introduction, *rows]) + "\n"


def written() -> set[str]:
    """Return the tags that two runs write."""
    tags = set()
    for world in (Duel, MineSweeper):
        with tempfile.TemporaryDirectory() as folder:
            with contextlib.redirect_stdout(None):
                train(StateManager(overrides=[*SMALL.split(), f"data_dir={folder}"]), world)
            for path in Path(folder).rglob("metrics.jsonl"):
                for row in map(json.loads, path.read_text().splitlines()):
                    tags |= row.keys() if row["kind"] != "notice" else set()
    return tags - {"step", "time", "kind"}


def described(text: str) -> list[tuple[str, str]]:
    """Return a pattern for each tag in the tables of a page, and its meaning."""
    found = []
    for first, meaning in re.findall(r"^\| (`.*?) \| (.*) \|$", text, re.MULTILINE):
        names = re.findall(r"`([^`]+)`", first)
        for name in names:
            whole = names[0].rsplit(".", 1)[0] + name if name.startswith(".") else name
            found.append((re.sub(r"<[^>]+>|\\\*", ".+", re.escape(whole)), meaning))
    return sorted(found, key=lambda pattern: pattern[0].startswith(".+"))  # general ones last
