"""Environments written for entity-gym 0.1.10 run when their imports name entity_env instead."""

import random
from dataclasses import dataclass
from typing import Dict, Mapping  # noqa: UP035 (as such environments are written)

import numpy as np
import numpy.typing as npt

import entity_env
from entity_env import (
    Action,
    ActionSpace,
    AddMetricsWrapper,
    CategoricalAction,
    CategoricalActionMask,
    CategoricalActionSpace,
    Entity,
    Environment,
    EnvList,
    GlobalCategoricalAction,
    GlobalCategoricalActionMask,
    GlobalCategoricalActionSpace,
    Observation,
    ObsSpace,
    ValidatingEnv,
)
from tests.entity_env.builders import play

PUBLISHED_NAMES = """
    Environment ObsSpace Entity Observation EntityName ActionName EntityID
    Action ActionSpace ActionMask CategoricalActionSpace CategoricalAction CategoricalActionMask
    GlobalCategoricalActionSpace GlobalCategoricalAction GlobalCategoricalActionMask
    SelectEntityAction SelectEntityActionSpace SelectEntityActionMask
    VecEnv EnvList ParallelEnvList VecActionMask VecObs
    VecCategoricalActionMask VecSelectEntityActionMask ValidatingEnv AddMetricsWrapper
"""


@dataclass
class Lamps(Environment):
    """Switch the lit lamps off; draws from the global generator, filters by itself."""

    num_lamps: int = 3
    step: int = 0

    def obs_space(cls) -> ObsSpace:  # noqa: N805 (as the published examples have it)
        return ObsSpace(
            global_features=["step"], entities={"Lamp": Entity(["lit"]), "Wall": Entity([])}
        )

    def action_space(cls) -> Dict[str, ActionSpace]:  # noqa: N805, UP006
        return {
            "switch": CategoricalActionSpace(["keep", "off"]),
            "finish": GlobalCategoricalActionSpace(["no", "yes"]),
        }

    def reset_filter(self, obs_space: ObsSpace) -> Observation:
        self.step = 0
        self.rng = np.random.default_rng(random.randint(0, 100))  # type: ignore[assignment]
        self.lit = [random.randint(0, 1) for _ in range(self.num_lamps)]
        return self.observe(obs_space)

    def reset(self) -> Observation:
        return self.reset_filter(self.obs_space())

    def act_filter(self, action: Mapping[str, Action], obs_filter: ObsSpace) -> Observation:
        self.step += 1
        switch, finish = action["switch"], action["finish"]
        assert isinstance(switch, CategoricalAction), f"{switch} is not a CategoricalAction"
        assert isinstance(finish, GlobalCategoricalAction)
        reward = 0.0
        for lamp, label in zip(switch.actors, switch.labels, strict=True):
            if label == "off":
                reward += self.lit[lamp] or -1  # type: ignore[call-overload]
                self.lit[lamp] = 0  # type: ignore[call-overload]
        return self.observe(obs_filter, self.step >= 4 or finish.label == "yes", reward)

    def act(self, actions: Mapping[str, Action]) -> Observation:
        return self.act_filter(actions, self.obs_space())

    def observe(self, obs_filter: ObsSpace, done: bool = False, reward: float = 0) -> Observation:
        lamps: npt.NDArray[np.float32] = np.array([[on] for on in self.lit], dtype=np.float32)
        features = {"Lamp": lamps, "Wall": np.zeros((0, 0), dtype=np.float32)}
        return Observation(
            global_features=[self.step],
            features={name: features[name] for name in obs_filter.entities},
            ids={"Lamp": list(range(self.num_lamps))},
            actions={
                "switch": CategoricalActionMask(actor_ids=list(range(self.num_lamps))),
                "finish": GlobalCategoricalActionMask(),
            },
            done=done,
            reward=reward,
        )


def test_an_environment_in_the_published_style_runs() -> None:
    frames = play(AddMetricsWrapper(EnvList(Lamps, 5, validate=True)), 30)
    assert sum(obs.metrics["episodic_reward"].count for obs in frames[1:]) > 20
    assert all(obs.final is None for obs in frames), "done means that the episode ended by itself"
    for one, other in zip(frames, play(EnvList(Lamps, 5), 30), strict=True):
        np.testing.assert_array_equal(one.features["Lamp"].values, other.features["Lamp"].values)


def test_overridden_filter_is_used() -> None:
    class OneWay(Lamps):
        def reset(self) -> Observation:
            raise AssertionError

    shown = ObsSpace(global_features=["step"], entities={"Lamp": Entity(["lit"])})
    assert list(EnvList(OneWay, 2).reset(shown).features) == ["Lamp", "__global__"]


def test_published_environment_passes_validation() -> None:
    env = ValidatingEnv(Lamps())
    env.seed(0)
    assert env.reset().index_to_id(env.obs_space()) == [0, 1, 2]


def test_every_published_name_exists() -> None:
    assert set(PUBLISHED_NAMES.split()) <= set(entity_env.__all__)
    assert len(set(entity_env.__all__)) == len(entity_env.__all__)
    for name in entity_env.__all__:
        assert hasattr(entity_env, name)
