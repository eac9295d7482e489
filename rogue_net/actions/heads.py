"""Action heads: from embedded entities to decisions, one class for each kind of action."""

import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import ClassVar

import numpy as np
import torch
from torch import Tensor, nn

from entity_env.arrays import IntArray
from entity_env.ragged import row_indices
from entity_env.spaces import (
    ActionSpace,
    CategoricalActionSpace,
    ContinuousActionSpace,
    GlobalCategoricalActionSpace,
    GlobalContinuousActionSpace,
    SelectEntityActionSpace,
)
from rogue_net.actions.dense_action import DenseAction, rows_of
from rogue_net.actions.distributions import (
    ActionDistribution,
    CategoricalDistribution,
    Decision,
    decide,
    legal_choices,
)
from rogue_net.actions.gaussian_numbers import SquashedGaussian
from rogue_net.actions.parts import NO_CHOICES, NO_PARENT, Parent, ParentChoices
from rogue_net.config import LEAST_STD, MOST_STD, RogueNetConfig
from rogue_net.layout import Layout
from rogue_net.ragged import ActionBatch, RaggedTensor, to_device


class ActionHead(nn.Module, ABC):
    """Base class of action heads.

    Override `forward` if choices depend on each other, or on the choices of another head.

    Args:
        space: of the action.
        d_model: width of the entities.
        d_qk: width of queries and keys, for heads that compare entities.
    """

    layers_of_labels: ClassVar[frozenset[str]] = frozenset()
    """Names of the linear layers with one output per label or component; `evolve` resizes them."""
    parent: Parent = NO_PARENT

    def __init__(self, space: ActionSpace, d_model: int, d_qk: int) -> None:
        super().__init__()

    def configure(self, config: RogueNetConfig) -> None:
        """Apply settings of the network that change the initial weights."""
        return

    @abstractmethod
    def distribution(
        self, x: Tensor, layout: Layout, action: ActionBatch, given: Tensor | None = None
    ) -> ActionDistribution:
        """Compute the distribution over the choices of the actors.

        Args:
            x: (P, d_model), the entities after the transformer.
            layout: of these rows.
            action: the A actors of B frames, and their legal choices.
            given: (A, d_model), embedding of each actor's choice of the parent action; None
                without a parent action.
        """

    def dense(
        self, x: Tensor, action: DenseAction, parent: Tensor | None = None
    ) -> ActionDistribution:
        """Compute the distribution over the choices of actors in padded frames, for export.

        Use operations of torch alone, without branches on sizes or values. Choices and parameters
        have the shape (B, A, ...).

        Args:
            x: (B, N, d_model), the entities after the transformer.
            action: the A actors of each of B frames, and their legal choices.
            parent: (B, A, d_model), embedding of each actor's choice of the parent action; None
                without a parent action.

        Raises:
            NotImplementedError: the kind of action cannot be exported.
        """
        raise NotImplementedError(f"{type(self).__name__}.dense")

    def depend_on(self, head: type["ActionHead"], space: ActionSpace, d_model: int) -> None:
        """Condition the head on the choices of a parent action, with initial weights of zero.

        Args:
            head: the head of the parent action.
            space: of the parent action.
            d_model: width of the entities.

        Raises:
            ValueError: the head of the parent action has no choice layer.
        """
        layer = head.choice_layer(space, d_model, d_model)
        if layer is None:
            raise ValueError(f"after: expected an action with a choice layer, got {space}")
        for parameter in layer.parameters():
            nn.init.zeros_(parameter)
        self.after = layer

    @classmethod
    @abstractmethod
    def uniform(cls, space: ActionSpace, action: ActionBatch) -> ActionDistribution:
        """Return the uniform distribution over legal choices."""

    @classmethod
    def choice_layer(cls, space: ActionSpace, d_model: int, width: int) -> nn.Module | None:
        """Create the layer that embeds choices, for memory and dependent actions.

        Args:
            space: of the action.
            d_model: width of the entities.
            width: of the embeddings.

        Returns:
            The layer; None if choices cannot be embedded.
        """
        return None

    @classmethod
    def choice_vectors(
        cls, layer: nn.Module, x: Tensor, layout: Layout, action: ActionBatch, chosen: Tensor
    ) -> Tensor:
        """Embed choices, (A, width).

        Args:
            layer: created by `choice_layer`.
            x: (P, d_model), the entities.
            layout: of these rows.
            action: the A actors.
            chosen: (A,) int64, or (A, D) float32.
        """
        vectors: Tensor = layer(chosen)
        return vectors

    def forward(
        self,
        x: Tensor,
        layout: Layout,
        action: ActionBatch,
        chosen: Tensor | None = None,
        draws: Tensor | None = None,
        temperature: float = 1.0,
        given: ParentChoices = NO_CHOICES,
    ) -> Decision:
        """Evaluate `chosen`, or sample with `draws`, or return the most probable choices.

        Args:
            x: (P, d_model), the entities after the transformer.
            layout: of these rows.
            action: the A actors of B frames, and their legal choices.
            chosen: (A,) int64, or (A, D) float32 of continuous actions.
            draws: (A,) float32 in [0, 1), or (A, num_draws).
            temperature: divides the logits of all choices.
            given: choices of the parent action, if there is one.
        """
        distribution = given.distribution(self, x, layout, action)
        return decide(distribution.tempered(temperature), chosen, draws)


