"""Opponents by name in settings and command lines: networks, bots, random."""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor, nn

from enn_trainer.base.errors import CheckpointError, ConfigError
from enn_trainer.base.policy import Opponent
from enn_trainer.checkpoints.saved_run import read_saved_run
from enn_trainer.evaluation.load_agent import adapt_network
from enn_trainer.runtime.start_folder import located
from enn_trainer.runtime.trust import TYPED, Trust, bot_class
from entity_env.actions.chains import parents_first
from entity_env.bot import Bot
from entity_env.named_world import is_bot_name
from entity_env.spaces import ActionSpace, ObsSpace, Spaces
from rogue_net.actions.distributions import Decision, decide
from rogue_net.actions.heads import HEADS
from rogue_net.actions.parts import conditional_distribution
from rogue_net.answer import NetOutput, output_of
from rogue_net.ragged import EntityBatch, lookup
from rogue_net.wiring import Wired


def create_opponent(
    path: str | type[Bot],
    obs_space: ObsSpace,
    action_space: Mapping[str, ActionSpace],
    device: torch.device,
    field: str = "eval.opponent",
    trust: Trust = TYPED,
) -> Opponent:
    """Load an opponent.

    Entity types and features that a network was not trained with are hidden from it.

    Args:
        path: a checkpoint of this project or of enn_trainer 0.1.16; `random`; or a bot, by
            `file.py:Name` or `package.module:Name`, or its class.
        obs_space: observation space of the environment.
        action_space: action space of the environment.
        device: device of a network.
        field: name of the setting, for messages.
        trust: bots that may be imported; by default all, for paths written by the caller.

    Raises:
        CheckpointError: there is no valid checkpoint, its actions differ, or the environment lacks
            features that it needs.
        ConfigError: there is no such bot, or it is not trusted.
    """
    if not isinstance(path, str):
        return path
    if not is_bot_name(path):
        return create_agent(field, path, Spaces(obs_space, action_space)).to(device)
    return bot_class(path, field, trust)


@dataclass(frozen=True)
class NamedOpponents:
    """Factory of opponents by path or name, a `CreateOpponent`.

    Attributes:
        trust: bots that may be imported.
        field: name of the setting, for messages.
    """

    trust: Trust
    field: str = "eval.opponent"

    def __call__(
        self,
        path: str,
        obs_space: ObsSpace,
        action_space: Mapping[str, ActionSpace],
        device: torch.device,
    ) -> Opponent:
        """Load an opponent, see `create_opponent`."""
        return create_opponent(path, obs_space, action_space, device, self.field, self.trust)


def create_agent(field: str, path: str, spaces: Spaces) -> "RandomAgent | Wired":
    """Load a network as `create_opponent` does; `field` is the prefix of error messages."""
    if path == "random":
        return RandomAgent(spaces.action_space)
    if is_bot_name(path):
        expected = "a checkpoint or random, which have probabilities"
        raise ConfigError(f"{field}: expected {expected}, got the bot {path}")
    try:
        return adapt_network(read_saved_run(located(path)), spaces)
    except CheckpointError as error:
        raise CheckpointError(f"{field}: {error}") from None


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
        decisions: dict[str, Decision] = {}
        for name in parents_first(self.action_space):
            space = self.action_space[name]
            choices = {one: decision.chosen for one, decision in decisions.items()}
            uniform_of = partial(HEADS[type(space)].uniform, space)
            uniform = conditional_distribution(name, batch.actions, choices, uniform_of)
            chosen, draws = lookup(actions, name), lookup(uniforms, name)
            decisions[name] = decide(uniform, chosen, draws)
        decisions = {name: decisions[name] for name in self.action_space}
        return output_of(decisions, self.values(batch))

    def values(self, batch: EntityBatch) -> dict[str, Tensor]:
        """Return the value 0 for every frame."""
        device = next(iter(batch.features.values())).values.device
        return {"value": torch.zeros(batch.num_frames, 1, device=device)}

    def update_input_stats(self, batch: EntityBatch) -> None:
        """Do nothing; the agent has no statistics."""
        return
