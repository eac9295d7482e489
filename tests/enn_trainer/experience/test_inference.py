"""Random numbers to act with: the same to the bit whoever computes them."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from enn_trainer.experience.players import draw_uniforms
from rogue_net.native import library
from rogue_net.ragged import ActionBatch, RaggedTensor
from tests.rogue_net.builders import needs_compiled


def actions_of(lengths: list[list[int]]) -> dict[str, ActionBatch]:
    """By name, with so many actors in each frame."""
    batches = {}
    for k, of_frames in enumerate(lengths):
        counts = np.array(of_frames, dtype=np.int64)
        positions = torch.zeros(int(counts.sum()), dtype=torch.int64)
        batches[f"action {k}"] = ActionBatch(RaggedTensor(positions, counts))
    return batches


@needs_compiled
@settings(max_examples=100)
@given(
    frames=st.lists(
        st.tuples(st.integers(0, 2**62), st.integers(0, 5), st.integers(0, 300)), max_size=6
    ),
    seed=st.integers(0, 2**63 - 1),
    frame=st.integers(0, 2**62),
)
def test_compiled_uniforms_equal_numpy(
    frames: list[tuple[int, int, int]], seed: int, frame: int
) -> None:
    env = np.array([one for one, _, _ in frames], dtype=np.int64)
    actions = actions_of([[few for _, few, _ in frames], [many for _, _, many in frames]])
    got = draw_uniforms(actions, seed, env, frame)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(library, "AVAILABLE", False)
        expected = draw_uniforms(actions, seed, env, frame)
    assert got.keys() == expected.keys()
    for name, drawn in got.items():
        assert drawn.dtype == torch.float32
        assert torch.equal(drawn, expected[name])


def test_uniforms_are_in_the_unit_interval_and_depend_on_all_keys() -> None:
    env = np.arange(500)
    actions = actions_of([[2] * 500, [2] * 500])
    one, other = draw_uniforms(actions, 1, env, 7).values()
    assert 0 <= float(one.min()) < 0.01 < 0.99 < float(one.max()) < 1
    again = draw_uniforms(actions, 1, env, 7)["action 0"]
    assert torch.equal(one, again)
    different = [
        other,
        draw_uniforms(actions, 2, env, 7)["action 0"],
        draw_uniforms(actions, 1, env, 8)["action 0"],
        draw_uniforms(actions, 1, env + 500, 7)["action 0"],
        one.view(-1, 2).flip(1).flatten(),
    ]
    for these in different:
        assert float((one == these).float().mean()) < 0.01
