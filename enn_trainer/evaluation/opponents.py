"""Who an agent can be evaluated against."""

from collections.abc import Callable, Mapping

import torch
from torch import Tensor, nn

from enn_trainer.agent import PPOAgent
from enn_trainer.checkpoints.migrate.space_diff import unfit
from enn_trainer.checkpoints.saved_run import read_saved_run
from enn_trainer.errors import CheckpointError
from enn_trainer.start_folder import located
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
    """The opponent that a path means.

    Args:
        path: a checkpoint of this project or of enn_trainer 0.1.16, or `random`.
        obs_space: what the environment shows.
        action_space: what can be done in it.
        device: where the opponent plays.

    Raises:
        CheckpointError: there is no valid checkpoint, or it is of another world: with other
            actions, or without features that the checkpoint needs. What else the world shows, the
            opponent does not see.
    """
    if path == RANDOM:
        return RandomAgent(action_space)
    try:
        saved = read_saved_run(located(path))
    except CheckpointError as error:
        raise CheckpointError(f"eval.opponent: {error}") from None
    different = unfit(saved.obs_space, saved.action_space, obs_space, action_space)
    if different:
        raise CheckpointError(
            f"eval.opponent: {path} was made for another world: {'; '.join(different)}"
        )
    return Wired(saved.agent, obs_space, action_space).to(device)


class RandomAgent(nn.Module):
    """Chooses among the legal choices with equal probability."""

    def __init__(self, action_space: Mapping[str, ActionSpace]) -> None:
        super().__init__()
        self.action_space = dict(action_space)

    def forward(
        self,
        batch: EntityBatch,
        actions: Mapping[str, Tensor] | None = None,
        uniforms: Mapping[str, Tensor] | None = None,
    ) -> NetOutput:
        """Choose, as `RogueNet` does."""
        distributions = {
            name: HEADS[type(space)].uniform(space, batch.actions[name])
            for name, space in self.action_space.items()
        }
        return output_of(decide_all(distributions, actions, uniforms), self.values(batch))

    def values(self, batch: EntityBatch) -> dict[str, Tensor]:
        """Expects nothing."""
        device = next(iter(batch.features.values())).values.device
        return {"value": torch.zeros(batch.num_frames, 1, device=device)}

    def update_input_stats(self, batch: EntityBatch) -> None:
        """Looks at nothing."""
        return
