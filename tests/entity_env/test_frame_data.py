"""`FrameData`: what a field is declared as is what becomes of it in other frames."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given
from hypothesis import strategies as st

from entity_env.frame_data import COUNT, DROPPED, SAME, FrameData, Path, rows_of
from entity_env.ragged import Ragged


class Coins:
    """Distributions of as many rows."""

    def __init__(self, heads: npt.NDArray[np.float64]) -> None:
        self.heads = heads

    def take(self, rows: npt.NDArray[np.int64]) -> "Coins":
        return Coins(self.heads[rows])

    def cat(self, pieces: list["Coins"]) -> "Coins":
        return Coins(np.concatenate([piece.heads for piece in pieces]))


@dataclass(frozen=True)
class Inner(FrameData):
    name: str = field(metadata=SAME)
    marks: npt.NDArray[np.int64]


@dataclass(frozen=True)
class Frames(FrameData):
    num_frames: int = field(metadata=COUNT)
    rows: Mapping[str, Ragged]
    seen: Mapping[str, Ragged] = field(default_factory=dict)
    inner: Inner | None = None
    inners: Mapping[str, Inner] = field(default_factory=dict)
    coins: Mapping[str, Coins] = field(default_factory=dict, metadata=rows_of("rows"))
    note: str = field(default="", metadata=DROPPED)
    title: str = field(default="", metadata=SAME)

    def missing(self, path: Path, like: Any) -> Any:
        if path[0] == "seen":
            rows = self.rows[path[1]]
            return Ragged(np.ones(len(rows.values), np.bool_), rows.lengths)
        return None if path[0] == "coins" else super().missing(path, like)


def frames_of(seed: int, num_frames: int, sees_all: bool = False) -> Frames:
    rng = np.random.default_rng(seed)
    lengths = rng.integers(0, 4, num_frames)
    total = int(lengths.sum())
    seen = {} if sees_all else {"unit": Ragged(rng.random(total) < 0.5, lengths)}
    return Frames(
        num_frames,
        {"unit": Ragged(rng.integers(0, 100, (total, 2)), lengths)},
        seen,
        Inner("one", rng.integers(0, 100, num_frames)),
        {"other": Inner("two", rng.integers(0, 100, num_frames))},
        {"unit": Coins(rng.random(total))},
        note="of these",
        title="of all",
    )


def listed(frames: Frames) -> list[dict[str, Any]]:
    """Return the content of each frame."""
    by_row = Ragged(np.arange(len(frames.rows["unit"].values)), frames.rows["unit"].lengths)
    assert frames.inner is not None
    assert frames.num_frames == len(by_row) == len(frames.inner.marks)
    return [
        {
            "rows": rows.tolist(),
            "seen": seen.tolist(),
            "marks": [frames.inner.marks[i], frames.inners["other"].marks[i]],
            "heads": frames.coins["unit"].heads[index].tolist() if frames.coins else None,
        }
        for i, (rows, seen, index) in enumerate(
            zip(
                frames.rows["unit"].of_frames(),
                frames.seen["unit"].of_frames(),
                by_row.of_frames(),
                strict=True,
            )
        )
    ]


@given(st.integers(0, 1000), st.integers(1, 6), st.data())
def test_take_selects_frames_in_order(seed: int, num_frames: int, data: Any) -> None:
    frames = frames_of(seed, num_frames)
    order = data.draw(st.lists(st.integers(0, num_frames - 1), max_size=8))
    taken = frames.take(np.array(order, np.int64))
    assert listed(taken) == [listed(frames)[i] for i in order]
    assert (taken.note, taken.title, taken.inner and taken.inner.name) == ("", "of all", "one")


@given(st.integers(0, 1000), st.lists(st.integers(0, 4), min_size=1, max_size=4), st.data())
def test_cat_concatenates_pieces_in_order(seed: int, sizes: list[int], data: Any) -> None:
    sees_all = [data.draw(st.booleans()) for _ in sizes]
    pieces = [frames_of(seed + i, n, sees_all[i]) for i, n in enumerate(sizes)]
    joined = Frames.cat(pieces)
    if all(sees_all):
        assert joined.seen == {}
        return
    whole = [
        piece
        if piece.seen
        else Frames(**{**vars(piece), "seen": {"unit": piece.missing(("seen", "unit"), None)}})
        for piece in pieces
    ]
    assert listed(joined) == [frame for piece in whole for frame in listed(piece)]
    assert (joined.note, joined.title) == ("", "of all")


@given(st.integers(0, 1000), st.integers(1, 6), st.data())
def test_slice_equals_take_of_the_same_frames(seed: int, num_frames: int, data: Any) -> None:
    frames = frames_of(seed, num_frames)
    start, stop = sorted(data.draw(st.integers(0, num_frames)) for _ in range(2))
    cut = frames.slice(slice(start, stop))
    assert cut.coins == {}  # there may be no views of them
    expected = [{**frame, "heads": None} for frame in listed(frames)[start:stop]]
    assert listed(cut) == expected


def test_map_changes_nested_leaves() -> None:
    frames = frames_of(1, 3)
    seen = []
    same = frames.map(lambda leaf: seen.append(leaf) or leaf)
    assert listed(same) == listed(frames)
    assert len(seen) == 4  # rows, seen, two marks


def test_cat_error_names_the_missing_leaf() -> None:
    one, other = frames_of(1, 2), frames_of(2, 2)
    without = Frames(**{**vars(other), "inner": None})
    with pytest.raises(ValueError, match=r"^inner: expected in all pieces or in none"):
        Frames.cat([one, without])
    without = Frames(**{**vars(other), "rows": {}, "coins": {}})
    with pytest.raises(ValueError, match=r"^rows.unit: expected in all pieces or in none"):
        Frames.cat([one, without])


def test_cat_drops_optional_entries_that_pieces_lack() -> None:
    one, other = frames_of(1, 2), frames_of(2, 2)
    joined = Frames.cat([one, Frames(**{**vars(other), "coins": {}})])
    assert joined.coins == {}


def test_undeclared_scalar_field_raises() -> None:
    @dataclass
    class Counted(FrameData):
        columns: int
        rows: Ragged

    with pytest.raises(TypeError, match=r"Counted\.columns: expected .*, got .*int"):
        Counted(3, Ragged(np.zeros(2), np.array([2]))).take(np.array([0]))
