"""Size and speed of replays and live games: `enn watch`, and its page in a browser.

    python benchmarks/watching.py [CASE ...] [--results FILE.md]

Each case trains an agent briefly and plays it with `enn watch`, in separate processes. Times are
from start to end of the command; memory is its peak. The page is opened in Chromium, if installed,
with playwright (extra `browser`), without a network. In the live case a key press chooses for one
of the entities on the page of `enn serve`, which needs Chromium. Cases that are not named keep
their lines in the .jsonl next to the results.
"""

import argparse
import json
import os
import platform
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

import numpy as np
import torch
from measured_on import processor, short_revision

from enn_trainer.checkpoints.saved_run import read_saved_run
from enn_trainer.experience.players import AgentPlayer
from enn_trainer.viewer.page import PAGE
from enn_trainer.viewer.replay_format import read_replay
from entity_env import (
    Action,
    CategoricalAction,
    CategoricalActionMask,
    CategoricalActionSpace,
    Entity,
    EntityView,
    Environment,
    EnvList,
    Observation,
    ObsSpace,
    View,
)
from rogue_net.ragged import EntityBatch

ROOT = Path(__file__).parent.parent
CHROMIUM = os.environ.get("CHROMIUM") or shutil.which("chromium")
ENTITIES, SIZE = 500, 100
MOVES = {"stay": (0, 0), "left": (-1, 0), "right": (1, 0), "up": (0, 1), "down": (0, -1)}
SMALL = ["rollout.processes=1", "rollout.num_envs=2", "rollout.steps=2", "optim.bs=4"]
JUMPS, PLAYED_S = 60, 5.0
LIVE_ENTITIES, CHOICES = 100, 200
ENN = [sys.executable, "-m", "enn_trainer.cli"]
COLUMNS = (
    *("what", "to reach", "written", "steps", "size", "memory"),
    *("first picture", "any step", "played", "heap"),
)


class Crowd(Environment):
    """Entities that walk on a field, tire and rest, in endless episodes.

    Args:
        entities: number of entities.
    """

    def __init__(self, entities: int = ENTITIES) -> None:
        self.entities = entities

    def obs_space(self) -> ObsSpace:
        """Return six features of one type."""
        return ObsSpace([], {"Walker": Entity(["x", "y", "energy", "warmth", "team", "age"])})

    def action_space(self) -> dict[str, Any]:
        """Return five choices."""
        return {"walk": CategoricalActionSpace([*MOVES])}

    def reset(self) -> Observation:
        """Place the entities at random."""
        draw = np.random.default_rng(self.rng.randrange(2**32))
        self.draw, self.rows = draw, np.zeros((self.entities, 6), np.float32)
        self.rows[:, :2] = draw.integers(SIZE, size=(self.entities, 2))
        self.rows[:, 2:4] = draw.random((self.entities, 2))
        self.rows[:, 4] = draw.integers(2, size=self.entities)
        return self._observe(0.0)

    def act(self, actions: Mapping[str, Action]) -> Observation:
        """Move the entities; moving costs energy."""
        walk = actions["walk"]
        assert isinstance(walk, CategoricalAction)
        steps = np.array([*MOVES.values()])[walk.indices]
        moved = np.abs(steps).sum(axis=1)
        self.rows[:, :2] = (self.rows[:, :2] + steps) % SIZE
        self.rows[:, 2] = np.clip(self.rows[:, 2] + 0.05 - 0.1 * moved, 0, 1)
        self.rows[:, 3] = 0.9 * self.rows[:, 3] + 0.1 * self.draw.random(self.entities)
        self.rows[:, 5] += 1
        return self._observe(float(self.rows[:, 2].mean()))

    def view(self) -> View:
        """Return the field."""
        bounds = ((0.0, SIZE - 1.0), (0.0, SIZE - 1.0))
        return View({"Walker": EntityView(("x", "y"), colour="team")}, bounds)

    def _observe(self, reward: float) -> Observation:
        return Observation(
            features={"Walker": self.rows.copy()},
            ids={"Walker": range(self.entities)},
            actions={"walk": CategoricalActionMask(actor_types=["Walker"])},
            reward=reward,
        )


class Case(NamedTuple):
    """Name, training settings and options of `enn watch` of a case, and its target."""

    name: str
    train: list[str]
    watch: list[str]
    to_reach: str


CASES = [
    Case(
        "TreasureHunt, 3 episodes",
        ["env.id=TreasureHunt", "total_timesteps=65536", "rollout.processes=1"],
        [],
        "6 s, 400 kB",
    ),
    Case(
        f"{ENTITIES} acting entities, 5 choices, 6 features, 2,000 steps",
        [f"env.id={Path(__file__).resolve()}:Crowd", "total_timesteps=4", *SMALL],
        ["--episodes", "1", "--trust"],
        "120 s, 20 MB, 2 GB; 3 s, 150 ms, 20 steps/s, 400 MB",
    ),
]


