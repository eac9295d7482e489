"""Categorical distributions against hand computations."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from rogue_net.actions.distributions import CategoricalDistribution
from rogue_net.ragged import ActionBatch, RaggedTensor

LARGEST_UNIFORM = 1 - 2**-23


def test_entropy_of_known_probabilities() -> None:
    p = torch.tensor([[0.5, 0.25, 0.25, 0.0], [1.0, 0.0, 0.0, 0.0]]).log().requires_grad_()
    torch.testing.assert_close(
        CategoricalDistribution(p).entropy(), torch.tensor([1.5 * math.log(2), 0.0])
    )
    (gradient,) = torch.autograd.grad(CategoricalDistribution(p).entropy().sum(), p)
    assert gradient.isfinite().all()


@given(
    st.lists(st.floats(-80, 80) | st.just(-math.inf), min_size=1, max_size=6).filter(
        lambda logits: max(logits) > -math.inf
    ),
    st.sampled_from([torch.float32, torch.float64]),
)
def test_masked_choices_are_never_sampled(logits: list[float], dtype: torch.dtype) -> None:
    uniforms = torch.tensor([0.0, 2**-23, 0.5, 1 - 2**-22, LARGEST_UNIFORM])
    log_probs = torch.tensor([logits], dtype=dtype).log_softmax(dim=1).expand(len(uniforms), -1)
    for choice in CategoricalDistribution(log_probs).sample(uniforms).tolist():
        assert logits[choice] > -math.inf
    assert (
        CategoricalDistribution(log_probs).sample(uniforms)[0]
        == log_probs[0].exp().gt(0).nonzero()[0]
    )


def test_masked_choices_are_never_sampled_despite_rounding(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """On a GPU, cumulative sums may grow where the probability is zero."""
    p = torch.tensor([[0.5, 0.0, 0.5, 0.0]])
    sums = torch.tensor([[0.5, 0.501, 0.999, 1.0]])
    monkeypatch.setattr(Tensor, "cumsum", lambda self, dim: sums.expand(len(self), -1))
    uniforms = torch.tensor([0.0, 0.5008, 0.5015, 0.9995, LARGEST_UNIFORM])
    choices = CategoricalDistribution(p.log().expand(len(uniforms), -1)).sample(uniforms)
    assert choices.tolist() == [0, 2, 2, 2, 2]


def test_sampling_inverts_the_cumulative_distribution() -> None:
    log_probs = torch.tensor([[0.0, 0.25, 0.0, 0.5, 0.25, 0.0]]).log().expand(5, -1)
    uniforms = torch.tensor([0.0, 0.25 - 2**-23, 0.25, 0.75 - 2**-23, 0.75])
    assert CategoricalDistribution(log_probs).sample(uniforms).tolist() == [1, 1, 3, 3, 4]


def test_normalised_entropy_is_relative_to_legal_choices() -> None:
    """An actor with one legal choice has nothing to explore and must not pull the mean down."""
    log_probs = torch.tensor(
        [
            [0.5, 0.5, 0.0],  # entropy log 2 of log 2
            [1.0, 0.0, 0.0],  # one choice
            [0.5, 0.25, 0.25],  # entropy 1.5 log 2 of log 3
        ]
    ).log()
    entropies = torch.tensor([math.log(2), 0.0, 1.5 * math.log(2)])
    total, actors = CategoricalDistribution(log_probs).normalised_entropy(entropies).tolist()
    assert total == pytest.approx(1.0 + 1.5 * math.log(2) / math.log(3))
    assert actors == 2


def test_normalised_entropy_without_actors_is_zero() -> None:
    """As for select-entity actions without actors and actees."""
    no_actors = CategoricalDistribution(torch.zeros(0, 0))
    assert no_actors.normalised_entropy(torch.zeros(0)).tolist() == [0.0, 0.0]


@given(st.lists(st.tuples(st.integers(0, 3), st.integers(1, 4)), min_size=1, max_size=5))
def test_from_rows_pads_ragged_actees(frames: list[tuple[int, int]]) -> None:
    actors, actees = (np.array(n, dtype=np.int64) for n in zip(*frames, strict=True))
    acting = [(a, k) for a, k in frames if a]
    longest = max((k for _, k in acting), default=0)
    rows = torch.arange(float((actors * actees).sum()))
    action = ActionBatch(
        RaggedTensor(torch.zeros(int(actors.sum()), dtype=torch.int64), actors),
        actees=RaggedTensor(torch.zeros(int(actees.sum()), dtype=torch.int64), actees),
    )
    network = CategoricalDistribution(torch.zeros(int(actors.sum()), longest))
    table = network.from_rows(rows, action).log_probs
    expected, value = [], 0.0
    for a, k in acting:
        for _ in range(a):
            expected.append([value + i for i in range(k)] + [-math.inf] * (longest - k))
            value += k
    assert table.tolist() == expected
    assert CategoricalDistribution(table).to_rows(action).values.tolist() == rows.tolist()


def test_kl_over_allowed_choices_matches_hand_computation() -> None:
    inf = math.inf
    network = torch.tensor([[0.5, 0.5, 0.0], [0.25, 0.75, 0.0]]).log().requires_grad_()
    teacher = torch.tensor([[0.0, 0.0, 5.0], [-inf, 0.0, 0.0]])  # it does not know the mask
    loss = CategoricalDistribution(teacher).kl(CategoricalDistribution(network))
    # Equal to the first; of the second 1 * log(1 / 0.75).
    torch.testing.assert_close(loss, torch.tensor([0.0, math.log(4 / 3)]))
    (gradient,) = torch.autograd.grad(loss.sum(), network)
    assert torch.isfinite(gradient).all()
    assert gradient.tolist() == [[-0.5, -0.5, 0.0], [0.0, -1.0, 0.0]]
