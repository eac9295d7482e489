"""`VecEnv`: the interface of vectorized environments."""

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
    """B environments that step together. All training code uses this interface.

    Attributes:
        sides: number of sides of a match, 1 for environments.
    """

    sides: int = 1

    @abstractmethod
    def obs_space(self) -> ObsSpace:
        """Return the entity types and features that can be observed."""

    @abstractmethod
    def action_space(self) -> Mapping[ActionName, ActionSpace]:
        """Return the action spaces by name."""

    @abstractmethod
    def reset(self, obs_config: ObsSpace) -> VecObs:
        """Reset all environments; frames contain the types and features of `obs_config`."""

    @abstractmethod
    def act(self, actions: Mapping[ActionName, Ragged], obs_filter: ObsSpace) -> VecObs:
        """Step all environments.

        Args:
            actions: for every action, int64 (actors,) per frame: the choice of each actor of the
                last frame's mask. For select-entity actions it is the position among the actees.
            obs_filter: the types and features of the next frames.
        """

    def act_async(self, actions: Mapping[ActionName, Ragged], obs_filter: ObsSpace) -> None:
        """Begin a step in all environments; `wait` returns its frames.

        In between, the caller can do other work: a policy can alternate between two halves of the
        environments. Environments that cannot step in the background do so in `wait`.

        Args:
            actions: as in `act`.
            obs_filter: as in `act`.

        Raises:
            EntityEnvError: `wait` was not called after an earlier step.
        """
        self.check_no_begun_step("act_async")
        self._begun = actions, obs_filter

    def wait(self) -> VecObs:
        """Return the frames after the step that `act_async` began.

        Raises:
            EntityEnvError: `act_async` was not called.
        """
        if self._begun is None:
            raise EntityEnvError("wait: call act_async first")
        (actions, obs_filter), self._begun = self._begun, None
        return self.act(actions, obs_filter)

    def check_no_begun_step(self, name: str) -> None:
        """Raise if a step is running, which method `name` would lose.

        Raises:
            EntityEnvError: a step is running; call `wait` first.
        """
        if self._begun is not None:
            raise EntityEnvError(f"{name}: call wait first")

    # The earlier name, for vectorized environments that call it. ArrayEnvs does: a change of its
    # code would invalidate saved states.
    refuse_begun_step = check_no_begun_step

    _begun: tuple[Mapping[ActionName, Ragged], ObsSpace] | None = None

    @abstractmethod
    def render(self, **kwargs: Any) -> npt.NDArray[np.uint8]:
        """Render all environments, (B, height, width, 3) uint8."""

    @abstractmethod
    def __len__(self) -> int: ...

    def seed(self, seed: int) -> None:
        """Make everything after the next reset a function of `seed`; does nothing by default."""
        return

    def vary(self, variation: Variation) -> None:
        """Draw the arguments of the environments for all following episodes.

        Args:
            variation: the samplers; without groups, episodes use the arguments of the constructor.

        Raises:
            EntityEnvError: the class does not override this method, as those in array operations.
        """
        fix = "override vary, or step single environments in an EnvList"
        raise EntityEnvError(f"vary: {type(self).__name__} does not vary its arguments; {fix}")

    def track(self, types: Sequence[EntityName] | None = None) -> None:
        """Assign a number to every entity by its id, in `VecObs.identity`.

        The numbers are part of `get_state`. After `set_state` with a state of environments that
        were not tracked, numbers begin with its last frames.

        Args:
            types: the entity types to number, except for types without ids; None for all types.

        Raises:
            EntityEnvError: there was a reset or `set_state`; a type is not in the space; or the
                class does not override this method, as those in array operations, without ids.
        """
        fix = "override track, or step single environments in an EnvList"
        raise EntityEnvError(f"track: {type(self).__name__} does not number its entities; {fix}")

    def get_state(self) -> dict[str, Any] | None:
        """Return the state of the environments, for `set_state` in this or another process.

        Called between steps, when a run is saved. The state is packed at once, so it need not be
        a copy. It must contain everything that the next steps depend on: the episodes, the seeds of
        the next ones, the last frames.

        Returns:
            Parts by name, of plain data (see `plain_state.py`) and batches of this package;
            wrappers add their parts. None if an environment cannot be saved: then all of them begin
            new episodes when the run is resumed.
        """
        return None

    def why_no_state(self) -> str:
        """Return why `get_state` returned None; "" if the environments have no such method."""
        return ""

    def set_state(self, state: Mapping[str, Any], obs_config: ObsSpace) -> VecObs | None:
        """Continue from a state, instead of a reset.

        Args:
            state: result of `get_state`, of as many environments, made with the same arguments.
            obs_config: types and features of the frames, as before.

        Returns:
            The last frames, without their rewards and ends; None if the environments cannot be
            restored, and a reset is needed.
        """
        return None

    def world_code(self) -> dict[str, str]:
        """Return digests of the source of the environments' classes, by the names of classes.

        A state is valid for that code only: attributes that other code would set differently keep
        their saved values. Empty if the source is not available.
        """
        return {}

    def process_times(self) -> list[ProcessTimes]:
        """Return the time and memory of each process with environments; [] if unknown."""
        return []

    def close(self) -> None:
        """Release the resources of the environments."""
        return

    def has_global_entity(self) -> bool:
        """Return whether frames contain a row of global features."""
        return has_global_entity(self.obs_space(), self.action_space())


