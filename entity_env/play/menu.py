"""Numbered menus of the legal choices in a frame."""

import textwrap
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from itertools import chain
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from entity_env.actions import Action
from entity_env.environment import Observation
from entity_env.spaces import ActionName, ActionSpace, EntityID, EntityName, ObsSpace
from entity_env.vec.batch import batch_obs
from entity_env.vec.features import batch_entities

Ask: TypeAlias = Callable[[str], str]
"""Shows a prompt and returns the line that was typed; EOFError when there are no more."""
Show: TypeAlias = Callable[[str], None]
"""Shows lines of text."""

HELP = """\
  2           the choice with this number
  1 1 2       one choice for each of the next actors
  * 2         the same choice for all remaining actors
  (nothing)   the most probable choice of the agent, if there is one; `*` for all remaining actors
  ?           this help
  q           quit; what was recorded so far is kept
Only legal choices are listed. A choice has the same number for every actor."""


class Quit(Exception):  # noqa: N818 (ends a game)
    """The person typed `q` or Ctrl-C, or the input ended."""


@dataclass(frozen=True)
class Menu:
    """Choices of all actors of an action in a frame."""

    titles: list[str]  # the action and each actor
    choices: list[tuple[str, str]]  # names and features; labels have no features
    legal: npt.NDArray[np.bool_]  # (actors, choices)
    probs: npt.NDArray[np.float32] | None  # (actors, choices), of an agent; None if not known
    advised: list[int]  # the choice of the agent for each actor

    def ask(self, prompt: str, ask: Ask, show: Show) -> list[int]:
        """Return the choice of each actor, counted from 0, when all have been typed.

        Raises:
            Quit: the person wants to.
        """
        chosen: list[int] = []
        listed = -1
        while len(chosen) < len(self.titles):
            actor, remaining = len(chosen), len(self.titles) - len(chosen)
            if listed != actor:  # not again after a mistake
                listed = actor
                show(self.listed(actor))
            of_all = f" [1 of {remaining}]" if remaining > 1 else ""
            text = ask_line(f"{prompt}{of_all}> ", ask, show)
            words = text.split() or [""]
            if text.startswith("*"):
                words = (text[1:].split() or [""]) * remaining
            try:
                if len(words) > remaining:
                    raise ValueError(f"{prompt}: expected at most {remaining} choices, got {text}")
                chosen += [self.find(word, actor + i) for i, word in enumerate(words)]
            except ValueError as error:
                show(str(error))
        return chosen

    def find(self, word: str, actor: int) -> int:
        """Return the choice with a number; without one, the most probable.

        Raises:
            ValueError: the actor has no such choice, or the probabilities are not known.
        """
        legal = np.flatnonzero(self.legal[actor])
        if not word and self.probs is not None:
            return int(legal[self.probs[actor, legal].argmax()])
        numbers = [str(choice + 1) for choice in legal]
        if word in numbers:
            return int(word) - 1
        expected = ", ".join(numbers) if len(numbers) < 12 else f"{numbers[0]} to {numbers[-1]}"
        got = f"{word!r}" if word else "nothing"
        raise ValueError(f"{self.titles[actor]}: expected {expected}, got {got}; ? for help")

    def listed(self, actor: int) -> str:
        """Return an actor and its numbered choices."""
        cells = []
        for choice in np.flatnonzero(self.legal[actor]).tolist():
            name, features = self.choices[choice]
            cells.append(f"{choice + 1}) {name}" + (f"  ({features})" if features else ""))
            if self.probs is not None:
                best = " <- Enter" if choice == self.find("", actor) else ""
                cells[-1] += f"  {self.probs[actor, choice]:.1%}{best}"
        if not any(features for _, features in self.choices):  # several in a line
            words = "   ".join(cell.replace(" ", "\0") for cell in cells)
            lines = textwrap.wrap(words, 80, break_long_words=False, break_on_hyphens=False)
            cells = [line.replace("\0", " ") for line in lines]
        return "\n  ".join([f"{self.titles[actor]}:", *cells])


def ask_line(prompt: str, ask: Ask, show: Show) -> str:
    """Return the line that was typed, after answering `?`.

    Raises:
        Quit: `q` or Ctrl-C was typed, or there are no more lines.
    """
    while True:
        try:
            text = ask(prompt).strip()
        except (EOFError, KeyboardInterrupt):
            raise Quit from None
        if text == "q":
            raise Quit
        if text != "?":
            return text
        show(HELP)


def menus_of(
    obs: Observation,
    obs_space: ObsSpace,
    action_space: Mapping[ActionName, ActionSpace],
    advice: Mapping[ActionName, Action],
) -> dict[ActionName, Menu]:
    """Return the menus of a frame by action, with the choices and probabilities in `advice`."""
    batch, ids = batch_obs([obs], obs_space, action_space), obs.index_to_id(obs_space)
    entities, menus = [*chain.from_iterable(entities_by_type(obs, obs_space).values())], {}
    for name, space in action_space.items():
        mask, action = batch.action_masks[name], advice.get(name)
        titles = []
        for i in mask.actors.values:
            entity, features = entities[i] if i < len(entities) else ("", "")  # the global actor
            title = f"{name}, {entity} ({features})".removesuffix(" ()")
            titles.append(title.removesuffix(", "))
        choices = [(label, "") for label in space.labels]
        values: list[EntityID] = [*space.labels]
        if mask.actees is not None:
            choices = [entities[i] for i in mask.actees.values]
            values = [ids[i] for i in mask.actees.values]
        shape = len(titles), len(choices)
        legal = np.ones(shape, np.bool_) if mask.mask is None else mask.mask.values.reshape(shape)
        advised = [] if action is None else [values.index(value) for value in action.chosen]
        probs = None if titles else np.zeros(shape, np.float32)
        if action is not None and action.probs is not None:
            probs = np.asarray(action.probs, dtype=np.float32).reshape(shape)
        menus[name] = Menu(titles, choices, legal, probs, advised)
    return menus


def entities_by_type(
    obs: Observation, obs_space: ObsSpace
) -> dict[EntityName, list[tuple[str, str]]]:
    """Return name and features of each entity of a frame, also of those that are not visible."""
    rows, _ = batch_entities([obs], obs_space, with_globals=False)
    return {
        name: [
            (f"{name} {row if i == (name, row) else i}", features_text(entity.features, values))
            for row, (i, values) in enumerate(
                zip(obs.ids_of_type(name), rows[name].values, strict=True)
            )
        ]
        for name, entity in obs_space.entities.items()
    }


def features_text(names: list[str], values: npt.NDArray[np.float32]) -> str:
    """Return names and values of features."""
    return ", ".join(f"{name} {value:.4g}" for name, value in zip(names, values, strict=True))
