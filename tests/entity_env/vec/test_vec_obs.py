"""Frames between two episodes, of vectorized environments that take a step to reset."""

from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest

from entity_env import AddMetricsWrapper, InvalidObservation, Ragged, VecObs
from entity_env.adapters.any_vec_env import AnyVecEnv
from entity_env.serialization.messages import pack, unpack
from entity_env.spaces import ObsSpace
from entity_env.vec.vec_obs import Metric, add_metrics
from tests.entity_env.builders import play
from tests.entity_env.clocks import Clocks, steps_of

B = 5


@pytest.mark.parametrize("sides", [1, 5])
@pytest.mark.parametrize("waits", [1, 3])
def test_padding_frames_do_not_change_the_metrics(waits: int, sides: int) -> None:
    """All but the last, unfinished episodes have the same lengths, returns, steps and entities."""
    at_once = play(AddMetricsWrapper(AnyVecEnv(Clocks(B, waits=0, sides=sides))), 30)
    later = play(AddMetricsWrapper(AnyVecEnv(Clocks(B, waits=waits, sides=sides))), 60)
    for env in range(B):
        expected, got = steps_of(at_once, env), steps_of(later, env)
        assert len(expected) == 30
        assert got[:30] == expected[: len(got)]
    for obs in later[1:]:
        total = dict(obs.metrics)
        counts = {name: m.count for name, m in total.items()}
        assert counts["t"] == counts["step"] == counts["reward"] <= B
        assert total["t"].min >= 1
        assert counts["entity_count"] == B - obs.is_padding.sum()
        assert counts["episode_length"] == counts["episodic_reward"] == obs.done.sum()
    lengths, returns = sums(later, "episode_length"), sums(later, "episodic_reward")
    assert (lengths.min, lengths.max) == (2, 4)
    assert (returns.min, returns.max) == (1 + 2, 1 + 2 + 3 + 4)
    assert sums(later, "step").max == 4


def sums(frames: list[VecObs], name: str) -> Metric:
    total: dict[str, Metric] = {}
    for obs in frames[1:]:
        add_metrics(total, obs.metrics)
    return total[name]


def test_metrics_continue_from_a_state_between_two_episodes() -> None:
    """A saved run may end there."""
    straight = AddMetricsWrapper(AnyVecEnv(Clocks(B)))
    for steps in range(1, 8):
        expected = play(straight, 12)[steps + 1 :]
        envs = AddMetricsWrapper(AnyVecEnv(Clocks(B)))
        before = play(envs, steps)[-1]
        other = AddMetricsWrapper(AnyVecEnv(Clocks(B)))
        obs = other.set_state(envs.get_state() or {}, envs.obs_space())
        assert obs is not None
        assert obs.is_padding.tolist() == before.is_padding.tolist()
        for following in expected:
            chosen = {"go": Ragged(np.zeros((~obs.is_padding).sum(), np.int64), 1 - obs.is_padding)}
            obs = other.act(chosen, other.obs_space())
            assert obs.metrics == following.metrics


def test_take_and_cat_preserve_flags() -> None:
    frames = play(Clocks(B), 20)
    flags = [obs.is_padding.tolist() for obs in frames]
    assert [1] in [[sum(step_flags)] for step_flags in flags]
    joined = VecObs.cat(frames)
    assert joined.padding.tolist() == [flag for step_flags in flags for flag in step_flags]
    order = np.random.default_rng(0).permutation(len(joined))
    permuted = joined.take(order)
    assert permuted.padding.tolist() == joined.padding[order].tolist()
    assert unpack(pack(permuted)).padding.tolist() == permuted.padding.tolist()
    assert len(joined.take(np.flatnonzero(~joined.padding)).padding) == 0
    assert len(VecObs.cat(play(Clocks(B, waits=0), 9)).padding) == 0


class Wrong(Clocks):
    def __init__(self, what: str, sides: int = 1) -> None:
        super().__init__(4, sides=sides)
        self.what = what

    def act(self, actions: Mapping[str, Ragged], obs_filter: ObsSpace) -> VecObs:
        before = self.left > 0
        obs = super().act(actions, obs_filter)
        if self.what == "count":
            obs.padding = obs.padding[:3]
        if self.what == "text":
            obs.padding = np.array(["n"] * 4)  # type: ignore[assignment]
        if self.what == "actors" and len(obs.padding):
            obs.action_masks["go"].actors = Ragged(np.zeros(4, np.int64), np.ones(4, np.int64))
        if self.what == "reward":
            obs.reward = obs.reward + before.astype(np.float32)
        if self.what == "end":
            obs.done = obs.done | before
        if self.what == "sides" and len(obs.padding):
            obs.padding[1::2] = False
        return obs


@pytest.mark.parametrize(
    ("what", "words"),
    [
        ("count", "padding: expected a flag for each of 4 environments, or none, got 3"),
        ("text", "padding: expected booleans"),
        ("actors", "^environment 0.*padding: expected a frame without actors, got actors"),
        ("reward", "^environment 0.*padding: expected no reward and no end in the .* reward 1"),
        ("end", "^environment 0.*padding: expected no reward and no end .* got done"),
        ("sides", "^environment 1.*padding: expected one flag for all sides of a match, got False"),
    ],
)
def test_flags_that_contradict_the_frames_are_rejected(what: str, words: str) -> None:
    envs: Any = AnyVecEnv(Wrong(what, sides=2 if what == "sides" else 1))
    with pytest.raises(InvalidObservation, match=words):
        play(envs, 20)
