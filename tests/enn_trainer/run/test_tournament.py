"""Round robins, evaluation against a pool, and exploiters, in games whose results are known."""

import importlib
import json
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from enn_trainer import ConfigError, StateManager, TrainConfig, Trainer, train
from enn_trainer.checkpoints.lookup import members_of
from enn_trainer.cli import league_command
from enn_trainer.cli import run as enn
from enn_trainer.config import EnvConfig, EvalConfig, RolloutConfig
from enn_trainer.experience.seated_players import AGENT
from enn_trainer.run import tournament
from enn_trainer.run.tournament import exploit, play_league
from enn_trainer.selfplay.league import League
from enn_trainer.selfplay.seating import PoolLineups
from entity_env import (
    Bot,
    CategoricalAction,
    CategoricalActionMask,
    CategoricalActionSpace,
    Entity,
    Match,
    Observation,
    ObsSpace,
)
from entity_env.examples import Duel

THROWS = ["rock", "paper", "scissors"]


class Throws(Match):
    """Rock, paper, scissors of several sides: the return is wins minus losses."""

    def __init__(self, num_sides: int = 2) -> None:
        self.num_sides = num_sides

    def obs_space(self) -> ObsSpace:
        return ObsSpace(entities={"Hand": Entity(["one"])})

    def action_space(self) -> dict[str, Any]:
        return {"throw": CategoricalActionSpace(THROWS)}

    def reset(self) -> list[Observation]:
        return self._observe([0] * self.num_sides, done=False)

    def act(self, actions: Sequence[Mapping[str, Any]]) -> list[Observation]:
        thrown = [int(of_side["throw"].indices[0]) for of_side in actions]
        beats = [[(a - b) % 3 == 1 for b in thrown] for a in thrown]
        won = np.sum(beats, axis=1) - np.sum(beats, axis=0)
        return self._observe(won.tolist(), done=True)

    def _observe(self, won: Sequence[int], done: bool) -> list[Observation]:
        return [
            Observation(
                entities={"Hand": ([[1.0]], ["hand"])},
                actions={"throw": CategoricalActionMask(actor_ids=["hand"])},
                reward=float(reward),
                done=done,
                metrics={"won": float(reward)} if done else {},
            )
            for reward in won
        ]


class Three(Throws):
    """The same with three sides."""

    num_sides = 3

    def __init__(self) -> None:
        super().__init__(3)


class _Throw(Bot):
    label = ""

    def act(self, observation: Observation) -> dict[str, Any]:
        ids = observation.actions["throw"].actor_ids
        return {"throw": CategoricalAction(ids, [THROWS.index(self.label)], THROWS)}


class Rock(_Throw):
    label = "rock"


class Paper(_Throw):
    label = "paper"


class Scissors(_Throw):
    label = "scissors"


@pytest.fixture(autouse=True)
def _runs_elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def test_a_cycle_is_found_and_its_uniform_mixture_is_unbeaten() -> None:
    played = play_league([Rock, Paper, Scissors], Throws, games=10)
    np.testing.assert_array_equal(
        np.nan_to_num(played.payoff.mean, nan=0.5), [[0.5, 0, 1], [1, 0.5, 0], [0, 1, 0.5]]
    )
    assert len(played.rings) == 1
    assert played.mixture is not None
    np.testing.assert_allclose(played.mixture, 1 / 3, atol=1e-3)
    assert played.ratings is not None
    np.testing.assert_allclose(played.ratings.elo, 1200, atol=1)


def test_means_of_a_metric_are_shown_instead_of_scores() -> None:
    played = play_league([Rock, Paper], Throws, games=4, metric="won")
    np.testing.assert_array_equal(np.nan_to_num(played.payoff.mean), [[0, -1], [1, 0]])
    assert played.ratings is None


def test_each_pair_of_three_sides_is_one_comparison() -> None:
    played = play_league([Rock, Paper], Three, games=6)
    np.testing.assert_array_equal(np.nan_to_num(played.payoff.mean), [[0, 0], [1, 0]])


@pytest.mark.slow
@pytest.mark.parametrize("processes", [1, 2])
def test_the_result_is_independent_of_processes_and_parallel_matches(
    processes: int,
) -> None:
    config = TrainConfig(rollout=RolloutConfig(num_envs=16))
    one = play_league(["random", Attack], Duel, games=8, seed=3, config=config)
    two = play_league(["random", Attack], Duel, games=8, seed=3, config=config, processes=processes)
    np.testing.assert_array_equal(one.payoff.mean, two.payoff.mean)


