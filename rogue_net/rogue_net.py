"""`RogueNet`: a network from a ragged batch of entities to actions and values.

`RogueNetWithValueNet` has the values from a second one.
"""

import math
from abc import ABC, abstractmethod
from collections.abc import Collection, Mapping
from contextlib import nullcontext
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from entity_env.actions.chains import parents_first
from entity_env.spaces import ActionSpace, ObsSpace
from entity_env.vec.validate import check_spaces
from rogue_net.actions.distributions import Decision, decide, random_draws
from rogue_net.actions.heads import HEADS, full_precision
from rogue_net.actions.parts import ParentAction
from rogue_net.answer import NetOutput, answer, output_of
from rogue_net.attention import (
    PaddedContext,
    attention_mask,
    row_keys,
    weights_by_frame,
)
from rogue_net.config import RogueNetConfig, ValueBinsConfig
from rogue_net.embedding import (
    EntityEmbedding,
    check_positions,
    feature_names,
    kinds_of_types,
    module_key,
)
from rogue_net.input_norm import InputNorm, Moments
from rogue_net.layout import Layout, layout_of, make_layout, visible_rows
from rogue_net.memory import MEMORY, Memory, MemoryOutput, Remembering, remember
from rogue_net.native import backend
from rogue_net.ragged import EntityBatch, RaggedTensor, of_action, to_device
from rogue_net.relpos.encoding import RelposEncoding
from rogue_net.transformer import Transformer, init_linear
from rogue_net.value_bins import expected_values
from rogue_net.value_head import AS_TARGETS, RegressionHead, TargetUnits

__all__ = ["NetOutput", "RogueNet", "RogueNetConfig", "RogueNetWithValueNet", "answer"]


class _Normalising(nn.Module, ABC):
    """Base class of networks that normalise their input by statistics of earlier batches."""

    def update_input_stats(self, batch: EntityBatch) -> None:
        """Add the features of a batch to the statistics that normalise the input."""
        self.merge_input_moments(self.input_moments(batch))

    @abstractmethod
    def input_moments(self, batch: EntityBatch) -> dict[str, Moments]:
        """Return the moments of a batch, by the module whose statistics they update."""

    def merge_input_moments(self, moments: Mapping[str, Moments]) -> None:
        """Add moments of `input_moments`, here or of another process, to the statistics."""
        for module, one in moments.items():
            norm = self.get_submodule(module)
            assert isinstance(norm, InputNorm)
            norm.merge(one)


