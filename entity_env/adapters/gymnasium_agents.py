"""A world of Gymnasium with several agents, as a parallel world of named agents."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from gymnasium import spaces

from entity_env.adapters.from_gymnasium import GymnasiumEnv, answered
from entity_env.adapters.space_numbers import Space
from entity_env.errors import InvalidObservation, InvalidSpace


class GymnasiumAgents:
    """Shows the parts of the `Tuple` spaces of a world as those of agents "0", "1", and so on.

    It has the methods of a parallel world of PettingZoo. A reward, an end or an info that is not
    given by agent is that of each of them.

    Args:
        env: whose observations and actions are of a `Tuple` each, one for each agent.

    Raises:
        InvalidSpace: the spaces are not of this kind.
    """

    def __init__(self, env: GymnasiumEnv) -> None:
        shown, done = env.observation_space, env.action_space
        if not (
            isinstance(shown, spaces.Tuple)
            and isinstance(done, spaces.Tuple)
            and len(shown.spaces) == len(done.spaces) > 0
        ):
            raise InvalidSpace(
                f"env: expected Tuple spaces with one part for each agent, got {shown} and {done}; "
                "a world with one agent is for FromGymnasium"
            )
        self.env = env
        self.unwrapped: Any = env.unwrapped
        self.possible_agents = [str(i) for i in range(len(done.spaces))]
        self.agents: list[str] = []
        self._obs_spaces = dict(zip(self.possible_agents, shown.spaces, strict=True))
        self._action_spaces = dict(zip(self.possible_agents, done.spaces, strict=True))
        self._last: dict[str, Any] = {}

    @property
    def render_mode(self) -> str | None:
        """How the world shows itself."""
        return self.env.render_mode

    def observation_space(self, agent: str) -> Space:
        """What an agent observes."""
        return self._obs_spaces[agent]

    def action_space(self, agent: str) -> Space:
        """What an agent does."""
        return self._action_spaces[agent]

    def reset(self, seed: int | None = None) -> tuple[dict[str, Any], dict[str, Any]]:
        """Begin an episode; observations and infos by agent."""
        values, info = answered("reset", self.env.reset(seed=seed))
        self.agents = list(self.possible_agents)
        return self._by_agent(values, "observation"), self._infos(info)

    def step(self, actions: Mapping[str, Any]) -> tuple[dict[str, Any], ...]:
        """Take a step: observations, rewards, terminations, truncations and infos by agent.

        An agent that is done before the others repeats its last action, which the world ignores.
        """
        self._last |= actions
        values, rewards, terminated, truncated, info = answered(
            "step", self.env.step(tuple(self._last[agent] for agent in self.possible_agents))
        )
        terminations = self._of_each(terminated, "terminated")
        truncations = self._of_each(truncated, "truncated")
        alive = self.agents
        self.agents = [a for a in alive if not (terminations[a] or truncations[a])]
        answer = (
            self._by_agent(values, "observation"),
            self._of_each(rewards, "reward"),
            terminations,
            truncations,
            self._infos(info),
        )
        if len(alive) == len(self.possible_agents):
            return answer
        return tuple({agent: part[agent] for agent in alive} for part in answer)

    def render(self) -> Any:
        """The world's picture."""
        return self.env.render()

    def close(self) -> None:
        """Close the world."""
        self.env.close()

    def _by_agent(self, values: Sequence[Any], what: str) -> dict[str, Any]:
        if len(values) != len(self.possible_agents):
            raise InvalidObservation(
                f"{what}: expected one for each of {len(self.possible_agents)} agents, got "
                f"{len(values)}"
            )
        return dict(zip(self.possible_agents, values, strict=True))

    def _of_each(self, value: Any, what: str) -> dict[str, Any]:
        if isinstance(value, list | tuple):
            return self._by_agent(value, what)
        if isinstance(value, bool | float) or np.ndim(value) == 0:
            return dict.fromkeys(self.possible_agents, value)
        return self._by_agent(list(value), what)

    def _infos(self, info: Any) -> dict[str, Any]:
        """The info of each agent: its own, or what all share, where masks are one each."""
        n = len(self.possible_agents)
        if isinstance(info, list | tuple):
            return self._by_agent(info, "info")
        if len(info) == n and set(map(str, info)) == set(self.possible_agents):
            return {str(agent): one for agent, one in info.items()}
        mask = info.get("action_mask")
        if isinstance(mask, list | tuple | np.ndarray) and len(mask) == n and np.size(mask[0]) > 1:
            return {a: {**info, "action_mask": mask[i]} for i, a in enumerate(self.possible_agents)}
        return dict.fromkeys(self.possible_agents, info)
