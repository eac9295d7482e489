"""From a checkpoint to something that plays."""

from pathlib import Path

import torch

from enn_trainer.agent import PPOAgent, RogueNetAgent
from enn_trainer.checkpoints.saved_run import read_saved_run


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
        path: a checkpoint, or the folder of a run, of which the newest valid one is taken, or
            RUN@STEP, RUN@best; also a checkpoint of enn_trainer 0.1.16.
        device: where the network runs.
        deterministic: take the most probable choice instead of sampling.
        seed: of the sampled choices.
        agent: a network of your own of the shape of the saved one, which takes its weights.

    Raises:
        CheckpointError: there is no valid checkpoint.
    """
    saved = read_saved_run(Path(path), agent)
    network = saved.agent.to(device)
    return RogueNetAgent(network, deterministic, seed, saved.obs_space, saved.action_space)
