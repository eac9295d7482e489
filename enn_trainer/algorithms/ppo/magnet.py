"""Magnetic mirror descent: KL divergence to a slowly moving policy, as an auxiliary loss."""

from typing import Any

import torch
from torch import Tensor

from enn_trainer.algorithms.algorithm import ActorLosses, AuxiliaryLoss, Clock, RunState
from enn_trainer.base.policy import frozen_copy
from enn_trainer.base.state_part import (
    SpaceChange,
    StateDict,
    check_tensor,
    with_prefix,
    without_prefix,
)
from enn_trainer.config import TrainConfig
from rogue_net.answer import NetOutput
from rogue_net.ragged import EntityBatch

AGENT = "agent"
"""Prefix of the names of the network's tensors in the state."""
STEP = "step"


class Magnet(AuxiliaryLoss):
    """KL divergence of the policy from a frozen copy of the agent (the magnet), see `ppo.magnet`.

    The copy is made before the first update, and before the first update at or past each multiple
    of `every` frames. Between copies it does not change, including its input statistics.

    Args:
        config: configuration of the run.
        agent: the network.

    Attributes:
        step: frames of the run when the copy was made; None before the first update.
        network: the copy, without gradients and dropout; None before the first update.

    Source: Sokota et al. 2023, arXiv:2206.05825, magnetic mirror descent with a moving magnet.
    """

    def __init__(self, config: TrainConfig, agent: Any) -> None:
        self.config, self.agent = config, agent
        self.step: int | None = None
        self.network: Any = None

    def prepare(self, config: TrainConfig, state: RunState, device: torch.device) -> None:
        """Check that the agent can be copied.

        Raises:
            ConfigError: the network cannot be copied.
        """
        self.config = config
        if self.network is None:
            frozen_copy(self.agent, "ppo.magnet")

    def begin_update(self, clock: Clock) -> bool:
        """Copy the agent if a copy is due; return False while the coefficient is 0."""
        magnet = self.config.ppo.magnet
        assert magnet is not None
        if self.step is None or clock.step // magnet.every > self.step // magnet.every:
            self.network, self.step = frozen_copy(self.agent, "ppo.magnet"), clock.step
        return magnet.coef != 0

    def actor_losses(self, batch: EntityBatch, out: NetOutput) -> ActorLosses:
        """Return KL(policy || magnet) of each actor."""
        assert self.config.ppo.magnet is not None
        with torch.no_grad():
            magnet = self.network(batch, actions=out.actions)
        kl = {name: out.distribution(name).kl(magnet.distribution(name)) for name in out.logprobs}
        return ActorLosses(float(self.config.ppo.magnet.coef), kl)

    def state_dict(self) -> StateDict:
        """Return the tensors of the copy, and the step at which it was made."""
        if self.network is None:
            return {}
        return {STEP: self.step, **with_prefix(AGENT, self.network.state_dict())}

    def load_state_dict(self, state: StateDict) -> None:
        """Restore the copy.

        Raises:
            ValueError: the tensors do not fit the network, or are not finite.
        """
        if not state:
            self.step, self.network = None, None
            return
        step = state.get(STEP)
        if type(step) is not int or step < 0:
            raise ValueError(f"{STEP}: expected a number of frames, got {step!r}")
        network = frozen_copy(self.agent, "ppo.magnet")
        expected, tensors = network.state_dict(), without_prefix(AGENT, state)
        if unknown := [name for name in tensors if name not in expected]:
            raise ValueError(f"{AGENT}/{unknown[0]}: the network has no such tensor")
        for name, tensor in expected.items():
            saved = tensors.get(name)
            check_tensor(f"{AGENT}/{name}", saved, tensor.dtype, (*tensor.shape,))
            assert saved is not None
            tensor.copy_(saved)
        for name, parameter in network.named_parameters():
            if not parameter.isfinite().all():
                raise ValueError(f"{AGENT}/{name}: expected finite numbers")
        self.step, self.network = step, network

    def evolve(self, state: StateDict, change: SpaceChange) -> StateDict:
        """Return the state for other spaces; the copy is changed like the agent."""
        if not state:
            return {}
        tensors: dict[str, Tensor] = without_prefix(AGENT, state)
        return {STEP: state[STEP], **with_prefix(AGENT, change.copy_of_agent(tensors))}