LIVE = Case(
    f"live, {LIVE_ENTITIES} acting entities",
    [
        f"env.id={Path(__file__).resolve()}:Crowd",
        f'env.kwargs={{"entities": {LIVE_ENTITIES}}}',
        "total_timesteps=4",
        *SMALL,
    ],
    ["--port", "0", "--trust"],
    "50 ms more than environment and agent",
)


def train(case: Case, folder: Path) -> Path:
    """Train the agent of a case and return its run."""
    run = folder / "run"
    subprocess.run(
        [*ENN, "train", *case.train, "--checkpoint-dir", str(run)],
        check=True,
        stdout=subprocess.DEVNULL,
        cwd=folder,
    )
    return run


def measure_live(folder: Path) -> dict[str, Any] | None:
    """Measure the response time of a live page to choices; None without Chromium."""
    run, keys = train(LIVE, folder), ["j", "h"]
    with subprocess.Popen(
        [*ENN, "serve", str(run), *LIVE.watch], stdout=subprocess.PIPE, text=True
    ) as server:
        assert server.stdout is not None
        try:
            with chromium(offline=False) as tab:
                if tab is None:
                    return None
                tab.goto(server.stdout.readline().strip())
                tab.wait_for_selector("html[data-read]", timeout=60_000)
                for key in keys:
                    tab.keyboard.press(key)
                tab.wait_for_selector("#turn:not([hidden])", timeout=10_000)
                answered = tab.evaluate(_CHOOSE, CHOICES)
        finally:
            server.kill()

    # Environment and agent alone.
    agent, envs = read_saved_run(run).agent, EnvList(lambda: Crowd(LIVE_ENTITIES), 1)
    player, own_ms = AgentPlayer(agent, 0), []
    obs = envs.reset(envs.obs_space())
    with torch.inference_mode():
        for t in range(CHOICES):
            start = time.perf_counter()
            chosen = player.act(obs, EntityBatch.of(obs), t).chosen_on_host()
            obs = envs.act(chosen, envs.obs_space())
            own_ms.append(1000 * (time.perf_counter() - start))
    return {
        "case": LIVE.name,
        "answered_ms": np.percentile(answered, [50, 95]).tolist(),
        "own_ms": np.percentile(own_ms, [50, 95]).tolist(),
        "commit": short_revision(),
        "processor": processor(),
    }


