"""Agents learn: the fast rows of `benchmarks/learning.py`, one seed each; a negative control."""

import json
import xml.etree.ElementTree as ET
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from enn_trainer import StateManager, train
from enn_trainer.config import TrainConfig
from enn_trainer.evaluation.eval_metrics import EpisodeStatistics
from enn_trainer.evaluation.opponents import RandomAgent
from enn_trainer.experience.collector import Collector, play
from enn_trainer.experience.players import AgentPlayer
from enn_trainer.experience.seated_players import AGENT, SeatedPlayers, against
from entity_env import AddMetricsWrapper, EnvList, Observation
from entity_env.examples import ENV_REGISTRY, Duel
from tests.entity_env.builders import play as play_at_random
from tests.entity_env.worlds import Walk

CONFIGS = Path(__file__).parents[2] / "configs"
FEW = 320
"""Frames in which Count is learnt; its configuration allows 2,000."""


def trained(tmp_path: Path, name: str, *overrides: str) -> tuple[StateManager, float]:
    manager = StateManager(
        init_path=CONFIGS / f"{name}.ron", overrides=[f"data_dir={tmp_path}", *overrides]
    )
    manager.config.eval = None
    result = train(manager, ENV_REGISTRY[manager.config.env.id])
    return manager, float(result)


@pytest.mark.slow
@pytest.mark.parametrize(("name", "frames"), [("not_hotdog", 4096), ("count", FEW)])
def test_published_result_is_reached_early(tmp_path: Path, name: str, frames: int) -> None:
    assert trained(tmp_path, name, f"total_timesteps={frames}")[1] >= 0.99


@pytest.mark.soak
@pytest.mark.parametrize("name", ["multi_armed_bandit", "not_hotdog", "count"])
def test_published_result_is_reached(tmp_path: Path, name: str) -> None:
    assert trained(tmp_path, name)[1] >= 0.99


@pytest.mark.slow
@pytest.mark.parametrize(
    "options",
    [
        "ratio=frame weight_by=frame dual_clip=3 value_loss=huber vf_clip_coef=1",
        "value_loss=hl_gauss clip_vloss=false value_bins.low=-1 value_bins.high=4"
        " reward_scaling=true",
        'ent_targets={"count":0.05}',
    ],
)
def test_options_of_the_loss_learn_as_well(tmp_path: Path, options: str) -> None:
    settings = [f"ppo.{option}" for option in options.split()]
    assert trained(tmp_path, "count", f"total_timesteps={FEW}", *settings)[1] >= 0.99


@pytest.mark.slow
def test_nothing_is_learnt_without_a_learning_rate(tmp_path: Path) -> None:
    assert trained(tmp_path, "count", f"total_timesteps={FEW}", "optim.lr=0")[1] < 0.95


@pytest.mark.slow
def test_self_play_beats_random_play(tmp_path: Path) -> None:
    small = ("net.d_model=16", "net.n_layer=1", "optim.bs=512", "optim.lr=0.003")
    settings = ("total_timesteps=12000", "optim.anneal_lr=false", *small)
    manager, _ = trained(tmp_path, "duel", *settings)
    everywhere = np.arange(128)
    agents = {AGENT: manager.state.agent, "random": RandomAgent(Duel().action_space())}
    both = {name: AgentPlayer(agent, seed=1) for name, agent in agents.items()}
    players = SeatedPlayers(both, against("random", 2), 2)
    envs = AddMetricsWrapper(EnvList(Duel, 128), everywhere % 2 == 0)
    metrics = play(Collector(envs, players), Duel().obs_space(), 60, seed=1)
    assert metrics["win"].count > 200
    assert metrics["win"].mean >= 0.8


def test_every_environment_counts_equally_many_episodes(benchmark: Any) -> None:
    """Of all that ends within some steps most are short episodes, which are not the usual ones."""
    first = EpisodeStatistics(EnvList(Walk, 4), np.full(4, 3))
    frames = play_at_random(EnvList(Walk, 4), 20)[1:]
    play_at_random(first, 20)
    assert first.counts.is_done()
    returns = []
    for i in range(4):
        rewards = np.array([obs.reward[i] for obs in frames], dtype=np.float64)
        ends = np.flatnonzero([obs.done[i] for obs in frames])[:3]
        returns += [part.sum() for part in np.split(rewards, ends + 1)[:3]]
    found = np.sort(benchmark("learning_measure").episode_means(first, "episodic_reward"))
    np.testing.assert_allclose(found, np.sort(returns), rtol=1e-6)


class Endless(Walk):
    """A walk that pays 1 in each step; some walks never end."""

    def observe(self, reward: float) -> Observation:
        if self.clock == 0 and self.rng.random() < 0.5:
            self.last = 10**9
        obs = super().observe(reward)
        obs.reward = 1.0
        return obs


