"""A pool in worlds of every kind: all actions, teams, cooperation, and networks of one's own."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from enn_trainer import CheckpointError, ConfigError, StateManager, Trainer, train
from enn_trainer.checkpoints.weights import tensors_of
from enn_trainer.run.tournament import play_league
from enn_trainer.selfplay.league import League
from enn_trainer.selfplay.seating import PoolLineups
from entity_env import Observation
from entity_env.adapters.from_pettingzoo import FromPettingZoo
from entity_env.adapters.mapping import FieldMap, Select
from entity_env.examples import Duel
from rogue_net import RogueNet, RogueNetConfig
from tests.enn_trainer.experience.meadow_bots import Grazes, Remembers
from tests.enn_trainer.resuming import assert_same
from tests.enn_trainer.selfplay.pastures import Pastures
from tests.entity_env.adapters.worlds import Hunt, maker

SMALL = [
    *("rollout.num_envs=16", "rollout.steps=6", "rollout.processes=1", "optim.bs=24"),
    *("net.d_model=8", "net.n_layer=1", "optim.update_epochs=1", "cuda=false"),
    *("optim.anneal_lr=false", "ppo.anneal_entropy=false"),
    *("selfplay.share=0.5", "selfplay.snapshot_every=72", "selfplay.in_play=3"),
]
FRAMES = 12 * 6
"""Of the agent in an update."""


@pytest.fixture(autouse=True)
def _runs_elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def run(folder: Path | None, env: Any, updates: int, *settings: str, **more: Any) -> StateManager:
    total = f"total_timesteps={updates * FRAMES}"
    manager = StateManager(overrides=[*SMALL, total, *settings], checkpoint_dir=folder)
    train(manager, env, **more)
    return manager


def games_of(manager: StateManager) -> dict[str, float]:
    league = manager.state.parts["league"]
    assert isinstance(league, League)
    return {member.name: member.games for member in league.members}


@pytest.mark.slow
@pytest.mark.parametrize("processes", [1, 2])
def test_bots_and_members_play_all_action_types_and_resume_bitwise(
    tmp_path: Path, processes: int
) -> None:
    """Bots with states too, in running games; and processes change nothing."""
    bots = ["tests.enn_trainer.experience.meadow_bots:" + b for b in ("Grazes", "Remembers")]
    settings = [f'selfplay.opponents=["{bots[0]}", "{bots[1]}", "random"]', "selfplay.in_play=8"]
    straight = run(tmp_path / "one", Pastures, 6, *settings)
    apart = f"rollout.processes={processes}"
    run(tmp_path / "two", Pastures, 3, *settings, apart)
    resumed = run(tmp_path / "two", Pastures, 6, *settings, apart)
    assert_same(straight.state, resumed.state)
    for part in ("league", "players"):
        one, two = (manager.state.parts[part].state_dict() for manager in (straight, resumed))
        assert repr(one) == repr(two)
    games = games_of(straight)
    assert {"Grazes", "Remembers", "random", "step-0", "step-72"} <= games.keys()
    assert all(games[name] > 0 for name in ("Grazes", "Remembers", "random", "step-0"))


def test_a_bot_plays_against_itself() -> None:
    played = play_league([Grazes, Remembers, Grazes], Pastures, games=8)
    assert [*played.names] == ["Grazes", "Remembers", "Grazes-2"]
    assert np.isfinite(played.payoff.mean[~np.eye(3, dtype=bool)]).all()


@pytest.mark.slow
def test_teams_play_against_the_pool() -> None:
    lives = {"wolf_0": 2, "wolf_1": 5, "deer_0": 3, "deer_1": 5}
    teams = {"wolves": ["wolf_0", "wolf_1"], "deer": ["deer_0", "deer_1"]}
    pick = FieldMap(actions={"pick": Select("prey", "seen")})
    manager = run(None, FromPettingZoo.of(maker(Hunt, lives), pick, teams), 4)
    assert manager.state.step == 4 * FRAMES
    # A match takes 5 of 24 steps, and the pool has 4 of 8 matches.
    assert sum(games_of(manager).values()) == 4 * (4 * 6 // 5)


class Together(Duel):
    """Both sides get what the first one gets."""

    def act(self, actions: Any) -> list[Observation]:
        frames = super().act(actions)
        for frame in frames:
            frame.reward = frames[0].reward
        return frames


@pytest.mark.slow
def test_cooperating_sides_are_not_compared() -> None:
    settings = ['selfplay.result=""', "selfplay.choose=uniform"]
    manager = StateManager(overrides=[*SMALL, *settings, "total_timesteps=10000"])
    with Trainer(manager, Together) as trainer:
        rows = [trainer.step() for _ in range(8)]
    assert sum(row["selfplay/games"] for row in rows) > 0
    assert not any("selfplay/score" in row or "selfplay/draws" in row for row in rows)
    assert {row["selfplay/elo"] for row in rows} == {1200.0}
    assert {*games_of(manager).values()} == {0}


def test_score_based_matchmaking_of_cooperating_sides_raises() -> None:
    asked: list[list[float]] = []

    def prefer_strong(pool: Any, step: int) -> Any:
        asked.append([member.score for member in pool])
        return np.ones(len(pool))

    settings = [*SMALL, 'selfplay.result=""', "total_timesteps=10000"]
    with pytest.raises(ConfigError, match=r"^selfplay\.choose: expected 'uniform' or 'latest' .*$"):
        StateManager(overrides=settings).config  # noqa: B018 (read, and so checked)
    manager = StateManager(overrides=[*settings, "selfplay.choose=uniform"])
    with Trainer(manager, Together, matchmaker=prefer_strong) as trainer:
        for _ in range(4):
            trainer.step()
    assert {score for scores in asked for score in scores} == {0.5}


class OwnNet(RogueNet):
    """A network that is not the one of the settings."""


def own_net(d_model: int = 4, **more: Any) -> OwnNet:
    """Return a network with weights that are always the same, and a layer of its own."""
    torch.manual_seed(0)
    config = RogueNetConfig(d_model=d_model, n_head=1, n_layer=1)
    env = Duel()
    net = OwnNet(config, env.obs_space(), env.action_space(), {"value": 1})
    net.extra = torch.nn.Linear(d_model, 1)
    return net


@pytest.mark.slow
@pytest.mark.parametrize("form", ["", "@{step}", "@opponent:step-0", "@opponents"])
def test_saves_of_a_custom_network_can_be_opponents(tmp_path: Path, form: str) -> None:
    rival = run(tmp_path / "rival", Duel, 2, agent=own_net())
    entry = f"{tmp_path}/rival{form.format(step=rival.state.step)}"
    named = f'selfplay.opponents=["{entry}"]'
    manager = run(tmp_path / "own", Duel, 2, named, agent=own_net())
    league = manager.state.parts["league"]
    assert isinstance(league, League)
    found = [member for member in league.members if member.origin == entry]
    assert [member.kind for member in found] == ["network"] * (3 if form == "@opponents" else 1)
    weights = [tensors_of("", member.weights) for member in found]
    last = rival.state.agent.state_dict()
    if not form:
        assert all(torch.equal(last[name], tensor) for name, tensor in weights[0].items())
    # Without a network like it there is one line.
    for others, expected in (
        ({}, r"^selfplay\.opponents.*custom network"),
        ({"agent": own_net(8)}, r"^selfplay\.opponents.* do not fit the network"),
    ):
        with pytest.raises((CheckpointError, ConfigError), match=expected) as raised:
            run(None, Duel, 2, named, **others)
        assert "\n" not in str(raised.value)


@pytest.mark.slow
def test_custom_network_plays_its_snapshots_and_resumes(
    tmp_path: Path,
) -> None:
    network = own_net
    straight = run(tmp_path / "one", Duel, 6, agent=network())
    run(tmp_path / "two", Duel, 3, agent=network())
    resumed = run(tmp_path / "two", Duel, 6, agent=network())
    for name, tensor in straight.state.agent.state_dict().items():
        assert tensor.equal(resumed.state.agent.state_dict()[name]), name
    games = games_of(resumed)
    assert games == games_of(straight)
    assert games["step-0"] > 0


@pytest.mark.slow
def test_evicted_member_finishes_its_games() -> None:
    settings = ["selfplay.capacity=1", "selfplay.choose=latest", "rollout.steps=2", "optim.bs=12"]
    manager = StateManager(overrides=[*SMALL, *settings, "selfplay.snapshot_every=24"])
    left = 0
    with Trainer(manager, Duel) as trainer:
        for _ in range(12):
            trainer.step()
            assert trainer.league is not None
            seating = manager.state.parts["players"]
            assert isinstance(seating, PoolLineups)
            pool = {member.name for member in trainer.league.pool}
            known = {member.name for member in trainer.league.members}
            assert len(pool) == 1
            assert seating.playing_members() <= known
            left += len(seating.playing_members() - pool)
    assert left > 0
