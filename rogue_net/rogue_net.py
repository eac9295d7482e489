"""`RogueNet`: a ragged batch of entities in, actions and values out."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal, NamedTuple, Optional

import torch
from torch import Tensor, nn

from entity_env.spaces import (
    ActionSpace,
    CategoricalActionSpace,
    GlobalCategoricalActionSpace,
    ObsSpace,
    SelectEntityActionSpace,
)
from rogue_net.embedding import EntityEmbedding, module_key
from rogue_net.heads import CategoricalHead, SelectEntityHead, entropy, full_precision, sample
from rogue_net.layout import Layout, layout_of
from rogue_net.ragged import EntityBatch
from rogue_net.relpos import RelposEncodingConfig
from rogue_net.transformer import Transformer, mean_over_frames
from rogue_net.translate import TranslationConfig


@dataclass
class RogueNetConfig:
    """RogueNet network parameters.

    Attributes:
        embd_pdrop: Dropout probability for embedding layer.
        resid_pdrop: Dropout probability for residual branches.
        attn_pdrop: Dropout probability for attention.
        n_layer: Number of transformer layers.
        n_head: Number of attention heads.
        d_model: Dimension of embedding.
        pooling: Replace attention layer with "mean", "max", or "meanmax" pooling.
        relpos_encoding: Relative positional encoding settings.
        d_qk: Dimension of keys and queries in select-entity action heads.
        translation: Settings for transforming all position features to be centered on one entity.
    """

    embd_pdrop: float = 0.0
    resid_pdrop: float = 0.0
    attn_pdrop: float = 0.0
    n_layer: int = 2
    n_head: int = 2
    d_model: int = 32
    pooling: Optional[Literal["mean", "max", "meanmax"]] = None
    relpos_encoding: Optional[RelposEncodingConfig] = None
    d_qk: int = 16
    translation: Optional[TranslationConfig] = None

    def __post_init__(self) -> None:
        problems = [
            f"{name}: expected at least {least}, got {getattr(self, name)}"
            for name, least in (("n_layer", 0), ("n_head", 1), ("d_model", 1), ("d_qk", 1))
            if getattr(self, name) < least
        ]
        if not problems and self.d_model % self.n_head:
            problems.append(
                f"n_head: expected a divisor of d_model={self.d_model}, got {self.n_head}"
            )
        problems += [
            f"{name}: expected a probability in [0, 1), got {getattr(self, name)}"
            for name in ("embd_pdrop", "resid_pdrop", "attn_pdrop")
            if not 0 <= getattr(self, name) < 1
        ]
        if problems:
            raise ValueError("; ".join(problems))


class NetOutput(NamedTuple):
    """What a network says about B frames. Actors come frame after frame.

    Attributes:
        actions: per action (actors,) int64, the choices.
        logprobs: per action (actors,) float32, the log-probability of each choice.
        entropies: per action (actors,) float32.
        log_probs: per action (actors, choices) float32, of all choices, -inf where not allowed.
            For select-entity the choices are the actees, padded to the most of any frame.
        values: per regression head (B, its size) float32.
    """

    actions: dict[str, Tensor]
    logprobs: dict[str, Tensor]
    entropies: dict[str, Tensor]
    log_probs: dict[str, Tensor]
    values: dict[str, Tensor]


class RogueNet(nn.Module):
    """A transformer over the entities of a frame, with a head for each action and value.

    Args:
        config: sizes and options.
        obs_space: the entity types and features it takes.
        action_space: the actions it chooses.
        regression_heads: sizes of further outputs by name, each a linear function of the mean
            over the entities of a frame, zero at first. Training needs `{"value": 1}`.

    Raises:
        ValueError: an option is not available in this version, or there is nothing to see.
    """

    def __init__(
        self,
        config: RogueNetConfig,
        obs_space: ObsSpace,
        action_space: Mapping[str, ActionSpace],
        regression_heads: Mapping[str, int] | None = None,
    ) -> None:
        super().__init__()
        if options := unavailable(config):
            raise ValueError(f"{', '.join(options)}: not available in this version; leave it out")
        has_global_choice = any(
            isinstance(space, GlobalCategoricalActionSpace) for space in action_space.values()
        )
        if not obs_space.entities and not has_global_choice:
            raise ValueError("obs_space: expected an entity type or a global action, got neither")
        self.config = config
        self.obs_space = obs_space
        self.action_space = dict(action_space)
        self.embedding = EntityEmbedding(obs_space, has_global_choice, config.d_model)
        self.transformer = Transformer(config.n_layer, config.n_head, config.d_model)
        self.action_heads = nn.ModuleDict(
            {
                module_key(name): _action_head(space, config.d_model, config.d_qk)
                for name, space in action_space.items()
            }
        )
        self.regression_heads = nn.ModuleDict(
            {
                module_key(name): _zero_linear(config.d_model, size)
                for name, size in (regression_heads or {}).items()
            }
        )
        self._regression_names = list(regression_heads or {})

    def forward(
        self,
        batch: EntityBatch,
        actions: Mapping[str, Tensor] | None = None,
        uniforms: Mapping[str, Tensor] | None = None,
    ) -> NetOutput:
        """Choose actions, or judge chosen ones.

        Args:
            batch: B frames of `obs_space` and `action_space`.
            actions: per action (actors,) int64, choices to judge.
            uniforms: per action (actors,) float32 in [0, 1) to sample choices with. Without
                either, the most probable choice is taken.
        """
        x, layout = self.embed(batch)
        log_probs = {
            name: self.action_heads[module_key(name)](x, layout, batch.actions[name])
            for name in self.action_space
        }
        return answer(log_probs, self._values(x, layout), actions, uniforms)

    def values(self, batch: EntityBatch) -> dict[str, Tensor]:
        """The regression heads alone: (B, size) float32 each."""
        return self._values(*self.embed(batch))

    def embed(self, batch: EntityBatch) -> tuple[Tensor, Layout]:
        """(P, d_model), the entities after the transformer in padded rows, and their layout."""
        types = self.embedding.types
        layout = layout_of(batch, types)
        embedded = self.embedding(batch)
        x = embedded.new_zeros(layout.num_rows, embedded.shape[1])
        x = x.index_copy(0, layout.row_of_entity, embedded)
        visible = None
        if batch.visible:
            flags = torch.cat([batch.visibility(name).values for name in types])
            visible = torch.zeros(layout.num_rows, dtype=torch.bool, device=x.device)
            visible = visible.index_copy(0, layout.row_of_entity, flags)
        return self.transformer(x, layout, visible), layout

    def update_input_stats(self, batch: EntityBatch) -> None:
        """Take the features of a batch into the statistics that normalise the input."""
        self.embedding.update_input_stats(batch)

    def _values(self, x: Tensor, layout: Layout) -> dict[str, Tensor]:
        if not self._regression_names:
            return {}
        pooled = mean_over_frames(x, layout)
        return {
            name: full_precision(self.regression_heads[module_key(name)](pooled))
            for name in self._regression_names
        }


def answer(
    log_probs: dict[str, Tensor],
    values: dict[str, Tensor],
    actions: Mapping[str, Tensor] | None = None,
    uniforms: Mapping[str, Tensor] | None = None,
) -> NetOutput:
    """Judge `actions`, or sample them with `uniforms`, or take the most probable ones.

    Args:
        log_probs: per action (actors, choices), of all choices.
        values: per regression head (B, size).
        actions: per action (actors,) int64.
        uniforms: per action (actors,) float32 in [0, 1).
    """
    if actions is None:
        actions = {
            name: choose(p, None if uniforms is None else uniforms[name])
            for name, p in log_probs.items()
        }
    return NetOutput(
        actions=dict(actions),
        logprobs={
            name: p.gather(1, actions[name].unsqueeze(1)).squeeze(1)
            for name, p in log_probs.items()
        },
        entropies={name: entropy(p) for name, p in log_probs.items()},
        log_probs=log_probs,
        values=values,
    )


def choose(log_probs: Tensor, uniforms: Tensor | None) -> Tensor:
    """(actors, choices) -> (actors,) int64: sampled, or without `uniforms` the most probable."""
    if log_probs.shape[0] == 0:
        return torch.zeros(0, dtype=torch.int64, device=log_probs.device)
    return log_probs.argmax(dim=-1) if uniforms is None else sample(log_probs, uniforms)


def unavailable(config: RogueNetConfig) -> list[str]:
    """The options of a configuration that this version does not have."""
    options = [
        f"{name}={getattr(config, name)}"
        for name in ("embd_pdrop", "resid_pdrop", "attn_pdrop")
        if getattr(config, name) != 0.0
    ]
    if config.pooling is not None:
        options.append(f"pooling={config.pooling!r}")
    options += [
        name for name in ("relpos_encoding", "translation") if getattr(config, name) is not None
    ]
    return options


def _action_head(space: ActionSpace, d_model: int, d_qk: int) -> nn.Module:
    if isinstance(space, SelectEntityActionSpace):
        return SelectEntityHead(d_model, d_qk)
    assert isinstance(space, CategoricalActionSpace | GlobalCategoricalActionSpace)
    return CategoricalHead(d_model, len(space))


def _zero_linear(d_in: int, d_out: int) -> nn.Linear:
    linear = nn.Linear(d_in, d_out)
    nn.init.zeros_(linear.weight)
    nn.init.zeros_(linear.bias)
    return linear