class CategoricalHead(ActionHead):
    """Head of categorical actions, of entities or of the frame."""

    layers_of_labels = frozenset({"project"})

    def __init__(self, space: ActionSpace, d_model: int, d_qk: int = 0) -> None:
        super().__init__(space, d_model, d_qk)
        self.project = nn.Linear(d_model, len(space.labels))
        nn.init.orthogonal_(self.project.weight, gain=0.01)
        nn.init.zeros_(self.project.bias)

    def distribution(
        self, x: Tensor, layout: Layout, action: ActionBatch, given: Tensor | None = None
    ) -> CategoricalDistribution:
        """Project each actor to the logits of its choices, (A, labels)."""
        # log p = log softmax(W x + b)
        logits = full_precision(self.project(_actor_rows(x, layout, action, given)))
        if action.mask is not None:
            logits = logits.masked_fill(~action.mask.values, -math.inf)
        return CategoricalDistribution(logits.log_softmax(dim=-1))

    def dense(
        self, x: Tensor, action: DenseAction, parent: Tensor | None = None
    ) -> CategoricalDistribution:
        """Project each actor to the logits of its choices, (B, A, labels)."""
        assert action.mask is not None
        logits = self.project(action.actor_rows(x, parent)).masked_fill(~action.mask, -math.inf)
        return CategoricalDistribution(logits.log_softmax(dim=-1))

    @classmethod
    def choice_layer(cls, space: ActionSpace, d_model: int, width: int) -> nn.Embedding:
        """Create an embedding of the labels."""
        # On meta, torch imports its compiler to initialise a module, which takes a second.
        weight = torch.randn(len(space.labels), width)
        return nn.Embedding(len(space.labels), width, _weight=weight)

    @classmethod
    def uniform(cls, space: ActionSpace, action: ActionBatch) -> CategoricalDistribution:
        """Return the uniform distribution over legal labels."""
        return CategoricalDistribution.uniform(legal_choices(action, len(space.labels)))


