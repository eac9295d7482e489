"""Entity environments for libraries that know arrays of one size: `ToGymnasium`."""

import copy
from collections.abc import Mapping, Sequence
from typing import Any, Literal, NamedTuple, TypeAlias

import gymnasium
import numpy as np
import numpy.typing as npt
from gymnasium import spaces

from entity_env.adapters.padded import PaddedLayout
from entity_env.batch import batch_obs
from entity_env.environment import Environment, Observation
from entity_env.errors import InvalidAction, InvalidObservation
from entity_env.ragged import Ragged
from entity_env.spaces import GLOBAL, ActionName, EntityName
from entity_env.unbatch import unbatch_actions
from entity_env.vec_env import VecActionMask, VecObs, VecSelectEntityActionMask

Indices: TypeAlias = npt.NDArray[np.int64]
Arrays: TypeAlias = dict[str, npt.NDArray[Any]]

_MODES = {"rgb_array": "rgb_array", "ansi": "text"}


class _Turn(NamedTuple):
    """Who takes one action in the current frame.

    Attributes:
        heads: (actors,) the elements of the action that are theirs.
        legal: (actors, choices) bool.
        as_taken: (choices,) each choice as `VecEnv.act` takes it.
    """

    heads: Indices
    legal: npt.NDArray[np.bool_]
    as_taken: Indices


