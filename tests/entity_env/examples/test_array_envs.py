"""Vectorised worlds against the plain ones: the same numbers drawn, the same actions, all steps."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from entity_env import (
    Entity,
    EntityEnvError,
    EnvList,
    Flag,
    InvalidAction,
    InvalidObservation,
    ObsSpace,
    Ragged,
    VecObs,
)
from entity_env.examples import Minefield, MultiSnake, VecMinefield, VecMultiSnake
from entity_env.examples.array_envs import ArrayEnvs
from entity_env.serialization.messages import pack, unpack
from tests.entity_env.builders import assert_same
from tests.entity_env.examples.one_by_one import OneByOne, assert_shown

Make = Callable[..., ArrayEnvs]
BOTH: list[Any] = [VecMinefield, VecMultiSnake]


def choices_of(obs: VecObs, num_choices: int, rng: np.random.Generator) -> Ragged:
    actors = obs.action_masks["move"].actors
    return Ragged(rng.integers(num_choices, size=len(actors.values)), actors.lengths)


def driving(obs: VecObs, rng: np.random.Generator) -> Ragged:
    """Mostly towards the target, which others reach than those that wander about."""
    x, y, direction, _ = obs.features["Vehicle"].values.T
    to_x, to_y = obs.features["Target"].values.T
    wanted = np.arctan2(to_y - y, to_x - x)
    off = (wanted - direction + np.pi) % (2 * np.pi) - np.pi
    straight = np.where(np.abs(off) < 0.2, 1, np.where(off > 0, 2, 0))
    chosen = np.where(rng.random(len(x)) < 0.7, straight, rng.integers(3, size=len(x)))
    return Ragged(chosen, np.ones(len(x), np.int64))


def greedy(obs: VecObs, rng: np.random.Generator) -> Ragged:
    """Mostly towards the food of the snake's own colour."""
    heads, chosen = obs.features["SnakeHead"], []
    for i in range(len(obs)):
        food = {color: (x, y) for x, y, color in obs.features["Food"][i].values}
        for x, y, color in heads[i].values:
            to_x, to_y = food.get(color, (x, y))
            moves = [m for m, d in enumerate((to_y - y, y - to_y, x - to_x, to_x - x)) if d > 0]
            is_random = not moves or rng.random() < 0.15
            chosen.append(rng.integers(4) if is_random else rng.choice(moves))
    return Ragged(np.array(chosen), heads.lengths)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kwargs", "play"),
    [
        ({}, "driving"),
        ({"translate": True, "width": 80.0, "max_steps": 60}, "at random"),
        ({"max_mines": 0, "width": 10.0}, "driving"),
        ({"max_mines": 1, "max_steps": 1}, "at random"),
        ({"max_mines": 40, "width": 60.0, "max_steps": 25}, "driving"),
    ],
    ids=str,
)
def test_vectorised_minefields_equal_plain_ones(kwargs: dict[str, Any], play: str) -> None:
    """At a width of 10, most targets are too close at first."""
    envs = VecMinefield(12, **kwargs)
    envs.seed(3)
    rng = np.random.default_rng(0)
    obs = envs.reset(envs.obs_space())
    plain = OneByOne(envs, go_on=False)
    assert_shown(obs, plain.shown())
    for _ in range(80):
        choices = driving(obs, rng) if play == "driving" else choices_of(obs, 3, rng)
        obs = envs.act({"move": choices}, envs.obs_space())
        assert_shown(obs, plain.act(choices))


