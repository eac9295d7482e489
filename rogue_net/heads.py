"""Action heads: from embedded entities to log-probabilities of all choices of each actor."""

import math

import numpy as np
import torch
from torch import Tensor, nn

from entity_env.ragged import row_indices
from rogue_net.layout import Layout
from rogue_net.native.network import Choice
from rogue_net.ragged import ActionBatch, Lengths, RaggedTensor, to_device


class CategoricalHead(nn.Module):
    """One of several labelled choices for each actor, or for the global entity."""

    def __init__(self, d_model: int, num_choices: int) -> None:
        super().__init__()
        self.project = nn.Linear(d_model, num_choices)
        nn.init.orthogonal_(self.project.weight, gain=0.01)
        nn.init.zeros_(self.project.bias)

    def forward(self, x: Tensor, layout: Layout, action: ActionBatch) -> Tensor:
        """(P, d_model) -> (actors, choices), log-probabilities; -inf where not allowed."""
        logits = full_precision(self.project(_entities(x, layout, action.actors)))
        if action.mask is not None:
            logits = logits.masked_fill(~action.mask.values, -math.inf)
        return logits.log_softmax(dim=-1)

    def compiled(
        self, layout: Layout, action: ActionBatch, given: Tensor | None, uniforms: Tensor | None
    ) -> Choice:
        """The head as compiled functions take it.

        Raises:
            ValueError: of the mask, or of what is given, there is another number than of actors.
        """
        num_actors = len(action.actors.values)
        mask = None if action.mask is None else action.mask.values.bool().contiguous()
        expected = {
            "mask": (mask, (num_actors, len(self.project.bias))),
            "actions": (given, (num_actors,)),
            "uniforms": (uniforms, (num_actors,)),
        }
        for name, (x, shape) in expected.items():
            if x is not None and x.shape != shape:
                raise ValueError(f"{name}: expected shape {shape}, got {tuple(x.shape)}")
        return Choice(
            rows=layout.rows(action.actors.values, action.actors.frame_of_row()).contiguous(),
            mask=mask,
            given=None if given is None else given.to(torch.int64).contiguous(),
            uniforms=None if uniforms is None else uniforms.float().contiguous(),
        )


class SelectEntityHead(nn.Module):
    """One of the frame's actees for each actor, by the product of a query and a key."""

    def __init__(self, d_model: int, d_qk: int) -> None:
        super().__init__()
        self.query = nn.Linear(d_model, d_qk)
        self.key = nn.Linear(d_model, d_qk)

    def forward(self, x: Tensor, layout: Layout, action: ActionBatch) -> Tensor:
        """Score the actees of each actor's frame.

        Returns:
            (actors, most actees of a frame), log-probabilities; -inf where not allowed and
            beyond the actees of the actor's frame.
        """
        assert action.actees is not None
        acting = np.flatnonzero(action.actors.lengths)  # frames without actors need no keys
        actors, actees = action.actors.take(acting), action.actees.take(acting)
        if len(acting) == 0:
            return full_precision(x.new_zeros((0, 0)))
        queries, query_rows = _pad(self.query(_entities(x, layout, action.actors)), actors)
        keys, _ = _pad(self.key(_entities(x, layout, actees, acting)), actees)
        scores = full_precision(torch.bmm(queries, keys.transpose(1, 2)))
        scores = scores / math.sqrt(queries.shape[-1])
        logits = scores.flatten(0, 1).index_select(0, query_rows)  # (actors, K)
        allowed = _allowed_actees(actors, actees, action, logits)
        return logits.masked_fill(~allowed, -math.inf).log_softmax(dim=-1)


def full_precision(x: Tensor) -> Tensor:
    """At least float32: probabilities and values in half precision are too coarse to learn from."""
    return x.float() if x.dtype in (torch.float16, torch.bfloat16) else x


def _entities(
    x: Tensor, layout: Layout, positions: RaggedTensor, frames: Lengths | None = None
) -> Tensor:
    """(P, d) -> (n, d), the rows of entities given by position in their frame."""
    frame_of_row = positions.frame_of_row()
    if frames is not None:
        frame_of_row = frames[frame_of_row]
    return x.index_select(0, layout.rows(positions.values, frame_of_row))


def _pad(x: Tensor, rows: RaggedTensor) -> tuple[Tensor, Tensor]:
    """(rows, d) -> (frames, longest, d), and the (rows,) flat positions of the rows in it."""
    longest = int(rows.lengths.max())
    positions = to_device(
        row_indices(longest * np.arange(len(rows.lengths)), rows.lengths), x.device
    )
    padded = x.new_zeros(len(rows.lengths) * longest, x.shape[1]).index_copy(0, positions, x)
    return padded.view(len(rows.lengths), longest, -1), positions


def _allowed_actees(
    actors: RaggedTensor, actees: RaggedTensor, action: ActionBatch, logits: Tensor
) -> Tensor:
    """(actors, K) bool: the actees there are, without those that the mask forbids."""
    num_actees = actees.lengths[actors.frame_of_row()]
    longest = logits.shape[1]
    if action.mask is None:
        return to_device(np.arange(longest) < num_actees[:, None], logits.device)
    flat = torch.zeros(logits.numel(), dtype=torch.bool, device=logits.device)
    starts = longest * np.arange(len(num_actees))
    flat[to_device(row_indices(starts, num_actees), logits.device)] = action.mask.values
    return flat.view_as(logits)


def actee_log_probs(log_probs: Tensor, action: ActionBatch) -> RaggedTensor:
    """What `SelectEntityHead` returns, without the padding.

    Args:
        log_probs: (actors, most actees of a frame).
        action: the actors and actees they are of.

    Returns:
        (actors * actees,) per frame, row by row.
    """
    assert action.actees is not None
    per_actor = np.repeat(action.actees.lengths, action.actors.lengths)
    starts = log_probs.shape[1] * np.arange(len(per_actor))
    rows = to_device(row_indices(starts, per_actor), log_probs.device)
    return RaggedTensor(
        log_probs.reshape(-1).index_select(0, rows), action.actors.lengths * action.actees.lengths
    )


def entropy(log_probs: Tensor) -> Tensor:
    """(actors, choices) log-probabilities -> (actors,), where what is forbidden adds nothing."""
    finite = log_probs.masked_fill(log_probs == -math.inf, 0.0)
    return -(log_probs.exp() * finite).sum(dim=-1)


def sample(log_probs: Tensor, uniforms: Tensor) -> Tensor:
    """Choose by inverting the cumulative distribution. Nothing impossible is ever chosen.

    Args:
        log_probs: (actors, choices); something must be possible in each row.
        uniforms: (actors,) float32 in [0, 1), multiples of 2**-23, so that their product with the
            total stays below it.

    Returns:
        (actors,) int64.
    """
    probs = log_probs.exp()
    # A GPU adds in another order for each sum, which may grow where the probability is zero.
    cumulative = probs.cumsum(dim=-1).masked_fill(probs == 0, 0.0)
    threshold = uniforms.unsqueeze(-1) * cumulative.amax(dim=-1, keepdim=True)
    return (cumulative > threshold).to(torch.uint8).argmax(dim=-1)


def actor_ranks(lengths: Lengths) -> Lengths:
    """(frames,) -> (actors,) int64: the how-manieth actor of its frame each one is."""
    return row_indices(np.zeros_like(lengths), lengths)
