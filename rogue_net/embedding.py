"""Embedding of the features of each entity type in rows of one width."""

import math
import warnings
from collections.abc import Mapping, Sequence

import torch
from torch import Tensor, nn

from entity_env.spaces import GLOBAL, Kind, ObsSpace
from rogue_net.config import RogueNetConfig
from rogue_net.input_norm import InputNorm, Moments
from rogue_net.ragged import EntityBatch, to_device
from rogue_net.relpos.config import TranslationConfig
from rogue_net.relpos.translate import Translation


def feature_names(obs_space: ObsSpace, with_global_entity: bool) -> dict[str, list[str]]:
    """Return the input features of each type: its own, then the global ones.

    Args:
        obs_space: the entity types and their features.
        with_global_entity: True if the global features are also an entity of their own.
    """
    shared = obs_space.global_features
    names = {name: [*entity.features, *shared] for name, entity in obs_space.entities.items()}
    return {**names, GLOBAL: [*shared]} if with_global_entity else names


def kinds_of_types(obs_space: ObsSpace, types: Sequence[str]) -> dict[str, list[Kind]]:
    """Return the kinds of each of the types that has any: its own, then the global ones."""
    own, shared = obs_space.kinds, obs_space.global_kinds
    kinds = {name: [*(own.get(name, []) if name != GLOBAL else []), *shared] for name in types}
    return {name: of_type for name, of_type in kinds.items() if of_type}


def check_positions(config: RogueNetConfig, obs_space: ObsSpace) -> None:
    """Raise if a feature that gives a position or an orientation is a kind.

    Raises:
        ValueError: names the setting and the kind.
    """
    kinds = {kind.name: name for name, own in obs_space.kinds.items() for kind in own}
    for section in ("relpos_encoding", "translation"):
        for field in ("position_features", "rotation_vec_features", "rotation_angle_feature"):
            value = getattr(getattr(config, section), field, None)
            for name in [value] if isinstance(value, str) else value or ():
                if name in kinds:
                    raise ValueError(
                        f"{section}.{field}: expected numbers, got {name!r}, which is a kind of "
                        f"{kinds[name]!r}; give its place as numbers too"
                    )


class EntityEmbedding(nn.Module):
    """Embedding of entities by type; global features are appended to those of each entity.

    Args:
        features: the names of the numeric input features of each type, as `feature_names` gives
            them.
        d_model: the width of the embedding.
        translation: settings to center positions on one entity; None not to.
        kinds: the kinds of each type that has any, as `kinds_of_types` gives them.
    """

    def __init__(
        self,
        features: Mapping[str, Sequence[str]],
        d_model: int,
        translation: TranslationConfig | None = None,
        kinds: Mapping[str, Sequence[Kind]] | None = None,
    ) -> None:
        super().__init__()
        self.types = list(features)
        self.d_model = d_model
        self.kinds = {} if kinds is None else {**kinds}
        self.translation = None if translation is None else Translation(translation, features)
        widths = {name: len(own) for name, own in features.items()}
        if self.translation is not None:
            widths = self.translation.widths(features)
        self.by_type = nn.ModuleDict()
        for name, width in widths.items():
            sizes = [len(kind.labels) for kind in self.kinds.get(name, [])]
            is_empty = width == 0 and not sizes
            self.by_type[module_key(name)] = (
                FeaturelessEmbedding(d_model) if is_empty else TypeEmbedding(width, d_model, sizes)
            )

    def forward(
        self, inputs: Mapping[str, Tensor], label_rows: Mapping[str, Tensor] | None = None
    ) -> Tensor:
        """Return (entities, d_model): type after type, within a type frame after frame.

        Args:
            inputs: what `inputs` returns.
            label_rows: what `label_rows` returns; not needed without kinds.
        """
        rows = {} if label_rows is None else label_rows
        return torch.cat(
            [self.by_type[module_key(name)](x, rows.get(name)) for name, x in inputs.items()]
        )

    def label_rows(self, batch: EntityBatch) -> dict[str, Tensor]:
        """Return the rows of each entity's labels in the table of its type, by type with kinds.

        The labels of global kinds are those of each entity too.

        Returns:
            (n, kinds) int64 each: its own kinds, then the global ones.
        """
        rows_of, shared = {}, batch.kinds.get(GLOBAL)
        for name in self.kinds:
            rows, columns = batch.features[name], []
            if name in batch.kinds and name != GLOBAL:
                columns.append(batch.kinds[name].values)
            if shared is not None:
                frames = to_device(rows.frame_of_row(), shared.values.device)
                columns.append(shared.values.index_select(0, frames))
            of_type = self.by_type[module_key(name)]
            assert isinstance(of_type, TypeEmbedding)
            indices = torch.cat(columns, dim=1) if len(columns) > 1 else columns[0]
            rows_of[name] = indices + of_type.first_labels
        return rows_of

    def inputs(self, batch: EntityBatch) -> dict[str, Tensor]:
        """Return the inputs of each type, (n, features + global features), not normalised."""
        rows = {name: batch.features[name] for name in self.types}
        inputs = {name: one.values for name, one in rows.items()}
        shared = batch.features.get(GLOBAL)
        has_shared = shared is not None and shared.values.shape[1] > 0
        if not has_shared and self.translation is None:
            return inputs
        frames = {n: to_device(r.frame_of_row(), r.values.device) for n, r in rows.items()}
        if shared is not None and has_shared:
            for name, x in inputs.items():
                if name != GLOBAL:
                    of_entity = shared.values.index_select(0, frames[name])
                    inputs[name] = torch.cat([x, of_entity], dim=1)
        if self.translation is None:
            return inputs
        seen = batch.visibility(self.translation.config.reference_entity).values
        return self.translation(inputs, frames, seen, batch.num_frames)

    def input_moments(self, inputs: Mapping[str, Tensor]) -> dict[str, Moments]:
        """Return the moments of a batch by which `InputNorm.merge` updates each type."""
        return {
            name: Moments.of(x)
            for name, x in inputs.items()
            if isinstance(self.by_type[module_key(name)], TypeEmbedding)
        }


