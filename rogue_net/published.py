"""Conversion of the weights of the published network, rogue-net 0.1.9."""

import re
from collections.abc import Iterable, Mapping

import torch
from torch import Tensor

from rogue_net.embedding import module_key
from rogue_net.relpos.encoding import ALL_TYPES

_BLOCK = r"backbone\.blocks\.(\d+)\."
_RELPOS = r"backbone\.relpos_encoding\."
# A projection of one type has the type's name in between, which may hold anything.
_PROJECTION = _RELPOS + r"(?P<part>[kv]proj)\.(?:(?P<name>.*)\.)?(weight|bias)"
_EMBEDDING = r"embedding\.embeddings\.(?P<name>.*)\."
_HEAD = r"action_heads\.(?P<name>.*)\."
_RENAMED = {
    _BLOCK + r"ln([12])\.(.*)": "transformer.blocks.{0}.norm_{1}.{2}",
    _BLOCK + r"attn\.proj\.(.*)": "transformer.blocks.{0}.attention.project.{1}",
    _BLOCK + r"attn\.prepool\.(.*)": "transformer.blocks.{0}.attention.prepool.{1}",
    _BLOCK + r"mlp\.([02])\.(.*)": "transformer.blocks.{0}.mlp.{1}.{2}",
    _RELPOS + r"(keys|values)\.weight": "relpos.{0}",
    _RELPOS + r"value_gate_proj\.(\w+)": "relpos.gate.{0}",
    _RELPOS + r"relpos_norm\.(\w+)": "relpos.norm.{0}",
    _PROJECTION: "relpos.{part}.{name}.{2}",
    _EMBEDDING + r"(?P<part>[013])\.(\w+)": "embedding.by_type.{name}.{part}.{2}",
    _EMBEDDING + "embedding": "embedding.by_type.{name}.vector",
    _HEAD + r"(?P<part>(query_|key_)?proj)\.(\w+)": "action_heads.{name}.{part}.{3}",
    r"auxiliary_heads\.(?P<name>.*)\.(weight|bias)": "regression_heads.{name}.{1}",
}
"""Patterns of published names, and the names here, made of their groups."""
_PARTS = {
    "kproj": "key_projection",
    "vproj": "value_projection",
    "0": "norm",
    "1": "linear",
    "3": "layer_norm",
    "proj": "project",
    "query_proj": "query",
    "key_proj": "key",
}
"""Names here of the parts of a module, in a group `part`; a group `name` is of a type or action."""
_UNUSED = [
    _BLOCK + r"attn\.relpos_encoding\..*",  # every block names again what all of them share
    _RELPOS + r"(strides|extent_tensor|distance_values\.weight)",  # follow from the config; unread
]


def from_published(weights: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return the weights of a published network for a `RogueNet` with the same outputs.

    With `per_entity_projections` the published network gives its first entity type the sum of the
    projections of all types, and the others none. These weights are the same.

    Args:
        weights: its state dict, in its order.

    Raises:
        ValueError: as of `renamed`.
        RuntimeError: tensors that belong together have other shapes.
    """
    weights = dict(weights)
    for first, *others in projections_by_type(weights):
        weights[first] = torch.stack([weights[name] for name in (first, *others)]).sum(dim=0)
        weights.update({name: torch.zeros_like(weights[name]) for name in others})
    return renamed(weights)


def projections_by_type(names: Iterable[str]) -> list[list[str]]:
    """Return the published parameters that project relative positions for one type each.

    Args:
        names: of the parameters of a network, in the order of its state dict.

    Returns:
        Groups of names, one of each type in the order of the types.
    """
    found: dict[tuple[str, str], list[str]] = {}
    for name in names:
        if (match := re.fullmatch(_PROJECTION, name)) and match[2] is not None:
            found.setdefault((match[1], match[3]), []).append(name)
    return list(found.values())


def renamed(state_dict: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return tensors by the names of `RogueNet`, given those by published parameter names.

    The three projections of attention become one matrix. For weights use `from_published`; this
    is for their gradients and moments.

    Raises:
        ValueError: a parameter is of a part that `RogueNet` does not have, or a projection lacks
            the others of its block.
    """
    result: dict[str, Tensor] = {}
    for name, tensor in state_dict.items():
        if match := re.fullmatch(_BLOCK + r"attn\.(?:key|query|value)\.(.*)", name):
            block, kind = match.groups()
            fused = f"transformer.blocks.{block}.attention.query_key_value.{kind}"
            parts = [f"backbone.blocks.{block}.attn.{p}.{kind}" for p in ("query", "key", "value")]
            if missing := [part for part in parts if part not in state_dict]:
                raise ValueError(f"{missing[0]}: missing, but there is {name}")
            result[fused] = torch.cat([state_dict[part] for part in parts])
            continue
        if any(re.fullmatch(pattern, name) for pattern in _UNUSED):
            continue
        new_name = _rename(name)
        if new_name.endswith(".count"):
            tensor = tensor.to(torch.int64)
        elif new_name.endswith((".mean", ".squares_sum")):
            tensor = tensor.to(torch.float64)
        result[new_name] = tensor
    return result


def _rename(name: str) -> str:
    for pattern, new in _RENAMED.items():
        if match := re.fullmatch(pattern, name):
            named = match.groupdict()
            part = _PARTS.get(named.get("part", ""))
            key = module_key(named.get("name") or ALL_TYPES)
            return new.format(*match.groups(), part=part, name=key)
    raise ValueError(f"{name}: not a parameter of a network that can be converted")
