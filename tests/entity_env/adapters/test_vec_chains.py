"""Continuous and autoregressive actions of third-party vectorised environments."""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from entity_env import (
    EnvList,
    InvalidObservation,
    ObsSpace,
    VecCategoricalActionMask,
    VecContinuousActionMask,
    VecEnv,
    VecObs,
    VecSelectEntityActionMask,
)
from entity_env.adapters.any_vec_env import AnyVecEnv
from entity_env.ragged import Ragged
from entity_env.testing.random_play import random_choices
from tests.enn_trainer.builders import run_small, weights
from tests.enn_trainer.chains_world import Camp
from tests.enn_trainer.numbers_world import Targets


class Foreign(VecEnv):
    """Third-party environment with the frames of an `EnvList`. Only for tests."""

    world: Any

    def __init__(self, num_envs: int, first_env_index: int = 0) -> None:
        self.envs = EnvList(self.world, num_envs, first_env_index)

    def obs_space(self) -> ObsSpace:
        return self.envs.obs_space()

    def action_space(self) -> dict[str, Any]:
        return self.envs.action_space()

    def __len__(self) -> int:
        return len(self.envs)

    def render(self, **kwargs: Any) -> Any:
        raise NotImplementedError

    def seed(self, seed: int) -> None:
        self.envs.seed(seed)

    def reset(self, obs_config: ObsSpace) -> VecObs:
        return self._bare(self.envs.reset(obs_config))

    def act(self, actions: Mapping[str, Ragged], obs_filter: ObsSpace) -> VecObs:
        return self._bare(self.envs.act(actions, obs_filter))

    def get_state(self) -> Any:
        return self.envs.get_state()

    def set_state(self, state: Any, obs_config: ObsSpace) -> VecObs | None:
        obs = self.envs.set_state(state, obs_config)
        return None if obs is None else self._bare(obs)

    def _bare(self, obs: VecObs) -> VecObs:
        return obs


class Bare(Foreign):
    """`Camp` with masks of each action by itself, without links to parent actions.

    Args:
        num_envs: B.
        first_env_index: index of the first environment.
        changes: invalid mask fields, by action.
    """

    world = Camp

    def __init__(
        self, num_envs: int, first_env_index: int = 0, changes: Mapping[str, Any] | None = None
    ) -> None:
        super().__init__(num_envs, first_env_index)
        self.changes = changes or {}

    def _bare(self, obs: VecObs) -> VecObs:
        medics, ill, foes = (obs.features[name].lengths for name in ("Medic", "Ill", "Foe"))
        counts, n = [*zip(medics, ill, foes, strict=True)], int(medics.sum())
        actors = Ragged(np.concatenate([np.arange(m) for m in medics]), medics)
        actee_indices = [np.arange(m, m + i + f) for m, i, f in counts]
        actees = Ragged(np.concatenate(actee_indices), ill + foes)
        rows = []
        for m, i, f in counts:
            label_mask = np.zeros((m, 2, i + f), np.uint8)
            label_mask[:, 0, :i] = label_mask[:, 1, i:] = 1
            rows.append(label_mask.ravel())
        numbers = (np.zeros((n, 1)), np.ones((n, 1)))  # float64, as numpy makes them
        ones = np.ones_like(medics)
        whole = Ragged(medics + ill + foes, ones)
        prices = Ragged(np.ones((len(obs), 1)), ones), Ragged(9 * np.ones((len(obs), 1)), ones)
        shout = [[[True, k > 0, True] for k in range(m)] for m in medics]
        masks: dict[str, Any] = {
            "do": VecCategoricalActionMask(actors, None),
            "whom": VecSelectEntityActionMask(
                actors, actees, Ragged(np.concatenate(rows), 2 * medics * (ill + foes))
            ),
            "force": VecContinuousActionMask(actors, *(Ragged(x, medics) for x in numbers)),
            "shout": VecCategoricalActionMask(actors, Ragged(np.concatenate(shout), medics)),
            "trade": VecCategoricalActionMask(whole, None),
            "price": VecContinuousActionMask(whole, *prices),
        }
        for name, change in self.changes.items():
            masks[name] = replace(masks[name], **change(masks[name]))
        return replace(obs, action_masks=masks)


