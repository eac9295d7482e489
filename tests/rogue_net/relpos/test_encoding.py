"""Relative positions by lookup against explicit pair vectors, and limits of the settings."""

import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from entity_env import CategoricalActionMask, Entity, Observation, ObsSpace
from rogue_net import (
    EntityBatch,
    RaggedTensor,
    RelposEncodingConfig,
    RogueNet,
    RogueNetConfig,
)
from rogue_net.relpos import attention
from rogue_net.relpos.cells import Cells, angle_cells, distance_cells, grid_cells
from tests.rogue_net.nets import (
    ACTIONS,
    batch_of,
    net_of,
    policy_loss,
    relpos_configs,
)
from tests.rogue_net.relpos.plain_relpos import plain_embed
from tests.strategies import worlds

# The lookup against the definition.


@pytest.mark.slow
@given(st.data())
def test_lookup_equals_definition(data: st.DataObject) -> None:
    net, batch = data.draw(random_case())
    x, layout = net.embed(batch)
    plain = [plain_embed(net, batch, i) for i in range(batch.num_frames)]
    for i, expected in enumerate(plain):
        rows = x[layout.first_row[i] :][: layout.lengths[i]]
        torch.testing.assert_close(rows, expected, rtol=1e-9, atol=1e-9)
    explicit = torch.cat(plain)
    weights = torch.arange(1, explicit.numel() + 1, dtype=torch.float64).cos().view_as(explicit)
    ours = torch.cat([x[layout.first_row[i] :][: layout.lengths[i]] for i in range(len(plain))])
    parameters = dict(net.named_parameters())
    got, expected_gradients = (
        torch.autograd.grad((y * weights).sum(), [*parameters.values()], allow_unused=True)
        for y in (ours, explicit)
    )
    for name, a, b in zip(parameters, got, expected_gradients, strict=True):
        zero = torch.zeros_like(parameters[name])
        torch.testing.assert_close(
            zero if a is None else a, zero if b is None else b, rtol=1e-8, atol=1e-8, msg=name
        )


@st.composite
def random_case(draw: st.DrawFn) -> tuple[RogueNet, EntityBatch]:
    """A network with relative positions, and entities at random places, away from all borders."""
    world = draw(
        worlds(numbers=True).filter(
            lambda w: any(e.features for e in w.obs_space.entities.values())
        )
    )
    batch = batch_of(world.frames, world.obs_space, world.action_space)
    generator = torch.Generator().manual_seed(draw(st.integers(0, 2**32)))
    features = {
        name: RaggedTensor(
            2 * torch.randn(rows.values.shape, generator=generator, dtype=torch.float64),
            rows.lengths,
        )
        for name, rows in batch.features.items()
    }
    config = draw(relpos_configs(world.obs_space))
    net = net_of(world.obs_space, world.action_space, relpos_encoding=config)
    batch = replace(batch, features=features)
    net.update_input_stats(batch)
    return net, batch


@pytest.mark.slow
@given(st.data())
def test_gated_values_do_not_depend_on_microbatches(data: st.DataObject) -> None:
    net, batch = data.draw(random_case())
    whole = said(net, batch)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(attention, "PIECE", 1)
        for got, expected in zip(said(net, batch), whole, strict=True):
            torch.testing.assert_close(got, expected, rtol=1e-9, atol=1e-9)


def said(net: RogueNet, batch: EntityBatch) -> list[Tensor]:
    """Return the outputs of a network and their gradients."""
    out = net(batch)
    loss = policy_loss(out)
    gradients = torch.autograd.grad(loss, [*net.parameters()], allow_unused=True)
    return [loss, *(g for g in gradients if g is not None)]


