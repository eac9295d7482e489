"""`Reminded`: an agent that answers with what it remembered at one moment, and goes no further."""

from collections.abc import Callable, Mapping
from typing import Any

from torch import Tensor

from enn_trainer.policy import PPOAgent
from rogue_net.answer import NetOutput
from rogue_net.ragged import EntityBatch


class Reminded:
    """Agent in frames that all follow the same past, such as changed copies of one frame.

    Args:
        network: the agent.
        attach: returns frames with their past.
    """

    def __init__(self, network: PPOAgent, attach: Callable[[EntityBatch], EntityBatch]) -> None:
        self.network: Any = network
        self._attach = attach

    def __call__(
        self,
        batch: EntityBatch,
        actions: Mapping[str, Tensor] | None = None,
        uniforms: Mapping[str, Tensor] | None = None,
        **options: Any,
    ) -> NetOutput:
        """Choose or evaluate actions."""
        out: NetOutput = self.network(self._attach(batch), actions, uniforms, **options)
        return out

    def values(self, batch: EntityBatch) -> dict[str, Tensor]:
        """Return the values."""
        values: dict[str, Tensor] = self.network.values(self._attach(batch))
        return values

    def update_input_stats(self, batch: EntityBatch) -> None:
        """Raise, as it only answers."""
        raise TypeError("Reminded: expected no training of an agent at one moment")

    def parameters(self) -> Any:
        """Return the parameters of the agent."""
        return self.network.parameters()
