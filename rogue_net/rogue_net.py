"""`RogueNet`: a ragged batch of entities in, actions and values out."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace

import torch
from torch import Tensor, nn

from entity_env.check_spaces import check_spaces
from entity_env.spaces import ActionSpace, ObsSpace
from rogue_net.answer import NetOutput, answer, output_of
from rogue_net.attention import Context, PackedContext, attention_mask, weights_by_frame
from rogue_net.config import RogueNetConfig
from rogue_net.distributions import CategoricalDistribution, Decision, decide, random_draws
from rogue_net.dropout import row_keys
from rogue_net.embedding import EntityEmbedding, feature_names, module_key
from rogue_net.heads import HEADS, CategoricalHead, full_precision
from rogue_net.input_norm import CLIP, InputNorm, Moments
from rogue_net.layout import Layout, layout_of
from rogue_net.native import network
from rogue_net.native.library import fits
from rogue_net.pooling import mean_over_frames
from rogue_net.ragged import ActionBatch, EntityBatch
from rogue_net.relpos_encoding import RelposEncoding
from rogue_net.transformer import Transformer, init_linear
from rogue_net.value_bins import ValueBinsConfig, expected_values

ROWS_OF_SHAPE = 64
"""On the CPU, torch compiles products in bfloat16 for each number of rows, which takes longer than
they do: there are fewer of these if all are multiples of this."""

__all__ = ["NetOutput", "RogueNet", "RogueNetConfig", "answer"]


class RogueNet(nn.Module):
    """A transformer over the entities of a frame, with a head for each action and value.

    Args:
        config: sizes and options.
        obs_space: the entity types and features it takes.
        action_space: the actions it chooses.
        regression_heads: sizes of further outputs by name, each a linear function of the mean
            over the entities of a frame, zero at first. Training needs `{"value": 1}`. Bins
            instead of a size, equally probable at first, make an output their expectation, and
            their logits another one, `value_logits` for `value`.
        global_entity: make the global features an entity of their own even if no action is global.

    Raises:
        InvalidSpace: a space is one that `check_env` refuses, such as an action without labels.
        ValueError: an option names what the spaces do not have, or there is nothing to see.
    """

    def __init__(
        self,
        config: RogueNetConfig,
        obs_space: ObsSpace,
        action_space: Mapping[str, ActionSpace],
        regression_heads: Mapping[str, int | ValueBinsConfig] | None = None,
        global_entity: bool = False,
    ) -> None:
        super().__init__()
        check_spaces(obs_space, action_space)
        global_entity = global_entity or has_global_choice(action_space)
        if not obs_space.entities and not global_entity:
            raise ValueError("obs_space: expected an entity type or a global action, got neither")
        self.config = config
        self.obs_space = obs_space
        self.action_space = dict(action_space)
        features = feature_names(obs_space, global_entity)
        self.embedding = EntityEmbedding(features, config.d_model, config.translation)
        self.relpos = None
        if config.relpos_encoding is not None:
            d_head = config.d_model // config.n_head
            self.relpos = RelposEncoding(config.relpos_encoding, features, config.d_model, d_head)
            self.relpos.apply(init_linear)
        self.transformer = Transformer(
            config.n_layer,
            config.n_head,
            config.d_model,
            pooling=config.pooling,
            embd_pdrop=config.embd_pdrop,
            resid_pdrop=config.resid_pdrop,
            attn_pdrop=config.attn_pdrop,
        )
        self.action_heads = nn.ModuleDict(
            {
                module_key(name): HEADS[type(space)](space, config.d_model, config.d_qk)
                for name, space in action_space.items()
            }
        )
        self.regression_heads = nn.ModuleDict(
            {
                module_key(name): _zero_linear(
                    config.d_model, size if isinstance(size, int) else size.num_bins
                )
                for name, size in (regression_heads or {}).items()
            }
        )
        self._regression_sizes = dict(regression_heads or {})

    def forward(
        self,
        batch: EntityBatch,
        actions: Mapping[str, Tensor] | None = None,
        uniforms: Mapping[str, Tensor] | None = None,
        *,
        generator: torch.Generator | None = None,
        temperature: float = 1.0,
        attention: bool = False,
    ) -> NetOutput:
        """Choose actions, or judge chosen ones.

        Args:
            batch: B frames of `obs_space` and `action_space`.
            actions: per action (actors,) int64, choices to judge.
            uniforms: per action (actors,) float32 in [0, 1) to sample choices with.
            generator: to draw these with. Without any of the three, the most probable choice is
                taken.
            temperature: divides the scores of all choices, so that above 1 they are more equally
                probable and below 1 less; all that is said is of these probabilities.
            attention: also say how much entities look at each other.

        Raises:
            ValueError: an argument is out of range or excludes another.
        """
        if not 0 < temperature < math.inf:
            raise ValueError(f"temperature: expected a finite number above 0, got {temperature}")
        if generator is not None and (actions is not None or uniforms is not None):
            raise ValueError("generator: expected neither actions nor uniforms beside it")
        if attention and self.config.pooling is not None:
            raise ValueError(
                f"attention: expected a network with attention, this one has "
                f"pooling={self.config.pooling!r} instead"
            )
        weights: list[list[Tensor]] | None = [] if attention else None
        decisions: dict[str, Decision] = {}
        if weights is None and self._is_compiled_whole(batch):
            heads = self._choice_heads()
            out, layout = self._compiled(batch, heads, actions, uniforms)
            x, values = out.x, self._named_values(out.means)
            decisions = {n: _decision(said) for n, said in zip(heads, out.choices, strict=True)}
        else:
            x, layout = self.embed(batch, weights)
            values = self._values(x, layout)
        if generator is not None:
            uniforms = {
                name: random_draws(len(a.actors.values), a.num_draws, generator, x.device)
                for name in self.action_space
                for a in [batch.actions[name]]
            }
        with torch.autocast(x.device.type, enabled=False):
            for name in self.action_space:
                chosen = None if actions is None else actions[name]
                draws = None if uniforms is None else uniforms[name]
                if name not in decisions:
                    head = self.action_heads[module_key(name)]
                    action = batch.actions[name]
                    decisions[name] = head(x, layout, action, chosen, draws, temperature)
                elif temperature != 1 or generator is not None:
                    distribution = decisions[name].distribution.tempered(temperature)
                    decisions[name] = decide(distribution, chosen, draws)
        in_order = {name: decisions[name] for name in self.action_space}
        return output_of(in_order, values)._replace(
            lengths={name: batch.actions[name].actors.lengths for name in self.action_space},
            attention=None
            if weights is None
            else weights_by_frame(weights, layout, self.config.n_head),
        )

    def values(self, batch: EntityBatch) -> dict[str, Tensor]:
        """The regression heads alone: (B, size) float32 each, (B, 1) and logits for bins."""
        if self._is_compiled_whole(batch):
            return self._named_values(self._compiled(batch)[0].means)
        return self._values(*self.embed(batch))

    def embed(
        self, batch: EntityBatch, weights: list[list[Tensor]] | None = None
    ) -> tuple[Tensor, Layout]:
        """The entities after the transformer.

        Args:
            batch: B frames.
            weights: takes the attention weights of each layer and bucket, if given.

        Returns:
            (P, d_model) in padded rows, and their layout.
        """
        if weights is None and self._is_compiled_whole(batch):
            out, layout = self._compiled(batch)
            return out.x, layout
        is_packed = weights is None and self._is_compiled(batch)
        if self.config.precision == "float32" or (is_packed and self.has_compiled_blocks):
            return self._embed(batch, weights, is_packed)
        device = batch.features[self.embedding.types[0]].values.device
        with torch.autocast(device.type, torch.bfloat16):
            return self._embed(batch, weights, is_packed)

    def _embed(
        self, batch: EntityBatch, weights: list[list[Tensor]] | None, is_packed: bool
    ) -> tuple[Tensor, Layout]:
        layout = layout_of(batch, self.embedding.types, self.relpos is not None, is_packed)
        inputs = self.embedding.inputs(batch)
        visible = self._visible(batch, layout)
        context: Context | PackedContext
        if is_packed:
            context = self._packed_context(inputs, layout, visible)
        else:
            context = Context(
                buckets=layout.buckets,
                visible=visible,
                masks=[attention_mask(bucket, visible) for bucket in layout.buckets],
                pairs=None if self.relpos is None else self.relpos.pairs(inputs, layout),
                relpos=self.relpos,
                keys=row_keys(batch, layout) if self.training and self.config.drops else None,
                weights=weights,
            )
        # Under `torch.autocast`, what goes in, what the blocks add up and what the heads make of it
        # keep the precision of the parameters.
        with torch.autocast(layout.row_of_entity.device.type, enabled=False):
            if is_packed:
                x = self.embedding.packed(inputs, layout)
            else:
                x = layout.pad(self.embedding(inputs))
        if is_packed and torch.is_autocast_enabled("cpu"):
            x = nn.functional.pad(x, (0, 0, 0, -len(x) % ROWS_OF_SHAPE))
            return self.transformer(x, context)[: layout.num_rows], layout
        return self.transformer(x, context), layout

    def _compiled(
        self,
        batch: EntityBatch,
        choices: Mapping[str, CategoricalHead] | None = None,
        actions: Mapping[str, Tensor] | None = None,
        uniforms: Mapping[str, Tensor] | None = None,
    ) -> tuple[network.Out, Layout]:
        """All of the network, and some of its heads, at once."""
        layout = layout_of(batch, self.embedding.types, is_packed=True)
        inputs = self.embedding.inputs(batch)
        context = self._packed_context(inputs, layout, self._visible(batch, layout))
        gate = None if self.relpos is None else self.relpos.native_gate()
        choices = choices or {}
        asked = [
            _compiled_choice(
                head,
                layout,
                batch.actions[name],
                None if actions is None else actions[name],
                None if uniforms is None else uniforms[name],
            )
            for name, head in choices.items()
        ]
        means = [self.regression_heads[module_key(name)] for name in self._regression_sizes]
        frames_in_network = network.Network(
            frames=context.frames,
            types=self.embedding.packed_types(inputs, layout),
            width=self.config.d_model,
            heads=self.config.n_head,
            clip=CLIP,
            gate_kind=None if gate is None else gate.kind,
            num_blocks=self.config.n_layer,
            choices=asked,
            num_means=len(means),
        )
        out = network.run(
            frames_in_network,
            self.transformer.parameters_in_order(),
            context.tables,
            gate,
            [_weights(head.project) for head in choices.values()],
            [_weights(linear) for linear in means],
        )
        return out, layout

    def _choice_heads(self) -> dict[str, CategoricalHead]:
        heads = {name: self.action_heads[module_key(name)] for name in self.action_space}
        return {name: head for name, head in heads.items() if type(head) is CategoricalHead}

    def _visible(self, batch: EntityBatch, layout: Layout) -> Tensor | None:
        """(P,) bool; None when everything is."""
        if not batch.visible:
            return None
        flags = [batch.visibility(name).values for name in self.embedding.types]
        return layout.pad(torch.cat(flags))

    def _is_compiled_whole(self, batch: EntityBatch) -> bool:
        return (
            self.has_compiled_blocks
            and self._is_compiled(batch)
            and not torch.is_autocast_enabled("cpu")
        )

    @property
    def has_compiled_blocks(self) -> bool:
        """Whether whole blocks are compiled, on the CPU in float32: faster there than bfloat16."""
        config = self.config
        is_narrow = config.d_model <= network.WIDEST and fits(config.d_model, config.n_head)
        return is_narrow and config.pooling is None

    def _is_compiled(self, batch: EntityBatch) -> bool:
        """Whether the compiled attention can do what is asked for."""
        parameter = self.transformer.first_parameter()
        return (
            parameter is not None
            and parameter.dtype == torch.float32
            and parameter.device.type == "cpu"
            and all(
                rows.values.dtype == torch.float32 and not rows.values.requires_grad
                for rows in batch.features.values()
            )
            and self.config.pooling is None
            and not (self.training and self.config.drops)
            and fits(self.config.d_model, self.config.n_head)
        )

    def _packed_context(
        self, inputs: Mapping[str, Tensor], layout: Layout, visible: Tensor | None
    ) -> PackedContext:
        assert layout.packed is not None
        frames = layout.packed if visible is None else replace(layout.packed, visible=visible)
        if self.relpos is None:
            return PackedContext(frames)
        pairs = self.relpos.packed_pairs(inputs, layout)
        return PackedContext(replace(frames, pairs=pairs), self.relpos, self.relpos.native_tables())

    def update_input_stats(self, batch: EntityBatch) -> None:
        """Take the features of a batch into the statistics that normalise the input."""
        self.merge_input_moments(self.input_moments(batch))

    def input_moments(self, batch: EntityBatch) -> dict[str, Moments]:
        """What the statistics need to know of a batch, by the module that keeps them."""
        inputs = self.embedding.inputs(batch)
        moments = {
            f"embedding.by_type.{module_key(name)}.norm": one
            for name, one in self.embedding.input_moments(inputs).items()
        }
        if self.relpos is not None and self.relpos.norm is not None:
            layout = layout_of(batch, self.embedding.types)
            moments["relpos.norm"] = self.relpos.input_moments(inputs, layout)
        return moments

    def merge_input_moments(self, moments: Mapping[str, Moments]) -> None:
        """Take what `input_moments` says, here or in another process, into the statistics."""
        for module, one in moments.items():
            norm = self.get_submodule(module)
            assert isinstance(norm, InputNorm)
            norm.merge(one)

    def _values(self, x: Tensor, layout: Layout) -> dict[str, Tensor]:
        if not self._regression_sizes:
            return {}
        with torch.autocast(x.device.type, enabled=False):
            pooled = mean_over_frames(x, layout)
            heads = [self.regression_heads[module_key(name)] for name in self._regression_sizes]
            return self._named_values([full_precision(head(pooled)) for head in heads])

    def _named_values(self, said: Sequence[Tensor]) -> dict[str, Tensor]:
        """What the regression heads say, by name; of bins also what they expect."""
        values = {}
        for (name, size), one in zip(self._regression_sizes.items(), said, strict=True):
            values[name] = one
            if not isinstance(size, int):
                values[f"{name}_logits"], values[name] = one, expected_values(one, size)
        return values


def has_global_choice(action_space: Mapping[str, ActionSpace]) -> bool:
    """Whether some action is taken by no entity, so that one has to stand for what is global."""
    return any(space.is_global for space in action_space.values())


def _compiled_choice(
    head: CategoricalHead,
    layout: Layout,
    action: ActionBatch,
    given: Tensor | None,
    uniforms: Tensor | None,
) -> network.Choice:
    """Return an action as compiled functions take it.

    Raises:
        ValueError: of the mask, or of what is given, there is another number than of actors.
    """
    num_actors = len(action.actors.values)
    mask = None if action.mask is None else action.mask.values.bool().contiguous()
    expected = {
        "mask": (mask, (num_actors, len(head.project.bias))),
        "actions": (given, (num_actors,)),
        "uniforms": (uniforms, (num_actors,)),
    }
    for name, (x, shape) in expected.items():
        if x is not None and x.shape != shape:
            raise ValueError(f"{name}: expected shape {shape}, got {tuple(x.shape)}")
    return network.Choice(
        rows=layout.rows(action.actors.values, action.actors.frame_of_row()).contiguous(),
        mask=mask,
        given=None if given is None else given.to(torch.int64).contiguous(),
        uniforms=None if uniforms is None else uniforms.float().contiguous(),
    )


def _decision(said: network.Said) -> Decision:
    distribution = CategoricalDistribution(said.log_probs)
    return Decision(said.chosen, said.logprobs, said.entropies, distribution)


def _weights(linear: nn.Module) -> network.Linear:
    assert isinstance(linear, nn.Linear)
    return network.Linear(linear.weight, linear.bias)


def _zero_linear(d_in: int, d_out: int) -> nn.Linear:
    linear = nn.Linear(d_in, d_out)
    nn.init.zeros_(linear.weight)
    nn.init.zeros_(linear.bias)
    return linear
