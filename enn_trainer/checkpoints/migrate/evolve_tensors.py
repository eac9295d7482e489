"""Transfer of network tensors and optimizer moments between two worlds, slice by slice.

Tensors, and the slices along each of their dimensions, have names that are independent of the
order of names in a world, so an upgrade moves tensors by them.
"""

import math
from collections.abc import Collection, Iterator, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from enn_trainer.base.errors import CheckpointError
from enn_trainer.checkpoints.migrate.evolve_rules import Name, Rules, label_names
from entity_env.spaces import GLOBAL, ActionSpace
from rogue_net.actions.heads import HEADS
from rogue_net.embedding import FeaturelessEmbedding, TypeEmbedding, module_key
from rogue_net.rogue_net import RogueNet, RogueNetWithValueNet

Network = RogueNet | RogueNetWithValueNet
PARTS = ("policy", "value", "norm")
DISTANCE: Name = ("distance",)
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


class Axes(NamedTuple):
    """Names of a tensor and of its slices.

    Attributes:
        place: identity of the tensor, the same in every world that has the type or action.
        slices: names of the slices along each dimension; None for a dimension without names.
    """

    place: Name
    slices: tuple[Sequence[Name] | None, ...]


def axes_of(network: Network) -> dict[str, Axes]:
    """Return the `Axes` of each tensor of the state dict, by key."""
    if isinstance(network, RogueNetWithValueNet):
        return {
            f"{part}.{key}": Axes(("part", part, *axes.place), axes.slices)
            for part, own in parts_of(network).items()
            for key, axes in axes_of(own).items()
        }
    types = {module_key(name): name for name in network.embedding.types}
    actions = {module_key(name): name for name in network.action_space}
    return {
        key: _axes(key, tensor.ndim, network, types, actions)
        for key, tensor in network.state_dict().items()
    }


def parts_of(network: Network) -> dict[str, RogueNet]:
    """Return the networks inside a network, by key prefix; "" for a `RogueNet`."""
    if isinstance(network, RogueNet):
        return {"": network}
    return {"policy": network.policy, "value_function": network.value_function}


def _common_parts(old: Network, new: Network) -> list[tuple[str, RogueNet, RogueNet]]:
    """Return the key prefix, the old and the new network of each part that both networks have."""
    before = parts_of(old)
    return [(part, before[part], net) for part, net in parts_of(new).items() if part in before]


def columns_of_type(network: RogueNet, name: str) -> list[Name]:
    """Return the names of the input columns of an entity type's embedding."""
    space, translation = network.obs_space, network.embedding.translation
    own = space.entities[name].features if name in space.entities else []
    columns: list[Name] = [("feature", name, feature) for feature in own]
    columns += [("global", feature) for feature in space.global_features]
    if translation is not None and translation.config.add_dist_feature:
        columns += [DISTANCE] * (name in translation.columns)
    return columns


def labels_of_type(network: RogueNet, name: str) -> list[Name]:
    """Return the names of the rows of the labels of an entity type's embedding."""
    kinds = network.embedding.kinds.get(name, [])
    num_own = len(kinds) - len(network.obs_space.global_kinds)
    return [*label_names(name, kinds[:num_own]), *label_names(GLOBAL, kinds[num_own:])]


