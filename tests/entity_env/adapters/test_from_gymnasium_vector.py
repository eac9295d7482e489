"""Vectorised environments of Gymnasium compared with single ones, in each autoreset mode."""

from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces
from gymnasium.vector import AsyncVectorEnv, AutoresetMode, SyncVectorEnv

from entity_env import (
    EntityEnvError,
    GlobalCategoricalAction,
    InvalidObservation,
    Observation,
    Ragged,
    VecObs,
)
from entity_env.adapters.from_gymnasium import FromGymnasium
from entity_env.adapters.from_gymnasium_vector import FromGymnasiumVector
from entity_env.adapters.mapping import FieldMap
from entity_env.seeding import derive_seed
from entity_env.testing.random_play import fields_of, random_choices
from tests.entity_env.adapters.worlds import LABELLED, VIEW, Countdown, Show, maker

B = 3
METRICS = FieldMap(metrics=["score.now"])


def vectorise(kind: Any, mode: AutoresetMode, **kwargs: Any) -> FromGymnasiumVector:
    fns = [maker(Countdown, **kwargs) for _ in range(B)]
    return FromGymnasiumVector(kind(fns, autoreset_mode=mode), METRICS)


@pytest.mark.parametrize("mask_in", ["info", "observation"])
@pytest.mark.parametrize("mode", list(AutoresetMode))
@pytest.mark.parametrize("kind", [SyncVectorEnv, AsyncVectorEnv])
def test_frames_are_neither_lost_nor_repeated(kind: Any, mode: AutoresetMode, mask_in: str) -> None:
    """Compares with single environments that have the same seeds and actions.

    With `NEXT_STEP` there is a frame without actors between two episodes.
    """
    envs = vectorise(kind, mode, mask_in=mask_in)
    alone = [FromGymnasium(Countdown, METRICS, mask_in=mask_in) for _ in range(B)]
    envs.seed(7)
    first = derive_seed(7, "vector", 0) % 2**31
    for i, env in enumerate(alone):
        env.seed(first + i)
    space, rng, num_ends = envs.obs_space(), np.random.default_rng(0), 0
    batch, frames = envs.reset(space), [env.reset() for env in alone]
    pending: list[Observation | None] = [None] * B
    finals: list[Any] = []
    try:
        for _ in range(60):
            expect_frames(batch, frames, pending)
            choices = random_choices(batch, envs.action_space(), rng)
            batch = envs.act(choices, space)
            finals = []
            for i, env in enumerate(alone):
                chosen = choices["action"][i].values
                waited, pending[i] = pending[i], None
                metric = batch.env_metrics.get("score.now", Ragged.empty(np.zeros(0), B))
                if waited is not None:  # the step that only begins the next episode
                    assert len(chosen) == len(metric[i].values) == 0
                    ended, frames[i] = Observation(), env.reset()
                    assert batch.reward[i] == 0
                else:
                    ended = step(env, int(chosen[0]))
                    assert batch.reward[i] == np.float32(ended.reward)
                    assert metric[i].values.tolist() == [ended.metrics["score.now"]]
                    if ended.done and mode == AutoresetMode.NEXT_STEP:
                        pending[i] = frames[i] = ended
                    elif ended.done:
                        frames[i] = env.reset()
                    else:
                        frames[i] = ended
                assert batch.truncated[i] == ended.truncated
                assert batch.terminated[i] == ended.terminated
                num_ends += ended.done
                finals += [ended.features["entity"]] if ended.truncated else []
            assert batch.is_padding.tolist() == [p is not None for p in pending]
            assert (batch.final is None) == (not finals)
            if batch.final is not None:
                rows = batch.final.features["entity"]
                assert np.array_equal(rows.values, np.concatenate(finals))
        assert num_ends > 20
    finally:
        envs.close()


def expect_frames(
    batch: VecObs, frames: list[Observation], pending: list[Observation | None]
) -> None:
    rows = batch.features["entity"].values
    assert np.array_equal(rows, np.concatenate([o.features["entity"] for o in frames]))
    mask = batch.action_masks["action"]
    assert mask.actors.lengths.tolist() == [int(p is None) for p in pending]
    legal = [o.actions["action"].mask for o, p in zip(frames, pending, strict=True) if p is None]
    if legal:
        assert isinstance(mask.mask, Ragged)
        assert mask.mask.values.tolist() == [list(m) for m in legal]  # type: ignore[arg-type]


def step(env: FromGymnasium, index: int) -> Observation:
    return env.act({"action": GlobalCategoricalAction(index, str(5 + index))})


