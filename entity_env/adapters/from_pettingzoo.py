"""A parallel PettingZoo environment, or a Gymnasium one with several agents, as a `Match`."""

import copy
import re
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, Self, TypeAlias

import numpy as np

from entity_env.actions import Action
from entity_env.adapters.agent_translator import (
    AgentName,
    AgentTranslator,
    SideTranslator,
    View,
    check_metrics,
)
from entity_env.adapters.gymnasium_api import (
    Adapted,
    GymnasiumEnv,
    MakeGymnasiumEnv,
    as_info,
    as_reward,
    by_agent,
    check_result,
    flags_of,
    keeps_state,
    make_gymnasium,
    names_of,
    partial_class,
    world_seed,
)
from entity_env.adapters.mapping import FieldMap
from entity_env.environment import Observation
from entity_env.errors import EntityEnvError, InvalidObservation, InvalidSpace
from entity_env.imports.extras import needs_extra
from entity_env.match import FreshPartial, Match
from entity_env.spaces import ActionName

with needs_extra():
    from gymnasium import spaces

Teams: TypeAlias = Mapping[str, Sequence[AgentName]]


class FromPettingZoo(Adapted, Match):
    """A parallel PettingZoo environment.

    Without teams every possible agent is a side, and the policy plays all of them. The observations
    of a dead agent are empty and have no actions until the match ends, which is for all sides
    together: it goes on for a dead agent, without rewards, and the value function learns so. At the
    end each side is terminated or truncated as its own agent was. The value of an agent that was
    cut off is estimated from its last observation; of an environment that gives none as it cuts
    off, that is the one before.

    A team is a side that sees one entity of the type "agent" for each living member, with the
    global features of that member, and everything that any of them sees. Columns "member.0" and so
    on say which member an entity is or was seen by. The reward of a team is the sum of those of its
    members. A team is truncated if one of its members was.

    Agents with equal spaces form a group. If there are several groups, the names of types, global
    features and actions begin with the name of the agents without the number at its end.

    Args:
        make_env: function that makes the environment.
        mapping: the meaning of the fields of observations and actions, for all agents or by the
            name of their group; what it does not name is inferred.
        teams: the agents of each team; every agent is in one.
        remake: make the environment anew for every episode with a seed, as its reset keeps state of
            the episode before. None: for environments that are known for it.
        kwargs: for `make_env`.

    Attributes:
        translators: the translator of each group of agents; if there are several, the names of the
            groups are their `prefix`.

    Raises:
        EntityEnvError: `make_env` makes something else.
        InvalidSpace: mapping or teams do not fit the environment, or something cannot be inferred.
    """

    def __init__(
        self,
        make_env: Callable[..., Any],
        mapping: FieldMap | Mapping[str, FieldMap] | None = None,
        teams: Teams | None = None,
        remake: bool | None = None,
        **kwargs: Any,
    ) -> None:
        # Make the world, and a side for each agent or team.
        self._make = FreshPartial(partial(self.make_world, make_env), **kwargs)
        self.env = self._make()
        try:
            self._translators = translators_of(self.env, mapping, is_team=teams is not None)
            self.translators = list(dict.fromkeys(self._translators.values()))
            agents = list(self.env.possible_agents)
            if teams is None:
                self._sides = [SideTranslator([agent], self._translators) for agent in agents]
            else:
                _check_teams(teams, agents)
                size = max(map(len, teams.values()))
                self._sides = [
                    SideTranslator(team, self._translators, size) for team in teams.values()
                ]
            check_num_sides(type(self), len(self._sides))
        except BaseException:
            self.env.close()
            raise
        # State of the match.
        self.num_sides = len(self._sides)
        self._remake = keeps_state(self.env) if remake is None else remake
        self._spaces = self._sides[0].obs_space, self._sides[0].action_space
        self._was_reset = False
        self._views: dict[AgentName, View] = {}  # of living agents
        self._cut_off: dict[AgentName, View] = {}  # last views of dead agents that were cut off

    @classmethod
    def of(
        cls,
        make_env: Any,
        mapping: FieldMap | Mapping[str, FieldMap] | None = None,
        teams: Teams | None = None,
        remake: bool | None = None,
        **kwargs: Any,
    ) -> type[Self]:
        """Return the class of this world, as `train` takes it; arguments as for the class.

        Without teams one environment is made to count the sides.
        """
        sides: Any = teams
        if teams is None:
            env = cls.make_world(make_env, **kwargs)
            env.close()
            sides = env.possible_agents
        attributes = {"num_sides": len(sides)}
        return partial_class(cls, attributes, make_env, mapping, teams, remake, **kwargs)

    @staticmethod
    def make_world(make_env: Any, **kwargs: Any) -> Any:
        """Make the environment.

        Raises:
            EntityEnvError: it is of another kind.
        """
        env = called(make_env, kwargs)
        if hasattr(env, "agent_iter") or not getattr(env, "possible_agents", None):
            raise EntityEnvError(
                f"make_env: expected a parallel environment with possible_agents, got "
                f"{type(env).__name__}; one in which agents take turns is for "
                "FromPettingZooTurns, and one of "
                "Gymnasium with several agents is for FromGymnasiumAgents"
            )
        return env

    def reset(self) -> list[Observation]:
        """Begin a match."""
        seed = self.take_seed()
        if self._remake and self._was_reset and seed is not None:
            used, self.env = self.env, self._make()
            used.close()
        values, infos = check_result("reset", self.env.reset(seed=world_seed(seed)))
        values, infos = by_agent(values, "observations"), as_info(infos, "infos")
        self._was_reset = True
        self._cut_off = {}
        self._views = self._translate(values, infos, self.env.agents)
        return [self._observation(side, self._views, {}, infos) for side in self._sides]

    def act(self, actions: Sequence[Mapping[ActionName, Action]]) -> list[Observation]:
        """Take a step: all sides at once."""
        if not self._views:
            raise EntityEnvError("act: call reset first")
        chosen: dict[AgentName, Any] = {}
        for side, own in zip(self._sides, actions, strict=True):
            chosen |= side.translate_actions(own, self._views)
        result = check_result("step", self.env.step(chosen))
        values, rewards = by_agent(result[0], "observations"), by_agent(result[1], "rewards")
        infos = as_info(result[4], "infos")
        terminated = flags_of(result[2], "terminations")
        truncated = flags_of(result[3], "truncations")

        # Agents that died in this step, with their last views: those that they acted in, of agents
        # that were cut off without an observation.
        ended = [a for a in self._translators if terminated.get(a) or truncated.get(a)]
        alive = [a for a in self.env.agents if a not in ended]
        check_flags([a for a in self._views if a not in self.env.agents], terminated, truncated)
        cut_off = [a for a in ended if a in self._views and not terminated.get(a)]
        final = {a: self._views[a].after_the_end() for a in cut_off}
        seen = [a for a in ended if values.get(a) is not None]
        final |= self._translate(values, infos, seen, is_over=True)
        dead = self._cut_off | final
        self._cut_off = {
            a: view for a, view in dead.items() if a not in alive and not terminated.get(a)
        }
        if alive:
            self._views = self._translate(values, infos, alive)
            return [self._observation(side, self._views, rewards, infos) for side in self._sides]

        # The end: the last views of members who were cut off, if any were. Their future has a
        # value, which is estimated from these.
        self._views, shown = {}, []
        for side in self._sides:
            last = {a: self._cut_off[a] for a in side.members if a in self._cut_off}
            obs = self._observation(side, last or final, rewards, infos)
            obs.truncated, obs.terminated = bool(last), not last
            shown.append(obs)
        check_metrics(self.translators)
        return shown

    def _translate(
        self,
        values: Mapping[AgentName, Any],
        infos: Mapping[AgentName, Any],
        agents: Sequence[AgentName],
        is_over: bool = False,
    ) -> dict[AgentName, View]:
        if unknown := [agent for agent in agents if agent not in self._translators]:
            known = list(self._translators)
            raise InvalidObservation(
                f"agents: expected some of possible_agents {known}, got {unknown}"
            )
        if missing := [agent for agent in agents if agent not in values]:
            raise InvalidObservation(f"observations: expected one of each agent, got no {missing}")
        return {
            agent: self._translators[agent].translate_observation(
                values[agent], as_info(infos.get(agent), f"infos[{agent!r}]"), is_over
            )
            for agent in agents
        }

    def _observation(
        self,
        side: SideTranslator,
        views: Mapping[AgentName, View],
        rewards: Mapping[AgentName, Any],
        infos: Mapping[AgentName, Any],
    ) -> Observation:
        """Return what a side sees, with the sum of rewards and the means of metrics."""
        obs = side.observation(views)
        obs.reward = sum(
            as_reward(rewards[a], f"rewards[{a!r}]") for a in side.members if a in rewards
        )
        values: dict[str, list[float]] = {}
        for agent in side.members:
            info = as_info(infos.get(agent), f"infos[{agent!r}]")
            for name, value in self._translators[agent].metrics(info).items():
                values.setdefault(name, []).append(value)
        obs.metrics |= {name: sum(each) / len(each) for name, each in values.items()}
        return obs


