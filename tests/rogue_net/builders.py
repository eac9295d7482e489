"""Cases for the compiled network, and its answers beside those of torch."""

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import strategies as st
from torch import Tensor

from rogue_net import EntityBatch, NetOutput, RelposEncodingConfig, RogueNet, RogueNetConfig
from rogue_net.native import AVAILABLE, backend
from rogue_net.ragged import RaggedTensor
from tests.rogue_net.nets import (
    ACTIONS,
    SPACE,
    batch_of,
    by_frame,
    frame,
    policy_loss,
)

needs_compiled = pytest.mark.skipif(not AVAILABLE, reason="nothing was compiled")


@contextmanager
def torch_only() -> Iterator[None]:
    """While the context is open, nothing that was compiled is used."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(backend, "fits", lambda d_model, n_head: False)
        yield


def answers(
    net: RogueNet, batch: EntityBatch, compiled: bool
) -> tuple[NetOutput, dict[str, Tensor]]:
    """What a network says, and the gradient of something that depends on all of it."""
    with nullcontext() if compiled else torch_only():
        out = net(batch)
        parameters = {name: p for name, p in net.named_parameters() if p.requires_grad}
        gradients = torch.autograd.grad(
            policy_loss(out), [*parameters.values()], allow_unused=True, materialize_grads=True
        )
    return out, dict(zip(parameters, gradients, strict=True))


GRID = {"extent": [2, 2], "position_features": ["x", "y"], "scale": 0.5}
KINDS: dict[str, dict[str, Any]] = {
    "plain": {},
    "grid": {**GRID, "value_gate": "relu", "per_entity_values": True},
    "interpolated": {**GRID, "value_gate": "gelu", "interpolate": True},
    "projected": {**GRID, "value_gate": "sigmoid", "key_relpos_projection": True},
    "polar": {
        **{"extent": [4, 3], "position_features": ["x", "y"], "radial": True, "distance": True},
        "rotation_angle_feature": "x",
    },
    "ungated": {**GRID, "value_gate": None, "value_relpos_projection": True},
}


def in_float32(batch: EntityBatch) -> EntityBatch:
    return replace(
        batch,
        features={n: RaggedTensor(r.values.float(), r.lengths) for n, r in batch.features.items()},
    )


def large_case(kind: str, d_model: int, visible: bool = False) -> tuple[RogueNet, EntityBatch]:
    """Frames of no entities up to many more than go through the layers together."""
    frames = []
    for n in (0, 1, 2, 7, 8, 9, 15, 16, 17, 0, 33, 70, 5):
        hidden = {"visible": {"Rock": np.arange(n % 5) % 2 > 0}} if visible else {}
        frames.append(frame(n, n % 5, n % 4, seed=n, **hidden))
    relpos = RelposEncodingConfig(**KINDS[kind]) if KINDS[kind] else None
    torch.manual_seed(1)
    net = RogueNet(
        RogueNetConfig(d_model=d_model, relpos_encoding=relpos), SPACE, ACTIONS, {"value": 1}
    )
    with torch.no_grad():
        for parameter in net.parameters():
            parameter.add_(0.1 * torch.randn(parameter.shape))
    batch = in_float32(batch_of(frames))
    net.update_input_stats(batch)
    return net, batch


def assert_same(net: RogueNet, batch: EntityBatch) -> None:
    expected, expected_gradient = answers(net, batch, compiled=False)
    got, gradient = answers(net, batch, compiled=True)
    for ours, theirs in zip(by_frame(got, batch), by_frame(expected, batch), strict=True):
        for name in theirs:
            torch.testing.assert_close(ours[name], theirs[name], rtol=1e-3, atol=1e-3, msg=name)
    largest = max(float(g.abs().max()) for g in expected_gradient.values() if g.numel())
    for name, theirs in expected_gradient.items():
        own = float(theirs.abs().max()) if theirs.numel() else 0.0
        torch.testing.assert_close(
            gradient[name], theirs, rtol=0, atol=1e-3 * own + 1e-5 * largest + 1e-5, msg=name
        )


@st.composite
def type_lengths(draw: st.DrawFn) -> list[list[int]]:
    """Entities per frame for each type: often none, mostly a few, sometimes many."""
    num_types, num_frames = draw(st.integers(1, 3)), draw(st.integers(1, 8))
    count = st.sampled_from([0, 0, 1, 1, 2, 3, 7, 40, 300])
    frames = st.lists(count, min_size=num_frames, max_size=num_frames)
    return draw(st.lists(frames, min_size=num_types, max_size=num_types))