def _axes(
    key: str, ndim: int, network: RogueNet, types: dict[str, str], actions: dict[str, str]
) -> Axes:
    """Return the `Axes` of a tensor of a `RogueNet`.

    Args:
        key: its key in the state dict.
        ndim: its number of dimensions.
        network: the network.
        types: names of the entity types by the names of their modules.
        actions: names of the actions by the names of their modules.
    """
    plain: tuple[Sequence[Name] | None, ...] = (None,) * ndim
    relpos = network.relpos
    match key.split("."):
        # Embedding of a type: columns by feature.
        case ["embedding", "by_type", one, *rest]:
            name = types[one]
            columns = columns_of_type(network, name)
            place: Name = ("type", name, "embedding", *rest)
            if rest == ["linear", "weight"]:
                return Axes(place, (None, columns))
            if rest == ["labels"]:
                return Axes(place, (labels_of_type(network, name), None))
            return Axes(place, (columns,) if rest[0] == "norm" else plain)
        # Relative positions: rows by type and cell, or projections by type.
        case ["relpos", "values"] if relpos is not None and relpos.config.per_entity_values:
            cells = range(relpos.num_cells)
            rows = [("type", name, str(c)) for name in relpos.types for c in cells]
            return Axes((key,), (rows, None))
        case ["relpos", "key_projection" | "value_projection" as which, one, *rest] if (
            relpos is not None and relpos.config.per_entity_projections
        ):
            return Axes(("type", types[one], which, *rest), plain)
        # Action heads: rows by label.
        case ["action_heads", one, *rest]:
            name = actions[one]
            space = network.action_space[name]
            place = ("action", name, space.kind, *rest)
            if rest[0] == "after" and space.after is not None:  # what was chosen before
                before = network.action_space[space.after]
                rows = [("label", space.after, label) for label in before.names]
                place = ("after", name, space.after, before.kind, *rest)
                return Axes(place, (rows, None) if rows else plain)
            labels = [("label", name, label) for label in space.names]
            has_labels = rest[0] in HEADS[type(space)].layers_of_labels
            return Axes(place, (labels, *plain[1:]) if has_labels else plain)
        # Memory: first states by type, choices by action, rows of those by label.
        case ["memory", "first", one]:
            return Axes(("type", types[one], "memory"), plain)
        case ["memory", "choices", one, *rest] if network.memory is not None:
            name = {module_key(action): action for action in network.memory.actions}[one]
            space = network.memory.actions[name]
            place = ("action", name, space.kind, "memory", *rest)
            labels = [("label", name, label) for label in space.labels]
            components = [("label", name, one) for one in space.components]
            if components and rest == ["weight"]:
                return Axes(place, (None, components))
            return Axes(place, (labels, None) if labels else plain)
    return Axes((key,), plain)


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

    def kept(self, old: Tensor) -> Tensor:
        """Return the kept slices of an old tensor, which has named slices."""
        assert self.dim is not None
        index = torch.tensor(self.old, dtype=torch.int64, device=old.device)
        return old.index_select(self.dim, index)

    def copied(self, old: Tensor, fill: Tensor) -> Tensor:
        """Return `fill` with the kept slices of the old tensor copied to their new indices."""
        if self.dim is None:
            return old.clone()
        where = torch.tensor(self.new, dtype=torch.int64, device=old.device)
        return fill.clone().index_copy(self.dim, where, self.kept(old))

    def fate(self, old: Tensor) -> str:
        """Return the change of the old tensor, as in `Moved`."""
        if self.dim is None:
            return "kept"
        fates = {
            "permuted": self.old != sorted(self.old),
            "grown": len(self.old) < self.size,
            "cut": len(self.old) < old.shape[self.dim],
        }
        return " and ".join(fate for fate, is_so in fates.items() if is_so) or "kept"


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
        new, part = tensors[key], _part_of(key)
        old_key, was = old_axes.get(axes.place, ("", None))
        if was is None or part not in parts:
            why = "" if was is None else f"{part} is not taken over"
            moved.append(Moved(key, "new", None, (*new.shape,), why))
            continue
        source = Source(old_key, None, [], [], 0)
        for dim, (slices, wanted) in enumerate(zip(was.slices, axes.slices, strict=True)):
            if slices is not None and wanted is not None:
                place = {rules.name(name): i for i, name in enumerate(slices)}
                kept = [i for i, name in enumerate(wanted) if name in place]
                source = Source(old_key, dim, [place[wanted[i]] for i in kept], kept, len(wanted))
                break
        sources[key], tensor = source, before[old_key]
        have, want = [*tensor.shape], [*new.shape]
        if source.dim is not None:
            have[source.dim] = want[source.dim]
        if have != want:
            raise CheckpointError(f"{key}: expected shape {have} as in the save, got {want}")
        tensors[key] = source.copied(tensor, _fill(new, tensor, source, axes, rules))
        if source.is_new:
            moved.append(Moved(key, "new", None, (*new.shape,), "none of its old names is left"))
        else:
            moved.append(Moved(key, source.fate(tensor), (*tensor.shape,), (*new.shape,)))

    # Old tensors without a place in the new network.
    used = {source.key for source in sources.values()}
    dropped = {key: tensor for key, tensor in before.items() if key not in used}
    moved += [Moved(key, "dropped", (*tensor.shape,), None) for key, tensor in dropped.items()]

    # New blocks and changed embeddings start so that the outputs stay as they were.
    neutral = _neutral(old, fresh, rules, parts)
    for key, value in neutral.items():
        tensors[key].copy_(value)
    moved = [m._replace(why="no effect at first") if m.key in neutral else m for m in moved]
    return Upgrade(tensors, sources, moved)


