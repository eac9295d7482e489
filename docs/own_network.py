"""A network of your own: a linear layer on each entity, and the mean of a frame's entities.

python docs/own_network.py [name=value ...]
"""

from collections.abc import Mapping

import torch
from torch import Tensor, nn

from enn_trainer import StateManager, check_agent, command, train
from entity_env.examples import MultiArmedBandit
from rogue_net import EntityBatch, NetOutput
from rogue_net.answer import answer


class Averages(nn.Module):
    """Network for global actions: a linear layer for each type, a mean, a layer above it."""

    def __init__(self, env: MultiArmedBandit, width: int = 32) -> None:
        super().__init__()
        space, actions = env.obs_space(), env.action_space()
        sizes = {name: len(entity.features) for name, entity in space.entities.items()}
        sizes["__global__"] = len(space.global_features)
        self.embed = nn.ModuleDict({name: nn.Linear(n, width) for name, n in sizes.items()})
        heads = {name: nn.Linear(width, len(action)) for name, action in actions.items()}
        self.choose = nn.ModuleDict(heads)
        self.value = nn.Linear(width, 1)

    def forward(
        self,
        batch: EntityBatch,
        actions: Mapping[str, Tensor] | None = None,
        uniforms: Mapping[str, Tensor] | None = None,
    ) -> NetOutput:
        """Judge `actions`, or sample them with `uniforms`, or take the most probable ones."""
        frames = self.frames(batch)
        log_probs = {}
        for name, action in batch.actions.items():
            logits = self.choose[name](frames[torch.from_numpy(action.actors.frame_of_row())])
            if action.mask is not None:
                logits = logits.masked_fill(~action.mask.values, -torch.inf)
            log_probs[name] = logits.log_softmax(dim=1)
        return answer(log_probs, {"value": self.value(frames)}, actions, uniforms)

    def values(self, batch: EntityBatch) -> dict[str, Tensor]:
        """Return the value of each frame, (B, 1)."""
        return {"value": self.value(self.frames(batch))}

    def update_input_stats(self, batch: EntityBatch) -> None:
        """Do nothing, as this network does not normalise its input."""

    def frames(self, batch: EntityBatch) -> Tensor:
        """Return the mean over the entities of each frame, (B, width)."""
        total = self.value.weight.new_zeros(batch.num_frames, self.value.in_features)
        count = total.new_zeros(batch.num_frames, 1)
        for name, rows in batch.features.items():
            frame = torch.from_numpy(rows.frame_of_row()).to(total.device)
            total = total.index_add(0, frame, torch.relu(self.embed[name](rows.values)))
            count += torch.from_numpy(rows.lengths).to(total)[:, None]
        return total / count.clamp(min=1)


@command()
def main(state_manager: StateManager) -> None:
    """Check the network, then train it."""
    env = MultiArmedBandit()
    network = Averages(env)
    check_agent(network, env.obs_space(), env.action_space())
    result = train(state_manager, MultiArmedBandit, agent=network)
    print(f"return {result:.3f}")


if __name__ == "__main__":
    main()
