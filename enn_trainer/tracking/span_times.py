"""What spans took between two moments, so that the times of all add up to that of the run."""

from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple


class SpanTimes(NamedTuple):
    """What was added to a span, without its own parts.

    Attributes:
        wall_s: seconds of the run.
        core_s: seconds of all threads.
        calls: how often it was left.
    """

    wall_s: float
    core_s: float
    calls: int


def times_between(before: Mapping[str, Any], after: Mapping[str, Any]) -> dict[str, SpanTimes]:
    """What each span took, by path.

    Where threads work on parts of a span while the main thread waits in it, that wait is theirs: it
    is shared out over the parts by what their threads used.

    Args:
        before: `Spans.as_dict` of a moment.
        after: that of a later one.
    """
    return dict(_below(_added(before, after), "", share=None))


def _added(before: Mapping[str, Any], after: Mapping[str, Any]) -> dict[str, Any]:
    parts = {part["name"]: part for part in before.get("parts", [])}
    return {
        "name": after["name"],
        **{
            key: after.get(key, 0) - before.get(key, 0)
            for key in ("calls", "total_s", "self_s", "in_threads_s")
        },
        "parts": [_added(parts.get(part["name"], {}), part) for part in after["parts"]],
    }


def _below(
    span: Mapping[str, Any], path: str, share: float | None
) -> Iterator[tuple[str, SpanTimes]]:
    """A span and those below it.

    Args:
        span: what was added to it.
        path: of the span, "" for the whole run.
        share: of the time in it that passes in the run; None if only the main thread enters it.
    """
    in_threads_s = sum(part["in_threads_s"] for part in span["parts"])
    own_s, covered = span["self_s"], 0.0
    if share is not None:
        own_s *= share
    elif in_threads_s:
        covered = min(1.0, own_s / in_threads_s)
        own_s -= covered * in_threads_s
    if path:
        yield path, SpanTimes(own_s, span["self_s"] if share is not None else own_s, span["calls"])
    for part in span["parts"]:
        of_part = share
        if share is None and part["in_threads_s"]:
            in_main_s = part["total_s"] - part["in_threads_s"]
            of_part = (in_main_s + covered * part["in_threads_s"]) / part["total_s"]
        yield from _below(part, f"{path}/{part['name']}".lstrip("/"), of_part)
