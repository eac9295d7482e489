"""Worlds that change, networks of them, and their frames as both worlds show them."""

from collections.abc import Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from hypothesis import reject
from hypothesis import strategies as st
from torch import Tensor

from enn_trainer import EnvConfig, OptimizerConfig, PPOConfig, RolloutConfig, TrainConfig
from enn_trainer.checkpoints.migrate.config_diff import renamed_config
from enn_trainer.checkpoints.migrate.evolve import function_changes
from enn_trainer.checkpoints.migrate.evolve_rules import PARTS, Rules
from enn_trainer.checkpoints.migrate.evolve_tensors import (
    Network,
    columns_of_type,
    parts_of,
    upgrade_tensors,
)
from entity_env import (
    ActionSpace,
    CategoricalActionSpace,
    Entity,
    GlobalCategoricalActionSpace,
    ObsSpace,
    SelectEntityActionSpace,
)
from entity_env.spaces import GLOBAL, Spaces, has_global_entity
from rogue_net import ActionBatch, EntityBatch, NetOutput, RaggedTensor, RogueNet, RogueNetConfig
from rogue_net.embedding import TypeEmbedding
from rogue_net.rogue_net import RogueNetWithValueNet
from rogue_net.wiring import _move_positions
from tests.rogue_net.nets import batch_of, options, shows_something
from tests.strategies import some_of, worlds

Actions = dict[str, ActionSpace]
SIZES: dict[str, Any] = {"d_model": 8, "n_head": 2, "d_qk": 4, "n_layer": 1}


@dataclass
class Change:
    """A world that changes.

    Attributes:
        old: the network of the world that was.
        frames: frames of it in which nothing is that is removed.
        rules: what is called otherwise.
        new: the same network, upgraded to the world that is.
        notes: reasons for changed outputs, if any.
    """

    old: Network
    frames: EntityBatch
    rules: Rules
    new: Network
    notes: list[str]

    def frames_now(self) -> EntityBatch:
        return in_new_world(self.frames, self.old, self.new, self.rules)


def network_of(
    config: RogueNetConfig,
    obs_space: ObsSpace,
    actions: Mapping[str, ActionSpace],
    vf_config: RogueNetConfig | None = None,
    seed: int = 0,
) -> Network:
    """A network in float64 whose every parameter is random."""
    net: Network = RogueNet(config, obs_space, actions, {"value": 1})
    if vf_config is not None:
        net = RogueNetWithValueNet(config, vf_config, obs_space, actions)
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in net.parameters():
            parameter.copy_(0.5 * torch.randn(parameter.shape, generator=generator))
    return net.double()


def change_of(
    old: Network,
    frames: EntityBatch,
    obs_space: ObsSpace,
    actions: Mapping[str, ActionSpace],
    rules: Rules | None = None,
    **settings: Any,
) -> Change:
    """An upgrade to a world, with other settings of the network."""
    rules = rules or Rules()
    configs = {part: net.config for part, net in parts_of(old).items()}
    others = EnvConfig(), configs[min(configs)], OptimizerConfig(), PPOConfig(), RolloutConfig()
    before = TrainConfig(*others, vf_net=configs.get("value_function"))
    config = renamed_config(before, rules, old.obs_space, Spaces(obs_space, actions))
    net = replace(config.net, **settings)
    vf_net = None if config.vf_net is None else replace(config.vf_net, **settings)
    fresh = network_of(net, obs_space, actions, vf_net, seed=1)
    upgrade = upgrade_tensors(old, fresh, rules, PARTS)
    fresh.load_state_dict(upgrade.tensors)
    return Change(old, frames, rules, fresh, function_changes(old, fresh, rules))


