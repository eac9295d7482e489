"""Snapshot of the agent and the parts of a state before an update, restored after an error."""

import copy
from collections.abc import Iterator
from contextlib import contextmanager
from operator import is_
from typing import Any

import torch
from torch import Tensor

from enn_trainer.checkpoints.state import State
from enn_trainer.run.running_episodes import RunningEpisodes


class Snapshot:
    """Copy of everything that an update modifies, with reused buffers."""

    def __init__(self) -> None:
        self._tensors: list[Tensor] = []
        self._copies: list[Tensor] = []
        self._names: list[tuple[str, str]] = []  # of the tensors of parts
        self._plain: dict[str, dict[str, Any]] = {}

    def save(self, state: State) -> None:
        """Copy the agent and the mutable state of the parts."""
        parts = {
            name: dict(part.snapshot()) for name, part in state.parts.items() if part.is_restored
        }
        part_tensors = {
            (name, key): value
            for name, entries in parts.items()
            for key, value in entries.items()
            if isinstance(value, Tensor)
        }
        self._names = [*part_tensors]
        self._plain = copy.deepcopy(
            {
                name: {k: x for k, x in entries.items() if not isinstance(x, Tensor)}
                for name, entries in parts.items()
            }
        )
        tensors = [*state.agent.parameters(), *state.agent.buffers(), *part_tensors.values()]
        is_current = len(tensors) == len(self._tensors) and all(map(is_, tensors, self._tensors))
        if not is_current:  # for example, the first step creates optimizer moments
            self._tensors = tensors
            if _signatures(tensors) != _signatures(self._copies):
                self._copies = [torch.empty_like(tensor) for tensor in tensors]
        _copy(self._copies, tensors)

    @contextmanager
    def restored_on_error(self, state: State, episodes: RunningEpisodes) -> Iterator[None]:
        """Return a context that restores the state and invalidates the episodes after an error."""
        try:
            yield
        except BaseException:
            episodes.are_valid = False
            num_agent = len(self._tensors) - len(self._names)
            _copy(self._tensors[:num_agent], self._copies[:num_agent])
            state.agent.eval()  # the mode between updates
            entries = copy.deepcopy(self._plain)
            for (name, key), tensor in zip(self._names, self._copies[num_agent:], strict=True):
                entries[name][key] = tensor.clone()
            for name, content in entries.items():
                state.parts[name].restore(content)
            raise


def _copy(to: list[Tensor], tensors: list[Tensor]) -> None:
    """Copy tensors in place; both lists may be empty."""
    if tensors:
        with torch.no_grad():
            torch._foreach_copy_(to, tensors)


def _signatures(tensors: list[Tensor]) -> list[tuple[object, ...]]:
    return [(x.shape, x.dtype, x.device) for x in tensors]
