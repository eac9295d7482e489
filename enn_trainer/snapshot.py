"""Copy of agent, algorithm and players at the begin of an update, to restore after an error."""

import copy
from collections.abc import Iterator
from contextlib import contextmanager
from operator import is_

import torch
from torch import Tensor

from enn_trainer.experience.running_episodes import RunningEpisodes
from enn_trainer.selfplay.league import PLAYERS
from enn_trainer.selfplay.seating import Seating
from enn_trainer.state import State


class Snapshot:
    """Copy of everything that an update changes.

    It reuses its memory, as a run takes a copy before every update.
    """

    def __init__(self) -> None:
        self._tensors: list[Tensor] = []
        self._copies: list[Tensor] = []

    def take_seats(self, state: State) -> None:
        """Copy who plays, before games of the update begin."""
        if isinstance(seating := state.parts.get(PLAYERS), Seating):
            self._seats = seating.seats()

    @contextmanager
    def restored_on_error(self, state: State, episodes: RunningEpisodes) -> Iterator[None]:
        """Return a context that restores the state, and drops the episodes, after any error."""
        self._take(state)
        try:
            yield
        except BaseException:
            of_agent = len(self._tensors) - len(self._names)
            _copy(self._tensors[:of_agent], self._copies[:of_agent])
            state.agent.eval()  # the mode between updates
            copies = (tensor.clone() for tensor in self._copies[of_agent:])
            tensors = dict(zip(self._names, copies, strict=True))
            state.algorithm.load_state_dict({**tensors, **copy.deepcopy(self._plain)})
            if isinstance(seating := state.parts.get(PLAYERS), Seating):
                seating.restore(self._seats)
            episodes.are_valid = False
            raise

    def _take(self, state: State) -> None:
        """Copy the tensors of the agent and of the algorithm."""
        part = state.algorithm.state_dict()
        self._names = [name for name, value in part.items() if isinstance(value, Tensor)]
        self._plain = copy.deepcopy({n: x for n, x in part.items() if not isinstance(x, Tensor)})
        of_agent = [*state.agent.parameters(), *state.agent.buffers()]
        tensors = [*of_agent, *(part[name] for name in self._names)]
        known = len(tensors) == len(self._tensors) and all(map(is_, tensors, self._tensors))
        if not known:  # such as optimizer moments, which are made in the first step
            self._tensors = tensors
            if _forms(tensors) != _forms(self._copies):
                self._copies = [torch.empty_like(tensor) for tensor in tensors]
        _copy(self._copies, tensors)


def _copy(to: list[Tensor], tensors: list[Tensor]) -> None:
    """Copy tensors to others, of which there may be none, as of an agent that learns nothing."""
    if tensors:
        with torch.no_grad():
            torch._foreach_copy_(to, tensors)


def _forms(tensors: list[Tensor]) -> list[tuple[object, ...]]:
    return [(x.shape, x.dtype, x.device) for x in tensors]