def _part_of(key: str) -> str:
    """Return the one of `PARTS` that a tensor belongs to, by its key in the state dict."""
    if key.removeprefix("value_function.").startswith("regression_heads."):
        return "value"  # with the statistics of returns
    *_, module, tensor = key.split(".")
    if module == "norm" and tensor in _STATISTICS:
        return "norm"
    return "value" if key.startswith("value_function.") else "policy"


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
        fill = source.kept(moment).mean(dim=source.dim, keepdim=True).expand(shape)
    return source.copied(moment, fill)


def _fill(fresh: Tensor, old: Tensor, source: Source, axes: Axes, rules: Rules) -> Tensor:
    """Return the initial values of the slices that the save does not have.

    New features start with weight 0, new labels of actions with a small probability, those of
    kinds as the mean of the kept ones, new numbers at the middle of their range; the rest as
    initialised.
    """
    match axes.place:
        case (*_, "embedding", "labels"):
            names, of_kinds = axes.slices[0] or [], dict[Name, list[int]]()
            for row, index in zip(source.old, source.new, strict=True):
                of_kinds.setdefault(names[index][:-1], []).append(row)
            fill = torch.zeros_like(fresh)  # of new kinds
            for index, name in enumerate(names):
                if name[:-1] in of_kinds:
                    fill[index] = old[of_kinds[name[:-1]]].mean(dim=0)
            return fill
        case (*_, "embedding", "linear", "weight") | (*_, "embedding", "norm", _):
            return torch.zeros_like(fresh)
        case (*_, "mean", _):  # of numbers: the middle of their range
            return torch.zeros_like(fresh)
        case (*_, "project", "weight" | "bias" as which) if source.dim is not None and source.old:
            # The mean weights of the n kept labels, with a lower bias. By Jensen's inequality
            # mean(s) <= log(mean(exp(s))) over the kept scores s. So the k new labels have a total
            # probability of at most p = `new_label_prob`, with equality where all s are equal.
            mean = source.kept(old).mean(dim=0, keepdim=True).expand_as(fresh)
            n, k, p = len(source.old), source.size - len(source.new), rules.new_label_prob
            if which == "weight" or k == 0:
                return mean
            # k * exp(mean + b) = p / (1 - p) * n * exp(mean)  =>  b = log(n * p / (k * (1 - p)))
            return mean + math.log(n * p / (k * (1 - p)))
    return fresh


