"""Compiled code equals torch with empty frames, types, actors and batches."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import example, given, settings
from torch import Tensor

from rogue_net import NetOutput
from rogue_net.native import functions, library, network
from rogue_net.native.functions import PackedFrames
from rogue_net.native.weights import Weights
from tests.rogue_net.builders import answers, needs_compiled, torch_only
from tests.rogue_net.native.sparse_case import Case, cases

EMPTY = Case(
    seed=1,
    sizes=(16, 2),
    n_layer=1,
    relpos=0,
    memory={"of": "frame"},
    steps=2,
    before=0,
    envs=2,
    fullness=0.0,
    has_globals=False,
    hides=False,
    least_cost=2**16,
)
"""A batch in which no frame has an entity, of a network that remembers frames."""


@pytest.mark.slow
@needs_compiled
@settings(max_examples=settings.default.max_examples // 2)
@given(cases())
@example(EMPTY)
@example(replace(EMPTY, memory={"of": "both", "inputs": ["action", "reward"], "n_layer": 2}))
@example(replace(EMPTY, memory=None))
def test_compiled_outputs_and_gradients_equal_torch(case: Case) -> None:
    """Every array that is new to compiled code is full of NaN here."""
    net, batch = case.net_and_batch()
    with torch_only(), torch.no_grad():
        actions = net(batch, generator=torch.Generator().manual_seed(case.seed)).actions
    expected, expected_gradient = answers(net, batch, compiled=False, actions=actions)
    with case.parts():
        out, gradient = answers(net, batch, compiled=True, actions=actions)
        with torch.no_grad():
            acting = net(batch, actions)
    for name, numbers in outputs(expected).items():
        for got in (out, acting):
            torch.testing.assert_close(outputs(got)[name], numbers, rtol=1e-3, atol=1e-4, msg=name)
    largest = max(float(g.abs().max()) for g in expected_gradient.values() if g.numel())
    for name, numbers in expected_gradient.items():
        atol = 1e-3 * largest + 1e-6
        torch.testing.assert_close(gradient[name], numbers, rtol=1e-3, atol=atol, msg=name)


def outputs(out: NetOutput) -> dict[str, Tensor]:
    """The numbers of all outputs."""
    groups = {"value": out.values, "logprob": out.logprobs, "entropy": out.entropies}
    found = {f"{what} of {n}": x for what, by_name in groups.items() for n, x in by_name.items()}
    return found if out.memory is None else found | {"memory": out.memory}


@needs_compiled
@pytest.mark.parametrize("memory", [{"of": "frame"}, {"of": "frame", "n_layer": 2}])
@pytest.mark.parametrize("d_model", [16, 72])
def test_gradients_of_an_empty_batch_equal_torch(memory: dict[str, Any], d_model: int) -> None:
    """No rows come out of the blocks then, which is not the same as all rows."""
    net, batch = replace(EMPTY, memory=memory, sizes=(d_model, 1)).net_and_batch()
    assert not any(rows.values.numel() for rows in batch.features.values())
    gradients = [answers(net, batch, compiled=is_compiled)[1] for is_compiled in (True, False)]
    for name, expected in gradients[1].items():
        torch.testing.assert_close(gradients[0][name], expected, rtol=1e-5, atol=1e-6, msg=name)


@needs_compiled
def test_blocks_without_output_rows_do_not_change_their_input() -> None:
    """The backward pass of memory reads the input rows of the blocks after memory."""
    net, _ = EMPTY.net_and_batch()
    assert net.memory is not None
    rows = torch.randn(3, 16)
    before, blocks = rows.clone(), net.memory.transformer.parameters_in_order()
    frames = PackedFrames(np.array([2, 1]), output_lengths=np.zeros(2, np.int64))
    parameters = Weights([None, None, None, None, *blocks], [])
    settings = net.memory.block_config
    compiled = network.CompiledNetwork(frames, [], settings, [], [], [parameters], x=rows)
    with torch.no_grad():
        [out] = compiled.run()
    assert out.shape == (0, 16)
    assert torch.equal(rows, before)


def test_only_none_has_a_null_address() -> None:
    assert library.address(None) is None
    assert library.address(torch.zeros(0, 8))
    assert library.address(np.zeros((0, 8)))
    assert library.addresses_of([torch.zeros(8, 0), None]).astype(bool).tolist() == [True, False]


@needs_compiled
@pytest.mark.parametrize("shape", [(3, 2), (0, 4), (4, 0), (0,)])
def test_poisoned_arrays_are_filled_with_nan(
    monkeypatch: pytest.MonkeyPatch, shape: tuple[int, ...]
) -> None:
    monkeypatch.setattr(library.POISONED, "value", 1)
    monkeypatch.setattr(functions, "empty", _EMPTY)  # without the guards of other tests
    assert functions.empty(*shape).isnan().all()
    assert library.uninitialised(shape, torch.int64).eq(-1).all()


_EMPTY = functions.empty
