"""Copy of the agent and the parts of a state before an update, to restore after an error."""

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
    """Copy of everything that an update changes.

    It reuses its memory, as a run takes a copy before every update.
    """

    def __init__(self) -> None:
        self._tensors: list[Tensor] = []
        self._copies: list[Tensor] = []
        self._names: list[tuple[str, str]] = []  # of the tensors of parts
        self._plain: dict[str, dict[str, Any]] = {}

    def save(self, state: State) -> None:
        """Copy the agent, and what an update may change of the parts."""
        parts = {
            name: dict(part.snapshot()) for name, part in state.parts.items() if part.is_restored
        }
        of_parts = {
            (name, key): value
            for name, entries in parts.items()
            for key, value in entries.items()
            if isinstance(value, Tensor)
        }
        self._names = [*of_parts]
        self._plain = copy.deepcopy(
            {
                name: {k: x for k, x in entries.items() if not isinstance(x, Tensor)}
                for name, entries in parts.items()
            }
        )
        tensors = [*state.agent.parameters(), *state.agent.buffers(), *of_parts.values()]
        known = len(tensors) == len(self._tensors) and all(map(is_, tensors, self._tensors))
        if not known:  # such as optimizer moments, which are made in the first step
            self._tensors = tensors
            if _forms(tensors) != _forms(self._copies):
                self._copies = [torch.empty_like(tensor) for tensor in tensors]
        _copy(self._copies, tensors)

    @contextmanager
    def restored_on_error(self, state: State, episodes: RunningEpisodes) -> Iterator[None]:
        """Return a context that restores the state, and drops the episodes, after any error."""
        try:
            yield
        except BaseException:
            episodes.are_valid = False
            of_agent = len(self._tensors) - len(self._names)
            _copy(self._tensors[:of_agent], self._copies[:of_agent])
            state.agent.eval()  # the mode between updates
            entries = copy.deepcopy(self._plain)
            for (name, key), tensor in zip(self._names, self._copies[of_agent:], strict=True):
                entries[name][key] = tensor.clone()
            for name, of_part in entries.items():
                state.parts[name].restore(of_part)
            raise


def _copy(to: list[Tensor], tensors: list[Tensor]) -> None:
    """Copy tensors to others, of which there may be none, as of an agent that learns nothing."""
    if tensors:
        with torch.no_grad():
            torch._foreach_copy_(to, tensors)


def _forms(tensors: list[Tensor]) -> list[tuple[object, ...]]:
    return [(x.shape, x.dtype, x.device) for x in tensors]
