"""Pooling and dropout."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from rogue_net import EntityBatch, RelposEncodingConfig, RogueNet, RogueNetConfig
from rogue_net.attention import dropout
from rogue_net.transformer import pool
from tests.rogue_net.nets import SPACE, assert_same_answers, batch_of, by_frame, frame, net_of

FRAMES = [frame(3, 1, 2, seed=1), frame(0, 2, 0, seed=2), frame(2, 0, 3, seed=3), frame(1)]
RELPOS = RelposEncodingConfig([2], ["x"])


# Pooling.


def test_pool_matches_hand_computation() -> None:
    x = torch.tensor([[[1.0, -2.0], [3.0, -4.0], [100.0, 100.0]], [[5.0, 6.0]] * 3])
    among = torch.tensor([[True, True, False], [False, False, False]])
    assert pool(x, among, "mean").tolist() == [[2.0, -3.0], [0.0, 0.0]]
    assert pool(x, among, "max").tolist() == [[3.0, -2.0], [0.0, 0.0]]
    assert pool(x, among, "meanmax").tolist() == [[2.0, -3.0, 3.0, -2.0], [0.0] * 4]
    assert pool(x, None, "meanmax")[1].tolist() == [5.0, 6.0, 5.0, 6.0]


@pytest.mark.parametrize("pooling", ["mean", "max", "meanmax"])
def test_pooling_equals_its_definition(pooling: Any) -> None:
    """One frame after the other, with the arithmetic of the published layer."""
    net, batch = net_of(pooling=pooling), batch_of(FRAMES)
    x, layout = net.embed(batch)
    for i in range(batch.num_frames):
        y = net.embedding(net.embedding.inputs(batch.take(np.array([i]))))
        for block in net.transformer.blocks:
            h = block.attention.prepool(block.norm_1(y))
            parts = {"mean": h.mean(0), "max": h.amax(0), "meanmax": None}
            pooled = parts[pooling]
            if pooled is None:
                pooled = torch.cat([h.mean(0), h.amax(0)])
            y = y + block.attention.project(pooled)
            y = y + block.mlp(block.norm_2(y))
        rows = x[layout.first_row[i] :][: layout.lengths[i]]
        torch.testing.assert_close(rows, y)


def test_published_pooling_parameters_are_renamed() -> None:
    from rogue_net.published import from_published

    state = {"backbone.blocks.1.attn.prepool.weight": torch.zeros(1)}
    assert list(from_published(state)) == ["transformer.blocks.1.attention.prepool.weight"]


def test_unknown_pooling_is_refused() -> None:
    with pytest.raises(ValueError, match=r'pooling: expected None, "mean".*, got \'most\''):
        RogueNetConfig(pooling="most")  # type: ignore[arg-type]


# Dropout.


def test_dropout_has_the_right_rate_and_preserves_the_mean() -> None:
    keys = torch.arange(500)
    for p in (0.1, 0.5, 0.9):
        y = dropout(torch.ones(500, 40), p, keys, 3)
        kept_share = (y != 0).double().mean().item()
        deviation = (p * (1 - p) / y.numel()) ** 0.5
        assert abs(kept_share - (1 - p)) < 4 * deviation
        torch.testing.assert_close(y[y != 0], torch.full_like(y[y != 0], 1 / (1 - p)))
        for counts in ((y != 0).double().mean(0), (y != 0).double().mean(1)):
            spread = (p * (1 - p) / (y.numel() / len(counts))) ** 0.5
            assert 0.6 * spread < counts.std() < 1.6 * spread
    same = [dropout(torch.ones(500, 40), 0.5, keys, site) for site in (1, 2)]
    assert abs((same[0] == same[1]).double().mean() - 0.5) < 0.02
    x = torch.ones(3, 4)
    assert dropout(x, 0.0, keys, 0) is x
    assert dropout(x, 0.5, None, 0) is x


@pytest.mark.parametrize("what", ["embd_pdrop", "resid_pdrop", "attn_pdrop"])
@pytest.mark.parametrize("relpos", [None, RELPOS])
def test_dropout_is_off_while_acting_and_on_while_training(what: str, relpos: Any) -> None:
    net = net_of(relpos_encoding=relpos, **{what: 0.5})
    plain = net_of(relpos_encoding=relpos)
    batch = batch_of(FRAMES)
    expected = by_frame(plain(batch), batch)
    assert_same_answers(by_frame(net.eval()(batch), batch), expected)
    torch.manual_seed(0)
    dropped = net.train()(batch)
    assert (dropped.values["value"] - plain(batch).values["value"]).abs().max() > 1e-3
    assert not torch.equal(net(batch).values["value"], dropped.values["value"])
    torch.manual_seed(0)
    assert torch.equal(net(batch).values["value"], dropped.values["value"])
    assert_same_answers(by_frame(net.eval()(batch), batch), expected)


@pytest.mark.parametrize("options", [{}, {"relpos_encoding": RELPOS}, {"pooling": "max"}])
def test_dropout_does_not_depend_on_batching(options: Any) -> None:
    """So that microbatches, and processes, learn what one batch does."""
    attn = {} if "pooling" in options else {"attn_pdrop": 0.3}
    net = net_of(embd_pdrop=0.3, resid_pdrop=0.3, **attn, **options).train()
    batch = replace(batch_of(FRAMES), keys=np.array([5, -7, 2**62, 0]))
    together = by_frame(net(batch), batch)
    alone = []
    for i in (3, 1, 0, 2):
        one = batch.take(np.array([i]))
        alone += by_frame(net(one), one)
    assert_same_answers([alone[k] for k in (2, 1, 3, 0)], together)
    joined = EntityBatch.cat([batch.take(np.array([0, 1])), batch.take(np.array([2, 3]))])
    assert_same_answers(by_frame(net(joined), joined), together)
    other = replace(batch, keys=np.array([5, -7, 2**62, 1]))
    again = by_frame(net(other), other)
    assert_same_answers(again[:3], together[:3])
    assert not torch.equal(again[3]["value of value"], together[3]["value of value"])


def test_invalid_dropout_probability_is_refused() -> None:
    with pytest.raises(ValueError, match=r"attn_pdrop: expected a probability in \[0, 1\), got 1"):
        RogueNet(RogueNetConfig(attn_pdrop=1.0), SPACE, {})
