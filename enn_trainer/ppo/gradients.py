"""The gradient of a sum of losses, each computed for itself."""

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
    """Add the gradient of losses to that of parameters.

    They are added in the order of the losses, so that the sum is the same to the bit however many
    lanes there are; `backward` in each lane would add as they come.

    Args:
        parameters: of an agent; their `grad` is changed.
        losses: each returns () float, its loss, or None where there is nothing to learn; and what
            else there is to know, without gradients.
        take: called with the latter, in the order of the losses.
        lanes: compute them.
        spans: measures the backward passes.
    """
    learnt = [p for p in parameters if p.requires_grad]

    def add(computed: tuple[list[Tensor | None], T]) -> None:
        gradients, said = computed
        for parameter, gradient in zip(learnt, gradients, strict=True):
            if gradient is None:
                continue
            if parameter.grad is None:  # a copy: gradients may share their memory
                parameter.grad = gradient.clone(memory_format=torch.contiguous_format)
            else:
                parameter.grad.add_(gradient)
        take(said)

    lanes.run((partial(_gradients, learnt, loss, spans) for loss in losses), add)


def _gradients(
    parameters: list[nn.Parameter],
    compute: Callable[[], tuple[Tensor | None, T]],
    spans: Spans,
) -> tuple[list[Tensor | None], T]:
    loss, said = compute()
    if loss is None:
        return [None] * len(parameters), said
    with spans.span("backward"):
        return list(torch.autograd.grad(loss, parameters, allow_unused=True)), said
