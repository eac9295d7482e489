"""`KuhnPoker` and `UnevenThrows` pay what the literature says, in every line of play."""

from collections import Counter
from itertools import permutations
from typing import Any

import numpy as np
import pytest

from entity_env import Action, CategoricalAction, EntityEnvError, GlobalCategoricalAction
from entity_env.examples import KuhnPoker, UnevenThrows

PLAYS = ["pass", "bet"]
# What the first side wins: with the higher card, with the lower one.
LINES = {
    "pp": (1, -1),
    "pbp": (-1, -1),
    "pbb": (2, -2),
    "bp": (1, 1),
    "bb": (2, -2),
}


def play(label: str) -> dict[str, Action]:
    return {"play": GlobalCategoricalAction(PLAYS.index(label), label)}


@pytest.mark.parametrize("deal", list(permutations(range(3), 2)))
@pytest.mark.parametrize("line", LINES)
def test_kuhn_poker_rewards_of_all_games(deal: tuple[int, int], line: str) -> None:
    game = KuhnPoker(deal)
    frames = game.reset()
    for i, letter in enumerate(line):
        assert not any(frame.done or frame.reward for frame in frames)
        # The side to move alone can act, and nobody sees the other card.
        assert [[*frame.actions] for frame in frames] == [["play"] * (i % 2 == s) for s in (0, 1)]
        assert [len(frame.features["Card"]) for frame in frames] == [1, 1]
        actions: list[dict[str, Action]] = [{}, {}]
        actions[i % 2] = play("pass" if letter == "p" else "bet")
        frames = game.act(actions)
    higher, lower = LINES[line]
    won = higher if deal[0] > deal[1] else lower
    assert [frame.reward for frame in frames] == [won, -won]
    assert all(frame.terminated for frame in frames)
    assert not any(frame.actions for frame in frames)
    showdown = float(line in ("pp", "pbb", "bb"))
    assert [frame.metrics for frame in frames] == [
        {"win": float(won > 0), "showdown": showdown},
        {"win": float(won < 0), "showdown": showdown},
    ]
    ranks = ["jack", "queen", "king"]
    own, other = (ranks[card] for card in deal)
    assert frames[0].features["Card"] == [(own, True), (other, False)]
    assert frames[1].features["Card"] == [(other, True), (own, False)]


def test_kuhn_poker_observations_have_the_first_side_and_all_bets() -> None:
    first, second = KuhnPoker((2, 0)).reset()
    assert (first.global_features, second.global_features) == ([True], [False])
    assert first.features["Card"] == [("king", True)]
    assert second.features["Card"] == [("jack", True)]
    game = KuhnPoker((2, 0))
    game.reset()
    first, second = game.act([play("bet"), {}])
    assert first.features["Bet"] == [(2, True), (1, False)]
    assert second.features["Bet"] == [(1, True), (2, False)]


def test_all_deals_of_kuhn_poker_are_equally_likely() -> None:
    game = KuhnPoker()
    game.seed(0)
    deals = Counter((game.reset(), tuple(game.cards))[1] for _ in range(6000))
    assert deals.keys() == set(permutations(range(3), 2))
    # Each is binomial with n = 6000, p = 1/6: standard deviation 29.
    assert all(abs(count - 1000) < 4 * 29 for count in deals.values())


@pytest.mark.parametrize("deal", [(1, 1), (0, 3), (0,), (0, 1, 2)])
def test_invalid_deal_raises(deal: Any) -> None:
    with pytest.raises(EntityEnvError, match="deal: expected two different cards, 0 to 2, got"):
        KuhnPoker(deal)


THROWS = ["rock", "paper", "scissors"]
PAYS = {
    ("rock", "scissors"): 1,
    ("scissors", "paper"): 2,
    ("paper", "rock"): 5,
}


@pytest.mark.parametrize("first", THROWS)
@pytest.mark.parametrize("second", THROWS)
def test_uneven_throws_pay_by_the_winning_throw(first: str, second: str) -> None:
    game = UnevenThrows()
    frames = game.reset()
    assert all([*frame.actions] == ["throw"] and not frame.done for frame in frames)
    assert [frame.features["Throw"] for frame in frames] == [[], []]

    def throw(label: str) -> dict[str, Action]:
        indices = np.array([THROWS.index(label)])
        return {"throw": CategoricalAction([("Player", 0)], indices, THROWS)}

    frames = game.act([throw(first), throw(second)])
    won = PAYS.get((first, second), 0) - PAYS.get((second, first), 0)
    assert [frame.reward for frame in frames] == [won, -won]
    assert all(frame.terminated for frame in frames)
    assert [frame.metrics["win"] for frame in frames] == [float(won > 0), float(won < 0)]
    assert [frame.features["Throw"] for frame in frames] == [[[second]], [[first]]]
