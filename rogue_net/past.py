"""`Past`: the source of the recurrent state of each row of a batch, in index arrays.

Recurrent rows are the frame itself and entities with an identity. An entity is identified by its
environment, episode, type and number, so entities may appear, disappear and change their order.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from entity_env.arrays import BoolArray, Float32Array, IntArray
from entity_env.ragged import Ragged, Selection, exclusive_cumsum, row_indices

FRAME = 0
"""Kind of the rows that stand for a frame; entities of the k-th recurrent type have k + 1."""
NEW = -1
"""Source of a row without earlier state."""


class MemoryRows(NamedTuple):
    """The R recurrent rows of a batch, frame after frame.

    Attributes:
        lengths: (frames,) int64, the rows of each frame.
        rank: (R,) int64, the index of the entity among the entities of its type; 0 for a frame.
        kind: (R,) int64, `FRAME`, or 1 + the index of the type.
        number: (R,) int64, of `VecObs.identity`; 0 for a frame.
    """

    lengths: IntArray
    rank: IntArray
    kind: IntArray
    number: IntArray

    @property
    def frame(self) -> IntArray:
        """(R,) int64, the frame of each row."""
        return np.repeat(np.arange(len(self.lengths)), self.lengths)


class RowKeys(NamedTuple):
    """Keys of the C states carried over into the first frame of each sequence.

    Attributes:
        sequence: (C,) int64, the sequence of each.
        kind: (C,) int64, as in `MemoryRows`.
        number: (C,) int64, as in `MemoryRows`.
        age: (C,) int64, the number of frames since it was observed, 0 if it was in the last one.
    """

    sequence: IntArray
    kind: IntArray
    number: IntArray
    age: IntArray


NO_KEYS = RowKeys(*[np.zeros(0, np.int64)] * 4)


class RowLinks(NamedTuple):
    """Links from the rows of sequences to their previous rows; R + i is row i of the `RowKeys`.

    Attributes:
        source: (R,) int64, the previous row of each row; `NEW` without one.
        absent: int64 per frame, the last rows of entities that are retained but not observed.
        final: (L,) int64, the rows to carry over after the last frame of each sequence.
        final_keys: the keys of these.
    """

    source: IntArray
    absent: Ragged
    final: IntArray
    final_keys: RowKeys


def link_rows(
    rows: MemoryRows,
    sequence: IntArray,
    time: IntArray,
    is_first: BoolArray,
    keys: RowKeys,
    keep_absent: int,
) -> RowLinks:
    """Link the rows of sequences of frames to their previous rows.

    Args:
        rows: of F frames.
        sequence: (F,) int64, the sequence of each frame.
        time: (F,) int64, 0, 1, ... in the sequence.
        is_first: (F,) bool, True where an episode begins.
        keys: the rows carried over into the first frames.
        keep_absent: number of frames for which entities that are not observed are retained.
    """
    num_frames, num_rows = len(sequence), len(rows.kind)
    num_sequences = int(max(sequence.max(initial=-1), keys.sequence.max(initial=-1))) + 1
    # Frames by sequence and time; the episode of each in its sequence, and its last frame.
    order = np.lexsort((time, sequence))
    starts_sequence = np.diff(sequence[order], prepend=-1) != 0
    counts = np.cumsum(is_first[order])
    firsts = np.flatnonzero(starts_sequence)
    offset = np.repeat((counts - is_first[order])[firsts], np.diff(np.append(firsts, num_frames)))
    episode = np.empty(num_frames, np.int64)
    episode[order] = counts - offset
    last_episode = np.zeros(num_sequences, np.int64)
    last_episode[sequence[order]] = episode[order]
    length = np.bincount(sequence, minlength=num_sequences)
    frame_at = np.empty(num_frames, np.int64)  # by the first frame of the sequence plus time
    first_frame = exclusive_cumsum(length)
    frame_at[first_frame[sequence] + time] = np.arange(num_frames)

    # All R + C rows, sorted by key, then time; rows carried over have times below 0.
    frame = rows.frame
    columns = [
        np.concatenate([sequence[frame], keys.sequence]),
        np.concatenate([episode[frame], np.zeros(len(keys.kind), np.int64)]),
        np.concatenate([rows.kind, keys.kind]),
        np.concatenate([rows.number, keys.number]),
    ]
    times = np.concatenate([time[frame], -1 - keys.age])
    by_key = np.lexsort((times, *columns[::-1]))
    is_same = np.ones(max(0, len(by_key) - 1), np.bool_)
    for column in columns:
        is_same &= np.diff(column[by_key]) == 0
    is_same = np.concatenate([is_same, [False]])[: len(by_key)]  # key of row k == key of row k + 1

    # Sources: the previous row of the same key, unless it is too old.
    source = np.full(num_rows + len(keys.kind), NEW)
    pairs = np.flatnonzero(is_same)
    earlier, later = by_key[pairs], by_key[pairs + 1]
    is_recalled = times[later] - times[earlier] - 1 <= keep_absent
    source[later[is_recalled]] = earlier[is_recalled]

    # Absent: from the frame after a row until its next row, `keep_absent`, or the episode's end.
    row_sequence, row_episode = columns[0][by_key], columns[1][by_key]
    end = np.where(row_episode == last_episode[row_sequence], length[row_sequence], 0)
    ends_early = row_episode < last_episode[row_sequence]
    if ends_early.any():
        # The first time of the next episode.
        begins = np.full((num_sequences, int(last_episode.max(initial=0)) + 2), 0)
        at_begin = np.flatnonzero(is_first)
        begins[sequence[at_begin], episode[at_begin]] = time[at_begin]
        end[ends_early] = begins[row_sequence[ends_early], row_episode[ends_early] + 1]
    row_time = times[by_key]
    until = np.minimum(end, row_time + 1 + keep_absent)
    until[pairs] = np.minimum(until[pairs], row_time[pairs + 1])
    since = np.maximum(row_time + 1, 0)
    is_entity = columns[2][by_key] != FRAME
    spans = np.where(is_entity, np.maximum(until - since, 0), 0)
    absent_frame = frame_at[row_indices(first_frame[row_sequence] + since, spans)]
    absent_row = np.repeat(by_key, spans)
    by_frame = np.argsort(absent_frame, kind="stable")
    absent = Ragged(absent_row[by_frame], np.bincount(absent_frame, minlength=num_frames))

    # Final: the last row of each key in the last episode, unless it is too old.
    is_final = ~is_same & (row_episode == last_episode[row_sequence])
    age = length[row_sequence] - 1 - row_time
    is_final &= age <= np.where(is_entity, keep_absent, 0)
    final = by_key[is_final]
    final_keys = RowKeys(columns[0][final], columns[2][final], columns[3][final], age[is_final])
    return RowLinks(source[:num_rows], absent, final, final_keys)


def link_single_frames(
    rows: MemoryRows, is_first: BoolArray, keys: RowKeys, keep_absent: int
) -> RowLinks:
    """Link the rows of frames to the rows carried over; frame i is the only one of sequence i.

    Equal to `link_rows`, in half of its time.

    Args:
        rows: of F frames.
        is_first: (F,) bool, True where an episode begins.
        keys: the rows carried over into the frames.
        keep_absent: number of frames for which entities that are not observed are retained.
    """
    num_rows, carried = len(rows.kind), np.flatnonzero(~is_first[keys.sequence])
    pairs = [
        (rows.frame, keys.sequence),
        (rows.kind, keys.kind),
        (rows.number, keys.number),
        (np.zeros(num_rows, np.int64), keys.age + 1),
    ]
    columns = [np.concatenate([observed, key[carried]]) for observed, key in pairs]
    row = np.concatenate([np.arange(num_rows), num_rows + carried])
    # By key, with the observed row of an entity after the one carried over.
    order = np.lexsort((-columns[3], *columns[2::-1]))
    row, (sequence, kind, number, age) = row[order], (column[order] for column in columns)
    is_same = np.zeros(len(row), np.bool_)  # row k has the key of row k + 1
    is_same[:-1] = np.all([x[1:] == x[:-1] for x in (sequence, kind, number)], axis=0)
    earlier = np.flatnonzero(is_same)
    source = np.full(num_rows, NEW)
    source[row[earlier + 1]] = np.where(age[earlier] <= keep_absent + 1, row[earlier], NEW)
    is_final = ~is_same & ((age == 0) | ((kind != FRAME) & (age <= keep_absent)))
    is_absent = is_final & (age > 0)
    absent = Ragged(row[is_absent], np.bincount(sequence[is_absent], minlength=len(is_first)))
    keys = RowKeys(*(column[is_final] for column in (sequence, kind, number, age)))
    return RowLinks(source, absent, row[is_final], keys)


@dataclass(frozen=True)
class Past:
    """Links from the R recurrent rows of a batch to their previous rows.

    Index and slice it with the batch, by whole sequences: the source of a row has to stay in the
    batch.

    Attributes:
        rank: int64 (rows,) per frame, the index of the entity among the entities of its type.
        kind: int64 (rows,) per frame, `FRAME`, or 1 + the index of the type.
        source: int64 (rows,) per frame, the previous row in this batch; R + i for row i of
            `carried`; `NEW` without a previous row.
        absent: int64 per frame, likewise, of entities that are retained but not observed.
        level: (frames,) int64, the index of each frame in its sequence.
        reward: (frames,) float32, of the previous step; 0 in the first frame of an episode.
        carried: (C, d_memory) float32, states from before this batch, detached.
        value_past: the same for a separate value network.
    """

    rank: Ragged
    kind: Ragged
    source: Ragged
    absent: Ragged
    level: IntArray
    reward: Float32Array
    carried: Tensor
    value_past: "Past | None" = None

    @staticmethod
    def of(
        rows: MemoryRows,
        links: RowLinks,
        level: IntArray,
        reward: Float32Array,
        carried: Tensor,
    ) -> "Past":
        """Combine rows, links and carried states."""
        rank, kind, source = (Ragged(x, rows.lengths) for x in (rows.rank, rows.kind, links.source))
        return Past(rank, kind, source, links.absent, level, reward, carried)

    @cached_property
    def levels(self) -> list[IntArray]:
        """The rows of each level, in order."""
        row_level = np.repeat(self.level, self.kind.lengths)
        order = np.argsort(row_level, kind="stable")
        cuts = np.searchsorted(row_level[order], np.arange(1, int(row_level.max(initial=0)) + 1))
        return np.split(order, cuts)

    def select(self, selection: Selection) -> "Past":
        """Return the past of the selected frames, as `take` does."""
        return self.take(selection.frames)

    def slice(self, frames: slice) -> "Past":
        """Return the past of consecutive frames, as `take` does."""
        return self.take(np.arange(len(self.level))[frames])

    def take(self, frames: IntArray) -> "Past":
        """Select frames, which must be whole sequences.

        Raises:
            ValueError: the source of a row is not among the frames.
        """
        num_rows, num_carried = len(self.source.values), len(self.carried)
        source, absent = self.source.take(frames), self.absent.take(frames)
        rows = row_indices(self.source.starts[frames], source.lengths)
        # New index of each row and of each carried state that is used; the last entry is for `NEW`.
        place = np.full(num_rows + num_carried + 1, NEW)
        place[source.values] = place[absent.values] = 0
        carried = np.flatnonzero(place[num_rows:-1] != NEW)
        place[:num_rows] = NEW
        place[rows] = np.arange(len(rows))
        place[num_rows + carried] = len(rows) + np.arange(len(carried))
        place[NEW] = NEW

        def reindexed(sources: Ragged) -> Ragged:
            values = place[sources.values]
            if ((values == NEW) & (sources.values != NEW)).any():
                raise ValueError("frames: expected whole sequences, got a part of one")
            return Ragged(values, sources.lengths)

        states = self.carried
        if len(carried) < num_carried:
            states = states.index_select(0, torch.from_numpy(carried).to(states.device))
        return Past(
            self.rank.take(frames),
            self.kind.take(frames),
            reindexed(source),
            reindexed(absent),
            self.level[frames],
            self.reward[frames],
            states,
            None if self.value_past is None else self.value_past.take(frames),
        )

    @staticmethod
    def cat(pieces: Sequence["Past"]) -> "Past":
        """Concatenate frames along the batch."""
        rows = [len(piece.source.values) for piece in pieces]
        carried = [len(piece.carried) for piece in pieces]
        first_rows, total = np.cumsum([0, *rows]).tolist(), sum(rows)
        first_carried = np.cumsum([0, *carried]).tolist()

        def shifted(name: str) -> Ragged:
            all_values = []
            for k, piece in enumerate(pieces):
                values = getattr(piece, name).values
                new_values = np.where(
                    values >= rows[k],
                    values - rows[k] + total + first_carried[k],
                    values + first_rows[k],
                )
                all_values.append(np.where(values == NEW, NEW, new_values))
            lengths = [getattr(piece, name).lengths for piece in pieces]
            return Ragged(np.concatenate(all_values), np.concatenate(lengths))

        return Past(
            Ragged.cat([piece.rank for piece in pieces]),
            Ragged.cat([piece.kind for piece in pieces]),
            shifted("source"),
            shifted("absent"),
            np.concatenate([piece.level for piece in pieces]),
            np.concatenate([piece.reward for piece in pieces]),
            _cat_states([piece.carried for piece in pieces]),
            None
            if pieces[0].value_past is None
            else Past.cat([piece.value_past for piece in pieces if piece.value_past is not None]),
        )


def _cat_states(pieces: Sequence[Tensor]) -> Tensor:
    """Concatenate states; tensors without rows may differ in width and are left out."""
    nonempty = [piece for piece in pieces if len(piece)]
    return torch.cat(nonempty) if nonempty else pieces[0]