class ToGymnasium(gymnasium.Env[Arrays, Indices]):
    """An entity environment whose entities are padded to arrays of one size.

    Row i of a type has a slot of its own, the i-th of `max_entities` of that type; slots are
    numbered type after type in the order of the `ObsSpace`. An observation is a flat dictionary:

        "entities/<type>"  float32 (slots of the type, features); zeros where nobody is. Left out
                           for a type without features
        "present/<type>"   int8 (slots of the type,), 1 where an entity is. What is invisible is
                           not present
        "globals"          float32 (global features,); left out if there are none
        "acts"             int8 (elements of the action,), 1 where a choice is asked for now
        "action_mask"      int8 (sum of all numbers of choices,), 1 where a choice is allowed now,
                           element after element

    An action is one `MultiDiscrete`: for every action of the environment, in its order, one element
    for every slot that may act (one in all for a global action), as `heads` lists them. It chooses
    a label, or for select-entity actions a slot. Where no choice is asked for, what is given is
    ignored and the mask allows choice 0 alone: for a policy with this mask such an element has
    probability 1, entropy 0 and no gradient. `action_masks()` is what MaskablePPO asks for.

    `info["metrics"]` holds the metrics of the step, `info["illegal_actions"]` how many choices were
    not allowed.

    Args:
        env: the environment.
        max_entities: how many entities a frame has at most, per type or of each type.
        actors: per action the types that take it, where not all do: less to choose. Actions that
            are left out may be taken by every type.
        on_illegal: what becomes of a choice that is not allowed: the "first" allowed one is taken
            instead, or it is an "error".
        render_mode: "rgb_array", "ansi" for text, or None.

    Attributes:
        heads: whose choice each element of an action is.

    Raises:
        ValueError: an argument does not fit the environment.
        InvalidObservation: from `reset` and `step`: more entities than `max_entities`, an actor of
            another type than `actors` names, or an observation that contradicts its spaces.
        InvalidAction: from `step`: a choice that is not allowed, with `on_illegal="error"`.
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
                f"env: expected an Environment, got {env!r}; a class is made first, and one side "
                "of a Match is no environment"
            )
        if on_illegal not in ("first", "error"):
            raise ValueError(f"on_illegal: expected 'first' or 'error', got {on_illegal!r}")
        if type(env).render is Environment.render:
            self.metadata = {"render_modes": []}
        if render_mode not in (None, *self.metadata["render_modes"]):
            modes = [*self.metadata["render_modes"], None]
            raise ValueError(f"render_mode: expected one of {modes}, got {render_mode!r}")
        self.world = env
        self.render_mode = render_mode
        self._on_illegal = on_illegal
        self._obs_space, self._action_space = env.obs_space(), env.action_space()
        self._layout = layout = PaddedLayout(
            self._obs_space, self._action_space, max_entities, actors or {}
        )
        self.heads = layout.heads
        sizes = [layout.num_choices[head.action] for head in layout.heads]
        self.action_space = spaces.MultiDiscrete(sizes)
        self.observation_space = self._padded_space()
        self._obs: Observation | None = None
        self._batch: VecObs
        self._turns: dict[ActionName, _Turn] = {}
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

    def step(self, action: Indices) -> tuple[Arrays, float, bool, bool, dict[str, Any]]:
        """Take a step with the choices of those who act."""
        if self._obs is None:
            raise gymnasium.error.ResetNeeded("step: no episode is running, call reset first")
        if not self.action_space.contains(action):
            raise ValueError(f"action: expected one of {self.action_space}, got {action!r}")
        choices, illegal = {}, 0
        for name, turn in self._turns.items():
            chosen = np.asarray(action, dtype=np.int64)[turn.heads]
            wrong = ~turn.legal[np.arange(len(chosen)), chosen]
            if wrong.any():
                if self._on_illegal == "error":
                    raise self._refusal(turn.heads[wrong][0], chosen[wrong][0])
                illegal += int(wrong.sum())
                chosen = np.where(wrong, turn.legal.argmax(axis=1), chosen)
            choices[name] = Ragged(turn.as_taken[chosen], np.array([len(chosen)]))
        spaces_of = self._obs_space, self._action_space
        obs = self.world.act(unbatch_actions(choices, self._batch, [self._obs], *spaces_of)[0])
        info = {"metrics": dict(obs.metrics), "illegal_actions": illegal}
        shown = self._show(obs)
        return shown, float(obs.reward), bool(obs.terminated), bool(obs.truncated), info

    def action_masks(self) -> npt.NDArray[np.bool_]:
        """(sum of all numbers of choices,) bool: the mask of the last observation."""
        return self._mask.astype(np.bool_)

    def render(self) -> Any:
        """A picture or a text, as `render_mode` says; None without it."""
        if self.render_mode is None:
            return None
        return self.world.render(mode=_MODES[self.render_mode])

    def close(self) -> None:
        """Close the environment."""
        self.world.close()

    def _padded_space(self) -> Any:
        fields: dict[str, spaces.Space[Any]] = {}
        for name, size in self._layout.max_entities.items():
            if width := len(self._obs_space.entities[name].features):
                fields[f"entities/{name}"] = spaces.Box(-np.inf, np.inf, (size, width), np.float32)
            fields[f"present/{name}"] = spaces.MultiBinary(size)
        if width := len(self._obs_space.global_features):
            fields["globals"] = spaces.Box(-np.inf, np.inf, (width,), np.float32)
        fields["acts"] = spaces.MultiBinary(len(self.heads))
        fields["action_mask"] = spaces.MultiBinary(int(self._layout.mask_starts[-1]))
        return spaces.Dict(fields)

    def _show(self, obs: Observation) -> Arrays:
        """Pad a frame, and remember it with who can do what in it, unless it is the last one."""
        frame = copy.copy(obs)
        if obs.done:
            frame.actions = {}  # nothing follows from what a last frame offers
        self._batch = batch_obs([frame], self._obs_space, self._action_space)
        self._obs = None if obs.done else frame
        shown: Arrays = {}
        for name, size in self._layout.max_entities.items():
            self._pad(name, size, shown)
        if self._obs_space.global_features:
            shown["globals"] = self._batch.features[GLOBAL].values[0].copy()
        shown["acts"] = np.zeros(len(self.heads), dtype=np.int8)
        self._mask = np.zeros(self._layout.mask_starts[-1], dtype=np.int8)
        slots = np.array(  # of every position in the frame, then of what belongs to no entity
            [
                slot
                for slot, (name, row) in enumerate(self._layout.slots)
                if name is None or row < self._batch.features[name].items()
            ]
        )
        for name, mask in self._batch.action_masks.items():
            turn = self._turns[name] = self._turn(name, mask, slots)
            shown["acts"][turn.heads] = 1
            columns = np.arange(self._layout.num_choices[name])
            self._mask[self._layout.mask_starts[turn.heads][:, None] + columns] = turn.legal
        self._mask[self._layout.mask_starts[:-1][shown["acts"] == 0]] = 1
        shown["action_mask"] = self._mask.copy()
        return shown

    def _pad(self, name: EntityName, size: int, shown: Arrays) -> None:
        rows = self._batch.features[name].values
        if len(rows) > size:
            raise InvalidObservation(
                f"features of {name!r}: expected at most {size} entities, got {len(rows)}; "
                f"give max_entities a larger number for {name!r}"
            )
        flags = self._batch.visible.get(name)
        seen = np.arange(len(rows)) if flags is None else np.flatnonzero(flags.values)
        if self._obs_space.entities[name].features:
            shown[f"entities/{name}"] = np.zeros((size, rows.shape[1]), dtype=np.float32)
            shown[f"entities/{name}"][seen] = rows[seen]
        shown[f"present/{name}"] = np.zeros(size, dtype=np.int8)
        shown[f"present/{name}"][seen] = 1

    def _turn(self, name: ActionName, mask: VecActionMask, slots: Indices) -> _Turn:
        heads = self._layout.head_of[name][slots[mask.actors.values]]
        if (heads < 0).any():
            entity, _ = self._layout.slots[slots[mask.actors.values[heads < 0][0]]]
            raise InvalidObservation(
                f"actions[{name!r}]: expected no actors but those in the argument actors, "
                f"got one of type {entity!r}; add it to actors[{name!r}]"
            )
        num_choices = self._layout.num_choices[name]
        options = np.arange(num_choices)
        if isinstance(mask, VecSelectEntityActionMask):
            options = slots[mask.actees.values]
        legal = np.zeros((len(heads), num_choices), dtype=np.bool_)
        legal[:, options] = True
        if mask.mask is not None:
            legal[:, options] = mask.mask.values.reshape(len(heads), len(options))
        as_taken = np.zeros(num_choices, dtype=np.int64)
        as_taken[options] = np.arange(len(options))
        return _Turn(heads, legal, as_taken)

    def _refusal(self, head: int, choice: int) -> InvalidAction:
        whose = self.heads[head]
        actor = "" if whose.entity is None else f" by row {whose.row} of {whose.entity!r}"
        return InvalidAction(
            f"action[{head}]: choice {choice} of {whose.action!r}{actor} is not allowed now; see "
            f"the observation's action_mask, or give on_illegal='first'"
        )
