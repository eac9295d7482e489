"""Training against a pool: what is learnt from, who plays, results, and resuming to the bit."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from enn_trainer import ConfigError, StateManager, Trainer, load_checkpoint, train
from enn_trainer.callbacks import Callback
from enn_trainer.experience.collector import Rollout
from enn_trainer.experience.seated_players import AGENT
from enn_trainer.selfplay.league import League, Member
from enn_trainer.selfplay.league_players import LeaguePlayers
from enn_trainer.selfplay.seating import PoolLineups
from entity_env.examples import Duel, Xor
from tests.enn_trainer.resuming import assert_same, assert_same_clocks, tracked

SMALL = [
    "rollout.num_envs=16",
    "rollout.steps=12",
    "rollout.processes=1",
    "optim.bs=36",
    "optim.update_epochs=1",
    "net.d_model=8",
    "net.n_layer=1",
    "cuda=false",
    "selfplay.share=0.5",
    "selfplay.snapshot_every=200",
    "selfplay.in_play=2",
]
FRAMES = 12 * 12  # of the agent in an update: all of 8 in mirror play, and 4 of 8 in the others


@pytest.fixture(autouse=True)
def _runs_elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Metrics of runs without a folder are written to `data_dir`, the current folder."""
    monkeypatch.chdir(tmp_path)


def run(folder: Path | None, *settings: str, env: Any = Duel, **options: Any) -> StateManager:
    manager = StateManager(overrides=[*SMALL, *settings], checkpoint_dir=folder)
    manager.save_interval_s = 0.0
    train(manager, env, **options)
    return manager


class Watch(Callback):
    """Keeps rollouts and metrics."""

    def __init__(self) -> None:
        self.rollouts: list[Rollout] = []
        self.metrics: list[dict[str, float]] = []

    def on_rollout_end(self, trainer: Any, rollout: Rollout) -> None:
        self.rollouts.append(rollout)

    def on_update_end(self, trainer: Any, metrics: dict[str, float]) -> None:
        self.metrics.append(dict(metrics))


def test_steps_are_the_frames_of_the_agent() -> None:
    watch = Watch()
    manager = run(None, f"total_timesteps={3 * FRAMES}", callbacks=[watch])
    assert manager.state.step == 3 * FRAMES
    assert [rollout.num_frames for rollout in watch.rollouts] == [FRAMES] * 3
    assert [m["selfplay/opponent_frames"] for m in watch.metrics] == [48.0, 96.0, 144.0]


@pytest.mark.slow
def test_the_first_snapshot_plays_and_others_follow() -> None:
    watch = Watch()
    manager = run(None, f"total_timesteps={4 * FRAMES}", callbacks=[watch])
    league = manager.state.parts["league"]
    assert isinstance(league, League)
    # The first updates at or past 200 and 400 frames end at 288 and 432.
    assert [member.name for member in league.members] == ["step-0", "step-288", "step-432"]
    assert [m["selfplay/members"] for m in watch.metrics] == [1.0, 2.0, 3.0, 3.0]
    assert watch.metrics[0]["selfplay/oldest_step"] == 0.0


@pytest.mark.slow
def test_members_never_change() -> None:
    manager = StateManager(overrides=[*SMALL, "total_timesteps=100000"])
    with Trainer(manager, Duel) as trainer:
        trainer.step()
        assert trainer.league is not None
        before = trainer.league.member("step-0")
        of_agent = {k: v.clone() for k, v in trainer.state.agent.state_dict().items()}
        for _ in range(20):
            trainer.step()
        assert trainer.league.member("step-0").weights == before.weights
        now = trainer.state.agent.state_dict()
        assert not all(torch.equal(now[name], tensor) for name, tensor in of_agent.items())


@pytest.mark.slow
def test_a_share_of_zero_equals_a_run_without_selfplay() -> None:
    plain = [setting for setting in SMALL if not setting.startswith("selfplay")]
    one = StateManager(overrides=[*plain, "total_timesteps=576"])
    train(one, Duel)
    other = run(None, "selfplay.share=0", "total_timesteps=576")
    assert_same(one.state, other.state)
    assert other.state.step == one.state.step == 576


