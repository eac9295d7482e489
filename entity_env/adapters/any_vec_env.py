"""Wrapper for third-party vectorised environments, such as environments for entity-gym."""

import copy
import dataclasses
import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from entity_env.actions.chains import after_of, link_to_parents
from entity_env.arrays import BoolArray, Float32Array, IntArray, as_flags, real_array
from entity_env.errors import (
    InvalidObservation,
    InvalidSpace,
    exits_as_errors,
    short_repr,
    unexpected,
)
from entity_env.kinds import label_dtype
from entity_env.ragged import Ragged, from_ragged_buffer, is_ragged_buffer, to_ragged_buffer
from entity_env.spaces import (
    ACTION_SPACES,
    GLOBAL,
    ActionName,
    ActionSpace,
    Entity,
    EntityName,
    ObsSpace,
)
from entity_env.vec.batching import located_errors_of_final
from entity_env.vec.validate import (
    check_finite_batch,
    check_identity,
    check_kinds,
    check_masks,
    check_spaces,
)
from entity_env.vec.variation import Variation
from entity_env.vec.vec_env import (
    VecActionMask,
    VecCategoricalActionMask,
    VecEnv,
    VecObs,
    VecSelectEntityActionMask,
    copy_of_filter,
)


class AnyVecEnv(VecEnv):
    """A vectorised environment that may use ragged buffers and the spaces of entity-gym.

    Batches are checked and converted to the dtypes of `VecObs`. An environment that returns ragged
    buffers also gets its actions as ragged buffers.

    Args:
        env: environment with the methods of `VecEnv`; methods with defaults are optional.
        validate: raise for features and rewards that are not finite, with environment and field.

    Raises:
        InvalidSpace: a space fails the checks of `check_env`, or `sides` does not divide the number
            of environments.
    """

    @exits_as_errors()
    def __init__(self, env: Any, validate: bool = False) -> None:
        self.env = env
        self.validate = validate
        self.sides = sides = getattr(env, "sides", 1)
        if sides != 1 and (type(sides) is not int or sides < 1 or len(env) % sides):
            got = f"{short_repr(sides)} of {len(env)} environments"
            raise InvalidSpace(
                f"sides: expected a divisor of the number of environments, got {got}"
            )
        self._takes_buffers = False
        self._filter: ObsSpace | None = None
        self._steps: IntArray | None = None  # None: unknown, after set_state
        self._padding = np.zeros(0, np.bool_)  # of the current frames; empty before reset
        obs_space = _convert_obs_space(env.obs_space())
        action_space = _convert_action_spaces(env.action_space())
        check_spaces(obs_space, action_space)
        self._obs_space: ObsSpace = copy.deepcopy(obs_space)  # environments may change theirs
        self._action_space: dict[ActionName, ActionSpace] = copy.deepcopy(action_space)

    def obs_space(self) -> ObsSpace:
        """Return the observation space."""
        return self._obs_space

    def action_space(self) -> Mapping[ActionName, ActionSpace]:
        """Return the action spaces."""
        return self._action_space

    def __len__(self) -> int:
        return len(self.env)

    @exits_as_errors()
    def seed(self, seed: int) -> None:
        """Seed the environments, if they have a `seed` method."""
        getattr(self.env, "seed", super().seed)(seed)

    @exits_as_errors()
    def vary(self, variation: Variation) -> None:
        """Draw arguments for each episode, if the environments have a `vary` method."""
        getattr(self.env, "vary", functools.partial(VecEnv.vary, self.env))(variation)

    @exits_as_errors()
    def track(self, types: Sequence[EntityName] | None = None) -> None:
        """Track the identity of entities, if the environments have a `track` method."""
        getattr(self.env, "track", functools.partial(VecEnv.track, self.env))(types)

    @exits_as_errors()
    def reset(self, obs_config: ObsSpace) -> VecObs:
        """Reset all environments."""
        frames = self.env.reset(self._filter_for(obs_config))
        return self._accept(frames, obs_config, is_reset=True)

    @exits_as_errors()
    def act(self, actions: Mapping[ActionName, Ragged], obs_filter: ObsSpace) -> VecObs:
        """Step all environments."""
        # Copied, because environments may overwrite their actions.
        convert = to_ragged_buffer if self._takes_buffers else _copy_choices
        env_actions = {name: convert(chosen) for name, chosen in actions.items()}
        return self._accept(self.env.act(env_actions, self._filter_for(obs_filter)), obs_filter)

    @exits_as_errors()
    def get_state(self) -> dict[str, Any] | None:
        """Return the state of the environments, None if they have no `get_state`."""
        state: dict[str, Any] | None = getattr(self.env, "get_state", super().get_state)()
        return state

    def why_no_state(self) -> str:
        """Return why `get_state` returned None, if the environments give a reason."""
        reason: str = getattr(self.env, "why_no_state", super().why_no_state)()
        return reason

    @exits_as_errors()
    def set_state(self, state: Mapping[str, Any], obs_config: ObsSpace) -> VecObs | None:
        """Restore a state; return None if the environments have no `set_state`."""
        obs_filter = self._filter_for(obs_config)
        obs = getattr(self.env, "set_state", super().set_state)(state, obs_filter)
        self._steps, self._padding = None, np.zeros(len(self), np.bool_)
        return None if obs is None else self._accept(obs, obs_config)

    def world_code(self) -> dict[str, str]:
        """Return the digests of the environments' code; empty if they have no `world_code`."""
        code: dict[str, str] = getattr(self.env, "world_code", super().world_code)()
        return code

    @exits_as_errors()
    def render(self, **kwargs: Any) -> npt.NDArray[np.uint8]:
        """Return pictures of the environments."""
        pictures: npt.NDArray[np.uint8] = self.env.render(**kwargs)
        return pictures

    @exits_as_errors()
    def close(self) -> None:
        """Close the environments."""
        getattr(self.env, "close", super().close)()

    def _filter_for(self, obs_filter: ObsSpace) -> ObsSpace:
        """Return a copy of the filter for the environments, which may keep it."""
        self._filter = copy_of_filter(obs_filter, self._filter)
        return self._filter

    def _accept(self, obs: Any, obs_filter: ObsSpace, is_reset: bool = False) -> VecObs:
        """Check a batch, convert it to the dtypes of `VecObs`, and count the steps of episodes."""
        if is_reset:
            self._steps = np.zeros(len(self), dtype=np.int64)
            self._padding = np.zeros(len(self), np.bool_)
        elif self._steps is not None:
            self._steps += ~self._padding
        try:
            if not isinstance(obs, VecObs) or any(map(is_ragged_buffer, obs.features.values())):
                self._takes_buffers = True
                obs = _from_buffers(obs, self._action_space)
            accepted = _cast_arrays(_cast_labels(obs, obs_filter))
            accepted = _link_masks(accepted, self._action_space)
            _check_padding(accepted, self._padding, self.sides)
            _check_final(accepted)
            if self.validate:
                check_finite_batch(accepted, self._obs_space)
        except InvalidObservation as error:
            error.env_name = type(self.env).__name__
            if error.env_index is not None and self._steps is not None:
                error.step = int(self._steps[error.env_index])
            raise
        if self._steps is not None:
            self._steps[accepted.done] = 0
        self._padding = accepted.is_padding
        return accepted


