"""Transfer of network tensors and optimizer moments between environments, slice by slice.

Tensors, and the slices along their dimensions, have names that do not depend on the order of
entities and features, so upgrades match them by name.
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
DISTANCE: Name = ("distance",)
_STATISTICS = ("count", "mean", "squares_sum")
# Moments that estimate the magnitude of gradients or steps. New entries start at the mean of the
# old ones: with zero, their first steps would be several times too long.
_SIZES = (
    *("exp_avg_sq", "max_exp_avg_sq", "exp_inf", "square_avg", "acc_delta", "sum", "step_size"),
    *("row_var", "col_var", "variance"),
)
# Adafactor's factored moments, and the dimension over which each is shared, counted from the last.
# The shape alone is ambiguous if the parameter has size 1 in that dimension.
_ONE_FOR_ALL = {"row_var": -1, "col_var": -2}


class Axes(NamedTuple):
    """Names of a tensor and of its slices.

    Attributes:
        place: identity of the tensor, equal in all environments with the type or action.
        slices: names of the slices along each dimension; None for a dimension without names.
    """

    place: Name
    slices: tuple[Sequence[Name] | None, ...]


def axes_of(network: Network) -> dict[str, Axes]:
    """Return the `Axes` of each tensor of the state dict, by key."""
    if isinstance(network, RogueNetWithValueNet):
        return {
            f"{part}.{key}": Axes(("part", part, *axes.place), axes.slices)
            for part, net in parts_of(network).items()
            for key, axes in axes_of(net).items()
        }
    types = {module_key(name): name for name in network.embedding.types}
    actions = {module_key(name): name for name in network.action_space}
    return {
        key: _axes(key, tensor.ndim, network, types, actions)
        for key, tensor in network.state_dict().items()
    }


def parts_of(network: Network) -> dict[str, RogueNet]:
    """Return the `RogueNet`s inside a network, by key prefix; "" for a `RogueNet` itself."""
    if isinstance(network, RogueNet):
        return {"": network}
    return {"policy": network.policy, "value_function": network.value_function}


def _common_parts(old: Network, new: Network) -> list[tuple[str, RogueNet, RogueNet]]:
    """Return the key prefix, the old and the new network of each part that both networks have."""
    before = parts_of(old)
    return [(part, before[part], net) for part, net in parts_of(new).items() if part in before]


def columns_of_type(network: RogueNet, name: str) -> list[Name]:
    """Return the names of the input columns of the embedding of an entity type."""
    space, translation = network.obs_space, network.embedding.translation
    features = space.entities[name].features if name in space.entities else []
    columns: list[Name] = [("feature", name, feature) for feature in features]
    columns += [("global", feature) for feature in space.global_features]
    if translation is not None and translation.config.add_dist_feature:
        columns += [DISTANCE] * (name in translation.columns)
    return columns


def labels_of_type(network: RogueNet, name: str) -> list[Name]:
    """Return the names of the label embeddings of an entity type."""
    kinds = network.embedding.kinds.get(name, [])
    num_own = len(kinds) - len(network.obs_space.global_kinds)
    return [*label_names(name, kinds[:num_own]), *label_names(GLOBAL, kinds[num_own:])]


def _axes(
    key: str, ndim: int, network: RogueNet, types: dict[str, str], actions: dict[str, str]
) -> Axes:
    """Return the `Axes` of a tensor of a `RogueNet`.

    Args:
        key: key of the tensor in the state dict.
        ndim: number of dimensions of the tensor.
        network: the network.
        types: entity types by module name.
        actions: actions by module name.
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
            if rest[0] == "after" and space.after is not None:  # choices of the parent action
                before = network.action_space[space.after]
                rows = [("label", space.after, label) for label in before.names]
                place = ("after", name, space.after, before.kind, *rest)
                return Axes(place, (rows, None) if rows else plain)
            labels = [("label", name, label) for label in space.names]
            has_labels = rest[0] in HEADS[type(space)].layers_of_labels
            return Axes(place, (labels, *plain[1:]) if has_labels else plain)
        # Memory: initial states by type, choices by action, with rows by label.
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


class TensorMove(NamedTuple):
    """Change of a tensor in an upgrade.

    Attributes:
        key: key in the new state dict; in the old one for a dropped tensor.
        fate: "kept", "permuted", "grown", "cut" or several of these; "dropped" or "new".
        before: shape in the checkpoint; None for a new tensor.
        now: shape in the new network; None for a dropped tensor.
        why: the reason, or "".
    """

    key: str
    fate: str
    before: tuple[int, ...] | None
    now: tuple[int, ...] | None
    why: str = ""


