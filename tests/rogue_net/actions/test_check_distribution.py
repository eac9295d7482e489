"""Distributions that contradict themselves, and those that do not."""

import math
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from rogue_net.actions.check_distribution import check_distribution
from rogue_net.actions.distributions import CategoricalDistribution
from rogue_net.actions.gaussian_numbers import GaussianNumbers
from rogue_net.actions.parts import PartDistribution
from rogue_net.ragged import ActionBatch, RaggedTensor


def labels() -> CategoricalDistribution:
    logits = torch.tensor([[0.0, 1.0, -2.0], [3.0, -math.inf, 0.5], [-math.inf, 0.0, -math.inf]])
    return CategoricalDistribution(logits.log_softmax(dim=1))


def numbers() -> GaussianNumbers:
    low = torch.tensor([[-1.0, -math.inf], [0.0, -math.inf], [2.0, -math.inf]])
    high = torch.tensor([[1.0, math.inf], [1e-3, math.inf], [2.0, math.inf]])
    mean, log_std = torch.tensor([[0.0, 1.0], [2.0, -5.0], [0.0, 0.0]]), torch.zeros(3, 2)
    return GaussianNumbers(mean, log_std - torch.tensor([0.5, 1.0]), low, high)


TAKEN = torch.tensor([True, False, True])


def actors(bounds: Tensor | None = None) -> ActionBatch:
    lengths = np.array([1, 2])
    rows = None if bounds is None else RaggedTensor(bounds, lengths)
    return ActionBatch(RaggedTensor(torch.tensor([0, 0, 1]), lengths), bounds=rows)


@pytest.mark.parametrize("is_part", [False, True])
def test_the_distributions_of_all_kinds_agree_with_themselves(is_part: bool) -> None:
    some = numbers()
    bounds = torch.stack([some.low, some.high], dim=1)
    kinds: list[tuple[Any, ActionBatch, int]] = [(labels(), actors(), 1), (some, actors(bounds), 2)]
    for one, action, num_draws in kinds:
        distribution = PartDistribution(one, TAKEN) if is_part else one
        check_distribution(distribution, action, num_draws)


class Sure(CategoricalDistribution):
    def entropy(self) -> Tensor:
        return super().entropy() / 2


class Far(CategoricalDistribution):
    def kl(self, other: Any) -> Tensor:
        return super().kl(other) + 0.1


class First(CategoricalDistribution):
    def sample(self, draws: Tensor) -> Tensor:
        return torch.zeros_like(super().sample(draws))


class Still(CategoricalDistribution):
    def take(self, actors: Tensor) -> Any:
        return type(self)(self.log_probs.index_select(0, actors.sort().values))


class Wide(GaussianNumbers):
    def from_env(self, given: Tensor) -> Tensor:
        return super().from_env(given) + 1


class Forgetful(GaussianNumbers):
    def from_rows(self, rows: Tensor, action: ActionBatch) -> Any:
        read = super().from_rows(rows, action)
        return GaussianNumbers(read.mean, read.log_std + 1, read.low, read.high)


@pytest.mark.parametrize(
    ("kind", "message"),
    [
        (Sure, r"Sure: entropy of actor 0: expected 0\.\d+ \+- 0\.\d+, as the samples say, got"),
        (Far, "kl: expected 0 of the distribution itself"),
        (First, "entropy of actor 0|log_prob of sample: expected"),
        (Still, "take: expected the distributions of the given actors"),
        (Wide, "from_env: expected the inverse of to_env"),
        (Forgetful, "from_rows: expected the distribution of to_rows"),
    ],
)
def test_distributions_that_contradict_themselves_are_refused(kind: Any, message: str) -> None:
    one: Any
    if issubclass(kind, GaussianNumbers):
        some = numbers()
        one = kind(some.mean, some.log_std, some.low, some.high)
        action = actors(torch.stack([some.low, some.high], dim=1))
        check = (action, 2)
    else:
        one, check = kind(labels().log_probs), (actors(), 1)
    with pytest.raises(ValueError, match=message):
        check_distribution(one, *check)