def measure(case: Case, folder: Path) -> dict[str, Any]:
    """Train an agent, write its replay, and open the page."""
    run, page = train(case, folder), folder / "replay.html"
    start = time.perf_counter()
    watching = subprocess.Popen(
        [*ENN, "watch", str(run), "--out", str(page), *case.watch],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    _, status, used = os.wait4(watching.pid, 0)
    seconds = time.perf_counter() - start
    if status:
        raise RuntimeError(f"{case.name}: enn watch failed, status {status}")
    replay = read_replay(page)
    assert all(len(episode.obs) > 0 for episode in replay.episodes)
    return {
        "case": case.name,
        "seconds": seconds,
        "bytes": page.stat().st_size,
        "peak_mb": used.ru_maxrss / 1e3,
        "steps": sum(len(episode.obs) // replay.sides for episode in replay.episodes),
        "browser": in_browser(page, len(replay.episodes[0].obs) // replay.sides),
        "commit": short_revision(),
        "processor": processor(),
    }


@contextmanager
def chromium(offline: bool) -> Iterator[Any]:
    """Context manager of a tab of Chromium; None if Chromium is missing."""
    try:
        from playwright.sync_api import sync_playwright
    except ImportError:
        yield None
        return
    if CHROMIUM is None:
        yield None
        return
    with sync_playwright() as started:
        options = ["--no-sandbox", "--disable-gpu", "--enable-precise-memory-info"]
        browser = started.chromium.launch(executable_path=CHROMIUM, args=options)
        yield browser.new_context(offline=offline).new_page()
        browser.close()


def in_browser(page: Path, steps: int) -> dict[str, float] | None:
    """Open a page in Chromium and measure it; None if Chromium is missing."""
    with chromium(offline=True) as tab:
        if tab is None:
            return None
        start = time.perf_counter()
        tab.goto(f"file://{page}")
        tab.wait_for_selector("html[data-step]", timeout=120_000)
        first_s = time.perf_counter() - start
        tab.wait_for_selector("html[data-read]", timeout=120_000)
        jumps = np.random.default_rng(0).permutation(steps)[:JUMPS].tolist()
        milliseconds = tab.evaluate(_JUMP, jumps)
        tab.evaluate("location.hash = '#e=1&s=0'")
        tab.select_option("#speed", index=tab.eval_on_selector("#speed", "one => one.length - 1"))
        per_s = tab.evaluate(_PLAY, 1000 * PLAYED_S)
        heap = tab.evaluate("performance.memory.usedJSHeapSize")
    return {
        "first_picture_s": first_s,
        "step_ms_95": float(np.percentile(milliseconds, 95)),
        "steps_per_s": per_s,
        "heap_mb": heap / 1e6,
    }


_JUMP = """async (steps) => {
  const found = [];
  for (const step of steps) {
    const start = performance.now();
    location.hash = `#e=1&s=${step}`;
    while (document.documentElement.dataset.step !== String(step)) {
      await new Promise(requestAnimationFrame);
    }
    found.push(performance.now() - start);
  }
  return found;
}"""
"""Milliseconds until each step is drawn."""
_PLAY = """async (ms) => {
  let drawn = 0;
  const changed = new MutationObserver(() => drawn++);
  changed.observe(document.documentElement, { attributeFilter: ["data-step"] });
  const start = performance.now();
  document.getElementById("play").click();
  while (performance.now() - start < ms && document.documentElement.dataset.playing === "true") {
    await new Promise(requestAnimationFrame);
  }
  return (1000 * drawn) / (performance.now() - start);
}"""
"""Steps drawn per second while the page plays at its highest speed."""


_CHOOSE = """async (count) => {
  const found = [];
  while (found.length < count) {
    const before = document.documentElement.dataset.step;
    const start = performance.now();
    document.body.dispatchEvent(new KeyboardEvent("keydown", { key: "1", bubbles: true }));
    while (document.documentElement.dataset.step === before) {
      await new Promise((resolve) => setTimeout(resolve));
    }
    found.push(performance.now() - start);
  }
  return found;
}"""
"""Milliseconds from each choice until the next frame is displayed."""


def table(results: list[dict[str, Any]]) -> str:
    """Return the document with the results."""
    lines = [
        "# Watching",
        "",
        f"`python benchmarks/watching.py`, {os.cpu_count()} cores, Python "
        f"{platform.python_version()}. *Written* is the time of the command and *memory* its "
        "peak; *first picture*, *any step* (95% of jumps to any one) and *played* "
        "(steps that are drawn each second at the highest speed) are in Chromium. The page alone "
        f"has {PAGE.stat().st_size / 1e3:.0f} kB (at most 200).",
        "",
        f"| {' | '.join(COLUMNS)} |",
        f"|{' --- |' * len(COLUMNS)}",
    ]
    for case in CASES:
        for result in results:
            if result["case"] != case.name:
                continue
            browser_cells = ["-"] * 4
            if (browser := result["browser"]) is not None:
                browser_cells = [
                    f"{browser['first_picture_s']:.1f} s",
                    f"{browser['step_ms_95']:.0f} ms",
                    f"{browser['steps_per_s']:.0f} steps/s",
                    f"{browser['heap_mb']:.0f} MB",
                ]
            written = [
                f"{result['seconds']:.1f} s",
                f"{result['steps']:,}",
                f"{result['bytes'] / 1e6:.2f} MB",
                f"{result['peak_mb']:.0f} MB",
            ]
            cells = [case.name, case.to_reach, *written, *browser_cells]
            lines.append(f"| {' | '.join(cells)} |")
    for result in results:
        if result["case"] == LIVE.name:
            (half, most), (agent_ms, agent_most) = result["answered_ms"], result["own_ms"]
            lines += [
                "",
                f"{LIVE.name}, `enn serve` in Chromium: after a choice the next frame is shown "
                f"within {half:.0f} ms (median; 95%: {most:.0f} ms), including environment and "
                f"agent with {agent_ms:.0f} ms ({agent_most:.0f} ms). To reach: {LIVE.to_reach}.",
            ]
    on = {f"commit {result['commit']}, {result['processor']}" for result in results}
    return "\n".join([*lines, "", *(f"Measured on {each}." for each in sorted(on)), ""])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("cases", nargs="*", metavar="CASE", help="the first word of a case's name")
    parser.add_argument("--results", type=Path, default=ROOT / "benchmarks/results/watching.md")
    options = parser.parse_args()
    words = {case.name.split(",")[0].split()[0]: case for case in [*CASES, LIVE]}
    if unknown := [word for word in options.cases if word not in words]:
        parser.error(f"CASE: expected some of {', '.join(words)}; got {', '.join(unknown)}")
    runs_file, results = options.results.with_suffix(".jsonl"), {}
    if runs_file.exists():
        results = {
            result["case"]: result for result in map(json.loads, runs_file.read_text().splitlines())
        }
    for word in options.cases or words:
        with TemporaryDirectory() as folder:
            case = words[word]
            result = measure_live(Path(folder)) if case is LIVE else measure(case, Path(folder))
        if result is not None:
            results[case.name] = result
        runs_file.write_text("".join(json.dumps(result) + "\n" for result in results.values()))
    options.results.write_text(table([*results.values()]))
    print(options.results.read_text())


if __name__ == "__main__":
    main()
