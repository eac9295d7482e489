"""Runs with expected notices, and the sums of their windows in `notice_sums.json`.

    python -m tests.enn_trainer.callbacks.notice_runs              # records missing runs
    python -m tests.enn_trainer.callbacks.notice_runs --replace    # records all runs

The runs take minutes, notices of recorded sums no time. Record a run again when its configuration
or the sums of windows change.
"""

import argparse
import contextlib
import io
import json
import sys
import tempfile
from collections.abc import Callable
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple

import pytest

from enn_trainer import Callback, StateManager, train
from enn_trainer.callbacks import learning_diagnostics
from enn_trainer.callbacks.learning_diagnostics import NOTICES, LearningDiagnostics
from enn_trainer.callbacks.learning_sums import Sums
from enn_trainer.config import TrainConfig
from enn_trainer.runtime.spans import Spans
from entity_env.examples import ENV_REGISTRY

ROOT = Path(__file__).parents[3]
RECORDED = ROOT / "tests/golden/notice_sums.json"
SHARES = {
    **dict.fromkeys(
        ("multi_armed_bandit", "not_hotdog", "count", "floor_is_lava", "rock_paper_scissors"), 1.0
    ),
    **{"treasure_hunt": 1.0, "duel": 0.5, "xor": 0.4, "move_to_origin": 0.2, "minefield": 0.05},
    **{"minefield-relattn1": 0.05, "minefield-relattn2": 0.05, "cherry_pick": 0.03},
    **{"multisnake_1snakes11len": 0.05, "pick_matching_balls": 0.014},
    **{"duel_pool": 0.03, "kuhn_poker": 0.03},
    **{"shells": 0.03, "hidden_arm": 0.03, "pairs": 0.004},
    **{"tugs": 0.03, "medics": 0.1, "locks": 0.3},
    **{"locks_lessons": 0.3, "locks_ramp": 0.3, "minefield_varied": 0.05},
}
"""Share of `total_timesteps` of each configuration for which it is trained here."""
ELSEWHERE = {"foraging_8x8", "foraging_10x10", "multisnake_2snakes11len", "pendulum", "tic_tac_toe"}
"""Configurations of worlds of other packages, and for a GPU."""
CORRIDORS = {
    "a collapse to few long episodes": (
        *("total_timesteps=81920", "optim.bs=1024", "ppo.ent_coef=0"),
    ),
    **{
        f"a first success that comes late, seed {seed}": (
            *("total_timesteps=40960", "optim.bs=256", f"seed={seed}"),
        )
        for seed in (1, 2)
    },
}
"""Settings of runs in `Corridor`, besides the defaults.

The return of the collapse, 0, is the best one that was seen: to go has only been punished. In the
runs with late successes every episode ended with -1 in the first fifth; in the end nearly all end
with 1.
"""
DIGITS = 7


class Run(NamedTuple):
    """World and settings of a run."""

    env: Callable[[], Any]
    manager: StateManager


def corridor() -> Callable[[], Any]:
    """Return the world of `CORRIDORS`."""
    folder = str(ROOT / "benchmarks")
    sys.path.insert(0, folder)
    try:
        from symptom_worlds import Corridor  # type: ignore[import-not-found]
    finally:
        sys.path.remove(folder)
    return partial(Corridor, cells=8)


def run_of(name: str, folder: Path | None = None) -> Run:
    """Return a run that is to be trained, by the name of a configuration or of `CORRIDORS`."""
    overrides = [f"data_dir={folder}"]
    if name in CORRIDORS:
        overrides += ["rollout.processes=1", *CORRIDORS[name]]
        return Run(corridor(), StateManager(overrides=overrides))
    manager = StateManager(init_path=ROOT / f"configs/{name}.ron", overrides=overrides)
    config = manager.config
    config.eval = None
    config.total_timesteps = int(SHARES[name] * config.total_timesteps)
    return Run(ENV_REGISTRY[config.env.id], manager)


class Windows(Callback):
    """Keeps the sums of all windows of a run, and the constants after each of them."""

    def __init__(self) -> None:
        self.windows: list[tuple[Sums, Sums]] = []
        self._last: Sums | None = None

    def on_update_end(self, trainer: Any, metrics: dict[str, float]) -> None:
        """Keep a window that is complete."""
        self._keep(trainer.state.memory[NOTICES])

    def on_train_end(self, trainer: Any, error: BaseException | None) -> None:
        """Keep a window that the last update completed."""
        self._keep(trainer.state.memory[NOTICES])

    def _keep(self, memory: dict[str, Any]) -> None:
        if memory["windows"] and memory["windows"][-1] is not self._last:
            self._last = memory["windows"][-1]
            self.windows.append((self._last, memory["constants"]))


def record(name: str) -> dict[str, Any]:
    """Train a run; return the sums of its windows and its notices, with the step of each."""
    callback, output = Windows(), []
    with tempfile.TemporaryDirectory() as folder, contextlib.redirect_stdout(io.StringIO()):
        env, manager = run_of(name, Path(folder))
        train(manager, env, callbacks=[callback])
        output = manager.state.memory[NOTICES]["told"]
    return {
        "total_timesteps": manager.config.total_timesteps,
        "told": output,
        "windows": [[_rounded(sums) for sums in pair] for pair in callback.windows],
    }


def _rounded(sums: Sums) -> Sums:
    def short(x: float) -> float:
        x = float(f"{x:.{DIGITS}g}")
        return int(x) if x.is_integer() else x

    return {kind: {name: short(x) for name, x in part.items()} for kind, part in sums.items()}


def replay(recorded: dict[str, Any], env: Any, config: TrainConfig) -> list[str]:
    """Return the notices of recorded sums, from the callback of a run."""
    output: list[str] = []
    spaces = {"obs_space": env.obs_space(), "action_space": env.action_space()}
    state: Any = SimpleNamespace(step=0, memory={}, part=lambda kind: None, **spaces)
    trainer: Any = SimpleNamespace(state=state, config=config)
    sides = getattr(env, "num_sides", 1)
    callback = LearningDiagnostics(
        state, lambda step, key, *_: output.append(key), lambda line: None, Spans(), sides
    )
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(learning_diagnostics, "run_sums", lambda rollout: rollout.sums)
        patch.setattr(learning_diagnostics, "is_examined", lambda step, num_frames: False)
        for sums, constants in recorded["windows"]:
            frames = sums["run"]["frames"]
            state.step += frames
            state.memory[NOTICES]["constants"] = constants
            rollout: Any = SimpleNamespace(num_frames=frames, sums=sums)
            callback.on_rollout_end(trainer, rollout)
            callback.on_update_end(trainer, {})
    return output


def main() -> None:
    """Record runs."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", help="of runs; all by default")
    parser.add_argument("--replace", action="store_true", help="those that are recorded as well")
    asked = parser.parse_args()
    recorded = json.loads(RECORDED.read_text()) if RECORDED.exists() else {}
    for name in asked.names or [*SHARES, *CORRIDORS]:
        if asked.replace or name not in recorded:
            print(name, flush=True)
            recorded[name] = record(name)
            lines = (f"{json.dumps(one)}: {json.dumps(recorded[one])}" for one in sorted(recorded))
            RECORDED.write_text("{\n" + ",\n".join(lines) + "\n}\n")


if __name__ == "__main__":
    main()
