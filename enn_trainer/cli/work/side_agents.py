"""Agents that give advice to a person who plays."""

from pathlib import Path

from enn_trainer.base.policy import PPOAgent
from enn_trainer.evaluation.load_agent import Act, RogueNetAgent, load_agent
from enn_trainer.experience.memories import memory_specs
from entity_env.environment import Environment, Observation
from entity_env.match import Match, match_of
from entity_env.play.game import Agent
from entity_env.seeding import derive_seed


def adviser(path: Path, seed: int, world: Environment | Match) -> Agent:
    """Load an agent that advises in an environment, on each side of a match.

    Args:
        path: path of the checkpoint.
        seed: seed of the sampled actions.
        world: the environment.

    Raises:
        CheckpointError: as for `load_agent`.
    """
    loaded = load_agent(path, seed=seed, env=world)
    if any(memory_specs(loaded.agent)):
        return SideAgents(loaded.agent, match_of(world).num_sides, seed)
    return loaded.act


class SideAgents:
    """Agent with a recurrent state for each side of a match; the sides act in turn.

    Args:
        network: network of the agent.
        num_sides: number of sides.
        seed: seed of the sampled actions.
    """

    def __init__(self, network: PPOAgent, num_sides: int, seed: int) -> None:
        seeds = [derive_seed(seed, "side", side) for side in range(num_sides)]
        self._agents = [RogueNetAgent(network, seed=agent_seed) for agent_seed in seeds]
        self._turn = 0

    def __call__(self, observation: Observation) -> Act:
        """Choose the actions of the next side."""
        agent = self._agents[self._turn % len(self._agents)]
        self._turn += 1
        return agent.act(observation)

    def reset(self) -> None:
        """Reset the recurrent states at the start of a game."""
        self._turn = 0
        for agent in self._agents:
            agent.reset()
