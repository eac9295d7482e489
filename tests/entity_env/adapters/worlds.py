"""Small environments of Gymnasium, and parallel environments with the API of PettingZoo."""

import functools
from collections.abc import Callable
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces

from entity_env import (
    Action,
    ActionSpace,
    Observation,
    ObsSpace,
    batch_obs,
)
from entity_env.adapters.mapping import Choice, FieldMap, Place, Rows
from entity_env.testing.random_play import random_choices
from entity_env.vec.batching import unbatch_actions

XYL = ["x", "y", "level"]
FORAGING = FieldMap(
    entities={
        "food": Rows(columns=XYL, span=(0, 9), absent=(-1, -1, 0)),
        "player": Rows(columns=XYL, span=(9, 15), absent=(-1, -1, 0)),
    }
)
FORAGING_ID = "lbforaging:Foraging-8x8-2p-3f-v3"
KINDS = ["zombie", "archer", "knight", "sword", "arrow", "self"]
KAZ_COLUMNS = [*KINDS, "distance", "x", "y", "cos", "sin"]
KAZ = FieldMap(
    entities={
        kind: Rows(columns=KAZ_COLUMNS, presence=kind, features=KAZ_COLUMNS[6:]) for kind in KINDS
    }
)
KAZ_TEAMS = {"archers": ["archer_0", "archer_1"], "knights": ["knight_0", "knight_1"]}


OBJECTS = ["unseen", "empty", "wall"]
VIEW = spaces.Dict(
    image=spaces.Box(
        np.zeros((3, 3, 2), np.uint8), np.full((3, 3, 2), [2, 1], np.uint8), dtype=np.uint8
    ),
    mission=spaces.Text(5),
)
"""View of an agent at row 1, column 2, which is not part of the view."""
SEEN_FROM_ME = FieldMap(
    entities={
        "me": Place(row=1, column=2),
        "cell": Rows(
            "image",
            columns=["row", "column", "object", "open"],
            presence="object",
            one_hot={"object": OBJECTS},
        ),
    },
    actions={"do": Choice(actors="me", labels=["left", "right"])},
    ignore=["mission"],
)


LABELLED = FieldMap(
    entities={
        "me": Place(row=1, column=2),
        "thing": Rows(
            "image",
            columns=["row", "column", "object", "open"],
            kinds={"object": OBJECTS, "open": ["False", "True"]},
            leave_out={"object": ["unseen"]},
        ),
    },
    actions={"do": Choice(actors="me", labels=["left", "right"])},
    ignore=["mission"],
)
"""The same view with labels instead of one-hot columns."""


def make_kaz(**kwargs: Any) -> Any:
    """Make the environment without the warning that its module is deprecated."""
    from pettingzoo.butterfly.knights_archers_zombies import knights_archers_zombies

    return knights_archers_zombies.parallel_env(obs_method="vector-sequence", **kwargs)


class Show(gymnasium.Env[Any, Any]):
    """An environment that shows samples of its observation space, with `info`."""

    def __init__(
        self,
        observation_space: spaces.Space[Any],
        action_space: spaces.Space[Any] | None = None,
        info: dict[str, Any] | None = None,
        length: int = 5,
    ) -> None:
        self.observation_space = observation_space
        self.action_space = spaces.Discrete(2) if action_space is None else action_space
        self.info = info or {}
        self.length = length
        self.action_log: list[Any] = []

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        if seed is not None:
            self.observation_space.seed(seed)
        self.step_number = 0
        self.value = self.observation_space.sample()
        return self.value, self.info

    def step(self, action: Any) -> Any:
        assert self.action_space.contains(action), action
        self.action_log.append(action)
        self.step_number += 1
        self.value = self.observation_space.sample()
        return self.value, 1.0, False, self.step_number == self.length, self.info