def _from_buffers(obs: Any, action_spaces: Mapping[ActionName, ActionSpace]) -> VecObs:
    """Convert a batch of entity-gym to a `VecObs`.

    Raises:
        InvalidObservation: an action is continuous, which entity-gym does not support.
    """
    for name, space in action_spaces.items():
        if space.components:
            got = "ragged buffers of entity-gym, which do not support continuous actions"
            raise InvalidObservation(f"actions[{name!r}]: expected a VecObs of Ragged, got {got}")
    frames = len(obs.reward)

    def flat(buffer: Any) -> Ragged:
        rows = from_ragged_buffer(buffer)
        return Ragged(rows.values.reshape(-1), rows.lengths)

    def per_frame(rows: Ragged) -> Ragged:
        # An unused buffer has no frames.
        return rows if len(rows) == frames else Ragged.empty(rows.values, frames)

    masks: dict[ActionName, VecActionMask] = {}
    for name in action_spaces:
        mask = obs.action_masks[name]
        actors = per_frame(flat(mask.actors))
        if getattr(mask, "actees", None) is not None:  # of select-entity masks only
            masks[name] = VecSelectEntityActionMask(actors, per_frame(flat(mask.actees)))
        else:
            # A mask without rows: no environment has one.
            has_mask = mask.mask is not None and mask.mask.size0() > 0
            allowed = from_ragged_buffer(mask.mask) if has_mask else None
            masks[name] = VecCategoricalActionMask(actors, allowed)
    return VecObs(
        features={n: per_frame(from_ragged_buffer(rows)) for n, rows in obs.features.items()},
        visible={name: flat(flags) for name, flags in obs.visible.items()},
        action_masks=masks,
        reward=obs.reward,
        done=obs.done,
        metrics=dict(obs.metrics),
    )


