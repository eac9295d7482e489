"""The example environments: valid, reproducible, with the rules they state."""

import math
import random
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from entity_env import (
    Action,
    CategoricalAction,
    Environment,
    EnvList,
    GlobalCategoricalAction,
    GlobalCategoricalActionSpace,
    Match,
    Observation,
    PlainState,
    SelectEntityAction,
    SelectEntityActionMask,
    ValidatingEnv,
    action_index_to_actions,
    batch_obs,
)
from entity_env.examples import (
    ENV_REGISTRY,
    CherryPick,
    Count,
    Duel,
    FloorIsLava,
    Locks,
    Minefield,
    MineSweeper,
    MoveToOrigin,
    MultiArmedBandit,
    MultiSnake,
    NotHotdog,
    PickMatchingBalls,
    RockPaperScissors,
    TreasureHunt,
    Xor,
)
from entity_env.match import Solo
from entity_env.serialization.messages import pack, unpack
from entity_env.vec.validate import validate_observation
from tests.entity_env.builders import assert_same, play, random_choices

SOLO = [name for name, cls in ENV_REGISTRY.items() if issubclass(cls, Environment)]


@pytest.mark.slow
@pytest.mark.parametrize("name", SOLO)
def test_episodes_are_valid_and_end(name: str) -> None:
    cls = ENV_REGISTRY[name]
    assert issubclass(cls, Environment)
    env = ValidatingEnv(cls())
    env.seed(1)
    rng = np.random.default_rng(1)
    envs = EnvList(cls, 1)
    for _ in range(3):
        obs, steps = env.reset(), 0
        while not obs.done:
            batch = batch_obs([obs], env.obs_space(), env.action_space())
            choices = random_choices(envs, batch, rng)
            obs = env.act(
                action_index_to_actions(env.obs_space(), env.action_space(), choices, obs)
            )
            steps += 1
            assert steps < 10_000


@pytest.mark.parametrize("name", ENV_REGISTRY)
def test_episodes_are_a_function_of_the_seed(name: str) -> None:
    first, second = (play(EnvList(ENV_REGISTRY[name], 4, validate=True), 40) for _ in range(2))
    for one, other in zip(first, second, strict=True):
        assert_same(one, other)
    assert any(obs.done.any() for obs in first) or name in ("Minefield", "TreasureHunt", "Pairs")


def playable(name: str) -> Match:
    world = ENV_REGISTRY[name]()
    return world if isinstance(world, Match) else Solo(world)


def play_on(match: Match, views: list[Observation], steps: int, seed: int) -> list[Observation]:
    """The views of all sides over some steps at random, episode after episode."""
    obs_space, action_space = match.obs_space(), match.action_space()
    rng, seen = np.random.default_rng(seed), [*views]
    for _ in range(steps):
        if views[0].done:
            views = match.reset()
        else:
            chosen = []
            for view in views:
                batch = batch_obs([view], obs_space, action_space)
                choices = random_choices(match, batch, rng)
                chosen.append(action_index_to_actions(obs_space, action_space, choices, view))
            views = match.act(chosen)
        seen += views
    return seen


@pytest.mark.parametrize("name", ENV_REGISTRY)
@settings(max_examples=5)
@given(seed=st.integers(0, 2**32), before=st.integers(0, 20), after=st.integers(1, 20))
def test_restored_examples_continue_equally(name: str, seed: int, before: int, after: int) -> None:
    """A resumed run goes on in the middle of its episodes as if it had not been interrupted."""
    match = playable(name)
    match.seed(seed)
    sides = match.num_sides
    views = play_on(match, match.reset(), before, seed)[-sides:]
    state = world_of(match).get_state()
    straight = play_on(match, views, after, seed + 1)
    resumed = playable(name)
    world_of(resumed).set_state(unpack(pack(state)))
    for one, other in zip(play_on(resumed, views, after, seed + 1), straight, strict=True):
        spaces = match.obs_space(), match.action_space()
        assert_same(batch_obs([one], *spaces), batch_obs([other], *spaces))


def world_of(match: Match) -> Any:
    return match.env if isinstance(match, Solo) else match


class Odd(PlainState):
    def __init__(self) -> None:
        self.value: Any = None


