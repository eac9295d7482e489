import random
from typing import Any

import numpy as np
import pytest

from enn_trainer.evaluation import random_return as module
from enn_trainer.evaluation.random_return import random_return
from entity_env.examples import Duel, MultiArmedBandit, VecMinefield, Xor


def test_random_play_has_the_expected_return() -> None:
    played = random_return(MultiArmedBandit, 64, 60.0)
    assert played is not None
    assert played.count == 64
    assert played.ci95 is not None
    assert abs(played.mean - 0.2) < 2 * played.ci95  # one of five arms pays


def test_random_return_is_deterministic_given_the_seed() -> None:
    first, again = (random_return(Xor, 200, 60.0, seed=3) for _ in range(2))
    assert first == again
    assert first != random_return(Xor, 200, 60.0, seed=4)


def test_random_return_of_matches_and_vectorised_environments() -> None:
    duel = random_return(Duel, 30, 60.0)
    assert duel is not None
    assert (duel.mean, duel.count) == (0, 32)  # what a side wins the other one loses
    mines = random_return(lambda: VecMinefield(1, max_steps=5), 3, 60.0)
    assert mines is not None
    assert mines.count == 3


def test_random_return_preserves_global_random_states() -> None:
    before = random.getstate(), np.random.get_state()  # noqa: NPY002 (the global one)
    random_return(Xor, 8, 60.0)
    assert random.getstate() == before[0]
    assert np.array_equal(np.random.get_state()[1], before[1][1])  # type: ignore[arg-type,index]  # noqa: NPY002


@pytest.mark.parametrize("limit_s", [0.0, 5.0, 20.0])
def test_timeout_returns_none_and_closes_environments(
    limit_s: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The clock ticks whenever it is read: the time is over while worlds are made, or later."""
    opened: list[Any] = []

    class Counted(MultiArmedBandit):
        def __init__(self) -> None:
            opened.append(self)

        def close(self) -> None:
            opened.remove(self)

    ticks = iter(range(10_000))
    monkeypatch.setattr(module.time, "monotonic", lambda: float(next(ticks)))
    assert random_return(Counted, 64, limit_s) is None
    assert not opened
