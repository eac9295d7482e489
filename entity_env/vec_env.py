"""`VecEnv`: the interface of environments that step together."""

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from entity_env.errors import EntityEnvError
from entity_env.ragged import Ragged
from entity_env.spaces import ActionName, ActionSpace, ObsSpace, has_global_entity
from entity_env.vec_obs import (
    Metric,
    VecActionMask,
    VecCategoricalActionMask,
    VecObs,
    VecSelectEntityActionMask,
    add_metrics,
)
from entity_env.world_times import ProcessTimes

__all__ = [
    "Metric",
    "VecActionMask",
    "VecCategoricalActionMask",
    "VecEnv",
    "VecEnvWrapper",
    "VecObs",
    "VecSelectEntityActionMask",
    "add_metrics",
]


class VecEnv(ABC):
    """B environments that step together. Everything that trains goes through this interface."""

    @abstractmethod
    def obs_space(self) -> ObsSpace:
        """What can be observed."""

    @abstractmethod
    def action_space(self) -> dict[ActionName, ActionSpace]:
        """What can be done."""

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
        self.refuse_begun_step("act_async")
        self._begun = actions, obs_filter

    def wait(self) -> VecObs:
        """What is shown after the step that `act_async` began.

        Raises:
            EntityEnvError: none was begun.
        """
        if self._begun is None:
            raise EntityEnvError("wait: call act_async first")
        (actions, obs_filter), self._begun = self._begun, None
        return self.act(actions, obs_filter)

    def refuse_begun_step(self, name: str) -> None:
        """Raise if a step was begun that nobody waited for, before `name` would forget it.

        Raises:
            EntityEnvError: it was.
        """
        if self._begun is not None:
            raise EntityEnvError(f"{name}: call wait first")

    _begun: tuple[Mapping[ActionName, Ragged], ObsSpace] | None = None

    @abstractmethod
    def render(self, **kwargs: Any) -> npt.NDArray[np.uint8]:
        """Pictures of all environments, (B, height, width, 3) uint8."""

    @abstractmethod
    def __len__(self) -> int: ...

    def seed(self, seed: int) -> None:
        """Make what follows the next reset a function of `seed`. Without it nothing is promised."""
        return

    def get_state(self) -> dict[str, Any] | None:
        """What the environments are in the middle of, for `set_state` in this or another process.

        Called between steps, when a run is saved. What is returned is packed at once, so it need
        not be a copy. It has to hold all that the next steps depend on: the episodes, what seeds
        the next ones, the frames that were shown last.

        Returns:
            Parts by name, of plain data (see `plain_state.py`) and batches of this package;
            wrappers add theirs. None where an environment cannot be saved: all begin new episodes
            then.
        """
        return None

    def set_state(self, state: Mapping[str, Any], obs_config: ObsSpace) -> VecObs | None:
        """Go on from a state, instead of a reset.

        Args:
            state: what `get_state` returned; of as many environments, made with the same arguments.
            obs_config: the types and features to show, those of before.

        Returns:
            The frames that were shown last, their rewards and ends aside; None where the
            environments cannot do this, and a reset is needed.
        """
        return None

    def world_code(self) -> dict[str, str]:
        """Digests of the worlds' source as it was when they were made, by the names of classes.

        A state is of that code: attributes that the code sets in another way now would be as they
        were. Empty where the source is not known.
        """
        return {}

    def process_times(self) -> list[ProcessTimes]:
        """What each process that has environments has used so far; empty where it is not known."""
        return []

    def close(self) -> None:
        """Release what the environments hold."""
        return

    def has_global_entity(self) -> bool:
        """Whether frames carry a row of global features."""
        return has_global_entity(self.obs_space(), self.action_space())


class VecEnvWrapper(VecEnv):
    """Environments around which something else happens; what is not overridden is theirs.

    What happens before a step goes into `act_async`, what happens after it into `wait`.

    Args:
        env: the environments.
    """

    def __init__(self, env: VecEnv) -> None:
        self.env = env

    def obs_space(self) -> ObsSpace:
        """What can be observed."""
        return self.env.obs_space()

    def action_space(self) -> dict[ActionName, ActionSpace]:
        """What can be done."""
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
        """What is shown after that step."""
        return self.env.wait()

    def seed(self, seed: int) -> None:
        """Seed the environments."""
        self.env.seed(seed)

    def get_state(self) -> dict[str, Any] | None:
        """The parts of the environments; a wrapper that remembers something adds its own."""
        return self.env.get_state()

    def set_state(self, state: Mapping[str, Any], obs_config: ObsSpace) -> VecObs | None:
        """Let the environments go on."""
        return self.env.set_state(state, obs_config)

    def world_code(self) -> dict[str, str]:
        """That of the environments."""
        return self.env.world_code()

    def process_times(self) -> list[ProcessTimes]:
        """Those of the environments."""
        return self.env.process_times()

    def render(self, **kwargs: Any) -> npt.NDArray[np.uint8]:
        """Pictures of the environments."""
        return self.env.render(**kwargs)

    def close(self) -> None:
        """Close the environments."""
        self.env.close()
