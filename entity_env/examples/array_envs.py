"""Base class of vectorised environments that step by array operations."""

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt

from entity_env.environment import Environment
from entity_env.errors import EntityEnvError, InvalidAction, InvalidObservation
from entity_env.ragged import Ragged, as_choices, row_indices
from entity_env.seeding import key_of, mix, uniforms_f64
from entity_env.spaces import GLOBAL, ActionName, ActionSpace, EntityName, ObsSpace
from entity_env.vec.identity import types_to_track
from entity_env.vec.vec_env import VecActionMask, VecCategoricalActionMask, VecEnv, VecObs
from entity_env.view import View
from entity_env.world_code import code_of

Ints = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]
Bools = npt.NDArray[np.bool_]


class ArrayEnvs(VecEnv):
    """Base class of B environments with state in arrays, one row per environment.

    The action space has a single categorical action without masks. All frames have the same number
    of actors of one type. Episodes terminate; they are never truncated.

    Random numbers are functions of the seed, the environment, its episode and step, so episodes do
    not depend on other environments or earlier draws.

    Args:
        plain: a single environment with the same rules and arguments.
        actor_type: the type of the actors.
        actors_per_env: number of actors in each frame.
        num_envs: B.
        first_env_index: index of the first one among all environments of the run.

    Raises:
        EntityEnvError: there are no environments.
    """

    state_arrays: ClassVar[tuple[str, ...]]
    """The attributes on which the next steps depend, besides `steps` and the episodes."""

    def __init__(
        self,
        plain: Environment,
        actor_type: EntityName,
        actors_per_env: int,
        num_envs: int,
        first_env_index: int,
    ) -> None:
        if num_envs < 1:
            raise EntityEnvError(f"num_envs: expected at least 1, got {num_envs}")
        self._plain = plain
        self._obs_space = plain.obs_space()
        self._action_space = plain.action_space()
        ((self._action, self._labels),) = self._action_space.items()
        self._actor_type = actor_type
        self._actors_per_env = actors_per_env
        self._env_indices = first_env_index + np.arange(num_envs)
        self._seed = int(np.random.default_rng().integers(2**62))
        self._episodes = np.zeros(num_envs, dtype=np.int64)
        self._keys = np.zeros(num_envs, dtype=np.uint64)
        self._has_begun = False
        self._tracked: list[EntityName] = []
        self.steps = np.zeros(num_envs, dtype=np.int64)

    @abstractmethod
    def begin(self, envs: Ints) -> None:
        """Start the next episode of some environments."""

    @abstractmethod
    def move(self, choices: Ints) -> tuple[Floats, Bools]:
        """Step all environments.

        Args:
            choices: (B, actors) int64.

        Returns:
            reward: (B,).
            done: (B,), True for episodes that are over.
        """

    @abstractmethod
    def features(self) -> dict[EntityName, Ragged]:
        """Return the features of all environments as new float32 arrays."""

    def identity(self) -> dict[EntityName, Ragged]:
        """Return the numbers of `VecObs.identity`, by type; types without ids are left out."""
        return {}

    @abstractmethod
    def world(self, i: int) -> Environment:
        """Return environment i as a single environment in the same state."""

    def obs_space(self) -> ObsSpace:
        """Return the observation space."""
        return self._obs_space

    def action_space(self) -> dict[ActionName, ActionSpace]:
        """Return the action spaces."""
        return self._action_space

    def __len__(self) -> int:
        return len(self.steps)

    def seed(self, seed: int) -> None:
        """Seed the episodes from the next reset on."""
        self.refuse_begun_step("seed")
        self._seed = seed
        self._episodes[:] = 0

    def track(self, types: Sequence[EntityName] | None = None) -> None:
        """Return the numbers of `identity` from now on, for all types or for some."""
        self._tracked = types_to_track(types, self._obs_space, self._has_begun)

    def reset(self, obs_config: ObsSpace) -> VecObs:
        """Reset all environments."""
        self.refuse_begun_step("reset")
        self._begin_episodes(np.arange(len(self)))
        self._has_begun = True
        return self._without_outcome(obs_config)

    def act(self, actions: Mapping[ActionName, Ragged], obs_filter: ObsSpace) -> VecObs:
        """Step all environments; where an episode ends, return the first frame of the next.

        Raises:
            EntityEnvError: the environments were not reset.
            InvalidAction: the choices do not match the actors or the labels.
        """
        if not self._has_begun:
            raise EntityEnvError("act: call reset first")
        choices = self._choices(actions)
        self.steps += 1
        reward, done = self.move(choices)
        if done.any():
            self._begin_episodes(np.flatnonzero(done))
        return self._show(obs_filter, reward.astype(np.float32), done)

    def draw(self, envs: Ints, number: int | Ints) -> Floats:
        """Return random numbers in [0, 1) for the current step of some environments.

        Args:
            envs: int64, the environments.
            number: index of the draw in its step, for all of `envs` or for each; equal indices give
                equal numbers.

        Returns:
            float64, of the shape to which `envs` and `number` broadcast.
        """
        return uniforms_f64(mix(self._keys[envs], self.steps[envs], number))

    def get_state(self) -> dict[str, Any]:
        """Return the state of all environments.

        Raises:
            EntityEnvError: the environments were not reset.
        """
        self.refuse_begun_step("get_state")
        if not self._has_begun:
            raise EntityEnvError("get_state: call reset first")
        return {
            "seed": self._seed,
            "episodes": self._episodes.copy(),
            "steps": self.steps.copy(),
            "arrays": {name: getattr(self, name).copy() for name in self.state_arrays},
        }

    def set_state(self, state: Mapping[str, Any], obs_config: ObsSpace) -> VecObs:
        """Restore a state that `get_state` returned.

        Raises:
            InvalidObservation: the state is of another class or number of environments.
        """
        self.refuse_begun_step("set_state")
        if type(state["seed"]) is not int:
            raise InvalidObservation(f"set_state: seed: expected a number, got {state['seed']!r}")
        arrays = {"steps": state["steps"], "_episodes": state["episodes"]}
        arrays |= {name: state["arrays"][name] for name in self.state_arrays}
        for name, array in arrays.items():
            own, found = getattr(self, name), np.asarray(array)
            if (found.dtype, found.shape) != (own.dtype, own.shape):
                raise InvalidObservation(
                    f"set_state: {name.lstrip('_')}: expected {own.dtype} {own.shape}, got "
                    f"{found.dtype} {found.shape}"
                )
        for name, array in arrays.items():
            setattr(self, name, array.copy())
        self._seed, self._has_begun = state["seed"], True
        self._keys = self._keys_of(np.arange(len(self)))
        return self._without_outcome(obs_config)

    def world_code(self) -> dict[str, str]:
        """Return digests of the source of these environments and of the plain one."""
        return code_of(type(self), type(self._plain))

    def view(self) -> View | None:
        """Return the view of the plain environment."""
        return self._plain.view()

    def render(self, **kwargs: Any) -> npt.NDArray[np.uint8]:
        """Render all environments, (B, height, width, 3) uint8."""
        return np.stack([np.asarray(self.world(i).render(**kwargs)) for i in range(len(self))])

    def _begin_episodes(self, envs: Ints) -> None:
        self._episodes[envs] += 1
        self._keys[envs] = self._keys_of(envs)
        self.steps[envs] = 0
        self.begin(envs)

    def _keys_of(self, envs: Ints) -> npt.NDArray[np.uint64]:
        """Return the keys of the random numbers of the current episodes."""
        return mix(self._seed, key_of("episode"), self._env_indices[envs], self._episodes[envs])

    def _choices(self, actions: Mapping[ActionName, Ragged]) -> Ints:
        name = self._action
        if name not in actions:
            raise InvalidAction(f"actions: expected {[name]}, got {list(actions)}")
        chosen = as_choices(actions[name])
        if len(chosen) != len(self) or (chosen.lengths != self._actors_per_env).any():
            raise InvalidAction(
                f"actions[{name!r}]: expected {self._actors_per_env} choices for each of "
                f"{len(self)} environments, got {chosen.lengths.tolist()}"
            )
        num_labels = len(self._labels)  # type: ignore[arg-type]
        if ((chosen.values < 0) | (chosen.values >= num_labels)).any():
            raise InvalidAction(
                f"actions[{name!r}]: expected choices from 0 to {num_labels - 1}, got "
                f"{chosen.values.min()} to {chosen.values.max()}"
            )
        return chosen.values.reshape(len(self), self._actors_per_env)

    def _without_outcome(self, shown: ObsSpace) -> VecObs:
        n = len(self)
        return self._show(shown, np.zeros(n, np.float32), np.zeros(n, np.bool_))

    def _show(self, shown: ObsSpace, reward: npt.NDArray[np.float32], done: Bools) -> VecObs:
        features = _only(self.features(), self._obs_space, shown)
        return VecObs(
            features=features,
            visible={},
            action_masks={self._action: self._mask(features, shown)},
            reward=reward,
            done=done,
            metrics={},
            identity=self._numbers(features),
        )

    def _numbers(self, features: Mapping[EntityName, Ragged]) -> dict[EntityName, Ragged]:
        """Return the identity numbers of the types that are tracked and observed."""
        shown = [name for name in features if name in self._tracked]
        known = self.identity() if shown else {}
        nothing = Ragged(np.zeros(0, np.int64), np.zeros(len(self), np.int64))
        return {name: known.get(name, nothing) for name in shown}

    def _mask(self, features: Mapping[EntityName, Ragged], shown: ObsSpace) -> VecActionMask:
        """Return a mask that allows all choices of all actors."""
        starts = np.zeros(len(self), dtype=np.int64)
        for name in shown.entities:
            if name == self._actor_type:
                break
            starts = starts + features[name].lengths
        else:
            raise InvalidObservation(
                f"entities: expected {self._actor_type!r}, which acts, to be shown, got "
                f"{list(shown.entities)}"
            )
        lengths = features[self._actor_type].lengths
        return VecCategoricalActionMask(Ragged(row_indices(starts, lengths), lengths), None)


def _only(
    features: Mapping[EntityName, Ragged], source: ObsSpace, target: ObsSpace
) -> dict[EntityName, Ragged]:
    """Select the types and features of `target`, in its order."""
    if target.kinds:
        raise InvalidObservation(
            f"features: expected numbers alone, as ArrayEnvs shows no labels, got kinds of "
            f"{[*target.kinds]}; give a column for each label, or derive from VecEnv"
        )
    features_by_type = [(name, entity.features) for name, entity in target.entities.items()]
    if target.global_features:
        features_by_type.append((GLOBAL, target.global_features))
    columns = {name: entity.features for name, entity in source.entities.items()}
    columns[GLOBAL] = source.global_features
    chosen = {}
    for name, names in features_by_type:
        if unknown := [n for n in names if n not in columns.get(name, [])]:
            raise InvalidObservation(
                f"features of {name!r}: expected some of {columns.get(name, [])}, got {unknown}"
            )
        if name not in columns:
            raise InvalidObservation(f"entities: expected some of {[*columns]}, got {name!r}")
        rows = features[name]
        if names != columns[name]:
            rows = Ragged(rows.values[:, [columns[name].index(n) for n in names]], rows.lengths)
        chosen[name] = rows
    return chosen
