"""Actions restricted to some of their actors and actees, and the distributions of all of them."""

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
class ActionSubset:
    """An action of B frames, restricted to some of its actors and actees.

    Attributes:
        action: the restricted action.
        whole: the action with all actors and actees.
        actors: (actors of `whole`,) bool, True for those of `action`.
        actees: (actees of `whole`,) bool, True for those of `action`; None if nothing is selected.
    """

    action: ActionBatch
    whole: ActionBatch
    actors: Bools
    actees: Bools | None

    def widened(self, log_probs: Tensor) -> Tensor:
        """Return the log-probabilities of all choices of all actors.

        Args:
            log_probs: (actors of `action`, its choices), padded as by heads.

        Returns:
            (actors, choices), -inf for choices that `action` does not have; actors that it does not
            have choose with equal probability among the allowed choices.
        """
        device = log_probs.device
        # Labels: the rows of the actors of `action`.
        if self.actees is None:
            num_choices = log_probs.shape[1]
            allowed = torch.ones(len(self.actors), num_choices, dtype=torch.bool, device=device)
            if self.whole.mask is not None:
                allowed = self.whole.mask.values
            wide = _equal(allowed, log_probs.dtype)
            wide[to_device(np.flatnonzero(self.actors), device)] = log_probs
            return wide
        # Entities: equal probabilities for all actors, and -inf for those of `action` ...
        pairs = _Pairs.of(self.whole)
        most = int(pairs.num_actees.max(initial=0))
        allowed = torch.zeros(len(self.actors) * most, dtype=torch.bool, device=device)
        of_pairs = to_device(pairs.actor * most + pairs.column, device)
        allowed[of_pairs] = True if self.whole.mask is None else self.whole.mask.values
        wide = _equal(allowed.view(len(self.actors), most), log_probs.dtype)
        wide[to_device(np.flatnonzero(self.actors), device)] = -math.inf
        # ... then the log-probabilities of each pair of an actor and an actee of `action`.
        left = self.actors[pairs.actor] & self.actees[pairs.actee]
        rank = np.cumsum(self.actors) - 1  # of each actor in `action`
        taken: Lengths = np.cumsum(self.actees) - self.actees  # actees of `action` before each one
        assert self.action.actees is not None
        begins = exclusive_cumsum(self.action.actees.lengths)[pairs.frame]
        narrow = rank[pairs.actor] * log_probs.shape[1] + taken[pairs.actee] - begins
        wide.view(-1)[of_pairs[to_device(np.flatnonzero(left), device)]] = log_probs.reshape(-1)[
            to_device(narrow[left], device)
        ]
        return wide


def restrict_action(action: ActionBatch, actors: Bools, actees: Bools | None) -> ActionSubset:
    """Return an action restricted to some of its actors and actees.

    Args:
        action: of B frames.
        actors: (actors,) bool, the actors to keep; of a select-entity action only those stay that
            can select one of `actees`.
        actees: (actees,) bool, the actees to keep; None if nothing is selected.
    """
    # Labels: the choices stay the same.
    if actees is None:
        kept = _rows(action.actors, actors)
        mask = None if action.mask is None else _rows(action.mask, actors)
        return ActionSubset(ActionBatch(kept, mask, None, action.num_draws), action, actors, None)
    assert action.actees is not None
    # Entities: actors that can select nothing more are left out too.
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
    return ActionSubset(left, action, actors, actees)


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
    """Return (actors, choices) log-probabilities, equal for everything allowed."""
    logits = torch.zeros(allowed.shape, dtype=dtype, device=allowed.device)
    return logits.masked_fill(~allowed, -math.inf).log_softmax(dim=-1)
