"""Processor time of the decisions for many sessions, with and without memory.

    python benchmarks/sessions.py [--sessions 64] [--repeats 60]

The sessions act in a new random order in each call of `act_batch`, on recorded frames of their
games. Agents alternate call by call in one process with one thread; a figure is the median
processor time of a call. *Floor* is the time that remains with memory if to find and store the
recurrent states cost nothing: the time without memory, plus the time that memory adds to the
forward pass of the network. Results are in `results/sessions.md`.
"""

import argparse
import random
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from measured_on import processor, short_revision
from trained import table

from enn_trainer import RogueNetAgent
from entity_env import Environment, Observation
from entity_env.examples import Pairs, Shells
from rogue_net import RogueNet, RogueNetConfig
from rogue_net.config import MemoryConfig

RESULTS = Path(__file__).parent / "results/sessions.md"
GAMES: Sequence[type[Environment]] = (Shells, Pairs)
NETWORKS: Sequence[Mapping[str, int]] = (
    {"d_model": 32, "n_layer": 1},
    {"d_model": 32, "n_layer": 2},
    {"d_model": 64, "n_layer": 2},
    {"d_model": 128, "n_layer": 4, "n_head": 4},
)
NUM_STEPS = 12
"""Number of recorded frames of each session."""
AT_MOST = 1.2
"""Maximal ratio of the time with memory to that without."""


class TimedNetwork(RogueNet):
    """Network that adds up the processor time of its forward passes.

    Attributes:
        seconds: the sum.
    """

    seconds = 0.0

    def forward(self, *args: Any, **options: Any) -> Any:
        """Run the network."""
        start = time.process_time()
        try:
            return super().forward(*args, **options)
        finally:
            self.seconds += time.process_time() - start


def make_agent(game: Environment, memory: str, sizes: Mapping[str, int]) -> RogueNetAgent:
    """Create an agent with random weights; `memory` is as in `MemoryConfig.of`, or ""."""
    torch.manual_seed(0)
    config = RogueNetConfig(**sizes, memory=MemoryConfig(of=memory) if memory else None)  # type: ignore[arg-type]
    spaces = game.obs_space(), game.action_space()
    return RogueNetAgent(TimedNetwork(config, *spaces, {"value": 1}))


def recorded_frames(kind: type[Environment], sessions: int) -> list[list[Observation]]:
    """Play a game in each session with random actions, and return the frames of each step."""
    games = [kind() for _ in range(sessions)]
    for seed, game in enumerate(games):
        game.seed(seed)
    frames = [[game.reset() for game in games]]
    agent = make_agent(games[0], "", NETWORKS[0])
    while len(frames) < NUM_STEPS:
        acts = agent.act_batch(frames[-1])
        frames.append(
            [
                game.reset() if obs.done else game.act(act.actions)
                for game, obs, act in zip(games, frames[-1], acts, strict=True)
            ]
        )
    return frames


def measure(
    kind: type[Environment], sizes: Mapping[str, int], sessions: int, repeats: int
) -> dict[str, tuple[float, float]]:
    """Return the median seconds of a call and of its forward pass by agent.

    Args:
        kind: the game.
        sizes: of the networks.
        sessions: number of sessions in a call.
        repeats: number of calls of each agent.
    """
    frames, keys = recorded_frames(kind, sessions), [f"session-{i}" for i in range(sessions)]
    variants = {"": "", "entity": "entity", "frame": "frame", "both": "both", "positions": "both"}
    agents = {name: make_agent(kind(), memory, sizes) for name, memory in variants.items()}
    deeper = {**sizes, "n_layer": sizes["n_layer"] + 1}
    agents["one block more"] = make_agent(kind(), "", deeper)
    times: dict[str, list[tuple[float, float]]] = {name: [] for name in agents}
    shuffled = random.Random(0)
    for repeat in range(repeats + 5):
        order = shuffled.sample(range(sessions), sessions)
        frame = frames[repeat % NUM_STEPS]
        for name, agent in agents.items():
            is_ordered = name == "positions"
            observations = frame if is_ordered else [frame[i] for i in order]
            before, start = agent.agent.seconds, time.process_time()
            agent.act_batch(observations, None if is_ordered else [keys[i] for i in order])
            times[name].append((time.process_time() - start, agent.agent.seconds - before))
    return {name: tuple(np.median(of_agent[5:], axis=0)) for name, of_agent in times.items()}


def rows_of(sessions: int, repeats: int) -> list[list[str]]:
    """Measure all games and networks, and return the rows of the table."""
    head = ["game", "network", "no memory, ms", "one block more"]
    head += [f"{name}{of}" for of in ("entity", "frame", "both") for name in ("", "floor ")]
    rows = [[*head, "both, by position"]]
    for kind in GAMES:
        for sizes in NETWORKS:
            seconds = measure(kind, sizes, sessions, repeats)
            base, forward = seconds[""]
            cells = [f"{1000 * base:.2f}", f"{seconds['one block more'][0] / base:.2f}"]
            for of in ("entity", "frame", "both"):
                total, with_memory = seconds[of]
                cells += [f"{total / base:.2f}", f"{(base + with_memory - forward) / base:.2f}"]
            cells.append(f"{seconds['positions'][0] / base:.2f}")
            name = ", ".join(f"{key} {value}" for key, value in sizes.items())
            rows.append([kind.__name__, name, *cells])
            print(*rows[-1], sep="\t", flush=True)
    return rows


def relative_to_one(sessions: int, repeats: int) -> float:
    """Return the time of a call for all sessions of Shells relative to one for a single session."""
    many, single = (measure(Shells, NETWORKS[1], n, repeats)["both"][0] for n in (sessions, 1))
    return many / single


def main() -> None:
    """Measure, and write the results."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--sessions", type=int, default=64)
    parser.add_argument("--repeats", type=int, default=60)
    options = parser.parse_args()
    torch.set_num_threads(1)
    rows = rows_of(options.sessions, options.repeats)
    ratio = relative_to_one(options.sessions, options.repeats)
    lines = [
        "# Sessions",
        "",
        f"`python benchmarks/sessions.py` at {short_revision()}: {options.sessions} sessions in "
        f"random order, {processor()}, one thread, median processor time of {options.repeats} "
        "calls. Figures are the time of a call relative to the agent without memory (to reach: at "
        f"most {AT_MOST}).",
        "",
        *table(rows),
        "",
        f"A call for {options.sessions} sessions of Shells with memory of both takes {ratio:.1f} "
        "times as long as one for a single session.",
        "",
    ]
    RESULTS.write_text("\n".join(lines))


if __name__ == "__main__":
    main()