@pytest.mark.parametrize(
    "value",
    [
        {"a": [(1, 2.5), {"b"}], 3: None},
        {(0, 1): True},
        np.arange(6, dtype=np.float32).reshape(3, 2),
        np.zeros((0, 7), dtype=np.int16),
        np.float32(0.1),
        np.array([["a", "long"]]),
        np.array([b"a", b""]),
        np.str_("text"),
        [],
    ],
)
def test_plain_state_restores_types(value: Any) -> None:
    world, restored = Odd(), Odd()
    world.value = value
    restored.set_state(unpack(pack(world.get_state())))
    assert type(restored.value) is type(value)
    np.testing.assert_equal(restored.value, value)
    assert getattr(restored.value, "dtype", None) == getattr(value, "dtype", None)
    assert restored.rng.random() == world.rng.random()


@given(
    axes=st.permutations(range(3)),
    shape=st.tuples(*[st.integers(0, 3)] * 3),
    step=st.sampled_from([1, 2, -1]),
)
def test_plain_state_keeps_the_order_of_arrays_in_memory(
    axes: list[int], shape: tuple[int, ...], step: int
) -> None:
    """Sums in float32 depend on it."""
    world, restored = Odd(), Odd()
    world.value = np.arange(np.prod(shape), dtype=np.float32).reshape(shape).transpose(axes)[::step]
    restored.set_state(unpack(pack(world.get_state(), exact=True)))
    np.testing.assert_array_equal(restored.value, world.value)
    in_memory = world.value.copy(order="K").ravel(order="K")
    np.testing.assert_array_equal(restored.value.ravel(order="K"), in_memory)
    assert restored.value.flags.writeable
    restored.set_state(world.get_state())
    np.testing.assert_array_equal(restored.value.ravel(order="K"), in_memory)


def test_sums_of_arrays_in_fortran_order_are_the_same_after_a_restore() -> None:
    world, restored = Odd(), Odd()
    values = np.random.default_rng(0).random((300, 200)).astype(np.float32)
    world.value = np.asfortranarray(values)
    assert world.value.sum() != values.sum(), "the order matters here"
    restored.set_state(unpack(pack(world.get_state(), exact=True)))
    assert restored.value.sum() == world.value.sum()


def test_plain_state_of_a_set_with_another_order_raises() -> None:
    world, restored = Odd(), Odd()
    world.value = set(range(100))
    for i in range(100):
        if i not in (64, 1, 33, 98):
            world.value.discard(i)
    with pytest.raises(TypeError, match=r"value: expected a set .* dictionary .* sorted list"):
        world.get_state()
    world.value = set()
    world.value.update((1, 33, 64, 98))
    restored.set_state(unpack(pack(world.get_state())))
    assert [*restored.value] == [*world.value]


def test_plain_state_of_unsupported_types_raises() -> None:
    world = Odd()
    world.value = [object()]
    with pytest.raises(TypeError, match="value: expected plain data, got object"):
        world.get_state()
    assert not hasattr(Environment, "get_state"), "who offers it can be told from who does not"


def by_label(env: Environment, **labels: str) -> dict[str, Action]:
    """Actions of the first actor, by label."""
    actions: dict[str, Action] = {}
    for name, label in labels.items():
        known = env.action_space()[name].index_to_label  # type: ignore[union-attr]
        index = known.index(label)
        if isinstance(env.action_space()[name], GlobalCategoricalActionSpace):
            actions[name] = GlobalCategoricalAction(index, label)
        else:
            actions[name] = CategoricalAction([0], np.array([index]), known)
    return actions


def test_move_to_origin_rewards_coming_closer() -> None:
    env = MoveToOrigin()
    env.seed(0)
    x, y, vx, vy, step = np.ravel(env.reset().features["Spaceship"])
    assert math.hypot(x, y) == pytest.approx(1.0)
    assert (vx, vy, step) == (0, 0, 0)
    env.x_pos, env.y_pos, env.distance = 3.0, 4.0, 5.0
    obs = env.act(by_label(env, horizontal_thruster="100% left", vertical_thruster="10% up"))
    np.testing.assert_allclose(
        obs.features["Spaceship"], [[2.99, 4.001, -0.01, 0.001, 1]], rtol=1e-6
    )
    assert obs.reward == pytest.approx(5.0 - math.hypot(2.99, 4.001))
    hold = by_label(env, horizontal_thruster="hold", vertical_thruster="hold")
    rest = [env.act(hold) for _ in range(31)]
    assert [o.done for o in rest] == [False] * 30 + [True]
    # 32 moves of (-0.01, 0.001) in all.
    assert obs.reward + sum(o.reward for o in rest) == pytest.approx(
        5.0 - math.hypot(3 - 0.32, 4 + 0.032)
    )