def copy_of_filter(obs_filter: ObsSpace, cached: ObsSpace | None) -> ObsSpace:
    """Return a copy of a filter for environments, which may modify it.

    Args:
        obs_filter: the filter.
        cached: the last copy or None; returned if it is equal, including the order of types.
    """
    if cached is None or cached != obs_filter or [*cached.entities] != [*obs_filter.entities]:
        return copy.deepcopy(obs_filter)
    return cached


class VecEnvWrapper(VecEnv):
    """Base class of wrappers; by default each method calls the same method of the environments.

    Code to run before a step belongs in `act_async`, code to run after it in `wait`.

    Args:
        env: the environments.
    """

    def __init__(self, env: VecEnv) -> None:
        self.env = env
        self.sides = env.sides

    def obs_space(self) -> ObsSpace:
        """Return the space of observations."""
        return self.env.obs_space()

    def action_space(self) -> Mapping[ActionName, ActionSpace]:
        """Return the spaces of actions."""
        return self.env.action_space()

    def __len__(self) -> int:
        return len(self.env)

    def act(self, actions: Mapping[ActionName, Ragged], obs_filter: ObsSpace) -> VecObs:
        """Step all environments."""
        self.act_async(actions, obs_filter)
        return self.wait()

    def act_async(self, actions: Mapping[ActionName, Ragged], obs_filter: ObsSpace) -> None:
        """Begin a step in all environments."""
        self.env.act_async(actions, obs_filter)

    def wait(self) -> VecObs:
        """Return the frames after the step that `act_async` began."""
        return self.env.wait()

    def seed(self, seed: int) -> None:
        """Seed the environments."""
        self.env.seed(seed)

    def vary(self, variation: Variation) -> None:
        """Draw the arguments of the environments."""
        self.env.vary(variation)

    def track(self, types: Sequence[EntityName] | None = None) -> None:
        """Assign numbers to the entities of the environments."""
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
        """Render the environments."""
        return self.env.render(**kwargs)

    def close(self) -> None:
        """Close the environments."""
        self.env.close()


