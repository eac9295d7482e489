"""Memory-efficient storage of the frames of a rollout.

A list of steps that is concatenated at the end needs twice the memory, and fragments it. So steps
are buffered up to a few megabytes and then appended to one growing tensor per field. A small
rollout is concatenated once, at the end.
"""

import math
from collections.abc import Mapping

import torch
from torch import Tensor

from enn_trainer.experience.players import Decisions
from rogue_net.ragged import ActionBatch, EntityBatch, RaggedTensor

_WORTH_WRITING = 4 * 2**20
"""Bytes of buffered steps at which these are written."""
_SPARE = 9 / 8
"""Memory reserved for each frame to come, relative to the mean frame so far."""

Field = tuple[str, str]


class RolloutStorage:
    """Storage that takes the frames of a rollout in their order.

    Args:
        num_frames: number of frames of the whole rollout.
    """

    def __init__(self, num_frames: int) -> None:
        self._num_frames = num_frames
        self._written = 0
        self._batches: list[EntityBatch] = []
        self._decisions: list[Decisions] = []
        self._bytes_of_one = 0
        self._num_draws: dict[str, int] = {}
        self._rows: dict[Field, _Rows] = {}
        self._lengths: dict[Field, _Rows] = {}

    def add(self, batch: EntityBatch, decisions: Decisions) -> None:
        """Add frames and the decisions in them; the tensors must not be changed afterwards."""
        self._num_draws = {name: action.num_draws for name, action in batch.actions.items()}
        self._batches.append(batch)
        # Drop the distributions, which are not stored, to free their memory.
        self._decisions.append(decisions._replace(distributions={}))
        count = len(self._batches)
        if count & (count - 1) == 0:  # at powers of two, as the size of steps changes slowly
            self._bytes_of_one = _bytes_of(batch, decisions)
        if count * self._bytes_of_one >= _WORTH_WRITING:
            self._write()

    def take(self) -> tuple[EntityBatch, Decisions]:
        """Return all frames, and the decisions in them."""
        # Write the rest, and look up the fields.
        if self._batches:
            self._write()
        fields = self._fields()
        types = [name for kind, name in fields if kind == "features"]
        names = [name for kind, name in fields if kind == "actors"]

        def of_actions(what: str) -> dict[str, RaggedTensor]:
            return {
                name: RaggedTensor(self._rows[what, name].all(), fields["actors", name].lengths)
                for name in names
            }

        # Build the batch from its fields.
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
        kept = (of_actions("chosen"), of_actions("logprobs"), of_actions("entropies"))
        return batch, Decisions(*kept, self._rows["values", ""].all())

    def _fields(self) -> dict[Field, RaggedTensor]:
        """Return the fields of the frames that were written."""
        return {
            field: RaggedTensor(self._rows[field].all(), lengths.all().numpy())
            for field, lengths in self._lengths.items()
        }

    def _write(self) -> None:
        """Append the buffered steps to what was written."""
        # Concatenate the buffer.
        batch, decisions = EntityBatch.cat(self._batches), Decisions.cat(self._decisions)
        outputs = {("values", ""): decisions.values}
        for what in ("chosen", "logprobs", "entropies"):
            for name in batch.actions:
                outputs[what, name] = getattr(decisions, what)[name].values
        self._batches, self._decisions = [], []
        fields, before = _fields(batch), self._fields() if self._written else {}
        if before:  # masks may be missing in some steps: fill in
            for field in [field for field in fields if field not in before]:
                self._add(field, _all_true(field, before, fields[field].values))
            for field in [field for field in before if field not in fields]:
                fields[field] = _all_true(field, fields, before[field].values)

        # Append.
        self._written += batch.num_frames
        for field, rows in fields.items():
            self._add(field, rows)
        for field, tensor in outputs.items():
            self._rows.setdefault(field, _Rows()).add(tensor, self._share())

    def _add(self, field: Field, rows: RaggedTensor) -> None:
        share = self._share()
        self._rows.setdefault(field, _Rows()).add(rows.values, share)
        self._lengths.setdefault(field, _Rows()).add(torch.from_numpy(rows.lengths), share)

    def _share(self) -> float:
        return self._written / self._num_frames


class _Rows:
    """Rows of one field, in one tensor that seldom grows."""

    def __init__(self) -> None:
        self._tensor: Tensor | None = None
        self._end = 0

    def add(self, rows: Tensor, share: float) -> None:
        """Append rows.

        Args:
            rows: rows, which the caller must not change afterwards.
            share: share of all frames whose rows are stored after this call.
        """
        # Expected number of rows in the end, with some reserve.
        end = self._end + len(rows)
        space = end + math.ceil(end * (1 / share - 1) * _SPARE)
        if self._tensor is None and space == len(rows):
            self._tensor, self._end = rows, end
            return
        if self._tensor is None or end > len(self._tensor):
            # Memory that is never written to costs nothing, as the system allocates by page.
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
    """Return the parts of a batch by (kind, name of the entity type or action)."""
    fields = {("features", name): rows for name, rows in batch.features.items()}
    fields |= {("visible", name): rows for name, rows in batch.visible.items()}
    for name, action in batch.actions.items():
        fields["actors", name] = action.actors
        if action.mask is not None:
            fields["mask", name] = action.mask
        if action.actees is not None:
            fields["actees", name] = action.actees
    return fields


def _bytes_of(batch: EntityBatch, decisions: Decisions) -> int:
    kept = [*_fields(batch).values(), *decisions.chosen.values()]
    return sum(rows.values.nbytes for rows in kept) + decisions.values.nbytes


def _all_true(field: Field, fields: Mapping[Field, RaggedTensor], like: Tensor) -> RaggedTensor:
    """Return the visibility or mask of frames that came without one: all true."""
    kind, name = field
    lengths = fields["features" if kind == "visible" else "actors", name].lengths
    if ("actees", name) in fields and kind == "mask":
        lengths = lengths * fields["actees", name].lengths
    return RaggedTensor(like.new_ones((int(lengths.sum()), *like.shape[1:])), lengths)
