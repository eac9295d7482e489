"""Gradients that are added in the order of what they are of, whoever computes them first."""

import time
from functools import partial

import pytest
import torch
from torch import Tensor, nn

from enn_trainer.algorithms.minibatches import add_gradients
from enn_trainer.runtime.execution import ThreadPool


class Two(nn.Module):
    """One parameter that is used, one that is not, and one that is not trained."""

    def __init__(self) -> None:
        super().__init__()
        self.used = nn.Parameter(torch.tensor([1.0, 2.0]))
        self.unused = nn.Parameter(torch.tensor([3.0]))
        self.fixed = nn.Parameter(torch.tensor([5.0, 7.0]), requires_grad=False)

    def loss(self, i: int) -> tuple[Tensor | None, int]:
        time.sleep(0.001 * (8 - i))  # the last one is ready first
        return (self.used * self.fixed * 10.0**-i).sum(), i


@pytest.mark.parametrize("count", [1, 2, 3])
def test_gradients_accumulate_in_order(count: int) -> None:
    net, told = Two(), list[int]()
    net.used.grad = torch.tensor([1.0, 0.0])
    expected = net.used.grad.clone()
    for i in range(8):
        expected += torch.tensor([5.0, 7.0]) * 10.0**-i
    with ThreadPool(count) as threads:
        add_gradients(
            net.parameters(), [partial(net.loss, i) for i in range(8)], told.append, threads
        )
    assert torch.equal(net.used.grad, expected)
    assert net.unused.grad is None, "an optimizer leaves alone what has no gradient"
    assert net.fixed.grad is None
    assert told == list(range(8))


def test_loss_without_gradient_adds_nothing() -> None:
    net, told = Two(), list[int]()
    add_gradients(net.parameters(), [lambda: (None, 4)], told.append, ThreadPool())
    assert net.used.grad is None
    assert told == [4]


def test_shared_gradients_are_copied() -> None:
    """Of a sum, both parts have the same gradient; clipping scales each in its place."""
    net = nn.Module()
    net.a, net.b = nn.Parameter(torch.zeros(3)), nn.Parameter(torch.zeros(3))

    def loss() -> tuple[Tensor | None, None]:
        return (net.a + net.b).sum(), None

    add_gradients(net.parameters(), [loss], lambda nothing: None, ThreadPool())
    assert net.a.grad is not None
    assert net.b.grad is not None
    net.a.grad.mul_(2.0)
    assert net.a.grad.tolist() == [2.0] * 3
    assert net.b.grad.tolist() == [1.0] * 3


def test_error_leaves_earlier_gradients() -> None:
    net, told = Two(), list[int]()

    def fails() -> tuple[Tensor | None, int]:
        raise ValueError("no number")

    losses = [partial(net.loss, 0), fails, partial(net.loss, 2)]
    with ThreadPool(2) as threads, pytest.raises(ValueError, match="no number"):
        add_gradients(net.parameters(), losses, told.append, threads)
    assert told == [0]
