"""A pool in a match with numbers and chains: networks, bots and random players, with recordings."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from enn_trainer import ConfigError, StateManager, clone, train
from enn_trainer.checkpoints.state import init_train_state
from enn_trainer.evaluation.opponents import RandomAgent
from enn_trainer.experience.bot_player import BotPlayer
from enn_trainer.experience.players import AgentPlayer, Decisions
from enn_trainer.run.tournament import play_league
from entity_env import EnvList
from entity_env.recording.read_recording import Recording
from entity_env.spaces import Spaces
from rogue_net.actions.parts import joint
from rogue_net.ragged import EntityBatch
from tests.enn_trainer.chains_match import Brawler, Skirmish
from tests.enn_trainer.demonstrated import config
from tests.enn_trainer.resuming import assert_same
from tests.enn_trainer.selfplay.joust import members

SMALL = [
    *("rollout.num_envs=8", "rollout.steps=4", "rollout.processes=1", "optim.bs=12"),
    *("net.d_model=8", "net.n_layer=1", "optim.update_epochs=1", "cuda=false"),
    *("optim.anneal_lr=false", "ppo.anneal_entropy=false", "selfplay.share=0.5"),
    *("selfplay.snapshot_every=24", "selfplay.in_play=8", "checkpoint.every_seconds=0"),
]
BOT = "tests.enn_trainer.chains_match:Brawler"
OPPONENTS = f'selfplay.opponents=["{BOT}", "random"]'
CAPTURE = ["capture_samples=pool.rec", "capture_logits=true"]


def run(folder: Path, updates: int, *settings: str) -> StateManager:
    total = f"total_timesteps={updates * 24}"
    every = [*SMALL, OPPONENTS, *CAPTURE, total, *settings]
    manager = StateManager(overrides=every, checkpoint_dir=folder)
    train(manager, Skirmish)
    return manager


@pytest.fixture(scope="module")
def pool(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("pool") / "run"
    run(folder, 4)
    return folder


@pytest.mark.slow
def test_run_against_all_kinds_of_members_resumes_bitwise(pool: Path, tmp_path: Path) -> None:
    straight = StateManager(checkpoint_dir=pool).state
    run(tmp_path / "run", 2)
    resumed = run(tmp_path / "run", 4, "rollout.processes=2").state
    assert_same(straight, resumed)
    games = {name: member.games for name, member in members(resumed).items()}
    assert all(games[name] > 0 for name in ("Brawler", "random", "step-0"))
    one, other = ((one / "pool.rec").read_bytes() for one in (pool, tmp_path / "run"))
    assert one[-1000:] == other[-1000:]


@pytest.mark.slow
def test_recurrent_selfplay_run_resumes_bitwise(tmp_path: Path) -> None:
    memory = 'net.memory=(of: "both", inputs: ["action", "reward"])'
    more = (memory, "optim.bs=12", "ppo.seq_len=2")
    straight = run(tmp_path / "one", 4, *more).state
    run(tmp_path / "two", 2, *more)
    assert_same(straight, run(tmp_path / "two", 4, *more).state)


@pytest.mark.slow
def test_all_players_are_recorded_with_their_probabilities(pool: Path) -> None:
    steps = [*Recording.open(pool / "pool.rec").steps()]
    everything: dict[str, list[Any]] = {name: [] for name in ("", "Brawler", "random")}
    for step in steps:
        said = step.decisions
        for name, rows in said.actions.items():
            assert np.array_equal(rows.lengths, said.obs.action_masks[name].actors.lengths)
        for k, player in enumerate(said.player):
            kind = player if player in everything else ""
            of_action = (said.drawn["force"], said.logits["force"], said.actions["force"])
            everything[kind].append([rows[k].values for rows in of_action])
    for player, rows in everything.items():
        drawn, parameters, numbers = (np.concatenate(part) for part in zip(*rows, strict=True))
        taken = ~np.isnan(numbers[:, 0])
        assert 0 < taken.sum() < len(taken)
        assert np.array_equal(taken, ~np.isnan(drawn[:, 0]))
        z = drawn[taken].astype(np.float64)
        np.testing.assert_allclose(numbers[taken, 0], 1 / (1 + np.exp(-z[:, 0])), atol=1e-6)
        np.testing.assert_array_equal(numbers[taken, 1], drawn[taken, 1])
        mean, log_std = parameters[taken, :2], parameters[taken, 2:]
        if player == "Brawler":  # nothing else was possible
            np.testing.assert_array_equal(mean, drawn[taken])
            assert (log_std == -np.inf).all()
        elif player == "random":
            assert (log_std == np.inf).all()
        else:
            assert np.isfinite(log_std).all()


@pytest.mark.slow
def test_each_player_of_a_recording_can_be_cloned(pool: Path) -> None:
    quiet: Any = lambda line: None  # noqa: E731
    for player in ("", "random", "Brawler"):
        settings = [f"clone.player={player}", "clone.epochs=1"]
        result = clone(pool / "pool.rec", config(*settings), say=quiet)
        assert result.train is not None
        assert np.isfinite(result.train.mean_loss(0.5))
        kl = config(*settings, "clone.loss=kl")
        if player == "Brawler":
            with pytest.raises(
                ConfigError, match=r"clone.loss='kl': expected .* as bots have none"
            ):
                clone(pool / "pool.rec", kl, say=quiet)
        else:
            result = clone(pool / "pool.rec", kl, say=quiet)
            assert result.train is not None
            assert np.isfinite(result.train.mean_loss(0.5))


def test_decisions_of_all_kinds_of_players_are_concatenated() -> None:
    envs = EnvList(Skirmish, 12)
    envs.seed(2)
    space, actions = envs.obs_space(), envs.action_space()
    obs = envs.reset(space)
    batch = EntityBatch.of(obs)
    manager = StateManager(overrides=["net.d_model=8", "net.n_layer=1"])
    state = init_train_state(manager.config, {"obs_space": space, "action_space": actions})
    bots = BotPlayer(Brawler, 4, space, Spaces(space, actions), sides=2)
    bots.begin(obs, False)
    thirds = [np.arange(k, k + 4) for k in (0, 4, 8)]
    with torch.no_grad():
        pieces = [
            bots.act_in(obs, batch.take(thirds[0]), thirds[0], 0),
            AgentPlayer(RandomAgent(actions), seed=1).choose(batch.take(thirds[1]), thirds[1], 0),
            AgentPlayer(state.agent, seed=1).choose(batch.take(thirds[2]), thirds[2], 0),
        ]
    decisions = Decisions.cat(pieces)
    assert decisions.distributions.keys() == actions.keys()
    backwards = np.arange(11, -1, -1)
    again = decisions.take(backwards).take(backwards)
    for name, rows in decisions.chosen.items():
        assert torch.equal(again.chosen[name].values.nan_to_num(7), rows.values.nan_to_num(7))
    bot_rows = joint(
        {n: r.values for n, r in pieces[0].logprobs.items()}, batch.take(thirds[0]).actions
    )
    assert not any(rows.any() for rows in bot_rows.values())
    envs.act(decisions.chosen_on_host(), space)  # all of it is legal


@pytest.mark.parametrize("opponent", ["random", BOT])
def test_evaluations_against_random_players_and_bots(tmp_path: Path, opponent: str) -> None:
    settings = ["eval.steps=8", "eval.interval=24", "eval.num_envs=4", f"eval.opponent={opponent}"]
    more = [*settings, "eval.capture_samples=evals.rec", f"data_dir={tmp_path}"]
    few = [*SMALL[:11], "selfplay=None", "total_timesteps=32"]
    manager = StateManager(overrides=[*few, *more])
    train(manager, Skirmish)
    names = {
        one for s in Recording.open(tmp_path / "evals.rec").steps() for one in s.decisions.player
    }
    assert len(names) == 2


def test_a_round_robin_of_bots_and_random_players() -> None:
    played = play_league([Brawler, "random"], Skirmish, games=8)
    assert np.isfinite(played.payoff.mean[~np.eye(2, dtype=bool)]).all()
