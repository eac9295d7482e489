"""From the features of each entity type to rows of one width."""

from collections.abc import Mapping

import torch
from torch import Tensor, nn

from entity_env.spaces import GLOBAL, ObsSpace
from rogue_net.input_norm import InputNorm
from rogue_net.ragged import EntityBatch, to_device


class EntityEmbedding(nn.Module):
    """Embeds every entity by its type; global features are appended to those of each entity.

    Args:
        obs_space: the entity types and their features.
        with_global_entity: also embed the global features as an entity of their own.
        d_model: the width of the embedding.
    """

    def __init__(self, obs_space: ObsSpace, with_global_entity: bool, d_model: int) -> None:
        super().__init__()
        num_globals = len(obs_space.global_features)
        widths = {
            name: len(entity.features) + num_globals for name, entity in obs_space.entities.items()
        }
        if with_global_entity:
            widths[GLOBAL] = num_globals
        self.types = list(widths)
        self.has_globals = num_globals > 0
        self.by_type = nn.ModuleDict(
            {
                module_key(name): TypeEmbedding(width, d_model)
                if width > 0
                else FeaturelessEmbedding(d_model)
                for name, width in widths.items()
            }
        )

    def forward(self, batch: EntityBatch) -> Tensor:
        """(entities, d_model): type after type, within a type frame after frame."""
        inputs = self.inputs(batch)
        return torch.cat([self.by_type[module_key(name)](x) for name, x in inputs.items()])

    def inputs(self, batch: EntityBatch) -> Mapping[str, Tensor]:
        """(n, features + global features) per type, not yet normalised."""
        inputs = {}
        for name in self.types:
            rows = batch.features[name]
            x = rows.values
            if self.has_globals and name != GLOBAL:
                frames = to_device(rows.frame_of_row(), x.device)
                x = torch.cat([x, batch.features[GLOBAL].values.index_select(0, frames)], dim=1)
            inputs[name] = x
        return inputs

    def update_input_stats(self, batch: EntityBatch) -> None:
        """Take the features of a batch into the statistics that normalise them."""
        for name, x in self.inputs(batch).items():
            embedding = self.by_type[module_key(name)]
            if isinstance(embedding, TypeEmbedding):
                embedding.norm.update(x)


class TypeEmbedding(nn.Module):
    """Normalise, project, rectify, normalise again."""

    def __init__(self, num_features: int, d_model: int) -> None:
        super().__init__()
        self.norm = InputNorm(num_features)
        self.linear = nn.Linear(num_features, d_model)
        self.layer_norm = nn.LayerNorm(d_model)

    def forward(self, x: Tensor) -> Tensor:
        """(n, num_features) -> (n, d_model)."""
        x = self.layer_norm(self.linear(self.norm(x)).relu())
        return x


class FeaturelessEmbedding(nn.Module):
    """One learnt vector for every entity of a type that has no features."""

    def __init__(self, d_model: int) -> None:
        super().__init__()
        self.vector = nn.Parameter(torch.randn(1, d_model))

    def forward(self, x: Tensor) -> Tensor:
        """(n, 0) -> (n, d_model)."""
        return self.vector.expand(x.shape[0], -1)


def module_key(name: str) -> str:
    """A key for `nn.ModuleDict` that is a name's own: any name may be used for a type or action.

    Keys must not contain a dot nor be an attribute of the module, such as `train` or `keys`.
    """
    return "/" + name.replace("%", "%25").replace(".", "%2E")
