"""`VecEnv`: the interface of environments that step together."""

import copy
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from entity_env.arrays import BoolArray
from entity_env.errors import EntityEnvError
from entity_env.process import ProcessTimes
from entity_env.ragged import Ragged
from entity_env.spaces import (
    GLOBAL,
    ActionName,
    ActionSpace,
    EntityName,
    ObsSpace,
    has_global_entity,
)
from entity_env.vec.finite_metrics import FiniteMetrics
from entity_env.vec.variation import Variation
from entity_env.vec.vec_obs import (
    Metric,
    VecActionMask,
    VecCategoricalActionMask,
    VecContinuousActionMask,
    VecObs,
    VecSelectEntityActionMask,
    add_metrics,
)

__all__ = [
    "Metric",
    "VecActionMask",
    "VecCategoricalActionMask",
    "VecContinuousActionMask",
    "VecEnv",
    "VecEnvWrapper",
    "VecObs",
    "VecSelectEntityActionMask",
    "add_metrics",
]


class VecEnv(ABC):
    """B environments that step together. Everything that trains goes through this interface.

    Attributes:
        sides: number of sides of a match, 1 for environments.
    """

    sides: int = 1

    @abstractmethod
    def obs_space(self) -> ObsSpace:
        """Return the entity types and features that can be observed."""

    @abstractmethod
    def action_space(self) -> dict[ActionName, ActionSpace]:
        """Return the action spaces by name."""

    @abstractmethod
    def reset(self, obs_config: ObsSpace) -> VecObs:
        """Begin an episode everywhere; frames show the types and features of `obs_config`."""

    @abstractmethod
    def act(self, actions: Mapping[ActionName, Ragged], obs_filter: ObsSpace) -> VecObs:
        """Take a step everywhere.

        Args:
            actions: for every action, int64 (actors,) per frame: the choice of each actor of the
                last frame's mask. For select-entity actions it is the position among the actees.
            obs_filter: the types and features to show.
        """

    def act_async(self, actions: Mapping[ActionName, Ragged], obs_filter: ObsSpace) -> None:
        """Begin a step everywhere; `wait` returns what it shows.

        In between, the caller can do something else: two halves of the environments can take
        turns with a policy. Where environments cannot step on their own, they do in `wait`.

        Args:
            actions: as in `act`.
            obs_filter: as in `act`.

        Raises:
            EntityEnvError: another step was begun, but not waited for.
        """
        self.check_no_begun_step("act_async")
        self._begun = actions, obs_filter

    def wait(self) -> VecObs:
        """Return the frames after the step that `act_async` began.

        Raises:
            EntityEnvError: none was begun.
        """
        if self._begun is None:
            raise EntityEnvError("wait: call act_async first")
        (actions, obs_filter), self._begun = self._begun, None
        return self.act(actions, obs_filter)

    def check_no_begun_step(self, name: str) -> None:
        """Raise if a step was begun that was not waited for, before `name` loses it.

        Raises:
            EntityEnvError: a step was begun; call `wait` first.
        """
        if self._begun is not None:
            raise EntityEnvError(f"{name}: call wait first")

    # The earlier name, for vectorised environments that call it. ArrayEnvs does: a change of its
    # code would part it from saved states.
    refuse_begun_step = check_no_begun_step

    _begun: tuple[Mapping[ActionName, Ragged], ObsSpace] | None = None

    @abstractmethod
    def render(self, **kwargs: Any) -> npt.NDArray[np.uint8]:
        """Return pictures of all environments, (B, height, width, 3) uint8."""

    @abstractmethod
    def __len__(self) -> int: ...

    def seed(self, seed: int) -> None:
        """Make all that follows the next reset a function of `seed`; by default it may not be."""
        return

    def vary(self, variation: Variation) -> None:
        """Draw the arguments of the environments, for episodes that begin from now on.

        Args:
            variation: the samplers; that without groups is of the arguments of the constructor.

        Raises:
            EntityEnvError: the class does not override this, as those in array operations.
        """
        fix = "override vary, or step single environments in an EnvList"
        raise EntityEnvError(f"vary: {type(self).__name__} does not vary its arguments; {fix}")

    def track(self, types: Sequence[EntityName] | None = None) -> None:
        """Give every entity a number by its id, in `VecObs.identity`.

        The numbers are part of `get_state`. After `set_state` with a state of environments that
        were not tracked, numbers begin with the frames that it shows.

        Args:
            types: the entity types to number, of which those without ids get no numbers; None for
                all.

        Raises:
            EntityEnvError: there was a reset or `set_state`; a type is not in the space; or the
                class does not override this, as those in array operations, which have no ids.
        """
        fix = "override track, or step single environments in an EnvList"
        raise EntityEnvError(f"track: {type(self).__name__} does not number its entities; {fix}")

    def get_state(self) -> dict[str, Any] | None:
        """Return the state of the environments, for `set_state` in this or another process.

        Called between steps, when a run is saved. The state is packed at once, so it need not be
        a copy. It has to hold all that the next steps depend on: the episodes, what seeds
        the next ones, the frames that were shown last.

        Returns:
            Parts by name, of plain data (see `plain_state.py`) and batches of this package;
            wrappers add theirs. None where an environment cannot be saved: all begin new episodes
            then.
        """
        return None

    def why_no_state(self) -> str:
        """Return why `get_state` returned None; "" if the environments have no such method."""
        return ""

    def set_state(self, state: Mapping[str, Any], obs_config: ObsSpace) -> VecObs | None:
        """Continue from a state, instead of a reset.

        Args:
            state: what `get_state` returned; of as many environments, made with the same arguments.
            obs_config: the types and features to show, those of before.

        Returns:
            The frames that were shown last, their rewards and ends aside; None where the
            environments cannot do this, and a reset is needed.
        """
        return None

    def world_code(self) -> dict[str, str]:
        """Return digests of the source of the environments' classes, by the names of classes.

        A state is of that code: attributes that the code sets in another way now would be as they
        were. Empty where the source is not known.
        """
        return {}

    def process_times(self) -> list[ProcessTimes]:
        """Return the time and memory of each process with environments; [] if not known."""
        return []

    def close(self) -> None:
        """Release what the environments hold."""
        return

    def has_global_entity(self) -> bool:
        """Return whether frames carry a row of global features."""
        return has_global_entity(self.obs_space(), self.action_space())


