"""Turn-based environment of PettingZoo."""

from typing import Any

import numpy as np
from gymnasium import spaces
from pettingzoo import AECEnv


class Rounds(AECEnv[str, Any, Any]):
    """Three agents that move in the `ORDER` and die at the `DEATHS`; a move pays another agent."""

    metadata = {"name": "rounds", "is_parallelizable": False}  # noqa: RUF012
    render_mode = None
    ORDER = "aabcbaccc"
    # After which move an agent dies, and if it is terminated.
    DEATHS = {"b": (4, True), "a": (5, False), "c": (8, True)}  # noqa: RUF012

    def __init__(self) -> None:
        super().__init__()
        self.possible_agents = ["a", "b", "c"]
        box = spaces.Box(-1000, 1000, (2,), np.float32)
        self.observation_spaces = dict.fromkeys(self.possible_agents, box)
        self.action_spaces = dict.fromkeys(self.possible_agents, spaces.Discrete(3))

    def observation_space(self, agent: str) -> Any:
        return self.observation_spaces[agent]

    def action_space(self, agent: str) -> Any:
        return self.action_spaces[agent]

    def reset(self, seed: int | None = None, options: Any = None) -> None:
        self.agents, self.action_log = [*self.possible_agents], list[Any]()
        self.start = 0 if seed is None else seed % 7
        self.rewards = dict.fromkeys(self.agents, 0)
        self._cumulative_rewards = dict.fromkeys(self.agents, 0)
        self.terminations = dict.fromkeys(self.agents, False)
        self.truncations = dict.fromkeys(self.agents, False)
        # The third choice is allowed to "a" alone.
        self.infos = {
            agent: {"action_mask": np.array([1, 1, agent == "a"], np.int8)} for agent in self.agents
        }
        self.agent_selection = "a"

    def observe(self, agent: str) -> Any:
        return np.array([self.start + len(self.action_log), ord(agent)], np.float32)

    def step(self, action: Any) -> None:
        agent = self.agent_selection
        if self.terminations[agent] or self.truncations[agent]:
            self._was_dead_step(action)
            return
        assert action in range(3)
        # A move pays its number to the next agent in the alphabet that is alive.
        number = len(self.action_log)
        self.action_log.append((agent, int(action)))
        self._clear_rewards()
        for other, (move, is_terminated) in self.DEATHS.items():
            if move == number:
                (self.terminations if is_terminated else self.truncations)[other] = True
        receiver = "bca"["abc".index(agent)]
        if receiver in self.agents:
            self.rewards[receiver] = number + 1
        if number + 1 < len(self.ORDER):
            self.agent_selection = self.ORDER[number + 1]
        self._deads_step_first()
