"""What a trained agent reaches, without counting short episodes more often than long ones."""

import math

import numpy as np
import numpy.typing as npt
import torch

from enn_trainer.agent import PPOAgent
from enn_trainer.evaluate import Seats, play
from entity_env import VecEnv, VecObs
from entity_env.spaces import ObsSpace
from entity_env.vec_env import VecEnvWrapper

STEPS = 10_000


class FirstEpisodes(VecEnvWrapper):
    """Keeps what the first episodes of each environment gave, as many of each.

    Whatever ends within a number of steps are mostly short episodes, where their lengths differ.

    Args:
        env: the environments.
        episodes: of each environment.
        metric: of the environments at the end of an episode; None for the return.
    """

    def __init__(self, env: VecEnv, episodes: int, metric: str | None = None) -> None:
        super().__init__(env)
        self.metric = metric
        self.results = np.full((len(env), episodes), np.nan)
        self.num_ended = np.zeros(len(env), dtype=np.int64)
        self.running = np.zeros(len(env))

    def is_done(self) -> bool:
        """Whether every environment had its episodes."""
        return bool((self.num_ended == self.results.shape[1]).all())

    def reset(self, obs_config: ObsSpace) -> VecObs:
        """Begin an episode everywhere."""
        self.running[:] = 0
        return self.env.reset(obs_config)

    def wait(self) -> VecObs:
        """What is shown after a step."""
        obs = self.env.wait()
        self.running += obs.reward
        values = self.running
        if self.metric is not None:
            values = np.full(len(self), np.nan)
            given = obs.env_metrics.get(self.metric)  # missing where no episode ended
            if given is not None:
                values[given.lengths > 0] = given.values
        ended = np.flatnonzero(obs.done & (self.num_ended < self.results.shape[1]))
        self.results[ended, self.num_ended[ended]] = values[ended]
        self.num_ended[ended] += 1
        self.running[obs.done] = 0
        return obs


def measure(
    envs: VecEnv,
    agent: PPOAgent,
    opponent: PPOAgent | None,
    seed: int,
    episodes: int,
    metric: str | None = None,
) -> npt.NDArray[np.float64]:
    """What the agent got in at least so many whole episodes, with sampled actions.

    Args:
        envs: to play in; closed afterwards.
        agent: whom to measure.
        opponent: who plays, and is not counted, in every second environment.
        seed: of the environments and of the choices.
        episodes: how many at least.
        metric: as for `FirstEpisodes`.

    Raises:
        RuntimeError: episodes take too long.
    """
    everywhere = np.arange(len(envs))
    seats = [Seats(agent, everywhere)]
    counted = everywhere
    if opponent is not None:
        counted = everywhere[::2]
        seats = [Seats(agent, counted), Seats(opponent, everywhere[1::2])]
    first = FirstEpisodes(envs, math.ceil(episodes / len(counted)), metric)
    play(first, seats, STEPS, seed, torch.device("cpu"), stop=first.is_done)
    envs.close()
    if not first.is_done():
        raise RuntimeError(f"measure: expected {episodes} episodes within {STEPS} steps, got less")
    results: npt.NDArray[np.float64] = first.results[counted].ravel()
    return results
