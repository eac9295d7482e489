"""Actions with some of the actors and actees, and the way back to all of them."""

import math
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from entity_env.ragged import exclusive_cumsum, row_indices
from rogue_net.ragged import ActionBatch, Lengths, RaggedTensor, to_device

Bools = npt.NDArray[np.bool_]


@dataclass(frozen=True)
class Narrowed:
    """An action of B frames, without some of its actors and actees.

    Attributes:
        action: what is left.
        whole: what it was.
        actors: (actors of `whole`,) bool, those that are left.
        actees: (actees of `whole`,) bool, those that are left; None if nobody is selected.
    """

    action: ActionBatch
    whole: ActionBatch
    actors: Bools
    actees: Bools | None

    def widened(self, log_probs: Tensor) -> Tensor:
        """Log-probabilities of all choices of all actors.

        Args:
            log_probs: (actors left, choices left), padded as heads do.

        Returns:
            (actors, choices), -inf for what is not left; actors that are not left themselves choose
            among what is allowed with equal probability.
        """
        device = log_probs.device
        if self.actees is None:
            num_choices = log_probs.shape[1]
            allowed = torch.ones(len(self.actors), num_choices, dtype=torch.bool, device=device)
            if self.whole.mask is not None:
                allowed = self.whole.mask.values
            wide = _equal(allowed, log_probs.dtype)
            wide[to_device(np.flatnonzero(self.actors), device)] = log_probs
            return wide
        pairs = _Pairs.of(self.whole)
        most = int(pairs.num_actees.max(initial=0))
        allowed = torch.zeros(len(self.actors) * most, dtype=torch.bool, device=device)
        of_pairs = to_device(pairs.actor * most + pairs.column, device)
        allowed[of_pairs] = True if self.whole.mask is None else self.whole.mask.values
        wide = _equal(allowed.view(len(self.actors), most), log_probs.dtype)
        wide[to_device(np.flatnonzero(self.actors), device)] = -math.inf
        left = self.actors[pairs.actor] & self.actees[pairs.actee]
        rank = np.cumsum(self.actors) - 1  # of the actors that are left
        taken: Lengths = np.cumsum(self.actees) - self.actees  # actees left before each one
        begins = exclusive_cumsum(self._actees_left())[pairs.frame]
        narrow = rank[pairs.actor] * log_probs.shape[1] + taken[pairs.actee] - begins
        wide.view(-1)[of_pairs[to_device(np.flatnonzero(left), device)]] = log_probs.reshape(-1)[
            to_device(narrow[left], device)
        ]
        return wide

    def _actees_left(self) -> Lengths:
        assert self.action.actees is not None
        return self.action.actees.lengths


def narrowed(action: ActionBatch, actors: Bools, actees: Bools | None) -> Narrowed:
    """An action without some of its actors and actees.

    Args:
        action: of B frames.
        actors: (actors,) bool, whom to keep; of select-entity those that can select one of
            `actees` stay.
        actees: (actees,) bool, whom to keep; None if nobody is selected.
    """
    if actees is None:
        kept = _rows(action.actors, actors)
        mask = None if action.mask is None else _rows(action.mask, actors)
        return Narrowed(ActionBatch(kept, mask, None, action.num_draws), action, actors, None)
    assert action.actees is not None
    pairs = _Pairs.of(action)
    possible = actees[pairs.actee]
    if action.mask is not None:
        possible &= action.mask.values.cpu().numpy()
    actors = actors & (np.bincount(pairs.actor, possible, minlength=len(actors)) > 0)
    left = ActionBatch(
        _rows(action.actors, actors),
        None
        if action.mask is None
        else _rows(action.mask, actors[pairs.actor] & actees[pairs.actee]),
        _rows(action.actees, actees),
        action.num_draws,
    )
    return Narrowed(left, action, actors, actees)


@dataclass(frozen=True)
class _Pairs:
    """Every actor with every actee of its frame, in the order of masks; (pairs,) int64 each."""

    actor: Lengths
    actee: Lengths
    frame: Lengths
    column: Lengths
    num_actees: Lengths  # (actors,)

    @staticmethod
    def of(action: ActionBatch) -> "_Pairs":
        assert action.actees is not None
        frame_of_actor = action.actors.frame_of_row()
        num_actees = action.actees.lengths[frame_of_actor]
        starts = exclusive_cumsum(action.actees.lengths)[frame_of_actor]
        return _Pairs(
            actor=np.repeat(np.arange(len(num_actees)), num_actees),
            actee=row_indices(starts, num_actees),
            frame=np.repeat(frame_of_actor, num_actees),
            column=row_indices(np.zeros_like(starts), num_actees),
            num_actees=num_actees,
        )


def _rows(rows: RaggedTensor, kept: Bools) -> RaggedTensor:
    frames = rows.frame_of_row()[kept]
    index = to_device(np.flatnonzero(kept), rows.values.device)
    return RaggedTensor(
        rows.values.index_select(0, index), np.bincount(frames, minlength=len(rows.lengths))
    )


def _equal(allowed: Tensor, dtype: torch.dtype) -> Tensor:
    """(actors, choices) log-probabilities, equal for all that is allowed."""
    logits = torch.zeros(allowed.shape, dtype=dtype, device=allowed.device)
    return logits.masked_fill(~allowed, -math.inf).log_softmax(dim=-1)