def test_vehicles_reach_targets_mines_and_max_steps() -> None:
    envs = VecMinefield(64, width=100.0, max_steps=60)
    envs.seed(0)
    rng = np.random.default_rng(0)
    obs, steps = envs.reset(envs.obs_space()), np.zeros(64)
    ends = {"arrived": 0, "late": 0, "blown up": 0}
    for _ in range(400):
        obs = envs.act({"move": driving(obs, rng)}, envs.obs_space())
        steps += 1
        ends["arrived"] += int(obs.reward.sum())
        ends["late"] += int((obs.done & (obs.reward == 0) & (steps == 60)).sum())
        ends["blown up"] += int((obs.done & (obs.reward == 0) & (steps < 60)).sum())
        assert (steps <= 60).all()
        steps[obs.done] = 0
    assert all(count > 20 for count in ends.values()), ends


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kwargs", "play", "steps"),
    [
        ({}, "greedy", 60),
        ({"num_snakes": 1, "max_snake_length": 3}, "at random", 60),
        ({"num_snakes": 1, "max_snake_length": 3}, "greedy", 60),
        (
            {"board_size": 5, "num_snakes": 4, "num_players": 2, "max_snake_length": 3},
            "greedy",
            60,
        ),
        ({"board_size": 3, "num_snakes": 4, "max_snake_length": 6, "max_steps": 9}, "greedy", 60),
        ({"board_size": 2, "num_snakes": 2, "num_players": 2, "max_snake_length": 2}, "greedy", 60),
        (
            {"board_size": 10, "num_snakes": 9, "num_players": 3, "max_snake_length": 4},
            "at random",
            25,
        ),
    ],
    ids=str,
)
def test_vectorised_snakes_equal_plain_ones(kwargs: dict[str, Any], play: str, steps: int) -> None:
    """Boards of 3 and 2 get full, so that there is no cell for food."""
    envs = VecMultiSnake(8, **kwargs)
    envs.seed(3)
    rng = np.random.default_rng(0)
    obs = envs.reset(envs.obs_space())
    plain = OneByOne(envs, go_on=False)
    assert_shown(obs, plain.shown())
    for _ in range(steps):
        choices = greedy(obs, rng) if play == "greedy" else choices_of(obs, 4, rng)
        obs = envs.act({"move": choices}, envs.obs_space())
        assert_shown(obs, plain.act(choices))


def test_snakes_grow_win_and_lose() -> None:
    envs = VecMultiSnake(64, board_size=6, num_snakes=2, max_snake_length=4)
    envs.seed(0)
    rng = np.random.default_rng(0)
    obs, total = envs.reset(envs.obs_space()), np.zeros(64)
    returns: list[float] = []
    for _ in range(60):
        obs = envs.act({"move": greedy(obs, rng)}, envs.obs_space())
        total += obs.reward
        returns += total[obs.done].tolist()
        total[obs.done] = 0
    assert max(returns) == pytest.approx(1.0)
    assert min(returns) == 0
    assert len({round(6 * r) for r in returns}) == 7, "every number of growths was seen"


@given(
    seed=st.integers(0, 2**62),
    max_mines=st.integers(0, 6),
    width=st.floats(10, 60),
    translate=st.booleans(),
    steps=st.integers(1, 8),
)
def test_minefields_continue_like_plain_ones_from_any_state(
    seed: int, max_mines: int, width: float, translate: bool, steps: int
) -> None:
    """Also with mines on each other and on the target, as no episode begins."""
    rng = np.random.default_rng(seed)
    envs = VecMinefield(5, max_mines=max_mines, width=width, translate=translate, max_steps=9)
    envs.reset(envs.obs_space())
    mines = rng.uniform(-width, width, (5, max_mines, 2))
    mines[rng.random((5, max_mines)) < 0.3] = np.inf
    state = {
        "seed": seed,
        "episodes": rng.integers(9, size=5),
        "steps": rng.integers(9, size=5),
        "arrays": {
            "places": rng.uniform(-width, width, (5, 2)),
            "directions": rng.uniform(0, 2 * np.pi, 5),
            "targets": rng.uniform(-width, width, (5, 2)),
            "mines": mines,
        },
    }
    assert_goes_on(envs, state, 3, steps, rng)


@pytest.mark.slow
@given(
    seed=st.integers(0, 2**62),
    board_size=st.integers(2, 5),
    longest=st.integers(2, 6),
    players=st.integers(1, 2),
    steps=st.integers(1, 8),
)
def test_snakes_continue_like_plain_ones_from_any_state(
    seed: int, board_size: int, longest: int, players: int, steps: int
) -> None:
    """Also with overlapping snakes, food on snakes, and boards without a free cell."""
    rng = np.random.default_rng(seed)
    num_snakes, wide = 2, board_size + 2
    envs = VecMultiSnake(5, 0, board_size, num_snakes, players, longest, max_steps=9)
    envs.reset(envs.obs_space())
    inside = np.array([x * wide + y for x in range(1, wide - 1) for y in range(1, wide - 1)])
    cells = rng.choice(inside, (5, num_snakes, longest))
    lengths = rng.integers(1, longest + 1, (5, num_snakes, 1))
    cells[np.arange(longest) < longest - lengths] = 0
    food = np.stack([rng.permutation(inside)[:num_snakes] for _ in range(5)])
    food[:, 1] *= rng.integers(2, size=5)
    state = {
        "seed": seed,
        "episodes": rng.integers(9, size=5),
        "steps": rng.integers(9, size=5),
        "arrays": {
            "cells": cells,
            "food": food,
            "food_colors": rng.integers(num_snakes, size=(5, num_snakes)),
        },
    }
    assert_goes_on(envs, state, 4, steps, rng)