class TypeEmbedding(nn.Module):
    """Embedding of a type: normalise, project, add labels, rectify, normalise again.

    It is that of one-hot columns for the labels, which are not normalised: the vector of a label is
    its column of weights.

    Args:
        num_features: the number of numeric features.
        d_model: the width of the embedding.
        label_counts: the number of labels of each kind.
    """

    first_labels: Tensor
    labels: Tensor

    def __init__(self, num_features: int, d_model: int, label_counts: Sequence[int] = ()) -> None:
        super().__init__()
        self.norm = InputNorm(num_features)
        with warnings.catch_warnings():  # of weights without numbers
            warnings.filterwarnings("ignore", "Initializing zero-element", UserWarning)
            self.linear = nn.Linear(num_features, d_model)
        # Without numbers the weight has no elements, at which Adafactor and Muon divide by zero.
        self.linear.weight.requires_grad_(num_features > 0)
        self.layer_norm = nn.LayerNorm(d_model)
        self.has_labels = bool(label_counts)
        if label_counts:
            first_labels = torch.tensor([0, *label_counts[:-1]]).cumsum(0)
            self.register_buffer("first_labels", first_labels, persistent=False)
            # U(-1/sqrt(n), 1/sqrt(n)) of n inputs that are not 0, as linear layers begin.
            bound = 1 / math.sqrt(num_features + len(label_counts))
            vectors = bound * (2 * torch.rand(sum(label_counts), d_model) - 1)
            self.labels = nn.Parameter(vectors)  # (labels of all kinds, d_model)

    def forward(self, x: Tensor, label_rows: Tensor | None = None) -> Tensor:
        """Embed entities.

        Args:
            x: (n, num_features).
            label_rows: (n, kinds) int64, the rows of their labels in `labels`; None without kinds.

        Returns:
            (n, d_model).
        """
        # Features and their statistics keep their precision where the network is in half.
        x = self.norm(x).to(self.linear.weight.dtype)
        # layer_norm(relu(W x + b + sum_k labels_k))
        x = self.linear(x)
        if label_rows is not None:
            x = x + nn.functional.embedding(label_rows, self.labels).sum(dim=1)
        x = self.layer_norm(x.relu())
        return x

    def parameters_in_order(self) -> list[Tensor]:
        """Return weight and bias of the linear layer, then of the norm, then vectors of labels."""
        linear, norm = self.linear, self.layer_norm
        labels = [self.labels] if self.has_labels else []
        return [linear.weight, linear.bias, norm.weight, norm.bias, *labels]


class FeaturelessEmbedding(nn.Module):
    """Embedding of a type without features: one learnt vector."""

    def __init__(self, d_model: int) -> None:
        super().__init__()
        self.vector = nn.Parameter(torch.randn(1, d_model))

    def forward(self, x: Tensor, label_rows: Tensor | None = None) -> Tensor:
        """Embed entities, (n, 0) -> (n, d_model); they have no labels."""
        return self.vector.expand(x.shape[0], -1)

    def parameters_in_order(self) -> list[Tensor]:
        """Return the vector."""
        return [self.vector]


def module_key(name: str) -> str:
    """Return a key for `nn.ModuleDict`, different for each name of a type or action.

    Keys must not contain a dot nor be an attribute of the module, such as `train` or `keys`.
    """
    return "/" + name.replace("%", "%25").replace(".", "%2E")