def test_seed_makes_episodes_reproducible() -> None:
    def run() -> list[Any]:
        envs, rng = vectorise(SyncVectorEnv, AutoresetMode.NEXT_STEP), np.random.default_rng(0)
        envs.seed(3)
        batches = [envs.reset(envs.obs_space())]
        for _ in range(9):
            choices = random_choices(batches[-1], envs.action_space(), rng)
            batches.append(envs.act(choices, envs.obs_space()))
        return [fields_of(batch) for batch in batches]

    assert run() == run()


def test_spaces_that_gymnasium_does_not_batch_are_supported() -> None:
    """Sequences and graphs are tuples in a batch, dictionaries are dictionaries of arrays."""
    space = spaces.Dict(
        {
            "s": spaces.Sequence(spaces.Box(0, 1, (2,), np.float32), stack=True),
            "g": spaces.Graph(spaces.Box(0, 1, (1,)), spaces.Discrete(2)),
            "d": spaces.Discrete(3),
        }
    )
    actions = spaces.Dict({"a": spaces.Discrete(2), "b": spaces.MultiDiscrete([2, 3])})
    envs = FromGymnasiumVector(SyncVectorEnv([maker(Show, space, actions)] * 2))
    alone = FromGymnasium(maker(Show, space, actions))
    envs.seed(0)
    alone.seed(derive_seed(0, "vector", 0) % 2**31)
    batch, obs = envs.reset(envs.obs_space()), alone.reset()
    for name, block in obs.features.items():
        assert np.array_equal(batch.features[name][0].values, block)
    for _ in range(8):
        choices = random_choices(batch, envs.action_space(), np.random.default_rng(0))
        batch = envs.act(choices, envs.obs_space())


def test_native_vector_environment_is_seeded_and_steps() -> None:
    envs = FromGymnasiumVector(
        gymnasium.make_vec("CartPole-v1", 2, vectorization_mode="vector_entry_point")
    )
    envs.seed(1)
    batch, ends = envs.reset(envs.obs_space()), 0
    for _ in range(60):
        choices = random_choices(batch, envs.action_space(), np.random.default_rng(0))
        batch = envs.act(choices, envs.obs_space())
        ends += int(batch.done.sum())
    assert ends > 0


def test_attribute_envs_of_a_native_environment_may_have_any_type() -> None:
    """Environments in JAX store a function in `envs`."""
    vec_env = gymnasium.make_vec("CartPole-v1", 2, vectorization_mode="vector_entry_point")
    vec_env.unwrapped.envs = vec_env.unwrapped.env_fns = object()  # type: ignore[attr-defined]
    envs = FromGymnasiumVector(vec_env)
    assert len(envs.reset(envs.obs_space()).reward) == 2


def test_missing_autoreset_mode_and_last_observations_are_refused() -> None:
    vec_env = SyncVectorEnv([Countdown] * 2)
    vec_env.metadata = {}
    with pytest.raises(EntityEnvError, match=r"metadata\['autoreset_mode'\].*NEXT_STEP.*got None"):
        FromGymnasiumVector(vec_env)
    vec_env = SyncVectorEnv([maker(Show, spaces.Discrete(2), None, None, 1)] * 2)
    vec_env.metadata = {"autoreset_mode": AutoresetMode.SAME_STEP}  # it does not do that
    envs = FromGymnasiumVector(vec_env)
    with pytest.raises(EntityEnvError, match="call reset first"):
        envs.act({}, envs.obs_space())
    batch = envs.reset(envs.obs_space())
    choices = random_choices(batch, envs.action_space(), np.random.default_rng(0))
    with pytest.raises(InvalidObservation, match=r"infos\['final_obs'\]: expected the last"):
        envs.act(choices, envs.obs_space())


def test_native_infos_may_be_shared_by_all_environments() -> None:
    class Clock(SyncVectorEnv):
        infos: Any = {"time": 0.5, "word": "noon", "odd": [[1], [1, 2]], "d": {"now": np.zeros(5)}}  # noqa: RUF012

        def reset(self, **kwargs: Any) -> Any:
            return super().reset(**kwargs)[0], self.infos

        def step(self, actions: Any) -> Any:
            values, rewards, terminated, truncated, _ = super().step(actions)
            return values, list(rewards), list(terminated), list(truncated), self.infos

    clock = Clock([maker(Show, spaces.Discrete(2))] * B)
    envs = FromGymnasiumVector(clock, FieldMap(metrics=["time"]))
    batch = envs.reset(envs.obs_space())
    choices = random_choices(batch, envs.action_space(), np.random.default_rng(0))
    batch = envs.act(choices, envs.obs_space())
    assert batch.env_metrics["time"].values.tolist() == [0.5] * B
    clock.infos = [{}] * B
    with pytest.raises(InvalidObservation, match="infos: expected a dictionary, got list"):
        envs.act(choices, envs.obs_space())