def translators_of(
    env: Any, mapping: FieldMap | Mapping[str, FieldMap] | None, is_team: bool
) -> dict[AgentName, AgentTranslator]:
    """Return the translator of each agent; agents with equal spaces share one.

    Args:
        env: with the methods of a parallel environment of PettingZoo.
        mapping: of all agents, or by the name of their group: that of its agents without the
            number at the end.
        is_team: agents are members of teams.

    Raises:
        InvalidSpace: a mapping does not fit, or is for no group.
    """
    # Spaces cannot be hashed, and there are few.
    pairs: list[tuple[Any, Any]] = []
    groups: list[list[AgentName]] = []
    for agent in env.possible_agents:
        pair = env.observation_space(agent), env.action_space(agent)
        if pair not in pairs:
            pairs.append(pair)
            groups.append([])
        groups[pairs.index(pair)].append(agent)
    firsts = [str(agents[0]) for agents in groups]
    names = [re.sub(r"[\W_]*\d+$", "", first) or first for first in firsts]
    if len(set(names)) < len(names):
        names = firsts
    by_group = mapping if isinstance(mapping, Mapping) else dict.fromkeys(names, mapping)
    if unknown := [name for name in by_group if name not in names]:
        raise InvalidSpace(f"mapping: expected groups of agents among {names}, got {unknown}")
    env_names = names_of(env)
    translators: dict[AgentName, AgentTranslator] = {}
    for name, (obs_space, action_space), agents in zip(names, pairs, groups, strict=True):
        prefix = name if len(groups) > 1 else ""
        translator = AgentTranslator(
            obs_space, action_space, by_group.get(name), env_names, prefix, is_team
        )
        translators |= dict.fromkeys(agents, translator)
    return translators


