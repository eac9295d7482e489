"""Adapter from turn-based (AEC) PettingZoo environments to a `Match`."""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

from entity_env.actions import Action
from entity_env.adapters.agent_translator import (
    AgentName,
    AgentView,
    SideTranslator,
    check_metrics,
)
from entity_env.adapters.from_pettingzoo import (
    call_make_env,
    check_flags,
    check_num_sides,
    translators_of,
)
from entity_env.adapters.gymnasium_api import (
    Adapted,
    as_info,
    as_reward,
    by_agent,
    flags_of,
    keeps_state,
    partial_class,
    world_seed,
)
from entity_env.adapters.mapping import FieldMap
from entity_env.environment import Observation
from entity_env.errors import EntityEnvError, InvalidObservation
from entity_env.match import FreshPartial, Match
from entity_env.spaces import ActionName


class _AgentEnd(NamedTuple):
    """Last view and metrics of a dead agent."""

    view: AgentView
    is_terminated: bool
    metrics: dict[str, float]


class FromPettingZooTurns(Adapted, Match):
    """Adapter from a turn-based (AEC) PettingZoo environment to a `Match`.

    Every possible agent is a side. In each step `agent_selection` moves: all sides get
    `observe(agent)`, and only the moving side has actors. Rewards are returned in the step in which
    the environment assigns them, including at moves of other agents.

    A dead agent has neither actors nor entities, and gets no rewards; the steps that the
    environment requires for it take no step of the match. The match ends for all sides when the
    last agent is dead. At the end a side is terminated or truncated like its agent, and returns its
    last view. That is the previous view if the agent leaves `agents` in the step in which it dies,
    or is not observed in it.

    Agents with equal spaces form a group, as in `FromPettingZoo`.

    Args:
        make_env: function that creates the environment, such as `tictactoe_v3.env`.
        mapping: mapping of the fields of observations and actions, for all agents or by group; the
            fields that it does not name are inferred.
        remake: create a new environment for each episode with a seed, because `reset` keeps state
            of the previous episode. None: only for environments known to keep state.
        kwargs: arguments of `make_env`.

    Raises:
        EntityEnvError: `make_env` returns no AEC environment.
        InvalidSpace: the mapping does not fit the environment, or a field cannot be inferred.
    """

    def __init__(
        self,
        make_env: Callable[..., Any],
        mapping: FieldMap | Mapping[str, FieldMap] | None = None,
        remake: bool | None = None,
        **kwargs: Any,
    ) -> None:
        self._make = FreshPartial(partial(self.make_world, make_env), **kwargs)
        self.env = self._make()
        try:
            self._translators = translators_of(self.env, mapping, is_team=False)
            self.translators = list(dict.fromkeys(self._translators.values()))
            agents = list(self.env.possible_agents)
            self._sides = [SideTranslator([agent], self._translators) for agent in agents]
            check_num_sides(type(self), len(agents))
        except BaseException:
            self.env.close()
            raise
        self.num_sides = len(agents)
        self._remake = keeps_state(self.env) if remake is None else remake
        self._spaces = self._sides[0].obs_space, self._sides[0].action_space
        self._was_reset = False
        self._views: dict[AgentName, AgentView] = {}  # of living agents
        self._ended: dict[AgentName, _AgentEnd] = {}

    @classmethod
    def of(
        cls,
        make_env: Any,
        mapping: FieldMap | Mapping[str, FieldMap] | None = None,
        remake: bool | None = None,
        **kwargs: Any,
    ) -> type[Any]:
        """Create a class for `train`, with the same arguments as the constructor.

        An environment is created to count the sides.
        """
        env = cls.make_world(make_env, **kwargs)
        env.close()
        attributes = {"num_sides": len(env.possible_agents)}
        return partial_class(cls, attributes, make_env, mapping, remake, **kwargs)

    @staticmethod
    def make_world(make_env: Any, **kwargs: Any) -> Any:
        """Create the environment.

        Raises:
            EntityEnvError: it is no AEC environment.
        """
        env = call_make_env(make_env, kwargs)
        if not (hasattr(env, "agent_iter") and getattr(env, "possible_agents", None)):
            raise EntityEnvError(
                f"make_env: expected an AEC environment with possible_agents, got "
                f"{type(env).__name__}; use FromPettingZoo for parallel environments"
            )
        return env

    def reset(self) -> list[Observation]:
        """Start a new match."""
        seed = self.take_seed()
        if self._remake and self._was_reset and seed is not None:
            old_env, self.env = self.env, self._make()
            old_env.close()
        self.env.reset(seed=world_seed(seed))
        self._was_reset, self._ended, self._views = True, {}, {}
        self._rewards: dict[AgentName, float] = {}
        self._read_views()
        if not self._views:
            raise InvalidObservation("reset: expected an agent that is alive, got none")
        return self._observe()

    def act(self, actions: Sequence[Mapping[ActionName, Action]]) -> list[Observation]:
        """Step the selected agent, then all dead agents."""
        if not self._views:
            raise EntityEnvError("act: call reset first")
        agent = self.env.agent_selection
        side = list(self._translators).index(agent)
        chosen = self._sides[side].translate_actions(actions[side], {agent: self._views[agent]})
        self._rewards = {}
        self._step(chosen[agent])
        self._read_views()
        while self.env.agents and self.env.agent_selection in self._ended:
            self._step(None)
            self._read_views()
        observations = self._observe()
        if not self._views:
            check_metrics(self.translators)
        return observations

    def _step(self, action: Any) -> None:
        """Step the environment and accumulate its rewards."""
        self.env.step(action)
        if action is None:
            return  # the step of a dead agent does not update the rewards
        for agent, reward in by_agent(self.env.rewards, "rewards").items():
            value = as_reward(reward, f"rewards[{agent!r}]")
            self._rewards[agent] = self._rewards.get(agent, 0.0) + value

    def _read_views(self) -> None:
        """Update the views of living agents, and store the last views of newly dead ones."""
        # Each attribute is read once, because nested wrappers make access slow.
        previous, self._views = self._views, {}
        self._infos = as_info(self.env.infos, "infos")
        agents, mover = self.env.agents, self.env.agent_selection
        terminations = flags_of(self.env.terminations, "terminations", agents)
        truncations = flags_of(self.env.truncations, "truncations", agents)

        # Agents that left `agents` without a last observation keep their previous view.
        removed = {agent: view for agent, view in previous.items() if agent not in agents}
        check_flags([*removed], terminations, truncations)
        for agent, view in removed.items():
            metrics = self._translators[agent].metrics(self._info(agent))
            is_terminated = terminations.get(agent, False) or not truncations.get(agent)
            self._ended[agent] = _AgentEnd(view.without_actions(), is_terminated, metrics)

        for agent in agents:
            if agent not in self._translators:
                expected = list(self._translators)
                raise InvalidObservation(
                    f"agents: expected some of possible_agents {expected}, got {agent!r}"
                )
            is_dead = terminations[agent] or truncations[agent]
            if is_dead and agent in self._ended:
                continue
            value, info = self.env.observe(agent), self._info(agent)
            if is_dead and value is None and agent in previous:
                view = previous[agent].without_actions()
            else:
                is_over = is_dead or agent != mover
                view = self._translators[agent].translate_observation(value, info, is_over)
            if is_dead:  # steps of dead agents clear their infos
                metrics = self._translators[agent].metrics(info)
                self._ended[agent] = _AgentEnd(view, terminations[agent], metrics)
            else:
                self._views[agent] = view

    def _info(self, agent: AgentName) -> Mapping[str, Any]:
        """Return the info of an agent."""
        return as_info(self._infos.get(agent), f"infos[{agent!r}]")

    def _observe(self) -> list[Observation]:
        """Return the observation and reward of each side; at the end with its last view."""
        is_over, observations = not self._views, []
        last = {agent: end.view for agent, end in self._ended.items()}
        for agent, side in zip(self._translators, self._sides, strict=True):
            obs = side.observation(last if is_over else self._views)
            obs.reward = self._rewards.get(agent, 0.0)
            if is_over:
                obs.actions = {}
                obs.terminated = agent not in self._ended or self._ended[agent].is_terminated
                obs.truncated = not obs.terminated
            if is_over and agent in self._ended:
                obs.metrics |= self._ended[agent].metrics
            else:
                obs.metrics |= self._translators[agent].metrics(self._info(agent))
            observations.append(obs)
        return observations