def _neutral(
    old: Network, fresh: Network, rules: Rules, parts: Collection[str]
) -> dict[str, Tensor]:
    """Return the values of new blocks and changed embeddings that leave the outputs as they were.

    Args:
        old: the network of the save.
        fresh: the new network.
        rules: renames from the old world to the new one.
        parts: the `PARTS` that are taken over.

    Returns:
        A tensor for each key in the state dict of the new network, or a number for all of it.
    """
    neutral: dict[str, Tensor] = {}
    zero = torch.zeros(())
    for part, before, net in _common_parts(old, fresh):
        if ("value" if part == "value_function" else "policy") not in parts:
            continue
        begin = f"{part}." if part else ""

        # The output layers of new blocks are zero, so that the blocks add nothing.
        for i in range(before.config.n_layer, net.config.n_layer):
            for module in ("attention.project", "mlp.2"):
                key = f"{begin}transformer.blocks.{i}.{module}"
                neutral |= {f"{key}.weight": zero, f"{key}.bias": zero}

        # So are those of blocks after memory, and what memory adds to entities.
        if (memory := net.memory) is not None:
            had = 0 if before.memory is None else len(before.memory.transformer.blocks)
            for i in range(had, len(memory.transformer.blocks)):
                for module in ("attention.project", "mlp.2"):
                    key = f"{begin}memory.transformer.blocks.{i}.{module}"
                    neutral |= {f"{key}.weight": zero, f"{key}.bias": zero}
            if before.memory is None:
                neutral[f"{begin}memory.to_entities.weight"] = zero

        # Types that gain their first feature or lose their last one keep their embedding.
        for name in before.embedding.types:
            now = rules.new("type", name)
            if now not in net.embedding.types:
                continue
            was = before.embedding.by_type[module_key(name)]
            is_now = net.embedding.by_type[module_key(now)]
            key = f"{begin}embedding.by_type.{module_key(now)}"
            if isinstance(was, FeaturelessEmbedding) and isinstance(is_now, TypeEmbedding):
                # Gain 0 and bias = old vector: features have an effect once the gain is learnt.
                gain, bias = f"{key}.layer_norm.weight", f"{key}.layer_norm.bias"
                neutral |= {gain: zero, bias: was.vector[0]}
            if isinstance(was, TypeEmbedding) and isinstance(is_now, FeaturelessEmbedding):
                hidden = _bias_with_means(before, name, [])
                with_features_at_their_mean = was.layer_norm(hidden.relu())
                neutral[f"{key}.vector"] = with_features_at_their_mean.unsqueeze(0)
            if isinstance(was, TypeEmbedding) and isinstance(is_now, TypeEmbedding):
                kept = {label[:-1] for label in labels_of_type(net, now)}
                kinds = [rules.name(label)[:-1] for label in labels_of_type(before, name)]
                if not {*kinds} <= kept:
                    hidden = _bias_with_means(before, name, [kind in kept for kind in kinds])
                    neutral[f"{key}.linear.bias"] = hidden
                if kept and not kinds:
                    neutral[f"{key}.labels"] = zero
    return neutral


def _bias_with_means(network: RogueNet, name: str, kept: Sequence[bool]) -> Tensor:
    """Return the bias of a type's embedding, with the mean vector of each kind that is removed.

    Args:
        network: the network.
        name: of the type.
        kept: for each label, True if its kind is kept; [] if none is.
    """
    of_type = network.embedding.by_type[module_key(name)]
    assert isinstance(of_type, TypeEmbedding)
    bias: Tensor = of_type.linear.bias
    first = 0
    for kind in network.embedding.kinds.get(name, []):
        last = first + len(kind.labels)
        if not any(kept[first:last]):
            bias = bias + of_type.labels[first:last].mean(dim=0)
        first = last
    return bias


