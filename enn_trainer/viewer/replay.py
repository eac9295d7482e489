"""`Replay`: episodes of an agent with its choices, probabilities and values, frame by frame."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple, TypeAlias

from enn_trainer.evaluation.explain import Influence
from entity_env.actions import ActionName, EntityName
from entity_env.arrays import BoolArray, Float32Array, IntArray
from entity_env.errors import short_repr
from entity_env.observation import Entity
from entity_env.ragged import Ragged
from entity_env.spaces import GLOBAL, ActionSpaces, ObsSpace
from entity_env.vec.vec_obs import VecObs

Unseen: TypeAlias = list[tuple[int, list[int] | None]]
"""Types that an agent does not know, by their index, or columns of them: numbers, then kinds. The
global features are behind the last type."""


@dataclass
class Answers:
    """Probabilities and values of an agent in the F frames of an episode.

    Attributes:
        probs: for each action float32 rows: (actors, choices) per frame, for select-entity actions
            (actors * actees,) per frame, row by row. 0 where a mask forbids. Of numbers (actors,
            4 * components): mean, deviation and 90% range, see `ActionSpace.shown`. NaN for actors
            who do not take a dependent action.
        values: (F,) float32; nan where they are not known.
    """

    probs: Mapping[ActionName, Ragged]
    values: Float32Array


@dataclass
class Episode:
    """One episode of an environment or a match of S sides: F = T * S frames.

    Frame f is the view of side f % S in step f // S, in which the sides chose.

    Attributes:
        obs: the F frames; `reward` is that of the step taken in the frame. `identity` has who is
            who, by side; types without ids are not in it.
        chosen: for each action int64 (actors,) per frame, the index of the choice, for
            select-entity actions among the actees; float32 (actors, components) of numbers. -1 or
            NaN for actors who do not take a dependent action.
        answers: of the agent that acted.
        terminated: the episode ended by itself.
        truncated: it was cut off. Neither: the recording ends before it.
        names: for each side and type the printed id by number of `identity`, where known.
        by_hand: for each action bool (actors,) per frame, the choices that a person made; None if
            there was none.
        beside: answers of another agent in the same frames; None if there is none.
        attention: for some frames the weights of the network, float32 (layers, heads, n, n): from
            row to column, in the order of entities, the global one last if there is one.
        influence: for some frames, of some entities.
        pictures: for some steps the world's own picture, as PNG.
        steps: (T,) int64, the number of each step in the episode, where a recording lacks some;
            None for 0, 1, ...
        env: the number of its environment or match; None if not known, as pages do not keep it.
        parameters: the arguments that were drawn for it; pages have them among the facts.
    """

    obs: VecObs
    chosen: Mapping[ActionName, Ragged]
    answers: Answers
    terminated: bool
    truncated: bool
    names: list[dict[EntityName, dict[int, str]]] = field(default_factory=list)
    by_hand: Mapping[ActionName, BoolArray] | None = None
    beside: Answers | None = None
    attention: dict[int, Float32Array] = field(default_factory=dict)
    influence: dict[int, Influence] = field(default_factory=dict)
    pictures: dict[int, bytes] = field(default_factory=dict)
    steps: IntArray | None = None
    env: int | None = None
    parameters: Mapping[str, Any] = field(default_factory=dict)


class Moment(NamedTuple):
    """A frame worth seeing.

    Attributes:
        kind: "value error", "unlikely choice", "undecided", "disagreement" or "gone".
        episode: index of the episode.
        step: the step in it.
        side: the side of a match.
        entity: position in the frame of the entity that it is about; None for the frame.
        text: one line that says it.
    """

    kind: str
    episode: int
    step: int
    side: int
    entity: int | None
    text: str


@dataclass
class Replay:
    """Episodes, and all that is needed to read them.

    Attributes:
        title: of the page.
        about: lines of facts by name, such as the save and the arguments of the command.
        obs_space: the types and features of the frames.
        action_space: the actions.
        sides: S.
        discount: per step, for the return of a frame.
        episodes: in the order in which they were played.
        moments: frames worth seeing.
        view: plain data for the page, with the features that are positions, shapes, ...; None if
            nothing is known.
        unseen: what an agent of a smaller world does not see, for "agent" and "beside".
    """

    title: str
    about: dict[str, str]
    obs_space: ObsSpace
    action_space: ActionSpaces
    sides: int
    discount: float
    episodes: list[Episode] = field(default_factory=list)
    moments: list[Moment] = field(default_factory=list)
    view: Mapping[str, Any] | None = None
    unseen: dict[str, Unseen] = field(default_factory=dict)

    def facts(self) -> dict[str, str]:
        """Return the lines of facts by name, with the arguments of each episode that has any."""
        of_episodes = {
            f"arguments, episode {number}": ", ".join(
                f"{name}={short_repr(value)}" for name, value in sorted(one.parameters.items())
            )
            for number, one in enumerate(self.episodes, 1)
            if one.parameters
        }
        return {**self.about, **of_episodes}

    def moment_frames(self, episode: int) -> set[int]:
        """Return the frames of an episode, by its index, in which there are moments."""
        return {m.step * self.sides + m.side for m in self.moments if m.episode == episode}


def types_of(obs_space: ObsSpace) -> dict[EntityName, Entity]:
    """Return the types of a space in order, those of what is global behind the others."""
    return {**obs_space.entities, GLOBAL: obs_space.global_entity}


def entity_at(obs: VecObs, frame: int, position: int) -> tuple[EntityName, int]:
    """Return the type of an entity of a frame, and its place among those of the type.

    The global entity is behind all others. Of a position that the frame does not have the place is
    beyond those of the type.
    """
    for name, rows in obs.features.items():
        if name != GLOBAL:
            if position < rows.lengths[frame]:
                return name, position
            position -= int(rows.lengths[frame])
    return GLOBAL, position
