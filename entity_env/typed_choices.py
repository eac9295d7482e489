"""Questions to a person, and what they mean by what they type."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TypeAlias

from entity_env.spaces import ActionName

Ask: TypeAlias = Callable[[str], str]
"""Shows a prompt and returns the line that was typed; EOFError when there are no more."""
Show: TypeAlias = Callable[[str], None]
"""Shows lines of text."""

HELP = """\
  2           the choice listed as `2)`
  left, le    a label, the id of an entity, or a beginning that only one choice has
  1 1 2       one choice for each actor that has not chosen yet
  * 2         the same choice for all of them
  (nothing)   what the agent finds most probable, if there is one; `*` for all that remain
  ?           this help
  q           quit; what was recorded so far is kept
Entities without ids are called by type and row, such as `Mine 0`. Where labels or ids are numbers
themselves there are no other numbers. Only what is allowed is listed."""

_WIDTH = 80


class Quit(Exception):  # noqa: N818 (ends a game)
    """The person typed `q`."""


class NotUnderstood(ValueError):  # noqa: N818 (asks again)
    """What was typed names no choice; the message is one line for the person."""


@dataclass(frozen=True)
class Choice:
    """Something that an actor may choose now.

    Attributes:
        index: as `VecEnv.act` takes it.
        name: its label; for an entity its type and id.
        alias: its label; for an entity with an id the id alone.
        details: features of the entity.
        prob: how probable an agent finds it.
    """

    index: int
    name: str
    alias: str
    details: str = ""
    prob: float | None = None


@dataclass(frozen=True)
class Question:
    """What one actor is asked.

    Attributes:
        action: the action.
        actor: type, id and features of the actor; empty for a global action.
        choices: what is allowed.
        illegal: the names of what is not.
    """

    action: ActionName
    actor: str
    choices: list[Choice]
    illegal: list[str]

    @cached_property
    def keys(self) -> list[str]:
        """What stands before each choice in the list: its number, unless it is a number already.

        A choice has the same number for every actor, whatever else that one may choose.
        """
        aliases = [choice.alias for choice in self.choices]
        if any(map(_is_number, aliases)) and len(set(aliases)) == len(aliases):
            return aliases
        return [str(choice.index + 1) for choice in self.choices]

    def suggested(self) -> Choice:
        """What the agent finds most probable.

        Raises:
            NotUnderstood: there is no agent.
        """
        if self.choices[0].prob is None:
            raise NotUnderstood(f"{self}: type a choice, or ? for help")
        return max(self.choices, key=lambda choice: choice.prob or 0.0)

    def find(self, text: str) -> Choice:
        """The choice that somebody means.

        Raises:
            NotUnderstood: there is none, or more than one.
        """
        folded = text.casefold()
        names = [(choice.alias, choice.name) for choice in self.choices]
        ways = [
            [text == key for key in self.keys],
            [text in pair for pair in names],
            [folded in (alias.casefold(), name.casefold()) for alias, name in names],
        ]
        if not _is_number(text):  # 1 does not mean 12
            ways.append([any(n.casefold().startswith(folded) for n in pair) for pair in names])
        for way in ways:
            found = [choice for choice, fits in zip(self.choices, way, strict=True) if fits]
            if len(found) == 1:
                return found[0]
            if found:
                several = ", ".join(choice.name for choice in found)
                raise NotUnderstood(f"{self}: {text!r} could be {several}")
        refused = [name for name in self.illegal if name.casefold().startswith(folded)]
        if refused:
            raise NotUnderstood(f"{self}: {', '.join(refused)} is not allowed now")
        raise NotUnderstood(f"{self}: expected {_in_short(self.keys)} or a name, got {text!r}")

    def __str__(self) -> str:
        return f"{self.action}, {self.actor}" if self.actor else self.action

    def listed(self) -> str:
        """The actor and its numbered choices."""
        best = self.suggested() if self.choices[0].prob is not None else None
        cells = []
        for key, choice in zip(self.keys, self.choices, strict=True):
            cell = f"{key}) {choice.name}" if key != choice.name else f"{key})"
            if choice.details:
                cell += f"  ({choice.details})"
            if choice.prob is not None:
                cell += f"  {choice.prob:.1%}" + (" <- Enter" if choice is best else "")
            cells.append(cell)
        one_each = any(choice.details for choice in self.choices)
        return "\n  ".join([f"{self}:", *(cells if one_each else _in_lines(cells))])


def ask_actors(questions: Sequence[Question], ask: Ask, show: Show) -> list[int]:
    """Ask until every actor of an action has chosen; the choices as `VecEnv.act` takes them.

    Raises:
        Quit: the person wants to.
    """
    chosen: list[int] = []
    listed = -1
    while len(chosen) < len(questions):
        rest = questions[len(chosen) :]
        if listed != len(chosen):
            listed = len(chosen)
            show(rest[0].listed())
        more = f" [1 of {len(rest)}]" if len(rest) > 1 else ""
        text = ask_line(f"{rest[0].action}{more}> ", ask, show)
        try:
            chosen += [choice.index for choice in _understand(text, rest)]
        except NotUnderstood as error:
            show(str(error))
    return chosen


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


def _understand(text: str, rest: Sequence[Question]) -> list[Choice]:
    """The choices of one, or of all, who have not chosen yet."""
    if not text:
        return [rest[0].suggested()]
    if text.startswith("*"):
        word = text[1:].strip()
        return [question.find(word) if word else question.suggested() for question in rest]
    words = text.replace(",", " ").split()
    try:
        return [rest[0].find(text)]
    except NotUnderstood:
        if len(words) == 1 or len(rest) == 1:
            raise
    if len(words) != len(rest):
        raise NotUnderstood(
            f"{rest[0].action}: expected one choice or {len(rest)}, got {len(words)} in {text!r}"
        )
    return [question.find(word) for question, word in zip(rest, words, strict=True)]


def _is_number(text: str) -> bool:
    return text.removeprefix("-").isdecimal()


def _in_short(keys: list[str]) -> str:
    return ", ".join(keys) if len(keys) < 12 else f"{keys[0]} to {keys[-1]}"


def _in_lines(cells: list[str]) -> list[str]:
    lines = [""]
    for cell in cells:
        longer = f"{lines[-1]}   {cell}" if lines[-1] else cell
        if len(longer) <= _WIDTH or not lines[-1]:
            lines[-1] = longer
        else:
            lines.append(cell)
    return lines
