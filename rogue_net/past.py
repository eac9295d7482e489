"""`Past`: where each remembered row of a batch of frames was last, in index arrays.

Rows that remember are the frame itself and entities with an identity. An entity is known by its
environment, episode, type and number, so entities may come, go and change places.
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
"""Kind of the rows that stand for a frame; entities of the k-th remembering type have k + 1."""
NEW = -1
"""Source of a row that was not remembered."""


class MemoryRows(NamedTuple):
    """The R rows of a batch that remember, frame after frame.

    Attributes:
        lengths: (frames,) int64, the rows of each frame.
        rank: (R,) int64, the number of the entity among those of its type; 0 for a frame.
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


class Known(NamedTuple):
    """The C rows that are remembered before the first frame of each sequence.

    Attributes:
        sequence: (C,) int64, the sequence of each.
        kind: (C,) int64.
        number: (C,) int64.
        age: (C,) int64, the number of frames since it was shown, 0 if it was in the last one.
    """

    sequence: IntArray
    kind: IntArray
    number: IntArray
    age: IntArray


NOTHING_KNOWN = Known(*[np.zeros(0, np.int64)] * 4)


class Links(NamedTuple):
    """Links from rows of sequences to those they come from: R + i is row i of `Known`.

    Attributes:
        source: (R,) int64; `NEW` for rows that were not remembered.
        absent: int64 per frame, the rows that are remembered and not shown.
        left: (L,) int64, the rows that are remembered after the last frame of each sequence.
        known: what they are.
    """

    source: IntArray
    absent: Ragged
    left: IntArray
    known: Known


def link(
    rows: MemoryRows,
    sequence: IntArray,
    time: IntArray,
    begun: BoolArray,
    known: Known,
    keep_absent: int,
) -> Links:
    """Return where the rows of sequences of frames come from.

    Args:
        rows: of F frames.
        sequence: (F,) int64, the sequence of each frame.
        time: (F,) int64, 0, 1, ... in the sequence.
        begun: (F,) bool, True where an episode begins.
        known: what is remembered before the first frames.
        keep_absent: number of frames for which entities that are not shown are remembered.
    """
    num_frames, num_rows = len(sequence), len(rows.kind)
    num_sequences = int(max(sequence.max(initial=-1), known.sequence.max(initial=-1))) + 1
    # Frames by sequence and time; the episode of each in its sequence, and its last frame.
    order = np.lexsort((time, sequence))
    is_first = np.diff(sequence[order], prepend=-1) != 0
    counts = np.cumsum(begun[order])
    firsts = np.flatnonzero(is_first)
    before = np.repeat((counts - begun[order])[firsts], np.diff(np.append(firsts, num_frames)))
    episode = np.empty(num_frames, np.int64)
    episode[order] = counts - before
    last_episode = np.zeros(num_sequences, np.int64)
    last_episode[sequence[order]] = episode[order]
    length = np.bincount(sequence, minlength=num_sequences)
    frame_at = np.empty(num_frames, np.int64)  # by the first frame of the sequence plus time
    first_frame = exclusive_cumsum(length)
    frame_at[first_frame[sequence] + time] = np.arange(num_frames)

    # Rows with those that are known, which were last shown before time 0: by who it is, then time.
    frame = rows.frame
    who = [
        np.concatenate([sequence[frame], known.sequence]),
        np.concatenate([episode[frame], np.zeros(len(known.kind), np.int64)]),
        np.concatenate([rows.kind, known.kind]),
        np.concatenate([rows.number, known.number]),
    ]
    at = np.concatenate([time[frame], -1 - known.age])
    by_who = np.lexsort((at, *who[::-1]))
    same = np.ones(max(0, len(by_who) - 1), np.bool_)
    for one in who:
        same &= np.diff(one[by_who]) == 0
    same = np.concatenate([same, [False]])[: len(by_who)]  # as the next one

    # Sources: the row before, unless it was forgotten.
    source = np.full(num_rows + len(known.kind), NEW)
    pairs = np.flatnonzero(same)
    earlier, later = by_who[pairs], by_who[pairs + 1]
    is_kept = at[later] - at[earlier] - 1 <= keep_absent
    source[later[is_kept]] = earlier[is_kept]

    # Absent: from the frame after a row until it is shown again, forgotten, or the episode ends.
    of_sequence, of_episode = who[0][by_who], who[1][by_who]
    end = np.where(of_episode == last_episode[of_sequence], length[of_sequence], 0)
    ends_early = of_episode < last_episode[of_sequence]
    if ends_early.any():
        # The first time of the next episode.
        begins = np.full((num_sequences, int(last_episode.max(initial=0)) + 2), 0)
        at_begin = np.flatnonzero(begun)
        begins[sequence[at_begin], episode[at_begin]] = time[at_begin]
        end[ends_early] = begins[of_sequence[ends_early], of_episode[ends_early] + 1]
    of_time = at[by_who]
    until = np.minimum(end, of_time + 1 + keep_absent)
    until[pairs] = np.minimum(until[pairs], of_time[pairs + 1])
    since = np.maximum(of_time + 1, 0)
    is_entity = who[2][by_who] != FRAME
    spans = np.where(is_entity, np.maximum(until - since, 0), 0)
    absent_frame = frame_at[row_indices(first_frame[of_sequence] + since, spans)]
    absent_row = np.repeat(by_who, spans)
    by_frame = np.argsort(absent_frame, kind="stable")
    absent = Ragged(absent_row[by_frame], np.bincount(absent_frame, minlength=num_frames))

    # What is left: the last row of who is in the last episode, if it is not forgotten.
    is_left = ~same & (of_episode == last_episode[of_sequence])
    age = length[of_sequence] - 1 - of_time
    is_left &= age <= np.where(is_entity, keep_absent, 0)
    left = by_who[is_left]
    remembered = Known(who[0][left], who[2][left], who[3][left], age[is_left])
    return Links(source[:num_rows], absent, left, remembered)


