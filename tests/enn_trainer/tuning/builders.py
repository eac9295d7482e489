"""Searches with a stand-in for `enn train`."""

import sys
from pathlib import Path
from typing import Any

import pytest

from enn_trainer.config import TrainConfig
from enn_trainer.config.load import dump_config, load_config
from enn_trainer.tuning import trials
from enn_trainer.tuning.driver import Driver
from enn_trainer.tuning.search import open_search
from enn_trainer.tuning.study import Plan, Study, read_plan

STUB = (sys.executable, "-S", "-E", str(Path(__file__).with_name("stub_train.py")))
METRIC = "eval/episodic_reward.mean max"
X = {"ppo.ent_coef": "uniform 0 5"}
SETTINGS = ("env.id=Xor", "eval.episodes=8", "total_timesteps=400", "name=tune")


def toy_plan(*settings: str, ranges: dict[str, str] = X, **options: Any) -> Plan:
    """Return the plan of a search of x in -(x - 2)^2, without pruning."""
    config = dump_config(load_config(TrainConfig, None, [*SETTINGS, *settings]))
    return Plan(config, ranges, **{"metric": METRIC, "prune": "none", **options})


def use_stand_in(patch: pytest.MonkeyPatch) -> None:
    """Train with the stand-in, and look often."""
    patch.setattr(trials, "ENN_TRAIN", STUB)
    patch.setattr(trials, "POLL_S", 0.01)


def toy_search(folder: Path, plan: Plan | None = None, **limits: Any) -> Study:
    """Run a search with the stand-in to its end."""
    is_new = not folder.exists()
    with pytest.MonkeyPatch.context() as patch:
        use_stand_in(patch)
        study, new_limits = open_search(
            folder, (plan or toy_plan()) if is_new else plan, {"confirm": 0, **limits}
        )
        assert Driver(study, new_limits).run() == 0
    return study


def reopened(folder: Path) -> Study:
    """Return the study of a folder as another process reads it."""
    plan, _, _ = read_plan(folder)
    return Study(folder, plan)


def content(study: Study) -> list[tuple[Any, ...]]:
    """Return all that a search is, without times."""
    return [
        (t.number, t.state, t.params, t.values, t.intermediate_values, t.user_attrs["overrides"])
        for t in study.optuna.get_trials()
    ]
