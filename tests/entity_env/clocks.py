"""Vectorised counters that may take steps to reset, between two episodes. It needs no torch."""

from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any

import numpy as np

from entity_env import (
    ActionSpace,
    CategoricalActionSpace,
    Entity,
    Metric,
    ObsSpace,
    Ragged,
    VecCategoricalActionMask,
    VecEnv,
    VecObs,
)


class Clocks(VecEnv):
    """Environments that count the steps of their episodes.

    Episode k of the environment, or match, i has 2 + (i + k) % 3 steps; every other one is cut off.
    The reward of a step is its number. The metric `t` is the number of steps, that of a reset -9.

    Args:
        num_envs: B.
        first_env_index: the index of the first environment.
        waits: steps that a reset takes; 0 to show the next episode in the step that ends one.
        filler: the number that frames between two episodes show.
        sides: sides of a match.
        pays: added to the reward for the second choice.
    """

    def __init__(
        self,
        num_envs: int,
        first_env_index: int = 0,
        waits: int = 1,
        filler: float = 0.0,
        sides: int = 1,
        pays: float = 0.0,
    ) -> None:
        self.waits, self.filler, self.sides, self.pays = waits, filler, sides, pays
        self.who = first_env_index + np.arange(num_envs)
        self.t, self.number, self.left = np.zeros((3, num_envs), np.int64)

    def __len__(self) -> int:
        return len(self.who)

    def obs_space(self) -> ObsSpace:
        """One hand, with the number of steps and of the environment."""
        return ObsSpace(entities={"Hand": Entity(["t", "who"])})

    def action_space(self) -> dict[str, ActionSpace]:
        """The hand goes on."""
        return {"go": CategoricalActionSpace(["on", "fast"])}

    def reset(self, obs_config: ObsSpace) -> VecObs:
        """Begin an episode everywhere."""
        self.t[:] = self.number[:] = self.left[:] = 0
        return self._show(np.zeros(len(self)), np.zeros(len(self), np.bool_))

    def act(self, actions: Mapping[str, Ragged], obs_filter: ObsSpace) -> VecObs:
        """Take a step everywhere."""
        plays = self.left == 0
        assert actions["go"].lengths.tolist() == plays.astype(int).tolist()
        chosen = np.zeros(len(self))
        chosen[plays] = actions["go"].values
        self.t += plays
        self.left -= ~plays
        reward = plays * (self.t + self.pays * chosen)
        done = plays & (self.t == 2 + (self.who // self.sides + self.number) % 3)
        return self._show(reward, done, np.where(plays, self.t, -9))

    def _show(self, reward: Any, done: Any, metric: Any = ()) -> VecObs:
        truncated, final = done & (self.number % 2 == 0), None
        if truncated.any():
            rows = np.stack([self.t[truncated], self.who[truncated]], axis=1).astype(np.float32)
            one = np.ones(len(rows), np.int64)
            blank = np.zeros(len(rows), np.float32), np.ones(len(rows), np.bool_)
            final = VecObs({"Hand": Ragged(rows, one)}, {}, {}, *blank, {}, truncated=one > 0)
        self.number += done
        self.left[done] = self.waits
        self.t[done] = 0
        padding, one = self.left > 0, np.ones(len(self), np.int64)
        t = np.where(padding, self.filler, self.t)
        rows = np.stack([t, self.who], axis=1).astype(np.float32)
        actors = padding.astype(np.int64)
        mask = VecCategoricalActionMask(
            Ragged(np.zeros((~padding).sum(), np.int64), 1 - actors), None
        )
        obs = VecObs(
            {"Hand": Ragged(rows, one)},
            {},
            {"go": mask},
            np.asarray(reward, np.float32),
            done,
            {"t": Metric.of(np.array(metric, np.float64))} if len(metric) else {},
            truncated=truncated,
            final=final,
            env_metrics={"t": Ragged(np.array(metric, np.float64), one)} if len(metric) else {},
        )
        if padding.any():
            obs.padding = padding
        self.obs = self.numbered(obs)
        return self.obs

    def numbered(self, obs: VecObs) -> VecObs:
        """Number the hands, if they are tracked."""
        if self.is_tracked:
            for frames in filter(None, [obs, obs.final]):
                frames.identity = {
                    "Hand": Ragged(np.zeros(len(frames), np.int64), np.ones(len(frames), np.int64))
                }
        return obs

    is_tracked = False

    def track(self, types: Sequence[str] | None = None) -> None:
        """Give the hand of each episode the number 0."""
        self.is_tracked = True

    def get_state(self) -> dict[str, Any]:
        """Return the counters."""
        return {"t": self.t.copy(), "number": self.number.copy(), "left": self.left.copy()}

    def set_state(self, state: Mapping[str, Any], obs_config: ObsSpace) -> VecObs:
        """Go on with the counters."""
        self.t, self.number, self.left = (state[name].copy() for name in ("t", "number", "left"))
        return self._show(np.zeros(len(self)), np.zeros(len(self), np.bool_))

    def render(self, **kwargs: Any) -> Any:
        """Nothing is drawn."""
        raise NotImplementedError


def steps_of(frames: Sequence[VecObs], env: int) -> list[tuple[float, ...]]:
    """Return what the steps of episodes of an environment show: before, reward, ends, metric."""
    steps = []
    for before, after in pairwise(frames):
        if not before.is_padding[env]:
            rows, metric = before.features["Hand"][env].values, after.env_metrics["t"][env].values
            ends = float(after.terminated[env]), float(after.truncated[env])
            steps.append((*rows[0].tolist(), float(after.reward[env]), *ends, *metric.tolist()))
    return steps
