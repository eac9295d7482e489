"""Compiled networks equal torch, for every supported network."""

import functools
import importlib
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import rogue_net.rogue_net
from entity_env import ObsSpace
from rogue_net import EntityBatch, RogueNet
from rogue_net.native import AVAILABLE, INSTRUCTIONS, backend
from rogue_net.native.compiled import SWITCH
from tests.rogue_net import kinds_case
from tests.rogue_net.builders import (
    KINDS,
    assert_same,
    in_float32,
    large_case,
    needs_compiled,
)
from tests.rogue_net.nets import (
    batch_of,
    by_frame,
    net_of,
    options,
    policy_loss,
    shows_something,
)
from tests.strategies import worlds

LEVELS = {"x86-64-v4": [4, 3, 0], "x86-64-v3": [3, 0]}.get(INSTRUCTIONS or "", [0])


@pytest.mark.skipif(shutil.which("gcc") is None, reason="there is no compiler")
def test_native_module_is_compiled_if_there_is_a_compiler() -> None:
    assert AVAILABLE


@st.composite
def nets_and_batches(draw: st.DrawFn) -> tuple[RogueNet, EntityBatch]:
    """Strategy: a float32 network with attention, of random spaces, and frames."""
    world = draw(worlds(numbers=True).filter(shows_something))
    batch = in_float32(batch_of(world.frames, world.obs_space, world.action_space))
    chosen = draw(options(world.obs_space).filter(lambda o: "pooling" not in o))
    d_model, n_head = draw(st.sampled_from([(8, 1), (16, 2), (32, 1), (48, 2), (72, 1), (128, 2)]))
    sizes = {"d_model": d_model, "n_head": n_head, "n_layer": draw(st.integers(1, 2))}
    net = net_of(world.obs_space, world.action_space, **sizes, **chosen).float()
    with torch.no_grad():  # as wide as it is, what it makes of small differences stays small
        for p in net.transformer.parameters():
            if p.dim() == 2:
                p.mul_(2 / d_model**0.5)
    net.update_input_stats(batch)
    return net, batch


@pytest.mark.slow
@needs_compiled
@given(nets_and_batches())
def test_compiled_network_equals_torch(net_and_batch: tuple[RogueNet, EntityBatch]) -> None:
    net, batch = net_and_batch
    assert_same(net, batch)


@pytest.fixture
def levels() -> Iterator[list[Callable[[], None]]]:
    """Functions that select the sets of instructions of this processor, one after the other."""
    native = importlib.import_module("rogue_net.native._native")

    def select(level: int) -> None:
        assert native.use(level) == level

    yield [functools.partial(select, level) for level in LEVELS]
    native.use(LEVELS[0])


@needs_compiled
@pytest.mark.parametrize("d_model", [16, 32, 128])
@pytest.mark.parametrize("kind", KINDS)
def test_compiled_network_equals_torch_for_all_lengths_and_instruction_sets(
    kind: str, d_model: int, levels: Any
) -> None:
    assert_same(*large_case(kind, d_model), levels)


@pytest.mark.slow
@needs_compiled
@pytest.mark.parametrize("d_model", [16, 128])
@pytest.mark.parametrize("space", [kinds_case.SPACE, kinds_case.OWN_ONLY], ids=["globals", "own"])
def test_compiled_labels_equal_torch_for_all_instruction_sets(
    space: ObsSpace, d_model: int, levels: Any
) -> None:
    net, batch = kinds_case.large_labels_case(space, d_model)
    assert backend.run(net, batch) is not None
    assert_same(net, batch, levels)


@needs_compiled
@pytest.mark.parametrize("kind", ["plain", "grid"])
def test_compiled_policy_does_not_depend_on_invisible_entities(kind: str) -> None:
    assert_same(*large_case(kind, 32, visible=True))


@needs_compiled
@pytest.mark.parametrize("strange", [float("nan"), float("inf"), -1e30])
@pytest.mark.parametrize("kind", KINDS)
def test_extreme_positions_do_not_read_out_of_bounds(kind: str, strange: float) -> None:
    """The loss tells whoever learns from them; cells that are nowhere would end the process."""
    net, batch = large_case(kind, 16)
    for rows in batch.features.values():
        rows.values[::3] = strange
    policy_loss(net(batch)).backward()  # type: ignore[no-untyped-call]


@needs_compiled
def test_compiled_output_of_a_frame_does_not_depend_on_the_batch() -> None:
    net, batch = large_case("grid", 32)
    net.eval()
    with torch.no_grad():
        together = by_frame(net(batch), batch)
        for i, expected in enumerate(together):
            alone = batch.take(np.array([i]))
            got = by_frame(net(alone), alone)[0]
            # Torch's own layers in front and behind may round differently in a batch of one.
            for name in expected:
                torch.testing.assert_close(got[name], expected[name], rtol=1e-5, atol=1e-5)
        again = by_frame(net(batch), batch)
    for one, other in zip(together, again, strict=True):
        assert all(torch.equal(one[name], other[name]) for name in one)


@pytest.mark.slow
def test_networks_work_without_the_native_module() -> None:
    """As where there was no compiler."""
    program = (
        "from rogue_net.native import AVAILABLE; assert not AVAILABLE\n"
        "from tests.rogue_net.builders import large_case\n"
        "net, batch = large_case('grid', 32); out = net(batch)\n"
        "assert out.values['value'].isfinite().all()"
    )
    subprocess.run([sys.executable, "-c", program], env={**os.environ, SWITCH: "0"}, check=True)


@pytest.mark.slow
@needs_compiled
def test_native_module_older_than_its_sources_is_not_used(tmp_path: Path) -> None:
    """After an update, say: structures may have changed on one side only."""
    package = tmp_path / "rogue_net"
    shutil.copytree(Path(rogue_net.__file__).parent, package)
    with (package / "native" / "blocks.h").open("a") as file:
        file.write("/* another */")
    program = (
        "import warnings\n"
        "with warnings.catch_warnings(record=True) as told:\n"
        "    from rogue_net.native import AVAILABLE\n"
        "assert not AVAILABLE\n"
        "assert 'pip install -e .' in str(told[0].message), told"
    )
    path = os.pathsep.join([str(tmp_path), str(Path(rogue_net.__file__).parents[1])])
    subprocess.run(
        [sys.executable, "-c", program],
        env={**os.environ, "PYTHONPATH": path},
        cwd=tmp_path,
        check=True,
    )