def assert_goes_on(
    envs: Any, state: dict[str, Any], num_choices: int, steps: int, rng: np.random.Generator
) -> None:
    obs = envs.set_state(state, envs.obs_space())
    plain = OneByOne(envs, go_on=True)
    assert_shown(obs, plain.shown())
    for _ in range(steps):
        choices = choices_of(obs, num_choices, rng)
        obs = envs.act({"move": choices}, envs.obs_space())
        assert_shown(obs, plain.act(choices))


def played(envs: ArrayEnvs, steps: int = 40, seed: int = 5, column: slice = slice(None)) -> Any:
    """Frames of a run in which the actions of an environment depend on its number alone."""
    envs.seed(seed)
    obs_space = envs.obs_space()
    frames = [envs.reset(obs_space)]
    num_choices, per_env = (3, 1) if isinstance(envs, VecMinefield) else (4, 2)
    for t in range(steps):
        chosen = np.random.default_rng(t).integers(num_choices, size=(9, per_env))[column]
        lengths = np.full(len(chosen), per_env)
        frames.append(envs.act({"move": Ragged(chosen.reshape(-1), lengths)}, obs_space))
    return frames


@pytest.mark.parametrize("make", BOTH)
def test_an_episode_does_not_depend_on_the_other_environments(make: Make) -> None:
    for whole, part in zip(
        played(make(9)), played(make(4, first_env_index=3), column=slice(3, 7)), strict=True
    ):
        for name, rows in whole.features.items():
            assert_same(part.features[name], rows[3:7])
        np.testing.assert_array_equal(part.reward, whole.reward[3:7])
        np.testing.assert_array_equal(part.done, whole.done[3:7])


@pytest.mark.parametrize("make", BOTH)
def test_a_run_is_a_function_of_its_seed(make: Make) -> None:
    first, again, other = (played(make(9), seed=seed) for seed in (1, 1, 2))
    for one, same in zip(first, again, strict=True):
        assert_same(one, same)
    names = [name for name in first[0].features if name != "__global__"]
    assert any(
        not np.array_equal(first[0].features[n].values, other[0].features[n].values) for n in names
    )
    assert any(obs.done.any() for obs in first) or make is VecMinefield
    unseeded = [make(3).reset(make(3).obs_space()).features[names[0]].values for _ in range(2)]
    assert not np.array_equal(*unseeded)


@pytest.mark.parametrize("make", BOTH)
def test_restored_state_continues_bit_for_bit(make: Make) -> None:
    envs, column = make(9), np.random.default_rng(0)
    played(envs, 7)
    state = unpack(pack(envs.get_state(), exact=True))
    resumed = make(9)
    obs_space = envs.obs_space()
    obs = resumed.set_state(state, obs_space)
    assert obs is not None
    num_choices = len(envs.action_space()["move"])  # type: ignore[arg-type]
    for _ in range(40):
        choices = choices_of(obs, num_choices, column)
        straight, obs = (e.act({"move": choices}, obs_space) for e in (envs, resumed))
        assert_same(obs, straight)
    assert_same(resumed.get_state(), envs.get_state())


def test_saved_state_does_not_change_later() -> None:
    envs = VecMinefield(9)
    played(envs, 3)
    state = envs.get_state()
    before = pack(state, exact=True)
    envs.set_state(state, envs.obs_space())
    for _ in range(5):
        envs.act({"move": Ragged(np.ones(9, np.int64), np.ones(9, np.int64))}, envs.obs_space())
    assert pack(state, exact=True) == before


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"seed": "one"}, "seed: expected a number, got 'one'"),
        ({"episodes": np.zeros(2, np.int64)}, r"episodes: expected int64 \(3,\), got int64 \(2,\)"),
        ({"steps": np.zeros(3)}, r"steps: expected int64 \(3,\), got float64 \(3,\)"),
    ],
)
def test_state_of_other_environments_raises(change: dict[str, Any], message: str) -> None:
    envs = VecMinefield(3)
    envs.reset(envs.obs_space())
    before = pack(envs.get_state(), exact=True)
    with pytest.raises(InvalidObservation, match=f"set_state: {message}"):
        envs.set_state(envs.get_state() | change, envs.obs_space())
    with pytest.raises(InvalidObservation, match=r"mines: expected float64 \(3, 10, 2\), got"):
        envs.set_state(VecMinefieldOf(2), envs.obs_space())
    assert pack(envs.get_state(), exact=True) == before, "nothing is half changed"


