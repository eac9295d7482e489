"""Arguments of `reset(options=...)` that vary by episode."""

from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest

from entity_env import EnvList, ParallelEnvList, check_env
from entity_env.adapters.from_gymnasium import FromGymnasium
from entity_env.errors import EntityEnvError, InvalidSampler
from entity_env.spaces import GLOBAL
from entity_env.testing.random_play import random_choices
from entity_env.vec.variation import Variation
from entity_env.vec.vec_env import VecEnv
from tests.entity_env.adapters.worlds import Fall

VARY = {"gravity": "uniform 1 20", "wind": "choice -1 0 1"}


FALL = FromGymnasium.of(Fall, options=["gravity", "wind"])


class Kept(FromGymnasium):
    """The environment with `get_state` and `set_state`."""

    def __init__(self, **options: Any) -> None:
        super().__init__(Fall, options=["gravity", "wind"], **options)

    def get_state(self) -> dict[str, Any]:
        world = self.env.unwrapped
        rng = world.np_random.bit_generator.state["state"]
        numbers = [str(rng[name]) for name in ("state", "inc")]
        return {"place": world.place, "options": [world.gravity, world.wind], "rng": numbers}

    def set_state(self, state: Mapping[str, Any]) -> None:
        world = self.env.unwrapped
        world.reset(seed=0)
        world.place, (world.gravity, world.wind) = list(state["place"]), state["options"]
        numbers = dict(zip(("state", "inc"), map(int, state["rng"]), strict=True))
        whole = world.np_random.bit_generator.state
        world.np_random.bit_generator.state = {**whole, "state": numbers}
        self._observe(np.array(world.place), 0.0, False, False, {})


def frames(envs: VecEnv, count: int, obs: Any = None, first: int = 0) -> list[Any]:
    """Return features and rewards of `count` steps after a reset, or after given frames."""
    space, trajectory = envs.obs_space(), []
    obs = envs.reset(space) if obs is None else obs
    for step in range(first, first + count):
        chosen = random_choices(obs, envs.action_space(), np.random.default_rng(step))
        obs = envs.act(chosen, space)
        trajectory.append((obs.features[GLOBAL].values.tolist(), obs.reward.tolist()))
    return trajectory


def test_reset_gets_the_options_set_before() -> None:
    env = FALL(gravity=2.0)
    env.reset()
    assert env.set_parameters is not None
    env.set_parameters(wind=1)
    env.reset()
    env.set_parameters(gravity=3.0)
    env.reset()
    assert env.env.unwrapped.option_log == [
        {"gravity": 2.0},
        {"gravity": 2.0, "wind": 1},
        {"gravity": 3.0, "wind": 1},
    ]


def test_reset_without_options_passes_none() -> None:
    env = FromGymnasium(Fall, height=3.0)
    env.reset()
    assert env.set_parameters is None
    assert env.env.unwrapped.option_log == [None]


def test_episodes_draw_options_in_any_number_of_processes() -> None:
    trajectory = []
    for envs in EnvList(FALL, 4), ParallelEnvList(FALL, 4, 2), EnvList(Kept, 4):
        envs.seed(5)
        envs.vary(Variation.of(VARY))
        trajectory.append(frames(envs, 40))
        envs.close()
    assert trajectory[0] == trajectory[1] == trajectory[2]
    drawn = {reward for _, rewards in trajectory[0] for reward in rewards}
    assert len(drawn) > 8
    assert all(1 <= gravity <= 20 for gravity in drawn)
    first = [Variation.of(VARY).arguments(5, match, 0)["gravity"] for match in range(4)]
    assert trajectory[0][0][1] == [float(np.float32(gravity)) for gravity in first]


def test_saved_state_keeps_the_options_of_its_episode() -> None:
    straight, saved, resumed = EnvList(Kept, 3), EnvList(Kept, 3), EnvList(Kept, 3)
    for envs in straight, saved, resumed:
        envs.seed(1)
        envs.vary(Variation.of(VARY))
    expected = frames(straight, 30)
    frames(saved, 5)
    state = saved.get_state()
    assert state is not None
    assert state["arguments"] == [Variation.of(VARY).arguments(1, i, 0) for i in range(3)]
    obs = resumed.set_state(state, resumed.obs_space())
    assert frames(resumed, 25, obs, first=5) == expected[5:]


def test_options_can_be_checked() -> None:
    assert check_env(FALL, vary=VARY).ok
    report = check_env(FALL, vary={"gravity": "uniform -1 1"})
    assert "vary.gravity" in str(report)
    assert "expected a number above 0" in str(report)
    cart = FromGymnasium.of("CartPole-v1", options=["low", "high"])
    assert check_env(cart, vary={"low": "uniform -0.1 0", "high": "uniform 0.01 0.1"}).ok


def test_unknown_option_is_refused_with_the_closest_name() -> None:
    envs = EnvList(FALL, 1)
    expected = "expected an argument of FromGymnasium, which can vary gravity, wind, got 'gravty'"
    with pytest.raises(InvalidSampler, match=f"{expected}, did you mean gravity"):
        envs.vary(Variation.of({"gravty": "1"}))
    with pytest.raises(EntityEnvError, match=r"options: expected a list of names, got 'gravity'"):
        FromGymnasium(Fall, options="gravity")


def test_options_refused_by_the_environment_are_reported() -> None:
    envs = EnvList(FALL, 2)
    envs.seed(0)
    envs.vary(Variation.of({"gravity": "-1"}))
    with pytest.raises(ValueError, match="expected a number above 0") as raised:
        envs.reset(envs.obs_space())
    assert raised.value.__notes__ == ["in environment 0, episode 0, step 0, with {'gravity': -1}"]
