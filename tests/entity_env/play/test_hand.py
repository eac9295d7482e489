"""Choices of a person combined with default choices of an agent."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from entity_env import EnvList
from entity_env.examples import Duel, MineSweeper
from entity_env.play.hand import Hand
from entity_env.testing.random_play import random_choices
from entity_env.vec.vec_env import VecEnv


@given(st.integers(0, 2**32 - 1), st.floats(0, 1), st.sampled_from([Duel, MineSweeper]))
def test_choices_override_the_defaults(seed, share, world) -> None:  # type: ignore[no-untyped-def]
    rng = np.random.default_rng(seed)
    envs: VecEnv = EnvList(world, 2)
    envs.seed(seed)
    obs, space = envs.reset(envs.obs_space()), envs.action_space()
    defaults, choices = (random_choices(obs, space, rng) for _ in range(2))
    controlled = {name: rng.random(len(rows.values)) < share for name, rows in choices.items()}
    hand = Hand(obs, space, controlled, defaults)
    waiting = list(hand.waiting())
    assert len(waiting) == sum(int(rows.sum()) for rows in controlled.values())
    made = waiting[: int(rng.integers(len(waiting) + 1))]
    for name, actor in made:
        if rng.random() < 0.3:
            mask = hand.mask(name, actor)
            hand.choose(name, actor, int(space[name].random_choices(mask, rng).values[0]))
        hand.choose(name, actor, int(choices[name].values[actor]))
    assert list(hand.waiting()) == waiting[len(made) :]
    actions, by_hand = hand.fill()
    for name, rows in actions.items():
        is_own_choice = np.isin(
            np.arange(len(rows.values)), [actor for n, actor in made if n == name]
        )
        assert (by_hand[name].values == is_own_choice).all()
        assert (
            rows.values == np.where(is_own_choice, choices[name].values, defaults[name].values)
        ).all()
        assert (rows.lengths == obs.action_masks[name].actors.lengths).all()


@pytest.mark.parametrize(
    ("actor", "choice", "message"),
    [
        (0, 0, "actor 0: expected an actor that you control"),
        (-1, 0, "actor -1: expected an actor that you control"),
        (99, 0, "actor 99: expected an actor that you control"),
        (1, 99, r"actor 1: expected one of \[.*\], got 99"),
        (1, -1, r"actor 1: expected one of \[.*\], got -1"),
    ],
)
def test_illegal_choices_are_refused_without_effect(actor: int, choice: int, message: str) -> None:
    envs: VecEnv = EnvList(Duel, 2)
    obs = envs.reset(envs.obs_space())
    controlled = np.arange(len(obs.action_masks["attack"].actors.values)) == 1
    defaults = random_choices(obs, envs.action_space(), np.random.default_rng(0))
    hand = Hand(obs, envs.action_space(), {"attack": controlled}, defaults)
    with pytest.raises(ValueError, match=f"attack, {message}"):
        hand.choose("attack", actor, choice)
    assert list(hand.waiting()) == [("attack", 1)]