class AddMetricsWrapper(VecEnvWrapper):
    """Wrapper that adds episode returns, episode lengths and entity counts to the metrics.

    The metrics of a step are `episodic_reward`, `episode_length`, `reward` (of each step), `step`
    (steps of the running episodes so far), `entity_count` and `entity_count/<type>`, without
    global features. Frames between two episodes, `VecObs.padding`, and the steps from them do not
    count. Values that are not finite count as missing.

    Args:
        env: the environments.
        filter: (B,) bool, the environments that count, which may change between steps; all of them
            by default. Metrics of a vectorized environment without `VecObs.env_metrics` cannot be
            separated and count for all.

    Attributes:
        groups: slices of environments with separate metrics; one slice of all by default.
        group_metrics: the metrics of the last step of each group; metrics that cannot be
            separated belong to the first group.
        finite: the filter of the environments' metrics.
    """

    def __init__(self, env: VecEnv, filter: BoolArray | None = None) -> None:
        super().__init__(env)
        self.filter = np.ones(len(env), dtype=np.bool_) if filter is None else np.asarray(filter)
        self.total_reward = np.zeros(len(env), dtype=np.float64)
        self.total_steps = np.zeros(len(env), dtype=np.int64)
        self._padding = np.zeros(len(env), dtype=np.bool_)  # of the current frames
        self.groups = [slice(0, len(env))]
        self.group_metrics: list[dict[str, Metric]] = [{}]
        self.finite = FiniteMetrics()

    def reset(self, obs_config: ObsSpace) -> VecObs:
        """Reset all environments."""
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
        self.group_metrics = [self._metrics_of(obs, group) for group in self.groups]
        obs.metrics = {}
        for metrics in self.group_metrics:
            add_metrics(obs.metrics, metrics)
        # Returns and lengths of the episodes that ended.
        if obs.done.any():
            lengths = obs.done.astype(np.int64)
            obs.env_metrics["episodic_reward"] = Ragged(self.total_reward[obs.done], lengths)
            num_steps = self.total_steps[obs.done].astype(np.float64)
            obs.env_metrics["episode_length"] = Ragged(num_steps, lengths)
        self.total_reward[obs.done] = 0
        self.total_steps[obs.done] = 0
        self._padding = obs.is_padding
        return obs

    def running_group_metrics(self) -> list[dict[str, Metric]]:
        """Return `running_length`, the steps of the running episodes, of each group."""
        is_running = self.filter & (self.total_steps > 0)
        return [
            {"running_length": Metric.of(self.total_steps[group][is_running[group]])}
            for group in self.groups
        ]

    def _metrics_of(self, obs: VecObs, group: slice) -> dict[str, Metric]:
        """Return the metrics of a step, over the environments of a group that count."""
        # Metrics of the environments that count.
        counted = self.filter
        if len(self.groups) > 1:
            counted = np.zeros_like(counted)
            counted[group] = self.filter[group]
        is_step, is_frame = counted & ~self._padding, counted & ~obs.is_padding
        is_first = group.start == 0
        metrics = {n: m for n, m in obs.metrics.items() if is_first or n in obs.env_metrics}
        if not is_step.all():
            for name, ragged in obs.env_metrics.items():
                metrics[name] = Metric.of(ragged.values[np.repeat(is_step, ragged.lengths)])
        # Entities of each type and of all types, one row for each metric.
        ended = obs.done & counted
        types = [name for name in obs.features if name != GLOBAL]
        counts = [obs.features[name].lengths for name in types]
        rows = np.array([self.total_steps, *counts])  # (1 + types, B)
        rows = np.concatenate([rows, rows[1:].sum(axis=0, keepdims=True)])[:, is_frame]
        names = ["step", *(f"entity_count/{name}" for name in types), "entity_count"]
        count_metrics = dict(zip(names, Metric.of_each(rows), strict=True))
        if len(obs.padding) or self._padding.any():
            count_metrics["step"] = Metric.of(self.total_steps[is_step])
        # Returns and lengths of the episodes that ended.
        metrics["step"] = count_metrics.pop("step")
        metrics["reward"] = Metric.of(obs.reward[is_step])
        metrics["episodic_reward"] = Metric.of(self.total_reward[ended])
        metrics["episode_length"] = Metric.of(self.total_steps[ended])
        return metrics | count_metrics