class Attack(Bot):
    """Shoots at random enemies."""

    def act(self, observation: Observation) -> dict[str, Any]:
        from entity_env import SelectEntityAction

        attack = observation.actions["attack"]
        chosen = self.rng.integers(len(attack.actee_ids), size=len(attack.actor_ids))
        return {
            "attack": SelectEntityAction(attack.actor_ids, [attack.actee_ids[i] for i in chosen])
        }


def test_invalid_arguments_are_reported_in_one_line() -> None:
    with pytest.raises(ConfigError, match="at least two players"):
        play_league(["random"], Throws)


SMALL = [
    "rollout.num_envs=24",
    "rollout.steps=8",
    "rollout.processes=1",
    "optim.bs=32",
    "net.d_model=8",
    "net.n_layer=1",
    "cuda=false",
]


@pytest.mark.slow
def test_a_league_of_three_sides_counts_pairs() -> None:
    settings = [*SMALL, "selfplay.share=0.5", "selfplay.snapshot_every=200", "total_timesteps=1500"]
    manager = StateManager(overrides=settings)
    train(manager, Three)
    league, seating = manager.state.parts["league"], manager.state.parts["players"]
    assert isinstance(league, League)
    assert isinstance(seating, PoolLineups)
    # Each game has one seat of the agent and two of opponents.
    assert {players.count(AGENT) for players in seating.players} == {1}
    games = int(seating.games.sum()) - len(seating.players)
    assert sum(member.games for member in league.members) == 2 * games
    assert league.members[0].results.shape == (3, 3)


@pytest.mark.slow
def test_a_pool_of_bots_resumes_bit_for_bit(tmp_path: Path) -> None:
    Path("bots.py").write_text(
        "from entity_env import Bot, SelectEntityAction\n\n\n"
        "class Wild(Bot):\n"
        "    def act(self, observation):\n"
        '        attack = observation.actions["attack"]\n'
        "        actors, ids = attack.actor_ids, attack.actee_ids\n"
        "        chosen = self.rng.integers(len(ids), size=len(actors))\n"
        '        return {"attack": SelectEntityAction(actors, [ids[i] for i in chosen])}\n'
    )
    settings = [
        *SMALL,
        "selfplay.share=0.5",
        "selfplay.snapshot_every=0",
        'selfplay.opponents=["bots.py:Wild", "random"]',
        "optim.anneal_lr=false",
        "ppo.anneal_entropy=false",
    ]
    states = []
    for name, stops in (("one", [1440]), ("two", [720, 1440])):
        for total in stops:
            manager = StateManager(
                overrides=[*settings, f"total_timesteps={total}"], checkpoint_dir=tmp_path / name
            )
            train(manager, Duel)
        states.append(manager.state)
    one, two = states
    for part in ("league", "players"):
        assert repr(one.parts[part].state_dict()) == repr(two.parts[part].state_dict())
    for name, tensor in one.agent.state_dict().items():
        assert tensor.equal(two.agent.state_dict()[name]), name


