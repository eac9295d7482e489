"""Relative positions by definition: one pair after the other, every vector written out.

Slow, and of one frame at a time; what the network computes by lookup is compared with it.
"""

import itertools
import math
from dataclasses import dataclass

import torch
from torch import Tensor

from rogue_net import EntityBatch, RelposEncodingConfig, RogueNet
from rogue_net.embedding import module_key
from tests.rogue_net.nets import rows_of


@dataclass
class Entity:
    """One entity of a frame, as far as relative positions are concerned."""

    type: str
    position: list[float] | None
    heading: float


def plain_embed(net: RogueNet, batch: EntityBatch, i: int) -> Tensor:
    """(n, d_model), what the transformer says about the entities of frame i, without dropout."""
    one = batch.take(torch.tensor([i]).numpy())
    inputs = net.embedding.inputs(one)
    x = net.embedding(inputs)
    if len(x) == 0:
        return x
    visible = torch.cat([rows_of(one.visibility(name), 0) for name in inputs])
    keys = values = None
    if net.relpos is not None:
        keys, values = plain_keys_and_values(net, entities_of(net, inputs))
    for block in net.transformer.blocks:
        x = x + plain_attention(net, block.attention, block.norm_1(x), visible, keys, values)
        x = x + block.mlp(block.norm_2(x))
    return x


def plain_attention(
    net: RogueNet,
    attention: torch.nn.Module,
    x: Tensor,
    visible: Tensor,
    keys: Tensor | None,
    values: Tensor | None,
) -> Tensor:
    """(n, d_model) -> (n, d_model); `keys` and `values` are (n, n, d_head)."""
    d_model = x.shape[1]
    d_head = d_model // net.config.n_head
    q, k, v = attention.query_key_value(x).split(d_model, dim=1)
    allowed = visible[None, :] | ~visible[:, None]
    heads = []
    for h in range(net.config.n_head):
        part = slice(h * d_head, (h + 1) * d_head)
        scores = q[:, part] @ k[:, part].T
        if keys is not None:
            scores = scores + (q[:, part].unsqueeze(1) * keys).sum(2)
        weights = (scores / math.sqrt(d_head)).where(allowed, -torch.inf).softmax(dim=1)
        y = weights @ v[:, part]
        if values is not None:
            gated = values
            if net.relpos.gate is not None:
                gate = {
                    "linear": lambda t: t,
                    "relu": torch.relu,
                    "gelu": torch.nn.functional.gelu,
                    "sigmoid": torch.sigmoid,
                }[net.relpos.config.value_gate](net.relpos.gate(x))
                gated = values * gate.unsqueeze(0)
            y = y + (weights.unsqueeze(2) * gated).sum(1)
        heads.append(y)
    return attention.project(torch.cat(heads, dim=1))


def entities_of(net: RogueNet, inputs: dict[str, Tensor]) -> list[Entity]:
    """The entities of one frame, in the order of types."""
    config = net.config.relpos_encoding
    entities = []
    for name, rows in inputs.items():
        own = net.obs_space.entities[name].features if name in net.obs_space.entities else []
        names = [*own, *net.obs_space.global_features]
        for row in rows.tolist():
            by_name = dict(reversed(list(zip(names, row, strict=False))))
            position, heading = None, 0.0
            if name not in config.exclude_entities and set(config.position_features) <= {*names}:
                position = [by_name[feature] for feature in config.position_features]
                if config.rotation_angle_feature in by_name:
                    heading = by_name[config.rotation_angle_feature]
                elif set(config.rotation_vec_features or ["?"]) <= {*names}:
                    x, y = (by_name[feature] for feature in config.rotation_vec_features)
                    heading = math.atan2(y, x)
            entities.append(Entity(name, position, heading))
    return entities


def plain_keys_and_values(net: RogueNet, entities: list[Entity]) -> tuple[Tensor, Tensor]:
    """(n, n, d_head) each: what the entity of a row adds for that of a column."""
    relpos = net.relpos
    nothing = torch.zeros_like(relpos.keys[0])
    rows_of_keys, rows_of_values = [], []
    for query in entities:
        keys, values = [], []
        for target in entities:
            key = value = nothing
            if query.position is not None and target.position is not None:
                offset = [a - b for a, b in zip(query.position, target.position, strict=True)]
                first = 0
                if relpos.config.per_entity_values:
                    first = list(relpos.types).index(target.type) * relpos.num_cells
                for cell, weight in plain_cells(relpos.config, offset, query.heading):
                    key = key + weight * relpos.keys[cell]
                    value = value + weight * relpos.values[first + cell]
                if relpos.norm is not None:
                    length = math.hypot(*offset)
                    seen = relpos.norm(torch.tensor([[*offset, length]], dtype=torch.float64))
                    owner = query.type if relpos.config.per_entity_projections else ""
                    if relpos.config.key_relpos_projection:
                        key = key + relpos.key_projection[module_key(owner)](seen[0])
                    if relpos.config.value_relpos_projection:
                        value = value + relpos.value_projection[module_key(owner)](seen[0])
            keys.append(key)
            values.append(value)
        rows_of_keys.append(torch.stack(keys))
        rows_of_values.append(torch.stack(values))
    return torch.stack(rows_of_keys), torch.stack(rows_of_values)


def plain_cells(
    config: RelposEncodingConfig, offset: list[float], heading: float
) -> list[tuple[int, float]]:
    """The cells of a relative position and their weights."""
    if not config.radial and not config.distance:
        inside = [
            max(-e, min(e, x * (1 / config.scale))) + e
            for x, e in zip(offset, config.extent, strict=True)
        ]
        sizes = [2 * e + 1 for e in config.extent]
        strides = [math.prod(sizes[:k]) for k in range(len(sizes))]
        if not config.interpolate:
            return [(round(sum(x * s for x, s in zip(inside, strides, strict=True))), 1.0)]
        axes = [corners(x, size) for x, size in zip(inside, sizes, strict=True)]
    else:
        axes, sizes = [], list(config.extent)
        if config.radial:
            turn = (math.atan2(offset[1], offset[0]) - heading) / (2 * math.pi) % 1.0
            sector = turn * config.extent[0]
            whole = math.floor(sector) % config.extent[0]
            part = sector - math.floor(sector) if config.interpolate else 0.0
            axes.append([(whole, 1 - part), ((whole + 1) % config.extent[0], part)])
        if config.distance:
            rings = config.extent[-1]
            ring = min(math.hypot(*offset) * (1 / config.scale), rings - 1)
            axes.append(corners(ring if config.interpolate else math.floor(ring), rings))
        strides = [math.prod(sizes[:k]) for k in range(len(sizes))]
    return [
        (
            sum(stride * cell for stride, (cell, _) in zip(strides, corner, strict=True)),
            math.prod(weight for _, weight in corner),
        )
        for corner in itertools.product(*axes)
    ]


def corners(x: float, size: int) -> list[tuple[int, float]]:
    """The whole numbers around x, at most size - 1, and their weights."""
    low = math.floor(x)
    return [(low, 1 - (x - low)), (min(low + 1, size - 1), x - low)]