@pytest.mark.slow
def test_frames_of_opponents_are_not_learnt(monkeypatch: pytest.MonkeyPatch) -> None:
    """The rewards of opponents may be anything: the agent is the same to the bit."""
    results = []
    for poison in (False, True):
        manager = StateManager(
            overrides=[*SMALL, "total_timesteps=1000", "ppo.reward_scaling=true"]
        )
        with Trainer(manager, Duel) as trainer:
            collector = trainer.episodes._collector
            players = collector.players
            assert isinstance(players, LeaguePlayers)
            if poison:
                envs = collector.env
                monkeypatch.setattr(envs, "wait", poisoned(envs.wait, players))
                monkeypatch.setattr(envs, "act", lambda a, o, e=envs: act(e, a, o))
            for _ in range(4):
                trainer.step()
            results.append((manager.state, dict(trainer.metrics)))
    (one, metrics), (other, poisoned_metrics) = results
    assert_same(one, other)
    for tag in ("episodic_reward.mean", "losses/value_loss", "charts/reward_deviation"):
        assert metrics[tag] == poisoned_metrics[tag], tag


def poisoned(wait: Any, players: LeaguePlayers) -> Any:
    """The rewards of opponents are huge, after metrics of episodes were counted."""

    def wait_and_poison() -> Any:
        obs = wait()
        obs.reward = np.where(players.counted, obs.reward, 1e6).astype(np.float32)
        return obs

    return wait_and_poison


def act(env: Any, actions: Any, shown: Any) -> Any:
    env.act_async(actions, shown)
    return env.wait()


@pytest.mark.slow
def test_episode_metrics_are_only_of_the_agent() -> None:
    watch = Watch()
    run(None, f"total_timesteps={5 * FRAMES}", "selfplay.share=1", "optim.bs=36", callbacks=[watch])
    for rollout in watch.rollouts:
        ended = rollout.terminated | rollout.truncated
        assert rollout.metrics["episode_length"].count == int(ended.sum())
        assert len(rollout.episodes.environment) == 2 * int(ended.sum())


@pytest.mark.slow
def test_the_agent_takes_each_seat_equally_often() -> None:
    manager = StateManager(overrides=[*SMALL, "total_timesteps=100000"])
    seats: list[int] = []
    with Trainer(manager, Duel) as trainer:
        for _ in range(40):
            trainer.step()
            players = trainer.episodes._collector.players
            assert isinstance(players, LeaguePlayers)
            seats += [game.players.index(AGENT) for game in players.ended]
            learnt = players.learnt
            assert learnt is not None
            assert learnt.tolist() == sorted(learnt.tolist())
            assert len(learnt) == 12
    assert abs(np.mean(seats) - 0.5) < 0.05
    assert len(seats) > 100


@pytest.mark.slow
@pytest.mark.parametrize(
    ("before", "after", "choose"), [(1, 1, "uniform"), (1, 1, "pfsp"), (2, 2, "pfsp")]
)
def test_a_resumed_run_equals_the_uninterrupted_run(
    tmp_path: Path, before: int, after: int, choose: str
) -> None:
    """Running games and their opponents included, across snapshots and members that left."""
    settings = [f"selfplay.choose={choose}", "selfplay.capacity=2", 'selfplay.opponents=["random"]']
    total = 8 * FRAMES
    run(
        tmp_path / "two",
        *settings,
        f"total_timesteps={4 * FRAMES}",
        f"rollout.processes={before}",
        "optim.anneal_lr=false",
        "ppo.anneal_entropy=false",
    )
    one = run(
        tmp_path / "three",
        *settings,
        f"total_timesteps={total}",
        "optim.anneal_lr=false",
        "ppo.anneal_entropy=false",
    )
    two = run(tmp_path / "two", f"total_timesteps={total}", f"rollout.processes={after}")
    assert_same(one.state, two.state)
    assert_same_clocks(one.state, two.state)
    for part in ("league", "players"):
        first, second = (s.parts[part].state_dict() for s in (one.state, two.state))
        assert repr(first) == repr(second)
    assert one.state.parts["league"].files() == two.state.parts["league"].files()
    rows = [tracked(folder / "metrics.jsonl") for folder in (tmp_path / "three", tmp_path / "two")]
    kinds = [[row for row in of_one if row["kind"] == "update"] for of_one in rows]
    assert kinds[0] == kinds[1]


@pytest.mark.slow
def test_a_failed_update_changes_neither_league_nor_seats() -> None:
    manager = StateManager(overrides=[*SMALL, "total_timesteps=100000"])
    with Trainer(manager, Duel) as trainer:
        for _ in range(4):
            trainer.step()
        parts = manager.state.parts
        before = {name: repr(parts[name].state_dict()) for name in ("league", "players")}
        learn = manager.state.algorithm.update

        def fail(*_: Any) -> Any:
            raise ArithmeticError("on purpose")

        manager.state.algorithm.update = fail
        with pytest.raises(ArithmeticError):
            trainer.step()
        assert {name: repr(parts[name].state_dict()) for name in before} == before
        manager.state.algorithm.update = learn
        trainer.step()
        trainer.step()
        seating = parts["players"]
        assert isinstance(seating, PoolLineups)
        assert (seating.games > 0).all()


