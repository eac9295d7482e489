"""Cases for the compiled network, with its outputs and the outputs of torch."""

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from copy import deepcopy
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
    net: RogueNet,
    batch: EntityBatch,
    compiled: bool,
    actions: Mapping[str, Tensor] | None = None,
) -> tuple[NetOutput, dict[str, Tensor]]:
    """Return the outputs of a network, and the gradient of a function of all of them."""
    with nullcontext() if compiled else torch_only():
        out = net(batch, actions)
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
    return _in_type(batch, torch.float32)


def in_float64(batch: EntityBatch) -> EntityBatch:
    return _in_type(batch, torch.float64)


def _in_type(batch: EntityBatch, dtype: torch.dtype) -> EntityBatch:
    return replace(
        batch,
        features={
            n: RaggedTensor(r.values.to(dtype), r.lengths) for n, r in batch.features.items()
        },
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


def assert_same(
    net: RogueNet, batch: EntityBatch, each: Iterable[Callable[[], object]] = (lambda: None,)
) -> None:
    """Compare outputs and gradients with torch's in float32.

    They are computed after each call of `each`, as of a function that selects instructions.

    Some networks make a large difference of rounding: with logits of 150, the seventh digit of them
    is the third digit of a gradient. Torch's own error is measured in float64, and a gradient may
    have some times the largest one beside the usual tolerance.
    """
    expected, expected_gradient = answers(net, batch, compiled=False)
    exact_net, exact_batch = deepcopy(net).double(), in_float64(batch)
    _, exact_gradient = answers(exact_net, exact_batch, False, expected.actions)
    expected_frames = by_frame(expected, batch)
    scales = {n: float(g.abs().max()) if g.numel() else 0.0 for n, g in expected_gradient.items()}
    largest = max(scales.values(), default=0.0)
    error = max(
        float((g - exact_gradient[n]).abs().max()) / (scales[n] + 1e-2 * largest)
        for n, g in expected_gradient.items()
        if scales[n] > 0
    )
    for prepare in each:
        prepare()
        got, gradient = answers(net, batch, compiled=True)
        for ours, of_torch in zip(by_frame(got, batch), expected_frames, strict=True):
            for name, p in of_torch.items():
                torch.testing.assert_close(ours[name], p, rtol=1e-3, atol=1e-3, msg=name)
        for name, expected_grad in expected_gradient.items():
            atol = (1e-3 + 4 * error) * scales[name] + 1e-5 * largest + 1e-5
            torch.testing.assert_close(gradient[name], expected_grad, rtol=0, atol=atol, msg=name)


@st.composite
def type_lengths(draw: st.DrawFn) -> list[list[int]]:
    """Entities per frame for each type: often none, mostly a few, sometimes many."""
    num_types, num_frames = draw(st.integers(1, 3)), draw(st.integers(1, 8))
    count = st.sampled_from([0, 0, 1, 1, 2, 3, 7, 40, 300])
    frames = st.lists(count, min_size=num_frames, max_size=num_frames)
    return draw(st.lists(frames, min_size=num_types, max_size=num_types))