class Sizes(TorchDispatchMode):
    """Records how many numbers the largest tensor has that any operation makes."""

    largest = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        for tensor in out if isinstance(out, tuple | list) else [out]:
            if isinstance(tensor, Tensor):
                self.largest = max(self.largest, tensor.untyped_storage().nbytes() // 8)
        return out


@pytest.mark.slow
@pytest.mark.parametrize(
    ("gate", "interpolate", "extent"),
    [(None, False, 2), (None, True, 17), ("relu", True, 2), ("relu", False, 17)],
)
def test_pair_vectors_are_not_stored(
    gate: Any, interpolate: bool, extent: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not at once, neither forward nor backward, with few cells or many."""
    n, d_head = 120, 256
    monkeypatch.setattr(attention, "PIECE", n * n)
    config = RelposEncodingConfig(
        extent=[extent, extent],
        position_features=["x", "y"],
        interpolate=interpolate,
        value_gate=gate,
        key_relpos_projection=True,
        value_relpos_projection=True,
    )
    net, batch = net_and_frame(config, n, d_model=d_head, n_head=1)
    with Sizes() as sizes:
        policy_loss(net(batch)).backward()
    assert n * n <= sizes.largest < n * n * d_head / 8


def net_and_frame(
    config: RelposEncodingConfig, n: int, **sizes: Any
) -> tuple[RogueNet, EntityBatch]:
    """A network of one entity type with position x, y, z, and a frame of n such entities."""
    space = ObsSpace(entities={"A": Entity(["x", "y", "z", "angle"])})
    actions = {"move": ACTIONS["move"]}
    rng = np.random.default_rng(0)
    obs = Observation(
        features={"A": 3 * rng.normal(size=(n, 4))}, actions={"move": CategoricalActionMask()}
    )
    net = net_of(space, actions, relpos_encoding=config, **sizes)
    return net, batch_of([obs], space, actions)


# Cells.


@pytest.mark.parametrize("extent", [[2, 3], [1, 2, 1], [0], [4]])
@pytest.mark.parametrize("interpolate", [False, True])
def test_integer_grid_positions_have_distinct_cells(extent: list[int], interpolate: bool) -> None:
    """Hand arithmetic: the first axis counts fastest, from -extent."""
    axes = [torch.arange(-e, e + 1.0) for e in extent]
    relative = torch.cartesian_prod(*axes[::-1]).reshape(-1, len(extent)).flip(1) * 0.5
    cells = grid_cells(relative, extent, 0.5, interpolate)
    assert certain(cells).tolist() == list(range(len(relative)))
    beyond = grid_cells(relative.sign() * 1e30, extent, 0.5, interpolate)
    assert certain(beyond).min() == 0
    assert certain(beyond).max() == len(relative) - 1


def certain(cells: Cells) -> Tensor:
    """The cell of each position that lies on one."""
    if cells.weights is None:
        (only,) = cells.corners
        return only
    weights, corners = torch.stack(cells.weights), torch.stack(cells.corners)
    torch.testing.assert_close(weights.amax(dim=0), torch.ones_like(weights[0]))
    return corners.gather(0, weights.argmax(dim=0, keepdim=True))[0]


def test_grid_interpolation_is_bilinear() -> None:
    cells = grid_cells(torch.tensor([[0.25, -0.5]]), [1, 1], 1.0, True)
    got = {int(c): float(w) for c, w in zip(cells.corners, cells.weights or [], strict=True)}
    # x is 1.25 from the left border, y 0.5 from the lower one; three cells to a row.
    assert got == {1: 0.375, 2: 0.125, 4: 0.375, 5: 0.125}


def test_angle_cells_are_counterclockwise_from_the_heading() -> None:
    angles = torch.tensor([10.0, 100.0, 190.0, 280.0]).deg2rad()
    relative = torch.stack([angles.cos(), angles.sin()], dim=1)
    for heading, expected in ((0.0, [0, 1, 2, 3]), (math.pi / 2, [3, 0, 1, 2])):
        cells = angle_cells(relative, torch.tensor(heading), 4, False)
        assert cells.corners[0].tolist() == expected
        also = angle_cells(relative, torch.tensor(heading + 6 * math.pi), 4, False)
        assert also.corners[0].tolist() == expected
    halfway = angle_cells(relative[:1], angles[0] - math.pi / 4, 4, True)
    assert torch.stack(halfway.weights or []).flatten().tolist() == pytest.approx([0.5, 0.5])


def test_angle_wraps_from_the_last_cell_to_the_first() -> None:
    relative = torch.tensor([[1.0, -1e-3], [1.0, 0.0], [1.0, 1e-3]], dtype=torch.float64)
    cells = angle_cells(relative, torch.zeros(()), 5, True)
    by_cell = torch.zeros(3, 5, dtype=torch.float64)
    for corner, weight in zip(cells.corners, cells.weights or [], strict=True):
        by_cell.scatter_add_(1, corner[:, None], weight[:, None])
    near = 1e-3 * 5 / (2 * math.pi)
    expected = [[1 - near, 0, 0, 0, near], [1, 0, 0, 0, 0], [1 - near, near, 0, 0, 0]]
    torch.testing.assert_close(by_cell, torch.tensor(expected).double(), atol=1e-6, rtol=0)


def test_large_distances_are_clamped_to_the_last_cell() -> None:
    relative = torch.tensor([[0.0, 0.0], [0.3, 0.4], [3.0, 4.0], [1e30, 1e30]])
    assert certain(distance_cells(relative, 4, 0.5, False)).tolist() == [0, 1, 3, 3]
    assert certain(distance_cells(relative, 4, 0.5, True)).tolist() == [0, 1, 3, 3]


FLOATS = st.floats(allow_nan=False, allow_infinity=False, width=32)


@given(
    st.lists(st.tuples(FLOATS, FLOATS, st.floats(-1e6, 1e6)), min_size=1, max_size=4),
    st.integers(1, 9),
    st.sampled_from([1.0, 0.7, 1e-30]),
    st.sampled_from([torch.float32, torch.float64]),
    st.booleans(),
)
def test_every_position_has_valid_cells(
    places: list[tuple[float, float, float]],
    size: int,
    scale: float,
    dtype: torch.dtype,
    interpolate: bool,
) -> None:
    """However far away, and where rounding takes an angle to a full turn."""
    relative = torch.tensor([place[:2] for place in places], dtype=dtype, requires_grad=True)
    heading = torch.tensor([place[2] for place in places], dtype=dtype)
    for cells, count in (
        (grid_cells(relative, [size, 2], scale, interpolate), (2 * size + 1) * 5),
        (angle_cells(relative, heading, size, interpolate), size),
        (distance_cells(relative, size, scale, interpolate), size),
    ):
        for corner in cells.corners:
            assert corner.dtype == torch.int64
            assert (corner >= 0).all()
            assert (corner < count).all()
        if cells.weights is not None:
            weights = torch.stack(cells.weights)
            assert ((weights >= 0) & (weights <= 1)).all()
            torch.testing.assert_close(weights.sum(dim=0), torch.ones_like(weights[0]))


@pytest.mark.parametrize("interpolate", [False, True])
@pytest.mark.parametrize("gate", [None, "gelu"])
def test_gradient_of_coinciding_entities_is_finite(interpolate: bool, gate: Any) -> None:
    """Their angle and distance have none; neither features nor parameters may get NaN."""
    config = RelposEncodingConfig(
        extent=[5, 3],
        position_features=["x", "y", "z"],
        radial=True,
        distance=True,
        rotation_vec_features=["z", "angle"],
        interpolate=interpolate,
        value_gate=gate,
        key_relpos_projection=True,
    )
    net, batch = net_and_frame(config, 4)
    x = batch.features["A"].values * torch.tensor([[0.0], [0.0], [1.0], [1.0]])
    x.requires_grad_()
    features = {"A": RaggedTensor(x, batch.features["A"].lengths)}
    net.update_input_stats(batch)
    policy_loss(net(replace(batch, features=features))).backward()
    assert x.grad is not None
    assert x.grad.isfinite().all()
    assert all(p.grad is None or p.grad.isfinite().all() for p in net.parameters())


# What has no relative position.


@pytest.mark.parametrize("excluded", [[], ["B"]])
def test_entities_without_positions_attend_without_a_relative_term(excluded: list[str]) -> None:
    """Parameters of the encoding do not affect pairs of excluded entities."""
    space = ObsSpace(entities={"A": Entity(["x"]), "B": Entity(["x"] if excluded else ["hp"])})
    config = RelposEncodingConfig([1], ["x"], exclude_entities=excluded)
    actions = {"move": ACTIONS["move"], "plan": ACTIONS["plan"]}
    net = net_of(space, actions, relpos_encoding=config)
    masks = {"move": CategoricalActionMask()}
    obs = Observation(features={"B": [[1.0], [2.0]]}, actions=masks)
    with_a = Observation(features={"A": [[0.0]], "B": [[1.0], [2.0]]}, actions=masks)
    batches = [batch_of([one], space, actions) for one in (obs, with_a)]
    before = [net(batch).log_probs["move"] for batch in batches]
    with torch.no_grad():
        net.relpos.keys.mul_(-3)
        net.relpos.values.mul_(-3)
    after = [net(batch).log_probs["move"] for batch in batches]
    torch.testing.assert_close(after[0], before[0])
    assert (after[1] - before[1])[0].abs().max() > 1e-3


def test_global_features_may_be_positions() -> None:
    space = ObsSpace(["x"], {"A": Entity([])})
    net = net_of(space, relpos_encoding=RelposEncodingConfig([1], ["x"]))
    assert net.relpos.columns == {"A": [0], "__global__": [0]}


# What cannot be asked for.


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"extent": [1]}, "extent: expected one number for each position feature, .* got \\[1\\]"),
        ({"extent": [1, -1]}, "extent: .* at least 0, got"),
        ({"extent": [0], "distance": True}, "extent: expected \\[buckets\\], each at least 1"),
        ({"extent": [4], "distance": True, "radial": True}, "extent: .*\\[angles, distances\\]"),
        ({"position_features": []}, "position_features: expected names, each once, got \\[\\]"),
        ({"position_features": ["x", "x"]}, "position_features: expected names, each once"),
        (
            {"extent": [4], "radial": True, "position_features": ["x"]},
            "position_features: expected two or more",
        ),
        ({"scale": 0.0}, "scale: expected a finite number above 0, got 0.0"),
        ({"scale": math.nan}, "scale: expected a finite number above 0, got nan"),
        ({"value_gate": "tanh"}, "value_gate: expected None or one of .*'linear'.*, got 'tanh'"),
        ({"rotation_angle_feature": "a"}, "rotation_angle_feature: expected radial=true"),
        (
            {"extent": [4], "distance": True, "rotation_vec_features": ["a", "b"]},
            "rotation_vec_features, rotation_angle_feature: expected radial=true",
        ),
        (
            {"extent": [4], "radial": True, "rotation_vec_features": ["a"]},
            "rotation_vec_features: expected the names of two features, got \\['a'\\]",
        ),
        (
            {
                "extent": [4],
                "radial": True,
                "rotation_vec_features": ["a", "b"],
                "rotation_angle_feature": "c",
            },
            "expected one of them, got both",
        ),
        ({"per_entity_projections": True}, "per_entity_projections: expected value_relpos_proj"),
    ],
)
def test_invalid_settings_are_refused(fields: dict[str, Any], message: str) -> None:
    valid: dict[str, Any] = {"extent": [1, 1], "position_features": ["x", "y"]}
    RelposEncodingConfig(**valid)
    with pytest.raises(ValueError, match=message) as error:
        RelposEncodingConfig(**{**valid, **fields})
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"exclude_entities": ["C"]}, "relpos_encoding.exclude_entities: .*'B'.*, got \\['C'\\]"),
        ({"position_features": ["x", "w"]}, "relpos_encoding.position_features: .*'x', 'w'"),
        ({"exclude_entities": ["A"]}, "relpos_encoding.position_features: .*not excluded"),
        (
            {"extent": [4], "radial": True, "rotation_angle_feature": "angle"},
            "relpos_encoding.rotation_angle_feature: .*'A'.*'angle'",
        ),
        (
            {"extent": [4], "radial": True, "rotation_vec_features": ["x", "u"]},
            "relpos_encoding.rotation_vec_features: .*'A'.*'u'",
        ),
    ],
)
def test_unknown_types_and_features_are_refused(fields: dict[str, Any], message: str) -> None:
    space = ObsSpace(entities={"A": Entity(["x", "y"]), "B": Entity(["angle"])})
    valid: dict[str, Any] = {"extent": [1, 1], "position_features": ["x", "y"]}
    config = RogueNetConfig(relpos_encoding=RelposEncodingConfig(**{**valid, **fields}))
    with pytest.raises(ValueError, match=message):
        RogueNet(config, space, ACTIONS)


def test_relative_positions_with_pooling_are_refused() -> None:
    with pytest.raises(ValueError, match=r"relpos_encoding: expected pooling=None.*; attn_pdrop"):
        RogueNetConfig(
            pooling="mean", attn_pdrop=0.1, relpos_encoding=RelposEncodingConfig([1], ["x"])
        )


@pytest.mark.slow
@given(st.data())
def test_offset_statistics_include_all_pairs(data: st.DataObject) -> None:
    """Counted pair by pair, in frames of any length, and in pieces."""
    net, batch = data.draw(random_case().filter(lambda case: case[0].relpos.norm is not None))
    columns = net.relpos.columns
    rows = []
    for i in range(batch.num_frames):
        inputs = net.embedding.inputs(batch.take(np.array([i])))
        places = [inputs[name][:, c] for name, c in columns.items() if len(inputs[name])]
        for a in torch.cat(places) if places else []:
            offset = a - torch.cat(places)
            rows += [*torch.cat([offset, offset.norm(dim=1, keepdim=True)], dim=1)]
    norm = net.relpos.norm
    assert norm.count.tolist() == [len(rows)] * len(norm.count)
    if rows:
        offsets = torch.stack(rows)
        torch.testing.assert_close(norm.mean, offsets.mean(0), rtol=1e-9, atol=1e-9)
        squares = (offsets - offsets.mean(0)).square().sum(0)
        torch.testing.assert_close(norm.squares_sum, squares, rtol=1e-9, atol=1e-9)
