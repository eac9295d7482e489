"""Conversion of the weights of the published network, rogue-net 0.1.9."""

import re
from collections.abc import Iterable, Mapping

import torch
from torch import Tensor

from rogue_net.embedding import module_key
from rogue_net.relpos.encoding import ALL_TYPES

_BLOCK = r"backbone\.blocks\.(\d+)\."
_RELPOS = r"backbone\.relpos_encoding\."
# A projection of one type has the type's name in between, which may contain any character.
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
"""Patterns of published parameter names, and templates of new names with their groups."""
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
"""New names of the group `part`; the group `name` is the name of a type or action."""
_UNUSED = [
    _BLOCK + r"attn\.relpos_encoding\..*",  # aliases of parameters that all blocks share
    _RELPOS + r"(strides|extent_tensor|distance_values\.weight)",  # derived from the config
]


def from_published(weights: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Convert the weights of a published network to a `RogueNet` with the same outputs.

    With `per_entity_projections`, the published network applies the sum of the projections of all
    types to its first entity type, and none to the remaining types. So do the converted weights.

    Args:
        weights: the state dict, in its order.

    Raises:
        ValueError: see `renamed`.
        RuntimeError: shapes of tensors to combine do not match.
    """
    weights = dict(weights)
    for first, *remaining in projections_by_type(weights):
        weights[first] = torch.stack([weights[name] for name in (first, *remaining)]).sum(dim=0)
        weights.update({name: torch.zeros_like(weights[name]) for name in remaining})
    return renamed(weights)


def projections_by_type(names: Iterable[str]) -> list[list[str]]:
    """Group the published parameters of per-entity projections of relative positions.

    Args:
        names: parameter names, in the order of the state dict.

    Returns:
        Groups of names, each with one parameter per type, in the order of the types.
    """
    groups: dict[tuple[str, str], list[str]] = {}
    for name in names:
        if (match := re.fullmatch(_PROJECTION, name)) and match[2] is not None:
            groups.setdefault((match[1], match[3]), []).append(name)
    return list(groups.values())


def renamed(state_dict: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Rename published parameters to parameters of `RogueNet`, for gradients and moments.

    The three projections of attention are concatenated. For weights use `from_published`.

    Raises:
        ValueError: a parameter has no equivalent in `RogueNet`, or a block lacks one of the three
            projections.
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
            values = match.groupdict()
            part = _PARTS.get(values.get("part", ""))
            key = module_key(values.get("name") or ALL_TYPES)
            return new.format(*match.groups(), part=part, name=key)
    raise ValueError(f"{name}: not a parameter of a network that can be converted")