def test_endless_episode_counts_with_its_truncated_return(
    benchmark: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    learning = benchmark("learning_measure")
    monkeypatch.setattr(learning, "STEPS", 50)
    agent = RandomAgent(Endless().action_space())
    found = learning.measure(EnvList(Endless, 16), agent, None, seed=1, episodes=16)
    assert len(found) == 16
    assert 0 < np.sum(found == 50) < 16
    assert np.all(found <= 50)


def test_measure_counts_only_the_agent(benchmark: Any) -> None:
    agent = RandomAgent(Duel().action_space())
    args = EnvList(Duel, 8), agent, agent
    wins = benchmark("learning_measure").measure(*args, seed=1, episodes=10, metric="win")
    assert len(wins) == 12  # three matches each in four environments
    assert set(wins) == {0.0, 1.0}


def test_rows_have_unique_names_and_valid_settings(benchmark: Any) -> None:
    """A long run must not end in an override that does not exist, nor be mistaken for another."""
    rows = benchmark("learning").ROWS
    names = [row.name for row in rows]
    assert len(set(names)) == len(names)
    for row in rows:
        path = CONFIGS / f"{row.config}.ron"
        assert (
            StateManager(init_path=path, overrides=row.overrides).config.version()
            == TrainConfig.version()
        )
    kept = (CONFIGS.parent / "benchmarks/results/learning.jsonl").read_text().splitlines()
    done = [(result["row"], result["init"], result["seed"]) for result in map(json.loads, kept)]
    assert len(set(done)) == len(done)
    assert {name for name, _, _ in done} <= set(names)


def test_control_that_learns_is_reported(benchmark: Any) -> None:
    learning = benchmark("learning")
    row = learning.Row("a", "count", 0.3)
    assert not learning.misses(row, 0.9)
    assert learning.misses(row, 0.2)
    assert learning.misses(row._replace(control=True), 0.9)
    assert not learning.misses(row._replace(control=True), 0.2)


def test_forager_observes_itself_as_a_separate_type(benchmark: Any) -> None:
    world = benchmark("foraging").foraging("Foraging-8x8-3p-2f-v3")()
    world.seed(3)
    sides = world.reset()
    world.close()
    assert world.num_sides == len(sides) == 3
    own = [np.asarray(side.features["me"]) for side in sides]
    for i, side in enumerate(sides):
        others = np.concatenate([own[j] for j in range(3) if j != i])
        np.testing.assert_array_equal(side.features["other"], others)
        np.testing.assert_array_equal(side.features["food"], sides[0].features["food"])
        assert list(side.actions) == ["do"]


def test_forager_masks_actions_without_effect(benchmark: Any) -> None:
    """Masks by the rules: no step off the board or onto food, no loading without adjacent food."""
    world = benchmark("foraging").foraging("Foraging-8x8-2p-3f-v3")
    loads = 0
    for obs in play_at_random(EnvList(world, 8), 60):
        for i in range(8):
            (row, column, _), food = obs.features["me"][i].values[0], obs.features["food"][i].values
            offered = obs.action_masks["do"].mask[i].values[0]  # NONE, N, S, W, E, LOAD
            around = [(row - 1, column), (row + 1, column), (row, column - 1), (row, column + 1)]
            beside = [any((place == spot).all() for place in food[:, :2]) for spot in around]
            inside = [0 <= r < 8 and 0 <= c < 8 for r, c in around]
            moves = [there and not taken for there, taken in zip(inside, beside, strict=True)]
            assert offered.tolist() == [True, *moves, any(beside)]
            loads += any(beside)
    assert loads > 10


def test_forager_reset_leaves_no_state(benchmark: Any) -> None:
    """The environment is reused, although players never start in the last position of a player."""
    world = benchmark("foraging").foraging("Foraging-5x5-2p-1f-v3")
    used = world()
    for seed in range(20):
        made_anew = world()
        for one in (used, made_anew):
            one.seed(seed)
        for shown, expected in zip(used.reset(), made_anew.reset(), strict=True):
            for name, block in expected.features.items():
                np.testing.assert_array_equal(shown.features[name], block)
        made_anew.close()
    used.close()


def test_picture_has_a_line_for_each_seed_and_bar(benchmark: Any) -> None:
    curves = benchmark("learning_curves")
    line = curves.Line("it", [[[1, 0.5], [2, 1.0]], [[1, 0.0], [2, -1.0]]], bar=0.9)
    root = ET.fromstring(curves.draw({"one": [line], "two": [line, line]}))
    assert len(root.findall(".//{*}polyline")) == 3 * 3


@pytest.mark.slow
def test_curve_matches_the_run(benchmark: Any, tmp_path: Path) -> None:
    _, last = trained(tmp_path, "count", f"total_timesteps={FEW}")
    curve = benchmark("learning_curves").read_curve(tmp_path, scale=1.0, size=2)
    assert [frames for frames, _ in curve] == list(range(32, FEW + 1, 32))  # two updates a point
    assert curve[-1][1] == pytest.approx(last, abs=0.2)
    assert curve[0][1] < curve[-1][1]