class Source(NamedTuple):
    """Slices of an old tensor that initialise a new tensor.

    Attributes:
        key: key of the old tensor in its state dict.
        dim: the dimension with named slices; None if there is none.
        old: indices of the copied slices in the old tensor.
        new: indices of the copied slices in the new tensor.
        size: number of slices of the new tensor.
    """

    key: str
    dim: int | None
    old: list[int]
    new: list[int]
    size: int

    @property
    def is_new(self) -> bool:
        """True if nothing is copied, as no slice has a name in common."""
        return self.dim is not None and not self.old

    def select(self, old: Tensor) -> Tensor:
        """Return the copied slices of an old tensor with named slices."""
        assert self.dim is not None
        index = torch.tensor(self.old, dtype=torch.int64, device=old.device)
        return old.index_select(self.dim, index)

    def copy_into(self, old: Tensor, fill: Tensor) -> Tensor:
        """Return `fill` with slices of the old tensor copied to their new indices."""
        if self.dim is None:
            return old.clone()
        index = torch.tensor(self.new, dtype=torch.int64, device=old.device)
        return fill.clone().index_copy(self.dim, index, self.select(old))

    def fate(self, old: Tensor) -> str:
        """Return the change of the old tensor, see `TensorMove`."""
        if self.dim is None:
            return "kept"
        fates = {
            "permuted": self.old != sorted(self.old),
            "grown": len(self.old) < self.size,
            "cut": len(self.old) < old.shape[self.dim],
        }
        return " and ".join(fate for fate, is_so in fates.items() if is_so) or "kept"


class TensorUpgrade(NamedTuple):
    """Tensors of a network after an upgrade to another environment.

    Attributes:
        tensors: the new state dict.
        sources: sources of the tensors that are copied from the checkpoint, by new key.
        moved: change of every tensor.
    """

    tensors: dict[str, Tensor]
    sources: dict[str, Source]
    moved: list[TensorMove]


