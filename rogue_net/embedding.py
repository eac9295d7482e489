"""Embedding of the features of each entity type in rows of one width."""

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor, nn

from entity_env.spaces import GLOBAL, ObsSpace
from rogue_net.input_norm import InputNorm, Moments
from rogue_net.ragged import EntityBatch, to_device
from rogue_net.translate import Translation
from rogue_net.translation_config import TranslationConfig


def feature_names(obs_space: ObsSpace, with_global_entity: bool) -> dict[str, list[str]]:
    """Return the input features of each type: its own, then the global ones.

    Args:
        obs_space: the entity types and their features.
        with_global_entity: True if the global features are also an entity of their own.
    """
    shared = obs_space.global_features
    names = {name: [*entity.features, *shared] for name, entity in obs_space.entities.items()}
    return {**names, GLOBAL: [*shared]} if with_global_entity else names


class EntityEmbedding(nn.Module):
    """Embedding of entities by type; global features are appended to those of each entity.

    Args:
        features: the names of the input features of each type, as `feature_names` gives them.
        d_model: the width of the embedding.
        translation: settings to center positions on one entity; None not to.
    """

    def __init__(
        self,
        features: Mapping[str, Sequence[str]],
        d_model: int,
        translation: TranslationConfig | None = None,
    ) -> None:
        super().__init__()
        self.types = list(features)
        self.d_model = d_model
        self.translation = None if translation is None else Translation(translation, features)
        widths = {name: len(own) for name, own in features.items()}
        if self.translation is not None:
            widths = self.translation.widths(features)
        self.by_type = nn.ModuleDict()
        for name, width in widths.items():
            of_type = TypeEmbedding(width, d_model) if width > 0 else FeaturelessEmbedding(d_model)
            self.by_type[module_key(name)] = of_type

    def forward(self, inputs: Mapping[str, Tensor]) -> Tensor:
        """Return (entities, d_model): type after type, within a type frame after frame."""
        return torch.cat([self.by_type[module_key(name)](x) for name, x in inputs.items()])

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
    """Embedding of a type: normalise, project, rectify, normalise again."""

    def __init__(self, num_features: int, d_model: int) -> None:
        super().__init__()
        self.norm = InputNorm(num_features)
        self.linear = nn.Linear(num_features, d_model)
        self.layer_norm = nn.LayerNorm(d_model)

    def forward(self, x: Tensor) -> Tensor:
        """Embed entities, (n, num_features) -> (n, d_model)."""
        # Features and their statistics keep their precision where the network is in half.
        x = self.norm(x).to(self.linear.weight.dtype)
        # layer_norm(relu(W x + b))
        x = self.layer_norm(self.linear(x).relu())
        return x

    def parameters_in_order(self) -> list[Tensor]:
        """Return weight and bias of the linear layer, then of the norm."""
        linear, norm = self.linear, self.layer_norm
        return [linear.weight, linear.bias, norm.weight, norm.bias]


class FeaturelessEmbedding(nn.Module):
    """Embedding of a type without features: one learnt vector."""

    def __init__(self, d_model: int) -> None:
        super().__init__()
        self.vector = nn.Parameter(torch.randn(1, d_model))

    def forward(self, x: Tensor) -> Tensor:
        """Embed entities, (n, 0) -> (n, d_model)."""
        return self.vector.expand(x.shape[0], -1)

    def parameters_in_order(self) -> list[Tensor]:
        """Return the vector."""
        return [self.vector]


def module_key(name: str) -> str:
    """Return a key for `nn.ModuleDict`, different for each name of a type or action.

    Keys must not contain a dot nor be an attribute of the module, such as `train` or `keys`.
    """
    return "/" + name.replace("%", "%25").replace(".", "%2E")
