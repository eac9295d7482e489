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
    """Play whole episodes; return what the agent got in each.

    An episode that goes on for ever, such as that of an agent that waits, is cut off after `STEPS`
    steps of its environment, and is the last one there. It counts with its return until then.

    Args:
        envs: to play in; closed afterwards.
        agent: the agent to measure.
        opponent: plays in every second environment, which is not measured.
        seed: of the environments and of the sampled actions.
        episodes: the minimal number of episodes, as many in each environment.
        metric: of the environments at the end of an episode; None for the return.
        greedy: take the most probable actions instead of sampling.

    Raises:
        RuntimeError: episodes take too long, and have no `metric` yet.
    """
    everywhere = np.arange(len(envs))
    of_choices = None if greedy else seed
    players: Players = AgentPlayer(agent, of_choices)
    counted = everywhere
    if opponent is not None:
        counted = everywhere[::2]
        by_name = {
            AGENT: AgentPlayer(agent, of_choices),
            "other": AgentPlayer(opponent, of_choices),
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
    values = of_episodes(first, "episodic_reward" if metric is None else metric)
    return np.concatenate([values, first.counts.tallies["reward"].running[1, unfinished]])


def of_episodes(statistics: EpisodeStatistics, metric: str) -> npt.NDArray[np.float64]:
    """Return the mean of a metric in each whole episode, in the order of ends: (episodes,)."""
    count, total, _, _ = np.concatenate(
        [np.zeros((4, 0)), *(of_all for *_, of_all in statistics.counts.tallies[metric].over)],
        axis=1,
    )
    means: npt.NDArray[np.float64] = total[count > 0] / count[count > 0]
    return means