@pytest.mark.parametrize("mode", AutoresetMode)
def test_labels_match_single_environments(mode: AutoresetMode) -> None:
    """Includes the last observations of truncated episodes."""
    make = maker(Show, VIEW, None, None, 3)
    envs = FromGymnasiumVector(SyncVectorEnv([make] * B, autoreset_mode=mode), LABELLED)
    rng, finals = np.random.default_rng(0), 0
    batch = envs.reset(envs.obs_space())
    for _ in range(8):
        for obs in filter(None, [batch, batch.final]):
            things, labels = obs.features["thing"], obs.kinds["thing"]
            assert labels.values.dtype == np.uint8
            assert labels.lengths.tolist() == things.lengths.tolist()
            assert set(np.unique(labels.values[:, 0])) <= {0, 1}
            assert labels.values.shape[1] == 2
        finals += batch.final is not None
        batch = envs.act(random_choices(batch, envs.action_space(), rng), envs.obs_space())
    assert finals


def test_missing_metric_is_reported_with_its_environment() -> None:
    info = {"speed": 2.0}
    fns = [maker(Show, spaces.Discrete(2), None, info, n) for n in (5, 2)]
    envs = FromGymnasiumVector(SyncVectorEnv(fns), FieldMap(metrics=["speed", "sped"]))
    rng, batch = np.random.default_rng(0), envs.reset(envs.obs_space())
    batch = envs.act(random_choices(batch, envs.action_space(), rng), envs.obs_space())
    with pytest.raises(InvalidObservation, match=r"^environment 1: .*'sped', did you mean speed\?"):
        envs.act(random_choices(batch, envs.action_space(), rng), envs.obs_space())


def test_invalid_observation_is_reported_with_its_environment() -> None:
    class Wrong(Show):
        def step(self, action: Any) -> Any:
            _, *rest = super().step(action)
            return np.int64(7), *rest

    fns = [maker(cls, spaces.Discrete(2), None, None, 1) for cls in (Show, Wrong)]
    envs = FromGymnasiumVector(SyncVectorEnv(fns, autoreset_mode=AutoresetMode.SAME_STEP))
    batch = envs.reset(envs.obs_space())
    choices = random_choices(batch, envs.action_space(), np.random.default_rng(0))
    with pytest.raises(InvalidObservation, match=r"^environment 1: observation: expected numbers"):
        envs.act(choices, envs.obs_space())


def test_names_defined_by_environments_are_equal_in_processes() -> None:
    class Named(Countdown):
        def get_action_meanings(self) -> list[str]:
            return ["a", "b", "c"]

    for kind in (SyncVectorEnv, AsyncVectorEnv):
        envs = FromGymnasiumVector(kind([Named] * 2))
        assert envs.action_space()["action"].index_to_label == ["a", "b", "c"]  # type: ignore[union-attr]
        envs.close()


@pytest.mark.parametrize("flags", [["False"] * 2, [np.nan] * 2, [False] * 3, False])
def test_done_flags_of_a_wrong_shape_are_refused(flags: Any) -> None:
    class Ends(SyncVectorEnv):
        def step(self, actions: Any) -> Any:
            values, rewards, _, truncated, infos = super().step(actions)
            return values, rewards, flags, truncated, infos

    envs = FromGymnasiumVector(Ends([maker(Show, spaces.Discrete(2))] * 2))
    batch = envs.reset(envs.obs_space())
    choices = random_choices(batch, envs.action_space(), np.random.default_rng(0))
    with pytest.raises(InvalidObservation, match=r"^terminated: expected "):
        envs.act(choices, envs.obs_space())


@pytest.mark.parametrize("mode", [AutoresetMode.SAME_STEP, AutoresetMode.DISABLED])
def test_none_infos_are_empty(mode: AutoresetMode) -> None:
    class Silent(SyncVectorEnv):
        def reset(self, **kwargs: Any) -> Any:
            return super().reset(**kwargs)[0], None

        def step(self, actions: Any) -> Any:
            *rest, infos = super().step(actions)
            return *rest, infos if "final_obs" in infos else None

    make = maker(Show, spaces.Box(-1, 1, (2,)), None, None, 2)
    envs = FromGymnasiumVector(Silent([make] * 2, autoreset_mode=mode))
    batch = envs.reset(envs.obs_space())
    for _ in range(4):
        choices = random_choices(batch, envs.action_space(), np.random.default_rng(0))
        batch = envs.act(choices, envs.obs_space())
    assert batch.done.all()
