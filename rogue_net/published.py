"""Conversion of the weights of the published network, rogue-net 0.1.9."""

import re
from collections.abc import Callable, Iterable, Mapping

import torch
from torch import Tensor

from rogue_net.embedding import module_key
from rogue_net.relpos.encoding import ALL_TYPES

_BLOCK = r"backbone\.blocks\.(\d+)\."
_RELPOS = r"backbone\.relpos_encoding\."
# A projection of one type has the type's name in between, which may hold anything.
_PROJECTION = _RELPOS + r"([kv]proj)\.(?:(.*)\.)?(weight|bias)"
_PROJECTIONS = {"kproj": "key_projection", "vproj": "value_projection"}
_EMBEDDED = {"0": "norm", "1": "linear", "3": "layer_norm"}
_HEADS = {"proj": "project", "query_proj": "query", "key_proj": "key"}
_RENAMED: list[tuple[str, str | Callable[[re.Match[str]], str]]] = [
    (_BLOCK + r"ln([12])\.(.*)", r"transformer.blocks.\1.norm_\2.\3"),
    (_BLOCK + r"attn\.proj\.(.*)", r"transformer.blocks.\1.attention.project.\2"),
    (_BLOCK + r"attn\.prepool\.(.*)", r"transformer.blocks.\1.attention.prepool.\2"),
    (_BLOCK + r"mlp\.([02])\.(.*)", r"transformer.blocks.\1.mlp.\2.\3"),
    (_RELPOS + r"(keys|values)\.weight", r"relpos.\1"),
    (_RELPOS + r"value_gate_proj\.(\w+)", r"relpos.gate.\1"),
    (_RELPOS + r"relpos_norm\.(\w+)", r"relpos.norm.\1"),
    (_PROJECTION, lambda m: f"relpos.{_PROJECTIONS[m[1]]}.{module_key(m[2] or ALL_TYPES)}.{m[3]}"),
    (
        r"embedding\.embeddings\.(.*)\.([013])\.(\w+)",
        lambda m: f"embedding.by_type.{module_key(m[1])}.{_EMBEDDED[m[2]]}.{m[3]}",
    ),
    (
        r"embedding\.embeddings\.(.*)\.embedding",
        lambda m: f"embedding.by_type.{module_key(m[1])}.vector",
    ),
    (
        r"action_heads\.(.*)\.(proj|query_proj|key_proj)\.(\w+)",
        lambda m: f"action_heads.{module_key(m[1])}.{_HEADS[m[2]]}.{m[3]}",
    ),
    (
        r"auxiliary_heads\.(.*)\.(weight|bias)",
        lambda m: f"regression_heads.{module_key(m[1])}.{m[2]}",
    ),
]
"""Patterns of published names, and the names here."""
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
    for pattern, new in _RENAMED:
        if match := re.fullmatch(pattern, name):
            return match.expand(new) if isinstance(new, str) else new(match)
    raise ValueError(f"{name}: not a parameter of a network that can be converted")
