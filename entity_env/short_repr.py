"""Representations of values for error messages, on one line and of bounded length."""

LONG = 2000
"""The `max_length` for values that environments return, of which their authors want to see all."""


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
