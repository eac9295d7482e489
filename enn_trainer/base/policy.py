"""`PPOAgent`: the protocol of trainable networks."""

import copy
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from typing import Any, Protocol, TypeAlias, runtime_checkable

import torch
from torch import Tensor, nn

from enn_trainer.base.errors import ConfigError
from entity_env.bot import Bot
from entity_env.spaces import ActionSpace, ObsSpace
from rogue_net.ragged import EntityBatch
from rogue_net.rogue_net import NetOutput, RogueNet, RogueNetWithValueNet
from rogue_net.wiring import Wired


@runtime_checkable
class PPOAgent(Protocol):
    """Network for `train(agent=...)`: a `torch.nn.Module` with the interface of `RogueNet`.

    `enn_trainer.check_agent` tests whether a network fulfils it.
    """

    def __call__(
        self,
        batch: EntityBatch,
        actions: Mapping[str, Tensor] | None = None,
        uniforms: Mapping[str, Tensor] | None = None,
    ) -> NetOutput:
        """Evaluate `actions`, or sample with `uniforms`, or take the most probable actions."""

    def values(self, batch: EntityBatch) -> dict[str, Tensor]:
        """Return the output of the value head only: {"value": (B, 1)}."""

    def update_input_stats(self, batch: EntityBatch) -> None:
        """Update the input statistics with a rollout, if the network has any."""


Opponent: TypeAlias = PPOAgent | type[Bot]
"""A network, or the class of a bot."""
CreateOpponent: TypeAlias = Callable[
    [str, ObsSpace, Mapping[str, ActionSpace], torch.device], Opponent
]
"""(path, obs_space, action_space, device) -> opponent."""


_DICTS = (dict, OrderedDict)


def frozen_copy(agent: Any, field: str) -> Any:
    """Return a copy of a network, in eval mode and without gradients.

    Args:
        agent: the network.
        field: the setting that requires the copy, for messages.

    Raises:
        ConfigError: the network cannot be copied.
    """
    # The 13 dicts for hooks in each module, mostly empty, take half the time of a copy.
    modules = agent.modules() if isinstance(agent, nn.Module) else ()
    dicts = (x for module in modules for x in vars(module).values() if isinstance(x, dict))
    memo = {id(empty): type(empty)() for empty in dicts if not empty and type(empty) in _DICTS}
    try:
        network: nn.Module = copy.deepcopy(agent, memo)
    except Exception as error:  # of the user's code, or of torch about it
        raise ConfigError(
            f"{field}: expected a network that copy.deepcopy can copy, got "
            f"{type(agent).__name__}: {error}; give it __deepcopy__, or leave {field} out"
        ) from error
    return network.eval().requires_grad_(False)


def device_of(agent: PPOAgent) -> torch.device:
    """Return the device of an agent's parameters; the CPU without parameters."""
    network: Any = agent
    device: torch.device = next(network.parameters(), torch.empty(0)).device
    return device


@contextmanager
def eval_mode(*agents: object) -> Iterator[None]:
    """Return a context with agents in eval mode; their modes are restored at its end."""
    with ExitStack() as stack:
        for agent in agents:
            if isinstance(agent, nn.Module):
                stack.callback(agent.train, agent.training)
                agent.eval()
        yield


def rogue_nets(agent: Any) -> list[RogueNet]:
    """Return all `RogueNet` modules in an agent; [] for a custom network."""
    while isinstance(agent, Wired):
        agent = agent.network
    if type(agent) is RogueNetWithValueNet:
        return [agent.policy, agent.value_function]
    return [agent] if type(agent) is RogueNet else []
