"""Networks over padded arrays have the outputs of `RogueNet`."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from entity_env import CategoricalActionSpace, batch_obs
from rogue_net import EntityBatch, RogueNet, RogueNetConfig, RogueNetWithValueNet, ValueBinsConfig
from rogue_net.actions.heads import HEADS, ActionHead
from rogue_net.config import MemoryConfig
from rogue_net.dense import DenseNet
from rogue_net.dense_arrays import padded_batch
from tests.enn_trainer.chains_world import Camp
from tests.rogue_net import kinds_case, memory_case
from tests.rogue_net.actions import chains_case
from tests.rogue_net.dense_case import (
    assert_equal_outputs,
    dense_outputs,
    next_states,
    ragged_outputs,
    recalled,
)
from tests.rogue_net.nets import ACTIONS, SPACE, batch_of, frame, net_of, nets_and_batches
from tests.rogue_net.published_case import NAMES, load_case


@given(nets_and_batches(), st.sampled_from([0, 1, 3]))
def test_outputs_equal_those_of_the_network(
    case: tuple[RogueNet, EntityBatch], padding: int
) -> None:
    net, batch = case
    expected = ragged_outputs(net.eval(), batch)
    got = dense_outputs(DenseNet(net), batch, padding=padding)
    assert_equal_outputs(got, expected)


@pytest.mark.parametrize("name", NAMES)
def test_outputs_equal_those_of_published_networks(name: str) -> None:
    case = load_case(name)
    expected = ragged_outputs(case.net, case.batch)
    assert_equal_outputs(dense_outputs(DenseNet(case.net), case.batch), expected, 1e-5)


@given(st.sampled_from([kinds_case.SPACE, kinds_case.OWN_ONLY]), st.data())
def test_categorical_features_and_types_without_numbers(space: Any, data: st.DataObject) -> None:
    batch = kinds_case.batch_of(data.draw(kinds_case.frames(space)), space)
    net = kinds_case.net_of(space)
    net.update_input_stats(batch)
    expected = ragged_outputs(net.eval(), batch)
    assert_equal_outputs(dense_outputs(DenseNet(net), batch, padding=2), expected, 1e-5)


def test_dependent_actions_follow_the_choices_of_their_parents() -> None:
    net = chains_case.network()
    batch = chains_case.batch_of(chains_case.FRAME, chains_case.FRAME)
    differ = 0
    for seed in range(8):
        expected = ragged_outputs(net.eval(), batch, seed)
        got = dense_outputs(DenseNet(net), batch, seed, padding=1)
        assert_equal_outputs(got, expected, 1e-5)
        differ += int((expected["sampled/do"] != expected["best/do"]).sum())
    assert differ > 0


def test_dependent_global_and_continuous_actions() -> None:
    camp = Camp()
    spaces = camp.obs_space(), camp.action_space()
    torch.manual_seed(0)
    net = RogueNet(RogueNetConfig(), *spaces, {"value": 1}).eval()
    for parameter in net.action_heads.parameters():
        torch.nn.init.normal_(parameter)
    camp.seed(1)
    batch = EntityBatch.of(batch_obs([camp.reset() for _ in range(8)], *spaces))
    for seed in range(3):
        expected = ragged_outputs(net, batch, seed)
        assert_equal_outputs(dense_outputs(DenseNet(net), batch, seed), expected, 1e-5)


@pytest.mark.parametrize("of", ["frame", "entity", "both"])
@pytest.mark.parametrize("has_relpos", [False, True])
def test_recurrent_states_that_a_game_looks_up_by_id(of: Any, has_relpos: bool) -> None:
    inputs = ["reward"] if of != "entity" else []
    settings = {} if of == "frame" else {"keep_absent": 0}
    net = memory_case.network(has_relpos=has_relpos, of=of, inputs=inputs, **settings)
    played = memory_case.episodes(seed=3)
    dense, states = DenseNet(net), {}
    for t, out in enumerate(memory_case.step_by_step(net, played)):
        frames = played.frames[t]
        states = {key: x for key, x in states.items() if not played.begun[t, key[1]]}
        reward = torch.from_numpy(np.where(played.begun[t], 0, played.reward[t]))
        more = recalled(dense, frames, states, reward)
        got = dense_outputs(dense, frames, more=more)
        expected = {f"log_probs/{name}": x for name, x in out.log_probs.items()}
        assert_equal_outputs(got, {**expected, "value": out.values["value"].squeeze(1)})
        states = next_states(got, frames)


@pytest.mark.parametrize(
    ("settings", "problem"),
    [
        ({"of": "both"}, "net.memory.keep_absent: expected 0 to export states of entities, got 16"),
        ({"of": "frame", "inputs": ["action"]}, "net.memory.inputs: expected none but reward"),
    ],
)
def test_memory_that_cannot_be_exported_is_an_error(settings: Any, problem: str) -> None:
    with pytest.raises(ValueError, match=problem):
        DenseNet(memory_case.network(**settings))


@pytest.mark.parametrize("bins", [1, ValueBinsConfig(-3, 3, 7)])
def test_values_of_a_separate_network_in_units_of_the_return(bins: Any) -> None:
    memory = MemoryConfig(of="frame")
    configs = RogueNetConfig(d_model=8), RogueNetConfig(d_model=16, memory=memory)
    torch.manual_seed(0)
    heads = {"value": bins}
    agent: Any = RogueNetWithValueNet(*configs, SPACE, ACTIONS, heads, normalized_heads=["value"])
    for parameter in agent.parameters():
        torch.nn.init.normal_(parameter, std=0.3)
    agent.value_norm.add(torch.tensor([100.0, 104.0, 111.0]))
    frames = [frame(3, 2, 1, seed=1, visible={"Rock": [True, False]}), frame(0), frame(1, 4)]
    batch = batch_of(frames)
    features = {n: replace(r, values=r.values.float()) for n, r in batch.features.items()}
    batch = replace(batch, features=features)
    agent.update_input_stats(batch)
    dense = DenseNet(agent.eval())
    more = {"value_memory": torch.zeros(3, 16), "value_known": torch.zeros(3).bool()}
    expected = ragged_outputs(agent, batch)
    got = dense_outputs(dense, batch, more=more)
    assert_equal_outputs(got, expected, 1e-4)
    assert got["next_value_known"].all()
    assert expected["value"].mean() > 50


def test_a_frame_without_entities_and_one_with_500() -> None:
    batch = batch_of([frame(0), frame(500), frame(2)])
    net = net_of()
    assert_equal_outputs(dense_outputs(DenseNet(net), batch), ragged_outputs(net, batch))


def test_padding_may_have_any_content() -> None:
    batch, net = batch_of([frame(3, 1, 1), frame(1)]), DenseNet(net_of())
    inputs = padded_batch(net.agent, batch)
    expected = net(inputs)
    for name, count in ("Unit", [3, 1]), ("Goal", [1, 0]):
        for i, n in enumerate(count):
            inputs[f"entities/{name}"][i, n:] = torch.nan
    got = net(inputs)
    for name, x in expected.items():
        torch.testing.assert_close(got[name], x, equal_nan=True, msg=name)


def test_a_kind_of_action_without_dense_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(HEADS[CategoricalActionSpace], "dense", ActionHead.dense)
    net = DenseNet(net_of())
    with pytest.raises(NotImplementedError, match=r"CategoricalHead\.dense"):
        net(padded_batch(net.agent, batch_of([frame(1)])))
