"""Trust in code that files name, and the one door through which a name becomes code.

Code is trusted if it ships with this package or if the user names it.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple, TypeAlias

from enn_trainer.base.errors import ConfigError
from enn_trainer.runtime.start_folder import start_folder
from entity_env.bot import Bot
from entity_env.errors import short_repr
from entity_env.examples import __name__ as EXAMPLES
from entity_env.named_world import find_bot, find_world

Kind = Literal["environment", "argument", "bot", "ray", "ray_files", "ray_env"]
Key: TypeAlias = tuple[Kind, str]
"""Kind and text: code with the same key is the same code."""

_IMPORTED = "code that would be imported and run"
_RAY = "a setting that is given on the command line"
_WORDS: dict[Kind, tuple[str, str]] = {
    "environment": (
        "an environment of `enn envs` or one named on the command line",
        f"is {_IMPORTED}",
    ),
    "argument": (
        "arguments without a colon, or given on the command line",
        f"may be {_IMPORTED}",
    ),
    "bot": ("a bot that is named on the command line", f"is {_IMPORTED}"),
    "ray": (_RAY, "is a cluster that would be joined or started"),
    "ray_files": (_RAY, "would be sent to the hosts of a cluster"),
    "ray_env": (_RAY, "is an environment or a program that hosts of a cluster would run"),
}
"""For each kind, the expected name and the effect of another one."""


class NamedCode(NamedTuple):
    """Code that a file names.

    Attributes:
        kind: "environment"; "argument" of one, with a text that may name a module; "bot"; or the
            name of a setting of Ray.
        text: its name.
        path: path of its setting, such as `("eval", "env", "id")`.
        source: the file, for messages.
        is_listed: True if the setting is a list or a mapping, of which this is an entry.
    """

    kind: Kind
    text: str
    path: tuple[str, ...]
    source: str = "a save"
    is_listed: bool = False

    @property
    def key(self) -> Key:
        """Kind and text."""
        return self.kind, self.text

    @property
    def field(self) -> str:
        """Dotted path of its setting."""
        return ".".join(self.path)


@dataclass(frozen=True)
class Trust:
    """Code that may run, among all that files name.

    Attributes:
        keys: code that the user names: on a command line, or in a file that it names.
        is_complete: True if all code may run, as where the user wrote all names or trusts the file.
        line: the command line of a run with `--trust`, for messages; "" if there is none.
        advice: the end of messages, where no settings can be given; "" of a run.
    """

    keys: frozenset[Key] = frozenset()
    is_complete: bool = False
    line: str = ""
    advice: str = ""

    def find_untrusted(self, named: Iterable[NamedCode]) -> NamedCode | None:
        """Return the first code that may not run, or None. Nothing is imported."""
        if self.is_complete:
            return None
        return next((code for code in named if code.key not in self.keys), None)

    def check(self, named: Iterable[NamedCode]) -> None:
        """Raise if some code may not run.

        Raises:
            ConfigError: names the setting, the code and what to type.
        """
        code = self.find_untrusted(named)
        if code is not None:
            raise refusal(code, self.remedy(code))

    def remedy(self, code: NamedCode) -> str:
        """Return what to type, so that code may run."""
        if self.advice:
            return self.advice
        trusting = f"if you trust the save, type: {self.line or '--trust'}"
        if code.kind == "environment":
            return trusting
        if code.kind == "argument":
            return f"give {code.field}=... again; or, {trusting}"
        value = "..." if code.is_listed else code.text
        return f"give {code.field}={value} again, or --trust if you trust the save"


TYPED = Trust(is_complete=True)
"""Trust in names that the user writes: on a command line, or in a program."""


def refusal(code: NamedCode, remedy: str) -> ConfigError:
    """Return the error for code that may not run.

    Args:
        code: the code.
        remedy: advice, as text.
    """
    expected, effect = _WORDS[code.kind]
    got = f"{short_repr(code.text, 200)} from {code.source}, which {effect}"
    return ConfigError(f"{code.field}: expected {expected}, got {got}; {remedy}")


def import_named(name: str, field: str, trust: Trust) -> Any:
    """Import what a name stands for, such as an environment, if it is trusted.

    Args:
        name: a name for `entity_env.named_world.find_world`.
        field: setting or option that has the name, for messages.
        trust: the code that may run.

    Raises:
        ConfigError: the name is not trusted.
        UnknownWorld: there is nothing of this name, or it cannot be imported.
    """
    if names_code(name):
        trust.check([NamedCode("environment", name, (field,))])
    return find_world(name, start_folder())


def import_bot(name: str, field: str, trust: Trust) -> type[Bot]:
    """Import the class of a bot, if it is trusted; the arguments are those above.

    Raises:
        ConfigError: the name is not trusted.
        UnknownWorld: there is no such bot, or it cannot be imported.
    """
    trust.check([NamedCode("bot", name, (field,))])
    return find_bot(name, start_folder())


def names_code(env_id: str) -> bool:
    """Return True if an environment id names code that does not ship with this program."""
    module, colon, _ = env_id.rpartition(":")
    return bool(colon) and module != EXAMPLES


def texts_of_code(value: object) -> Iterator[str]:
    """Yield texts that may name code, such as the id `module:Env-v0`, which imports a module."""
    if isinstance(value, str) and ":" in value:
        yield value
    elif isinstance(value, Mapping):
        yield from texts_of_code(list(value.items()))
    elif isinstance(value, list | tuple):
        for item in value:
            yield from texts_of_code(item)