def _cast_labels(obs: VecObs, obs_filter: ObsSpace) -> VecObs:
    """Convert the labels of a batch to the dtypes of `VecObs`.

    Raises:
        InvalidObservation: labels are missing, or an index is out of range.
    """
    kinds = obs_filter.kinds
    if not kinds and not obs.kinds:
        return obs
    check_kinds(obs, obs_filter)
    labels = {
        name: Ragged(rows.values.astype(label_dtype(kinds[name]), copy=False), rows.lengths)
        for name, rows in obs.kinds.items()
    }
    if obs.final is None:
        return dataclasses.replace(obs, kinds=labels)
    with located_errors_of_final(obs.truncated):
        return dataclasses.replace(obs, kinds=labels, final=_cast_labels(obs.final, obs_filter))


def _cast_arrays(obs: VecObs) -> VecObs:
    """Convert the arrays of a batch to the dtypes of `VecObs`: float32 numbers and bool flags.

    Raises:
        InvalidObservation: an array has values that are not real numbers, a mask has values other
            than booleans, zeros and ones, or one of them is a masked array.
    """

    def converted(rows: Ragged, convert: Callable[[Any, str], Any], field: str) -> Ragged:
        values = convert(rows.values, field)
        return rows if values is rows.values else Ragged(values, rows.lengths)

    def cast_mask(name: ActionName, mask: VecActionMask) -> VecActionMask:
        fields = ("mask", as_flags), ("low", _float32), ("high", _float32)
        changed = {
            field: converted(rows, convert, f"actions[{name!r}].{field}")
            for field, convert in fields
            if (rows := getattr(mask, field, None)) is not None
        }
        return dataclasses.replace(mask, **changed) if changed else mask  # type: ignore[type-var]

    check_identity(obs)
    return dataclasses.replace(
        obs,
        features={n: converted(r, _float32, f"features of {n!r}") for n, r in obs.features.items()},
        visible={n: converted(r, as_flags, f"visible[{n!r}]") for n, r in obs.visible.items()},
        action_masks={name: cast_mask(name, mask) for name, mask in obs.action_masks.items()},
        reward=_float32(obs.reward, "reward").reshape(-1),
        done=as_flags(obs.done, "done").reshape(-1),
        truncated=as_flags(obs.truncated, "truncated"),
        padding=as_flags(obs.padding, "padding").reshape(-1),
        final=None if obs.final is None else _cast_arrays(obs.final),
        # Copied, because wrappers add entries.
        metrics=dict(obs.metrics),
        env_metrics=dict(obs.env_metrics),
        identity=dict(obs.identity),
    )


