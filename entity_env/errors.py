"""Exceptions of `entity_env`, and of the code of environments.

EntityEnvError
├── InvalidSpace        inconsistent observation or action space
├── InvalidView         view that does not match the observation space
├── InvalidObservation  observation that violates the spaces of its environment
├── InvalidAction       action that the last observation does not allow
├── InvalidSampler      invalid sampler of an argument of an environment
├── WorkerError         failure of a worker process, with its traceback
│   └── ClusterLostError  loss of the head of a Ray cluster
├── ClusterError        Ray cluster that is missing or too small
└── UnknownWorld        unknown environment, or one that cannot be imported
"""

from collections.abc import Iterable, Iterator
from contextlib import contextmanager

LONG = 2000
"""The `max_length` for values that environments return, long enough to show most of them whole."""
_MAX_LETTERS = 100
"""Largest number of letters of a name in the search for the nearest one."""


def one_line(error: BaseException) -> str:
    """Return the message of an error on one line, or its class if it has none."""
    return " ".join(str(error).split()) or type(error).__name__


def short_repr(value: object, max_length: int = 80) -> str:
    """Return the `repr` of a value on one line, truncated to `max_length` characters.

    The size of a truncated integer or collection is prepended; very large ones are only the size.
    """
    size = ""
    if isinstance(value, str | bytes):
        value = value[:max_length]  # with its quotes it is still truncated below
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
    """Truncate a text to `max_length` characters, with "..." at its end."""
    return text if len(text) <= max_length else text[: max_length - 3] + "..."


def did_you_mean(name: str, names: Iterable[str], separator: str = ", ") -> str:
    """Return ", did you mean NAME?" with the nearest valid name, "" if none is near.

    Args:
        name: the unknown name.
        names: the valid names.
        separator: prefix of the question.
    """
    nearest = nearest_name(name, names)
    return "" if nearest is None else f"{separator}did you mean {nearest}?"


def nearest_name(name: str, names: Iterable[str]) -> str | None:
    """Return the valid name with the smallest edit distance to a typed one, None if none is near.

    Near is a distance of 0 for a single letter, of 1 for a name of up to five letters, of 2 for a
    longer one; case, "-" and "_" do not count.

    Args:
        name: the typed name; of a long one only the beginning counts.
        names: the valid names; of equally near ones the first is returned.
    """
    typed = _letters(name)
    most = 1 if sum(map(str.isalnum, typed)) <= 5 else 2
    most = min(most, len(typed) - 1)
    near = [other for other in names if abs(len(other) - len(typed)) <= most]
    distances = [_edit_distance(typed, _letters(other)) for other in near]
    least = min(distances, default=most + 1)
    return near[distances.index(least)] if least <= most else None


def _letters(name: str) -> str:
    return name[:_MAX_LETTERS].lower().replace("-", "_")


def _edit_distance(first: str, second: str) -> int:
    """Return the number of insertions, deletions, replacements and swaps of neighbours.

    Source: the optimal string alignment distance, Damerau 1964.
    """
    rows: list[list[int]] = [[*range(len(second) + 1)]]
    for i, letter in enumerate(first, 1):
        row: list[int] = [i]
        for j, other in enumerate(second, 1):
            row.append(min(row[-1] + 1, rows[-1][j] + 1, rows[-1][j - 1] + (letter != other)))
            if min(i, j) > 1 and letter == second[j - 2] and first[i - 2] == other:
                row[j] = min(row[j], rows[-2][j - 2] + 1)
        rows.append(row)
    return rows[-1][-1]


class EntityEnvError(Exception):
    """Base class of the errors that `entity_env` raises."""


class InvalidSpace(EntityEnvError, ValueError):  # noqa: N818 (public name)
    """Error for an inconsistent observation or action space."""


class InvalidView(EntityEnvError, ValueError):  # noqa: N818 (as above)
    """Error for a view that does not match the observation space of its environment."""


class InvalidObservation(EntityEnvError, ValueError):  # noqa: N818 (as above)
    """Error for an observation that violates the spaces of its environment.

    Attributes:
        env_name: the class of the environment, if it is not vectorised.
        env_index: the index in vectorised environments; None if unknown.
        episode: the episode of that environment, counted from 0; None if unknown.
        step: the step of the episode, counted from 0 at the reset; None if unknown.
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
    """Error for an action that the last observation does not allow.

    Attributes:
        env_index: the index of the frame in its batch; None if unknown.
    """

    env_index: int | None = None


class InvalidSampler(EntityEnvError, ValueError):  # noqa: N818 (public name)
    """Error for the sampler of an argument that is invalid, or that the environment lacks."""


class WorkerError(EntityEnvError, RuntimeError):
    """Failure of a worker process; the message contains the traceback of the worker."""


class ClusterLostError(WorkerError):
    """Loss of the head of a Ray cluster."""


class ClusterError(EntityEnvError):
    """Error for a Ray cluster that is missing or too small."""


class UnknownWorld(EntityEnvError, ValueError):  # noqa: N818 (public name)
    """Error for an unknown environment, or one that cannot be imported."""


def invalid_in(env_index: int | None, message: str) -> InvalidObservation:
    """Return the error for an invalid observation of environment `env_index`, None if unknown."""
    error = InvalidObservation(message)
    error.env_index = env_index
    return error


def unexpected(env_index: int | None, what: str, expected: str, got: object) -> InvalidObservation:
    """Return the error for a field with an unexpected value, as `invalid_in`."""
    return invalid_in(env_index, f"{what}: expected {expected}, got {got}")


def as_error(error: BaseException) -> BaseException:
    """Convert an exception that an environment raised to a subclass of `Exception`.

    SystemExit, GeneratorExit and the like become a RuntimeError: they would pass every handler,
    and SystemExit ends a program without a traceback. KeyboardInterrupt is returned unchanged.

    Args:
        error: raised by the environment; becomes the cause of the RuntimeError.
    """
    if isinstance(error, Exception | KeyboardInterrupt):
        return error
    raised = RuntimeError(f"the environment raised {type(error).__name__}: {error}")
    raised.__cause__ = error
    return raised


@contextmanager
def exits_as_errors() -> Iterator[None]:
    """Convert exceptions of the block, or of the decorated function, by `as_error`."""
    try:
        yield
    except BaseException as error:
        raise as_error(error)  # noqa: B904 (has its cause)


@contextmanager
def in_environment(index: int) -> Iterator[None]:
    """Add the index of the environment to exceptions that its code raises in the block.

    Args:
        index: among all environments of the run.
    """
    try:
        with exits_as_errors():
            yield
    except EntityEnvError:
        raise
    except BaseException as error:
        error.add_note(f"in environment {index}")
        raise
