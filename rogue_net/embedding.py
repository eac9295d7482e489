"""Embedding of entities: from the features of each type to rows of width d_model."""

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
    """Return the input features of each type: its features, then the global features.

    Args:
        obs_space: the entity types and their features.
        with_global_entity: True to add an entity with the global features.
    """
    shared = obs_space.global_features
    names = {name: [*entity.features, *shared] for name, entity in obs_space.entities.items()}
    return {**names, GLOBAL: [*shared]} if with_global_entity else names


def kinds_of_types(obs_space: ObsSpace, types: Sequence[str]) -> dict[str, list[Kind]]:
    """Return the categorical input features of types, then global ones; omit types without any."""
    by_type, shared = obs_space.kinds, obs_space.global_kinds
    kinds = {name: [*(by_type.get(name, []) if name != GLOBAL else []), *shared] for name in types}
    return {name: type_kinds for name, type_kinds in kinds.items() if type_kinds}


def check_positions(config: RogueNetConfig, obs_space: ObsSpace) -> None:
    """Check that position and orientation features are numeric, not categorical.

    Raises:
        ValueError: a setting names a categorical feature.
    """
    kinds = {kind.name: name for name, type_kinds in obs_space.kinds.items() for kind in type_kinds}
    for section in ("relpos_encoding", "translation"):
        for field in ("position_features", "rotation_vec_features", "rotation_angle_feature"):
            value = getattr(getattr(config, section), field, None)
            for name in [value] if isinstance(value, str) else value or ():
                if name in kinds:
                    raise ValueError(
                        f"{section}.{field}: expected numbers, got {name!r}, which is a kind of "
                        f"{kinds[name]!r}; add numeric features for the position"
                    )


class EntityEmbedding(nn.Module):
    """Embedding of entities by type; global features are appended to the features of each entity.

    Args:
        features: names of the numeric input features of each type, see `feature_names`.
        d_model: width of the embedding.
        translation: settings to center positions on a reference entity, or None.
        kinds: categorical input features of each type, see `kinds_of_types`.
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
        widths = {name: len(names) for name, names in features.items()}
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
        """Embed entities, (entities, d_model): type after type, within a type frame after frame.

        Args:
            inputs: result of `inputs`.
            label_rows: result of `label_rows`; not needed without categorical features.
        """
        rows = {} if label_rows is None else label_rows
        return torch.cat(
            [self.by_type[module_key(name)](x, rows.get(name)) for name, x in inputs.items()]
        )

    def label_rows(self, batch: EntityBatch) -> dict[str, Tensor]:
        """Return the rows of each entity's labels in the label embedding of its type.

        Returns:
            (n, kinds) int64 for each type with categorical features: its features, then the global
            ones, repeated for each entity.
        """
        label_rows, shared = {}, batch.kinds.get(GLOBAL)
        for name in self.kinds:
            rows, columns = batch.features[name], []
            if name in batch.kinds and name != GLOBAL:
                columns.append(batch.kinds[name].values)
            if shared is not None:
                frames = to_device(rows.frame_of_row(), shared.values.device)
                columns.append(shared.values.index_select(0, frames))
            embedding = self.by_type[module_key(name)]
            assert isinstance(embedding, TypeEmbedding)
            indices = torch.cat(columns, dim=1) if len(columns) > 1 else columns[0]
            label_rows[name] = indices + embedding.first_labels
        return label_rows

    def inputs(self, batch: EntityBatch) -> dict[str, Tensor]:
        """Return the numeric inputs of each type, (n, features + global features), unnormalised."""
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
                    global_rows = shared.values.index_select(0, frames[name])
                    inputs[name] = torch.cat([x, global_rows], dim=1)
        if self.translation is None:
            return inputs
        is_visible = batch.visibility(self.translation.config.reference_entity).values
        return self.translation(inputs, frames, is_visible, batch.num_frames)

    def input_moments(self, inputs: Mapping[str, Tensor]) -> dict[str, Moments]:
        """Compute the moments of a batch for `InputNorm.merge`, by type."""
        return {
            name: Moments.of(x)
            for name, x in inputs.items()
            if isinstance(self.by_type[module_key(name)], TypeEmbedding)
        }


class TypeEmbedding(nn.Module):
    """Embedding of a type: input norm, linear layer plus label embeddings, ReLU and layer norm.

    Label embeddings are equivalent to a linear layer of one-hot features without input norm.

    Args:
        num_features: number of numeric features.
        d_model: width of the embedding.
        label_counts: number of labels of each categorical feature.
    """

    first_labels: Tensor
    labels: Tensor

    def __init__(self, num_features: int, d_model: int, label_counts: Sequence[int] = ()) -> None:
        super().__init__()
        self.norm = InputNorm(num_features)
        with warnings.catch_warnings():  # without numeric features, the weight is empty
            warnings.filterwarnings("ignore", "Initializing zero-element", UserWarning)
            self.linear = nn.Linear(num_features, d_model)
        # Adafactor and Muon divide by the number of elements, which may be zero.
        self.linear.weight.requires_grad_(num_features > 0)
        self.layer_norm = nn.LayerNorm(d_model)
        self.has_labels = bool(label_counts)
        if label_counts:
            first_labels = torch.tensor([0, *label_counts[:-1]]).cumsum(0)
            self.register_buffer("first_labels", first_labels, persistent=False)
            # U(-1/sqrt(n), 1/sqrt(n)) for n nonzero inputs, the initialisation of linear layers
            bound = 1 / math.sqrt(num_features + len(label_counts))
            vectors = bound * (2 * torch.rand(sum(label_counts), d_model) - 1)
            self.labels = nn.Parameter(vectors)  # (total number of labels, d_model)

    def forward(self, x: Tensor, label_rows: Tensor | None = None) -> Tensor:
        """Embed entities.

        Args:
            x: (n, num_features).
            label_rows: (n, kinds) int64, rows of `labels`; None without categorical features.

        Returns:
            (n, d_model).
        """
        # Features and statistics keep their precision if the network is in half precision.
        x = self.norm(x).to(self.linear.weight.dtype)
        # layer_norm(relu(W x + b + sum_k labels_k))
        x = self.linear(x)
        if label_rows is not None:
            x = x + nn.functional.embedding(label_rows, self.labels).sum(dim=1)
        x = self.layer_norm(x.relu())
        return x

    def parameters_in_order(self) -> list[Tensor]:
        """Return weight and bias of the linear layer and the norm, then the label embeddings."""
        linear, norm = self.linear, self.layer_norm
        labels = [self.labels] if self.has_labels else []
        return [linear.weight, linear.bias, norm.weight, norm.bias, *labels]


class FeaturelessEmbedding(nn.Module):
    """Embedding of a type without features: a learnt vector."""

    def __init__(self, d_model: int) -> None:
        super().__init__()
        self.vector = nn.Parameter(torch.randn(1, d_model))

    def forward(self, x: Tensor, label_rows: Tensor | None = None) -> Tensor:
        """Embed entities, (n, 0) -> (n, d_model)."""
        return self.vector.expand(x.shape[0], -1)

    def parameters_in_order(self) -> list[Tensor]:
        """Return the vector."""
        return [self.vector]


def module_key(name: str) -> str:
    """Return a unique key for `nn.ModuleDict` for the name of a type or action.

    Keys must not contain a dot, and must not be attributes of the module, such as `train`.
    """
    return "/" + name.replace("%", "%25").replace(".", "%2E")
