"""Random play of vectorised environments, and comparisons of frames."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from entity_env import (
    Action,
    ActionSpace,
    CategoricalActionMask,
    CategoricalActionSpace,
    Entity,
    Environment,
    EnvList,
    GlobalCategoricalActionSpace,
    Observation,
    ObsSpace,
    Ragged,
    VecEnv,
    VecObs,
    VecSelectEntityActionMask,
)
from entity_env.spaces import GLOBAL
from entity_env.testing import random_play
from tests.entity_env.worlds import SPACE, Walk
from tests.strategies import entities_named


def check_probabilities(decisions: Any) -> None:
    """Of what was chosen and of everything, in the form that recordings have."""
    for name, mask in decisions.obs.action_masks.items():
        chosen, probs = decisions.actions[name], decisions.probs[name]
        logits: Ragged = decisions.logits[name]
        np.testing.assert_array_equal(probs.lengths, chosen.lengths)
        if isinstance(mask, VecSelectEntityActionMask):
            lengths = mask.actors.lengths * mask.actees.lengths
            np.testing.assert_array_equal(logits.lengths, lengths)
            widths = np.repeat(mask.actees.lengths, mask.actors.lengths)
        else:
            np.testing.assert_array_equal(logits.lengths, mask.actors.lengths)
            widths = np.full(mask.actors.items(), logits.size2())
        flat, start = np.exp(logits.values.reshape(-1)), 0
        legal = None if mask.mask is None else mask.mask.values.reshape(-1)
        for choice, prob, width in zip(chosen.values, probs.values, widths, strict=True):
            row = flat[start : start + width]
            assert row.sum() == pytest.approx(1)
            assert row[choice] == pytest.approx(prob)
            if legal is not None:
                np.testing.assert_array_equal(row > 0, legal[start : start + width])
            start += width
        assert start == len(flat)


def play(envs: VecEnv, steps: int, shown: ObsSpace | None = None) -> list[VecObs]:
    """Frames of a seeded run with random choices."""
    shown = shown or envs.obs_space()
    rng = np.random.default_rng(0)
    envs.seed(5)
    frames = [envs.reset(shown)]
    for _ in range(steps):
        frames.append(envs.act(random_choices(envs, frames[-1], rng), shown))
    return frames


def random_choices(envs: VecEnv, obs: VecObs, rng: np.random.Generator) -> dict[str, Ragged]:
    """A random legal choice of each actor."""
    return random_play.random_choices(obs, envs.action_space(), rng)


def stepped(workers: VecEnv, obs: VecObs) -> VecObs:
    return workers.act(random_choices(workers, obs, np.random.default_rng(1)), SPACE)


ROOT = Path(__file__).parents[2]
SAMPLES = ROOT / "tests" / "golden" / "entity_gym_samples"


class Tiny(Environment):
    """One thing, one action; a file of a few steps is small. Only for tests."""

    def obs_space(self) -> ObsSpace:
        return ObsSpace(entities={"A": Entity(["x"])})

    def action_space(self) -> dict[str, ActionSpace]:
        return {"go": CategoricalActionSpace(["l", "r"])}

    def reset(self) -> Observation:
        self.clock = 0
        return self.observe()

    def act(self, actions: Mapping[str, Action]) -> Observation:
        self.clock += 1
        return self.observe()

    def observe(self) -> Observation:
        return Observation(
            entities={"A": [[self.clock]]},
            actions={"go": CategoricalActionMask()},
            reward=self.clock,
            truncated=self.clock == 2,
        )


def expected_episodes(num_envs: int, steps: int, counted: list[bool]) -> list[tuple[int, float]]:
    """(length, return) of the finished episodes, environment by environment and step by step."""
    finished = []
    lengths, returns = [0] * num_envs, [0.0] * num_envs
    for obs in play(EnvList(Walk, num_envs), steps)[1:]:
        for i in range(num_envs):
            lengths[i] += 1
            returns[i] += float(obs.reward[i])
            if obs.done[i]:
                if counted[i]:
                    finished.append((lengths[i], returns[i]))
                lengths[i], returns[i] = 0, 0.0
    return finished


def assert_same(got: Any, expected: Any) -> None:
    """Equal in every field, array, dtype and shape."""
    assert type(got) is type(expected)
    if isinstance(expected, np.ndarray):
        assert got.dtype == expected.dtype
        np.testing.assert_array_equal(got, expected)
    elif isinstance(expected, dict):
        assert got.keys() == expected.keys()
        for key in expected:
            assert_same(got[key], expected[key])
    elif hasattr(expected, "__dict__"):
        assert_same(vars(got), vars(expected))
    else:
        assert got == expected


def allowed_by_frame(
    obs: Observation, obs_space: ObsSpace, space: Any, mask: Any
) -> list[tuple[Any, list[Any]]]:
    """What the frame says, in the same terms."""
    if mask is None:
        return []
    if isinstance(space, GlobalCategoricalActionSpace):
        actors, choices = [GLOBAL], space.index_to_label
        rows = None if mask.mask is None else [list(mask.mask)]
    else:
        actors = entities_named(obs, obs_space, mask.actor_ids, mask.actor_types)
        if isinstance(space, CategoricalActionSpace):
            choices = space.index_to_label
        else:
            choices = entities_named(obs, obs_space, mask.actee_ids, mask.actee_types)
        rows = mask.mask
    allowed = []
    for k, actor in enumerate(actors):
        legal = [one for j, one in enumerate(choices) if rows is None or rows[k][j]]
        if legal:
            allowed.append((actor, legal))
    return allowed
