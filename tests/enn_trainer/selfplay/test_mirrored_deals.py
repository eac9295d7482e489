"""Deals that are played once from every seat, so that their luck is nobody's."""

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from enn_trainer.run import tournament
from enn_trainer.run.tournament import play_league
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

NUMBERS = [str(number) for number in range(10)]


class Cards(Match):
    """Each side gets a card, adds a number to it as often as it is dealt turns, and compares."""

    num_sides = 2
    largest = 100
    games: ClassVar[list[tuple[int, tuple[int, ...]]]] = []
    """The seed and the first numbers by seat of each game."""

    def obs_space(self) -> ObsSpace:
        return ObsSpace(entities={"Card": Entity(["value"])})

    def action_space(self) -> dict[str, Any]:
        return {"add": CategoricalActionSpace(NUMBERS)}

    def seed(self, seed: int) -> None:
        super().seed(seed)
        self.dealt = seed

    def reset(self) -> list[Observation]:
        self.sums = [self.rng.randint(1, self.largest) for _ in range(self.num_sides)]
        self.turns = self.rng.randint(1, 3)
        self.is_first = True
        return self._observe()

    def act(self, actions: Sequence[Mapping[str, Any]]) -> list[Observation]:
        added = tuple(int(of_side["add"].indices[0]) for of_side in actions)
        if self.is_first:
            self.games.append((self.dealt, added))
        self.is_first = False
        self.sums = [one + number for one, number in zip(self.sums, added, strict=True)]
        self.turns -= 1
        return self._observe()

    def _observe(self) -> list[Observation]:
        return [
            Observation(
                entities={"Card": ([[value]], ["card"])},
                actions={"add": CategoricalActionMask(actor_ids=["card"])},
                reward=float(value) if self.turns == 0 else 0.0,
                done=self.turns == 0,
            )
            for value in self.sums
        ]


class OfThree(Cards):
    """The same with three sides."""

    num_sides = 3


class SmallCards(Cards):
    """Numbers matter more than cards."""

    largest = 3


class Adds(Bot):
    """Adds a random number."""

    own = 0

    def act(self, observation: Observation) -> dict[str, Any]:
        number = (int(self.rng.integers(10)) + self.own) % 10
        return {"add": CategoricalAction(observation.actions["add"].actor_ids, [number], NUMBERS)}


class AlsoAdds(Adds):
    """Adds numbers as large as the other bot, but not the same ones."""

    own = 5


class Zero(Adds):
    def act(self, observation: Observation) -> dict[str, Any]:
        return {"add": CategoricalAction(observation.actions["add"].actor_ids, [0], NUMBERS)}


class AlsoZero(Zero):
    pass


class One(Adds):
    def act(self, observation: Observation) -> dict[str, Any]:
        return {"add": CategoricalAction(observation.actions["add"].actor_ids, [1], NUMBERS)}


@pytest.mark.parametrize("sides", [2, 3])
@given(games=st.integers(1, 14), seed=st.integers(0, 2**40), at_a_time=st.integers(1, 3))
@settings(max_examples=12, deadline=None)
def test_every_seed_is_played_from_each_seat(
    sides: int, games: int, seed: int, at_a_time: int
) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(tournament, "MOST_MATCHES", at_a_time)
        Cards.games.clear()
        played = play_league([Zero, One], Cards if sides == 2 else OfThree, games, seed)
    lineups: dict[int, list[tuple[int, ...]]] = {}
    for dealt, lineup in Cards.games:
        lineups.setdefault(dealt, []).append(lineup)
    expected = [(0, 1), (1, 0)]
    if sides == 3:
        expected = [(0, 0, 1), (0, 1, 0), (0, 1, 1), (1, 0, 0), (1, 0, 1), (1, 1, 0)]
    assert all(sorted(seats) == expected for seats in lineups.values())
    assert len(lineups) >= played.deals  # matches without further deals go on with other seeds
    assert played.games == played.deals * len(expected)


def test_games_are_rounded_up_to_whole_deals() -> None:
    two, three = (play_league([Zero, One], world, 7) for world in (Cards, OfThree))
    assert (two.deals, two.games) == (4, 8)
    assert (three.deals, three.games) == (2, 12)


@pytest.mark.parametrize("world", [Cards, OfThree])
def test_deal_that_determines_the_winner_scores_one_half(world: Any) -> None:
    played = play_league([Zero, AlsoZero], world, games=120, seed=1)
    assert [x[0, 1] for x in played.payoff] == [0.5, 0.5, 0.5]
    assert played.ratings is not None
    np.testing.assert_allclose(played.ratings.ci95, 0, atol=1)  # of the prior


@pytest.mark.parametrize("seed", range(3))
def test_the_interval_of_two_equal_bots_contains_one_half(seed: int) -> None:
    """They draw other numbers, so that only the luck of the cards is the same."""
    played = play_league([Adds, AlsoAdds], Cards, games=400, seed=seed)
    _, low, high = (x[0, 1] for x in played.payoff)
    assert low <= 0.5 <= high
    assert 0 < high - low < 0.06  # .098 of 400 independent games


@pytest.mark.parametrize("players", [[Adds, Adds], ["random", "random"]])
def test_player_against_its_copy_scores_one_half(players: list[Any]) -> None:
    """Random choices are those of the seat in a deal, whoever has it."""
    played = play_league(players, SmallCards, games=40, seed=2)
    assert [x[0, 1] for x in played.payoff] == [0.5, 0.5, 0.5]
    means = play_league(players, SmallCards, 40, 2, metric="episodic_reward").payoff
    assert means.mean[0, 1] == means.mean[1, 0]


def test_confidence_intervals_are_over_deals() -> None:
    """A player who adds 1 in each turn gets as many more as its deals have turns, from 1 to 3."""
    played = play_league([Zero, One], Cards, 200, 3, metric="episodic_reward")
    mean, low, high = played.payoff
    assert 1 < mean[1, 0] - mean[0, 1] < 3
    # Cards have the deviation 29, the mean of two has 20: 1.98 * 20.4 / sqrt(100) = 4.0
    assert (high - low)[0, 1] / 2 == pytest.approx(4.0, abs=0.7)
