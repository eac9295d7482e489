"""Rounds of games against a pool: results count when every match has played its game."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest

from enn_trainer import StateManager, Trainer
from enn_trainer.curriculum.rounds import Rounds
from enn_trainer.selfplay.elo import FIRST_ELO
from enn_trainer.selfplay.league import GameResult, League, add_games, members_in_open_rounds
from tests.enn_trainer.builders import POOL
from tests.enn_trainer.callbacks.lesson_worlds import UnevenMatch
from tests.enn_trainer.selfplay.joust import league_of


@pytest.fixture(autouse=True)
def _in_a_folder_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def won(member: str, score: float = 1.0, seat: int = 0) -> GameResult:
    return GameResult(member, seat, score)


def add(
    rounds: Rounds, matches: Sequence[int], *results: list[GameResult] | None
) -> tuple[list[GameResult], int]:
    return add_games(rounds, np.array(matches, np.int64), 2, results)


def test_results_count_when_the_round_is_complete() -> None:
    rounds = Rounds()
    assert add(rounds, [0, 0], [won("a")], [won("b/c", 0.5)]) == ([], 0)
    assert members_in_open_rounds(rounds) == {"a", "b/c"}
    complete, games = add(rounds, [1], [won("a", 0.0, seat=1)])
    assert sorted(complete) == [won("a", 1.0), won("a", 0.0, seat=1)]
    assert games == 2
    assert members_in_open_rounds(rounds) == {"b/c"}


def test_equal_results_of_one_game_all_count() -> None:
    complete, games = add(Rounds(), [0, 1], [won("a"), won("a")], [won("a"), won("b", 0.0)])
    assert sorted(complete) == [won("a")] * 3 + [won("b", 0.0)]
    assert games == 2


def test_game_without_a_result_completes_its_round() -> None:
    rounds = Rounds()
    assert add(rounds, [0, 1], None, [won("a")]) == ([won("a")], 1)
    assert add(rounds, [0, 1], None, None) == ([], 0)
    assert add(
        rounds,
        [],
    ) == ([], 0)


def test_games_of_cooperating_sides_are_counted() -> None:
    assert add(Rounds(), [0, 1], [], []) == ([], 2)


@pytest.mark.slow
def test_ratings_are_unbiased_by_game_length() -> None:
    """The first side wins at once, the second one 40 steps later: of the first games it won all."""
    sides = ["selfplay.sides=[0]", "rollout.steps=8", "selfplay.share=1", "optim.bs=16"]
    manager = StateManager(overrides=[*POOL, *sides, "selfplay.opponents=[random]", "seed=5"])
    with Trainer(manager, UnevenMatch) as trainer:
        first = trainer.step()
        assert (first["selfplay/score"], first["selfplay/elo"]) == (1.0, FIRST_ELO)
        league, snapshot = league_of(manager.state), League()
        assert league.rounds.tallies
        for _ in range(6):
            trainer.step()
        snapshot.load_state_dict({**league.state_dict(), "files": league.files()})
    counted = sum(member.results.sum(axis=0) for member in league.members)
    assert counted.sum() > 0
    assert abs(counted[0] / counted.sum() - 0.5) < 0.36  # three deviations of 16 games or more
    assert repr(snapshot.state_dict()) == repr(league.state_dict())


@pytest.mark.slow
def test_members_stay_until_their_results_are_counted() -> None:
    settings = ["selfplay.sides=[0]", "rollout.steps=2", "selfplay.share=1", "optim.bs=8"]
    capacity = ["selfplay.capacity=1", "selfplay.choose=latest", "selfplay.snapshot_every=16"]
    with Trainer(StateManager(overrides=[*POOL, *settings, *capacity]), UnevenMatch) as trainer:
        for _ in range(12):
            trainer.step()
            league = league_of(trainer.state)
            known = {member.name for member in league.members}
            assert members_in_open_rounds(league.rounds) <= known
