import json
import time
from pathlib import Path

import pytest

from enn_trainer.tracking.spans import OFF, Spans


def burn(ms: float) -> None:
    end = time.perf_counter() + ms / 1000
    while time.perf_counter() < end:
        pass


def test_time_of_parts_is_no_own_time() -> None:
    spans = Spans()
    for _ in range(2):
        with spans.span("update"):
            burn(2)
            with spans.span("act"):
                burn(5)
    (update,) = spans.as_dict()["parts"]
    (act,) = update["parts"]
    assert (update["calls"], act["calls"]) == (2, 2)
    assert act["total_s"] == act["self_s"] >= 0.010
    assert update["total_s"] == pytest.approx(update["self_s"] + act["total_s"])
    assert update["self_s"] >= 0.004


def test_one_name_within_two_others_is_two_spans() -> None:
    spans = Spans()
    for outer in ("rollout", "eval", "eval"):
        with spans.span(outer), spans.span("env"), spans.span("env"):
            pass
    own, whole = spans.since_last()
    assert list(own) == [
        *("rollout", "rollout/env", "rollout/env/env"),
        *("eval", "eval/env", "eval/env/env"),
    ]
    assert list(whole) == ["rollout", "eval"]


def test_since_last_counts_nothing_twice_and_adds_up() -> None:
    spans = Spans()
    with spans.span("a"):
        burn(3)
    first, _ = spans.since_last()
    with spans.span("b"), spans.span("c"):
        burn(2)
    second, whole = spans.since_last()
    assert first["a"] >= 3
    assert second["a"] == whole["a"] == 0
    assert sum(second.values()) == pytest.approx(sum(whole.values()))


def test_an_open_span_is_counted_when_it_closes() -> None:
    spans = Spans()
    with spans.span("outer"):
        with spans.span("inner"):
            burn(2)
        during, _ = spans.since_last()
    after, _ = spans.since_last()
    assert during["outer"] == 0
    assert during["inner" if "inner" in during else "outer/inner"] >= 2
    assert 0 <= after["outer"] < 2


def test_a_failure_leaves_the_spans_in_order() -> None:
    spans = Spans()
    with pytest.raises(RuntimeError), spans.span("a"), spans.span("b"):
        raise RuntimeError
    with spans.span("c"):
        pass
    assert [part["name"] for part in spans.as_dict()["parts"]] == ["a", "c"]


def test_tree_is_saved_whole(tmp_path: Path) -> None:
    spans = Spans()
    with spans.span("rollout"), spans.span("act"):
        burn(1)
    spans.save(tmp_path / "spans.json")
    saved = json.loads((tmp_path / "spans.json").read_text())
    assert saved["parts"][0]["parts"][0]["name"] == "act"
    assert [path.name for path in tmp_path.iterdir()] == ["spans.json"]


def test_off_measures_nothing() -> None:
    with OFF.span("a"), OFF.span("b"):
        pass
    assert OFF.since_last() == ({}, {})


def test_a_span_costs_microseconds() -> None:
    def cost(spans: Spans) -> float:
        seconds = []
        for _ in range(5):  # the fastest of several, as the machine may be busy
            start = time.perf_counter()
            for _ in range(2000):
                with spans.span("a"):
                    pass
            seconds.append(time.perf_counter() - start)
        return min(seconds) / 2000

    assert cost(Spans()) < 10e-6
    assert cost(OFF) < 3e-6
