"""Loading of agents from checkpoints."""

from pathlib import Path
from typing import Any

import torch

from enn_trainer.agent import PPOAgent, RogueNetAgent
from enn_trainer.checkpoints.migrate.space_diff import incompatibilities
from enn_trainer.checkpoints.saved_run import read_saved_run
from enn_trainer.checkpoints.weights import load_weights_file
from enn_trainer.errors import CheckpointError
from entity_env.environment import Environment
from entity_env.match import Match
from rogue_net.wiring import Wired


def load_agent(
    path: str | Path,
    device: str | torch.device = "cpu",
    deterministic: bool = False,
    seed: int = 0,
    agent: PPOAgent | None = None,
    env: Environment | Match | None = None,
) -> RogueNetAgent:
    """Load the agent of a checkpoint, ready to act.

    Only the configuration, the spaces and the weights are read.

    Args:
        path: a checkpoint, or the folder of a run, for its newest valid checkpoint, or RUN@STEP,
            RUN@best; also of enn_trainer 0.1.16. Or a file of weights for `agent`: `.safetensors`,
            or a state dict written by `torch.save`.
        device: device of the network.
        deterministic: True to take the most probable choice instead of sampling.
        seed: seed of the sampled choices.
        agent: a network of your own with parameters of the saved shapes, which are loaded into it.
        env: the environment to act in. Features, entity types and labels are then matched by name,
            in any order, and those that are new to the agent are ignored; without it, observations
            must be those of the environment that the agent was trained in.

    Raises:
        CheckpointError: there is no valid checkpoint; the file holds something else; or the
            environment has other actions or lacks features that the agent needs.
    """
    path = Path(path)
    if path.is_file():
        network = _with_weights(path, agent)
        return RogueNetAgent(network.to(device), deterministic, seed)
    saved = read_saved_run(path, agent)
    network = saved.agent.to(device)
    if env is not None:
        obs_space, action_space = env.obs_space(), env.action_space()
        if different := incompatibilities(
            saved.obs_space, saved.action_space, obs_space, action_space
        ):
            raise CheckpointError(f"{path} is of another world: {'; '.join(different)}")
        wired = Wired(network, obs_space, action_space, saved.obs_space, saved.action_space)
        return RogueNetAgent(wired, deterministic, seed)
    return RogueNetAgent(network, deterministic, seed, saved.obs_space, saved.action_space)


def _with_weights(path: Path, agent: PPOAgent | None) -> Any:
    network: Any = agent
    lacking = [name for name in ("obs_space", "action_space") if not hasattr(network, name)]
    if network is None or lacking:
        got = "none" if network is None else f"one without {' and '.join(lacking)}"
        raise CheckpointError(
            f"{path}: expected agent=, a network that knows its obs_space and action_space, beside "
            f"a file of weights, which has neither; got {got}"
        )
    load_weights_file(path, network)
    return network