def num_games(league: League) -> int:
    """Number of games with results, also in rounds that are under way."""
    under_way = league.rounds.tallies.get("games", np.zeros((0, 4)))[:, 1].sum()
    return sum(member.games for member in league.members) + int(under_way)


@pytest.mark.slow
def test_a_game_of_a_lost_worker_has_no_result() -> None:
    workers = ["rollout.processes=2", "rollout.recover=truncate"]
    manager = StateManager(overrides=[*SMALL, *workers, "total_timesteps=100000"])
    with Trainer(manager, Duel) as trainer:
        trainer.step()
        envs = trainer.episodes._collector.env.env
        assert trainer.league is not None
        before = num_games(trainer.league)
        envs._workers[1].process.kill()
        metrics = trainer.step()
        players = trainer.episodes._collector.players
        assert isinstance(players, LeaguePlayers)
        lost = [game for game in players.ended if game.is_lost]
        assert len(lost) == 4  # all matches against the pool are in that worker
        counted = num_games(trainer.league) - before
        assert counted == metrics["selfplay/games"] == len(players.ended) - len(lost)


@pytest.mark.slow
def test_a_matchmaker_replaces_the_weights() -> None:
    asked: list[tuple[list[str], int]] = []

    def newest(members: Sequence[Member], step: int) -> Any:
        asked.append(([member.name for member in members], step))
        return np.arange(len(members)) == len(members) - 1

    watch = Watch()
    manager = run(None, f"total_timesteps={4 * FRAMES}", matchmaker=newest, callbacks=[watch])
    assert [step for _, step in asked] == [i * FRAMES for i in range(4)]
    assert asked[-1][0] == ["step-0", "step-288", "step-432"]
    assert all(m["selfplay/in_play"] == 1.0 for m in watch.metrics)
    assert manager.state.parts["league"].members[0].score > 0


def test_settings_that_do_not_match_the_environment_are_one_line_each() -> None:
    with pytest.raises(ConfigError, match="selfplay: expected an environment with several sides"):
        run(None, "total_timesteps=100", env=Xor)
    with pytest.raises(ConfigError, match=r"selfplay\.share: expected a share of 8 matches"):
        run(None, "selfplay.share=0.01", "total_timesteps=100")
    with pytest.raises(
        ConfigError, match=r"selfplay\.sides: expected seats from 0 to 1, got \[2\]"
    ):
        run(None, "selfplay.sides=[0, 2]", "total_timesteps=100")
    with pytest.raises(ConfigError, match=r"optim\.bs: expected at most the agent's 144 frames"):
        run(None, "optim.bs=150", "total_timesteps=100")
    with pytest.raises(ConfigError, match="snapshot_every"):
        run(None, "selfplay.snapshot_every=0", "total_timesteps=100")
    with pytest.raises(ConfigError, match="choose: expected 'uniform' or 'latest'"):
        run(None, 'selfplay.result=""', "total_timesteps=100")


def test_a_missing_result_metric_is_reported() -> None:
    with pytest.raises(Exception, match=r"selfplay\.result: match 4, side 0: .*'cheese'.*win"):
        run(None, "selfplay.result=cheese", "total_timesteps=5000")


@pytest.mark.slow
def test_opponents_of_another_run_are_copied_into_the_pool(tmp_path: Path) -> None:
    rival = run(tmp_path / "rival", f"total_timesteps={FRAMES}", "seed=5")
    manager = run(
        tmp_path / "run",
        f'selfplay.opponents=["{tmp_path / "rival"}"]',
        "selfplay.snapshot_every=0",
        f"total_timesteps={2 * FRAMES}",
    )
    league = manager.state.parts["league"]
    assert isinstance(league, League)
    assert [member.name for member in league.members] == [f"rival-{FRAMES}"]
    del rival
    (tmp_path / "rival").rename(tmp_path / "gone")
    resumed = run(tmp_path / "run", f"total_timesteps={3 * FRAMES}")
    assert resumed.state.step == 3 * FRAMES
    assert load_checkpoint(tmp_path / "run").state.parts["league"].files()
