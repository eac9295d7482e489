"""Trust in code that is named by files, and the only functions that import code by name.

Code is trusted if it ships with this package or if the user names it.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple, TypeAlias

from enn_trainer.base.errors import ConfigError
from enn_trainer.runtime.start_folder import start_folder
from entity_env.bot import Bot
from entity_env.errors import UnknownWorld, short_repr
from entity_env.examples import __name__ as EXAMPLES
from entity_env.named_world import find_bot, find_world

Kind = Literal["environment", "argument", "bot", "ray", "ray_files", "ray_env"]
Key: TypeAlias = tuple[Kind, str]
"""(kind, text), which identifies code."""

PROGRAM = "__main__"
"""Module in `env.id` of a class that only the program of the run can import, as in a notebook."""
NAMELESS = "handed in"
"""Saved value of `env.id` for such an environment without a name, as of a lambda."""

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
"""By kind, the trusted names and the effect of an untrusted name, for messages."""


class NamedCode(NamedTuple):
    """Reference to code in a file.

    Attributes:
        kind: "environment"; "argument" of an environment that may name a module; "bot"; or the name
            of a setting of Ray.
        text: name of the code.
        path: path of the setting, such as `("eval", "env", "id")`.
        source: the file, for messages.
        is_listed: True for an entry of a setting that is a list or a mapping.
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
        """Dotted path of the setting."""
        return ".".join(self.path)


@dataclass(frozen=True)
class Trust:
    """Set of the code in files that may run.

    Attributes:
        keys: code named by the user, on a command line or in a file on the command line.
        is_complete: True if all code may run, because the user wrote all names or trusts the file.
        line: command line of a run with `--trust`, for messages; "" without one.
        advice: end of messages for a program without settings; "" for a run.
    """

    keys: frozenset[Key] = frozenset()
    is_complete: bool = False
    line: str = ""
    advice: str = ""

    def find_untrusted(self, named: Iterable[NamedCode]) -> NamedCode | None:
        """Return the first untrusted code, or None; nothing is imported."""
        if self.is_complete:
            return None
        return next((code for code in named if code.key not in self.keys), None)

    def check(self, named: Iterable[NamedCode]) -> None:
        """Raise if code is untrusted.

        Raises:
            ConfigError: with the setting, the code and the command to type.
        """
        code = self.find_untrusted(named)
        if code is not None:
            raise refusal(code, self.remedy(code))

    def remedy(self, code: NamedCode) -> str:
        """Return advice on how to trust the code."""
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
"""Trust in all names, for names written by the user on a command line or in a program."""


def refusal(code: NamedCode, remedy: str) -> ConfigError:
    """Return the error for untrusted code.

    Args:
        code: the code.
        remedy: advice, as text.
    """
    expected, effect = _WORDS[code.kind]
    got = f"{short_repr(code.text, 200)} from {code.source}, which {effect}"
    return ConfigError(f"{code.field}: expected {expected}, got {got}; {remedy}")


def import_named(name: str, field: str, trust: Trust) -> Any:
    """Import an environment or function by name, if it is trusted.

    Args:
        name: a name for `entity_env.named_world.find_world`.
        field: setting or option with the name, for messages.
        trust: the code that may run.

    Raises:
        ConfigError: the name is not trusted, or only a program can import it.
        UnknownWorld: the name is unknown, or cannot be imported.
    """
    if is_passed_from_python(name):
        fix = "continue the run by that program, with --checkpoint-dir and --resume"
        got = "an environment that a program passed from Python"
        raise ConfigError(f"{field}: expected the name of an environment, got {got}; {fix}")
    if names_code(name):
        trust.check([NamedCode("environment", name, (field,))])
    return find_world(name, start_folder())


def bot_class(name: str, field: str, trust: Trust) -> type[Bot]:
    """Import the class of a bot, if it is trusted.

    Args:
        name: `file.py:Name` or `package.module:Name`.
        field: name of the setting, for messages.
        trust: code that may run.

    Raises:
        ConfigError: there is no such bot, or it is not trusted.
    """
    trust.check([NamedCode("bot", name, (field,))])
    try:
        return find_bot(name, start_folder())
    except UnknownWorld as error:
        raise ConfigError(f"{field}: {error}") from None


def names_code(env_id: str) -> bool:
    """Return True if an environment id names code that does not ship with this package."""
    module, colon, _ = env_id.rpartition(":")
    return bool(colon) and module not in (EXAMPLES, PROGRAM)


def is_passed_from_python(env_id: str) -> bool:
    """Return True if `env.id` stands for an environment that no command can import."""
    return env_id == NAMELESS or env_id.rpartition(":")[0] == PROGRAM


def env_label(env_id: str) -> str:
    """Return `env.id` as text for people."""
    return "passed from Python" if env_id == NAMELESS else env_id.removeprefix(f"{PROGRAM}:")


def texts_of_code(value: object) -> Iterator[str]:
    """Yield texts that may name code, such as the id `module:Env-v0`, which imports a module."""
    if isinstance(value, str) and ":" in value:
        yield value
    elif isinstance(value, Mapping):
        yield from texts_of_code(list(value.items()))
    elif isinstance(value, list | tuple):
        for item in value:
            yield from texts_of_code(item)
