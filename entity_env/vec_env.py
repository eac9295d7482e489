"""Many worlds at once: the interface `VecEnv`, and the batch `VecObs` that it returns."""

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from entity_env.errors import EntityEnvError
from entity_env.ragged import Ragged
from entity_env.spaces import (
    ActionName,
    ActionSpace,
    EntityName,
    ObsSpace,
    has_global_entity,
)
from entity_env.world_times import ProcessTimes


@dataclass
class VecCategoricalActionMask:
    """Who takes a categorical (or global) action in each frame, and what is allowed.

    Attributes:
        actors: int64 (actors,) per frame, positions in the frame. The position of the global
            actor is the number of entities of the frame. Actors with nothing legal are not here.
        mask: bool (actors, choices) per frame, True where allowed; None when everything is.
    """

    actors: Ragged
    mask: Ragged | None


@dataclass
class VecSelectEntityActionMask:
    """Who selects an entity in each frame, and which entities may be selected.

    Attributes:
        actors: int64 (actors,) per frame, positions in the frame; those who can select anything.
        actees: int64 (actees,) per frame, positions in the frame.
        mask: bool (actors * actees,) per frame, row by row, True where that actor may select
            that actee; None when everything is allowed.
    """

    actors: Ragged
    actees: Ragged
    mask: Ragged | None = None


VecActionMask: TypeAlias = VecCategoricalActionMask | VecSelectEntityActionMask


_ADD, _MIN, _MAX = np.add.reduce, np.minimum.reduce, np.maximum.reduce


@dataclass
class Metric:
    """Count, sum and range of the values of one metric."""

    count: int = 0
    sum: float = 0.0
    min: float = float("inf")
    max: float = float("-inf")

    @classmethod
    def of(cls, values: npt.NDArray[Any]) -> "Metric":
        """The metric of an array of values."""
        if values.size == 0:
            return cls()
        flat = values.reshape(-1)
        total, low, high = _ADD(flat), _MIN(flat), _MAX(flat)  # methods take twice as long
        return cls(values.size, float(total), float(low), float(high))

    @classmethod
    def of_each(cls, rows: npt.NDArray[np.int64]) -> "list[Metric]":
        """The metrics of many arrays of as many whole numbers each, (metrics, values)."""
        num_metrics, count = rows.shape
        if count == 0:
            return [cls() for _ in range(num_metrics)]
        found = [of(rows, axis=1).tolist() for of in (_ADD, _MIN, _MAX)]
        return [cls(count, *map(float, each)) for each in zip(*found, strict=True)]

    def push(self, value: float) -> None:
        """Count one more value."""
        self.count += 1
        self.sum += value
        self.min = min(self.min, value)
        self.max = max(self.max, value)

    def __add__(self, other: "Metric") -> "Metric":
        return Metric(
            self.count + other.count,
            self.sum + other.sum,
            min(self.min, other.min),
            max(self.max, other.max),
        )

    @property
    def mean(self) -> float:
        """The mean; 0 when nothing was counted."""
        return self.sum / self.count if self.count else 0.0


def add_metrics(total: dict[str, Metric], more: Mapping[str, Metric]) -> None:
    """Count the metrics of one more step in those of all steps so far."""
    for name, metric in more.items():
        total[name] = total[name] + metric if name in total else metric


