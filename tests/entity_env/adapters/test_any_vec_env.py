"""Arrays of third-party vectorised environments."""

from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest

from entity_env import (
    CategoricalActionSpace,
    ContinuousActionSpace,
    Entity,
    InvalidObservation,
    InvalidSpace,
    ObsSpace,
    VecCategoricalActionMask,
    VecContinuousActionMask,
    VecEnv,
    VecObs,
)
from entity_env.adapters.any_vec_env import AnyVecEnv
from entity_env.ragged import Ragged
from entity_env.testing.random_play import random_choices

ONE_EACH = np.ones(2, dtype=np.int64)
ZEROS = np.zeros(2, np.float32)
ALL = np.ones((2, 2), np.bool_)
SPACE = ObsSpace(entities={"A": Entity(["x"])})


class Shows(VecEnv):
    """Two environments that return valid frames first, then invalid arrays."""

    def __init__(self, **changed: Any) -> None:
        self.changed = changed

    def obs_space(self) -> ObsSpace:
        return SPACE

    def action_space(self) -> dict[str, Any]:
        return {"go": CategoricalActionSpace(["l", "r"])}

    def __len__(self) -> int:
        return 2

    def render(self, **kwargs: Any) -> Any:
        raise NotImplementedError

    def reset(self, obs_config: ObsSpace) -> VecObs:
        return self.show()

    def act(self, actions: Mapping[str, Ragged], obs_filter: ObsSpace) -> VecObs:
        return self.show(**self.changed)

    def show(
        self,
        x: Any = ZEROS[:, None],
        seen: Any = ZEROS == 0,
        mask: Any = ALL,
        reward: Any = ZEROS,
        done: Any = ZEROS == 1,
    ) -> VecObs:
        actors = Ragged(np.zeros(2, np.int64), ONE_EACH)
        return VecObs(
            features={"A": Ragged(x, ONE_EACH)},
            visible={"A": Ragged(seen, ONE_EACH)},
            action_masks={"go": VecCategoricalActionMask(actors, Ragged(mask, ONE_EACH))},
            reward=reward,
            done=done,
            metrics={},
        )


class CutsOff(Shows):
    """Two environments; the second truncates its episode after the first step."""

    def act(self, actions: Mapping[str, Ragged], obs_filter: ObsSpace) -> VecObs:
        obs = self.show(done=np.array([False, True]))
        obs.truncated, final = obs.done, self.show()
        obs.final = {"none": None, "both": final, "its own": final.take(np.array([1]))}[
            self.changed["final"]
        ]
        return obs


@pytest.mark.parametrize(("final", "got"), [("none", 0), ("both", 2)])
def test_truncated_episode_without_its_last_observation_is_refused(final: str, got: int) -> None:
    envs = AnyVecEnv(CutsOff(final=final))
    envs.reset(SPACE)
    words = f"^environment 1, .*final: expected 1 frames, the last observation .* got {got}"
    with pytest.raises(InvalidObservation, match=words):
        envs.act({"go": Ragged(np.zeros(2, np.int64), ONE_EACH)}, SPACE)


def test_last_observations_of_truncated_episodes_are_preserved() -> None:
    envs = AnyVecEnv(CutsOff(final="its own"))
    envs.reset(SPACE)
    obs = envs.act({"go": Ragged(np.zeros(2, np.int64), ONE_EACH)}, SPACE)
    assert obs.final is not None
    assert len(obs.final) == 1


class Sides(Shows):
    """Two environments that are sides of a match."""

    sides = 2


def test_sides_of_matches_are_preserved() -> None:
    assert AnyVecEnv(Sides()).sides == 2
    assert AnyVecEnv(Shows()).sides == 1


@pytest.mark.parametrize("sides", [0, 3, 2.0, "two"])
def test_sides_must_divide_the_number_of_environments(sides: Any) -> None:
    envs = Shows()
    envs.sides = sides
    with pytest.raises(InvalidSpace, match="sides: expected a divisor"):
        AnyVecEnv(envs)


