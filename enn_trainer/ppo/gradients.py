"""Gradient of a sum of losses that are computed in parallel."""

from collections.abc import Callable, Iterable
from functools import partial
from typing import TypeVar

import torch
from torch import Tensor, nn

from enn_trainer.lanes import Lanes
from enn_trainer.tracking.spans import OFF, Spans

T = TypeVar("T")


def add_gradients(
    parameters: Iterable[nn.Parameter],
    losses: Iterable[Callable[[], tuple[Tensor | None, T]]],
    take: Callable[[T], object],
    lanes: Lanes,
    spans: Spans = OFF,
) -> None:
    """Add the gradients of losses to the `grad` of parameters.

    They are added in the order of the losses, so that the sum is bitwise the same for any number of
    lanes. `backward` in each lane would add them in the order of completion.

    Args:
        parameters: parameters of an agent; their `grad` is changed.
        losses: functions that return a loss, () float, or None without one; and an extra result
            without gradients.
        take: called with the extra results, in the order of the losses.
        lanes: lanes in which the losses are computed.
        spans: timers of the backward passes.
    """
    learnt = [p for p in parameters if p.requires_grad]

    def add(computed: tuple[list[Tensor | None], T]) -> None:
        gradients, extra = computed
        for parameter, gradient in zip(learnt, gradients, strict=True):
            if gradient is None:
                continue
            if parameter.grad is None:  # a copy: gradients may share their memory
                parameter.grad = gradient.clone(memory_format=torch.contiguous_format)
            else:
                parameter.grad.add_(gradient)
        take(extra)

    lanes.run((partial(_gradients, learnt, loss, spans) for loss in losses), add)


def _gradients(
    parameters: list[nn.Parameter],
    compute: Callable[[], tuple[Tensor | None, T]],
    spans: Spans,
) -> tuple[list[Tensor | None], T]:
    loss, extra = compute()
    if loss is None:
        return [None] * len(parameters), extra
    with spans.span("backward"):
        return list(torch.autograd.grad(loss, parameters, allow_unused=True)), extra
