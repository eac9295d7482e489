"""Conformance check of consistent and inconsistent distributions."""

import math
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from rogue_net.actions.check_distribution import check_distribution
from rogue_net.actions.distributions import CategoricalDistribution
from rogue_net.actions.gaussian_numbers import SquashedGaussian
from rogue_net.actions.parts import ConditionalDistribution
from rogue_net.ragged import ActionBatch, RaggedTensor


def labels() -> CategoricalDistribution:
    logits = torch.tensor([[0.0, 1.0, -2.0], [3.0, -math.inf, 0.5], [-math.inf, 0.0, -math.inf]])
    return CategoricalDistribution(logits.log_softmax(dim=1))


def numbers() -> SquashedGaussian:
    low = torch.tensor([[-1.0, -math.inf], [0.0, -math.inf], [2.0, -math.inf]])
    high = torch.tensor([[1.0, math.inf], [1e-3, math.inf], [2.0, math.inf]])
    mean, log_std = torch.tensor([[0.0, 1.0], [2.0, -5.0], [0.0, 0.0]]), torch.zeros(3, 2)
    return SquashedGaussian(mean, log_std - torch.tensor([0.5, 1.0]), low, high)


TAKEN = torch.tensor([True, False, True])


def actors(bounds: Tensor | None = None) -> ActionBatch:
    lengths = np.array([1, 2])
    rows = None if bounds is None else RaggedTensor(bounds, lengths)
    return ActionBatch(RaggedTensor(torch.tensor([0, 0, 1]), lengths), bounds=rows)


@pytest.mark.parametrize("is_part", [False, True])
def test_all_distributions_are_consistent(is_part: bool) -> None:
    some = numbers()
    bounds = torch.stack([some.low, some.high], dim=1)
    kinds: list[tuple[Any, ActionBatch, int]] = [(labels(), actors(), 1), (some, actors(bounds), 2)]
    for one, action, num_draws in kinds:
        distribution = ConditionalDistribution(one, TAKEN) if is_part else one
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


class Wide(SquashedGaussian):
    def from_env(self, env_choices: Tensor) -> Tensor:
        return super().from_env(env_choices) + 1


class Forgetful(SquashedGaussian):
    def from_rows(self, rows: Tensor, action: ActionBatch) -> Any:
        read = super().from_rows(rows, action)
        return SquashedGaussian(read.mean, read.log_std + 1, read.low, read.high)


@pytest.mark.parametrize(
    ("kind", "message"),
    [
        (Sure, r"Sure: entropy of actor 0: expected 0\.\d+ \+- 0\.\d+ from the samples, got"),
        (Far, "kl: expected 0 to the distribution itself"),
        (First, "entropy of actor 0|log_prob of sample: expected"),
        (Still, "take: expected the distributions of the given actors"),
        (Wide, "from_env: expected the inverse of to_env"),
        (Forgetful, "from_rows: expected the distribution of to_rows"),
    ],
)
def test_inconsistent_distributions_are_refused(kind: Any, message: str) -> None:
    one: Any
    if issubclass(kind, SquashedGaussian):
        some = numbers()
        one = kind(some.mean, some.log_std, some.low, some.high)
        action = actors(torch.stack([some.low, some.high], dim=1))
        check = (action, 2)
    else:
        one, check = kind(labels().log_probs), (actors(), 1)
    with pytest.raises(ValueError, match=message):
        check_distribution(one, *check)
