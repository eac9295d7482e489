"""Menus of legal choices, and parsing of typed input."""

import textwrap
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np

from entity_env.actions.action_space import ActionSpace
from entity_env.arrays import BoolArray, Float32Array
from entity_env.vec.vec_obs import VecActionMask

Ask: TypeAlias = Callable[[str], str]
"""Show a prompt and return the typed line; EOFError at the end of the input."""
Show: TypeAlias = Callable[[str], None]
"""Show lines of text."""

HELP = """\
  2           the choice with this number
  1 1 2       one choice for each of the next actors
  * 2         the same choice for all remaining actors
  x=0.5 y=1   numbers, in any order; one alone also without its name
  (nothing)   the most probable choice of the agent, if there is one; `*` for all remaining actors
  ?           this help
  q           quit; what was recorded so far is kept
Only legal choices are listed. A choice has the same number for every actor."""


class Quit(Exception):  # noqa: N818 (ends a game)
    """The person typed `q` or Ctrl-C, or the input ended."""


@dataclass(frozen=True)
class AnyMenu(ABC):
    """Base class of menus of the actors of an action in a frame."""

    titles: list[str]  # action and actor, for each actor

    @property
    def num_words(self) -> int:
        """Number of words to type for the choice of an actor."""
        return 1

    @abstractmethod
    def find(self, text: str, actor: int) -> Any:
        """Parse the choice of an actor; an empty text is the choice of the agent.

        Raises:
            ValueError: the choice is not legal, or there is no choice of the agent.
        """

    @abstractmethod
    def listed(self, actor: int) -> str:
        """Return a text of an actor and its legal choices."""

    def ask(self, prompt: str, ask: Ask, show: Show) -> list[Any]:
        """Ask until all actors have a choice, and return the choices.

        Raises:
            Quit: the person quits.
        """
        chosen: list[Any] = []
        listed = -1
        while len(chosen) < len(self.titles):
            actor, remaining = len(chosen), len(self.titles) - len(chosen)
            if listed != actor:  # do not repeat the menu after an error
                listed = actor
                show(self.listed(actor))
            count = f" [1 of {remaining}]" if remaining > 1 else ""
            text = ask_line(f"{prompt}{count}> ", ask, show)
            words = text.removeprefix("*").split()
            size = self.num_words
            typed = [" ".join(words[i : i + size]) for i in range(0, len(words), size)] or [""]
            if text.startswith("*"):
                typed *= remaining
            try:
                if len(typed) > remaining:
                    raise ValueError(f"{prompt}: expected at most {remaining} choices, got {text}")
                chosen += [self.find(one, actor + i) for i, one in enumerate(typed)]
            except ValueError as error:
                show(str(error))
        return chosen


@dataclass(frozen=True)
class Menu(AnyMenu):
    """Menu of numbered choices."""

    choices: list[tuple[str, str]]  # names and features; labels have no features
    legal: BoolArray  # (actors, choices)
    probs: Float32Array | None  # (actors, choices) of the agent; NaN if unknown

    def find(self, text: str, actor: int) -> int:
        """Parse a number; an empty text is the most probable legal choice of the agent.

        Raises:
            ValueError: the choice is not legal, or the probabilities are unknown.
        """
        legal, probs = np.flatnonzero(self.legal[actor]), self._probs_of(actor)
        if not text and probs is not None:
            return int(legal[probs[legal].argmax()])
        numbers = [str(choice + 1) for choice in legal]
        if text in numbers:
            return int(text) - 1
        expected = ", ".join(numbers) if len(numbers) < 12 else f"{numbers[0]} to {numbers[-1]}"
        got = f"{text!r}" if text else "nothing"
        raise ValueError(f"{self.titles[actor]}: expected {expected}, got {got}; ? for help")

    def listed(self, actor: int) -> str:
        """Return a text of an actor and its numbered choices."""
        cells, probs = [], self._probs_of(actor)
        for choice in np.flatnonzero(self.legal[actor]).tolist():
            name, features = self.choices[choice]
            cells.append(f"{choice + 1}) {name}" + (f"  ({features})" if features else ""))
            if probs is not None:
                best = " <- Enter" if choice == self.find("", actor) else ""
                cells[-1] += f"  {probs[choice]:.1%}{best}"
        if not any(features for _, features in self.choices):  # wrap labels into lines
            words = "   ".join(cell.replace(" ", "\0") for cell in cells)
            lines = textwrap.wrap(words, 80, break_long_words=False, break_on_hyphens=False)
            cells = [line.replace("\0", " ") for line in lines]
        return "\n  ".join([f"{self.titles[actor]}:", *cells])

    def _probs_of(self, actor: int) -> Float32Array | None:
        """Return the probabilities of an actor's choices, None if unknown."""
        if self.probs is None or np.isnan(self.probs[actor]).any():
            return None
        probs: Float32Array = self.probs[actor]
        return probs


@dataclass(frozen=True)
class NumbersMenu(AnyMenu):
    """Menu of the numbers of a continuous action."""

    space: ActionSpace
    mask: VecActionMask  # of the actors
    advised: Float32Array  # (actors, components) of the agent; NaN if unknown

    @property
    def num_words(self) -> int:
        """Number of components."""
        return len(self.space.components)

    def find(self, text: str, actor: int) -> Any:
        """Parse the numbers of an actor; an empty text is the choice of the agent.

        Raises:
            ValueError: a number is missing or out of bounds.
        """
        if not text and not np.isnan(self.advised[actor]).any():
            return self.advised[actor]
        try:
            typed = self.space.typed(text.split())
            return self.space.choice_of(typed, self.mask.keep(np.arange(len(self.titles)) == actor))
        except ValueError as error:
            raise ValueError(f"{self.titles[actor]}: {error}; ? for help") from None

    def listed(self, actor: int) -> str:
        """Return a text of an actor, the bounds of its numbers, and the agent's choice."""
        assert self.mask.bounds is not None
        lines = [f"{self.titles[actor]}:"]
        for name, low, high in zip(
            self.space.components, *self.mask.bounds.values[actor].tolist(), strict=True
        ):
            bounds = f"from {low:.6g} to {high:.6g}" if np.isfinite(low) else "any number"
            lines.append(f"{name}=  {bounds}" if low < high else f"{name}=  {low:.6g} alone")
        if not np.isnan(self.advised[actor]).any():
            lines.append(f"{self.space.text_of(self.advised[actor], ())}  <- Enter")
        return "\n  ".join(lines)


def ask_line(prompt: str, ask: Ask, show: Show) -> str:
    """Return a typed line; `?` shows the help and asks again.

    Raises:
        Quit: `q` or Ctrl-C was typed, or the input ended.
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
