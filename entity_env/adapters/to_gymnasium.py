"""Wrapper from entity environments to Gymnasium environments with arrays of fixed size."""

import copy
from collections.abc import Mapping, Sequence
from typing import Any, Literal, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt

from entity_env.actions.chains import choose_parts
from entity_env.adapters.padded_layout import PaddedLayout
from entity_env.arrays import BoolArray, Float32Array, IntArray, real_array
from entity_env.environment import Environment, Observation
from entity_env.errors import InvalidAction, InvalidObservation
from entity_env.imports.extras import needs_extra
from entity_env.kinds import one_hot, one_hot_names
from entity_env.ragged import Ragged
from entity_env.spaces import GLOBAL, ActionName, Entity, EntityName
from entity_env.vec.batching import batch_obs, unbatch_actions
from entity_env.vec.vec_env import VecActionMask, VecContinuousActionMask, VecObs

with needs_extra():
    import gymnasium
    from gymnasium import spaces

Arrays: TypeAlias = dict[str, npt.NDArray[Any]]

_MODES = {"rgb_array": "rgb_array", "ansi": "text"}


class _ChoiceActors(NamedTuple):
    """Actors of a categorical or select-entity action in the current frame."""

    heads: IntArray  # (actors,) elements of the padded action
    legal: BoolArray  # (actors, choices)
    choices: IntArray  # (choices,) conversion to choices of `VecEnv.act`


class _NumberActors(NamedTuple):
    """Actors of a continuous action in the current frame."""

    numbers: IntArray  # (actors, components) numbers of the padded action
    low: Float32Array  # (actors, components)
    high: Float32Array  # (actors, components)


