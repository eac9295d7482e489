"""Exceptions of environment code that would end the program, such as SystemExit."""

from collections.abc import Iterator
from contextlib import contextmanager

from entity_env.errors import EntityEnvError


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
        raised = as_error(error)
        if raised is error:
            raise
        raise raised from error


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
