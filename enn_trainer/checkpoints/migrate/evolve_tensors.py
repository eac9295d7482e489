"""Transfer of network tensors and optimizer moments between two worlds, slice by slice."""

import math
from collections.abc import Collection, Iterator, Mapping
from typing import NamedTuple

import torch
from torch import Tensor

from enn_trainer.checkpoints.migrate.evolve_rules import Rules
from enn_trainer.checkpoints.migrate.tensor_axes import Axes, Network, axes_of, parts_of
from enn_trainer.errors import CheckpointError
from rogue_net.embedding import FeaturelessEmbedding, TypeEmbedding, module_key
from rogue_net.rogue_net import RogueNet

PARTS = ("policy", "value", "norm")
_STATISTICS = ("count", "mean", "squares_sum")
# Moments that estimate the magnitude of gradients or steps. New entries start at the mean of the
# kept ones: with zero, the first steps of the new entries would be several times too long.
_SIZES = (
    *("exp_avg_sq", "max_exp_avg_sq", "exp_inf", "square_avg", "acc_delta", "sum", "step_size"),
    *("row_var", "col_var", "variance"),
)
# Adafactor's factored moments and the dimension, counted from the last, over which each is shared.
# It cannot be read off the shape if the parameter has size 1 in that dimension.
_ONE_FOR_ALL = {"row_var": -1, "col_var": -2}


class Moved(NamedTuple):
    """Change of a tensor in an upgrade.

    Attributes:
        key: its name in the new state dict, or in the old one where it is dropped.
        fate: "kept", "permuted", "grown", "cut" or several of these; "dropped" or "new".
        before: its shape in the save, None for a new one.
        now: its shape in the new network, None for a dropped one.
        why: the reason, or "".
    """

    key: str
    fate: str
    before: tuple[int, ...] | None
    now: tuple[int, ...] | None
    why: str = ""


class Source(NamedTuple):
    """Origin of a new tensor: slices of an old one.

    Attributes:
        key: the name of the old tensor in its state dict.
        dim: the dimension whose slices have names; None if there is none.
        old: indices of the kept slices in the old tensor.
        new: indices of the kept slices in the new tensor.
        size: number of slices in the new tensor.
    """

    key: str
    dim: int | None
    old: list[int]
    new: list[int]
    size: int

    @property
    def is_new(self) -> bool:
        """True if no named slice is kept, so that nothing is copied."""
        return self.dim is not None and not self.old


class Upgrade(NamedTuple):
    """Tensors of a network after an upgrade to another world.

    Attributes:
        tensors: the new state dict.
        sources: origins of the tensors that come from the save, by new key.
        moved: the change of every tensor.
    """

    tensors: dict[str, Tensor]
    sources: dict[str, Source]
    moved: list[Moved]


@torch.no_grad()
def upgrade_tensors(old: Network, fresh: Network, rules: Rules, parts: Collection[str]) -> Upgrade:
    """Return weights and statistics of `old` arranged for the world and configuration of `fresh`.

    Args:
        old: network with the weights to keep.
        fresh: network with the wanted names and shapes, initialised for everything new.
        rules: renames from the old world to the new one.
        parts: the `PARTS` to take over; the others stay as initialised.

    Raises:
        CheckpointError: shapes differ in a dimension without names.
    """
    # Copy the named slices of every tensor that both networks have.
    before = old.state_dict()
    tensors = {key: tensor.clone() for key, tensor in fresh.state_dict().items()}
    old_axes = {rules.name(axes.place): (key, axes) for key, axes in axes_of(old).items()}
    sources, moved = {}, []
    for key, axes in axes_of(fresh).items():
        found = old_axes.get(axes.place)
        part = part_of(key, parts_of(fresh))
        if found is None or part not in parts:
            why = f"{part} is not taken over" if found is not None else ""
            moved.append(Moved(key, "new", None, (*tensors[key].shape,), why))
            continue
        source = sources[key] = _source(*found, key, axes, rules)
        tensor = before[source.key]
        _check_shape(tensor, tensors[key], source, key)
        tensors[key] = copy_slices(tensor, source, _fill(tensors[key], tensor, source, axes, rules))
        if source.is_new:
            why = "none of its old names is left"
            moved.append(Moved(key, "new", None, (*tensors[key].shape,), why))
            continue
        moved.append(Moved(key, _fate(source, tensor), (*tensor.shape,), (*tensors[key].shape,)))

    # Old tensors without a place in the new network.
    used = {source.key for source in sources.values()}
    for key, tensor in before.items():
        if key not in used:
            moved.append(Moved(key, "dropped", (*tensor.shape,), None))

    # New blocks and changed embeddings start so that the outputs stay as they were.
    neutral: set[str] = set()
    for begin, was, is_now in _parts_taken(old, fresh, parts):
        neutral |= _add_blocks(begin, was, is_now, tensors)
        neutral |= _change_embeddings(begin, was, is_now, tensors, rules)
    moved = [m._replace(why="no effect at first") if m.key in neutral else m for m in moved]
    return Upgrade(tensors, sources, moved)