@pytest.mark.parametrize(
    ("horizontal", "vertical", "velocity"),
    [
        ("100% right", "100% up", (0.01, 0.01)),
        ("10% right", "10% down", (0.001, -0.001)),
        ("10% left", "100% down", (-0.001, -0.01)),
    ],
)
def test_thrusters_accelerate_by_their_labels(
    horizontal: str, vertical: str, velocity: tuple[float, float]
) -> None:
    env = MoveToOrigin()
    env.reset()
    env.act(by_label(env, horizontal_thruster=horizontal, vertical_thruster=vertical))
    assert (env.x_velocity, env.y_velocity) == velocity


@pytest.mark.parametrize("bits", range(8))
def test_xor_is_negated_by_the_global_feature(bits: int) -> None:
    env = Xor()
    env.reset()
    env.bit1, env.bit2, env.negate = bits & 1, bits >> 1 & 1, bits >> 2
    right = (env.bit1 != env.bit2) != bool(env.negate)
    for answer in (0, 1):
        obs = env.act(by_label(env, output=str(answer)))
        assert obs.done
        assert obs.reward == float(answer == right)


def test_only_arm_a_pays() -> None:
    env = MultiArmedBandit()
    env.reset()
    rewards = [env.act(by_label(env, pull=label)).reward for label in "ABCDE"]
    assert rewards == [1 / 32, 0, 0, 0, 0]
    env.reset()
    frames = [env.act(by_label(env, pull="A")) for _ in range(32)]
    assert sum(obs.reward for obs in frames) == 1.0
    assert [obs.done for obs in frames] == [False] * 31 + [True]


def test_not_hotdog_has_two_kinds_of_hotdogs_and_rewards_the_index() -> None:
    env = NotHotdog()
    seen = set()
    for seed in range(50):
        env.seed(seed)
        obs = env.reset()
        shown = "Hotdog" if "Hotdog" in obs.features else f"Object {obs.features['Object'][0][0]:g}"
        seen.add(shown)
        paid = shown != "Object 0"
        obs = env.act(by_label(env, classify=["hotdog", "not_hotdog"][paid]))
        assert (obs.reward, obs.done) == (1.0, True)
        env.reset()
        env.is_hotdog = 1 - env.is_hotdog
        assert (
            env.act(by_label(env, classify=["hotdog", "not_hotdog"][1 - env.is_hotdog])).reward == 0
        )
    assert seen == {"Hotdog", "Object 0", "Object 1"}


def test_count_rewards_the_number_of_beans_which_is_always_allowed() -> None:
    env = Count()
    seen = set()
    for seed in range(100):
        env.seed(seed)
        obs = env.reset()
        beans = obs.num_entities("Bean")
        seen.add(beans)
        mask: Any = obs.actions["count"].mask
        assert mask.shape == (1, 10)
        assert mask[0, beans]
        assert env.act(by_label(env, count=str(beans))).reward == 1.0
        assert env.act(by_label(env, count=str((beans + 1) % 10))).reward == 0.0
    assert seen == set(range(10))


def test_count_respects_masked_choices() -> None:
    env = Count(masked_choices=3)
    for seed in range(30):
        env.seed(seed)
        obs = env.reset()
        mask: Any = obs.actions["count"].mask
        assert obs.num_entities("Bean") < 3
        assert not mask[0, 3:].any()
    with pytest.raises(ValueError, match="masked_choices: expected 1 to 10, got 11"):
        Count(11)


def test_treasure_hunt_pays_treasures_and_ends_on_a_trap_or_when_none_is_left() -> None:
    env = TreasureHunt()
    env.seed(0)
    obs = env.reset()
    cells = [tuple(cell) for name in ("Trap", "Treasure") for cell in obs.features[name]]
    assert len({*cells, (0, 0)}) == 11
    env.traps, env.treasures = [(0, 2)], [(1, 0), (1, 1)]
    obs = env.act(by_label(env, move="right"))
    assert (obs.reward, obs.done, obs.features["Treasure"]) == (1.0, False, [(1, 1)])
    assert obs.global_features == [1, 0]
    obs = env.act(by_label(env, move="up"))
    assert (obs.reward, obs.done) == (1.0, True)
    env.reset()
    env.traps, env.treasures = [(-1, -1)], [(9, 9)]
    assert not env.act(by_label(env, move="down")).done
    obs = env.act(by_label(env, move="left"))
    assert (obs.reward, obs.done) == (0.0, True)


