"""How far a network is from what was done in recorded frames."""

import math

import numpy as np
import torch
from torch import Tensor

from enn_trainer.cloning.demonstrations import Demonstrations
from enn_trainer.imitation_config import ImitationLoss
from entity_env.ragged import row_indices
from rogue_net.ragged import ActionBatch, to_device
from rogue_net.rogue_net import NetOutput


def imitation_losses(
    out: NetOutput, shown: Demonstrations, loss: ImitationLoss
) -> dict[str, Tensor]:
    """The loss of each actor.

    Args:
        out: what the network says about the frames, judging the choices of these.
        shown: the frames.
        loss: `cross_entropy` of the choices, or `kl` from the recorded probabilities.

    Returns:
        Per action (actors,) float.
    """
    if loss == "cross_entropy":
        return {name: -out.logprobs[name] for name in shown.actions}
    return {
        name: kl_from_teacher(
            padded(rows.values, shown.batch.actions[name], out.log_probs[name]), out.log_probs[name]
        )
        for name, rows in shown.teacher.items()
    }


def kl_from_teacher(logits: Tensor, log_probs: Tensor) -> Tensor:
    """KL(teacher, network), where what is not possible adds nothing.

    Args:
        logits: (actors, choices) float, of the teacher; -inf where a choice is not possible.
        log_probs: (actors, choices) float, of the network; -inf where a choice is not allowed,
            which the logits need not know.

    Returns:
        (actors,) float.
    """
    teacher = logits.masked_fill(log_probs == -math.inf, -math.inf).log_softmax(dim=-1)
    # Infinities are left out before the difference, whose gradient they would spoil.
    impossible = teacher == -math.inf
    difference = teacher.masked_fill(impossible, 0.0) - log_probs.masked_fill(impossible, 0.0)
    return (teacher.exp() * difference).sum(dim=-1)


def padded(rows: Tensor, action: ActionBatch, like: Tensor) -> Tensor:
    """What is said of all choices, one actor after the other, as (actors, most choices).

    Args:
        rows: (sum of the choices of all actors,) float.
        action: the actors, and the actees if these are the choices.
        like: what the network says, of the shape to fill; -inf where there is no such actee.
    """
    if action.actees is None:
        return rows.view_as(like)
    per_actor = np.repeat(action.actees.lengths, action.actors.lengths)
    starts = like.shape[1] * np.arange(len(per_actor))
    table = torch.full((like.numel(),), -math.inf, dtype=rows.dtype, device=rows.device)
    return table.index_copy(
        0, to_device(row_indices(starts, per_actor), rows.device), rows
    ).view_as(like)
