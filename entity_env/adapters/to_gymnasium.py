"""Entity environments as Gymnasium environments, with arrays of one size."""

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


class _Choosing(NamedTuple):
    """The actors of one action among labels or entities in the current frame."""

    heads: IntArray  # (actors,)
    legal: BoolArray  # (actors, choices)
    choices: IntArray  # (choices,), each choice as `VecEnv.act` takes it


class _Numbering(NamedTuple):
    """The actors of one action of numbers in the current frame."""

    numbers: IntArray  # (actors, components), their numbers of the padded action
    low: Float32Array  # (actors, components)
    high: Float32Array  # (actors, components)


class ToGymnasium(gymnasium.Env[Arrays, Any]):
    """An entity environment whose entities are padded to arrays of one size.

    Row i of a type has a slot of its own, the i-th of `max_entities` of that type; slots are
    numbered type after type in the order of the `ObsSpace`. An observation is a flat dictionary, in
    whose keys a full stop in the name of a type is a slash:

        "entities/<type>"  float32 (slots of the type, columns); zeros where no entity is. Left out
                           for a type without features. Numbers come first, then for each label of
                           a kind a column that is 1 if it applies
        "present/<type>"   int8 (slots of the type,), 1 where an entity is. What is invisible is
                           not present
        "globals"          float32 (columns,) of the global features, likewise; left out if there
                           are none
        "acts"             int8 (elements of the action,), 1 where an element is asked for now: of
                           the choices, then of the numbers
        "action_mask"      int8 (sum of all numbers of choices,), 1 where a choice is allowed now,
                           element after element; left out if there are none

    An action is one `MultiDiscrete`: for every action of the environment, in its order, one element
    for every slot that may act (one in all for a global action), as `heads` lists them. It chooses
    a label, or for select-entity actions a slot. Where no choice is asked for, the element is
    ignored and the mask allows choice 0 alone: for a policy with this mask such an element has
    probability 1, entropy 0 and no gradient. MaskablePPO calls `action_masks()`.

    If all actions are of numbers, an action is one `Box`, in units of the environment and with the
    bounds of its spaces: an element for every component of every slot that may act, as `numbers`
    lists them. If some are, it is a `Dict` of the `MultiDiscrete` "choices" and the `Box`
    "numbers". Where a number is not asked for, the element is ignored.

    Actions that depend on another one are asked for beside it, with all that they allow after any
    label, and are ignored where an actor chooses something else before.

    `info["metrics"]` holds the metrics of the step, `info["illegal_actions"]` the number of choices
    that were not allowed, and of numbers beyond their bounds in the frame.

    Args:
        env: the environment.
        max_entities: the largest number of entities in a frame, per type or of each type.
        actors: per action the types that take it, which makes the action shorter. By default all
            types may take it.
        on_illegal: a choice that is not allowed is replaced by the "first" allowed one, and a
            number beyond its bounds in the frame by the nearest bound; or it is an "error".
        render_mode: "rgb_array", "ansi" for text, or None.

    Attributes:
        heads: the actor of each choice of an action.
        numbers: the actor and component of each number of an action.
        columns: the names of the columns of each "entities/<type>" and of "globals"; those of
            labels are `kind=label`.

    Raises:
        ValueError: an argument does not fit the environment.
        InvalidObservation: from `reset` and `step`: more entities than `max_entities`, an actor of
            another type than `actors` names, or an observation that contradicts its spaces.
        InvalidAction: from `step`: a choice that is not allowed, or a number beyond its bounds in
            the frame, with `on_illegal="error"`.
    """

    metadata: dict[str, Any] = {"render_modes": list(_MODES), "render_fps": 10}  # noqa: RUF012 (theirs)

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
                f"env: expected an Environment, got {env!r}; give an object, not its class; a "
                "Match cannot be given"
            )
        if on_illegal not in ("first", "error"):
            raise ValueError(f"on_illegal: expected 'first' or 'error', got {on_illegal!r}")
        if type(env).render is Environment.render:
            self.metadata = {"render_modes": []}
        if render_mode not in (None, *self.metadata["render_modes"]):
            modes = [*self.metadata["render_modes"], None]
            raise ValueError(f"render_mode: expected one of {modes}, got {render_mode!r}")

        # The layout, and the spaces that follow from it.
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
        self._slot_of = np.zeros(0, dtype=np.int64)  # of each position in the frame
        self._mask = np.zeros(0, dtype=np.int8)

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Arrays, dict[str, Any]]:
        """Begin an episode; with a seed, this and all following ones are a function of it."""
        super().reset(seed=seed)
        if seed is not None and callable(self.world.seed):
            self.world.seed(seed)
        obs = self.world.reset()
        return self._show(obs), {"metrics": dict(obs.metrics), "illegal_actions": 0}

    def step(self, action: Any) -> tuple[Arrays, float, bool, bool, dict[str, Any]]:
        """Take a step."""
        if self._obs is None:
            raise gymnasium.error.ResetNeeded("step: no episode is running, call reset first")
        choices, numbers = self._split(action)
        # What the actors chose, of which what is illegal is replaced, action by action: what is
        # legal may depend on the one before.
        num_illegal = 0

        def choose(name: ActionName, mask: VecActionMask) -> Ragged:
            nonlocal num_illegal
            own: npt.NDArray[Any]
            actors = self._actors_of(name, mask)
            if isinstance(actors, _Choosing):
                own, count = self._legal_choices(actors, choices)
            else:
                own, count = self._legal_numbers(actors, numbers)
            num_illegal += count
            return Ragged(own, np.array([len(own)]))

        taken = choose_parts(self._batch.action_masks, self._action_space, choose)

        # Step, and show the outcome.
        (actions,) = unbatch_actions(
            taken, self._batch, [self._obs], self._obs_space, self._action_space
        )
        obs = self.world.act(actions)
        info = {"metrics": dict(obs.metrics), "illegal_actions": num_illegal}
        shown = self._show(obs)
        return shown, float(obs.reward), bool(obs.terminated), bool(obs.truncated), info

    def action_masks(self) -> BoolArray:
        """Return (sum of all numbers of choices,) bool: the mask of the last observation."""
        return self._mask.astype(np.bool_)

    def render(self) -> Any:
        """Return a picture or a text, depending on `render_mode`; None without it."""
        if self.render_mode is None:
            return None
        return self.world.render(mode=_MODES[self.render_mode])

    def close(self) -> None:
        """Close the environment."""
        self.world.close()

    def _split(self, action: Any) -> tuple[IntArray, Float32Array]:
        """Return the choices and the numbers of an action.

        Raises:
            ValueError: it is none of the action space. Numbers of other float types are.
        """
        given = action if len(self._parts) > 1 else dict.fromkeys(self._parts, action)
        choices, numbers = np.zeros(0, np.int64), np.zeros(0, np.float32)
        try:
            fits = isinstance(given, Mapping) and given.keys() == self._parts.keys()
            if fits and self.heads:
                fits = self._parts["choices"].contains(given["choices"])
                choices = np.asarray(given["choices"], dtype=np.int64)
            if fits and self.numbers:
                numbers = real_array(given["numbers"]).astype(np.float32)
                low, high = self._layout.bounds
                fits = numbers.shape == low.shape and bool(np.isfinite(numbers).all())
                fits = fits and bool(((low <= numbers) & (numbers <= high)).all())
        except (TypeError, ValueError, OverflowError):
            fits = False
        if not fits:
            raise ValueError(f"action: expected one of {self.action_space}, got {action!r}")
        return choices, numbers

    def _legal_choices(self, actors: _Choosing, chosen: IntArray) -> tuple[IntArray, int]:
        """Return the legal choices of actors as `VecEnv.act` takes them; how many were illegal."""
        own = chosen[actors.heads]
        illegal = ~actors.legal[np.arange(len(own)), own]
        if illegal.any():
            if self._on_illegal == "error":
                element, choice = actors.heads[illegal][0], own[illegal][0]
                name, entity, row = self.heads[element]
                actor = "" if entity is None else f" by row {row} of {entity!r}"
                raise InvalidAction(
                    f"action[{element}]: choice {choice} of {name!r}{actor} is not allowed "
                    "now; see the observation's action_mask, or give on_illegal='first'"
                )
            own = np.where(illegal, actors.legal.argmax(axis=1), own)
        return actors.choices[own], int(illegal.sum())

    def _legal_numbers(self, actors: _Numbering, numbers: Float32Array) -> tuple[Float32Array, int]:
        """Return numbers of actors within their bounds, and how many were beyond them."""
        own = numbers[actors.numbers]
        legal = np.clip(own, actors.low, actors.high)
        illegal = own != legal
        if illegal.any() and self._on_illegal == "error":
            element = actors.numbers[illegal][0]
            low, high, got = (x[illegal][0] for x in (actors.low, actors.high, own))
            name, entity, row, component = self.numbers[element]
            actor = "" if entity is None else f" by row {row} of {entity!r}"
            raise InvalidAction(
                f"action[{element}]: {component!r} of {name!r}{actor}: expected a number from "
                f"{low:g} to {high:g} now, got {got:g}; or give on_illegal='first'"
            )
        return legal, int(illegal.sum())

    def _show(self, obs: Observation) -> Arrays:
        """Return the padded frame, and keep it for the next step unless it is the last one."""
        layout = self._layout
        frame = copy.copy(obs)
        if obs.done:
            frame.actions = {}  # no step follows
        self._batch = batch_obs([frame], self._obs_space, self._action_space)
        self._obs = None if obs.done else frame

        # Entities and global features; and the slot of each position in the frame, the last of
        # which is that of the frame itself.
        shown: Arrays = {}
        slots: list[IntArray] = []
        start = 0
        for name, size in layout.max_entities.items():
            rows, key = self._rows(name), self._key_of[name]
            if len(rows) > size:
                raise InvalidObservation(
                    f"features of {name!r}: expected at most {size} entities, got {len(rows)}; "
                    f"give max_entities a larger number for {name!r}"
                )
            flags = self._batch.visible.get(name)
            seen = np.arange(len(rows)) if flags is None else np.flatnonzero(flags.values)
            if rows.shape[1]:
                shown[f"entities/{key}"] = np.zeros((size, rows.shape[1]), dtype=np.float32)
                shown[f"entities/{key}"][seen] = rows[seen]
            shown[f"present/{key}"] = np.zeros(size, dtype=np.int8)
            shown[f"present/{key}"][seen] = 1
            slots.append(start + np.arange(len(rows)))
            start += size
        self._slot_of = np.concatenate([*slots, [start]])
        if "globals" in self.columns:
            shown["globals"] = self._rows(GLOBAL)[0].copy()

        # Actors and masks.
        num_heads = len(self.heads)
        shown["acts"] = acts = np.zeros(num_heads + len(self.numbers), dtype=np.int8)
        self._mask = np.zeros(layout.mask_starts[-1], dtype=np.int8)
        for name, mask in self._batch.action_masks.items():
            actors = self._actors_of(name, mask)
            if isinstance(actors, _Numbering):
                acts[num_heads + actors.numbers] = 1
                continue
            acts[actors.heads] = 1
            columns = np.arange(layout.num_choices[name])
            self._mask[layout.mask_starts[actors.heads][:, None] + columns] = actors.legal
        self._mask[layout.mask_starts[:-1][acts[:num_heads] == 0]] = 1
        if self.heads:
            shown["action_mask"] = self._mask.copy()
        return shown

    def _rows(self, name: EntityName) -> Float32Array:
        """Return the rows of a type in the batch, with a column for each label."""
        rows, labels = self._batch.features[name].values, self._batch.kinds.get(name)
        if labels is None:
            return rows
        return np.hstack([rows, one_hot(labels.values, self._obs_space.kinds[name])])

    def _actors_of(self, name: ActionName, mask: VecActionMask) -> _Choosing | _Numbering:
        """Return the actors of an action, with all that they may choose after any label."""
        layout, slots = self._layout, self._slot_of
        heads = layout.head_of[name][slots[mask.actors.values]]
        if (heads < 0).any():
            entity, _ = layout.slots[slots[mask.actors.values[heads < 0][0]]]
            raise InvalidObservation(
                f"actions[{name!r}]: expected no actors but those in the argument actors, "
                f"got one of type {entity!r}; add it to actors[{name!r}]"
            )
        num_choices = layout.num_choices[name]
        if isinstance(mask, VecContinuousActionMask):
            numbers = heads[:, None] + np.arange(num_choices)
            return _Numbering(numbers, mask.low.values, mask.high.values)
        options = np.arange(num_choices) if mask.actees is None else slots[mask.actees.values]
        legal = np.zeros((len(heads), num_choices), dtype=np.bool_)
        legal[:, options] = True
        if mask.mask is not None:
            by_label = mask.mask.values.reshape(len(heads), mask.labels, len(options))
            legal[:, options] = by_label.any(axis=1)
        choices = np.zeros(num_choices, dtype=np.int64)
        choices[options] = np.arange(len(options))
        return _Choosing(heads, legal, choices)


def _keys_of(names: Sequence[EntityName]) -> dict[EntityName, str]:
    """Return the part of a key that stands for a type, by its name.

    Raises:
        ValueError: two types have the same.
    """
    # The keys name modules of networks, in PyTorch and so in Stable-Baselines3: without full stops.
    keys = {name: name.replace(".", "/") for name in names}
    if twice := [name for name in names if [*keys.values()].count(keys[name]) > 1]:
        raise ValueError(
            f"env: expected types whose names differ by more than '.' and '/', got {twice}; "
            "rename one"
        )
    return keys


def _columns_of(entity: Entity) -> list[str]:
    return [*entity.features, *one_hot_names(entity.kinds)]