def test_treasure_hunt_has_walls() -> None:
    env = TreasureHunt()
    env.reset()
    env.traps, env.treasures = [], [(99, 99)]
    for move, place in [("up", (0, 10)), ("left", (-10, 10)), ("down", (-10, -10))]:
        for _ in range(25):
            obs = env.act(by_label(env, move=move))
        assert tuple(obs.global_features) == place


def attack(obs: Observation, targets: list[Any]) -> dict[str, Action]:
    return {"attack": SelectEntityAction(obs.ids["Ally"], targets)}


def shoot_at_random(obs: Observation, rng: random.Random) -> dict[str, Action]:
    return attack(obs, [rng.choice(obs.ids["Enemy"]) for _ in obs.ids["Ally"]])


def focus_the_weakest(obs: Observation, rng: random.Random) -> dict[str, Action]:
    """Everyone at the enemy with the fewest hit points, of those at the most dangerous."""
    enemies = zip(obs.features["Enemy"], obs.ids["Enemy"], strict=True)
    (_, target) = min(enemies, key=lambda enemy: (enemy[0][0], -enemy[0][1]))
    return attack(obs, [target] * len(obs.ids["Ally"]))


Player = Callable[[Observation, random.Random], dict[str, Action]]


def wins(first: Player, second: Player, games: int) -> list[float]:
    """1 for a win of the first side, 0.5 for a draw, 0 for a loss, in each of several games."""
    game, rng = Duel(), random.Random(0)
    game.seed(0)
    results = []
    for _ in range(games):
        views = game.reset()
        while not views[0].done:
            for view in views:
                validate_observation(view, game.obs_space(), game.action_space())
            views = game.act([first(views[0], rng), second(views[1], rng)])
        assert views[1].done
        first_won, second_won = (view.metrics["win"] for view in views)
        assert views[0].reward == -views[1].reward == first_won - second_won
        assert views[0].metrics["draw"] == 1 - first_won - second_won
        results.append((views[0].reward + 1) / 2)
    return results


@pytest.mark.slow
def test_duel_is_won_by_skill_from_either_side() -> None:
    as_first = wins(focus_the_weakest, shoot_at_random, 100)
    as_second = wins(shoot_at_random, focus_the_weakest, 100)
    assert sum(win == 1.0 for win in as_first) >= 92
    assert sum(win == 0.0 for win in as_second) >= 92


@pytest.mark.slow
def test_duel_between_equal_policies_is_even() -> None:
    assert set(wins(focus_the_weakest, focus_the_weakest, 20)) == {0.5}
    # 150 games, standard deviation of the mean at most 0.5 / sqrt(150) = 0.04.
    assert abs(np.mean(wins(shoot_at_random, shoot_at_random, 150)) - 0.5) < 0.09


def test_duel_begins_with_the_same_squad_on_both_sides() -> None:
    game = Duel()
    assert isinstance(game, Match)
    game.seed(4)
    first, second = game.reset()
    assert first.features["Ally"] == first.features["Enemy"] == second.features["Ally"]
    assert first.ids == {"Ally": [0, 1, 2, 3], "Enemy": [4, 5, 6, 7]}
    assert second.ids == {"Ally": [4, 5, 6, 7], "Enemy": [0, 1, 2, 3]}


def test_all_shots_of_a_duel_land_together() -> None:
    game = Duel()
    game.reset()
    game.hp, game.damage = [5, 1, 0, 0, 3, 9, 0, 0], [2, 1, 9, 9, 3, 1, 9, 9]
    first, second = game._observe()
    # 2 + 1 damage to unit 4, which still shoots unit 1; unit 5 takes 1 off unit 0.
    first, second = game.act([attack(first, [4, 4]), attack(second, [1, 0])])
    assert (first.features["Ally"], first.ids["Ally"]) == ([(4, 2)], [0])
    assert (first.features["Enemy"], first.ids["Enemy"]) == ([(9, 1)], [5])
    assert second.features["Ally"] == first.features["Enemy"]
    assert not first.done
    game.hp[5], game.hp[0] = 2, 1
    first, second = game.act([attack(first, [5]), attack(second, [0])])
    assert (first.done, first.reward, first.metrics) == (True, 0.0, {"win": 0.0, "draw": 1.0})
    assert (second.done, second.reward, second.metrics) == (True, 0.0, {"win": 0.0, "draw": 1.0})


def pick(env: Environment, actee: Any) -> dict[str, Action]:
    (name,) = env.action_space()
    return {name: SelectEntityAction([("Player", 0)], [actee])}


