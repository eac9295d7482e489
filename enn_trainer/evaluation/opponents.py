"""Who an agent can be evaluated against."""

import math
from collections.abc import Callable, Mapping

import numpy as np
import torch
from torch import Tensor, nn

from enn_trainer.agent import PPOAgent
from enn_trainer.checkpoints.migrate.space_diff import unfit
from enn_trainer.checkpoints.saved_run import read_saved_run
from enn_trainer.errors import CheckpointError
from enn_trainer.start_folder import located
from entity_env.spaces import ActionSpace, ObsSpace, SelectEntityActionSpace
from rogue_net.ragged import ActionBatch, EntityBatch, to_device
from rogue_net.rogue_net import NetOutput, answer
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
        log_probs = {
            name: _uniform(batch.actions[name], space) for name, space in self.action_space.items()
        }
        return answer(log_probs, self.values(batch), actions, uniforms)

    def values(self, batch: EntityBatch) -> dict[str, Tensor]:
        """Expects nothing."""
        device = next(iter(batch.features.values())).values.device
        return {"value": torch.zeros(batch.num_frames, 1, device=device)}

    def update_input_stats(self, batch: EntityBatch) -> None:
        """Looks at nothing."""
        return


def _uniform(action: ActionBatch, space: ActionSpace) -> Tensor:
    """(actors, choices) log-probabilities, equal for all legal choices."""
    lengths, device = action.actors.lengths, action.actors.values.device
    mask = action.mask
    if isinstance(space, SelectEntityActionSpace):
        assert action.actees is not None
        per_actor = np.repeat(action.actees.lengths, lengths)
        allowed = to_device(np.arange(per_actor.max(initial=0)) < per_actor[:, None], device)
        if mask is not None:
            allowed = allowed.masked_scatter(allowed, mask.values)
    elif mask is not None:
        allowed = mask.values
    else:
        shape = (int(lengths.sum()), len(space))
        allowed = torch.ones(shape, dtype=torch.bool, device=device)
    logits = torch.zeros(allowed.shape, device=device).masked_fill(~allowed, -math.inf)
    return logits.log_softmax(dim=-1)