class SelectEntityHead(ActionHead):
    """Head that selects an actee of the frame for each actor, by products of queries and keys."""

    def __init__(self, space: ActionSpace, d_model: int, d_qk: int) -> None:
        super().__init__(space, d_model, d_qk)
        self.query = nn.Linear(d_model, d_qk)
        self.key = nn.Linear(d_model, d_qk)

    def distribution(
        self, x: Tensor, layout: Layout, action: ActionBatch, given: Tensor | None = None
    ) -> CategoricalDistribution:
        """Score the actees of each actor's frame.

        Returns:
            Over (A, largest number of actees); padding has probability 0.
        """
        return self.batched([self], [len(action.actors.lengths)], x, layout, action, given)

    def dense(
        self, x: Tensor, action: DenseAction, parent: Tensor | None = None
    ) -> CategoricalDistribution:
        """Score the actees of each actor's frame, (B, A, K)."""
        assert action.mask is not None
        assert action.actees is not None
        queries, keys = (
            self.query(action.actor_rows(x, parent)),
            self.key(rows_of(x, action.actees)),
        )
        # score_ij = q_i . k_j / sqrt(d_qk)
        scores = (queries @ keys.transpose(1, 2)) / math.sqrt(queries.shape[2])
        scores = scores.masked_fill(~action.mask, -math.inf)
        return CategoricalDistribution(scores.log_softmax(dim=-1))

    @staticmethod
    def batched(
        heads: Sequence["SelectEntityHead"],
        frames: Sequence[int],
        x: Tensor,
        layout: Layout,
        action: ActionBatch,
        given: Tensor | None = None,
    ) -> CategoricalDistribution:
        """Score the actees with the heads of several networks.

        Args:
            heads: of equal sizes.
            frames: the number of consecutive frames of each head.
            x: (P, d_model), the entities of all frames.
            layout: of these rows.
            action: the actors of all frames, and their actees.
            given: (A, d_model), as in `distribution`.
        """
        assert action.actees is not None
        acting = np.flatnonzero(action.actors.lengths)  # frames without actors need no keys
        actors, actees = action.actors.take(acting), action.actees.take(acting)
        if len(acting) == 0:
            return CategoricalDistribution(full_precision(x.new_zeros((0, 0))))
        actor_rows = _actor_rows(x, layout, action, given)
        actee_rows = _gather(x, layout, actees, acting)
        num_actees = np.where(action.actors.lengths > 0, action.actees.lengths, 0)
        to_query, to_key = [head.query for head in heads], [head.key for head in heads]
        query = _apply_linears(to_query, frames, action.actors.lengths, actor_rows)
        queries, query_rows = _pad(query, actors)
        keys, _ = _pad(_apply_linears(to_key, frames, num_actees, actee_rows), actees)
        # score_ij = q_i . k_j / sqrt(d_qk)
        scores = full_precision(torch.bmm(queries, keys.transpose(1, 2)))
        scores = scores / math.sqrt(queries.shape[-1])
        logits = scores.flatten(0, 1).index_select(0, query_rows)  # (A, K)
        logits = logits.masked_fill(~legal_choices(action), -math.inf)
        return CategoricalDistribution(logits.log_softmax(dim=-1))

    @classmethod
    def choice_layer(cls, space: ActionSpace, d_model: int, width: int) -> nn.Linear:
        """Create a linear layer of the selected entity."""
        return nn.Linear(d_model, width)

    @classmethod
    def choice_vectors(
        cls, layer: nn.Module, x: Tensor, layout: Layout, action: ActionBatch, chosen: Tensor
    ) -> Tensor:
        """Embed the selected entities, (A, width)."""
        assert action.actees is not None
        frame = action.actors.frame_of_row()
        first = to_device(action.actees.starts[frame], x.device)
        actee = action.actees.values.index_select(0, first + chosen)
        vectors: Tensor = layer(x.index_select(0, layout.rows(actee, frame)))
        return vectors

    @classmethod
    def uniform(cls, space: ActionSpace, action: ActionBatch) -> CategoricalDistribution:
        """Return the uniform distribution over legal actees."""
        return CategoricalDistribution.uniform(legal_choices(action))


_MOST_STD_WITHOUT_BOUNDS = 10.0
_LARGEST_MEAN = 1e6


class ContinuousHead(ActionHead):
    """Head of continuous actions, of entities or of the frame."""

    layers_of_labels = frozenset({"mean", "deviation"})

    def __init__(self, space: ActionSpace, d_model: int, d_qk: int = 0) -> None:
        super().__init__(space, d_model, d_qk)
        assert isinstance(space, ContinuousActionSpace | GlobalContinuousActionSpace)
        self.mean = nn.Linear(d_model, len(space))
        nn.init.orthogonal_(self.mean.weight, gain=0.01)
        with torch.no_grad():
            self.mean.bias.copy_(torch.from_numpy(space.initial_means()))
        self.deviation = nn.Linear(d_model, len(space))
        nn.init.zeros_(self.deviation.weight)
        nn.init.zeros_(self.deviation.bias)
        # log s = center + reach * tanh(W x + b), between the logarithms of the limits
        is_bounded = np.isfinite(space.low)
        least = math.log(LEAST_STD)
        most = np.log(np.where(is_bounded, MOST_STD, _MOST_STD_WITHOUT_BOUNDS))
        self.center: Tensor
        self.reach: Tensor
        for name, values in (("center", (most + least) / 2), ("reach", (most - least) / 2)):
            self.register_buffer(name, torch.tensor(values, dtype=torch.float32), persistent=False)

    def configure(self, config: RogueNetConfig) -> None:
        """Initialise the standard deviations to `init_std`."""
        share = (math.log(config.init_std) - self.center) / self.reach
        with torch.no_grad():
            self.deviation.bias.copy_(torch.atanh(share))

    def distribution(
        self, x: Tensor, layout: Layout, action: ActionBatch, given: Tensor | None = None
    ) -> SquashedGaussian:
        """Project each actor to the means and standard deviations of its components, (A, D)."""
        assert action.bounds is not None
        return self._gaussian(_actor_rows(x, layout, action, given), action.bounds.values)

    def dense(
        self, x: Tensor, action: DenseAction, parent: Tensor | None = None
    ) -> SquashedGaussian:
        """Project each actor to the parameters of its components, (B, A, D)."""
        assert action.bounds is not None
        distribution = self._gaussian(action.actor_rows(x, parent), action.bounds)
        distribution.has_uniform = False  # a branch on values cannot be exported
        return distribution

    def _gaussian(self, rows: Tensor, bounds: Tensor) -> SquashedGaussian:
        """Project actors (..., d_model) between bounds (..., 2, D)."""
        mean = full_precision(self.mean(rows)).clamp(-_LARGEST_MEAN, _LARGEST_MEAN)
        log_std = self.center + self.reach * torch.tanh(full_precision(self.deviation(rows)))
        low, high = bounds.to(mean.dtype).unbind(dim=-2)
        return SquashedGaussian(mean, log_std.to(mean.dtype), low, high)

    @classmethod
    def choice_layer(cls, space: ActionSpace, d_model: int, width: int) -> nn.Linear:
        """Create a linear layer of the components."""
        return nn.Linear(len(space.components), width)

    @classmethod
    def choice_vectors(
        cls, layer: nn.Module, x: Tensor, layout: Layout, action: ActionBatch, chosen: Tensor
    ) -> Tensor:
        """Embed the components, bounded ones as numbers from -1 to 1, (A, width)."""
        assert action.bounds is not None
        low, high = action.bounds.values.unbind(dim=1)
        # 2 sigmoid(z) - 1 = tanh(z / 2)
        normalized = torch.where(torch.isfinite(low), torch.tanh(chosen / 2), chosen)
        vectors: Tensor = layer(normalized.masked_fill(low == high, 0.0).to(x.dtype))
        return vectors

    @classmethod
    def uniform(cls, space: ActionSpace, action: ActionBatch) -> SquashedGaussian:
        """Return the uniform distribution between the bounds."""
        return SquashedGaussian.uniform(action)