@st.composite
def changes(draw: st.DrawFn) -> Change:
    """Several changes at once of a random world: everything that names can say."""
    world = draw(worlds().filter(shows_something))
    frames = batch_of(world.frames, world.obs_space, world.action_space)
    chosen = draw(options(world.obs_space))
    ghosts = {"Ghost": Entity(draw(some_of(["x", "fear"])))} if draw(st.booleans()) else {}
    entities = {**world.obs_space.entities, **ghosts}
    order = draw(st.permutations([*entities]))
    old_space = ObsSpace(world.obs_space.global_features, {name: entities[name] for name in order})
    config = RogueNetConfig(**SIZES, **chosen)
    vf_config = replace(config, n_layer=2) if draw(st.booleans()) else None
    old = network_of(config, old_space, world.action_space, vf_config)
    frames = with_types_of(frames, world.obs_space, old_space)
    old.update_input_stats(frames)
    renamed: dict[tuple[str, ...], str] = {}
    for name in draw(some_of(order)):
        renamed["type", name] = f"{name}'"
    for feature in draw(some_of(["x", "y"])):  # everywhere, as configurations name it once
        renamed |= {("feature", name, feature): f"{feature}'" for name in order}
    for name in draw(some_of([*world.action_space])):
        renamed["action", name] = f"{name}'"
    for name in world.action_space:
        renamed["label", name, "x"] = "x'"
    rules = Rules(renamed)
    obs_space, actions = rules.spaces(Spaces(old_space, world.action_space))
    removed = {"Ghost", "Ghost'"} if draw(st.booleans()) else set()
    types = {name: one for name, one in obs_space.entities.items() if name not in removed}
    if draw(st.booleans()):
        types["Newcomer"] = Entity(draw(some_of(["x'", "y", "strength"])))
    types = {
        name: Entity(draw(changed_names(types[name].features)))
        for name in draw(st.permutations([*types]))
    }
    if draw(st.booleans()):
        actions["wink"] = SelectEntityActionSpace()
    if draw(st.booleans()):
        actions["shout"] = CategoricalActionSpace(["a", "b"])
    for name, space in actions.items():
        if isinstance(space, CategoricalActionSpace | GlobalCategoricalActionSpace):
            labels = draw(changed_names(space.index_to_label).filter(len))
            actions[name] = type(space)(labels)
    actions = {name: actions[name] for name in draw(st.permutations([*actions]))}
    shared = draw(changed_names(obs_space.global_features))
    n_layer = draw(st.integers(2, 3))
    try:
        return change_of(old, frames, ObsSpace(shared, types), actions, rules, n_layer=n_layer)
    except ValueError as error:  # what the configuration names is removed
        if not str(error).startswith(("obs_space", "relpos_encoding", "translation", "vf_config")):
            raise
        reject()


@st.composite
def changed_names(draw: st.DrawFn, names: list[str]) -> list[str]:
    """Some of the names removed, some added, all in another order."""
    kept = draw(some_of(names)) if draw(st.integers(0, 3)) == 0 else names
    added = draw(some_of(["more", "most"]))
    return draw(st.permutations([*kept, *added]))


def with_types_of(frames: EntityBatch, shown: ObsSpace, wanted: ObsSpace) -> EntityBatch:
    """The same frames where there are further types, in another order."""
    nothing = np.zeros(frames.num_frames, dtype=np.int64)
    features = dict(frames.features)
    for name, entity in wanted.entities.items():
        none = RaggedTensor(torch.zeros(0, len(entity.features)).double(), nothing)
        features.setdefault(name, none)
    order = [name for name in [*wanted.entities, GLOBAL] if name in features]
    frames = replace(frames, features={name: features[name] for name in order})
    types = [*wanted.entities, GLOBAL]
    extra = [name for name in wanted.entities if name not in shown.entities]
    return replace(
        frames, actions=_move_positions(frames, [*shown.entities, *extra, GLOBAL], types)
    )


