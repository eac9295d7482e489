"""Vectorised environments written for entity-gym: ragged buffers at the border, `Ragged` inside."""

import copy
from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from entity_env.check_spaces import check_spaces
from entity_env.masks import MASK_OF_SPACE
from entity_env.ragged import Ragged, from_ragged_buffer, is_ragged_buffer, to_ragged_buffer
from entity_env.spaces import (
    ActionName,
    ActionSpace,
    Entity,
    ObsSpace,
    SelectEntityActionSpace,
)
from entity_env.validate import refuse_invalid_batch
from entity_env.vec_env import (
    VecActionMask,
    VecCategoricalActionMask,
    VecEnv,
    VecObs,
    VecSelectEntityActionMask,
)


class AnyVecEnv(VecEnv):
    """Any vectorised environment; one that answers in ragged buffers is spoken to in them.

    Args:
        env: with the methods of `VecEnv`; those that have defaults may be missing. Its spaces may
            be those of entity-gym.
        validate: refuse numbers that are not finite, with the environment and field.

    Raises:
        InvalidSpace: a space is one that `check_env` refuses.
    """

    def __init__(self, env: Any, validate: bool = False) -> None:
        self.env = env
        self.validate = validate
        self._takes_buffers = False
        spaces = _own_obs_space(env.obs_space()), _own_action_spaces(env.action_space())
        check_spaces(*spaces)
        self._obs_space, self._action_space = copy.deepcopy(spaces)  # the environment may keep its

    def obs_space(self) -> ObsSpace:
        """What can be observed."""
        return self._obs_space

    def action_space(self) -> dict[ActionName, ActionSpace]:
        """What can be done."""
        return self._action_space

    def __len__(self) -> int:
        return len(self.env)

    def seed(self, seed: int) -> None:
        """Seed the environments, if they can be."""
        if hasattr(self.env, "seed"):
            self.env.seed(seed)

    def reset(self, obs_config: ObsSpace) -> VecObs:
        """Begin an episode everywhere."""
        return self._accept(self.env.reset(obs_config))

    def act(self, actions: Mapping[ActionName, Ragged], obs_filter: ObsSpace) -> VecObs:
        """Take a step everywhere."""
        handed = (
            {name: to_ragged_buffer(chosen) for name, chosen in actions.items()}
            if self._takes_buffers
            else actions
        )
        return self._accept(self.env.act(handed, obs_filter))

    def get_state(self) -> dict[str, Any] | None:
        """What the environments say, if they can."""
        return self.env.get_state() if hasattr(self.env, "get_state") else None

    def set_state(self, state: Mapping[str, Any], obs_config: ObsSpace) -> VecObs | None:
        """Go on from a state, if they can."""
        if not hasattr(self.env, "set_state"):
            return None
        obs = self.env.set_state(state, obs_config)
        return None if obs is None else self._accept(obs)

    def world_code(self) -> dict[str, str]:
        """That of the environments, if they know it."""
        code: dict[str, str] = self.env.world_code() if hasattr(self.env, "world_code") else {}
        return code

    def render(self, **kwargs: Any) -> npt.NDArray[np.uint8]:
        """Pictures of the environments."""
        pictures: npt.NDArray[np.uint8] = self.env.render(**kwargs)
        return pictures

    def close(self) -> None:
        """Close the environments."""
        if hasattr(self.env, "close"):
            self.env.close()

    def _accept(self, obs: Any) -> VecObs:
        if isinstance(obs, VecObs) and not any(map(is_ragged_buffer, obs.features.values())):
            accepted = obs
        else:
            self._takes_buffers = True
            accepted = self._from_buffers(obs)
        if self.validate:
            refuse_invalid_batch(accepted, self._obs_space)
        return accepted

    def _from_buffers(self, obs: Any) -> VecObs:
        features = {name: from_ragged_buffer(rows) for name, rows in obs.features.items()}
        frames = len(obs.reward)
        return VecObs(
            features={name: _or_empty(rows, frames) for name, rows in features.items()},
            visible={name: _flat(from_ragged_buffer(v)) for name, v in obs.visible.items()},
            action_masks={
                name: _accept_mask(obs.action_masks[name], frames) for name in self.action_space()
            },
            reward=np.asarray(obs.reward, dtype=np.float32).reshape(-1),
            done=np.asarray(obs.done, dtype=np.bool_).reshape(-1),
            metrics=dict(obs.metrics),
        )


def _own_obs_space(space: Any) -> Any:
    """Convert an observation space of entity-gym; anything else is returned unchanged."""
    if isinstance(space, ObsSpace) or not hasattr(space, "entities"):
        return space
    entities = {name: Entity(entity.features) for name, entity in space.entities.items()}
    return ObsSpace(space.global_features, entities)


def _own_action_spaces(spaces: Any) -> Any:
    """Convert the action spaces of entity-gym; anything else is returned unchanged."""
    if not isinstance(spaces, Mapping):
        return spaces
    return {name: _own_action_space(space) for name, space in spaces.items()}


def _own_action_space(space: Any) -> Any:
    kind = _OWN_CLASSES.get(type(space).__name__)
    if kind is None or isinstance(space, kind):
        return space
    return kind() if kind is SelectEntityActionSpace else kind(space.index_to_label)


_OWN_CLASSES: dict[str, type[Any]] = {cls.__name__: cls for cls in MASK_OF_SPACE}


def _accept_mask(mask: Any, frames: int) -> VecActionMask:
    actors = _or_empty(_flat(from_ragged_buffer(mask.actors)), frames)
    if hasattr(mask, "actees"):
        actees = _or_empty(_flat(from_ragged_buffer(mask.actees)), frames)
        return VecSelectEntityActionMask(actors, actees)
    # entity-gym leaves a mask without rows where no environment gave one
    given = mask.mask is not None and mask.mask.size0() > 0
    return VecCategoricalActionMask(actors, from_ragged_buffer(mask.mask) if given else None)


def _flat(rows: Ragged) -> Ragged:
    return Ragged(rows.values.reshape(-1), rows.lengths)


def _or_empty(rows: Ragged, frames: int) -> Ragged:
    """A buffer that was never filled has no frames: as many without rows."""
    return rows if len(rows) == frames else Ragged.empty(rows.values, frames)