class RogueNet(_Normalising):
    """A transformer over the entities of a frame, with a head for each action and value.

    Args:
        config: sizes and options.
        obs_space: the entity types and features of its input.
        action_space: the actions it chooses.
        regression_heads: sizes of further outputs by name, each a linear function of the mean
            over the entities of a frame, zero at first. Training needs `{"value": 1}`. Bins
            instead of a size, equally probable at first, make an output their expectation, and
            their logits another one, `value_logits` for `value`.
        global_entity: make the global features an entity of their own even if no action is global.
        policy_actions: the actions that memory takes in, for a network that never acts and so sees
            what is invisible to the policy; None for a policy.
        normalized_heads: regression heads of one number, or of bins, that learn in normalised
            units, see `TargetNorm`, in which bins are then. What they return is in the units of
            the targets.

    Raises:
        InvalidSpace: a space is one that `check_env` rejects, such as an action without labels.
        ValueError: an option names what the spaces do not have, or there is neither an
            entity type nor a global action.
    """

    def __init__(
        self,
        config: RogueNetConfig,
        obs_space: ObsSpace,
        action_space: Mapping[str, ActionSpace],
        regression_heads: Mapping[str, int | ValueBinsConfig] | None = None,
        global_entity: bool = False,
        policy_actions: Mapping[str, ActionSpace] | None = None,
        normalized_heads: Collection[str] = (),
    ) -> None:
        super().__init__()
        check_spaces(obs_space, action_space)
        global_entity |= any(space.is_global for space in action_space.values())
        if not obs_space.entities and not global_entity:
            raise ValueError("obs_space: expected an entity type or a global action, got neither")
        self.config = config
        self.obs_space = obs_space
        self.action_space = dict(action_space)
        # Embedding and relative positions.
        features = feature_names(obs_space, global_entity)
        check_positions(config, obs_space)
        kinds = kinds_of_types(obs_space, [*features])
        self.embedding = EntityEmbedding(features, config.d_model, config.translation, kinds)
        self.relpos = None
        if config.relpos_encoding is not None:
            d_head = config.d_model // config.n_head
            self.relpos = RelposEncoding(config.relpos_encoding, features, config.d_model, d_head)
            self.relpos.apply(partial(init_linear, scheme=config.init))
        # Blocks, memory, and the blocks after it.
        self.transformer = Transformer(config)
        self.memory = None
        if config.memory is not None:
            entering = action_space if policy_actions is None else policy_actions
            never_acts = policy_actions is not None
            self.memory = Memory(config, [*obs_space.entities], entering, never_acts)
        # Heads.
        self.action_heads = nn.ModuleDict()
        for name, space in action_space.items():
            head = HEADS[type(space)](space, config.d_model, config.d_qk)
            head.configure(config)
            if space.after is not None:
                parent = action_space[space.after]
                head.depend_on(HEADS[type(parent)], parent, config.d_model)
                head.parent = ParentAction(space.after, HEADS[type(parent)], head.after)
            self.action_heads[module_key(name)] = head
        self._regression_sizes = dict(regression_heads or {})
        self.regression_heads = nn.ModuleDict()
        for name, size in self._regression_sizes.items():
            num_outputs = size if isinstance(size, int) else size.num_bins
            self.regression_heads[module_key(name)] = RegressionHead(
                config.d_model, num_outputs, normalized=name in normalized_heads
            )

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
        """Choose actions, or evaluate chosen ones.

        Args:
            batch: B frames of `obs_space` and `action_space`.
            actions: per action (actors,) int64, choices to evaluate; (actors, components) float32
                of numbers, as they were drawn.
            uniforms: per action (actors,) float32 in [0, 1) to sample choices with; (actors,
                components) of several numbers.
            generator: to draw these with. Without any of the three, the most probable choice is
                taken.
            temperature: divides the scores of all choices, so that above 1 they are more equally
                probable and below 1 less; all outputs are of these probabilities.
            attention: also return the attention weights between entities.

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
        entities = self._entities(
            batch, weights, with_heads=True, actions=actions, uniforms=uniforms
        )
        x, layout = entities.x, entities.layout
        values = self.values_of(entities)

        # Actions: compiled heads have decided theirs, at temperature 1 and without a generator.
        if generator is not None:
            uniforms = random_draws(batch.actions, self.action_space, generator)
        decisions: dict[str, Decision] = {}
        with torch.autocast(x.device.type, enabled=False):
            for name in parents_first(self.action_space):
                chosen, draws = of_action(actions, name), of_action(uniforms, name)
                decision = entities.decisions.get(name)
                if decision is None:
                    head: Any = self.action_heads[module_key(name)]
                    condition = head.parent.condition
                    action, given = condition(name, x, layout, batch.actions, decisions)
                    decision = head(x, layout, action, chosen, draws, temperature, **given)
                elif temperature != 1 or generator is not None:
                    distribution = decision.distribution.tempered(temperature)
                    decision = decide(distribution, chosen, draws)
                decisions[name] = decision
            decisions = {name: decisions[name] for name in self.action_space}
            if actions is None:
                actions = {name: decision.chosen for name, decision in decisions.items()}
            memory = self._remembered_next(entities, batch, actions)
        return output_of(decisions, values)._replace(
            memory=memory,
            lengths={name: batch.actions[name].actors.lengths for name in self.action_space},
            attention=None
            if weights is None
            else weights_by_frame(weights, layout, self.config.n_head),
        )

    def values(self, batch: EntityBatch) -> dict[str, Tensor]:
        """Return the regression heads alone: (B, size) float32 each, (B, 1) and logits for bins."""
        return self.values_of(self._entities(batch))

    def values_and_memory(
        self, batch: EntityBatch, actions: Mapping[str, Tensor]
    ) -> tuple[dict[str, Tensor], Tensor | None]:
        """Return the regression heads, and the states to remember after choices of a policy."""
        entities = self._entities(batch, actions=actions)
        return self.values_of(entities), self._remembered_next(entities, batch, actions)

    @property
    def remembering(self) -> Remembering | None:
        """The rows that it remembers; None without memory."""
        return None if self.memory is None else self.memory.remembering

    def embed(self, batch: EntityBatch) -> tuple[Tensor, Layout]:
        """Return the entities after the transformer, (P, d_model) in padded rows; their layout."""
        entities = self._entities(batch)
        return entities.x, entities.layout

    def _entities(
        self, batch: EntityBatch, weights: list[list[Tensor]] | None = None, **options: Any
    ) -> backend.Output:
        """Return the entities after all blocks, and what else was compiled.

        Args:
            batch: B frames.
            weights: list to append the attention weights of each layer and bucket to, if given,
                which torch alone computes.
            options: of `backend.run`.
        """
        if self.memory is None:
            return self._entities_before_memory(batch, weights, **options)
        before = self._entities_before_memory(batch, weights, with_means=False)
        return self._with_memory(self.memory, before, batch, options)

    def _entities_before_memory(
        self, batch: EntityBatch, weights: list[list[Tensor]] | None, **options: Any
    ) -> backend.Output:
        """Return the entities after the blocks that know one frame."""
        if weights is None and (compiled := backend.run(self, batch, **options)) is not None:
            return compiled
        layout = layout_of(batch, self.embedding.types, self.relpos is not None)
        device = layout.row_of_entity.device.type
        is_half = self.config.precision == "bfloat16"
        with torch.autocast(device, torch.bfloat16) if is_half else nullcontext():
            inputs = self.embedding.inputs(batch)
            visible = visible_rows(batch, self.embedding.types, layout)
            context = self._padded_context(batch, layout, visible, inputs, weights)
            # Under `torch.autocast`, the input, the sums of residual blocks and the outputs of
            # heads keep the precision of the parameters.
            with torch.autocast(device, enabled=False):
                x = layout.pad(self.embedding(inputs, self.embedding.label_rows(batch)))
            return backend.Output(self.transformer(x, context), layout)

    def _padded_context(
        self,
        batch: EntityBatch,
        layout: Layout,
        visible: Tensor | None,
        inputs: Mapping[str, Tensor],
        weights: list[list[Tensor]] | None = None,
    ) -> PaddedContext:
        """Return the context of the rows of a layout; the arguments are those of its fields."""
        return PaddedContext(
            buckets=layout.buckets,
            visible=visible,
            masks=[attention_mask(bucket, visible) for bucket in layout.buckets],
            pairs=None if self.relpos is None else self.relpos.pairs(inputs, layout),
            relpos=self.relpos,
            keys=row_keys(batch, layout) if self.training and self.config.drops else None,
            weights=weights,
        )

    def _with_memory(
        self,
        memory: Memory,
        before: backend.Output,
        batch: EntityBatch,
        options: Mapping[str, Any],
    ) -> backend.Output:
        """Update memory by the entities, and let entities attend to it.

        Args:
            memory: of this network.
            before: the entities, without memory.
            batch: B frames.
            options: of `backend.run`; `actions` are choices that enter memory, if they are made.
        """
        x, layout, types = before.x, before.layout, self.embedding.types
        visible = visible_rows(batch, types, layout)
        places = memory.rows_in(batch, types, layout)
        with torch.autocast(x.device.type, enabled=False):
            added = None
            if (actions := options.get("actions")) is not None:
                added = memory.choice_inputs(x, layout, batch, places, actions)
        if isinstance(layout, backend.PackedLayout):
            return backend.run_memory(
                self, memory, before, batch, places, visible, added, **options
            )
        with torch.autocast(x.device.type, enabled=False):
            # Each row through the cell, x + W h
            known = None if memory.remembering.sees_hidden else visible
            inputs = memory.inputs(x, layout, known, places)
            remembered = remember(memory, inputs, added, places.past)
            shown = np.flatnonzero(places.row < layout.num_rows)
            states = remembered.states.index_select(0, to_device(shown, x.device))
            rows = to_device(places.row[shown], x.device)
            with_states = x.index_add(0, rows, memory.to_entities(states))
            # Further rows: frames, and who is absent
            more = memory.memory_only_rows(remembered, places.past)
            entities = with_states.index_select(0, layout.row_of_entity)
        after = self._attend(memory, entities, more, batch, visible, layout)
        output = MemoryOutput(remembered.states, places, x, layout)
        return backend.Output(layout.pad(after), layout, remembered=output)

    def _attend(
        self,
        memory: Memory,
        entities: Tensor,
        more: RaggedTensor,
        batch: EntityBatch,
        visible: Tensor | None,
        layout: Layout,
    ) -> Tensor:
        """Return entities after the blocks in which they attend to further rows.

        Args:
            memory: has the blocks.
            entities: (entities, d_model), type after type.
            more: (n, d_model) per frame, the further rows, which have no place.
            batch: B frames.
            visible: (P,) bool, the visible entities; None if all are.
            layout: of the entities.
        """
        lengths = {name: batch.features[name].lengths for name in self.embedding.types}
        joined = make_layout({**lengths, MEMORY: more.lengths}, entities.device)
        seen = None
        if visible is not None:
            of_entities = visible.index_select(0, layout.row_of_entity)
            seen = joined.pad(torch.cat([of_entities, of_entities.new_ones(len(more.values))]))
        inputs: dict[str, Tensor] = {}
        if self.relpos is not None:
            inputs = {**self.embedding.inputs(batch), MEMORY: more.values[:, :0]}
        is_half, device = self.config.precision == "bfloat16", entities.device.type
        with torch.autocast(device, torch.bfloat16) if is_half else nullcontext():
            context = self._padded_context(batch, joined, seen, inputs)
            rows = joined.pad(torch.cat([entities, more.values]))
            after = memory.transformer(rows, context)
        return after.index_select(0, joined.row_of_entity[: len(entities)])  # type: ignore[no-any-return]

    def _remembered_next(
        self, entities: backend.Output, batch: EntityBatch, actions: Mapping[str, Tensor]
    ) -> Tensor | None:
        """Return the states to remember, with the choices made; None without memory."""
        output, memory = entities.remembered, self.memory
        if output is None or memory is None:
            return None
        states = output.states
        with torch.autocast(states.device.type, enabled=False):
            added = memory.choice_inputs(output.x, output.layout, batch, output.places, actions)
        return states if added is None else states + added

    def input_moments(self, batch: EntityBatch) -> dict[str, Moments]:
        """Return the moments of a batch, by the module whose statistics they update."""
        inputs = self.embedding.inputs(batch)
        moments = {
            f"embedding.by_type.{module_key(name)}.norm": one
            for name, one in self.embedding.input_moments(inputs).items()
        }
        if self.relpos is not None and self.relpos.norm is not None:
            layout = layout_of(batch, self.embedding.types)
            moments["relpos.norm"] = self.relpos.input_moments(inputs, layout)
        return moments

    def values_of(self, entities: backend.Output) -> dict[str, Tensor]:
        """Return the outputs of the regression heads by name; of bins also the expectation."""
        outputs, values = entities.means, {}
        if outputs is None and self._regression_sizes:
            with torch.autocast(entities.x.device.type, enabled=False):
                pooled = entities.layout.means(entities.x)
                heads = self.regression_heads.values()
                outputs = [full_precision(head(pooled)) for head in heads]
        for (name, size), one in zip(self._regression_sizes.items(), outputs or (), strict=True):
            head: Any = self.regression_heads[module_key(name)]
            if not isinstance(size, int):
                values[f"{name}_logits"], one = one, expected_values(one, size)
            values[name] = head.norm(one)
        return values

    @property
    def value_norm(self) -> TargetUnits:
        """Units in which the head "value" learns returns."""
        if "value" not in self._regression_sizes:
            return AS_TARGETS
        head: Any = self.regression_heads[module_key("value")]
        norm: TargetUnits = head.norm
        return norm


class RogueNetWithValueNet(_Normalising):
    """Policy and value function in two networks that share neither weights nor statistics.

    Args:
        config: settings of the policy.
        vf_config: settings of the value function.
        obs_space: the entity types and features that both take.
        action_space: the actions of the policy.
        regression_heads: sizes of the outputs of the value function by name, or bins.
        normalized_heads: those of them that are normalised, as of `RogueNet`.

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
        normalized_heads: Collection[str] = (),
    ) -> None:
        super().__init__()
        self.obs_space = obs_space
        self.action_space = dict(action_space)
        self.policy = RogueNet(config, obs_space, action_space)
        heads = {"value": 1} if regression_heads is None else regression_heads
        global_entity = any(space.is_global for space in action_space.values())
        try:
            self.value_function = RogueNet(
                vf_config,
                obs_space,
                {},
                heads,
                global_entity,
                policy_actions=action_space,
                normalized_heads=normalized_heads,
            )
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
        values, memory = self.value_function.values_and_memory(_of_values(batch), out.actions)
        return out._replace(values=values, memory_of_values=memory)

    def values(self, batch: EntityBatch) -> dict[str, Tensor]:
        """Return the output of the value function: (B, size) float32 each."""
        return self.value_function.values(_of_values(batch))

    @property
    def remembering(self) -> Remembering | None:
        """The rows that the policy remembers; None without memory."""
        return self.policy.remembering

    @property
    def value_norm(self) -> TargetUnits:
        """Units in which the head "value" learns returns."""
        return self.value_function.value_norm

    @property
    def remembering_of_values(self) -> Remembering | None:
        """The rows that the value function remembers; None without memory."""
        return self.value_function.remembering

    def input_moments(self, batch: EntityBatch) -> dict[str, Moments]:
        """Return the moments of a batch, by the module whose statistics they update."""
        return {
            f"{part}.{module}": moments
            for part, net in (("policy", self.policy), ("value_function", self.value_function))
            for module, moments in net.input_moments(batch).items()
        }


def _of_values(batch: EntityBatch) -> EntityBatch:
    """Return a batch with the past of a separate value network."""
    return batch if batch.past is None else replace(batch, past=batch.past.of_values)