def part_of(key: str, parts: Mapping[str, RogueNet]) -> str:
    """Return the one of `PARTS` that a tensor belongs to.

    Args:
        key: its name in the state dict.
        parts: `parts_of` the network.
    """
    *_, module, tensor = key.split(".")
    if module == "norm" and tensor in _STATISTICS:
        return "norm"
    if "" in parts:
        return "value" if key.startswith("regression_heads.") else "policy"
    return "value" if key.startswith("value_function.") else "policy"


def copy_slices(old: Tensor, source: Source, fill: Tensor) -> Tensor:
    """Return `fill` with the kept slices of the old tensor copied to their new indices."""
    if source.dim is None:
        return old.clone()
    index = torch.tensor(source.old, dtype=torch.int64, device=old.device)
    where = torch.tensor(source.new, dtype=torch.int64, device=old.device)
    return fill.clone().index_copy(source.dim, where, old.index_select(source.dim, index))


def upgrade_moment(name: str, moment: Tensor, parameter: Tensor, source: Source) -> Tensor | None:
    """Return an optimizer moment rearranged for the slices of the new parameter.

    Args:
        name: the key of the moment in the optimizer's state.
        moment: moment of the old parameter: a scalar, or of the parameter's shape with some
            dimensions of size 1.
        parameter: the old parameter.
        source: origin of the new parameter.

    Returns:
        The moment, or None if its shape does not fit the parameter.
    """
    # Scalars, and moments of parameters without named slices, stay as they are.
    if moment.ndim == 0 or source.dim is None:
        return moment.clone()
    shapes = zip(moment.shape, parameter.shape, strict=False)
    if moment.ndim != parameter.ndim or any(m not in (1, p) for m, p in shapes):
        return None

    # Moments that all slices share stay as they are.
    one_for_all = parameter.shape[source.dim] > 1
    one_for_all |= _ONE_FOR_ALL.get(name) == source.dim - moment.ndim
    if moment.shape[source.dim] == 1 and one_for_all:
        return moment.clone()

    # New slices start at zero, or at the mean of the kept ones.
    shape = [*moment.shape]
    shape[source.dim] = source.size
    fill = moment.new_zeros(shape)
    if name in _SIZES and source.old:
        index = torch.tensor(source.old, dtype=torch.int64, device=moment.device)
        kept = moment.index_select(source.dim, index)
        fill = kept.mean(dim=source.dim, keepdim=True).expand(shape)
    return copy_slices(moment, source, fill)


def _source(old_key: str, old: Axes, key: str, new: Axes, rules: Rules) -> Source:
    for dim, (slices, wanted) in enumerate(zip(old.slices, new.slices, strict=True)):
        if slices is not None and wanted is not None:
            place = {rules.name(name): i for i, name in enumerate(slices)}
            pairs = [(place[name], i) for i, name in enumerate(wanted) if name in place]
            return Source(old_key, dim, [o for o, _ in pairs], [n for _, n in pairs], len(wanted))
    return Source(old_key, None, [], [], 0)


def _check_shape(old: Tensor, new: Tensor, source: Source, key: str) -> None:
    have, want = [*old.shape], [*new.shape]
    if source.dim is not None:
        have[source.dim] = want[source.dim]
    if have != want:
        raise CheckpointError(f"{key}: expected shape {have} as in the save, got {want}")


