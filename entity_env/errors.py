"""Exceptions of `entity_env`, and of the environments' own code.

EntityEnvError
├── InvalidSpace        an observation or action space that contradicts itself
├── InvalidView         a view that does not fit the observation space of its world
├── InvalidObservation  an environment returned something its spaces do not allow
├── InvalidAction       an action was handed in that the observation does not allow
├── InvalidSampler      a text from which no value of an argument can be drawn
├── WorkerError         a worker process failed, with the environment's own traceback
│   └── ClusterLostError  the head of a Ray cluster is gone
├── ClusterError        a Ray cluster that is not there, or too small
└── UnknownWorld        a name of a world that does not stand for one
"""

import difflib
from collections.abc import Iterable, Iterator
from contextlib import contextmanager

LONG = 2000
"""The `max_length` for values that environments return, of which their authors want to see all."""


def one_line(error: BaseException) -> str:
    """Return the message of an error on one line, or its class if it has none."""
    return " ".join(str(error).split()) or type(error).__name__


def short_repr(value: object, max_length: int = 80) -> str:
    """Return the `repr` of a value on one line, truncated where it is longer than `max_length`.

    A truncated integer or collection has its size in front, or is nothing but that.
    """
    size = ""
    if isinstance(value, str | bytes):
        value = value[:max_length]  # quotes make it too long
    elif isinstance(value, int):
        size = f"an integer of {value.bit_length()} bits"
    elif isinstance(value, list | tuple | dict | set | frozenset):
        size = f"a {type(value).__name__} of {len(value)}"
        if len(value) > max_length:
            return size
    try:
        text = repr(value)
    except (ValueError, RecursionError):  # integers of thousands of digits, deep nesting
        return size or f"a {type(value).__name__} that cannot be printed"
    if len(text.splitlines()) > 1:  # as of arrays
        text = " ".join(text.split())
    short = truncate(text, max_length)
    return f"{size}: {short}" if size and short != text else short


def truncate(text: str, max_length: int) -> str:
    """Return a text of at most `max_length` characters, which ends in "..." if some are missing."""
    return text if len(text) <= max_length else text[: max_length - 3] + "..."


def did_you_mean(
    name: str, names: Iterable[str], cutoff: float = 0.6, separator: str = ", "
) -> str:
    """Return ", did you mean NAME?" with the nearest of some names; "" if none is near.

    Args:
        name: that is unknown.
        names: that are known.
        cutoff: the least likeness, from 0 for any name to 1 for the same.
        separator: in front of the question.
    """
    nearest = difflib.get_close_matches(name, list(names), n=1, cutoff=cutoff)
    return f"{separator}did you mean {nearest[0]}?" if nearest else ""


class EntityEnvError(Exception):
    """Base class of the errors that `entity_env` raises."""


class InvalidSpace(EntityEnvError, ValueError):  # noqa: N818 (names what is invalid)
    """An observation or action space that contradicts itself."""


class InvalidView(EntityEnvError, ValueError):  # noqa: N818 (as above)
    """A view that does not fit the observation space of its world."""


class InvalidObservation(EntityEnvError, ValueError):  # noqa: N818 (as above)
    """Something an environment returned that its spaces do not allow.

    Attributes:
        env_name: the class of the environment, where it stands alone.
        env_index: the index of the environment in a vectorised one, once that is known.
        episode: the episode of that environment, counted from 0, once that is known.
        step: the step of its episode, counted from 0 at the reset, once that is known.
    """

    env_name: str | None = None
    env_index: int | None = None
    episode: int | None = None
    step: int | None = None

    def __str__(self) -> str:
        environment = self.env_name if self.env_index is None else self.env_index
        places = {"environment": environment, "episode": self.episode, "step": self.step}
        where = ", ".join(f"{name} {value}" for name, value in places.items() if value is not None)
        return (f"{where}: " if where else "") + super().__str__()


class InvalidAction(EntityEnvError, ValueError):  # noqa: N818 (as above)
    """An action that the last observation does not allow.

    Attributes:
        env_index: the index of the frame in its batch, once that is known.
    """

    env_index: int | None = None


class InvalidSampler(EntityEnvError, ValueError):  # noqa: N818 (names what is invalid)
    """A text from which no argument can be drawn, or one that an environment does not take."""


class WorkerError(EntityEnvError, RuntimeError):
    """Failure of a worker process; the message carries the traceback from the worker."""


class ClusterLostError(WorkerError):
    """Loss of the head of a Ray cluster."""


class ClusterError(EntityEnvError):
    """Error of a Ray cluster that is not there, or too small."""


class UnknownWorld(EntityEnvError, ValueError):  # noqa: N818 (names what is unknown)
    """A name that does not stand for an environment, or one that cannot be imported."""


def invalid_in(env_index: int | None, message: str) -> InvalidObservation:
    """Return the error for an invalid observation of one environment of a batch, if it is known."""
    error = InvalidObservation(message)
    error.env_index = env_index
    return error


def unexpected(env_index: int | None, what: str, expected: str, got: object) -> InvalidObservation:
    """Return the error for a field of another value than expected, as `invalid_in`."""
    return invalid_in(env_index, f"{what}: expected {expected}, got {got}")


def as_error(error: BaseException) -> BaseException:
    """Return the exception to raise in place of one that an environment raised.

    SystemExit, GeneratorExit and other exceptions that are no `Exception` become a RuntimeError:
    they would pass every handler, and SystemExit ends a program without a traceback. A
    KeyboardInterrupt stays one, as Ctrl-C may have been typed while the environment ran.

    Args:
        error: raised by the environment; the cause of the RuntimeError.
    """
    if isinstance(error, Exception | KeyboardInterrupt):
        return error
    raised = RuntimeError(f"the environment raised {type(error).__name__}: {error}")
    raised.__cause__ = error
    return raised


@contextmanager
def exits_as_errors() -> Iterator[None]:
    """Apply `as_error` to exceptions of the block, or of the decorated function."""
    try:
        yield
    except BaseException as error:
        raise as_error(error)  # noqa: B904 (has its cause)


@contextmanager
def in_environment(index: int) -> Iterator[None]:
    """Name the environment in exceptions that its own code raises in the block.

    Args:
        index: of the environment among all of the run.
    """
    try:
        with exits_as_errors():
            yield
    except EntityEnvError:
        raise
    except BaseException as error:
        error.add_note(f"in environment {index}")
        raise
