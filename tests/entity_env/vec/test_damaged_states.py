"""Validation of saved states: states of environments are accepted, damaged ones rejected."""

import copy
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from entity_env import EnvList, InvalidObservation
from entity_env.ragged import Ragged
from entity_env.vec.batching import unbatch_actions
from entity_env.vec.episode_state import first_choices
from tests.enn_trainer.worlds import Pasture

N = 6


def shown_and_state(seed: int) -> tuple[EnvList, dict[str, Any]]:
    envs = EnvList(Pasture, N)
    envs.seed(seed)
    envs.reset(envs.obs_space())
    state = envs.get_state()
    assert state is not None
    return envs, copy.deepcopy(state)


@pytest.mark.parametrize("seed", range(20))
def test_saved_states_of_environments_are_accepted(seed: int) -> None:
    envs, state = shown_and_state(seed)
    again = EnvList(Pasture, N)
    obs = again.set_state(state, envs.obs_space())
    assert obs is not None
    for name, rows in state["frames"].features.items():
        assert obs.features[name].values.tolist() == rows.values.tolist()


@pytest.mark.parametrize("seed", range(20))
def test_first_choices_are_allowed(seed: int) -> None:
    envs, state = shown_and_state(seed)
    chosen = first_choices(state["frames"].action_masks, envs.action_space())
    assert envs._last is not None
    frames, space = envs._last[0], envs.obs_space()
    acted = unbatch_actions(chosen, state["frames"], frames, space, envs.action_space())
    assert len(acted) == N


def rows(values: Any, lengths: list[int]) -> Ragged:
    return Ragged(values, np.array(lengths, dtype=np.int64))


DAMAGE: list[tuple[str, Callable[[dict[str, Any]], Any]]] = [
    ("seed", lambda s: s.update(seed=1.5)),
    ("episodes: expected an array", lambda s: s.update(episodes=[1] * N)),
    ("steps: expected int64", lambda s: s.update(steps=np.zeros(N))),
    ("steps: expected counts", lambda s: s.update(steps=np.full(N, -1))),
    ("state of 6 environments, got that of 5", lambda s: s.update(steps=s["steps"][1:])),
    ("matches", lambda s: s.update(matches=s["matches"].take(np.arange(N - 1)))),
    ("frames: expected 6, got 8", lambda s: setattr(s["frames"], "reward", np.zeros(8))),
    ("features: expected", lambda s: s["frames"].features.pop("wolf")),
    (
        "'sheep'.: expected float32",
        lambda s: setattr(s["frames"].features["sheep"], "values", np.zeros((3, 2), np.float32)),
    ),
    ("'wolf': expected finite", lambda s: s["frames"].features["wolf"].values.fill(np.nan)),
    (
        "__global__'.: expected one row each",
        lambda s: s["frames"].features.update(
            __global__=rows(np.zeros((N, 1), np.float32), [0, 2, *[1] * (N - 2)])
        ),
    ),
    ("actions: expected", lambda s: s["frames"].action_masks.pop("watch")),
    (
        "'watch'.: expected a VecSelectEntityActionMask",
        lambda s: s["frames"].action_masks.update(watch=s["frames"].action_masks["walk"]),
    ),
    (
        "'walk'..actors: expected positions in the frame",
        lambda s: s["frames"].action_masks["walk"].actors.values.fill(99),
    ),
    (
        "'call'..actors: expected positions",
        lambda s: s["frames"].action_masks["call"].actors.values.fill(0),
    ),
    (
        "'walk'.: expected a legal choice per actor",
        lambda s: s["frames"].action_masks["walk"].mask.values.fill(False),
    ),
    (
        "'watch'..mask: expected .* rows",
        lambda s: setattr(
            s["frames"].action_masks["watch"], "mask", rows(np.ones(1, np.bool_), [1, *[0] * 5])
        ),
    ),
]


@pytest.mark.parametrize(("said", "damage"), DAMAGE)
def test_damaged_states_are_rejected(said: str, damage: Callable[[dict[str, Any]], Any]) -> None:
    envs, state = shown_and_state(3)
    damage(state)
    with pytest.raises(InvalidObservation, match=said):
        EnvList(Pasture, N).set_state(state, envs.obs_space())
