import json
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from enn_trainer.runtime.spans import OFF, Spans
from tests.enn_trainer.tracking.builders import burn


def test_self_time_excludes_parts() -> None:
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


def test_one_name_in_two_parents_is_two_spans() -> None:
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


def test_since_last_counts_each_time_once() -> None:
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


def test_open_span_is_counted_when_it_closes() -> None:
    spans = Spans()
    with spans.span("outer"):
        with spans.span("inner"):
            burn(2)
        during, _ = spans.since_last()
    after, _ = spans.since_last()
    assert during["outer"] == 0
    assert during["inner" if "inner" in during else "outer/inner"] >= 2
    assert 0 <= after["outer"] < 2


def test_spans_are_closed_after_an_error() -> None:
    spans = Spans()
    with pytest.raises(RuntimeError), spans.span("a"), spans.span("b"):
        raise RuntimeError
    with spans.span("c"):
        pass
    assert [part["name"] for part in spans.as_dict()["parts"]] == ["a", "c"]


def test_spans_of_threads_are_children_of_the_open_span() -> None:
    """Times of threads add up, so that two that work for 20 ms are 40 core-milliseconds."""
    spans, both = Spans(), threading.Barrier(2)

    def piece() -> None:
        both.wait()
        with spans.span("forward"):
            time.sleep(0.02)
            with spans.span("attention"):
                time.sleep(0.01)

    with ThreadPoolExecutor(2) as pool, spans.span("update"):
        with spans.span("optimize"):
            for future in [pool.submit(piece) for _ in range(2)]:
                future.result()
            with spans.span("forward"):
                burn(1)
        with spans.span("step"):
            burn(1)
    (update,) = spans.as_dict()["parts"]
    optimize, step = update["parts"]
    (forward,) = optimize["parts"]
    (attention,) = forward["parts"]
    assert (forward["calls"], attention["calls"]) == (3, 2)
    assert 0.060 <= forward["in_threads_s"] <= forward["total_s"] - 0.001
    assert attention["in_threads_s"] == attention["total_s"] >= 0.020
    assert forward["self_s"] == pytest.approx(forward["total_s"] - attention["total_s"])
    assert "in_threads_s" not in optimize
    assert 0.030 <= optimize["total_s"] <= update["total_s"] - step["total_s"]
    own, whole = spans.since_last()
    assert own["update/optimize/forward"] == pytest.approx(1e3 * forward["self_s"])
    assert whole == {"update": pytest.approx(1e3 * update["total_s"])}


def test_spans_of_a_thread_are_closed_after_an_error() -> None:
    spans = Spans()

    def piece(fails: bool) -> None:
        with spans.span("piece"), spans.span("part"):
            if fails:
                raise RuntimeError

    with ThreadPoolExecutor(1) as pool, spans.span("update"):
        failed, went_on = (pool.submit(piece, fails) for fails in (True, False))
        with pytest.raises(RuntimeError):
            failed.result()
        went_on.result()
    (update,) = spans.as_dict()["parts"]
    (piece_span,) = update["parts"]
    assert [part["calls"] for part in piece_span["parts"]] == [2]


def test_run_may_continue_in_another_thread() -> None:
    spans = Spans()

    def update() -> None:
        with spans.span("update"), spans.span("act"):
            burn(1)

    for _ in range(2):
        thread = threading.Thread(target=update)
        thread.start()
        thread.join()
    update()
    (whole,) = spans.as_dict()["parts"]
    assert whole["calls"] == 3
    assert "in_threads_s" not in whole
    assert whole["total_s"] >= whole["parts"][0]["total_s"] >= 0.003


def test_counts_of_many_threads_are_not_lost() -> None:
    spans = Spans()

    def pieces() -> None:
        for i in range(500):
            with spans.span("piece"), spans.span(f"part {i}"):
                pass

    with ThreadPoolExecutor(4) as pool, spans.span("update"):
        for future in [pool.submit(pieces) for _ in range(4)]:
            future.result()
    (update,) = spans.as_dict()["parts"]
    (piece,) = update["parts"]
    assert piece["calls"] == 2000
    assert [part["calls"] for part in piece["parts"]] == [4] * 500


def test_tree_is_saved_whole(tmp_path: Path) -> None:
    spans = Spans()
    with spans.span("rollout"), spans.span("act"):
        burn(1)
    spans.save(tmp_path / "spans.json")
    saved = json.loads((tmp_path / "spans.json").read_text())
    assert saved["parts"][0]["parts"][0]["name"] == "act"
    assert [path.name for path in tmp_path.iterdir()] == ["spans.json"]


def test_disabled_spans_measure_nothing() -> None:
    with OFF.span("a"), OFF.span("b"):
        pass
    assert OFF.since_last() == ({}, {})


@pytest.mark.alone
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
    in_thread = Spans()
    with ThreadPoolExecutor(1) as pool, in_thread.span("update"):
        assert pool.submit(cost, in_thread).result() < 10e-6
