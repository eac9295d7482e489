"""Evaluation of a trained agent without bias towards short episodes."""

import math

import numpy as np
import numpy.typing as npt

from enn_trainer.base.policy import PPOAgent
from enn_trainer.evaluation.eval_metrics import EpisodeStatistics
from enn_trainer.experience.collector import Collector, play
from enn_trainer.experience.players import AgentPlayer, Players
from enn_trainer.experience.seated_players import AGENT, SeatedPlayers, against
from entity_env import VecEnv

STEPS = 2_000


def measure(
    envs: VecEnv,
    agent: PPOAgent,
    opponent: PPOAgent | None,
    seed: int,
    episodes: int,
    metric: str | None = None,
    greedy: bool = False,
) -> npt.NDArray[np.float64]:
    """Play complete episodes and return the metric of the agent in each.

    An endless episode, such as that of an agent that waits, is truncated after `STEPS` steps, and
    is the last one of its environment. It counts with its return until then.

    Args:
        envs: environments; closed afterwards.
        agent: agent to evaluate.
        opponent: acts in every second environment, which is not counted.
        seed: seed of the environments and of the sampled actions.
        episodes: minimal number of episodes, equally many in each environment.
        metric: metric of the environments at the end of an episode; None for the return.
        greedy: True to take the most probable actions instead of sampling.

    Raises:
        RuntimeError: episodes take too long and have no `metric` yet.
    """
    all_envs = np.arange(len(envs))
    action_seed = None if greedy else seed
    players: Players = AgentPlayer(agent, action_seed)
    counted = all_envs
    if opponent is not None:
        counted = all_envs[::2]
        by_name = {
            AGENT: AgentPlayer(agent, action_seed),
            "other": AgentPlayer(opponent, action_seed),
        }
        players = SeatedPlayers(by_name, against("other", envs.sides), envs.sides)
    quota = np.zeros(len(envs), dtype=np.int64)
    quota[counted] = math.ceil(episodes / len(counted))
    first = EpisodeStatistics(envs, quota)
    play(Collector(first, players), envs.obs_space(), STEPS, seed, stop=first.counts.is_done)
    envs.close()
    unfinished = np.flatnonzero(first.counts.num_ended < quota)
    if len(unfinished) and metric is not None:
        raise RuntimeError(f"measure: expected {episodes} episodes within {STEPS} steps, got less")
    values = episode_means(first, "episodic_reward" if metric is None else metric)
    return np.concatenate([values, first.counts.tallies["reward"].running[1, unfinished]])


def episode_means(statistics: EpisodeStatistics, metric: str) -> npt.NDArray[np.float64]:
    """Return the mean of a metric in each complete episode, ordered by ends, (episodes,) float."""
    count, total, _, _ = np.concatenate(
        [np.zeros((4, 0)), *(sums for *_, sums in statistics.counts.tallies[metric].over)],
        axis=1,
    )
    means: npt.NDArray[np.float64] = total[count > 0] / count[count > 0]
    return means