def VecMinefieldOf(max_mines: int) -> dict[str, Any]:  # noqa: N802
    envs = VecMinefield(3, max_mines=max_mines)
    envs.reset(envs.obs_space())
    return envs.get_state()


def test_filter_equals_that_of_env_list() -> None:
    """Positions of actors count in the order of the filter."""
    envs = VecMultiSnake(6)
    played(envs, 5, column=slice(6))
    obs_space = ObsSpace(
        entities={
            "Food": Entity(["color"]),
            "SnakeHead": Entity(["y", "x"]),
            "SnakeBody": Entity([]),
        }
    )
    obs = envs.set_state(envs.get_state(), obs_space)
    lists = EnvList(MultiSnake, 6)
    reset = lists.reset(obs_space)
    assert list(obs.features) == list(reset.features)
    np.testing.assert_array_equal(
        obs.action_masks["move"].actors.values, reset.action_masks["move"].actors.values
    )
    whole = envs.set_state(envs.get_state(), envs.obs_space())
    heads, food = whole.features["SnakeHead"].values, whole.features["Food"].values
    np.testing.assert_array_equal(obs.features["SnakeHead"].values, heads[:, [1, 0]])
    np.testing.assert_array_equal(obs.features["Food"].values, food[:, 2:])
    assert obs.features["SnakeBody"].values.shape[1] == 0
    step = ObsSpace(["step"], {"SnakeHead": Entity(["x"])})
    obs = envs.set_state(envs.get_state(), step)
    np.testing.assert_array_equal(obs.features["__global__"].values[:, 0], envs.steps)


@pytest.mark.parametrize(
    ("obs_space", "message"),
    [
        (ObsSpace(entities={"Mine": Entity(["x_pos"])}), "expected 'Vehicle', which acts, to be"),
        (ObsSpace(entities={"Vehicle": Entity(["z"])}), r"'Vehicle': expected .*, got \['z'\]"),
        (
            ObsSpace(entities={"Vehicle": Entity([Flag("x_pos")])}),
            r"numbers alone, as ArrayEnvs shows no labels, got kinds of \['Vehicle'\]; give a",
        ),
        (ObsSpace(entities={"Car": Entity([])}), r"expected some of .*'Vehicle'.*, got 'Car'"),
    ],
)
def test_unsupported_filters_raise(obs_space: ObsSpace, message: str) -> None:
    with pytest.raises(InvalidObservation, match=message):
        VecMinefield(3).reset(obs_space)


def test_actions_of_wrong_number_or_label_raise() -> None:
    envs = VecMinefield(3)
    obs_space, ones = envs.obs_space(), np.ones(3, np.int64)
    with pytest.raises(EntityEnvError, match="act: call reset first"):
        envs.act({"move": Ragged(ones, ones)}, obs_space)
    with pytest.raises(EntityEnvError, match="get_state: call reset first"):
        envs.get_state()
    envs.reset(obs_space)
    for chosen, message in [
        ({"go": Ragged(ones, ones)}, r"expected \['move'\], got \['go'\]"),
        (
            {"move": Ragged(ones[:2], ones[:2])},
            r"expected 1 choices for each of 3 .*, got \[1, 1\]",
        ),
        ({"move": Ragged(ones, np.array([2, 1, 0]))}, r"got \[2, 1, 0\]"),
        ({"move": Ragged(3 * ones, ones)}, "expected choices from 0 to 2, got 3 to 3"),
    ]:
        with pytest.raises(InvalidAction, match=message):
            envs.act(chosen, obs_space)
    assert (envs.steps == 0).all(), "nothing moved"
    with pytest.raises(EntityEnvError, match="num_envs: expected at least 1, got 0"):
        VecMinefield(0)
    with pytest.raises(ValueError, match="width: expected at least 10"):
        VecMinefield(1, width=9.0)
    with pytest.raises(ValueError, match="num_players"):
        VecMultiSnake(1, num_snakes=3, num_players=2)


@pytest.mark.parametrize(
    ("make", "plain"), [(VecMinefield, Minefield), (VecMultiSnake, MultiSnake)]
)
def test_environments_render_and_have_code_digests(make: Any, plain: Any) -> None:
    envs = make(2)
    envs.reset(envs.obs_space())
    pictures = envs.render(mode="rgb_array")
    assert pictures.dtype == np.uint8
    assert pictures.shape[0] == 2
    assert pictures.shape[3] == 3
    for cls in (make, plain, ArrayEnvs):
        assert f"{cls.__module__}.{cls.__qualname__}" in envs.world_code()
    assert "entity_env.vec.vec_env.VecEnv" not in envs.world_code()