@torch.no_grad()
def upgrade_tensors(
    old: Network, fresh: Network, rules: Rules, parts: Collection[str]
) -> TensorUpgrade:
    """Arrange weights and statistics of `old` for the spaces and configuration of `fresh`.

    Args:
        old: network with the weights to copy.
        fresh: newly initialised network with the new names and shapes.
        rules: renames, and the probability of new choices.
        parts: the `PARTS` to copy; other tensors stay as initialised.

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
            why = "" if was is None else f"{part} is not loaded"
            moved.append(TensorMove(key, "new", None, (*new.shape,), why))
            continue
        source = Source(old_key, None, [], [], 0)
        for dim, (slices, names) in enumerate(zip(was.slices, axes.slices, strict=True)):
            if slices is not None and names is not None:
                place = {rules.name(name): i for i, name in enumerate(slices)}
                common = [i for i, name in enumerate(names) if name in place]
                source = Source(old_key, dim, [place[names[i]] for i in common], common, len(names))
                break
        sources[key], tensor = source, before[old_key]
        have, want = [*tensor.shape], [*new.shape]
        if source.dim is not None:
            have[source.dim] = want[source.dim]
        if have != want:
            raise CheckpointError(f"{key}: expected shape {have} as in the checkpoint, got {want}")
        tensors[key] = source.copy_into(tensor, _fill(new, tensor, source, axes, rules))
        if source.is_new:
            why = "no names in common with the old tensor"
            moved.append(TensorMove(key, "new", None, (*new.shape,), why))
        else:
            moved.append(TensorMove(key, source.fate(tensor), (*tensor.shape,), (*new.shape,)))

    # Old tensors without a counterpart in the new network.
    used = {source.key for source in sources.values()}
    dropped = {key: tensor for key, tensor in before.items() if key not in used}
    moved += [TensorMove(key, "dropped", (*tensor.shape,), None) for key, tensor in dropped.items()]

    # New blocks and changed embeddings are initialised to preserve the outputs.
    neutral = _neutral(old, fresh, rules, parts)
    for key, value in neutral.items():
        tensors[key].copy_(value)
    moved = [m._replace(why="no effect at first") if m.key in neutral else m for m in moved]
    return TensorUpgrade(tensors, sources, moved)


def _part_of(key: str) -> str:
    """Return the entry of `PARTS` for a key of the state dict."""
    if key.removeprefix("value_function.").startswith("regression_heads."):
        return "value"  # with the statistics of returns
    *_, module, tensor = key.split(".")
    if module == "norm" and tensor in _STATISTICS:
        return "norm"
    return "value" if key.startswith("value_function.") else "policy"


def upgrade_moment(name: str, moment: Tensor, parameter: Tensor, source: Source) -> Tensor | None:
    """Rearrange an optimizer moment for the slices of the new parameter.

    Args:
        name: key of the moment in the state of the optimizer.
        moment: moment of the old parameter: a scalar, or of the shape of the parameter with some
            dimensions of size 1.
        parameter: the old parameter.
        source: source of the new parameter.

    Returns:
        The new moment; None if the shape of the moment does not match the parameter.
    """
    # Scalars, and moments of parameters without named slices, do not change.
    if moment.ndim == 0 or source.dim is None:
        return moment.clone()
    shapes = zip(moment.shape, parameter.shape, strict=False)
    if moment.ndim != parameter.ndim or any(m not in (1, p) for m, p in shapes):
        return None

    # Moments that all slices share do not change.
    one_for_all = parameter.shape[source.dim] > 1
    one_for_all |= _ONE_FOR_ALL.get(name) == source.dim - moment.ndim
    if moment.shape[source.dim] == 1 and one_for_all:
        return moment.clone()

    # New slices start at zero, or at the mean of the old ones.
    shape = [*moment.shape]
    shape[source.dim] = source.size
    fill = moment.new_zeros(shape)
    if name in _SIZES and source.old:
        fill = source.select(moment).mean(dim=source.dim, keepdim=True).expand(shape)
    return source.copy_into(moment, fill)


def _fill(fresh: Tensor, old: Tensor, source: Source, axes: Axes, rules: Rules) -> Tensor:
    """Return the initial values of new slices.

    New features get weight 0, new labels of actions a small probability, new labels of categorical
    features the mean of the old labels, new continuous actions the middle of their range. Other
    slices stay as initialised.
    """
    match axes.place:
        case (*_, "embedding", "labels"):
            names, rows_by_kind = axes.slices[0] or [], dict[Name, list[int]]()
            for row, index in zip(source.old, source.new, strict=True):
                rows_by_kind.setdefault(names[index][:-1], []).append(row)
            fill = torch.zeros_like(fresh)  # for new categorical features
            for index, name in enumerate(names):
                if name[:-1] in rows_by_kind:
                    fill[index] = old[rows_by_kind[name[:-1]]].mean(dim=0)
            return fill
        case (*_, "embedding", "linear", "weight") | (*_, "embedding", "norm", _):
            return torch.zeros_like(fresh)
        case (*_, "mean", _):  # continuous actions: the middle of their range
            return torch.zeros_like(fresh)
        case (*_, "project", "weight" | "bias" as which) if source.dim is not None and source.old:
            # The mean weights of the n old labels, with a lower bias. By Jensen's inequality
            # mean(s) <= log(mean(exp(s))) over the old logits s. So the k new labels have a total
            # probability of at most p = `new_label_prob`, with equality where all s are equal.
            mean = source.select(old).mean(dim=0, keepdim=True).expand_as(fresh)
            n, k, p = len(source.old), source.size - len(source.new), rules.new_label_prob
            if which == "weight" or k == 0:
                return mean
            # k * exp(mean + b) = p / (1 - p) * n * exp(mean)  =>  b = log(n * p / (k * (1 - p)))
            return mean + math.log(n * p / (k * (1 - p)))
    return fresh


def _neutral(
    old: Network, fresh: Network, rules: Rules, parts: Collection[str]
) -> dict[str, Tensor]:
    """Return values of new blocks and changed embeddings that preserve the outputs.

    Args:
        old: network of the checkpoint.
        fresh: the new network.
        rules: the renames.
        parts: the `PARTS` that are copied.

    Returns:
        A tensor, or a scalar to broadcast, by key in the state dict of the new network.
    """
    neutral: dict[str, Tensor] = {}
    zero = torch.zeros(())
    for part, before, net in _common_parts(old, fresh):
        if ("value" if part == "value_function" else "policy") not in parts:
            continue
        begin = f"{part}." if part else ""

        # Zero output layers make new blocks the identity.
        for i in range(before.config.n_layer, net.config.n_layer):
            for module in ("attention.project", "mlp.2"):
                key = f"{begin}transformer.blocks.{i}.{module}"
                neutral |= {f"{key}.weight": zero, f"{key}.bias": zero}

        # Likewise new blocks after memory, and the output of a new memory.
        if (memory := net.memory) is not None:
            had = 0 if before.memory is None else len(before.memory.transformer.blocks)
            for i in range(had, len(memory.transformer.blocks)):
                for module in ("attention.project", "mlp.2"):
                    key = f"{begin}memory.transformer.blocks.{i}.{module}"
                    neutral |= {f"{key}.weight": zero, f"{key}.bias": zero}
            if before.memory is None:
                neutral[f"{begin}memory.to_entities.weight"] = zero

        # Preserve embeddings of types that gain their first feature or lose their last one.
        for name in before.embedding.types:
            now = rules.new("type", name)
            if now not in net.embedding.types:
                continue
            was = before.embedding.by_type[module_key(name)]
            is_now = net.embedding.by_type[module_key(now)]
            key = f"{begin}embedding.by_type.{module_key(now)}"
            if isinstance(was, FeaturelessEmbedding) and isinstance(is_now, TypeEmbedding):
                # Gain 0 and bias = old vector: features contribute once the gain is learnt.
                gain, bias = f"{key}.layer_norm.weight", f"{key}.layer_norm.bias"
                neutral |= {gain: zero, bias: was.vector[0]}
            if isinstance(was, TypeEmbedding) and isinstance(is_now, FeaturelessEmbedding):
                hidden = _bias_with_means(before, name, [])
                with_features_at_their_mean = was.layer_norm(hidden.relu())
                neutral[f"{key}.vector"] = with_features_at_their_mean.unsqueeze(0)
            if isinstance(was, TypeEmbedding) and isinstance(is_now, TypeEmbedding):
                kinds_left = {label[:-1] for label in labels_of_type(net, now)}
                kinds = [rules.name(label)[:-1] for label in labels_of_type(before, name)]
                if not {*kinds} <= kinds_left:
                    hidden = _bias_with_means(before, name, [kind in kinds_left for kind in kinds])
                    neutral[f"{key}.linear.bias"] = hidden
                if kinds_left and not kinds:
                    neutral[f"{key}.labels"] = zero
    return neutral


def _bias_with_means(network: RogueNet, name: str, retained: Sequence[bool]) -> Tensor:
    """Return the bias of the embedding of a type plus the mean vectors of removed kinds.

    Args:
        network: the network.
        name: name of the type.
        retained: for each label, True if its categorical feature still exists; [] if none does.
    """
    embedding = network.embedding.by_type[module_key(name)]
    assert isinstance(embedding, TypeEmbedding)
    bias: Tensor = embedding.linear.bias
    first = 0
    for kind in network.embedding.kinds.get(name, []):
        last = first + len(kind.labels)
        if not any(retained[first:last]):
            bias = bias + embedding.labels[first:last].mean(dim=0)
        first = last
    return bias


def _changes_of_action(
    name: str, was: ActionSpace, now: ActionSpace, rules: Rules
) -> Iterator[str]:
    """Yield a message for each change of an action that changes its probabilities."""
    if was.kind != now.kind:
        yield f"action {name}: was {was.kind}, is now {now.kind}"
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
    """Return a message for each change of the outputs on observations of the old environment.

    Args:
        old: network of the checkpoint.
        new: network for the new spaces.
        rules: the renames.
    """
    changes = []
    for part, was, net in _common_parts(old, new):
        section = "vf_net" if part == "value_function" else "net"

        # Dropped blocks.
        num_dropped = was.config.n_layer - net.config.n_layer
        if num_dropped > 0:
            blocks = f"{num_dropped} of {was.config.n_layer} blocks"
            changes.append(f"{section}.n_layer: {blocks} are dropped")

        # Removed or changed memory.
        remembered, remembers = was.config.memory, net.config.memory
        if remembered is not None and remembers is None:
            changes.append(f"{section}.memory: removed")
        elif remembered is not None and remembers is not None:
            for field in ("of", "types", "keep_absent", "inputs"):
                value, now_value = getattr(remembered, field), getattr(remembers, field)
                if value != now_value:
                    changes.append(f"{section}.memory.{field}: was {value}, is now {now_value}")
            if (num := remembered.n_layer - remembers.n_layer) > 0:
                blocks = f"{num} of {remembered.n_layer} blocks"
                changes.append(f"{section}.memory.n_layer: {blocks} are dropped")

        # Actions with another class, parent action or bounds.
        for name, space in was.action_space.items():
            action = rules.new("action", name)
            if action in net.action_space:
                changes += _changes_of_action(action, space, net.action_space[action], rules)

        # Global features that became an entity, or no longer are.
        is_entity = GLOBAL in net.embedding.types
        if (GLOBAL in was.embedding.types) != is_entity:
            verb = "became" if is_entity else "are no longer"
            changes.append(
                f"{section}: global features {verb} an entity, because of the global actions"
            )

        # Positions and orientations that are read from other features.
        types = {rules.new("type", name) for name in was.embedding.types} & {*net.embedding.types}
        now = _positions(net)
        renamed = {
            (what, rules.new("type", name)): [rules.name(one) for one in columns]
            for (what, name), columns in _positions(was).items()
        }
        for what, name in sorted(renamed.keys() | now.keys()):
            columns = renamed.get((what, name), []), now.get((what, name), [])
            if name in types and columns[0] != columns[1]:
                had, has = ([one[-1] for one in names] for names in columns)
                changes.append(f"{section}: {what} of {name} had features {had}, now {has}")
    return changes


def _positions(network: RogueNet) -> dict[tuple[str, str], list[Name]]:
    """Return the features that determine positions and orientations, which no tensor depends on.

    Returns:
        Features of the relative position, orientation or translation of an entity type, by
        (purpose, type).
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