def check_flags(
    gone: Sequence[AgentName],
    terminated: Mapping[AgentName, Any],
    truncated: Mapping[AgentName, Any],
) -> None:
    """Raise if nothing says how agents ended that are no longer among those of the environment.

    Args:
        gone: agents that lived before the step.
        terminated: flags of agents.
        truncated: flags of agents.

    Raises:
        InvalidObservation: names those without a flag.
    """
    if unknown := [agent for agent in gone if agent not in terminated and agent not in truncated]:
        raise InvalidObservation(
            f"terminations, truncations: expected a flag of each agent that leaves agents, got "
            f"none of {unknown}; give those of all agents that lived before the step"
        )


def check_num_sides(cls: type, found: int) -> None:
    """Raise if a world has another number of agents than its class was made for."""
    expected = vars(cls).get("num_sides", found)
    if expected != found:
        raise EntityEnvError(
            f"num_sides: expected {expected} sides, as the class was made for, got a world with "
            f"{found}; give the arguments that say how many agents there are to of"
        )


def called(make_env: Any, kwargs: Mapping[str, Any]) -> Any:
    """Return what a function that makes an environment returns.

    Raises:
        EntityEnvError: it is no function.
    """
    if not callable(make_env):
        raise EntityEnvError(
            f"make_env: expected a function that makes the environment, got {make_env!r}"
        )
    return make_env(**kwargs)


