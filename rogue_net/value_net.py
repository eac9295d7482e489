"""Policy with a separate network as value function, of its own size."""

from collections.abc import Mapping
from typing import Any

from torch import Tensor, nn

from entity_env.spaces import ActionSpace, ObsSpace
from rogue_net.answer import NetOutput
from rogue_net.input_norm import Moments
from rogue_net.ragged import EntityBatch
from rogue_net.rogue_net import RogueNet, RogueNetConfig, has_global_choice
from rogue_net.value_bins import ValueBinsConfig


class RogueNetWithValueNet(nn.Module):
    """Policy and value function in two networks that share neither weights nor statistics.

    Args:
        config: settings of the policy.
        vf_config: settings of the value function.
        obs_space: the entity types and features that both take.
        action_space: the actions of the policy.
        regression_heads: sizes of the outputs of the value function by name, or bins.

    Raises:
        ValueError: as of `RogueNet`; begins with `vf_config` if it is of the value function.
    """

    def __init__(
        self,
        config: RogueNetConfig,
        vf_config: RogueNetConfig,
        obs_space: ObsSpace,
        action_space: Mapping[str, ActionSpace],
        regression_heads: Mapping[str, int | ValueBinsConfig] | None = None,
    ) -> None:
        super().__init__()
        self.obs_space = obs_space
        self.action_space = dict(action_space)
        self.policy = RogueNet(config, obs_space, action_space)
        heads: Mapping[str, int | ValueBinsConfig] = {"value": 1}
        if regression_heads is not None:
            heads = regression_heads
        global_entity = has_global_choice(action_space)
        try:
            self.value_function = RogueNet(vf_config, obs_space, {}, heads, global_entity)
        except ValueError as error:
            raise ValueError(f"vf_config: {error}") from error

    def forward(
        self,
        batch: EntityBatch,
        actions: Mapping[str, Tensor] | None = None,
        uniforms: Mapping[str, Tensor] | None = None,
        **options: Any,
    ) -> NetOutput:
        """Choose or evaluate actions like `RogueNet`; attention is the policy's."""
        out: NetOutput = self.policy(batch, actions, uniforms, **options)
        return out._replace(values=self.values(batch))

    def values(self, batch: EntityBatch) -> dict[str, Tensor]:
        """Return the output of the value function: (B, size) float32 each."""
        return self.value_function.values(batch)

    def update_input_stats(self, batch: EntityBatch) -> None:
        """Add the features of a batch to the statistics of both."""
        self.merge_input_moments(self.input_moments(batch))

    def input_moments(self, batch: EntityBatch) -> dict[str, Moments]:
        """Return the moments of a batch, by the module whose statistics they update."""
        return {
            f"{part}.{module}": moments
            for part, net in self._parts().items()
            for module, moments in net.input_moments(batch).items()
        }

    def merge_input_moments(self, moments: Mapping[str, Moments]) -> None:
        """Add moments of `input_moments`, here or of another process, to the statistics."""
        for part, net in self._parts().items():
            own = {m.removeprefix(f"{part}."): x for m, x in moments.items() if m.startswith(part)}
            net.merge_input_moments(own)

    def _parts(self) -> dict[str, RogueNet]:
        return {"policy": self.policy, "value_function": self.value_function}