class Countdown(gymnasium.Env[Any, Any]):
    """A counter of steps that terminates or is truncated after a random number of steps.

    In each step two of three moves are forbidden and raise an error. Rewards are random.
    """

    metadata: dict[str, Any] = {"render_modes": ["rgb_array", "ansi"]}  # noqa: RUF012 (Gymnasium's)

    def __init__(self, longest: int = 4, mask_in: str = "info", render_mode: Any = None) -> None:
        self.longest = longest
        self.mask_in = mask_in
        self.render_mode = render_mode
        table = spaces.Box(-np.inf, np.inf, (3, 3), np.float32)
        self.observation_space = table
        if mask_in == "observation":
            mask = spaces.Box(0, 1, (3,), np.int8)
            self.observation_space = spaces.Dict({"observation": table, "action_mask": mask})
        self.action_space = spaces.Discrete(3, start=5)

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        self.step_number = 0
        self.length = int(self.np_random.integers(1, self.longest + 1))
        self.cut_off = bool(self.np_random.random() < 0.5)
        return self.show()

    def step(self, action: Any) -> Any:
        assert self.mask()[action - 5], "forbidden"
        self.step_number += 1
        over = self.step_number == self.length
        value, info = self.show()
        reward = float(self.np_random.random()) + float(action)
        return value, reward, over and not self.cut_off, over and self.cut_off, info

    def show(self) -> Any:
        value = self.np_random.random((3, 3)).astype(np.float32)
        value[0, 0] = self.step_number
        mask = self.mask()
        if self.mask_in == "observation":
            return {"observation": value, "action_mask": mask}, {"score": {"now": self.step_number}}
        return value, {"score": {"now": self.step_number}, "action_mask": mask}

    def mask(self) -> Any:
        return (np.arange(3) == self.step_number % 3).astype(np.int8)

    def render(self) -> Any:
        return str(self.step_number) if self.render_mode == "ansi" else np.zeros((2, 3, 3), "u1")


class Fall(gymnasium.Env[Any, Any]):
    """A stone that falls to the ground, and is pushed; gravity and wind are options of `reset`."""

    def __init__(self, height: float = 10.0) -> None:
        self.start = height
        self.observation_space = spaces.Box(-np.inf, np.inf, (3,), np.float64)
        self.action_space = spaces.Discrete(2)
        self.option_log: list[Any] = []

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        self.option_log.append(options)
        options = options or {}
        self.gravity, self.wind = options.get("gravity", 9.8), options.get("wind", 0)
        if self.gravity <= 0:
            raise ValueError("gravity: expected a number above 0")
        self.place = [self.start + float(self.np_random.random()), 0.0, 0.0]
        return np.array(self.place), {}

    def step(self, action: Any) -> Any:
        height, speed, side = self.place
        speed += 0.1 * self.gravity
        self.place = [height - 0.1 * speed, speed, side + self.wind + int(action)]
        return np.array(self.place), self.gravity, self.place[0] <= 0, False, {}


