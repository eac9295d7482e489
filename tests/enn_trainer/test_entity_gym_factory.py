"""Factories and vectorised environments written for entity-gym are trained as they are."""

import random
from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt
import pytest
import torch

from enn_trainer import EnvConfig
from entity_env import (
    CategoricalActionSpace,
    Entity,
    EnvList,
    GlobalCategoricalActionSpace,
    InvalidObservation,
    ObsSpace,
    SelectEntityActionSpace,
    VecCategoricalActionMask,
    VecEnv,
    VecObs,
    VecSelectEntityActionMask,
)
from entity_env.adapters.any_vec_env import AnyVecEnv
from entity_env.examples import Xor
from tests.enn_trainer.builders import run_small, weights

ragged_buffer = pytest.importorskip("ragged_buffer")


class BufferEnv(VecEnv):
    """In the style of entity-gym: buffers in, buffers out, no seeds, nothing truncated."""

    def __init__(self, num_envs: int) -> None:
        self.num_envs = num_envs
        self.seen: list[Any] = []

    def obs_space(self) -> ObsSpace:
        return ObsSpace(entities={"unit": Entity(["x"])})

    def action_space(self) -> dict[str, Any]:
        return {
            "move": CategoricalActionSpace(["a", "b", "c"]),
            "aim": SelectEntityActionSpace(),
            "shout": GlobalCategoricalActionSpace(["no", "yes"]),
        }

    def reset(self, obs_config: ObsSpace) -> VecObs:
        return self._observe(np.zeros(self.num_envs))

    def act(self, actions: Mapping[str, Any], obs_filter: ObsSpace) -> VecObs:
        assert all(isinstance(a, ragged_buffer.RaggedBufferI64) for a in actions.values())
        self.seen.append({name: a.as_array().copy() for name, a in actions.items()})
        assert np.array_equal(actions["move"].size1(), self.counts)
        return self._observe(
            np.array([actions["shout"][i].as_array()[0, 0] for i in range(self.num_envs)])
        )

    def render(self, **kwargs: Any) -> npt.NDArray[np.uint8]:
        raise NotImplementedError

    def __len__(self) -> int:
        return self.num_envs

    def _observe(self, reward: npt.NDArray[np.float64]) -> VecObs:
        n = self.num_envs
        self.counts = np.array([random.randint(0, 3) for _ in range(n)], dtype=np.int64)
        everyone = np.concatenate([np.arange(c) for c in self.counts]).reshape(-1, 1)

        def indices() -> Any:
            return ragged_buffer.RaggedBufferI64.from_flattened(
                everyone.astype(np.int64), self.counts
            )

        features = ragged_buffer.RaggedBufferF32.from_flattened(
            np.ones((len(everyone), 1), dtype=np.float32), self.counts
        )
        glob = ragged_buffer.RaggedBufferF32.from_flattened(
            np.zeros((n, 0), dtype=np.float32), np.ones(n, dtype=np.int64)
        )
        shouting = ragged_buffer.RaggedBufferI64.from_flattened(
            self.counts.reshape(-1, 1), np.ones(n, dtype=np.int64)
        )
        return VecObs(
            features={"unit": features, "__global__": glob},
            visible={},
            action_masks={
                "move": VecCategoricalActionMask(indices(), None),
                "aim": VecSelectEntityActionMask(indices(), indices()),
                "shout": VecCategoricalActionMask(shouting, None),
            },
            reward=reward.astype(np.float32),
            done=np.array([random.random() < 0.3 for _ in range(n)]),
            metrics={},
        )


def test_vectorised_environment_of_ragged_buffers_is_trained(tmp_path: Path) -> None:
    made: list[BufferEnv] = []

    def factory(config: EnvConfig, num_envs: int, processes: int, first: int) -> BufferEnv:
        made.append(BufferEnv(num_envs))
        return made[-1]

    manager = run_small(tmp_path, env=factory)
    assert manager.state.step == 72
    (env,) = made
    assert len(env.seen) == 12
    assert {name: a.shape[1] for name, a in env.seen[0].items()} == {
        "move": 1,
        "aim": 1,
        "shout": 1,
    }


def test_factory_of_environment_lists_trains_like_the_class(tmp_path: Path) -> None:
    def factory(config: EnvConfig, num_envs: int, processes: int, first: int) -> VecEnv:
        return EnvList(Xor, num_envs)

    assert torch.equal(
        weights(run_small(tmp_path, env=factory)), weights(run_small(tmp_path, env=Xor))
    )


def test_invalid_environments_are_refused(tmp_path: Path) -> None:
    with pytest.raises(TypeError, match="subclass of Environment"):
        run_small(tmp_path, env=dict)
    with pytest.raises(TypeError, match="a class, a factory or a function"):
        run_small(tmp_path, env="Xor")


def test_custom_vectorised_environment_gets_ragged_arrays() -> None:
    envs = AnyVecEnv(EnvList(Xor, 2))
    obs = envs.reset(envs.obs_space())
    assert obs.features["Input"].items() == 4


class Reusing(VecEnv):
    """Writes every frame into the same arrays."""

    def __init__(self, envs: EnvList, broken: bool = False) -> None:
        self.envs = envs
        self.broken = broken
        self.rows = np.zeros(0, dtype=np.float32)
        self.reward = np.zeros(len(envs), dtype=np.float32)

    def obs_space(self) -> ObsSpace:
        return self.envs.obs_space()

    def action_space(self) -> dict[str, Any]:
        return self.envs.action_space()

    def reset(self, obs_config: ObsSpace) -> VecObs:
        return self._shown(self.envs.reset(obs_config))

    def act(self, actions: Mapping[str, Any], obs_filter: ObsSpace) -> VecObs:
        return self._shown(self.envs.act(actions, obs_filter))

    def render(self, **kwargs: Any) -> npt.NDArray[np.uint8]:
        raise NotImplementedError

    def __len__(self) -> int:
        return len(self.envs)

    def seed(self, seed: int) -> None:
        self.envs.seed(seed)

    def _shown(self, obs: VecObs) -> VecObs:
        rows = obs.features["Input"]
        if not self.rows.size:
            self.rows = rows.values.copy()
        self.rows[:], self.reward[:] = rows.values, obs.reward
        if self.broken:
            self.rows[3] = np.nan
        rows.values, obs.reward = self.rows, self.reward
        return obs


def test_environment_may_reuse_its_arrays(tmp_path: Path) -> None:
    reusing = run_small(tmp_path, env=lambda config, n, processes, first: Reusing(EnvList(Xor, n)))
    assert torch.equal(weights(reusing), weights(run_small(tmp_path, env=Xor)))


def test_numbers_that_are_not_finite_are_refused_from_a_factory_too(tmp_path: Path) -> None:
    with pytest.raises(InvalidObservation, match=r"environment 1, step 0: .*is_set=nan"):
        run_small(tmp_path, env=lambda config, n, processes, first: Reusing(EnvList(Xor, n), True))


def test_spaces_of_the_published_package_are_understood() -> None:
    class Entity:
        features: ClassVar = ["x"]

    class ObsSpace:
        global_features: ClassVar = ["g"]
        entities: ClassVar = {"unit": Entity()}

    class CategoricalActionSpace:
        index_to_label: ClassVar = ["a"]

    class Theirs:
        def obs_space(self) -> Any:
            return ObsSpace()

        def action_space(self) -> Any:
            return {"move": CategoricalActionSpace()}

    env = AnyVecEnv(Theirs())
    assert env.obs_space().entities["unit"].features == ["x"]
    assert len(env.action_space()["move"]) == 1  # type: ignore[arg-type]