def _fill(fresh: Tensor, old: Tensor, source: Source, axes: Axes, rules: Rules) -> Tensor:
    """Return the initial values of the slices that the save does not have.

    New features start with weight 0 and new labels with a small probability; the rest as
    initialised.
    """
    match axes.place:
        case (*_, "embedding", "linear", "weight") | (*_, "embedding", "norm", _):
            return torch.zeros_like(fresh)
        case (*_, "project", "weight" | "bias" as which) if source.dim is not None and source.old:
            return _new_label_scores(fresh, old, source, rules, is_bias=which == "bias")
    return fresh


def _new_label_scores(
    fresh: Tensor, old: Tensor, source: Source, rules: Rules, is_bias: bool
) -> Tensor:
    """Return the mean weights of the kept labels, with a lower bias.

    By Jensen's inequality mean(s) <= log(mean(exp(s))) over the n kept scores s. So the k new
    labels have a total probability of at most p = `new_label_prob`, with equality where all kept
    scores are equal.
    """
    index = torch.tensor(source.old, dtype=torch.int64, device=old.device)
    mean = old.index_select(0, index).mean(dim=0, keepdim=True).expand_as(fresh)
    if not is_bias or len(source.new) == source.size:
        return mean
    added, prob = source.size - len(source.new), rules.new_label_prob
    # k * exp(mean + b) = p / (1 - p) * n * exp(mean)  =>  b = log(n * p / (k * (1 - p)))
    return mean + math.log(len(source.old) * prob / (added * (1 - prob)))


def _fate(source: Source, old: Tensor) -> str:
    if source.dim is None:
        return "kept"
    fates = []
    if source.old != sorted(source.old):
        fates.append("permuted")
    if len(source.old) < source.size:
        fates.append("grown")
    if len(source.old) < old.shape[source.dim]:
        fates.append("cut")
    return " and ".join(fates) or "kept"


def _parts_taken(
    old: Network, fresh: Network, parts: Collection[str]
) -> Iterator[tuple[str, RogueNet, RogueNet]]:
    """Yield key prefix, old network and new network of each part that is taken over."""
    befores = parts_of(old)
    for part, net in parts_of(fresh).items():
        wanted = "value" if part == "value_function" else "policy"
        if part in befores and wanted in parts:
            yield f"{part}." if part else "", befores[part], net


def _add_blocks(begin: str, old: RogueNet, fresh: RogueNet, tensors: dict[str, Tensor]) -> set[str]:
    """Zero the output layers of new blocks, so that they add nothing; return the changed keys."""
    keys = {
        f"{begin}transformer.blocks.{i}.{module}.{name}"
        for i in range(old.config.n_layer, fresh.config.n_layer)
        for module in ("attention.project", "mlp.2")
        for name in ("weight", "bias")
    }
    for key in keys:
        tensors[key].zero_()
    return keys


def _change_embeddings(
    begin: str, old: RogueNet, fresh: RogueNet, tensors: dict[str, Tensor], rules: Rules
) -> set[str]:
    """Keep the embedding of types that gain their first or lose their last feature.

    Returns:
        The keys of the changed tensors.
    """
    keys: set[str] = set()
    for name in old.embedding.types:
        now = rules.type(name)
        if now not in fresh.embedding.types:
            continue
        was = old.embedding.by_type[module_key(name)]
        is_now = fresh.embedding.by_type[module_key(now)]
        key = f"{begin}embedding.by_type.{module_key(now)}"
        if isinstance(was, FeaturelessEmbedding) and isinstance(is_now, TypeEmbedding):
            # Gain 0 and bias = old vector: features have an effect once the gain is learnt.
            tensors[f"{key}.layer_norm.weight"].zero_()
            tensors[f"{key}.layer_norm.bias"].copy_(was.vector[0])
            keys |= {f"{key}.layer_norm.weight", f"{key}.layer_norm.bias"}
        if isinstance(was, TypeEmbedding) and isinstance(is_now, FeaturelessEmbedding):
            with_features_at_their_mean = was.layer_norm(was.linear.bias.relu())
            tensors[f"{key}.vector"].copy_(with_features_at_their_mean.unsqueeze(0))
            keys.add(f"{key}.vector")
    return keys