def _link_masks(obs: VecObs, action_space: Mapping[ActionName, ActionSpace]) -> VecObs:
    """Check the masks of continuous and autoregressive actions, and link them to their parents.

    `batch_obs` does so, but masks of third-party environments need not come from it.

    Raises:
        InvalidObservation: a mask does not fit its action.
    """
    spaces = action_space.values()
    if not any(space.after is not None or space.components for space in spaces):
        return obs
    masks = dict(obs.action_masks)
    for name in action_space.keys() & masks.keys():
        mask = masks[name]
        zeros = Ragged(np.zeros(mask.actors.items(), np.int64), mask.actors.lengths)
        after = after_of(action_space, name, zeros)
        masks[name] = dataclasses.replace(mask, after=after)  # type: ignore[type-var]
    num_entities = sum(
        (rows.lengths for name, rows in obs.features.items() if name != GLOBAL),
        start=np.zeros(len(obs), np.int64),
    )
    batch = dataclasses.replace(obs, action_masks=masks)
    check_masks(batch, action_space, num_entities)
    return dataclasses.replace(obs, action_masks=link_to_parents(masks, action_space))


def _copy_choices(chosen: Any) -> Any:
    """Copy choices; buffers of entity-gym cannot be overwritten and need no copy."""
    if not isinstance(chosen, Ragged):
        return chosen
    return Ragged(chosen.values.copy(), chosen.lengths.copy())


def _check_padding(obs: VecObs, was_padding: BoolArray, sides: int) -> None:
    """Check that padding frames have no actors, and the next step has no reward and no end.

    Args:
        obs: B frames.
        was_padding: (B,) bool, `padding` of the frames before the step.
        sides: number of sides of a match.

    Raises:
        InvalidObservation: names the environment and the field.
    """
    if len(obs.padding) not in (0, len(obs)):
        expected = f"a flag for each of {len(obs)} environments, or none"
        raise unexpected(None, "padding", expected, len(obs.padding))
    moved = was_padding & (obs.done | (obs.reward != 0)) if was_padding.any() else was_padding
    for i in np.flatnonzero(moved).tolist():
        got = "done" if obs.done[i] else f"reward {obs.reward[i]}"
        raise unexpected(i, "padding", "no reward and no end in the next step", got)
    first_side = np.repeat(obs.padding[::sides], sides)
    for i in np.flatnonzero(obs.padding != first_side).tolist():
        raise unexpected(i, "padding", "one flag for all sides of a match", obs.padding[i])
    for name, mask in obs.action_masks.items() if obs.padding.any() else ():
        for i in np.flatnonzero(obs.padding & (mask.actors.lengths > 0)).tolist():
            raise unexpected(i, "padding", "a frame without actors", f"actors of {name!r}")


def _check_final(obs: VecObs) -> None:
    """Check that each truncated episode has a last observation.

    Raises:
        InvalidObservation: names the field and the first truncated environment.
    """
    expected, got = int(obs.truncated.sum()), 0 if obs.final is None else len(obs.final)
    if got != expected:
        environment = int(obs.truncated.argmax()) if expected else None
        frames = f"{expected} frames, the last observation of each truncated episode"
        raise unexpected(environment, "final", frames, got)


def _float32(values: Any, field: str) -> Float32Array:
    try:
        return np.asarray(real_array(values), dtype=np.float32)
    except (TypeError, ValueError, OverflowError) as error:
        raise InvalidObservation(f"{field}: expected numbers, got {error}") from None


def _convert_obs_space(space: Any) -> Any:
    """Convert an observation space of entity-gym; anything else is returned unchanged."""
    if isinstance(space, ObsSpace) or not hasattr(space, "entities"):
        return space
    entities = {
        name: entity if isinstance(entity, Entity) else Entity(entity.features)
        for name, entity in space.entities.items()
    }
    return ObsSpace(space.global_features, entities)


def _convert_action_spaces(spaces: Any) -> Any:
    """Convert the action spaces of entity-gym; anything else is returned unchanged."""
    if not isinstance(spaces, Mapping):
        return spaces
    converted = dict(spaces)
    for name, space in spaces.items():
        cls = ACTION_SPACES.get(type(space).__name__)
        if cls is not None and not isinstance(space, cls):
            fields = {field.name for field in dataclasses.fields(cls)}
            arguments = {one: getattr(space, one) for one in fields if hasattr(space, one)}
            if fields <= arguments.keys() | {"after", "when"}:
                converted[name] = cls(**arguments)
    return converted
