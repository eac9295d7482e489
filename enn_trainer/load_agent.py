"""From a checkpoint to something that plays."""

from pathlib import Path

import torch

from enn_trainer import checkpoint
from enn_trainer.agent import PPOAgent, RogueNetAgent
from enn_trainer.state import restore_network


def load_agent(
    path: str | Path,
    device: str | torch.device = "cpu",
    deterministic: bool = False,
    seed: int = 0,
    agent: PPOAgent | None = None,
) -> RogueNetAgent:
    """The agent of a checkpoint, ready to act.

    Only the configuration, the spaces and the weights are read.

    Args:
        path: a checkpoint, or the folder of a run, of which the newest valid one is taken.
        device: where the network runs.
        deterministic: take the most probable choice instead of sampling.
        seed: of the sampled choices.
        agent: a network of your own of the shape of the saved one, which takes its weights.

    Raises:
        CheckpointError: there is no valid checkpoint.
    """
    network, obs_space, action_space = restore_network(checkpoint.find(Path(path)), agent)
    return RogueNetAgent(network.to(device), deterministic, seed, obs_space, action_space)