class Hunt:
    """A parallel environment of agents that die at fixed steps and observe separate lists.

    Args:
        lives: lifetime of each agent in steps; negative for agents that are truncated.
        kinds: use different spaces for wolves and other agents.
    """

    metadata: dict[str, Any] = {"name": "hunt"}  # noqa: RUF012 (Gymnasium's)
    render_mode = None

    def __init__(self, lives: dict[str, int], kinds: bool = False) -> None:
        self.lives = lives
        self.kinds = kinds
        self.possible_agents = list(lives)
        self.agents: list[str] = []
        self.action_log: list[dict[str, Any]] = []

    def observation_space(self, agent: str) -> spaces.Space[Any]:
        width = 3 if self.kinds and agent.startswith("wolf") else 2
        return spaces.Dict(
            {
                "me": spaces.Box(-9, 9, (width,), np.float32),
                "seen": spaces.Sequence(spaces.Box(-9, 9, (width,), np.float32), stack=True),
            }
        )

    def action_space(self, agent: str) -> spaces.Space[Any]:
        wolf = self.kinds and agent.startswith("wolf")
        return spaces.Dict({"move": spaces.Discrete(4 if wolf else 3), "prey": spaces.Discrete(3)})

    def reset(self, seed: int | None = None, options: Any = None) -> Any:
        if seed is not None:
            self.rng = np.random.default_rng(seed)
        self.agents = list(self.possible_agents)
        self.step_number = 0
        self.observations = {agent: self.show(agent) for agent in self.agents}
        return self.observations, self.infos(self.agents)

    def step(self, actions: dict[str, Any]) -> Any:
        assert set(actions) == set(self.agents), actions
        for agent, action in actions.items():
            assert self.action_space(agent).contains(action), action
            self.check(agent, action)
        self.action_log.append(actions)
        self.step_number += 1
        agents = self.agents
        over = {a: self.step_number >= abs(self.lives[a]) for a in agents}
        self.observations = {agent: self.show(agent) for agent in agents}
        terminated = {a: over[a] and self.lives[a] > 0 for a in agents}
        truncated = {a: over[a] and self.lives[a] < 0 for a in agents}
        self.agents = [a for a in agents if not over[a]]
        rewards = {a: float(self.possible_agents.index(a) + 1) for a in agents}
        return self.observations, rewards, terminated, truncated, self.infos(agents)

    def check(self, agent: str, action: Any) -> None:
        assert self.mask(agent)[action["move"]] == 1

    def show(self, agent: str) -> Any:
        width = 3 if self.kinds and agent.startswith("wolf") else 2
        n = int(self.rng.integers(0, 4))
        number = self.possible_agents.index(agent)
        seen = np.full((n, width), number, dtype=np.float32)
        seen[:, 1] = np.arange(n)
        return {"me": np.full(width, number, np.float32), "seen": seen}

    def mask(self, agent: str) -> Any:
        mask = np.ones(4 if self.kinds and agent.startswith("wolf") else 3, dtype=np.int8)
        mask[self.possible_agents.index(agent) % 3] = 0
        return mask

    def infos(self, agents: list[str]) -> Any:
        return {a: {"action_mask": {"move": self.mask(a)}, "age": self.step_number} for a in agents}

    def close(self) -> None:
        return


class Turns(gymnasium.Env[Any, Any]):
    """Two agents with `Tuple` spaces; with `shared` the results are not split by agent."""

    def __init__(self, shared: bool = False) -> None:
        self.shared = shared
        self.observation_space = spaces.Tuple([spaces.Box(0, 9, (2, 2), np.float32)] * 2)
        self.action_space = spaces.Tuple([spaces.Discrete(3)] * 2)

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        self.step_number = 0
        return self.show(), self.info()

    def step(self, action: Any) -> Any:
        assert self.action_space.contains(action), action
        self.step_number += 1
        first, second = self.step_number >= 2, self.step_number >= 4
        if self.shared:
            return self.show(), 2.0, second, False, self.info()
        return self.show(), [1.0, 2.0], [first, second], [False, False], self.info()

    def show(self) -> Any:
        return tuple(np.full((2, 2), i, np.float32) for i in range(2))

    def info(self) -> Any:
        return {"action_mask": np.array([[1, 0, 0], [0, 1, 0]], dtype=np.int8)}


def choose(
    obs: Observation,
    obs_space: ObsSpace,
    action_space: dict[str, ActionSpace],
    rng: np.random.Generator,
) -> dict[str, Action]:
    """Return random legal actions for one observation."""
    batch = batch_obs([obs], obs_space, action_space)
    choices = random_choices(batch, action_space, rng)
    return unbatch_actions(choices, batch, [obs], obs_space, action_space)[0]


def maker(cls: Callable[..., Any], *args: Any, **kwargs: Any) -> Callable[[], Any]:
    """Return a function that makes an environment."""
    return functools.partial(cls, *args, **kwargs)