@pytest.fixture(scope="module")
def pooled(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of Duel with three snapshots."""
    folder = tmp_path_factory.mktemp("pooled") / "run"
    settings = [*SMALL, "env.id=Duel", "selfplay.share=0.5", "selfplay.snapshot_every=150"]
    manager = StateManager(
        overrides=[*settings, "total_timesteps=500", f"data_dir={folder.parent}"],
        checkpoint_dir=folder,
    )
    train(manager, Duel)
    return folder


@pytest.mark.slow
def test_evaluation_against_the_pool_spreads_episodes_over_members_and_seats(pooled: Path) -> None:
    out = Path("report.json")
    assert (
        enn(["eval", str(pooled), "--opponent", "pool", "--episodes", "32", "--out", str(out)]) == 0
    )
    [suite] = json.loads(out.read_text())["suites"].values()
    members = suite["opponents"]
    assert len(members) == 4
    assert {m["score"]["count"] for m in members.values()} == {8}
    scores = [m["score"]["mean"] for m in members.values()]
    assert suite["metrics"]["score"]["mean"] == pytest.approx(np.mean(scores))
    assert suite["metrics"]["score"]["ci95"] > 0


@pytest.mark.slow
@pytest.mark.parametrize(("name", "work"), [("eval", "evaluate"), ("watch", "watch")])
def test_commands_read_a_save_and_its_pool_once(
    name: str, work: str, pooled: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A run that goes on with keep=1 deletes the save at any moment."""
    folder, out = shutil.copytree(pooled, tmp_path / "run"), tmp_path / "out.html"
    command = importlib.import_module(f"enn_trainer.cli.work.{work}")
    config_of = command.config_of

    def after_it_is_deleted(*arguments: Any) -> TrainConfig:
        for save in folder.glob("step-*"):
            shutil.rmtree(save)
        return config_of(*arguments)  # type: ignore[no-any-return]

    monkeypatch.setattr(command, "config_of", after_it_is_deleted)
    options = ["--opponent", "pool", "--episodes", "8", "--num-envs", "16", "--out", str(out)]
    assert enn([name, str(folder), *options]) == 0
    assert not [*folder.glob("step-*")]
    assert out.stat().st_size > 0


@pytest.mark.slow
@pytest.mark.parametrize("of_run", ["", "@opponents"])
def test_a_round_robin_reads_the_save_that_names_its_environment_once(
    of_run: str, pooled: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A run that goes on with keep=1 deletes the save at any moment."""
    folder = shutil.copytree(pooled, tmp_path / "run")
    config_of = league_command._config

    def then_delete(*arguments: Any) -> Any:
        read = config_of(*arguments)
        for save in folder.glob("step-*"):
            shutil.rmtree(save)
        return read

    monkeypatch.setattr(league_command, "_config", then_delete)
    assert enn(["league", "play", f"{folder}{of_run}", "random", "--games", "2"]) == 0
    assert not [*folder.glob("step-*")]


@pytest.mark.slow
def test_a_run_without_a_pool_is_refused_as_opponent(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    settings = [*SMALL, "env.id=Duel", "total_timesteps=100"]
    manager = StateManager(overrides=settings, checkpoint_dir=tmp_path / "run")
    train(manager, Duel)
    capsys.readouterr()
    assert enn(["eval", str(tmp_path / "run"), "--opponent", "pool"]) == 2
    [line] = capsys.readouterr().err.splitlines()
    assert "--opponent: " in line
    assert "expected a checkpoint with opponents (selfplay), got one without" in line


@pytest.mark.slow
def test_an_exploiter_is_measured_against_its_training_opponent(
    pooled: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The run of that save may go on meanwhile, and delete it."""
    folder = shutil.copytree(pooled, tmp_path / "run")
    [save, *_] = sorted(folder.glob("step-*"), reverse=True)
    config = TrainConfig(env=EnvConfig(), total_timesteps=64, cuda=False)
    config.rollout = RolloutConfig(num_envs=8, steps=4, processes=1)
    config.optim.bs, config.net.d_model, config.net.n_layer = 16, 8, 1
    kept = exploit(str(save), Duel, config, tmp_path / "kept", games=8)

    def then_delete(*arguments: Any) -> None:
        train(*arguments)
        shutil.rmtree(save)

    monkeypatch.setattr(tournament, "train", then_delete)
    found = exploit(str(save), Duel, config, tmp_path / "deleted", games=8)
    assert (found.score, found.ci95) == (kept.score, kept.ci95)
    member = f"{tmp_path / 'kept'}@opponent:run-{int(save.name.removeprefix('step-'))}"
    expected = play_league([str(tmp_path / "kept"), str(pooled)], Duel, 8, 0, config=config)
    again = play_league([str(tmp_path / "kept"), member], Duel, 8, 0, config=config)
    assert np.array_equal(again.payoff.mean, expected.payoff.mean, equal_nan=True)


@pytest.mark.slow
def test_all_exploiters_of_a_command_train_against_the_same_network(
    pooled: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    folder, into = shutil.copytree(pooled, tmp_path / "run"), tmp_path / "new"

    def then_delete(*arguments: Any) -> None:
        train(*arguments)
        for save in folder.glob("step-*"):
            shutil.rmtree(save)

    monkeypatch.setattr(tournament, "train", then_delete)
    options = ["--timesteps", "32", "--games", "8", "--seeds", "2", "--into", str(into)]
    assert enn(["league", "exploit", str(folder), *options]) == 0, capsys.readouterr().err
    pools = [members_of(path) for path in sorted(into.glob("exploits/seed-*"))]
    assert len(pools) == 2
    [[one], [other]] = pools
    assert one.weights == other.weights


@pytest.mark.slow
def test_a_run_is_evaluated_against_its_own_pool_while_it_trains(tmp_path: Path) -> None:
    settings = [*SMALL, "selfplay.share=0.5", "total_timesteps=400", f"data_dir={tmp_path}"]
    manager = StateManager(overrides=settings)
    manager.config.eval = EvalConfig(episodes=8, interval=100, opponent="pool")
    result = train(manager, Duel)
    assert 0 <= result.eval["eval/score.mean"] <= 1
    assert result.eval["eval/episodic_reward.count"] == 8


@pytest.mark.slow
def test_before_the_first_update_the_pool_has_only_named_members(tmp_path: Path) -> None:
    settings = [*SMALL, "selfplay.share=0.5", "total_timesteps=400", f"data_dir={tmp_path}"]
    for named, expected in ([], 0), (['selfplay.opponents=["random"]'], 1):
        manager = StateManager(overrides=[*settings, *named])
        manager.config.eval = EvalConfig(episodes=8, interval=10_000, opponent="pool")
        with Trainer(manager, Duel) as trainer:
            if not expected:
                told = r"^eval\.opponent: expected members in the pool, got none; "
                with pytest.raises(ConfigError, match=told):
                    trainer.evaluate()
            else:
                assert 0 <= trainer.evaluate()["eval/score.mean"] <= 1
            trainer.step()
            assert trainer.evaluate()["eval/episodic_reward.count"] == 8


@pytest.mark.slow
def test_a_missing_pool_is_reported(tmp_path: Path) -> None:
    manager = StateManager(overrides=[*SMALL, "total_timesteps=100"])
    manager.config.eval = EvalConfig(episodes=8, opponent="pool")
    with pytest.raises(ConfigError, match=r"eval\.opponent: expected a run with opponents"):
        train(manager, Duel)


@pytest.mark.slow
def test_an_exploiter_beats_a_player_of_rock(tmp_path: Path) -> None:
    Path("throws.py").write_text(
        "from entity_env import Bot, CategoricalAction\n\n\n"
        "class Rock(Bot):\n"
        "    def act(self, observation):\n"
        '        ids = observation.actions["throw"].actor_ids\n'
        '        return {"throw": CategoricalAction(ids, [0], ["rock", "paper", "scissors"])}\n'
    )
    config = TrainConfig(env=EnvConfig(), total_timesteps=8000, cuda=False)
    config.rollout = RolloutConfig(num_envs=32, steps=4, processes=1)
    config.optim.bs, config.optim.lr, config.ppo.ent_coef = 32, 0.01, 0.01
    config.net.d_model, config.net.n_layer = 8, 1
    found = exploit("throws.py:Rock", Throws, config, tmp_path / "new", games=100)
    assert found.score > 0.9
    assert found.path == tmp_path / "new"


@pytest.mark.slow
def test_league_commands_show_and_play(pooled: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert enn(["league", "show", str(pooled)]) == 0
    shown = capsys.readouterr().out
    assert "step-0" in shown
    assert "the agent" in shown
    assert enn(["league", "show", str(pooled), "--json"]) == 0
    listed = json.loads(capsys.readouterr().out)
    assert sum(member["weight"] for member in listed["members"]) == pytest.approx(1)
    players = [f"{pooled}@opponents", str(pooled), "random"]
    assert enn(["league", "play", *players, "--games", "3", "--json", "payoff.json"]) == 0
    counts = "4 games of each pair, 2 deals, each deal played from every seat; intervals are over "
    counts += "deals"
    assert counts in " ".join(capsys.readouterr().out.split())
    content = json.loads(Path("payoff.json").read_text())
    assert (content["games"], content["deals"]) == (4, 2)
    assert len(content["players"]) == len(content["mean"]) == 6
    assert sum(content["mixture"]) == pytest.approx(1)
    assert enn(["league", "play", "random", "random"]) == 2
    assert "expected at least one run or save" in capsys.readouterr().err


def test_showing_a_save_without_a_pool_reports_none(tmp_path: Path) -> None:
    manager = StateManager(overrides=[*SMALL, "total_timesteps=100"], checkpoint_dir=tmp_path / "a")
    train(manager, Duel)
    assert enn(["league", "show", str(tmp_path / "a")]) == 2