def in_new_world(frames: EntityBatch, old: Network, new: Network, rules: Rules) -> EntityBatch:
    """Frames of the old world as the new one shows them; what is new in it is not there."""
    nothing = np.zeros(frames.num_frames, dtype=np.int64)
    of_old = {rules.new("type", name): name for name in old.obs_space.entities}
    features = {}
    for name, entity in new.obs_space.entities.items():
        if name in of_old:
            own = of_old[name]
            have = [rules.new("feature", own, f) for f in old.obs_space.entities[own].features]
            rows = frames.features[own]
            features[name] = columns(rows, have, entity.features)
        else:
            empty = torch.zeros(0, len(entity.features)).double()
            features[name] = RaggedTensor(empty, nothing)
    if has_global_entity(new.obs_space, new.action_space):
        have = [rules.new("global", f) for f in old.obs_space.global_features]
        default = RaggedTensor(torch.zeros(frames.num_frames, 0).double(), nothing + 1)
        rows = frames.features.get(GLOBAL, default)
        features[GLOBAL] = columns(rows, have, new.obs_space.global_features)
    shown = [rules.new("type", name) for name in old.obs_space.entities]
    before = features | {rules.new("type", name): rows for name, rows in frames.features.items()}
    extra = [name for name in features if name not in shown and name != GLOBAL]
    types = [*new.obs_space.entities, GLOBAL]
    renamed = {rules.new("action", name): one for name, one in frames.actions.items()}
    gone = [name for name in shown if name not in features]
    batch = replace(frames, features=before, actions=renamed)
    moved = _move_positions(batch, [*shown, *extra, GLOBAL], [*types[:-1], *gone, GLOBAL])
    actions = {}
    for name, space in new.action_space.items():
        source = next((n for n in old.action_space if rules.new("action", n) == name), None)
        if source is None or old.action_space[source].kind != space.kind:
            nobody = RaggedTensor(torch.zeros(0, dtype=torch.int64), nothing)
            is_select = isinstance(space, SelectEntityActionSpace)
            actions[name] = ActionBatch(nobody, None, nobody if is_select else None)
            continue
        actions[name] = moved[name]
        mask = moved[name].mask
        if space.labels and mask is not None:
            have = [rules.new("label", source, one) for one in old.action_space[source].labels]
            values = columns(mask, have, space.labels, new=True).values
            actions[name] = replace(moved[name], mask=RaggedTensor(values, mask.lengths))
    visible = {
        rules.new("type", name): rows
        for name, rows in frames.visible.items()
        if rules.new("type", name) in features
    }
    return replace(frames, features=features, visible=visible, actions=actions)


def columns(
    rows: RaggedTensor, have: Sequence[str], wanted: Sequence[str], new: Any = 7.0
) -> RaggedTensor:
    """Columns by name; those that there are none of are `new`."""
    picked = [
        rows.values[:, have.index(name)]
        if name in have
        else torch.full_like(rows.values[:, :1].sum(1).to(rows.values.dtype), new)
        for name in wanted
    ]
    values = torch.stack(picked, 1) if picked else rows.values[:, :0]
    return RaggedTensor(values, rows.lengths)


def with_removed_at_mean(change: Change) -> Network:
    """The old network as it answers where features that are removed are at their mean.

    Normalised they are 0 there, for each type at its own mean, also global ones.
    """
    old, rules = deepcopy(change.old), change.rules
    news = parts_of(change.new)
    for part, net in parts_of(old).items():
        for name in net.embedding.types:
            embedding = net.embedding.by_type["/" + name]
            if rules.new("type", name) not in news[part].embedding.types:
                continue
            kept = columns_of_type(news[part], rules.new("type", name))
            for i, column in enumerate(columns_of_type(net, name)):
                if rules.name(column) not in kept and isinstance(embedding, TypeEmbedding):
                    embedding.linear.weight.data[:, i] = 0.0
    return old


def assert_same_function(change: Change, before: NetOutput, after: NetOutput) -> int:
    """Values and the probabilities among labels of both; how many probabilities were compared."""
    torch.testing.assert_close(after.values, before.values, rtol=1e-6, atol=1e-9)
    compared = 0
    for name, space in change.old.action_space.items():
        now = change.rules.new("action", name)
        if now not in change.new.action_space:
            continue
        new_space = change.new.action_space[now]
        if space.kind != new_space.kind:
            continue
        one, other = before.log_probs[name], after.log_probs[now]
        if space.labels:
            had = [change.rules.new("label", name, label) for label in space.labels]
            both = [label for label in had if label in new_space.labels]
            one = among(one, [had.index(label) for label in both])
            other = among(other, [new_space.labels.index(label) for label in both])
        torch.testing.assert_close(other.exp(), one.exp(), rtol=1e-6, atol=1e-9)
        compared += one.numel()
    return compared


def among(log_probs: Tensor, labels: list[int]) -> Tensor:
    """Log-probabilities among some labels; of rows where none of them is allowed, 0."""
    return log_probs[:, labels].log_softmax(dim=-1).nan_to_num(0.0, neginf=-torch.inf)
