"""`Replay`: episodes of an agent with choices, probabilities and values, frame by frame."""

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
"""Entity types hidden from an agent, by index, or columns of them: numbers, then categories. Global
features follow the last type.
"""


@dataclass
class Answers:
    """Probabilities and values of an agent in the F frames of an episode.

    Attributes:
        probs: for each action float32 rows: (actors, choices) per frame; for select-entity actions
            (actors * actees,) per frame, row by row. 0 where masked. For continuous actions
            (actors, 4 * components): mean, standard deviation and 90% interval, see
            `ActionSpace.shown`. NaN for actors that do not take a dependent action.
        values: (F,) float32; NaN where unknown.
    """

    probs: Mapping[ActionName, Ragged]
    values: Float32Array


@dataclass
class ReplayEpisode:
    """One episode of an environment, or of a match with S sides: F = T * S frames.

    Frame f is the view of side f % S in step f // S, in which the sides chose.

    Attributes:
        obs: F frames; `reward` is that of the step taken in the frame. `identity` tracks entities,
            by side; types without ids are not in it.
        chosen: for each action int64 (actors,) per frame, index of the choice, for select-entity
            actions among the actees; float32 (actors, components) for continuous actions. -1 or NaN
            for actors that do not take a dependent action.
        answers: outputs of the agent that acted.
        terminated: True if the episode terminated.
        truncated: True if it was truncated. Neither: the recording ends before it.
        names: for each side and type the printed id by number of `identity`, where known.
        by_hand: for each action bool (actors,) per frame, choices made by a person; None if there
            are none.
        beside: outputs of a second agent in the same frames; None if there is none.
        attention: attention weights by frame, float32 (layers, heads, n, n): from row to column, in
            the order of entities, the global one last if there is one.
        influence: influence of some entities by frame.
        pictures: rendered image by step, as PNG.
        steps: (T,) int64, index of each step in the episode, if a recording lacks some; None for
            0, 1, ...
        env: index of its environment or match; None if unknown, pages do not store it.
        parameters: arguments drawn for the episode; pages list them among the facts.
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


class Highlight(NamedTuple):
    """Frame worth seeing ("moment" in the format).

    Attributes:
        kind: "value error", "unlikely choice", "undecided", "disagreement" or "gone".
        episode: index of the episode.
        step: index of the step.
        side: side of a match.
        entity: position of the entity in the frame; None for the whole frame.
        text: description in one line.
    """

    kind: str
    episode: int
    step: int
    side: int
    entity: int | None
    text: str


@dataclass
class Replay:
    """Episodes, with everything that is needed to display them.

    Attributes:
        title: title of the page.
        about: facts by name, such as the checkpoint and the arguments of the command.
        obs_space: observation space of the frames.
        action_space: action space.
        sides: number of sides, S.
        discount: discount factor per step, for returns.
        episodes: episodes in the order in which they were played.
        moments: highlights.
        view: plain data for the page: features that are positions, shapes, ...; None if unknown.
        unseen: features hidden from an agent of a smaller environment, for "agent" and "beside".
    """

    title: str
    about: dict[str, str]
    obs_space: ObsSpace
    action_space: ActionSpaces
    sides: int
    discount: float
    episodes: list[ReplayEpisode] = field(default_factory=list)
    moments: list[Highlight] = field(default_factory=list)
    view: Mapping[str, Any] | None = None
    unseen: dict[str, Unseen] = field(default_factory=dict)

    def facts(self) -> dict[str, str]:
        """Return facts by name, including the arguments of each episode that has any."""
        arguments = {
            f"arguments, episode {number}": ", ".join(
                f"{name}={short_repr(value)}" for name, value in sorted(episode.parameters.items())
            )
            for number, episode in enumerate(self.episodes, 1)
            if episode.parameters
        }
        return {**self.about, **arguments}

    def highlight_frames(self, episode: int) -> set[int]:
        """Return the frames of an episode that have highlights."""
        return {m.step * self.sides + m.side for m in self.moments if m.episode == episode}


def types_of(obs_space: ObsSpace) -> dict[EntityName, Entity]:
    """Return the types of a space in order, the global features last."""
    return {**obs_space.entities, GLOBAL: obs_space.global_entity}


def entity_at(obs: VecObs, frame: int, position: int) -> tuple[EntityName, int]:
    """Return the type of an entity in a frame, and its index within the type.

    The global entity follows all others. For a position beyond the frame, the index is out of
    range.
    """
    for name, rows in obs.features.items():
        if name != GLOBAL:
            if position < rows.lengths[frame]:
                return name, position
            position -= int(rows.lengths[frame])
    return GLOBAL, position