class ToGymnasium(gymnasium.Env[Arrays, Any]):
    """Wrapper that pads the entities of an environment to arrays of fixed size.

    Each type has `max_entities` slots, and row i of a type is in its slot i; slots are numbered
    type by type in the order of the `ObsSpace`. An observation is a flat dictionary; a full stop in
    the name of a type becomes a slash in its keys:

        "entities/<type>"  float32 (slots of the type, columns); zeros in empty slots. Omitted for a
                           type without features. Numbers come first, then one-hot encoded labels
                           of each kind
        "present/<type>"   int8 (slots of the type,), 1 in slots with a visible entity
        "globals"          float32 (columns,), global features; omitted if there are none
        "acts"             int8 (elements of the action,), 1 for elements with an actor: first
                           choices, then numbers
        "action_mask"      int8 (total number of choices,), 1 for allowed choices, element by
                           element; omitted if all actions are continuous

    An action is a `MultiDiscrete` with one element for each action of the environment, in order,
    and each slot that may act (one for a global action), as listed in `heads`. It chooses a label,
    or for select-entity actions a slot. An element without an actor is ignored, and its mask allows
    choice 0 only, so it has probability 1, entropy 0 and no gradient in a masked policy.
    MaskablePPO calls `action_masks()`.

    If all actions are continuous, an action is a `Box` in the units and bounds of the environment,
    with one element for each component of each slot that may act, as listed in `numbers`. If some
    are continuous, it is a `Dict` of the `MultiDiscrete` "choices" and the `Box` "numbers". A
    number without an actor is ignored.

    Autoregressive actions are part of the same action. Their mask allows everything that some label
    of the parent action allows, and they are ignored if the chosen label does not require them.

    `info["metrics"]` has the metrics of the step, `info["illegal_actions"]` the number of choices
    that were not allowed and of numbers out of the bounds of the frame.

    Args:
        env: environment to wrap.
        max_entities: maximum number of entities in a frame, per type or for every type.
        actors: acting types of each action; fewer types make the action shorter. By default all
            types.
        on_illegal: "first" replaces a choice that is not allowed by the first allowed one, and
            clips numbers to the bounds of the frame; "error" raises.
        render_mode: "rgb_array", "ansi" for text, or None.

    Attributes:
        heads: action and actor of each choice.
        numbers: action, actor and component of each number.
        columns: column names of each "entities/<type>" and of "globals"; labels have columns
            `kind=label`.

    Raises:
        ValueError: an argument does not fit the environment.
        InvalidObservation: in `reset` and `step`: more entities than `max_entities`, an actor of a
            type that is not in `actors`, or an observation that does not fit its spaces.
        InvalidAction: in `step` with `on_illegal="error"`: a choice that is not allowed, or a
            number out of the bounds of the frame.
    """

    metadata: dict[str, Any] = {"render_modes": list(_MODES), "render_fps": 10}  # noqa: RUF012 (Gymnasium's)

    def __init__(
        self,
        env: Environment,
        max_entities: Mapping[EntityName, int] | int,
        actors: Mapping[ActionName, Sequence[EntityName]] | None = None,
        on_illegal: Literal["first", "error"] = "first",
        render_mode: str | None = None,
    ) -> None:
        if not isinstance(env, Environment):
            raise ValueError(
                f"env: expected an Environment, got {env!r}; pass an instance, not a class; a "
                "Match cannot be wrapped"
            )
        if on_illegal not in ("first", "error"):
            raise ValueError(f"on_illegal: expected 'first' or 'error', got {on_illegal!r}")
        if type(env).render is Environment.render:
            self.metadata = {"render_modes": []}
        if render_mode not in (None, *self.metadata["render_modes"]):
            modes = [*self.metadata["render_modes"], None]
            raise ValueError(f"render_mode: expected one of {modes}, got {render_mode!r}")

        # Compute the layout and the padded spaces.
        self.world = env
        self.render_mode = render_mode
        self._on_illegal = on_illegal
        self._obs_space, self._action_space = env.obs_space(), env.action_space()
        self._layout = layout = PaddedLayout(
            self._obs_space, self._action_space, max_entities, actors or {}
        )
        self.heads, self.numbers = layout.heads, layout.numbers
        parts: dict[str, spaces.Space[Any]] = {}
        if self.heads:
            parts["choices"] = spaces.MultiDiscrete(np.diff(layout.mask_starts))
        if self.numbers:
            parts["numbers"] = spaces.Box(*layout.bounds, dtype=np.float32)
        self._parts = parts
        self.action_space = spaces.Dict(parts) if len(parts) > 1 else next(iter(parts.values()))
        self.columns: dict[str, list[str]] = {}
        fields: dict[str, spaces.Space[Any]] = {}
        self._key_of = _keys_of([*layout.max_entities])
        for name, size in layout.max_entities.items():
            if names := _columns_of(self._obs_space.entities[name]):
                field, shape = f"entities/{self._key_of[name]}", (size, len(names))
                self.columns[field] = names
                fields[field] = spaces.Box(-np.inf, np.inf, shape, np.float32)
            fields[f"present/{self._key_of[name]}"] = spaces.MultiBinary(size)
        if names := _columns_of(self._obs_space.global_entity):
            self.columns["globals"] = names
            fields["globals"] = spaces.Box(-np.inf, np.inf, (len(names),), np.float32)
        fields["acts"] = spaces.MultiBinary(len(self.heads) + len(self.numbers))
        if self.heads:
            fields["action_mask"] = spaces.MultiBinary(int(layout.mask_starts[-1]))
        padded: Any = spaces.Dict(fields)
        self.observation_space = padded
        self._obs: Observation | None = None
        self._batch: VecObs
        self._slot_of = np.zeros(0, dtype=np.int64)  # of each entity of the frame
        self._mask = np.zeros(0, dtype=np.int8)

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Arrays, dict[str, Any]]:
        """Start a new episode; a seed determines this and all following episodes."""
        super().reset(seed=seed)
        if seed is not None and callable(self.world.seed):
            self.world.seed(seed)
        obs = self.world.reset()
        return self._pad(obs), {"metrics": dict(obs.metrics), "illegal_actions": 0}

    def step(self, action: Any) -> tuple[Arrays, float, bool, bool, dict[str, Any]]:
        """Step the environment."""
        if self._obs is None:
            raise gymnasium.error.ResetNeeded("step: no episode is running, call reset first")
        choices, numbers = self._split(action)
        # Replace illegal choices, action by action, because masks may depend on the parent action.
        num_illegal = 0

        def choose(name: ActionName, mask: VecActionMask) -> Ragged:
            nonlocal num_illegal
            values: npt.NDArray[Any]
            actors = self._actors_of(name, mask)
            if isinstance(actors, _ChoiceActors):
                values, count = self._legal_choices(actors, choices)
            else:
                values, count = self._legal_numbers(actors, numbers)
            num_illegal += count
            return Ragged(values, np.array([len(values)]))

        chosen = choose_parts(self._batch.action_masks, self._action_space, choose)

        # Step, and pad the new frame.
        (actions,) = unbatch_actions(
            chosen, self._batch, [self._obs], self._obs_space, self._action_space
        )
        obs = self.world.act(actions)
        info = {"metrics": dict(obs.metrics), "illegal_actions": num_illegal}
        padded = self._pad(obs)
        return padded, float(obs.reward), bool(obs.terminated), bool(obs.truncated), info

    def action_masks(self) -> BoolArray:
        """Return the action mask of the last observation, (total number of choices,) bool."""
        return self._mask.astype(np.bool_)

    def render(self) -> Any:
        """Render an image or text, depending on `render_mode`; return None without it."""
        if self.render_mode is None:
            return None
        return self.world.render(mode=_MODES[self.render_mode])

    def close(self) -> None:
        """Close the environment."""
        self.world.close()

    def _split(self, action: Any) -> tuple[IntArray, Float32Array]:
        """Return the choices and the numbers of an action.

        Raises:
            ValueError: the action is not in the action space; other float dtypes are accepted.
        """
        parts = action if len(self._parts) > 1 else dict.fromkeys(self._parts, action)
        choices, numbers = np.zeros(0, np.int64), np.zeros(0, np.float32)
        try:
            fits = isinstance(parts, Mapping) and parts.keys() == self._parts.keys()
            if fits and self.heads:
                fits = self._parts["choices"].contains(parts["choices"])
                choices = np.asarray(parts["choices"], dtype=np.int64)
            if fits and self.numbers:
                numbers = real_array(parts["numbers"]).astype(np.float32)
                low, high = self._layout.bounds
                fits = numbers.shape == low.shape and bool(np.isfinite(numbers).all())
                fits = fits and bool(((low <= numbers) & (numbers <= high)).all())
        except (TypeError, ValueError, OverflowError):
            fits = False
        if not fits:
            raise ValueError(f"action: expected one of {self.action_space}, got {action!r}")
        return choices, numbers

    def _legal_choices(self, actors: _ChoiceActors, chosen: IntArray) -> tuple[IntArray, int]:
        """Return legal choices for `VecEnv.act`, and the number of illegal ones replaced."""
        choices = chosen[actors.heads]
        illegal = ~actors.legal[np.arange(len(choices)), choices]
        if illegal.any():
            if self._on_illegal == "error":
                element, choice = actors.heads[illegal][0], choices[illegal][0]
                name, entity, row = self.heads[element]
                actor = "" if entity is None else f" by row {row} of {entity!r}"
                raise InvalidAction(
                    f"action[{element}]: choice {choice} of {name!r}{actor} is not allowed "
                    "now; see the observation's action_mask, or set on_illegal='first'"
                )
            choices = np.where(illegal, actors.legal.argmax(axis=1), choices)
        return actors.choices[choices], int(illegal.sum())

    def _legal_numbers(
        self, actors: _NumberActors, numbers: Float32Array
    ) -> tuple[Float32Array, int]:
        """Return the numbers clipped to their bounds, and how many were out of bounds."""
        values = numbers[actors.numbers]
        legal = np.clip(values, actors.low, actors.high)
        illegal = values != legal
        if illegal.any() and self._on_illegal == "error":
            element = actors.numbers[illegal][0]
            low, high, got = (x[illegal][0] for x in (actors.low, actors.high, values))
            name, entity, row, component = self.numbers[element]
            actor = "" if entity is None else f" by row {row} of {entity!r}"
            raise InvalidAction(
                f"action[{element}]: {component!r} of {name!r}{actor}: expected a number from "
                f"{low:g} to {high:g} now, got {got:g}; or set on_illegal='first'"
            )
        return legal, int(illegal.sum())

    def _pad(self, obs: Observation) -> Arrays:
        """Return the padded frame, and store it for the next step unless the episode ended."""
        layout = self._layout
        frame = copy.copy(obs)
        if obs.done:
            frame.actions = {}  # no step follows
        self._batch = batch_obs([frame], self._obs_space, self._action_space)
        self._obs = None if obs.done else frame

        # Entities, global features, and the slot of each entity; the last slot is the global one.
        padded: Arrays = {}
        slots: list[IntArray] = []
        start = 0
        for name, size in layout.max_entities.items():
            rows, key = self._rows(name), self._key_of[name]
            if len(rows) > size:
                raise InvalidObservation(
                    f"features of {name!r}: expected at most {size} entities, got {len(rows)}; "
                    f"increase max_entities of {name!r}"
                )
            flags = self._batch.visible.get(name)
            visible = np.arange(len(rows)) if flags is None else np.flatnonzero(flags.values)
            if rows.shape[1]:
                padded[f"entities/{key}"] = np.zeros((size, rows.shape[1]), dtype=np.float32)
                padded[f"entities/{key}"][visible] = rows[visible]
            padded[f"present/{key}"] = np.zeros(size, dtype=np.int8)
            padded[f"present/{key}"][visible] = 1
            slots.append(start + np.arange(len(rows)))
            start += size
        self._slot_of = np.concatenate([*slots, [start]])
        if "globals" in self.columns:
            padded["globals"] = self._rows(GLOBAL)[0].copy()

        # Actors and masks.
        num_heads = len(self.heads)
        padded["acts"] = acts = np.zeros(num_heads + len(self.numbers), dtype=np.int8)
        self._mask = np.zeros(layout.mask_starts[-1], dtype=np.int8)
        for name, mask in self._batch.action_masks.items():
            actors = self._actors_of(name, mask)
            if isinstance(actors, _NumberActors):
                acts[num_heads + actors.numbers] = 1
                continue
            acts[actors.heads] = 1
            columns = np.arange(layout.num_choices[name])
            self._mask[layout.mask_starts[actors.heads][:, None] + columns] = actors.legal
        self._mask[layout.mask_starts[:-1][acts[:num_heads] == 0]] = 1
        if self.heads:
            padded["action_mask"] = self._mask.copy()
        return padded

    def _rows(self, name: EntityName) -> Float32Array:
        """Return the features of a type, with one-hot encoded labels."""
        rows, labels = self._batch.features[name].values, self._batch.kinds.get(name)
        if labels is None:
            return rows
        return np.hstack([rows, one_hot(labels.values, self._obs_space.kinds[name])])

    def _actors_of(self, name: ActionName, mask: VecActionMask) -> _ChoiceActors | _NumberActors:
        """Return the actors of an action, with the union of their masks over parent labels."""
        layout, slots = self._layout, self._slot_of
        heads = layout.head_of[name][slots[mask.actors.values]]
        if (heads < 0).any():
            entity, _ = layout.slots[slots[mask.actors.values[heads < 0][0]]]
            raise InvalidObservation(
                f"actions[{name!r}]: expected actors of the types in the argument actors, "
                f"got type {entity!r}; add it to actors[{name!r}]"
            )
        num_choices = layout.num_choices[name]
        if isinstance(mask, VecContinuousActionMask):
            numbers = heads[:, None] + np.arange(num_choices)
            return _NumberActors(numbers, mask.low.values, mask.high.values)
        options = np.arange(num_choices) if mask.actees is None else slots[mask.actees.values]
        legal = np.zeros((len(heads), num_choices), dtype=np.bool_)
        legal[:, options] = True
        if mask.mask is not None:
            by_label = mask.mask.values.reshape(len(heads), mask.labels, len(options))
            legal[:, options] = by_label.any(axis=1)
        choices = np.zeros(num_choices, dtype=np.int64)
        choices[options] = np.arange(len(options))
        return _ChoiceActors(heads, legal, choices)


def _keys_of(names: Sequence[EntityName]) -> dict[EntityName, str]:
    """Return the name of each type in keys of the observation.

    Raises:
        ValueError: two types have the same name.
    """
    # Stable-Baselines3 uses keys as names of PyTorch modules, which cannot contain full stops.
    keys = {name: name.replace(".", "/") for name in names}
    if duplicates := [name for name in names if [*keys.values()].count(keys[name]) > 1]:
        raise ValueError(
            f"env: expected type names that differ after replacing '.' by '/', got {duplicates}; "
            "rename one"
        )
    return keys


def _columns_of(entity: Entity) -> list[str]:
    return [*entity.features, *one_hot_names(entity.kinds)]