HEADS: dict[type[ActionSpace], type[ActionHead]] = {
    CategoricalActionSpace: CategoricalHead,
    GlobalCategoricalActionSpace: CategoricalHead,
    SelectEntityActionSpace: SelectEntityHead,
    ContinuousActionSpace: ContinuousHead,
    GlobalContinuousActionSpace: ContinuousHead,
}
"""Head class of each kind of action."""


def full_precision(x: Tensor) -> Tensor:
    """Convert half precision to float32, as it is too coarse for probabilities and values."""
    return x.float() if x.dtype in (torch.float16, torch.bfloat16) else x


def _actor_rows(x: Tensor, layout: Layout, action: ActionBatch, parent: Tensor | None) -> Tensor:
    """Return the rows of actors, plus the embeddings of their parent choices, (A, d_model)."""
    rows = _gather(x, layout, action.actors)
    return rows if parent is None else rows + parent.to(rows.dtype)


def _gather(
    x: Tensor, layout: Layout, positions: RaggedTensor, frames: IntArray | None = None
) -> Tensor:
    """Gather the rows of entities by position in their frame, (P, d) -> (n, d)."""
    frame_of_row = positions.frame_of_row()
    if frames is not None:
        frame_of_row = frames[frame_of_row]
    return x.index_select(0, layout.rows(positions.values, frame_of_row))


def _apply_linears(
    layers: Sequence[nn.Linear], frames: Sequence[int], lengths: IntArray, x: Tensor
) -> Tensor:
    """Apply several linear layers, each to the rows of its frames.

    Args:
        layers: of equal sizes.
        frames: the number of consecutive frames of each layer.
        lengths: (B,) rows of each frame.
        x: (rows, d_model), of all frames.
    """
    if len(layers) == 1:
        return layers[0](x)  # type: ignore[no-any-return]
    first = np.cumsum([0, *frames[:-1]])
    pieces = torch.split(x, np.add.reduceat(lengths, first).tolist())
    return torch.cat([layer(rows) for layer, rows in zip(layers, pieces, strict=True)])


def _pad(x: Tensor, rows: RaggedTensor) -> tuple[Tensor, Tensor]:
    """Pad frames: (rows, d) -> (frames, longest, d), and the flat position of each row in it."""
    longest = int(rows.lengths.max())
    positions = to_device(
        row_indices(longest * np.arange(len(rows.lengths)), rows.lengths), x.device
    )
    padded = x.new_zeros(len(rows.lengths) * longest, x.shape[1]).index_copy(0, positions, x)
    return padded.view(len(rows.lengths), longest, -1), positions