def copy_of_filter(shown: ObsSpace, before: ObsSpace | None) -> ObsSpace:
    """Return a copy of a filter for environments, which may change it.

    Args:
        shown: the filter.
        before: the last copy, which is returned while it is equal, in order as well; or None.
    """
    if before is None or before != shown or [*before.entities] != [*shown.entities]:
        return copy.deepcopy(shown)
    return before


class VecEnvWrapper(VecEnv):
    """Base class of wrappers of environments; methods not overridden are the environments' own.

    Work before a step belongs in `act_async`, work after it in `wait`.

    Args:
        env: the environments.
    """

    def __init__(self, env: VecEnv) -> None:
        self.env = env
        self.sides = env.sides

    def obs_space(self) -> ObsSpace:
        """Return the space of observations."""
        return self.env.obs_space()

    def action_space(self) -> dict[ActionName, ActionSpace]:
        """Return the spaces of actions."""
        return self.env.action_space()

    def __len__(self) -> int:
        return len(self.env)

    def act(self, actions: Mapping[ActionName, Ragged], obs_filter: ObsSpace) -> VecObs:
        """Take a step everywhere."""
        self.act_async(actions, obs_filter)
        return self.wait()

    def act_async(self, actions: Mapping[ActionName, Ragged], obs_filter: ObsSpace) -> None:
        """Begin a step everywhere."""
        self.env.act_async(actions, obs_filter)

    def wait(self) -> VecObs:
        """Return the frames after that step."""
        return self.env.wait()

    def seed(self, seed: int) -> None:
        """Seed the environments."""
        self.env.seed(seed)

    def vary(self, variation: Variation) -> None:
        """Draw the arguments of the environments."""
        self.env.vary(variation)

    def track(self, types: Sequence[EntityName] | None = None) -> None:
        """Give every entity of the environments a number."""
        self.env.track(types)

    def get_state(self) -> dict[str, Any] | None:
        """Return the state of the environments; a wrapper with state adds its own parts."""
        return self.env.get_state()

    def why_no_state(self) -> str:
        """Return why the environments returned no state."""
        return self.env.why_no_state()

    def set_state(self, state: Mapping[str, Any], obs_config: ObsSpace) -> VecObs | None:
        """Continue from a state."""
        return self.env.set_state(state, obs_config)

    def world_code(self) -> dict[str, str]:
        """Return the digests of the environments' classes."""
        return self.env.world_code()

    def process_times(self) -> list[ProcessTimes]:
        """Return the time and memory of the environments' processes."""
        return self.env.process_times()

    def render(self, **kwargs: Any) -> npt.NDArray[np.uint8]:
        """Return pictures of the environments."""
        return self.env.render(**kwargs)

    def close(self) -> None:
        """Close the environments."""
        self.env.close()


