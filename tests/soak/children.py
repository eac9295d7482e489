"""Forked processes that do one thing and end."""

import os
from collections.abc import Callable
from pathlib import Path
from typing import NoReturn


def run_and_exit(errors: Path, work: Callable[[], object]) -> NoReturn:
    """Do the work of a forked child and end it: with status 0, or 1 if the work raises.

    Args:
        errors: takes what the child prints, and the exception.
        work: is called once.
    """
    status = 1
    try:
        errors.parent.mkdir(exist_ok=True)
        printed = os.open(errors, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o666)
        os.dup2(printed, 1)
        os.dup2(printed, 2)
        work()
        status = 0
    except BaseException as error:
        os.write(2, repr(error).encode())
        raise
    finally:
        os._exit(status)
