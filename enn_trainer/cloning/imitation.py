"""Imitation losses of a network on recorded frames."""

from torch import Tensor

from enn_trainer.cloning.demonstrations import Demonstrations
from enn_trainer.config.train_config import ImitationLoss
from rogue_net.answer import NetOutput


def imitation_losses(
    out: NetOutput, shown: Demonstrations, loss: ImitationLoss
) -> dict[str, Tensor]:
    """Compute the loss of each actor.

    cross_entropy: -log pi(a|s) of the recorded choice a
    kl: KL(teacher || pi)

    Args:
        out: output of the network for the frames and their recorded choices.
        shown: the frames.
        loss: `cross_entropy` of the choices, or `kl` from the recorded probabilities.

    Returns:
        Per action (actors,) float.
    """
    if loss == "cross_entropy":
        return {name: -out.logprobs[name] for name in shown.actions}
    losses = {}
    for name, rows in shown.teacher.items():
        network = out.distribution(name)
        teacher = network.from_rows(rows.values, shown.batch.actions[name])
        losses[name] = teacher.kl(network)
    return losses
