"""Exact exploitability against published values, and arithmetic by hand."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from benchmarks.selfplay_exact import (
    WORLDS,
    Policy,
    best_response,
    expected_return,
    exploitability,
    policy_of,
)
from enn_trainer import StateManager, load_agent, train
from entity_env import Observation
from entity_env.examples import KuhnPoker, UnevenThrows

KUHN, THROWS = WORLDS["KuhnPoker"], WORLDS["UnevenThrows"]


def always(**probs: float) -> Policy:
    return lambda frame: probs


UNIFORM = always(**{"pass": 0.5, "bet": 0.5})


def equilibrium(a: float) -> Policy:
    """Kuhn's family, for both seats."""

    def policy(frame: Observation) -> Mapping[str, float]:
        [(rank, _)] = frame.features["Card"]
        own, other = (row[0] for row in frame.features["Bet"])
        [is_first] = frame.global_features
        bet: dict[Any, float]
        if is_first and own == other:
            bet = {"jack": a, "queen": 0.0, "king": 3 * a}
        elif is_first:
            bet = {"jack": 0.0, "queen": a + 1 / 3, "king": 1.0}
        elif own == other:
            bet = {"jack": 1 / 3, "queen": 0.0, "king": 1.0}
        else:
            bet = {"jack": 0.0, "queen": 1 / 3, "king": 1.0}
        return {"pass": 1 - bet[rank], "bet": bet[rank]}

    return policy


def test_uniform_play_in_kuhn_poker_has_the_published_exploitability() -> None:
    assert exploitability([UNIFORM], KUHN) == pytest.approx(11 / 24, abs=1e-12)


@pytest.mark.parametrize("a", [0.0, 0.1, 0.25, 1 / 3])
def test_equilibria_of_kuhn_poker_cannot_be_exploited(a: float) -> None:
    policy = equilibrium(a)
    assert exploitability([policy], KUHN) == pytest.approx(0, abs=1e-12)
    assert best_response([policy], KUHN, 0) == pytest.approx(-1 / 18, abs=1e-12)
    assert best_response([policy], KUHN, 1) == pytest.approx(1 / 18, abs=1e-12)
    assert expected_return(policy, equilibrium(0.2), KUHN) == pytest.approx(-1 / 18, abs=1e-12)


def test_non_equilibrium_policy_can_be_exploited() -> None:
    """With a above 1/3, and for a player that always bets."""
    assert exploitability([always(bet=1.0)], KUHN) > 0.1
    wrong = equilibrium(0.2)

    def bluffs_more(frame: Observation) -> Mapping[str, float]:
        [(rank, _)] = frame.features["Card"]
        is_first = frame.global_features == [True]
        return {"pass": 0.5, "bet": 0.5} if rank == "jack" and is_first else wrong(frame)

    assert exploitability([bluffs_more], KUHN) > 0.01


def test_best_response_does_not_know_the_drawn_policy() -> None:
    """Pure throws in equilibrium cannot be exploited, each alone can; nor can mixed equilibria."""
    pure = {throw: always(**{throw: 1.0}) for throw in ("rock", "paper", "scissors")}
    drawn = [pure[throw] for throw in ["rock"] * 2 + ["paper"] + ["scissors"] * 5]
    assert exploitability(drawn, THROWS) == pytest.approx(0, abs=1e-12)
    assert [exploitability([policy], THROWS) for policy in pure.values()] == [5, 2, 1]
    assert exploitability([equilibrium(0.0), equilibrium(1 / 3)], KUHN) == pytest.approx(
        0, abs=1e-12
    )
    # Who always bets and who always passes: the cards are known to neither, and a pass tells who
    # it is.
    extremes = [always(**{"pass": 1.0}), always(bet=1.0)]
    alone = [exploitability([policy], KUHN) for policy in extremes]
    assert exploitability(extremes, KUHN) < sum(alone) / 2


@pytest.mark.parametrize(
    ("probs", "expected"),
    [
        ((1 / 3, 1 / 3, 1 / 3), 1),  # paper: (5 - 2) / 3
        ((1, 0, 0), 5),
        ((0, 1, 0), 2),
        ((0, 0, 1), 1),
        ((1 / 4, 1 / 8, 5 / 8), 0),
    ],
)
def test_exploitability_of_throws_matches_hand_calculation(
    probs: tuple[float, float, float], expected: float
) -> None:
    policy = always(**dict(zip(("rock", "paper", "scissors"), probs, strict=True)))
    assert exploitability([policy], THROWS) == pytest.approx(expected, abs=1e-12)
    assert expected_return(policy, policy, THROWS) == pytest.approx(0, abs=1e-12)


@pytest.mark.slow
@pytest.mark.parametrize("world", [KuhnPoker, UnevenThrows])
def test_network_is_evaluated_in_every_information_set(world: Any, tmp_path: Path) -> None:
    """Its exploitability is that of the table of its probabilities, computed with arrays."""
    small = ["rollout.num_envs=8", "rollout.steps=8", "optim.bs=32", "net.d_model=8"]
    manager = StateManager(
        overrides=[*small, "total_timesteps=64", f"data_dir={tmp_path}"],
        checkpoint_dir=tmp_path / "run",
    )
    train(manager, world)
    policy, asked = policy_of(load_agent(tmp_path / "run", env=world()), world()), set()

    def noting(frame: Observation) -> Mapping[str, float]:
        probs = policy(frame)
        assert sum(probs.values()) == pytest.approx(1, abs=1e-5)
        asked.add(repr((frame.features, frame.global_features)))
        return probs

    if world is UnevenThrows:
        p = np.array([*policy(world().reset()[0]).values()])
        wins = np.array([[0, -5, 1], [5, 0, -2], [-1, 2, 0]])  # rows: rock, paper, scissors
        assert exploitability([noting], THROWS) == pytest.approx((wins @ p).max(), abs=1e-6)
        assert len(asked) == 1
        return
    value = exploitability([noting], KUHN)
    assert value > 0
    assert len(asked) == 12  # three cards, at the four points where a side decides
    assert exploitability([policy], KUHN) == pytest.approx(value, abs=1e-9)
