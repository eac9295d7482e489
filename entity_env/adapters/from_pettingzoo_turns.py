"""A turn-based (AEC) PettingZoo environment as a `Match`."""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple, Self

from entity_env.actions import Action
from entity_env.adapters.agent_translator import (
    AgentName,
    SideTranslator,
    View,
    check_metrics,
)
from entity_env.adapters.from_pettingzoo import (
    called,
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


class _End(NamedTuple):
    """Last view of an agent that is dead, and the metrics with it."""

    view: View
    is_terminated: bool
    metrics: dict[str, float]


class FromPettingZooTurns(Adapted, Match):
    """A PettingZoo environment in which agents take turns.

    Every possible agent is a side. In each step one agent moves, `agent_selection`; all sides see
    what `observe(agent)` says, and only the side to move has actors. A side gets its rewards in the
    step in which the environment gives them, also at moves of others.

    A dead agent has neither actors nor entities, and gets no rewards; its own steps, which the
    environment asks for, are taken without a step of the match. The match ends for all sides when
    the last agent is dead. At the end a side is terminated or truncated as its own agent was, and
    shows its last view: of an agent that leaves `agents` in the step in which it dies, or is shown
    nothing then, the one before.

    Agents with equal spaces form a group, as in `FromPettingZoo`.

    Args:
        make_env: function that makes the environment, such as `tictactoe_v3.env`.
        mapping: the meaning of the fields of observations and actions, for all agents or by the
            name of their group; what it does not name is inferred.
        remake: make the environment anew for every episode with a seed, as its reset keeps state of
            the episode before. None: for environments that are known for it.
        kwargs: for `make_env`.

    Raises:
        EntityEnvError: `make_env` makes something else.
        InvalidSpace: the mapping does not fit the environment, or something cannot be inferred.
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
        self._views: dict[AgentName, View] = {}  # of living agents
        self._ended: dict[AgentName, _End] = {}

    @classmethod
    def of(
        cls,
        make_env: Any,
        mapping: FieldMap | Mapping[str, FieldMap] | None = None,
        remake: bool | None = None,
        **kwargs: Any,
    ) -> type[Self]:
        """Return the class of this world, as `train` takes it; arguments as for the class.

        One environment is made to count the sides.
        """
        env = cls.make_world(make_env, **kwargs)
        env.close()
        attributes = {"num_sides": len(env.possible_agents)}
        return partial_class(cls, attributes, make_env, mapping, remake, **kwargs)

    @staticmethod
    def make_world(make_env: Any, **kwargs: Any) -> Any:
        """Make the environment.

        Raises:
            EntityEnvError: it is of another kind.
        """
        env = called(make_env, kwargs)
        if not (hasattr(env, "agent_iter") and getattr(env, "possible_agents", None)):
            raise EntityEnvError(
                f"make_env: expected an AEC environment with possible_agents, got "
                f"{type(env).__name__}; one in which all agents act at once is for FromPettingZoo"
            )
        return env

    def reset(self) -> list[Observation]:
        """Begin a match."""
        seed = self.take_seed()
        if self._remake and self._was_reset and seed is not None:
            used, self.env = self.env, self._make()
            used.close()
        self.env.reset(seed=world_seed(seed))
        self._was_reset, self._ended, self._views = True, {}, {}
        self._rewards: dict[AgentName, float] = {}
        self._look()
        if not self._views:
            raise InvalidObservation("reset: expected an agent that is alive, got none")
        return self._observe()

    def act(self, actions: Sequence[Mapping[ActionName, Action]]) -> list[Observation]:
        """Let the agent whose turn it is move, and take the steps of dead agents."""
        if not self._views:
            raise EntityEnvError("act: call reset first")
        agent = self.env.agent_selection
        side = list(self._translators).index(agent)
        chosen = self._sides[side].translate_actions(actions[side], {agent: self._views[agent]})
        self._rewards = {}
        self._step(chosen[agent])
        self._look()
        while self.env.agents and self.env.agent_selection in self._ended:
            self._step(None)
            self._look()
        shown = self._observe()
        if not self._views:
            check_metrics(self.translators)
        return shown

    def _step(self, action: Any) -> None:
        """Take one step of the environment, and add its rewards."""
        self.env.step(action)
        if action is None:
            return  # the step of a dead agent leaves the rewards of the step before
        for agent, reward in by_agent(self.env.rewards, "rewards").items():
            own = as_reward(reward, f"rewards[{agent!r}]")
            self._rewards[agent] = self._rewards.get(agent, 0.0) + own

    def _look(self) -> None:
        """Read the views of all agents, and keep the last ones of those who have just died."""
        # Each attribute is read once, as it is passed on by one wrapper after the other.
        before, self._views = self._views, {}
        self._infos = as_info(self.env.infos, "infos")
        agents, mover = self.env.agents, self.env.agent_selection
        terminations = flags_of(self.env.terminations, "terminations", agents)
        truncations = flags_of(self.env.truncations, "truncations", agents)

        # Agents that are gone without a last look keep the view before.
        gone = {agent: view for agent, view in before.items() if agent not in agents}
        check_flags([*gone], terminations, truncations)
        for agent, view in gone.items():
            metrics = self._translators[agent].metrics(self._info(agent))
            is_terminated = terminations.get(agent, False) or not truncations.get(agent)
            self._ended[agent] = _End(view.after_the_end(), is_terminated, metrics)

        for agent in agents:
            if agent not in self._translators:
                known = list(self._translators)
                raise InvalidObservation(
                    f"agents: expected some of possible_agents {known}, got {agent!r}"
                )
            is_dead = terminations[agent] or truncations[agent]
            if is_dead and agent in self._ended:
                continue
            value, info = self.env.observe(agent), self._info(agent)
            if is_dead and value is None and agent in before:
                view = before[agent].after_the_end()
            else:
                is_over = is_dead or agent != mover
                view = self._translators[agent].translate_observation(value, info, is_over)
            if is_dead:  # the steps of the dead clear their infos
                metrics = self._translators[agent].metrics(info)
                self._ended[agent] = _End(view, terminations[agent], metrics)
            else:
                self._views[agent] = view

    def _info(self, agent: AgentName) -> Mapping[str, Any]:
        """Return the info of an agent."""
        return as_info(self._infos.get(agent), f"infos[{agent!r}]")

    def _observe(self) -> list[Observation]:
        """Return what each side sees, with rewards; at the end its last view."""
        is_over, shown = not self._views, []
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
            shown.append(obs)
        return shown
