"""Opponents of an evaluated agent: checkpoints and the random agent."""

from collections.abc import Callable, Mapping

import torch
from torch import Tensor, nn

from enn_trainer.checkpoints.migrate.space_diff import incompatibilities
from enn_trainer.checkpoints.saved_run import read_saved_run
from enn_trainer.errors import CheckpointError
from enn_trainer.policy import PPOAgent
from enn_trainer.runtime.start_folder import located
from entity_env.spaces import ActionSpace, ObsSpace
from rogue_net.answer import NetOutput, decide_all, output_of
from rogue_net.heads import HEADS
from rogue_net.ragged import EntityBatch
from rogue_net.wiring import Wired

CreateOpponent = Callable[[str, ObsSpace, Mapping[str, ActionSpace], torch.device], PPOAgent]

RANDOM = "random"


def create_opponent(
    path: str, obs_space: ObsSpace, action_space: Mapping[str, ActionSpace], device: torch.device
) -> PPOAgent:
    """Load an opponent.

    Entity types and features that the opponent was not trained with are hidden from it.

    Args:
        path: a checkpoint of this project or of enn_trainer 0.1.16, or `random`.
        obs_space: observation space of the environment.
        action_space: action space of the environment.
        device: device of the opponent.

    Raises:
        CheckpointError: there is no valid checkpoint, or its actions differ, or the environment
            lacks features that it needs.
    """
    if path == RANDOM:
        return RandomAgent(action_space)
    try:
        saved = read_saved_run(located(path))
    except CheckpointError as error:
        raise CheckpointError(f"eval.opponent: {error}") from None
    different = incompatibilities(saved.obs_space, saved.action_space, obs_space, action_space)
    if different:
        raise CheckpointError(
            f"eval.opponent: {path} was made for another world: {'; '.join(different)}"
        )
    return Wired(saved.agent, obs_space, action_space).to(device)


class RandomAgent(nn.Module):
    """Agent that samples uniformly among the legal choices."""

    def __init__(self, action_space: Mapping[str, ActionSpace]) -> None:
        super().__init__()
        self.action_space = dict(action_space)

    def forward(
        self,
        batch: EntityBatch,
        actions: Mapping[str, Tensor] | None = None,
        uniforms: Mapping[str, Tensor] | None = None,
    ) -> NetOutput:
        """Sample actions, with the interface of `RogueNet`."""
        distributions = {
            name: HEADS[type(space)].uniform(space, batch.actions[name])
            for name, space in self.action_space.items()
        }
        return output_of(decide_all(distributions, actions, uniforms), self.values(batch))

    def values(self, batch: EntityBatch) -> dict[str, Tensor]:
        """Return the value 0 for every frame."""
        device = next(iter(batch.features.values())).values.device
        return {"value": torch.zeros(batch.num_frames, 1, device=device)}

    def update_input_stats(self, batch: EntityBatch) -> None:
        """Do nothing, as the agent has no statistics."""
        return