@dataclass(frozen=True)
class Past:
    """Links from the R rows of a batch that remember to those they come from.

    It is taken and sliced with the batch, at whole sequences: the row that a row comes from has to
    stay in the batch.

    Attributes:
        rank: int64 (rows,) per frame, the number of the entity among those of its type.
        kind: int64 (rows,) per frame, `FRAME`, or 1 + the index of the type.
        source: int64 (rows,) per frame, the row of this batch where it was last; R + i for row i of
            `carried`; `NEW` where it was not remembered.
        absent: int64 per frame, likewise, those remembered and not shown.
        level: (frames,) int64, the number of each frame in its sequence.
        reward: (frames,) float32, of the step before; 0 as an episode begins.
        carried: (C, d_memory) float32, states from before this batch, without gradient.
        of_values: the same for a separate value network.
    """

    rank: Ragged
    kind: Ragged
    source: Ragged
    absent: Ragged
    level: IntArray
    reward: Float32Array
    carried: Tensor
    of_values: "Past | None" = None

    @staticmethod
    def of(
        rows: MemoryRows,
        links: Links,
        level: IntArray,
        reward: Float32Array,
        carried: Tensor,
    ) -> "Past":
        """Return the past of frames with these rows."""
        rank, kind, source = (Ragged(x, rows.lengths) for x in (rows.rank, rows.kind, links.source))
        return Past(rank, kind, source, links.absent, level, reward, carried)

    @cached_property
    def levels(self) -> list[IntArray]:
        """The rows of each level, in order."""
        of_rows = np.repeat(self.level, self.kind.lengths)
        order = np.argsort(of_rows, kind="stable")
        cuts = np.searchsorted(of_rows[order], np.arange(1, int(of_rows.max(initial=0)) + 1))
        return np.split(order, cuts)

    def select(self, selection: Selection) -> "Past":
        """Return the past of the selected frames, as `take` does."""
        return self.take(selection.frames)

    def slice(self, frames: slice) -> "Past":
        """Return the past of consecutive frames, as `take` does."""
        return self.take(np.arange(len(self.level))[frames])

    def take(self, frames: IntArray) -> "Past":
        """Return the past of the given frames, which are whole sequences."""
        num_rows, num_carried = len(self.source.values), len(self.carried)
        source, absent = self.source.take(frames), self.absent.take(frames)
        kept = row_indices(self.source.starts[frames], source.lengths)
        # The new place of each row and of each carried state, of those that are needed; that of new
        # ones, which have no place, is the last.
        place = np.full(num_rows + num_carried + 1, NEW)
        place[source.values] = place[absent.values] = 0
        carried = np.flatnonzero(place[num_rows:-1] != NEW)
        place[:num_rows] = NEW
        place[kept] = np.arange(len(kept))
        place[num_rows + carried] = len(kept) + np.arange(len(carried))
        place[NEW] = NEW

        def moved(sources: Ragged) -> Ragged:
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
            moved(source),
            moved(absent),
            self.level[frames],
            self.reward[frames],
            states,
            None if self.of_values is None else self.of_values.take(frames),
        )

    @staticmethod
    def cat(pieces: Sequence["Past"]) -> "Past":
        """Concatenate the frames of several pieces."""
        rows = [len(piece.source.values) for piece in pieces]
        carried = [len(piece.carried) for piece in pieces]
        first_rows, total = np.cumsum([0, *rows]).tolist(), sum(rows)
        first_carried = np.cumsum([0, *carried]).tolist()

        def moved(name: str) -> Ragged:
            joined = []
            for k, piece in enumerate(pieces):
                values = getattr(piece, name).values
                now = np.where(
                    values >= rows[k],
                    values - rows[k] + total + first_carried[k],
                    values + first_rows[k],
                )
                joined.append(np.where(values == NEW, NEW, now))
            lengths = [getattr(piece, name).lengths for piece in pieces]
            return Ragged(np.concatenate(joined), np.concatenate(lengths))

        return Past(
            Ragged.cat([piece.rank for piece in pieces]),
            Ragged.cat([piece.kind for piece in pieces]),
            moved("source"),
            moved("absent"),
            np.concatenate([piece.level for piece in pieces]),
            np.concatenate([piece.reward for piece in pieces]),
            _cat_states([piece.carried for piece in pieces]),
            None
            if pieces[0].of_values is None
            else Past.cat([piece.of_values for piece in pieces if piece.of_values is not None]),
        )


def _cat_states(pieces: Sequence[Tensor]) -> Tensor:
    """Concatenate states, of which those of nobody have no width."""
    some = [piece for piece in pieces if len(piece)]
    return torch.cat(some) if some else pieces[0]
