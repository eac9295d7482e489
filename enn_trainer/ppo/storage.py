"""Where the frames of a rollout are kept: in little more than the bytes of their data.

Steps that are kept as they come and joined at the end take twice as much, and holes in memory
beside it. So they are only kept until they are worth writing, and then written behind each other,
one tensor a field. The frames of a small rollout are joined once, at the end.
"""

import math
from collections.abc import Mapping
from typing import NamedTuple

import torch
from torch import Tensor

from rogue_net.ragged import ActionBatch, EntityBatch, RaggedTensor
from rogue_net.rogue_net import NetOutput

_WORTH_WRITING = 4 * 2**20
"""Bytes of the steps that are kept until they are written."""
_SPARE = 9 / 8
"""Space that is made for a frame to come, in that of the mean frame so far."""

Field = tuple[str, str]


class Stored(NamedTuple):
    """Frames, and what a network said about them.

    Attributes:
        batch: the frames.
        actions: per action int64 (actors,) per frame, the choices.
        logprobs: per action float32 (actors,) per frame.
        entropies: per action float32 (actors,) per frame.
        values: (frames,) float32.
    """

    batch: EntityBatch
    actions: Mapping[str, RaggedTensor]
    logprobs: Mapping[str, RaggedTensor]
    entropies: Mapping[str, RaggedTensor]
    values: Tensor


class RolloutStorage:
    """Takes the frames of a rollout in their order.

    Args:
        num_frames: how many there will be.
    """

    def __init__(self, num_frames: int) -> None:
        self._num_frames = num_frames
        self._written = 0
        self._batches: list[EntityBatch] = []
        self._outs: list[NetOutput] = []
        self._bytes_of_one = 0
        self._num_draws: dict[str, int] = {}
        self._rows: dict[Field, _Rows] = {}
        self._lengths: dict[Field, _Rows] = {}

    def add(self, batch: EntityBatch, out: NetOutput) -> None:
        """Keep frames, in tensors that nobody changes, and what was said about them."""
        self._num_draws = {name: action.num_draws for name, action in batch.actions.items()}
        self._batches.append(batch)
        # Do not keep what is not stored.
        self._outs.append(out._replace(log_probs={}, attention=None, distributions={}))
        count = len(self._batches)
        if count & (count - 1) == 0:  # a power of two: often enough, they grow step by step
            self._bytes_of_one = _bytes_of(batch, out)
        if count * self._bytes_of_one >= _WORTH_WRITING:
            self._write()

    def take(self) -> Stored:
        """All that was kept."""
        if self._batches:
            self._write()
        fields = self._fields()
        types = [name for kind, name in fields if kind == "features"]
        names = [name for kind, name in fields if kind == "actors"]

        def said(what: str) -> dict[str, RaggedTensor]:
            return {
                name: RaggedTensor(self._rows[what, name].all(), fields["actors", name].lengths)
                for name in names
            }

        batch = EntityBatch(
            {name: fields["features", name] for name in types},
            {name: fields["visible", name] for name in types if ("visible", name) in fields},
            {
                name: ActionBatch(
                    fields["actors", name],
                    fields.get(("mask", name)),
                    fields.get(("actees", name)),
                    self._num_draws[name],
                )
                for name in names
            },
            self._written,
        )
        values = self._rows["values", ""].all()
        return Stored(batch, said("actions"), said("logprobs"), said("entropies"), values)

    def _fields(self) -> dict[Field, RaggedTensor]:
        """What was written of the frames."""
        return {
            field: RaggedTensor(self._rows[field].all(), lengths.all().numpy())
            for field, lengths in self._lengths.items()
        }

    def _write(self) -> None:
        """Write what is kept so far behind what was written."""
        batch = EntityBatch.cat(self._batches)
        outs = self._outs
        said = {("values", ""): torch.cat([out.values["value"].flatten() for out in outs])}
        for what in ("actions", "logprobs", "entropies"):
            for name in batch.actions:
                said[what, name] = torch.cat([getattr(out, what)[name] for out in outs])
        self._batches, self._outs = [], []
        fields, before = _fields(batch), self._fields() if self._written else {}
        if before:  # masks may be given in some steps only
            for field in [field for field in fields if field not in before]:
                self._add(field, _all_true(field, before, fields[field].values))
            for field in [field for field in before if field not in fields]:
                fields[field] = _all_true(field, fields, before[field].values)
        self._written += batch.num_frames
        for field, rows in fields.items():
            self._add(field, rows)
        for field, tensor in said.items():
            self._rows.setdefault(field, _Rows()).add(tensor, self._share())

    def _add(self, field: Field, rows: RaggedTensor) -> None:
        share = self._share()
        self._rows.setdefault(field, _Rows()).add(rows.values, share)
        self._lengths.setdefault(field, _Rows()).add(torch.from_numpy(rows.lengths), share)

    def _share(self) -> float:
        return self._written / self._num_frames


class _Rows:
    """The rows of one field, in one tensor that seldom grows."""

    def __init__(self) -> None:
        self._tensor: Tensor | None = None
        self._end = 0

    def add(self, rows: Tensor, share: float) -> None:
        """Add rows behind the others.

        Args:
            rows: which the caller does not keep.
            share: of all frames, those whose rows are here then.
        """
        end = self._end + len(rows)
        space = end + math.ceil(end * (1 / share - 1) * _SPARE)
        if self._tensor is None and space == len(rows):
            self._tensor, self._end = rows, end
            return
        if self._tensor is None or end > len(self._tensor):
            # Memory that nothing is written to is none, where the system gives it by the page.
            grown = rows.new_empty((space, *rows.shape[1:]))
            if self._tensor is not None:
                grown[: self._end] = self._tensor[: self._end]
            self._tensor = grown
        self._tensor[self._end : end] = rows
        self._end = end

    def all(self) -> Tensor:
        assert self._tensor is not None
        return self._tensor[: self._end]


def _fields(batch: EntityBatch) -> dict[Field, RaggedTensor]:
    """The parts of a batch, by what they are and of which type or action."""
    fields = {("features", name): rows for name, rows in batch.features.items()}
    fields |= {("visible", name): rows for name, rows in batch.visible.items()}
    for name, action in batch.actions.items():
        fields["actors", name] = action.actors
        if action.mask is not None:
            fields["mask", name] = action.mask
        if action.actees is not None:
            fields["actees", name] = action.actees
    return fields


def _bytes_of(batch: EntityBatch, out: NetOutput) -> int:
    kept = [rows.values for rows in _fields(batch).values()]
    return sum(rows.nbytes for rows in [*kept, *out.actions.values(), *out.values.values()])


def _all_true(field: Field, fields: Mapping[Field, RaggedTensor], like: Tensor) -> RaggedTensor:
    """The visibility or mask that frames have which were given none."""
    kind, name = field
    lengths = fields["features" if kind == "visible" else "actors", name].lengths
    if ("actees", name) in fields and kind == "mask":
        lengths = lengths * fields["actees", name].lengths
    return RaggedTensor(like.new_ones((int(lengths.sum()), *like.shape[1:])), lengths)
