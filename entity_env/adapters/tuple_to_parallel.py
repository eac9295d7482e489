"""A Gymnasium environment with several agents, as a parallel environment of named agents."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from gymnasium import spaces

from entity_env.adapters.gymnasium_api import GymnasiumEnv, check_result
from entity_env.adapters.gymnasium_spaces import Space
from entity_env.errors import InvalidObservation, InvalidSpace


class TupleToParallel:
    """A Gymnasium environment of `Tuple` spaces with the methods of a parallel PettingZoo one.

    The parts of the spaces are those of agents "0", "1", and so on. A reward, a flag or an info
    that is not given by agent is that of each of them.

    Args:
        env: the environment, whose observations and actions are tuples with a part for each agent.

    Raises:
        InvalidSpace: the spaces are not of this kind.
    """

    def __init__(self, env: GymnasiumEnv) -> None:
        obs_space, action_space = env.observation_space, env.action_space
        if not (
            isinstance(obs_space, spaces.Tuple)
            and isinstance(action_space, spaces.Tuple)
            and len(obs_space.spaces) == len(action_space.spaces) > 0
        ):
            raise InvalidSpace(
                f"env: expected Tuple spaces with one part for each agent, got {obs_space} and "
                f"{action_space}; an environment with one agent is for FromGymnasium"
            )
        self.env = env
        self.unwrapped: Any = env.unwrapped
        self.render_mode = env.render_mode
        self.possible_agents = [str(i) for i in range(len(action_space.spaces))]
        self.agents: list[str] = []
        by_agent = self._by_agent(obs_space.spaces, "env")
        self.observation_space: Callable[[str], Space] = by_agent.__getitem__
        by_agent = self._by_agent(action_space.spaces, "env")
        self.action_space: Callable[[str], Space] = by_agent.__getitem__
        self._last_actions: dict[str, Any] = {}

    def reset(self, seed: int | None = None) -> tuple[dict[str, Any], dict[str, Any]]:
        """Begin an episode; observations and infos by agent."""
        values, info = check_result("reset", self.env.reset(seed=seed))
        self.agents = list(self.possible_agents)
        return self._by_agent(values, "observation"), self._infos(info)

    def step(self, actions: Mapping[str, Any]) -> tuple[dict[str, Any], ...]:
        """Take a step: observations, rewards, terminations, truncations and infos by agent.

        An agent that is done before the others repeats its last action, which has no effect.
        """
        self._last_actions |= actions
        action = tuple(self._last_actions[agent] for agent in self.possible_agents)
        values, *flags, info = check_result("step", self.env.step(action))
        rewards, terminated, truncated = map(
            self._of_each, flags, ("reward", "terminated", "truncated")
        )
        alive = self.agents
        self.agents = [a for a in alive if not (terminated[a] or truncated[a])]
        obs = self._by_agent(values, "observation")
        result = obs, rewards, terminated, truncated, self._infos(info)
        if len(alive) == len(self.possible_agents):
            return result
        return tuple({agent: part[agent] for agent in alive} for part in result)

    def render(self) -> Any:
        """Return the picture of the environment."""
        return self.env.render()

    def close(self) -> None:
        """Close the environment."""
        self.env.close()

    def _by_agent(self, values: Sequence[Any], field: str) -> dict[str, Any]:
        if len(values) != len(self.possible_agents):
            raise InvalidObservation(
                f"{field}: expected one for each of {len(self.possible_agents)} agents, got "
                f"{len(values)}"
            )
        return dict(zip(self.possible_agents, values, strict=True))

    def _of_each(self, value: Any, field: str) -> dict[str, Any]:
        """Return a value by agent, which may be given by agent or for all of them."""
        if isinstance(value, list | tuple):
            return self._by_agent(value, field)
        if isinstance(value, bool | float) or np.ndim(value) == 0:
            return dict.fromkeys(self.possible_agents, value)
        return self._by_agent(list(value), field)

    def _infos(self, info: Any) -> dict[str, Any]:
        """Return the info of each agent: its own, or that of all with its own action mask."""
        n = len(self.possible_agents)
        if isinstance(info, list | tuple):
            return self._by_agent(info, "info")
        if len(info) == n and set(map(str, info)) == set(self.possible_agents):
            return {str(agent): one for agent, one in info.items()}
        mask = info.get("action_mask")
        if isinstance(mask, list | tuple | np.ndarray) and len(mask) == n and np.size(mask[0]) > 1:
            return {a: {**info, "action_mask": mask[i]} for i, a in enumerate(self.possible_agents)}
        return dict.fromkeys(self.possible_agents, info)