def _check_teams(teams: Mapping[str, Sequence[AgentName]], agents: Sequence[Any]) -> None:
    """Raise unless each agent is in exactly one team.

    Raises:
        InvalidSpace: an agent is in no team or in several, or a team names others.
    """
    if not isinstance(teams, Mapping):
        raise InvalidSpace(f"teams: expected lists of agents by the name of a team, got {teams!r}")
    named = [agent for members in teams.values() for agent in members]
    if len(set(named)) < len(named) or set(named) != set(agents) or not all(teams.values()):
        raise InvalidSpace(
            f"teams: expected every agent of {list(agents)} in one team, got "
            f"{ {name: list(members) for name, members in teams.items()} }"
        )


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
        self.observation_space = self._by_agent(obs_space.spaces, "env").__getitem__
        self.action_space = self._by_agent(action_space.spaces, "env").__getitem__
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
        last = tuple(self._last_actions[agent] for agent in self.possible_agents)
        action = copy.deepcopy(last)  # which the environment may overwrite
        values, *given, info = check_result("step", self.env.step(action))
        names = "reward", "terminated", "truncated"
        rewards, terminated, truncated = map(self._by_agent, given, names)
        obs = self._by_agent(values, "observation")
        parts = obs, rewards, terminated, truncated, self._infos(info)
        result = tuple({agent: part[agent] for agent in self.agents} for part in parts)
        self.agents = [a for a in self.agents if not (terminated[a] or truncated[a])]
        return result

    def render(self) -> Any:
        """Return the picture of the environment."""
        return self.env.render()

    def close(self) -> None:
        """Close the environment."""
        self.env.close()

    def _by_agent(self, values: Any, field: str) -> dict[str, Any]:
        """Return values by agent, which may be given by agent or as one for all of them."""
        if isinstance(values, Mapping) and field != "observation":
            given = {str(agent): value for agent, value in values.items()}
            if given.keys() != set(self.possible_agents):
                got = f"those of {[*given]}"
                raise InvalidObservation(
                    f"{field}: expected one for each of agents {self.possible_agents}, got {got}"
                )
            return given
        if not isinstance(values, list | tuple) and getattr(values, "ndim", 0) == 0:
            return dict.fromkeys(self.possible_agents, values)
        if len(values) != len(self.possible_agents):
            raise InvalidObservation(
                f"{field}: expected one for each of {len(self.possible_agents)} agents, got "
                f"{len(values)}"
            )
        return dict(zip(self.possible_agents, values, strict=True))

    def _infos(self, info: Any) -> dict[str, Any]:
        """Return the info of each agent: its own, or that of all with its own action mask."""
        n = len(self.possible_agents)
        if isinstance(info, list | tuple):
            return self._by_agent(info, "info")
        info = as_info(info)
        if len(info) == n and set(map(str, info)) == set(self.possible_agents):
            return {str(agent): one for agent, one in info.items()}
        mask = info.get("action_mask")
        if isinstance(mask, list | tuple | np.ndarray) and len(mask) == n and np.size(mask[0]) > 1:
            return {a: {**info, "action_mask": mask[i]} for i, a in enumerate(self.possible_agents)}
        return dict.fromkeys(self.possible_agents, info)


def has_several_agents(env: GymnasiumEnv) -> bool:
    """Return whether an environment of Tuple spaces gives each part a reward, in a step it takes.

    Args:
        env: the environment, which is reset.
    """
    obs_space, action_space = env.observation_space, env.action_space
    if not (isinstance(obs_space, spaces.Tuple) and isinstance(action_space, spaces.Tuple)):
        return False
    env.reset(seed=0)
    action_space.seed(0)
    _, reward, *_ = check_result("step", env.step(action_space.sample()))
    return isinstance(reward, list | tuple | Mapping) or np.ndim(reward) > 0


class FromGymnasiumAgents(FromPettingZoo):
    """A Gymnasium environment with several agents, whose spaces are a `Tuple` with a part for each.

    The agents are called "0", "1", and so on. For everything else see `FromPettingZoo`.

    Args:
        make_env: the id of the environment, or a function that makes it.
    """

    @staticmethod
    def make_world(make_env: MakeGymnasiumEnv, **kwargs: Any) -> TupleToParallel:
        """Make the environment."""
        return TupleToParallel(make_gymnasium(make_env, **kwargs))