class AddMetricsWrapper(VecEnvWrapper):
    """Wrapper that adds episode returns and lengths, and numbers of entities, to the metrics.

    The metrics of a step are `episodic_reward`, `episode_length`, `reward` (of each step), `step`
    (how far the running episodes are), `entity_count` and `entity_count/<type>`; what is global is
    no entity. Frames between two episodes, `VecObs.padding`, and the steps from them are left out.
    Values that are not finite count as missing.

    Args:
        env: the environments.
        filter: (B,) bool, the environments that count, which may change between steps; all of them
            by default. Metrics that a vectorised environment gives without `VecObs.env_metrics`
            cannot be separated and count all.

    Attributes:
        groups: consecutive environments, for which metrics are added up apart; all by default.
        of_groups: the metrics of the last step of each group; those that cannot be separated are
            the first one's.
        finite: the filter of the environments' metrics.
    """

    def __init__(self, env: VecEnv, filter: BoolArray | None = None) -> None:
        super().__init__(env)
        self.filter = np.ones(len(env), dtype=np.bool_) if filter is None else np.asarray(filter)
        self.total_reward = np.zeros(len(env), dtype=np.float64)
        self.total_steps = np.zeros(len(env), dtype=np.int64)
        self._padding = np.zeros(len(env), dtype=np.bool_)  # of the current frames
        self.groups = [slice(0, len(env))]
        self.of_groups: list[dict[str, Metric]] = [{}]
        self.finite = FiniteMetrics()

    def reset(self, obs_config: ObsSpace) -> VecObs:
        """Begin an episode everywhere."""
        self.total_reward[:] = 0
        self.total_steps[:] = 0
        obs = self.env.reset(obs_config)
        self._padding = obs.is_padding
        return obs

    def get_state(self) -> dict[str, Any] | None:
        """Return the state of the environments, and the totals of the running episodes."""
        state = self.env.get_state()
        if state is None:
            return None
        totals = {"reward": self.total_reward.copy(), "steps": self.total_steps.copy()}
        return {**state, "episode_totals": totals}

    def set_state(self, state: Mapping[str, Any], obs_config: ObsSpace) -> VecObs | None:
        """Continue the running episodes of a state."""
        obs = self.env.set_state(state, obs_config)
        if obs is not None:
            self.total_reward[:] = state["episode_totals"]["reward"]
            self.total_steps[:] = state["episode_totals"]["steps"]
            self._padding = obs.is_padding
        return obs

    def wait(self) -> VecObs:
        """Return the frames after a step, with the metrics."""
        obs = self.env.wait()
        self.finite.filter(obs, self.total_steps, self._padding)
        self.total_reward += obs.reward
        self.total_steps += ~self._padding
        self.of_groups = [self._metrics_of(obs, group) for group in self.groups]
        obs.metrics = {}
        for of_group in self.of_groups:
            add_metrics(obs.metrics, of_group)
        # Returns and lengths of the episodes that ended.
        if obs.done.any():
            lengths = obs.done.astype(np.int64)
            obs.env_metrics["episodic_reward"] = Ragged(self.total_reward[obs.done], lengths)
            of_steps = self.total_steps[obs.done].astype(np.float64)
            obs.env_metrics["episode_length"] = Ragged(of_steps, lengths)
        self.total_reward[obs.done] = 0
        self.total_steps[obs.done] = 0
        self._padding = obs.is_padding
        return obs

    def running_of_groups(self) -> list[dict[str, Metric]]:
        """Return `running_length`, the steps of the episodes that are running, of each group."""
        is_running = self.filter & (self.total_steps > 0)
        return [
            {"running_length": Metric.of(self.total_steps[group][is_running[group]])}
            for group in self.groups
        ]

    def _metrics_of(self, obs: VecObs, group: slice) -> dict[str, Metric]:
        """Return the metrics of a step, of the environments of a group that count."""
        # Metrics of the environments, without those that do not count.
        counted = self.filter
        if len(self.groups) > 1:
            counted = np.zeros_like(counted)
            counted[group] = self.filter[group]
        is_step, is_frame = counted & ~self._padding, counted & ~obs.is_padding
        is_first = group.start == 0
        metrics = {n: m for n, m in obs.metrics.items() if is_first or n in obs.env_metrics}
        if not is_step.all():
            for name, given in obs.env_metrics.items():
                metrics[name] = Metric.of(given.values[np.repeat(is_step, given.lengths)])
        # Entities of each type and of all types, one row for each metric.
        ended = obs.done & counted
        types = [name for name in obs.features if name != GLOBAL]
        counts = [obs.features[name].lengths for name in types]
        rows = np.array([self.total_steps, *counts])  # (1 + types, B)
        rows = np.concatenate([rows, rows[1:].sum(axis=0, keepdims=True)])[:, is_frame]
        names = ["step", *(f"entity_count/{name}" for name in types), "entity_count"]
        of_counts = dict(zip(names, Metric.of_each(rows), strict=True))
        if len(obs.padding) or self._padding.any():
            of_counts["step"] = Metric.of(self.total_steps[is_step])
        # Returns and lengths of the episodes that ended.
        metrics["step"] = of_counts.pop("step")
        metrics["reward"] = Metric.of(obs.reward[is_step])
        metrics["episodic_reward"] = Metric.of(self.total_reward[ended])
        metrics["episode_length"] = Metric.of(self.total_steps[ended])
        return metrics | of_counts
