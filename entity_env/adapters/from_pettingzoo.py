"""Adapters from multi-agent environments of PettingZoo and Gymnasium to a `Match`."""

import copy
import re
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, TypeAlias

import numpy as np

from entity_env.actions import Action
from entity_env.adapters.agent_translator import (
    AgentName,
    AgentTranslator,
    AgentView,
    SideTranslator,
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
    """Adapter from a parallel PettingZoo environment to a `Match`.

    Without teams every possible agent is a side, and one policy plays all of them. The match ends
    for all sides at once. Until then a dead agent gets empty observations without actions, and no
    rewards. At the end each side is terminated or truncated like its agent. The value of a
    truncated agent is estimated from its last observation, or from the previous one if the
    environment returns none when it truncates.

    A team is a side that observes an entity of type "agent" for each living member, with the global
    features of that member, and all entities that any member observes. Columns "member.0" and so on
    mark the member that an entity is, or that observes it. The reward of a team is the sum of its
    members' rewards. A team is truncated if one of its members was.

    Agents with equal spaces form a group. With several groups, the names of types, global features
    and actions start with the name of the agents without its trailing number.

    Args:
        make_env: function that creates the environment.
        mapping: mapping of the fields of observations and actions, for all agents or by group; the
            fields that it does not name are inferred.
        teams: agents by team; each agent is in exactly one.
        remake: create a new environment for each episode with a seed, because `reset` keeps state
            of the previous episode. None: only for environments known to keep state.
        kwargs: arguments of `make_env`.

    Attributes:
        translators: translator of each group of agents; with several groups, `prefix` is the name
            of the group.

    Raises:
        EntityEnvError: `make_env` returns no parallel environment.
        InvalidSpace: mapping or teams do not fit the environment, or a field cannot be inferred.
    """

    def __init__(
        self,
        make_env: Callable[..., Any],
        mapping: FieldMap | Mapping[str, FieldMap] | None = None,
        teams: Teams | None = None,
        remake: bool | None = None,
        **kwargs: Any,
    ) -> None:
        # Create the environment, and a side for each agent or team.
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
        self._views: dict[AgentName, AgentView] = {}  # of living agents
        self._truncated_views: dict[
            AgentName, AgentView
        ] = {}  # last views of dead agents that were cut off

    @classmethod
    def of(
        cls,
        make_env: Any,
        mapping: FieldMap | Mapping[str, FieldMap] | None = None,
        teams: Teams | None = None,
        remake: bool | None = None,
        **kwargs: Any,
    ) -> type[Any]:
        """Create a class for `train`, with the same arguments as the constructor.

        Without teams an environment is created to count the sides.
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
        """Create the environment.

        Raises:
            EntityEnvError: it is no parallel environment.
        """
        env = call_make_env(make_env, kwargs)
        if hasattr(env, "agent_iter") or not getattr(env, "possible_agents", None):
            raise EntityEnvError(
                f"make_env: expected a parallel environment with possible_agents, got "
                f"{type(env).__name__}; use FromPettingZooTurns for AEC environments, and "
                "FromGymnasiumAgents for multi-agent environments of Gymnasium"
            )
        return env

    def reset(self) -> list[Observation]:
        """Start a new match."""
        seed = self.take_seed()
        if self._remake and self._was_reset and seed is not None:
            old_env, self.env = self.env, self._make()
            old_env.close()
        values, infos = check_result("reset", self.env.reset(seed=world_seed(seed)))
        values, infos = by_agent(values, "observations"), as_info(infos, "infos")
        self._was_reset = True
        self._truncated_views = {}
        self._views = self._translate(values, infos, self.env.agents)
        return [self._observation(side, self._views, {}, infos) for side in self._sides]

    def act(self, actions: Sequence[Mapping[ActionName, Action]]) -> list[Observation]:
        """Step the match; all sides act at once."""
        if not self._views:
            raise EntityEnvError("act: call reset first")
        chosen: dict[AgentName, Any] = {}
        for side, side_actions in zip(self._sides, actions, strict=True):
            chosen |= side.translate_actions(side_actions, self._views)
        result = check_result("step", self.env.step(chosen))
        values, rewards = by_agent(result[0], "observations"), by_agent(result[1], "rewards")
        infos = as_info(result[4], "infos")
        terminated = flags_of(result[2], "terminations")
        truncated = flags_of(result[3], "truncations")

        # Last views of agents that died in this step. A truncated agent without an observation
        # keeps its previous view.
        ended = [a for a in self._translators if terminated.get(a) or truncated.get(a)]
        alive = [a for a in self.env.agents if a not in ended]
        check_flags([a for a in self._views if a not in self.env.agents], terminated, truncated)
        truncated_agents = [a for a in ended if a in self._views and not terminated.get(a)]
        final = {a: self._views[a].without_actions() for a in truncated_agents}
        observed = [a for a in ended if values.get(a) is not None]
        final |= self._translate(values, infos, observed, is_over=True)
        dead = self._truncated_views | final
        self._truncated_views = {
            a: view for a, view in dead.items() if a not in alive and not terminated.get(a)
        }
        if alive:
            self._views = self._translate(values, infos, alive)
            return [self._observation(side, self._views, rewards, infos) for side in self._sides]

        # End of the match: sides with truncated members return their last views, to bootstrap from.
        self._views, observations = {}, []
        for side in self._sides:
            last = {a: self._truncated_views[a] for a in side.members if a in self._truncated_views}
            obs = self._observation(side, last or final, rewards, infos)
            obs.truncated, obs.terminated = bool(last), not last
            observations.append(obs)
        check_metrics(self.translators)
        return observations

    def _translate(
        self,
        values: Mapping[AgentName, Any],
        infos: Mapping[AgentName, Any],
        agents: Sequence[AgentName],
        is_over: bool = False,
    ) -> dict[AgentName, AgentView]:
        if unknown := [agent for agent in agents if agent not in self._translators]:
            expected = list(self._translators)
            raise InvalidObservation(
                f"agents: expected some of possible_agents {expected}, got {unknown}"
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
        views: Mapping[AgentName, AgentView],
        rewards: Mapping[AgentName, Any],
        infos: Mapping[AgentName, Any],
    ) -> Observation:
        """Return the observation of a side, with summed rewards and mean metrics of its agents."""
        obs = side.observation(views)
        obs.reward = sum(
            as_reward(rewards[a], f"rewards[{a!r}]") for a in side.members if a in rewards
        )
        values: dict[str, list[float]] = {}
        for agent in side.members:
            info = as_info(infos.get(agent), f"infos[{agent!r}]")
            for name, value in self._translators[agent].metrics(info).items():
                values.setdefault(name, []).append(value)
        obs.metrics |= {name: sum(samples) / len(samples) for name, samples in values.items()}
        return obs


def translators_of(
    env: Any, mapping: FieldMap | Mapping[str, FieldMap] | None, is_team: bool
) -> dict[AgentName, AgentTranslator]:
    """Create the translator of each agent; agents with equal spaces share one.

    Args:
        env: environment with the methods of a parallel PettingZoo environment.
        mapping: mapping of all agents, or mappings by group; a group is named like its agents,
            without the trailing number.
        is_team: agents are members of teams.

    Raises:
        InvalidSpace: a mapping does not fit, or its group does not exist.
    """
    # Lists, because spaces are not hashable.
    pairs: list[tuple[Any, Any]] = []
    groups: list[list[AgentName]] = []
    for agent in env.possible_agents:
        pair = env.observation_space(agent), env.action_space(agent)
        if pair not in pairs:
            pairs.append(pair)
            groups.append([])
        groups[pairs.index(pair)].append(agent)
    first_agents = [str(agents[0]) for agents in groups]
    names = [re.sub(r"[\W_]*\d+$", "", first) or first for first in first_agents]
    if len(set(names)) < len(names):
        names = first_agents
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
    removed: Sequence[AgentName],
    terminated: Mapping[AgentName, Any],
    truncated: Mapping[AgentName, Any],
) -> None:
    """Check that each agent that leaves `agents` has a termination or truncation flag.

    Args:
        removed: agents that left in this step.
        terminated: flags by agent.
        truncated: flags by agent.

    Raises:
        InvalidObservation: names the agents without a flag.
    """
    if unknown := [a for a in removed if a not in terminated and a not in truncated]:
        raise InvalidObservation(
            f"terminations, truncations: expected a flag of each agent that leaves agents, got "
            f"none of {unknown}; return the flags of all agents that were alive before the step"
        )


def check_num_sides(cls: type, num_sides: int) -> None:
    """Check the number of sides of an environment against its class."""
    expected = vars(cls).get("num_sides", num_sides)
    if expected != num_sides:
        raise EntityEnvError(
            f"num_sides: expected {expected} sides, the number of this class, got {num_sides}; "
            "pass the arguments that set the number of agents to `of`"
        )


def call_make_env(make_env: Any, kwargs: Mapping[str, Any]) -> Any:
    """Create an environment with a function.

    Raises:
        EntityEnvError: `make_env` is not callable.
    """
    if not callable(make_env):
        raise EntityEnvError(
            f"make_env: expected a function that makes the environment, got {make_env!r}"
        )
    return make_env(**kwargs)


def _check_teams(teams: Mapping[str, Sequence[AgentName]], agents: Sequence[Any]) -> None:
    """Check that each agent is in exactly one team.

    Raises:
        InvalidSpace: an agent is in no team or in several, or a team has an unknown agent.
    """
    if not isinstance(teams, Mapping):
        raise InvalidSpace(f"teams: expected lists of agents by the name of a team, got {teams!r}")
    members_of_teams = [agent for members in teams.values() for agent in members]
    if (
        len(set(members_of_teams)) < len(members_of_teams)
        or set(members_of_teams) != set(agents)
        or not all(teams.values())
    ):
        raise InvalidSpace(
            f"teams: expected every agent of {list(agents)} in one team, got "
            f"{ {name: list(members) for name, members in teams.items()} }"
        )


class TupleToParallel:
    """Wrapper that gives a Gymnasium environment of `Tuple` spaces the parallel PettingZoo API.

    The parts of the spaces belong to agents "0", "1", and so on. A single reward, flag or info
    applies to all agents.

    Args:
        env: environment with a tuple for observations and actions, one part for each agent.

    Raises:
        InvalidSpace: the spaces are not such tuples.
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
                f"{action_space}; use FromGymnasium for a single agent"
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
        """Start a new episode; return observations and infos by agent."""
        values, info = check_result("reset", self.env.reset(seed=seed))
        self.agents = list(self.possible_agents)
        return self._by_agent(values, "observation"), self._infos(info)

    def step(self, actions: Mapping[str, Any]) -> tuple[dict[str, Any], ...]:
        """Step; return observations, rewards, terminations, truncations and infos by agent.

        An agent that is done early repeats its last action, which has no effect.
        """
        self._last_actions |= actions
        last = tuple(self._last_actions[agent] for agent in self.possible_agents)
        action = copy.deepcopy(last)  # environments may overwrite it
        values, *outcomes, info = check_result("step", self.env.step(action))
        names = "reward", "terminated", "truncated"
        rewards, terminated, truncated = map(self._by_agent, outcomes, names)
        obs = self._by_agent(values, "observation")
        parts = obs, rewards, terminated, truncated, self._infos(info)
        result = tuple({agent: part[agent] for agent in self.agents} for part in parts)
        self.agents = [a for a in self.agents if not (terminated[a] or truncated[a])]
        return result

    def render(self) -> Any:
        """Return the rendered frame of the environment."""
        return self.env.render()

    def close(self) -> None:
        """Close the environment."""
        self.env.close()

    def _by_agent(self, values: Any, field: str) -> dict[str, Any]:
        """Return values by agent, from a dictionary, a sequence or one value for all."""
        if isinstance(values, Mapping) and field != "observation":
            result = {str(agent): value for agent, value in values.items()}
            if result.keys() != set(self.possible_agents):
                got = [*result]
                raise InvalidObservation(
                    f"{field}: expected one for each of agents {self.possible_agents}, got {got}"
                )
            return result
        if not isinstance(values, list | tuple) and getattr(values, "ndim", 0) == 0:
            return dict.fromkeys(self.possible_agents, values)
        if len(values) != len(self.possible_agents):
            raise InvalidObservation(
                f"{field}: expected one for each of {len(self.possible_agents)} agents, got "
                f"{len(values)}"
            )
        return dict(zip(self.possible_agents, values, strict=True))

    def _infos(self, info: Any) -> dict[str, Any]:
        """Return the info of each agent, or a shared info with the agent's action mask."""
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
    """Return whether an environment of `Tuple` spaces returns a reward for each part.

    Args:
        env: environment; it is reset and stepped once.
    """
    obs_space, action_space = env.observation_space, env.action_space
    if not (isinstance(obs_space, spaces.Tuple) and isinstance(action_space, spaces.Tuple)):
        return False
    env.reset(seed=0)
    action_space.seed(0)
    _, reward, *_ = check_result("step", env.step(action_space.sample()))
    return isinstance(reward, list | tuple | Mapping) or np.ndim(reward) > 0


class FromGymnasiumAgents(FromPettingZoo):
    """Adapter from a multi-agent Gymnasium environment to a `Match`.

    Observations and actions are a `Tuple` with a part for each agent. The agents are named "0",
    "1", and so on. Other arguments are the same as in `FromPettingZoo`.

    Args:
        make_env: id of the environment, or a function that creates it.
    """

    @staticmethod
    def make_world(make_env: MakeGymnasiumEnv, **kwargs: Any) -> TupleToParallel:
        """Create the environment."""
        return TupleToParallel(make_gymnasium(make_env, **kwargs))
