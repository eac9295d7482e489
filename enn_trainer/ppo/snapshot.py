"""Copy of the state at the begin of an update, to restore after an error."""

import copy
from collections.abc import Iterator
from operator import is_

import torch
from torch import Tensor

from enn_trainer.state import State


class Snapshot:
    """Copy of everything that an update changes.

    It reuses its memory, as a run takes a copy before every update.
    """

    def __init__(self) -> None:
        self._tensors: list[Tensor] = []
        self._copies: list[Tensor] = []

    def take(self, state: State) -> None:
        """Copy a state."""
        tensors = list(_tensors(state))
        known = len(tensors) == len(self._tensors) and all(map(is_, tensors, self._tensors))
        if not known:  # optimizers make their moments in the first step
            self._tensors = tensors
            self._copies = [torch.empty_like(tensor) for tensor in tensors]
        with torch.no_grad():
            torch._foreach_copy_(self._copies, tensors)
        self._moments = [{p: {**m} for p, m in o.state.items()} for o in state.optimizers()]
        self._ent_tunings = dict(state.ent_tunings)
        self._reward_scaling = copy.copy(state.reward_scaling)

    def put_back(self, state: State) -> None:
        """Restore the state from the last copy."""
        with torch.no_grad():
            torch._foreach_copy_(self._tensors, self._copies)
        for optimizer, moments in zip(state.optimizers(), self._moments, strict=True):
            optimizer.state.clear()
            optimizer.state.update(moments)
        state.agent.eval()  # the mode between updates
        state.ent_tunings = dict(self._ent_tunings)
        state.reward_scaling = copy.copy(self._reward_scaling)


def _tensors(state: State) -> Iterator[Tensor]:
    """Yield the tensors that an update changes in place: weights, statistics and moments."""
    yield from state.agent.parameters()
    yield from state.agent.buffers()
    for optimizer in state.optimizers():
        for moments in optimizer.state.values():
            yield from (value for value in moments.values() if isinstance(value, Tensor))
