"""The example environments: valid, reproducible, with the rules they state."""

import math
import random
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from entity_env import (
    Action,
    CategoricalAction,
    Environment,
    EnvList,
    GlobalCategoricalAction,
    Match,
    Observation,
    SelectEntityAction,
    ValidatingEnv,
    action_index_to_actions,
    batch_obs,
)
from entity_env.examples import (
    ENV_REGISTRY,
    Count,
    Duel,
    MoveToOrigin,
    MultiArmedBandit,
    NotHotdog,
    TreasureHunt,
    Xor,
)
from entity_env.validate import validate_observation
from tests.entity_env.test_batch import assert_same
from tests.entity_env.test_vec_envs import play, random_choices

SOLO = [name for name, cls in ENV_REGISTRY.items() if issubclass(cls, Environment)]


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
    assert any(obs.done.any() for obs in first) or name == "TreasureHunt"


def by_label(env: Environment, **labels: str) -> dict[str, Action]:
    """Actions of the first actor, by label."""
    actions: dict[str, Action] = {}
    for name, label in labels.items():
        known = env.action_space()[name].index_to_label  # type: ignore[union-attr]
        index = known.index(label)
        if name in ("pull", "move", "output"):
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
def test_thrusters_do_what_their_labels_say(
    horizontal: str, vertical: str, velocity: tuple[float, float]
) -> None:
    env = MoveToOrigin()
    env.reset()
    env.act(by_label(env, horizontal_thruster=horizontal, vertical_thruster=vertical))
    assert (env.x_velocity, env.y_velocity) == velocity


@pytest.mark.parametrize("bits", range(8))
def test_xor_is_negated_on_demand(bits: int) -> None:
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


def test_not_hotdog_shows_hotdogs_in_two_ways_and_pays_the_index() -> None:
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


def test_count_pays_the_number_of_beans_which_is_always_allowed() -> None:
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


def test_count_keeps_to_its_first_choices() -> None:
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


def test_duel_is_won_by_skill_from_either_side() -> None:
    as_first = wins(focus_the_weakest, shoot_at_random, 100)
    as_second = wins(shoot_at_random, focus_the_weakest, 100)
    assert sum(win == 1.0 for win in as_first) >= 92
    assert sum(win == 0.0 for win in as_second) >= 92


def test_duel_between_equals_is_even() -> None:
    assert set(wins(focus_the_weakest, focus_the_weakest, 20)) == {0.5}
    # 300 games, standard deviation of the mean at most 0.5 / sqrt(300) = 0.03.
    assert abs(np.mean(wins(shoot_at_random, shoot_at_random, 300)) - 0.5) < 0.09


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
