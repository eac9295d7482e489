"""A parallel world of PettingZoo, or one of Gymnasium with several agents, as a `Match`."""

import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Self

import numpy as np
import numpy.typing as npt

from entity_env.actions import Action
from entity_env.adapters.bind import bind
from entity_env.adapters.from_gymnasium import (
    MakeGymnasiumEnv,
    answered,
    as_reward,
    make_gymnasium,
    picture,
    world_seed,
)
from entity_env.adapters.gymnasium_agents import GymnasiumAgents
from entity_env.adapters.mapping import FieldMap
from entity_env.adapters.port import View, metrics_of
from entity_env.adapters.sides import (
    AgentName,
    OneAgent,
    Side,
    groups_of,
    refuse_other_agents,
)
from entity_env.adapters.teams import Team
from entity_env.environment import Observation
from entity_env.errors import EntityEnvError, InvalidObservation
from entity_env.match import Match
from entity_env.spaces import ActionName, ActionSpace, ObsSpace

Teams = Mapping[str, Sequence[AgentName]]

_LEAVES_SOMETHING = {"knights_archers_zombies_v11", "ForagingEnv"}
"""Worlds whose reset leaves something of the episode before.

Here the clock of the zombies, and where the players stood, on which no other one begins.
"""


class FromPettingZoo(Match):
    """A parallel world of PettingZoo.

    Without teams every possible agent is a side, and the policy plays all of them. An agent that
    died sees nothing and can do nothing until the match ends, which is for all sides together: to
    be dead is a state like any other, of no future reward, and its value says so. At the end each
    side is terminated or truncated as its own agent was.

    A team is a side that sees one entity of the type "agent" for each member that is alive, with
    the numbers that belong to no entity of its own, and everything that any of them sees. Columns
    "member.0" and so on say which member an entity is or was seen by. The reward of a team is that
    of all members. A team is truncated if one of its members was.

    Agents with equal spaces are alike. If there are others, the names of types, global features
    and actions begin with the agents' name without the number at its end.

    Args:
        make_env: makes the world.
        mapping: what the fields of observations and actions mean, for all agents or by the name of
            those that are alike; what it does not name is inferred.
        teams: the agents of each team; every agent is in one.
        remake: make the world anew for every episode with a seed, as its reset leaves something of
            the episode before. None for worlds that are known for it.
        kwargs: for `make_env`.

    Raises:
        EntityEnvError: `make_env` makes something else.
        InvalidSpace: mapping or teams do not fit the world, or something cannot be inferred.
    """

    def __init__(
        self,
        make_env: Callable[..., Any],
        mapping: FieldMap | Mapping[str, FieldMap] | None = None,
        teams: Teams | None = None,
        remake: bool | None = None,
        **kwargs: Any,
    ) -> None:
        self._make = functools.partial(self.make_world, make_env, **kwargs)
        self.env = self._make()
        try:
            self._groups = groups_of(self.env, mapping)
            self._sides = self._make_sides(teams)
            self._refuse_other_number()
        except BaseException:
            self.env.close()
            raise
        self.num_sides = len(self._sides)
        self._obs_space, self._action_space = self._sides[0].spaces()
        self._port = {a: group.port for group in self._groups for a in group.agents}
        self._has_metrics = any(group.port.mapping.metrics for group in self._groups)
        if remake is None:
            metadata = getattr(self.env, "metadata", None) or {}
            bare = getattr(self.env, "unwrapped", self.env)
            names = {metadata.get("name"), type(bare).__name__}
            remake = not names.isdisjoint(_LEAVES_SOMETHING)
        self._remake = remake
        self._begun = self._is_over = False
        self._seed: int | None = None
        self._views: dict[AgentName, View] = {}
        self._left: dict[AgentName, bool] = {}
        self._last: dict[AgentName, View] = {}

    @classmethod
    def of(
        cls,
        make_env: Any,
        mapping: FieldMap | Mapping[str, FieldMap] | None = None,
        teams: Teams | None = None,
        remake: bool | None = None,
        **kwargs: Any,
    ) -> type[Self]:
        """The class of this world, as `train` takes it; arguments as for the class itself.

        Without teams one world is made to count the sides.
        """
        num_sides = len(teams) if teams is not None else cls._count(make_env, **kwargs)
        return bind(cls, {"num_sides": num_sides}, make_env, mapping, teams, remake, **kwargs)

    @classmethod
    def _count(cls, make_env: Any, **kwargs: Any) -> int:
        env = cls.make_world(make_env, **kwargs)
        env.close()
        return len(env.possible_agents)

    @staticmethod
    def make_world(make_env: Any, **kwargs: Any) -> Any:
        """Make the world.

        Raises:
            EntityEnvError: it is of another kind.
        """
        if not callable(make_env):
            raise EntityEnvError(
                f"make_env: expected a function that makes the world, got {make_env!r}"
            )
        env = make_env(**kwargs)
        if hasattr(env, "agent_iter") or not getattr(env, "possible_agents", None):
            raise EntityEnvError(
                f"make_env: expected a parallel world with possible_agents, got "
                f"{type(env).__name__}; a world in which agents take turns becomes one by "
                "pettingzoo.utils.conversions.aec_to_parallel, if it allows it, and a world of "
                "Gymnasium with several agents is for FromGymnasiumAgents"
            )
        return env

    def _make_sides(self, teams: Teams | None) -> list[Side]:
        agents = list(self.env.possible_agents)
        if teams is None:
            return [OneAgent(agent, self._groups) for agent in agents]
        refuse_other_agents(teams, agents)
        size = max(len(members) for members in teams.values())
        return [Team(members, self._groups, size) for members in teams.values()]

    def _refuse_other_number(self) -> None:
        """Raise if the class says another number of sides than there are."""
        said = vars(type(self)).get("num_sides", len(self._sides))
        if said != len(self._sides):
            raise EntityEnvError(
                f"num_sides: expected {said} sides, as the class was made for, got a world with "
                f"{len(self._sides)}; give the arguments that say how many agents there are to of"
            )

    def obs_space(self) -> ObsSpace:
        """What each side can observe."""
        return self._obs_space

    def action_space(self) -> dict[ActionName, ActionSpace]:
        """What each side can do."""
        return self._action_space

    def seed(self, seed: int) -> None:
        """Seed the next reset."""
        self._seed = seed

    def reset(self) -> list[Observation]:
        """Begin a match."""
        seed, self._seed = self._seed, None
        if self._remake and self._begun and seed is not None:
            used, self.env = self.env, self._make()
            used.close()
        values, infos = answered("reset", self.env.reset(seed=world_seed(seed)))
        self._begun, self._is_over = True, False
        self._left, self._last = {}, {}
        self._views = self._see(values, infos, self.env.agents)
        return [self._observe(side, self._views, {}, infos) for side in self._sides]

    def act(self, actions: Sequence[Mapping[ActionName, Action]]) -> list[Observation]:
        """Take a step: everybody at once."""
        if not self._begun or self._is_over:
            raise EntityEnvError("act: call reset first")
        chosen: dict[AgentName, Any] = {}
        for side, own in zip(self._sides, actions, strict=True):
            chosen |= side.act(own, self._views)
        values, rewards, terminated, truncated, infos = answered("step", self.env.step(chosen))
        ended = [a for a in self._port if terminated.get(a) or truncated.get(a)]
        alive = [a for a in self.env.agents if a not in ended]
        now = {}
        if ended or self._left:
            now = self._see(values, infos, [a for a in ended if a in values], over=True)
            cut_off = {a: bool(truncated.get(a) and not terminated.get(a)) for a in ended}
            self._left = {a: cut for a, cut in (self._left | cut_off).items() if a not in alive}
            self._last |= now
        if alive:
            self._views = self._see(values, infos, alive)
            return [self._observe(side, self._views, rewards, infos) for side in self._sides]
        self._views, self._is_over = {}, True
        return [self._end(side, now, rewards, infos) for side in self._sides]

    def render(self, **kwargs: Any) -> npt.NDArray[np.uint8] | str:
        """The world's picture, of the `render_mode` that it was made with."""
        return picture(self.env, kwargs.get("mode"))

    def close(self) -> None:
        """Close the world."""
        self.env.close()

    def _see(
        self,
        values: Mapping[AgentName, Any],
        infos: Mapping[AgentName, Any],
        agents: Sequence[AgentName],
        over: bool = False,
    ) -> dict[AgentName, View]:
        if unknown := [agent for agent in agents if agent not in self._port]:
            raise InvalidObservation(
                f"agents: expected some of possible_agents {list(self._port)}, got {unknown}"
            )
        if missing := [agent for agent in agents if agent not in values]:
            raise InvalidObservation(f"observations: expected one of each agent, got no {missing}")
        return {
            agent: self._port[agent].see(values[agent], infos.get(agent) or {}, over)
            for agent in agents
        }

    def _observe(
        self,
        side: Side,
        views: Mapping[AgentName, View],
        rewards: Mapping[AgentName, Any],
        infos: Mapping[AgentName, Any],
    ) -> Observation:
        obs = side.observe(views)
        obs.reward = sum(as_reward(rewards[a]) for a in side.members if a in rewards)
        if not self._has_metrics:
            return obs
        each = [
            metrics_of(infos[a], self._port[a].mapping.metrics) for a in side.members if a in infos
        ]
        for name in dict.fromkeys(name for metrics in each for name in metrics):
            values = [metrics[name] for metrics in each if name in metrics]
            obs.metrics[name] = sum(values) / len(values)
        return obs

    def _end(
        self,
        side: Side,
        now: Mapping[AgentName, View],
        rewards: Mapping[AgentName, Any],
        infos: Mapping[AgentName, Any],
    ) -> Observation:
        """The last observation: of who was cut off, as then seen; else of who ended just now."""
        cut_off = [a for a in side.members if self._left.get(a) and a in self._last]
        views = {a: self._last[a] for a in cut_off} if cut_off else now
        obs = self._observe(side, views, rewards, infos)
        obs.truncated = bool(cut_off)
        obs.terminated = not cut_off
        return obs


class FromGymnasiumAgents(FromPettingZoo):
    """A world of Gymnasium with several agents, whose spaces are a `Tuple` with a part for each.

    The agents are called "0", "1", and so on. For everything else see `FromPettingZoo`.

    Args:
        make_env: the world's id, or what makes it.
        mapping: as for `FromPettingZoo`.
        teams: as for `FromPettingZoo`.
        remake: as for `FromPettingZoo`.
        kwargs: for `make_env`.
    """

    @staticmethod
    def make_world(make_env: MakeGymnasiumEnv, **kwargs: Any) -> GymnasiumAgents:
        """Make the world."""
        return GymnasiumAgents(make_gymnasium(make_env, **kwargs))
