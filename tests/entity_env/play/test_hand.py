"""A person's choices beside those of an agent: nothing else is taken, and nothing is forgotten."""

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
def test_own_choices_stand_and_the_rest_is_of_the_others(seed, share, world) -> None:  # type: ignore[no-untyped-def]
    rng = np.random.default_rng(seed)
    envs: VecEnv = EnvList(world, 2)
    envs.seed(seed)
    obs, space = envs.reset(envs.obs_space()), envs.action_space()
    others, mine = (random_choices(obs, space, rng) for _ in range(2))
    taken = {name: rng.random(len(rows.values)) < share for name, rows in mine.items()}
    hand = Hand(obs, space, taken, others)
    left = list(hand.waiting())
    assert len(left) == sum(int(rows.sum()) for rows in taken.values())
    made = left[: int(rng.integers(len(left) + 1))]
    for name, actor in made:
        if rng.random() < 0.3:
            one = hand.mask(name, actor)
            hand.choose(name, actor, int(space[name].random_choices(one, rng).values[0]))
        hand.choose(name, actor, int(mine[name].values[actor]))
    assert list(hand.waiting()) == left[len(made) :]
    actions, by_hand = hand.fill()
    for name, rows in actions.items():
        own = np.isin(np.arange(len(rows.values)), [actor for n, actor in made if n == name])
        assert (by_hand[name].values == own).all()
        assert (rows.values == np.where(own, mine[name].values, others[name].values)).all()
        assert (rows.lengths == obs.action_masks[name].actors.lengths).all()


@pytest.mark.parametrize(
    ("actor", "choice", "message"),
    [
        (0, 0, "actor 0: expected an actor that you choose for"),
        (-1, 0, "actor -1: expected an actor that you choose for"),
        (99, 0, "actor 99: expected an actor that you choose for"),
        (1, 99, r"actor 1: expected one of \[.*\], got 99"),
        (1, -1, r"actor 1: expected one of \[.*\], got -1"),
    ],
)
def test_what_is_not_allowed_is_refused_and_changes_nothing(
    actor: int, choice: int, message: str
) -> None:
    envs: VecEnv = EnvList(Duel, 2)
    obs = envs.reset(envs.obs_space())
    taken = np.arange(len(obs.action_masks["attack"].actors.values)) == 1
    others = random_choices(obs, envs.action_space(), np.random.default_rng(0))
    hand = Hand(obs, envs.action_space(), {"attack": taken}, others)
    with pytest.raises(ValueError, match=f"attack, {message}"):
        hand.choose("attack", actor, choice)
    assert list(hand.waiting()) == [("attack", 1)]
