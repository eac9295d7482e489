"""Decisions are put in order like frames, and every player acts in its own environments."""

from itertools import accumulate, pairwise

import numpy as np
import torch
from hypothesis import given
from hypothesis import strategies as st

from enn_trainer.experience.players import AgentPlayer, Decisions, draw_uniforms
from rogue_net.actions.distributions import CategoricalDistribution
from rogue_net.ragged import RaggedTensor
from tests.enn_trainer.experience.decided import FIELDS, assert_same, frames_of, network


def some_decisions(seed: int, num_frames: int) -> Decisions:
    """Of two actions, of which one has many actors, one few, in any frame."""
    rng = np.random.default_rng(seed)
    generator = torch.Generator().manual_seed(seed)
    chosen, logprobs, entropies, distributions = {}, {}, {}, {}
    for name, most in (("go", 4), ("stop", 1)):
        lengths = rng.integers(0, most + 1, num_frames)
        count, choices = int(lengths.sum()), int(rng.integers(1, 4))
        table = torch.rand(count, choices, generator=generator).log_softmax(dim=-1)
        distributions[name] = CategoricalDistribution(table)
        chosen[name] = RaggedTensor(torch.randint(choices, (count,), generator=generator), lengths)
        logprobs[name] = RaggedTensor(torch.rand(count, generator=generator), lengths)
        entropies[name] = RaggedTensor(torch.rand(count, generator=generator), lengths)
    values = torch.rand(num_frames, generator=generator)
    return Decisions(chosen, logprobs, entropies, values, distributions)


def of_frame(decisions: Decisions, frame: int) -> list[list[float]]:
    """All that is decided in a frame, as lists; choices of probability 0 are left out."""
    found = [[decisions.values[frame].item()]]
    for name, rows in decisions.chosen.items():
        end = int(rows.lengths[: frame + 1].sum())
        begin = end - int(rows.lengths[frame])
        for field in FIELDS:
            found.append(getattr(decisions, field)[name].values[begin:end].tolist())
        table = decisions.distributions[name].all_log_probs
        assert table is not None
        found += [row[row > -torch.inf].tolist() for row in table[begin:end]]
    return found


@given(
    sizes=st.lists(st.integers(0, 5), min_size=1, max_size=4).filter(any),
    seed=st.integers(0, 1000),
    data=st.data(),
)
def test_decisions_are_indexed_and_concatenated_with_their_frames(
    sizes: list[int], seed: int, data: st.DataObject
) -> None:
    pieces = [some_decisions(seed + i, size) for i, size in enumerate(sizes)]
    places = [(piece, i) for piece, size in zip(pieces, sizes, strict=True) for i in range(size)]
    wanted = np.array(data.draw(st.lists(st.integers(0, sum(sizes) - 1), max_size=8)), np.int64)
    taken = Decisions.cat(pieces).take(wanted)
    assert len(taken.values) == len(wanted)
    for frame, place in enumerate(wanted):
        assert of_frame(taken, frame) == of_frame(*places[place])
    # Pieces of the whole, put together again, are the whole.
    whole = Decisions.cat(pieces)
    bounds = [0, *accumulate(sizes)]
    parts = [whole.take(np.arange(*b)) for b in pairwise(bounds)]
    again = Decisions.cat(parts)
    assert [of_frame(again, i) for i in range(sum(sizes))] == [
        of_frame(whole, i) for i in range(sum(sizes))
    ]


@torch.no_grad()
def test_agent_player_samples_like_its_network() -> None:
    net, (obs, batch) = network(0), frames_of(9)
    environments = np.arange(9) + 20
    draws = draw_uniforms(batch.actions, 3, environments, 7)
    expected = Decisions.of(net(batch, uniforms=draws), batch)
    assert_same(AgentPlayer(net, seed=3).choose(batch, environments, 7), expected)
    greedy = Decisions.of(net(batch), batch)
    assert_same(AgentPlayer(net, seed=None).act(obs, batch, 7), greedy)
    for name, rows in expected.chosen.items():
        table = expected.distributions[name].all_log_probs
        assert table is not None
        chances = table.gather(1, rows.values[:, None])[:, 0]
        assert torch.equal(chances, expected.logprobs[name].values)


@torch.no_grad()
def test_network_without_values_gives_nan() -> None:
    net, (_, batch) = network(0), frames_of(2)
    without = net(batch)._replace(values={})
    assert Decisions.of(without, batch).values.isnan().all()
