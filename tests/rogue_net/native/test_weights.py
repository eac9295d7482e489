"""Compiled code computes with the tensors that a network holds at each call."""

import gc
from collections.abc import Callable
from copy import deepcopy
from weakref import ref

import pytest
import torch
from torch import nn

from entity_env import batch_obs
from rogue_net import EntityBatch, RogueNet, RogueNetConfig
from rogue_net.input_norm import Moments
from rogue_net.native.weights import TensorGuard, tensors_of
from tests.rogue_net.builders import needs_compiled
from tests.rogue_net.nets import ACTIONS, SPACE, frame

pytestmark = needs_compiled
BATCH = EntityBatch.of(batch_obs([frame(2, 1, 3), frame(1, 0, 2, seed=1)], SPACE, ACTIONS))


def network(seed: int = 0) -> RogueNet:
    torch.manual_seed(seed)
    config = RogueNetConfig(d_model=16, n_layer=1)
    return RogueNet(config, SPACE, ACTIONS, regression_heads={"value": 1})


def in_place(net: RogueNet) -> None:
    """Change all parameters, as an optimizer does."""
    with torch.no_grad():
        for parameter in net.parameters():
            parameter.mul_(1.5)


def by_assignment(net: RogueNet) -> None:
    net.load_state_dict(network(seed=1).state_dict(), assign=True)


def of_data(net: RogueNet) -> None:
    for parameter, other in zip(net.parameters(), network(seed=1).parameters(), strict=True):
        parameter.data = other.detach().clone()


def of_statistics(net: RogueNet) -> None:
    rows = BATCH.features["Unit"].values
    for module in net.modules():
        if hasattr(module, "merge"):
            width = len(module.mean)
            module.merge(Moments.of(torch.arange(4.0 * width).view(4, width) + rows.sum()))


def of_a_layer(net: RogueNet) -> None:
    other = network(seed=1)
    net.transformer.blocks[0].mlp = other.transformer.blocks[0].mlp


def of_a_weight(net: RogueNet) -> None:
    head = net.action_heads["/move"].project
    head.weight = nn.Parameter(torch.ones_like(head.weight))


def to_columns(net: RogueNet) -> None:
    """Store a weight by columns, then change it in place."""
    up = net.transformer.blocks[0].mlp[0]
    up.weight = nn.Parameter(up.weight.detach().T.contiguous().T)
    net(BATCH)
    in_place(net)


CHANGES = [
    *(in_place, by_assignment, of_data, of_statistics),
    *(of_a_layer, of_a_weight, to_columns),
]


@pytest.mark.parametrize("change", CHANGES)
def test_outputs_follow_changes_of_a_network(change: Callable[[RogueNet], None]) -> None:
    net = network()
    before = net(BATCH)
    change(net)
    out, expected = net(BATCH), deepcopy(net)(BATCH)
    assert not torch.equal(out.values["value"], before.values["value"]) or not torch.equal(
        out.log_probs["move"], before.log_probs["move"]
    )
    for name, log_probs in expected.log_probs.items():
        assert torch.equal(out.log_probs[name], log_probs)
    assert torch.equal(out.values["value"], expected.values["value"])


def test_tensors_are_collected_once_for_all_calls() -> None:
    net = network()
    net(BATCH)
    tensors = tensors_of(net)
    in_place(net)
    net.values(BATCH)
    assert tensors_of(net) is tensors


def test_networks_are_freed() -> None:
    net = network()
    net(BATCH)
    alive = ref(net)
    del net
    gc.collect()
    assert alive() is None


def test_removed_tensors_are_detected() -> None:
    norm = nn.BatchNorm1d(2)
    guard = TensorGuard(norm)
    assert guard.holds()
    del norm.bias
    assert not guard.holds()
