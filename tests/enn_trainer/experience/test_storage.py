"""What a rollout is kept in: the same as joining its steps, in less memory."""

import json
import subprocess
import sys
from pathlib import Path
from unittest import mock

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from enn_trainer.experience import collector as storage
from enn_trainer.experience.collector import RolloutStorage
from enn_trainer.experience.players import Decisions
from rogue_net.ragged import ActionBatch, EntityBatch, RaggedTensor

ROOT = Path(__file__).parents[3]


def random_frames(seed: int, num_frames: int, columns: int) -> EntityBatch:
    """Frames with some of everything, in which masks and visibility are there or are not."""
    rng = np.random.default_rng(seed)

    def ragged(lengths: np.ndarray, *shape: int) -> RaggedTensor:
        rows = rng.integers(0, 2, (int(lengths.sum()), *shape))
        return RaggedTensor(torch.from_numpy(rows), lengths)

    def flags(lengths: np.ndarray, *shape: int) -> RaggedTensor | None:
        rows = ragged(lengths, *shape)
        return RaggedTensor(rows.values.bool(), lengths) if rng.random() < 0.5 else None

    some = [rng.integers(0, 4, num_frames) for _ in range(6)]
    visible = {name: flags(some[i]) for i, name in enumerate("ab")}
    return EntityBatch(
        {"a": ragged(some[0], columns), "b": ragged(some[1], 1), "c": ragged(some[2], 0)},
        {name: rows for name, rows in visible.items() if rows is not None},
        {
            "move": ActionBatch(ragged(some[3]), flags(some[3], 3)),
            "pick": ActionBatch(ragged(some[4]), flags(some[4] * some[5]), ragged(some[5])),
        },
        num_frames,
        kinds={"a": RaggedTensor(ragged(some[0], 2).values.byte(), some[0])},
    )


def said_about(batch: EntityBatch, seed: int) -> Decisions:
    torch.manual_seed(seed)
    lengths = {name: action.actors.lengths for name, action in batch.actions.items()}

    def rows_of(n: np.ndarray) -> RaggedTensor:
        return RaggedTensor(torch.rand(int(n.sum())), n)

    return Decisions(
        chosen={n: RaggedTensor(torch.randint(9, (int(k.sum()),)), k) for n, k in lengths.items()},
        logprobs={name: rows_of(n) for name, n in lengths.items()},
        entropies={name: rows_of(n) for name, n in lengths.items()},
        values=torch.rand(batch.num_frames),
    )


def assert_equal(one: RaggedTensor, other: RaggedTensor) -> None:
    assert torch.equal(one.values, other.values)
    assert one.values.dtype == other.values.dtype
    assert np.array_equal(one.lengths, other.lengths)


@pytest.mark.slow
@given(
    sizes=st.lists(st.integers(1, 5), min_size=1, max_size=6),
    seed=st.integers(0, 1000),
    worth_writing=st.sampled_from([1, 500, 2000, 10**6]),
)
def test_storage_equals_concatenation(sizes: list[int], seed: int, worth_writing: int) -> None:
    """However often they are written, and whichever steps have masks."""
    batches = [random_frames(seed + i, size, columns=2) for i, size in enumerate(sizes)]
    said = [said_about(batch, seed + i) for i, batch in enumerate(batches)]
    kept = RolloutStorage(sum(sizes))
    with mock.patch.object(storage, "_MIN_WRITE_BYTES", worth_writing):
        for batch, out in zip(batches, said, strict=True):
            kept.add(batch, out)
    (batch, decisions), expected = kept.take(), EntityBatch.cat(batches)
    assert batch.num_frames == sum(sizes)
    for what in ("features", "visible", "kinds"):
        assert [*getattr(batch, what)] == [*getattr(expected, what)]
        for name, rows in getattr(expected, what).items():
            assert_equal(getattr(batch, what)[name], rows)
    assert [*batch.actions] == [*expected.actions]
    for name, action in expected.actions.items():
        for what in ("actors", "mask", "actees"):
            one, other = getattr(batch.actions[name], what), getattr(action, what)
            assert (one is None) == (other is None)
            if one is not None:
                assert_equal(one, other)
        for what in ("chosen", "logprobs", "entropies"):
            rows = torch.cat([getattr(out, what)[name].values for out in said])
            assert_equal(getattr(decisions, what)[name], RaggedTensor(rows, action.actors.lengths))
    assert torch.equal(decisions.values, torch.cat([out.values for out in said]))


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="says what is in memory")
def test_storage_takes_less_than_twice_the_data() -> None:
    """Also while it is collected. Joined at its end, this one took 3.8 times its data."""
    what = {"num_envs": 512, "num_units": 64, "num_entities": 3_000_000}
    script = [str(ROOT / "benchmarks/scaling_measure.py"), json.dumps(["memory", what])]
    done = subprocess.run([sys.executable, *script], capture_output=True, text=True, check=True)
    found = json.loads(done.stdout)
    assert found["data_mb"] > 50
    assert found["data_mb"] * 0.5 < found["peak_mb"] < found["data_mb"] * 2


def test_growing_frames_are_rarely_reallocated() -> None:
    """The space for what is to come follows from what came."""
    frames = [RaggedTensor(torch.full((t,), t), np.array([t])) for t in range(1, 101)]
    rows = storage._GrowingTensor(frames[0], 100)
    moved = [rows.all().values.data_ptr()]
    for frame in frames[1:]:
        rows.append(frame)
        moved.append(rows.all().values.data_ptr())
    assert rows.all().values.tolist() == [t for t in range(1, 101) for _ in range(t)]
    assert len(set(moved)) < 12


def test_frames_of_one_size_are_never_reallocated() -> None:
    frame = RaggedTensor(torch.zeros(7), np.array([7]))
    rows = storage._GrowingTensor(frame, 50)
    places = [rows.all().values.data_ptr()]
    for _ in range(49):
        rows.append(frame)
        places.append(rows.all().values.data_ptr())
    assert len(set(places)) == 1
