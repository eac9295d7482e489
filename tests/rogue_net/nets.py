"""Networks and batches that several tests use."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from hypothesis import strategies as st
from torch import Tensor

from entity_env import (
    ActionSpace,
    CategoricalActionMask,
    CategoricalActionSpace,
    Entity,
    GlobalCategoricalActionMask,
    GlobalCategoricalActionSpace,
    Observation,
    ObsSpace,
    SelectEntityActionMask,
    SelectEntityActionSpace,
    batch_obs,
)
from rogue_net import (
    EntityBatch,
    NetOutput,
    RaggedTensor,
    RelposEncodingConfig,
    RogueNet,
    RogueNetConfig,
    TranslationConfig,
)
from rogue_net.actions.distributions import CategoricalDistribution
from rogue_net.actions.gaussian_numbers import SquashedGaussian
from tests.strategies import World, some_of, worlds

SPACE = ObsSpace(
    global_features=["clock"],
    entities={"Unit": Entity(["x", "y"]), "Rock": Entity([]), "Goal": Entity(["x"])},
)
ACTIONS: dict[str, ActionSpace] = {
    "move": CategoricalActionSpace(["left", "right", "stay"]),
    "pick": SelectEntityActionSpace(),
    "plan": GlobalCategoricalActionSpace(["wait", "go"]),
}


def frame(
    units: int, rocks: int = 0, goals: int = 0, *, seed: int = 0, **kwargs: Any
) -> Observation:
    """A frame of `SPACE` in which every unit may do everything, unless `actions` says other."""
    rng = np.random.default_rng(seed)
    masks = {
        "move": CategoricalActionMask(actor_types=["Unit"]),
        "pick": SelectEntityActionMask(actor_types=["Unit"], actee_types=["Goal", "Unit"]),
        "plan": GlobalCategoricalActionMask(),
    }
    return Observation(
        features={
            "Unit": rng.normal(size=(units, 2)),
            "Rock": np.zeros((rocks, 0)),
            "Goal": rng.normal(size=(goals, 1)),
        },
        global_features=rng.normal(size=1),
        actions=kwargs.pop("actions", masks),
        **kwargs,
    )


def batch_of(
    frames: Sequence[Observation],
    obs_space: ObsSpace = SPACE,
    action_space: Mapping[str, ActionSpace] = ACTIONS,
) -> EntityBatch:
    """A batch in float64, so that tests may tell faults from rounding."""
    batch = EntityBatch.of(batch_obs(frames, obs_space, action_space))
    return replace(
        batch,
        features={n: RaggedTensor(r.values.double(), r.lengths) for n, r in batch.features.items()},
    )


def net_of(
    obs_space: ObsSpace = SPACE,
    action_space: Mapping[str, ActionSpace] = ACTIONS,
    heads: Mapping[str, int] | None = None,
    *,
    seed: int = 0,
    **options: Any,
) -> RogueNet:
    """A network in float64 with random parameters, including those initialised to zero."""
    config = RogueNetConfig(**{"d_model": 8, "n_head": 2, "d_qk": 4, "n_layer": 2, **options})
    net = RogueNet(config, obs_space, action_space, {"value": 1} if heads is None else heads)
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in net.parameters():
            parameter.copy_(0.5 * torch.randn(parameter.shape, generator=generator))
    return net.double()


@st.composite
def nets_and_batches(draw: st.DrawFn, numbers: bool = True) -> tuple[RogueNet, EntityBatch]:
    """Strategy: a network of random spaces, and frames that are in its input statistics.

    Args:
        draw: hypothesis'.
        numbers: also with actions whose choices cannot be listed.
    """
    world = draw(worlds(numbers=numbers).filter(shows_something))
    batch = batch_of(world.frames, world.obs_space, world.action_space)
    chosen = draw(options(world.obs_space))
    net = net_of(world.obs_space, world.action_space, n_layer=draw(st.integers(0, 2)), **chosen)
    net.update_input_stats(batch)
    return net, batch


@st.composite
def options(draw: st.DrawFn, obs_space: ObsSpace) -> dict[str, Any]:
    """Strategy: all options of a configuration that the space supports, except sizes."""
    with_features = {n: e.features for n, e in obs_space.entities.items() if e.features}
    kinds = ["plain", "pooling", "relpos", "translation", "relpos and translation"]
    kind = draw(st.sampled_from(kinds if with_features else kinds[:2]))
    chosen: dict[str, Any] = {}
    if kind == "pooling":
        chosen["pooling"] = draw(st.sampled_from(["mean", "max", "meanmax"]))
    if "relpos" in kind:
        chosen["relpos_encoding"] = draw(relpos_configs(obs_space, "translation" in kind))
    if "translation" in kind:
        reference = draw(st.sampled_from(sorted(with_features)))
        names = draw(some_of(with_features[reference]).filter(len))
        chosen["translation"] = TranslationConfig(
            reference, names, **draw(rotations(with_features[reference], len(names) > 1))
        )
        chosen["translation"].add_dist_feature = draw(st.booleans())
    return chosen


@st.composite
def relpos_configs(
    draw: st.DrawFn, obs_space: ObsSpace, continuous: bool = False
) -> RelposEncodingConfig:
    """Relative positions of a space, some type of which has features.

    Args:
        draw: hypothesis'.
        obs_space: has the features.
        continuous: only those that hardly change with positions that hardly change.
    """
    owners = sorted(name for name, entity in obs_space.entities.items() if entity.features)
    owner = draw(st.sampled_from(owners))
    features = obs_space.entities[owner].features
    names = draw(some_of(features).filter(len))
    distance = draw(st.booleans())
    radial = len(names) > 1 and not continuous and draw(st.booleans())
    buckets = st.integers(1, 5)
    extent = [draw(buckets) for _ in range(radial + distance)] or [
        draw(st.integers(0, 3)) for _ in names
    ]
    projections = {f"{what}_relpos_projection": draw(st.booleans()) for what in ("key", "value")}
    return RelposEncodingConfig(
        extent=extent,
        position_features=names,
        scale=draw(st.sampled_from([1.0, 0.7, 3.0])),
        radial=radial,
        distance=distance,
        interpolate=continuous or draw(st.booleans()),
        per_entity_values=draw(st.booleans()),
        per_entity_projections=any(projections.values()) and draw(st.booleans()),
        exclude_entities=draw(some_of(sorted({*obs_space.entities} - {owner}))),
        value_gate=draw(st.sampled_from([None, "relu", "gelu", "sigmoid", "linear"])),
        **projections,
        **draw(rotations(features, radial)),
    )


def rotations(features: list[str], allowed: bool) -> st.SearchStrategy[dict[str, Any]]:
    """No orientation, an angle, or where there are two features a vector."""
    choices: list[dict[str, Any]] = [{}]
    if allowed:
        choices += [{"rotation_angle_feature": name} for name in features]
        choices += [{"rotation_vec_features": features[:2]}]
    return st.sampled_from(choices)


def shows_something(world: World) -> bool:
    """Return whether the spaces have any entity type or global action."""
    spaces = world.action_space.values()
    return bool(world.obs_space.entities) or any(
        isinstance(space, GlobalCategoricalActionSpace) for space in spaces
    )


def rows_of(rows: RaggedTensor, i: int) -> Tensor:
    """The rows of frame i."""
    start = sum(rows.lengths[:i].tolist())
    return rows.values[start : start + int(rows.lengths[i])]


def by_frame(out: NetOutput, batch: EntityBatch) -> list[dict[str, Tensor]]:
    """What the network says about each frame, without the padding of actees."""
    frames = []
    for i in range(batch.num_frames):
        said = {f"value of {name}": values[i] for name, values in out.values.items()}
        for name, action in batch.actions.items():
            lengths = action.actors.lengths
            distribution = out.distribution(name)
            if isinstance(distribution, CategoricalDistribution):
                table = distribution.log_probs
            else:
                assert isinstance(distribution, SquashedGaussian)
                table = distribution.parameters
            log_probs = rows_of(RaggedTensor(table, lengths), i)
            if action.actees is not None:
                num_actees = int(action.actees.lengths[i])
                assert log_probs[:, num_actees:].eq(-torch.inf).all()
                log_probs = log_probs[:, : num_actees if len(log_probs) else 0]
            said[f"log_probs of {name}"] = log_probs
            said[f"logprobs of {name}"] = rows_of(RaggedTensor(out.logprobs[name], lengths), i)
            said[f"entropies of {name}"] = rows_of(RaggedTensor(out.entropies[name], lengths), i)
        frames.append(said)
    return frames


def assert_same_answers(
    got: Sequence[Mapping[str, Tensor]],
    expected: Sequence[Mapping[str, Tensor]],
    *,
    with_values: bool = True,
) -> None:
    """Equal to rounding, frame by frame."""
    assert len(got) == len(expected)
    for ours, theirs in zip(got, expected, strict=True):
        assert ours.keys() == theirs.keys()
        for name in ours:
            if with_values or not name.startswith("value of"):
                torch.testing.assert_close(ours[name], theirs[name], rtol=1e-9, atol=1e-9)


def policy_loss(out: NetOutput) -> Tensor:
    """Something that depends on all that the network says, weighted so that nothing cancels."""
    loss = sum(((i + 1) * v.square()).sum() for i, v in enumerate(out.values.values()))
    for p in [*out.logprobs.values(), *out.entropies.values()]:
        loss = loss + (p * torch.arange(1, len(p) + 1)).sum()
    assert isinstance(loss, Tensor)
    return loss


def types_of(net: RogueNet) -> list[str]:
    """What has a position in a frame, in the order of positions."""
    return list(net.embedding.types)


def positions_by_type(batch: EntityBatch, types: Sequence[str], i: int) -> dict[str, range]:
    """The positions in frame i of the entities of each type."""
    positions, start = {}, 0
    for name in types:
        n = int(batch.features[name].lengths[i])
        positions[name] = range(start, start + n)
        start += n
    return positions


def rearranged(
    batch: EntityBatch, types: Sequence[str], kept: Sequence[Sequence[int]]
) -> EntityBatch:
    """The entities at the positions `kept` of each frame, in that order; actors follow them."""
    by_type = [positions_by_type(batch, types, i) for i in range(batch.num_frames)]

    def of_type(rows: RaggedTensor, name: str) -> RaggedTensor:
        pieces = [
            rows_of(rows, i)[[p - by_type[i][name].start for p in kept[i] if p in by_type[i][name]]]
            for i in range(batch.num_frames)
        ]
        return RaggedTensor(torch.cat(pieces), np.array([len(p) for p in pieces], dtype=np.int64))

    def moved(positions: RaggedTensor) -> RaggedTensor:
        values = [
            kept[i].index(p)
            for i in range(batch.num_frames)
            for p in rows_of(positions, i).tolist()
        ]
        return RaggedTensor(torch.tensor(values, dtype=torch.int64), positions.lengths)

    return EntityBatch(
        {n: of_type(r, n) if n in types else r for n, r in batch.features.items()},
        {name: of_type(rows, name) for name, rows in batch.visible.items()},
        {
            name: replace(
                action,
                actors=moved(action.actors),
                actees=None if action.actees is None else moved(action.actees),
            )
            for name, action in batch.actions.items()
        },
        batch.num_frames,
    )