@dataclass
class VecObs:
    """One frame of each of B environments.

    An environment whose episode ended is reset in the same step: its features and masks are the
    first of the new episode, its reward, flags and metrics are the last of the old one.

    Attributes:
        features: float32 (n, num_features) per frame, for every entity type of the space; and
            under "__global__" one row per frame, where there is anything global.
        visible: bool (n,) per frame, for the types of which something may be hidden.
        action_masks: for every action of the space.
        reward: (B,) float32.
        done: (B,) bool, the episode ended in this step.
        metrics: metrics of the environments, over all of them.
        truncated: (B,) bool, those of `done` that were cut off.
        final: the last observations of the truncated episodes, one frame for each True in
            `truncated`, without actions; None when nothing was truncated.
        env_metrics: the values behind `metrics`, float64, none or one per environment.
    """

    features: dict[EntityName, Ragged]
    visible: dict[EntityName, Ragged]
    action_masks: dict[ActionName, VecActionMask]
    reward: npt.NDArray[np.float32]
    done: npt.NDArray[np.bool_]
    metrics: dict[str, Metric]
    truncated: npt.NDArray[np.bool_] = None  # type: ignore[assignment]
    final: "VecObs | None" = None
    env_metrics: dict[str, Ragged] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.truncated is None:
            self.truncated = np.zeros(len(self.done), dtype=np.bool_)

    def __len__(self) -> int:
        return len(self.reward)

    @property
    def terminated(self) -> npt.NDArray[np.bool_]:
        """(B,) bool, those of `done` that ended by themselves."""
        terminated: npt.NDArray[np.bool_] = self.done & ~self.truncated
        return terminated

    @staticmethod
    def cat(pieces: Sequence["VecObs"]) -> "VecObs":
        """The frames of all pieces, one piece after the other."""
        finals = [piece.final for piece in pieces if piece.final is not None]
        names = dict.fromkeys(name for piece in pieces for name in piece.metrics)
        env_names = dict.fromkeys(name for piece in pieces for name in piece.env_metrics)
        env_metrics = {
            name: Ragged.cat(
                [p.env_metrics.get(name, Ragged.empty(np.zeros(0), len(p))) for p in pieces]
            )
            for name in env_names
        }
        return VecObs(
            features={
                name: Ragged.cat([piece.features[name] for piece in pieces])
                for name in pieces[0].features
            },
            visible={
                name: Ragged.cat([piece._visibility(name) for piece in pieces])
                for name in pieces[0].features
                if any(name in piece.visible for piece in pieces)
            },
            action_masks={
                name: _cat_masks([piece.action_masks[name] for piece in pieces])
                for name in pieces[0].action_masks
            },
            reward=np.concatenate([piece.reward for piece in pieces]),
            done=np.concatenate([piece.done for piece in pieces]),
            metrics={  # from the values, where known: sums of sums would round differently
                name: Metric.of(env_metrics[name].values)
                if name in env_metrics
                else sum((p.metrics[name] for p in pieces if name in p.metrics), Metric())
                for name in names
            },
            truncated=np.concatenate([piece.truncated for piece in pieces]),
            final=VecObs.cat(finals) if finals else None,
            env_metrics=env_metrics,
        )

    def extend(self, other: "VecObs") -> None:
        """Append the frames of another batch of the same environments' spaces."""
        vars(self).update(vars(VecObs.cat([self, other])))

    def _visibility(self, name: EntityName) -> Ragged:
        rows = self.features[name]
        return self.visible.get(name, Ragged(np.ones(rows.items(), np.bool_), rows.lengths))


def _cat_masks(pieces: Sequence[VecActionMask]) -> VecActionMask:
    actors = Ragged.cat([piece.actors for piece in pieces])
    given = [piece.mask for piece in pieces if piece.mask is not None]
    mask = None
    if isinstance(pieces[0], VecSelectEntityActionMask):
        actees = Ragged.cat([piece.actees for piece in pieces])  # type: ignore[union-attr]
        if given:
            mask = Ragged.cat(
                [_all_pairs(piece) if piece.mask is None else piece.mask for piece in pieces]
            )
        return VecSelectEntityActionMask(actors, actees, mask)
    if given:
        choices = given[0].size2()
        mask = Ragged.cat(
            [
                Ragged(np.ones((piece.actors.items(), choices), np.bool_), piece.actors.lengths)
                if piece.mask is None
                else piece.mask
                for piece in pieces
            ]
        )
    return VecCategoricalActionMask(actors, mask)


def _all_pairs(piece: Any) -> Ragged:
    lengths = piece.actors.lengths * piece.actees.lengths
    return Ragged(np.ones(int(lengths.sum()), np.bool_), lengths)


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