def _changes_of_action(
    name: str, was: ActionSpace, now: ActionSpace, rules: Rules
) -> Iterator[str]:
    """Yield why the decisions of an action differ."""
    if was.kind != now.kind:
        yield f"action {name}: it was {was.kind}, is now {now.kind}"
        return
    before = None if was.after is None else rules.new("action", was.after)
    when = [rules.new("label", was.after or "", label) for label in was.when]
    if (before, sorted(when)) != (now.after, sorted(now.when)):
        texts = [
            "none" if after is None else f"{after} ({', '.join(labels) or 'any'})"
            for after, labels in ((before, when), (now.after, now.when))
        ]
        yield f"action {name}: after was {texts[0]}, is now {texts[1]}"
    bounds = {rules.new("label", name, one): value for one, value in was.bounds_by_name().items()}
    for component, (low, high) in now.bounds_by_name().items():
        if component in bounds and bounds[component] != (low, high):
            least, most = bounds[component]
            was_range, range_ = f"{least:g} to {most:g}", f"{low:g} to {high:g}"
            yield f"action {name}: {component} was from {was_range}, is now from {range_}"


def function_changes(old: Network, new: Network, rules: Rules) -> list[str]:
    """Return why outputs of the upgraded network differ for observations that both worlds share.

    Args:
        old: network of the save.
        new: network for the new spaces.
        rules: the renames.
    """
    changes = []
    for part, was, net in _common_parts(old, new):
        section = "vf_net" if part == "value_function" else "net"

        # Blocks that are dropped.
        num_dropped = was.config.n_layer - net.config.n_layer
        if num_dropped > 0:
            blocks = f"{num_dropped} of {was.config.n_layer} blocks"
            changes.append(f"{section}.n_layer: {blocks} are dropped")

        # Memory that is taken away or of another kind.
        remembered, remembers = was.config.memory, net.config.memory
        if remembered is not None and remembers is None:
            changes.append(f"{section}.memory: it is taken away")
        elif remembered is not None and remembers is not None:
            for field in ("of", "types", "keep_absent", "inputs"):
                value, now_value = getattr(remembered, field), getattr(remembers, field)
                if value != now_value:
                    changes.append(f"{section}.memory.{field}: it was {value}, is now {now_value}")
            if (num := remembered.n_layer - remembers.n_layer) > 0:
                blocks = f"{num} of {remembered.n_layer} blocks"
                changes.append(f"{section}.memory.n_layer: {blocks} are dropped")

        # Actions of another kind, or that depend on others than before, and other bounds.
        for name, space in was.action_space.items():
            action = rules.new("action", name)
            if action in net.action_space:
                changes += _changes_of_action(action, space, net.action_space[action], rules)

        # Global features that became an entity or stopped being one.
        is_entity = GLOBAL in net.embedding.types
        if (GLOBAL in was.embedding.types) != is_entity:
            verb = "became" if is_entity else "are no longer"
            changes.append(
                f"{section}: global features {verb} an entity, because of the global actions"
            )

        # Positions and headings that are read from other features.
        known = {rules.new("type", name) for name in was.embedding.types} & {*net.embedding.types}
        now = _positions(net)
        renamed = {
            (what, rules.new("type", name)): [rules.name(one) for one in columns]
            for (what, name), columns in _positions(was).items()
        }
        for what, name in sorted(renamed.keys() | now.keys()):
            columns = renamed.get((what, name), []), now.get((what, name), [])
            if name in known and columns[0] != columns[1]:
                had, has = ([one[-1] for one in names] for names in columns)
                changes.append(f"{section}: {what} of {name} had features {had}, now {has}")
    return changes


def _positions(network: RogueNet) -> dict[tuple[str, str], list[Name]]:
    """Return the effects of names on the outputs of a network that are not in any tensor.

    Returns:
        Features that give an entity type its relative position, its orientation or its place after
        translation, by (purpose, type).
    """
    sources: dict[str, dict[str, list[int]]] = {}
    if network.relpos is not None:
        sources["relative positions"] = network.relpos.columns
        sources["rotation of relative positions"] = network.relpos.heading_columns
    if (translation := network.embedding.translation) is not None:
        reference = translation.config.reference_entity
        sources["translation"] = {**translation.columns, reference: translation.position}
        sources["rotation of translation"] = {reference: translation.rotation}
    return {
        (what, name): [columns_of_type(network, name)[i] for i in indices]
        for what, by_type in sources.items()
        for name, indices in by_type.items()
    }