@pytest.mark.parametrize("num_cherries", [2, 5, 32])
def test_the_better_half_of_the_cherries_is_worth_1(num_cherries: int) -> None:
    env = CherryPick(num_cherries)
    env.seed(2)
    obs, total = env.reset(), 0.0
    for left in range(num_cherries, num_cherries - num_cherries // 2, -1):
        qualities = np.ravel(obs.features["Cherry"])
        assert (len(qualities), obs.done) == (left, False)
        obs = env.act(pick(env, int(qualities.argmax())))
        assert obs.reward == pytest.approx(qualities.max())
        total += obs.reward
    assert obs.done
    assert total == pytest.approx(1.0)
    with pytest.raises(ValueError, match="num_cherries: expected at least 2, got 1"):
        CherryPick(1)


def balls(colours: list[int], **kwargs: Any) -> PickMatchingBalls:
    """Balls of these colours, in this order."""
    env = PickMatchingBalls(max_balls=len(colours), **kwargs)
    env.rng.choices = lambda *_args, **_kwargs: colours  # type: ignore[method-assign]
    env.reset()
    return env


def test_balls_of_one_colour_count() -> None:
    env = balls([4, 1, 4, 1, 1], one_hot=True)
    obs = env.act(pick(env, 1))
    assert (obs.reward, obs.done) == (0.0, False)
    mask = obs.actions["Pick Ball"]
    assert isinstance(mask, SelectEntityActionMask)
    assert mask.actee_ids == [0, 2, 3, 4]
    expected = [[0] * 6 + [0] for _ in range(5)]
    for ball, colour in enumerate([4, 1, 4, 1, 1]):
        expected[ball][colour] = 1
    expected[1][6] = 1
    np.testing.assert_array_equal(obs.features["Ball"], expected)
    env.act(pick(env, 3))
    last = env.act(pick(env, 0))
    assert (last.reward, last.done) == (pytest.approx(2 / 3), True)
    np.testing.assert_array_equal(obs.features["Ball"], expected)  # what was shown stays


def test_all_balls_of_the_most_frequent_colour_are_worth_1() -> None:
    env = balls([2, 2, 0, 2])
    np.testing.assert_array_equal(
        env.act(pick(env, 0)).features["Ball"],
        [[2] * 6 + [1], [2] * 6 + [0], [0] * 7, [2] * 6 + [0]],
    )
    env.act(pick(env, 1))
    env.act(pick(env, 3))
    obs = env.act(pick(env, 2))
    assert (obs.reward, obs.done) == (1.0, True)
    env = balls([5, 5])
    env.act(pick(env, 1))
    obs = env.act(pick(env, 0))
    assert (obs.reward, obs.done) == (1.0, True), "nothing is left"


def test_number_of_balls_is_random_with_randomize() -> None:
    env = PickMatchingBalls(max_balls=5, randomize=True)
    env.seed(0)
    assert {env.reset().num_entities("Ball") for _ in range(50)} == {3, 4, 5}
    with pytest.raises(ValueError, match="max_balls: expected at least 3, got 2"):
        PickMatchingBalls(max_balls=2, randomize=True)


def minefield(**kwargs: Any) -> Minefield:
    """A vehicle at the origin that looks along x, a target and two mines."""
    env = Minefield(max_mines=0, **kwargs)
    env.reset()
    env.x_pos = env.y_pos = env.direction = 0.0
    env.put((10.5, 0.0), [(0.0, 9.5), (0.0, -50.0)])
    return env


def test_vehicle_reaches_the_target() -> None:
    env = minefield()
    forward = by_label(env, move="move forward")
    obs = env.act(forward)
    assert (obs.reward, obs.done) == (0.0, False)
    np.testing.assert_array_equal(obs.features["Vehicle"], [[3, 0, 0, 1]])
    np.testing.assert_array_equal(obs.features["Target"], [[10.5, 0]])
    obs = env.act(forward)  # at 6, which is 4.5 away
    assert (obs.reward, obs.done) == (1.0, True)


def test_vehicle_turns_and_a_mine_ends_the_episode() -> None:
    env = minefield(translate=True)
    for turns in range(1, 5):
        obs = env.act(by_label(env, move="turn right"))
        np.testing.assert_allclose(
            obs.features["Vehicle"], [[0, 0, turns * math.pi / 8, turns]], rtol=1e-6
        )
    obs = env.act(by_label(env, move="move forward"))
    np.testing.assert_allclose(
        obs.features["Mine"], [[0, 6.5], [0, -53]], atol=1e-6, err_msg="relative to the vehicle"
    )
    np.testing.assert_allclose(obs.features["Target"], [[10.5, -3]], atol=1e-6)
    assert not obs.done
    obs = env.act(by_label(env, move="move forward"))  # at (0, 6), 3.5 from the mine
    assert (obs.reward, obs.done) == (0.0, True)
    env = minefield()
    obs = env.act(by_label(env, move="turn left"))
    assert obs.features["Vehicle"][0][2] == pytest.approx(2 * math.pi - math.pi / 8)


def test_minefield_keeps_clearance_and_ends_at_max_steps() -> None:
    env = Minefield(max_mines=30, max_steps=3, width=60.0)
    env.seed(0)
    for _ in range(30):
        obs = env.reset()
        assert not obs.done
        places = [(env.x_pos, env.y_pos), env.target, *env.mines]
        for i, mine in enumerate(env.mines, start=2):
            assert all(math.dist(mine, other) >= 15 for other in places[:i])
        assert np.abs(places).max() <= 30
    assert 0 < obs.num_entities("Mine") < 30
    turn = by_label(env, move="turn left")
    assert [env.act(turn).done for _ in range(3)] == [False, False, True]


def snakes(
    bodies: list[list[tuple[int, int]]], food: list[tuple[int, int]], **kwargs: Any
) -> MultiSnake:
    """Snakes from tail to head, and a piece of food for each."""
    env = MultiSnake(num_snakes=len(bodies), **kwargs)
    env.reset()
    env.snakes = [[(x, y, color) for x, y in body] for color, body in enumerate(bodies)]
    env.food = [(x, y, color) for color, (x, y) in enumerate(food)]
    return env


def crawl(env: MultiSnake, *labels: str) -> Observation:
    known = ["up", "down", "left", "right"]
    indices = np.array([known.index(label) for label in labels])
    return env.act({"move": CategoricalAction(env.ids, indices, known)})


def test_snakes_move_and_grow_on_food_of_their_colour() -> None:
    env = snakes([[(1, 1), (1, 2)], [(5, 5)]], food=[(1, 3), (9, 9)])
    obs = crawl(env, "up", "left")
    assert obs.features["SnakeHead"] == [(1, 3, 0), (4, 5, 1)]
    assert obs.features["SnakeBody"] == [(1, 1, 0), (1, 2, 0)]
    # One of ten segments to grow, by one of two snakes.
    assert (obs.reward, obs.done) == (pytest.approx(1 / 20), False)
    assert sorted(color for *_, color in obs.features["Food"]) == [0, 1], "there is new food"
    env.food = [(0, 0, 0), (9, 9, 1)]
    obs = crawl(env, "right", "down")
    assert obs.features["SnakeHead"] == [(2, 3, 0), (4, 4, 1)]
    assert obs.features["SnakeBody"] == [(1, 2, 0), (1, 3, 0)]
    assert (obs.reward, obs.global_features) == (0.0, [2])


@pytest.mark.parametrize(
    ("first", "second", "done"),
    [
        ("left", "up", True),  # off the board
        ("down", "up", True),  # into itself
        ("right", "left", True),  # the second into the first, which has moved before it
        ("right", "up", True),  # the second eats the food of the first
        ("right", "right", False),
        ("up", "left", False),
    ],
)
def test_snakes_die_of_walls_segments_and_the_wrong_food(
    first: str, second: str, done: bool
) -> None:
    env = snakes([[(0, 0), (0, 1)], [(2, 1)]], food=[(2, 2), (9, 9)])
    obs = crawl(env, first, second)
    assert (obs.done, obs.reward) == (done, 0.0)


def test_snakes_stop_growing_and_win_at_full_length() -> None:
    env = snakes([[(0, 0), (0, 1)], [(5, 0), (5, 1), (5, 2)]], [(0, 2), (5, 3)], max_snake_length=3)
    obs = crawl(env, "right", "up")
    assert (obs.reward, obs.done, len(env.snakes[1])) == (0.0, False, 3)
    assert env.snakes[1][-1] == (5, 3, 1)
    env.food = [(2, 1, 0), (9, 9, 1)]
    obs = crawl(env, "right", "up")
    assert (obs.reward, obs.done) == (pytest.approx(1 / 2 / 2), True)


def test_snakes_of_several_players_and_max_steps() -> None:
    env = snakes([[(0, 0)], [(5, 5)]], [(9, 8), (5, 6)], num_players=2, max_snake_length=2)
    obs = crawl(env, "up", "up")
    assert (obs.reward, obs.done) == (0.0, True), "the second player has won"
    env = snakes([[(0, 0)]], [(9, 9)], max_steps=2)
    assert [crawl(env, move).done for move in ("up", "right")] == [False, True]
    for wrong in ({"num_snakes": 10}, {"num_players": 3}, {"max_snake_length": 1}):
        with pytest.raises(ValueError, match=next(iter(wrong))):
            MultiSnake(**wrong)


def test_food_appears_on_a_free_cell_if_there_is_one() -> None:
    env = MultiSnake(board_size=2, num_snakes=1, max_snake_length=5)
    for cells, expected in [([(0, 0), (0, 1)], (1, 0)), ([(0, 0), (0, 1), (1, 0)], None)]:
        env.reset()
        env.snakes, env.food = [[(x, y, 0) for x, y in cells]], [(1, 1, 0)]
        env._place_food(0)
        assert env.food[1:] == ([(*expected, 0)] if expected else [])


def test_only_the_high_ground_is_rewarded() -> None:
    env = FloorIsLava()
    ways = {(0, 1): "n", (1, 1): "ne", (1, 0): "e", (1, -1): "se"}
    ways |= {(0, -1): "s", (-1, -1): "sw", (-1, 0): "w", (-1, 1): "nw"}
    numbers = set()
    for seed in range(60):
        env.seed(seed)
        obs = env.reset()
        [(x, y)], [(high_x, high_y)] = obs.features["Player"], obs.features["HighGround"]
        lava = obs.features["Lava"]
        around = [(tx - x, ty - y) for tx, ty in [*lava, (high_x, high_y)]]
        assert len(set(around)) == len(around)
        assert set(around) <= ways.keys()
        numbers.add(len(lava))
        safe = ways[(high_x - x, high_y - y)]
        for way in ways.values():
            env.player = (x, y)
            obs = env.act(by_label(env, move=way))
            assert (obs.reward, obs.done) == (float(way == safe), True)
    assert numbers == set(range(8))


def sweeper(mines: list[Any], robots: list[Any], **kwargs: Any) -> MineSweeper:
    env = MineSweeper(**kwargs)
    env.reset()
    env.mines, env.robots = mines, robots
    return env


def sweep(env: MineSweeper, *labels: str, fire: tuple[str, int] | None = None) -> Observation:
    known = ["Up", "Down", "Left", "Right", "Defuse Mines"]
    move = CategoricalAction(
        [("Robot", i) for i in range(len(labels))], np.array(list(map(known.index, labels))), known
    )
    cannon = [("Orbital Cannon", 0)] if fire else []
    return env.act(
        {"Move": move, "Fire Orbital Cannon": SelectEntityAction(cannon, [fire] if fire else [])}
    )


def test_robots_defuse_adjacent_mines() -> None:
    env = sweeper([(2, 2), (3, 3), (2, 4), (1, 3)], [(2, 3), (5, 5)])
    obs = sweep(env, "Defuse Mines", "Left")
    assert (obs.features["Mine"], obs.reward, obs.done) == ([], 1.0, True)
    env = sweeper([(1, 1), (0, 2), (2, 0)], [(1, 0), (5, 5)])
    obs = sweep(env, "Defuse Mines", "Down")
    assert obs.features["Mine"] == [(0, 2)]
    assert obs.features["Robot"] == [(1, 0), (5, 4)]
    assert (obs.reward, obs.done) == (0.0, False)


def test_mines_take_robots_and_robots_stay_on_the_board() -> None:
    env = sweeper([(0, 1), (5, 4)], [(0, 0), (5, 5)])
    mask: Any = env._observe().actions["Move"].mask
    np.testing.assert_array_equal(
        mask, [[True, False, False, True, True], [False, True, True, False, True]]
    )
    obs = sweep(env, "Up", "Left")
    assert (obs.features["Robot"], obs.done) == ([(4, 5)], False)
    obs = sweep(env, "Down")
    assert (obs.features["Robot"], obs.done) == ([(4, 4)], False)
    obs = sweep(env, "Right")
    assert (obs.features["Robot"], obs.reward, obs.done) == ([], 0.0, True)
    # A mine that another robot defuses in the same step does no harm.
    env = sweeper([(0, 1), (5, 5)], [(0, 0), (1, 1)])
    assert sweep(env, "Up", "Defuse Mines").features["Robot"] == [(0, 1), (1, 1)]


def test_orbital_cannon_fires_when_it_has_cooled_down() -> None:
    env = sweeper([(5, 5), (0, 5)], [(0, 0), (3, 3)], orbital_cannon=True, cooldown_period=2)
    cooldowns, gunners = [], []
    for fire in (None, None, ("Mine", 0), None, None, ("Robot", 0)):
        obs = sweep(env, "Right", "Defuse Mines", fire=fire)
        cooldowns.append(obs.features["Orbital Cannon"])
        mask: Any = obs.actions["Fire Orbital Cannon"]
        gunners.append(mask.actor_types)
    assert cooldowns == [[[n]] for n in (1, 0, 2, 1, 0, 2)]
    assert gunners == [["Orbital Cannon"] if n == 0 else [] for n in (1, 0, 2, 1, 0, 2)]
    assert (obs.features["Mine"], obs.features["Robot"]) == ([(0, 5)], [(3, 3)])
    with pytest.raises(ValueError, match=r"nmines, nrobots: .* 2 \* 2, got 5 and 2"):
        MineSweeper(width=2, height=2)


@pytest.mark.parametrize("cheat", [False, True])
def test_rock_paper_scissors_hides_the_opponent_unless_cheat(cheat: bool) -> None:
    env = RockPaperScissors(cheat=cheat)
    env.seed(0)
    throws = ["rock", "paper", "scissors"]
    beats = {"rock": "scissors", "paper": "rock", "scissors": "paper"}
    seen = dict.fromkeys(throws, 0)
    for _ in range(1000):
        obs = env.reset()
        assert obs.visible == {"Opponent": [cheat]}
        (one_hot,) = obs.features["Opponent"]
        theirs = throws[list(one_hot).index(1.0)]
        seen[theirs] += 1
        for ours in throws:
            last = env.act(by_label(env, throw=ours))
            assert (last.reward, last.done) == (2.0 * (beats[ours] == theirs), True)
    # Standard deviation at most 0.5 * sqrt(1000) = 16.
    np.testing.assert_allclose(list(seen.values()), [500, 300, 200], atol=64)


def test_squad_size_defaults_to_four() -> None:
    for squad in (1, 2, 6):
        world = Duel(squad)
        world.seed(0)
        for side in world.reset():
            assert side.num_entities("Ally") == side.num_entities("Enemy") == squad
        world.set_parameters(squad=4)
        plain = Duel()
        for one in (world, plain):
            one.seed(1)
        for side, same in zip(world.reset(), plain.reset(), strict=True):
            assert (side.features, side.ids) == (same.features, same.ids)
        assert world.get_state() == plain.get_state()
    world.set_parameters()
    assert world.squad == 4
    with pytest.raises(ValueError, match="squad: expected at least 1, got 0"):
        Duel(squad=0)


def test_old_states_without_squad_size_have_four_units() -> None:
    world = Duel()
    world.seed(0)
    world.reset()
    state = world.get_state()
    del state["squad"]
    later = Duel()
    later.set_state(state)
    assert later.reset()[0].num_entities("Ally") == 4


def test_locks_open_with_the_key_of_their_shape() -> None:
    env = Locks(length=2, keys=4)
    env.seed(0)
    obs = env.reset()
    for step in (1, 2):
        [lock], keys = obs.features["Lock"], [*obs.features["Key"]]
        assert len({shape for (shape,) in keys}) == 4, "each has another shape"
        fits = keys.index(lock)
        obs = env.act({"pick": SelectEntityAction(["lock"], [fits])})
        assert (obs.reward, obs.done) == (float(step == 2), step == 2)
    assert obs.metrics == {"opened": 2.0}
    obs = env.reset()
    wrong = next(i for i, key in enumerate(obs.features["Key"]) if key != obs.features["Lock"][0])
    obs = env.act({"pick": SelectEntityAction(["lock"], [wrong])})
    assert (obs.reward, obs.done, obs.metrics) == (0.0, True, {"opened": 0.0})
    for bad in ({"length": 0}, {"keys": 1}, {"keys": 7}):
        with pytest.raises(ValueError, match=f"{next(iter(bad))}: expected .*, got"):
            Locks(**bad)


def test_one_key_in_three_passes_a_lock() -> None:
    env = Locks(length=1)
    env.seed(0)
    passed = 0.0
    for _ in range(3000):
        env.reset()
        passed += env.act({"pick": SelectEntityAction(["lock"], [0])}).reward
    # Standard deviation sqrt(3000 * 2 / 9) = 26.
    assert abs(passed - 1000) < 104
