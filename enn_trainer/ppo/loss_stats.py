"""Running sums of the loss statistics of an update."""

from collections.abc import Iterable
from dataclasses import dataclass, field, fields

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor


@dataclass
class LossStats:
    """Running sums of the loss statistics of an update.

    They are kept on the device until the update ends, as reading them would wait for it.

    Attributes:
        policy_loss, entropy: sums over terms, which are actors, or frames that have actors.
        approx_kl, clipped: sums over actors.
        value_loss: sum over frames.
        grad_norm: sum over optimizer steps, before clipping.
        tuned_entropy: (actions with a target, 2), sums of `normalised_entropy`.
        kl_of_actions: (actions,), approx_kl of the actors of each action.
        actors_of_actions: (actions,) int64 on the host, number of actors of each action.
        terms, actors, frames, optimizer_steps: numbers of each.
        vf_grad_norm: as grad_norm, of a separate value network.
        auxiliary: sum over optimizer steps of each auxiliary loss, by name.
    """

    policy_loss: Tensor
    entropy: Tensor
    approx_kl: Tensor
    clipped: Tensor
    value_loss: Tensor
    grad_norm: Tensor
    tuned_entropy: Tensor
    kl_of_actions: Tensor
    actors_of_actions: npt.NDArray[np.int64]
    terms: int = 0
    actors: int = 0
    frames: int = 0
    optimizer_steps: int = 0
    vf_grad_norm: Tensor | float = 0.0
    auxiliary: dict[str, Tensor] = field(default_factory=dict)

    @staticmethod
    def zero(device: torch.device, num_actions: int, num_tuned: int = 0) -> "LossStats":
        """Return sums of nothing."""
        zero = torch.zeros((), device=device)
        return LossStats(
            *(zero, zero, zero, zero, zero, zero),
            tuned_entropy=torch.zeros(num_tuned, 2, device=device),
            kl_of_actions=torch.zeros(num_actions, device=device),
            actors_of_actions=np.zeros(num_actions, dtype=np.int64),
        )

    def add(self, other: "LossStats") -> None:
        """Add the sums of `other`."""
        for f in fields(self):
            if f.name != "auxiliary":
                setattr(self, f.name, getattr(self, f.name) + getattr(other, f.name))
        for name, loss in other.auxiliary.items():
            self.auxiliary[name] = self.auxiliary.get(name, 0.0) + loss

    def losses(self) -> dict[str, Tensor]:
        """Return the losses and gradient norms that must be finite, by name."""
        zero = torch.zeros_like(self.policy_loss)
        return {
            "the policy loss": self.policy_loss,
            "the entropy": self.entropy,
            "the value loss": self.value_loss,
            **{f"the auxiliary loss {name}": loss for name, loss in self.auxiliary.items()},
            "the norm of the gradient": self.grad_norm,
            "the norm of the value network's gradient": zero + self.vf_grad_norm,
        }

    def means(self) -> dict[str, float]:
        """Return the mean losses by their tags."""
        terms, actors, frames = max(1, self.terms), max(1, self.actors), max(1, self.frames)
        steps = max(1, self.optimizer_steps)
        return {
            "losses/policy_loss": self.policy_loss.item() / terms,
            "losses/entropy": self.entropy.item() / terms,
            "losses/approx_kl": self.approx_kl.item() / actors,
            "losses/clipfrac": self.clipped.item() / actors,
            "losses/value_loss": self.value_loss.item() / frames,
            "losses/gradnorm": self.grad_norm.item() / steps,
            "losses/vf_gradnorm": float(self.vf_grad_norm) / steps,
        }

    def auxiliary_means(self) -> dict[str, float]:
        """Return `losses/<name>_loss` of each auxiliary loss, its mean over optimizer steps."""
        steps = max(1, self.optimizer_steps)
        return {f"losses/{name}_loss": float(x) / steps for name, x in self.auxiliary.items()}

    def kl_scalars(self, actions: Iterable[str]) -> dict[str, float]:
        """Return `policy/<action>/kl` of each action that had actors.

        Args:
            actions: names of the actions in the order of the sums.
        """
        sums = self.kl_of_actions.tolist()
        return {
            f"policy/{name}/kl": kl / actors
            for name, kl, actors in zip(actions, sums, self.actors_of_actions.tolist(), strict=True)
            if actors
        }