ODD: dict[str, tuple[str, Any, str]] = {
    "complex features": (
        "x",
        np.ones((2, 1), complex),
        "features of 'A': expected numbers, got c",
    ),
    "text as features": ("x", np.array([["1"], ["2"]]), "features of 'A': expected numbers"),
    "dates as features": ("x", np.zeros((2, 1), "M8[s]"), "features of 'A': expected numbers"),
    "masked features": ("x", np.ma.zeros((2, 1), np.float32), "features of 'A': .*masked array"),
    "complex rewards": ("reward", np.ones(2, complex), "reward: expected numbers, got complex"),
    "huge rewards": ("reward", np.array([10**400, 0], object), "reward: .*too large"),
    "masked rewards": ("reward", np.ma.zeros(2, np.float32), "reward: .*masked array"),
    "text as ends": ("done", np.array(["no", "no"]), "done: expected booleans"),
    "fractions as ends": ("done", np.array([0.5, 1]), "done: expected booleans"),
    "probabilities as a mask": (
        "mask",
        np.full((2, 2), 0.5),
        "actions.*mask: expected booleans",
    ),
    "a masked mask": ("mask", np.ma.ones((2, 2), np.bool_), "actions.*mask: expected booleans"),
    "text as visibility": ("seen", np.array(["n", "o"]), r"visible\['A'\]: expected booleans"),
}


@pytest.mark.parametrize("validate", [False, True])
@pytest.mark.parametrize("kind", ODD)
def test_invalid_array_is_refused_with_field_and_class(kind: str, validate: bool) -> None:
    field, values, message = ODD[kind]
    envs = AnyVecEnv(Shows(**{field: values}), validate)
    envs.reset(SPACE)
    with pytest.raises(InvalidObservation, match=f"^environment Shows: {message}"):
        envs.act({}, SPACE)


def test_infinite_number_is_refused_with_environment_and_step() -> None:
    envs = AnyVecEnv(Shows(), validate=True)
    envs.reset(SPACE)
    envs.act({}, SPACE)
    envs.env.changed = {"x": np.array([[0.0], [np.inf]])}
    with pytest.raises(InvalidObservation, match=r"^environment 1, step 2: features of 'A'"):
        envs.act({}, SPACE)


@pytest.mark.parametrize("dtype", [np.bool_, np.int8, np.uint16, np.int64, np.float16, np.float64])
def test_real_numbers_of_other_dtypes_are_converted(dtype: Any) -> None:
    ones = {"x": (2, 1), "reward": 2, "done": 2, "mask": (2, 2), "seen": 2}
    envs = AnyVecEnv(Shows(**{name: np.ones(shape, dtype) for name, shape in ones.items()}))
    envs.reset(SPACE)
    obs = envs.act({}, SPACE)
    assert obs.features["A"].values.dtype == obs.reward.dtype == np.float32
    assert obs.done.dtype == obs.visible["A"].values.dtype == np.bool_
    mask = obs.action_masks["go"].mask
    assert mask is not None
    assert mask.values.dtype == np.bool_
    assert obs.features["A"].values.all()
    assert obs.reward.all()
    assert obs.done.all()


class Numbers(Shows):
    """Two environments with a continuous action and bounds of any dtype."""

    def __init__(self, dtype: Any = np.float64) -> None:
        super().__init__()
        self.dtype = dtype
        self.action_log: list[Any] = []

    def action_space(self) -> dict[str, Any]:
        return {"aim": ContinuousActionSpace({"x": (-1, 1)})}

    def act(self, actions: Mapping[str, Ragged], obs_filter: ObsSpace) -> VecObs:
        self.action_log.append(actions["aim"].values)
        return self.show()

    def show(self, **changed: Any) -> VecObs:
        obs = super().show()
        low, high = (Ragged(np.full((2, 1), x, self.dtype), ONE_EACH) for x in (0, 1))
        actors = Ragged(np.zeros(2, np.int64), ONE_EACH)
        obs.action_masks = {"aim": VecContinuousActionMask(actors, low, high)}
        return obs


@pytest.mark.parametrize("dtype", [np.float32, np.float64, np.int64])
def test_bounds_of_other_dtypes_are_converted(dtype: Any) -> None:
    envs = AnyVecEnv(Numbers(dtype), validate=True)
    obs = envs.reset(SPACE)
    mask = obs.action_masks["aim"]
    assert isinstance(mask, VecContinuousActionMask)
    assert mask.low.values.dtype == mask.high.values.dtype == np.float32
    choices = random_choices(obs, envs.action_space(), np.random.default_rng(0))
    envs.act(choices, SPACE)
    assert np.array_equal(envs.env.action_log[0], choices["aim"].values)


def test_non_numeric_bounds_are_refused() -> None:
    envs = AnyVecEnv(Numbers(np.str_))
    with pytest.raises(InvalidObservation, match=r"actions\['aim'\].low: expected numbers"):
        envs.reset(SPACE)


def test_entity_gym_buffers_refuse_continuous_actions() -> None:
    class Buffers(Numbers):
        def show(self, **changed: Any) -> Any:
            return object()

    with pytest.raises(
        InvalidObservation, match=r"actions\['aim'\]: expected a VecObs of Ragged"
    ) as e:
        AnyVecEnv(Buffers()).reset(SPACE)
    assert "\n" not in str(e.value)