def test_unlinked_masks_match_an_env_list() -> None:
    bare, envs = AnyVecEnv(Bare(6)), EnvList(Camp, 6)
    for vec_env in (bare, envs):
        vec_env.seed(3)
    obs, expected = bare.reset(bare.obs_space()), envs.reset(envs.obs_space())
    rng, barred = np.random.default_rng(0), 0
    for _ in range(12):
        for name, mask in expected.action_masks.items():
            other, columns = obs.action_masks[name], bare.action_space()[name].mask_columns
            np.testing.assert_array_equal(other.actors.values, mask.actors.values)
            np.testing.assert_array_equal(other.actors.lengths, mask.actors.lengths)
            full, other_mask = mask.full_mask(columns), other.full_mask(columns)
            np.testing.assert_array_equal(other_mask.values, full.values)
            assert repr(other.after) == repr(mask.after)
            if mask.bounds is not None:
                assert other.bounds is not None
                assert other.bounds.values.dtype == np.float32
                np.testing.assert_array_equal(other.bounds.values, mask.bounds.values)
            barred += int((~full.values).sum()) if name == "do" else 0
        choices = random_choices(obs, bare.action_space(), rng)
        obs = bare.act(choices, bare.obs_space())
        expected = envs.act(choices, envs.obs_space())
    assert barred, "some labels had nothing behind them"


@pytest.mark.parametrize(
    ("name", "change", "message"),
    [
        ("whom", lambda m: {"mask": m.mask.take(np.arange(5))}, r"\['whom'\].mask: expected"),
        (
            "whom",
            lambda m: {"mask": Ragged(m.mask.values[::2], m.mask.lengths // 2)},
            r"\['whom'\].mask: expected .* rows",
        ),
        ("force", lambda m: {"low": Ragged(m.low.values + 2, m.low.lengths)}, "f: 0 <= low <= hi"),
        ("force", lambda m: {"high": Ragged(m.high.values * np.nan, m.high.lengths)}, "f: 0 <= lo"),
        ("force", lambda m: {"high": Ragged(m.high.values[:, :0], m.high.lengths)}, "high: expect"),
        ("price", lambda m: {"actors": Ragged(m.actors.values + 9, m.actors.lengths)}, "positions"),
    ],
)
def test_invalid_masks_are_refused(name: str, change: Any, message: str) -> None:
    envs = AnyVecEnv(Bare(6, changes={name: change}))
    with pytest.raises(InvalidObservation, match=message):
        envs.reset(envs.obs_space())


class Labels(Bare):
    """The same with categorical masks for a continuous action."""

    def _bare(self, obs: VecObs) -> VecObs:
        bare = super()._bare(obs)
        mask = VecCategoricalActionMask(bare.action_masks["force"].actors, None)
        return replace(bare, action_masks={**bare.action_masks, "force": mask})


def test_mask_of_a_wrong_type_is_refused() -> None:
    envs = AnyVecEnv(Labels(3))
    message = r"\['force'\]: expected a VecContinuousActionMask, got VecCategoricalActionMask"
    with pytest.raises(InvalidObservation, match=message):
        envs.reset(envs.obs_space())


class Numbers(Foreign):
    """`Targets` that passes on frames of another environment. Only for tests."""

    world = Targets


@pytest.mark.parametrize(("env", "like"), [(Bare, Camp), (Numbers, Targets)])
def test_training_matches_an_env_list(tmp_path: Path, env: Any, like: Any) -> None:
    state = run_small(tmp_path / "one", "total_timesteps=48", env=env)
    other = run_small(tmp_path / "other", "total_timesteps=48", env=like)
    assert (weights(state) == weights(other)).all()
