"""Menus of the legal choices of actors, and what a person types."""

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
"""Shows a prompt and returns the line that was typed; EOFError when there are no more."""
Show: TypeAlias = Callable[[str], None]
"""Shows lines of text."""

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
    """Base class of menus: the actors of an action in a frame, and what each may choose."""

    titles: list[str]  # the action and each actor

    @property
    def num_words(self) -> int:
        """The words that a person types for the choice of an actor."""
        return 1

    @abstractmethod
    def find(self, text: str, actor: int) -> Any:
        """Return the choice of an actor that a person typed; without text that of the agent.

        Raises:
            ValueError: the actor has no such choice, or the agent's is not known.
        """

    @abstractmethod
    def listed(self, actor: int) -> str:
        """Return an actor and its legal choices."""

    def ask(self, prompt: str, ask: Ask, show: Show) -> list[Any]:
        """Return the choice of each actor, as batches have it, when all have been typed.

        Raises:
            Quit: the person wants to.
        """
        chosen: list[Any] = []
        listed = -1
        while len(chosen) < len(self.titles):
            actor, remaining = len(chosen), len(self.titles) - len(chosen)
            if listed != actor:  # not again after a mistake
                listed = actor
                show(self.listed(actor))
            of_all = f" [1 of {remaining}]" if remaining > 1 else ""
            text = ask_line(f"{prompt}{of_all}> ", ask, show)
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
    """Numbered choices of all actors of an action in a frame."""

    choices: list[tuple[str, str]]  # names and features; labels have no features
    legal: BoolArray  # (actors, choices)
    probs: Float32Array | None  # (actors, choices), of an agent; NaN if not known

    def find(self, text: str, actor: int) -> int:
        """Return the choice with a number; without one, the most probable.

        Raises:
            ValueError: the actor has no such choice, or the probabilities are not known.
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
        """Return an actor and its numbered choices."""
        cells, probs = [], self._probs_of(actor)
        for choice in np.flatnonzero(self.legal[actor]).tolist():
            name, features = self.choices[choice]
            cells.append(f"{choice + 1}) {name}" + (f"  ({features})" if features else ""))
            if probs is not None:
                best = " <- Enter" if choice == self.find("", actor) else ""
                cells[-1] += f"  {probs[choice]:.1%}{best}"
        if not any(features for _, features in self.choices):  # several in a line
            words = "   ".join(cell.replace(" ", "\0") for cell in cells)
            lines = textwrap.wrap(words, 80, break_long_words=False, break_on_hyphens=False)
            cells = [line.replace("\0", " ") for line in lines]
        return "\n  ".join([f"{self.titles[actor]}:", *cells])

    def _probs_of(self, actor: int) -> Float32Array | None:
        """Return the probabilities of an actor's choices; None if they are not known."""
        if self.probs is None or np.isnan(self.probs[actor]).any():
            return None
        probs: Float32Array = self.probs[actor]
        return probs


@dataclass(frozen=True)
class NumbersMenu(AnyMenu):
    """Bounds of the numbers that all actors of an action choose in a frame."""

    space: ActionSpace
    mask: VecActionMask  # of the actors
    advised: Float32Array  # (actors, components), of an agent; NaN if not known

    @property
    def num_words(self) -> int:
        """One for each component."""
        return len(self.space.components)

    def find(self, text: str, actor: int) -> Any:
        """Return the numbers that a person typed; without text those of the agent.

        Raises:
            ValueError: they are not all there, or not within the bounds of the actor.
        """
        if not text and not np.isnan(self.advised[actor]).any():
            return self.advised[actor]
        try:
            typed = self.space.typed(text.split())
            return self.space.choice_of(typed, self.mask.keep(np.arange(len(self.titles)) == actor))
        except ValueError as error:
            raise ValueError(f"{self.titles[actor]}: {error}; ? for help") from None

    def listed(self, actor: int) -> str:
        """Return an actor and the bounds of its numbers, with those of the agent."""
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
