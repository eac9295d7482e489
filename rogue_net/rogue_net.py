"""`RogueNet`: a transformer from a ragged batch of entities to actions and values.

`RogueNetWithValueNet` has a separate network for the values.
"""

import math
from abc import ABC, abstractmethod
from collections.abc import Collection, Mapping, Sequence
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
from rogue_net.memory import MEMORY, Memory, MemoryOutput, MemorySpec, update_states
from rogue_net.native import backend
from rogue_net.ragged import EntityBatch, RaggedTensor, lookup, to_device
from rogue_net.relpos.encoding import RelposEncoding
from rogue_net.transformer import Transformer, init_linear
from rogue_net.value_bins import expected_values
from rogue_net.value_head import AS_TARGETS, RegressionHead, TargetUnits

__all__ = ["NetOutput", "RogueNet", "RogueNetConfig", "RogueNetWithValueNet", "answer"]


class _InputNormalised(nn.Module, ABC):
    """Base class of networks with running statistics that normalise the input."""

    def update_input_stats(self, batch: EntityBatch) -> None:
        """Update the running statistics of the input with a batch."""
        self.merge_input_moments(self.input_moments(batch))

    @abstractmethod
    def input_moments(self, batch: EntityBatch) -> dict[str, Moments]:
        """Compute the moments of a batch, by the name of the `InputNorm` to update."""

    def merge_input_moments(self, moments: Mapping[str, Moments]) -> None:
        """Update the running statistics with results of `input_moments`, of any process."""
        for module, module_moments in moments.items():
            norm = self.get_submodule(module)
            assert isinstance(norm, InputNorm)
            norm.merge(module_moments)


class RogueNet(_InputNormalised):
    """Transformer over the entities of a frame, with a head for each action and value.

    Args:
        config: hyperparameters.
        obs_space: the entity types and features of the input.
        action_space: the actions to choose.
        regression_heads: sizes of additional outputs by name, each a linear function of the mean
            over the entities of a frame, initially zero. Training needs `{"value": 1}`. A head with
            bins instead of a size returns their expectation, and their logits as another output,
            `value_logits` for `value`; initially the bins have equal probability.
        global_entity: add an entity with the global features even if no action is global.
        policy_actions: the actions that enter memory, for a value network, which never acts and
            attends to entities that are invisible to the policy; None for a policy.
        normalized_heads: regression heads of size 1, or with bins, that are trained in normalised
            units, see `TargetNorm`; bins are in these units. Outputs are in the units of the
            targets.

    Raises:
        InvalidSpace: `check_env` rejects a space, such as an action without labels.
        ValueError: an option refers to missing entity types or features, or there is neither an
            entity type nor a global action, or `precision` is "auto".
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
        if config.precision == "auto":
            raise ValueError(
                'precision: expected "float32" or "bfloat16", got "auto", which is for the start '
                "of a run; use rogue_net.precision.auto_precision(d_model, device).precision"
            )
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
            memory_actions = action_space if policy_actions is None else policy_actions
            never_acts = policy_actions is not None
            self.memory = Memory(config, [*obs_space.entities], memory_actions, never_acts)
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
        self.regression_sizes = dict(regression_heads or {})
        self.regression_heads = nn.ModuleDict()
        for name, size in self.regression_sizes.items():
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
                for continuous actions, before squashing.
            uniforms: per action (actors,) float32 in [0, 1) to sample choices with; (actors,
                components) for several components.
            generator: random number generator to draw `uniforms` with. Without any of the three,
                the result is the most probable choice.
            temperature: divides the logits of all choices: choices are more random above 1 and less
                random below 1; all outputs refer to these probabilities.
            attention: also return the attention weights between entities.

        Raises:
            ValueError: an argument is out of range, or excludes another argument.
        """
        if not 0 < temperature < math.inf:
            raise ValueError(f"temperature: expected a finite number above 0, got {temperature}")
        if generator is not None and (actions is not None or uniforms is not None):
            raise ValueError("generator: expected neither actions nor uniforms with it")
        if attention and self.config.pooling is not None:
            raise ValueError(
                f"attention: expected a network with attention, got one with "
                f"pooling={self.config.pooling!r}"
            )
        weights: list[list[Tensor]] | None = [] if attention else None
        entities = self._entities(
            batch, weights, with_heads=True, actions=actions, uniforms=uniforms
        )
        x, layout = entities.x, entities.layout
        values = self.values_of(entities)

        # Actions: compiled heads ran already, at temperature 1 and without a generator.
        if generator is not None:
            uniforms = random_draws(batch.actions, self.action_space, generator)
        decisions: dict[str, Decision] = {}
        with torch.autocast(x.device.type, enabled=False):
            for name in parents_first(self.action_space):
                chosen, draws = lookup(actions, name), lookup(uniforms, name)
                decision = entities.decisions.get(name)
                if decision is None:
                    head: Any = self.action_heads[module_key(name)]
                    condition = head.parent.condition
                    action, kwargs = condition(name, x, layout, batch.actions, decisions)
                    decision = head(x, layout, action, chosen, draws, temperature, **kwargs)
                elif temperature != 1 or generator is not None:
                    distribution = decision.distribution.tempered(temperature)
                    decision = decide(distribution, chosen, draws)
                decisions[name] = decision
            decisions = {name: decisions[name] for name in self.action_space}
            if actions is None:
                actions = {name: decision.chosen for name, decision in decisions.items()}
            memory = self._next_memory(entities, batch, actions)
        return output_of(decisions, values)._replace(
            memory=memory,
            lengths={name: batch.actions[name].actors.lengths for name in self.action_space},
            attention=None
            if weights is None
            else weights_by_frame(weights, layout, self.config.n_head),
        )

    def values(self, batch: EntityBatch) -> dict[str, Tensor]:
        """Run the regression heads only: (B, size) float32 each; (B, 1) and logits for bins."""
        return self.values_of(self._entities(batch))

    def values_and_memory(
        self, batch: EntityBatch, actions: Mapping[str, Tensor]
    ) -> tuple[dict[str, Tensor], Tensor | None]:
        """Run the regression heads, and update the recurrent states with choices of a policy."""
        entities = self._entities(batch, actions=actions)
        return self.values_of(entities), self._next_memory(entities, batch, actions)

    @property
    def remembering(self) -> MemorySpec | None:
        """Specification of the recurrent states; None without memory."""
        return None if self.memory is None else self.memory.remembering

    def embed(self, batch: EntityBatch) -> tuple[Tensor, Layout]:
        """Return the entities after the transformer, (P, d_model), and their layout."""
        entities = self._entities(batch)
        return entities.x, entities.layout

    def _entities(
        self, batch: EntityBatch, weights: list[list[Tensor]] | None = None, **options: Any
    ) -> backend.RunOutput:
        """Run all blocks, and the compiled heads if the backend supports the network.

        Args:
            batch: B frames.
            weights: list to append the attention weights of each layer and bucket to, which
                disables the compiled backend; None not to return them.
            options: of `backend.run`.
        """
        if self.memory is None:
            return self._entities_before_memory(batch, weights, **options)
        before = self._entities_before_memory(batch, weights, with_means=False)
        return self._with_memory(self.memory, before, batch, options)

    def _entities_before_memory(
        self, batch: EntityBatch, weights: list[list[Tensor]] | None, **options: Any
    ) -> backend.RunOutput:
        """Run the blocks before memory."""
        if weights is None and (compiled := backend.run(self, batch, **options)) is not None:
            return compiled
        layout = layout_of(batch, self.embedding.types, self.relpos is not None)
        device = layout.row_of_entity.device.type
        is_half = self.config.precision == "bfloat16"
        with torch.autocast(device, torch.bfloat16) if is_half else nullcontext():
            inputs = self.embedding.inputs(batch)
            visible = visible_rows(batch, self.embedding.types, layout)
            context = self._padded_context(batch, layout, visible, inputs, weights)
            # Under `torch.autocast`, the input, the residual stream and the outputs of heads keep
            # the precision of the parameters.
            with torch.autocast(device, enabled=False):
                x = layout.pad(self.embedding(inputs, self.embedding.label_rows(batch)))
            return backend.RunOutput(self.transformer(x, context), layout)

    def _padded_context(
        self,
        batch: EntityBatch,
        layout: Layout,
        visible: Tensor | None,
        inputs: Mapping[str, Tensor],
        weights: list[list[Tensor]] | None = None,
    ) -> PaddedContext:
        """Create the context of padded rows; arguments are its fields of the same names."""
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
        before: backend.RunOutput,
        batch: EntityBatch,
        options: Mapping[str, Any],
    ) -> backend.RunOutput:
        """Update the recurrent states, and run the blocks after memory.

        Args:
            memory: memory of this network.
            before: the entities before memory.
            batch: B frames.
            options: of `backend.run`; `actions` enter memory.
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
            # New states of all recurrent rows; observed entities become x + W h.
            averaged = None if memory.remembering.sees_hidden else visible
            inputs = memory.inputs(x, layout, averaged, places)
            updated = update_states(memory, inputs, added, places.past)
            observed = np.flatnonzero(places.row < layout.num_rows)
            states = updated.states.index_select(0, to_device(observed, x.device))
            rows = to_device(places.row[observed], x.device)
            with_states = x.index_add(0, rows, memory.to_entities(states))
            # Additional rows: states of frames and of absent entities.
            extra = memory.extra_rows(updated, places.past)
            entities = with_states.index_select(0, layout.row_of_entity)
        after = self._attend(memory, entities, extra, batch, visible, layout)
        output = MemoryOutput(updated.states, places, x, layout)
        return backend.RunOutput(layout.pad(after), layout, memory=output)

    def _attend(
        self,
        memory: Memory,
        entities: Tensor,
        extra: RaggedTensor,
        batch: EntityBatch,
        visible: Tensor | None,
        layout: Layout,
    ) -> Tensor:
        """Run the blocks after memory, in which entities attend to additional rows.

        Args:
            memory: memory of this network.
            entities: (entities, d_model), type after type.
            extra: (n, d_model) per frame, the additional rows, which have no position.
            batch: B frames.
            visible: (P,) bool, the visible entities; None if all are.
            layout: of the entities.

        Returns:
            (entities, d_model), type after type.
        """
        lengths = {name: batch.features[name].lengths for name in self.embedding.types}
        all_rows = make_layout({**lengths, MEMORY: extra.lengths}, entities.device)
        padded = None
        if visible is not None:
            visible = visible.index_select(0, layout.row_of_entity)
            padded = all_rows.pad(torch.cat([visible, visible.new_ones(len(extra.values))]))
        inputs: dict[str, Tensor] = {}
        if self.relpos is not None:
            inputs = {**self.embedding.inputs(batch), MEMORY: extra.values[:, :0]}
        is_half, device = self.config.precision == "bfloat16", entities.device.type
        with torch.autocast(device, torch.bfloat16) if is_half else nullcontext():
            context = self._padded_context(batch, all_rows, padded, inputs)
            rows = all_rows.pad(torch.cat([entities, extra.values]))
            after = memory.transformer(rows, context)
        return after.index_select(0, all_rows.row_of_entity[: len(entities)])  # type: ignore[no-any-return]

    def _next_memory(
        self, entities: backend.RunOutput, batch: EntityBatch, actions: Mapping[str, Tensor]
    ) -> Tensor | None:
        """Return the new recurrent states, including the choices; None without memory."""
        output, memory = entities.memory, self.memory
        if output is None or memory is None:
            return None
        states = output.states
        with torch.autocast(states.device.type, enabled=False):
            added = memory.choice_inputs(output.x, output.layout, batch, output.places, actions)
        return states if added is None else states + added

    def input_moments(self, batch: EntityBatch) -> dict[str, Moments]:
        """Compute the moments of a batch, by the name of the `InputNorm` to update."""
        inputs = self.embedding.inputs(batch)
        moments = {
            f"embedding.by_type.{module_key(name)}.norm": one
            for name, one in self.embedding.input_moments(inputs).items()
        }
        if self.relpos is not None and self.relpos.norm is not None:
            layout = layout_of(batch, self.embedding.types)
            moments["relpos.norm"] = self.relpos.input_moments(inputs, layout)
        return moments

    def values_of(self, entities: backend.RunOutput) -> dict[str, Tensor]:
        """Return the outputs of the regression heads by name; for bins, expectation and logits."""
        if entities.means is not None:
            return self._in_units(entities.means)
        if not self.regression_sizes:
            return {}
        with torch.autocast(entities.x.device.type, enabled=False):
            return self.values_of_means(entities.layout.means(entities.x))

    def values_of_means(self, means: Tensor) -> dict[str, Tensor]:
        """Compute the regression heads as `values_of`, from the means of frames, (B, d_model)."""
        return self._in_units([full_precision(h(means)) for h in self.regression_heads.values()])

    def _in_units(self, outputs: Sequence[Tensor]) -> dict[str, Tensor]:
        """Return the outputs of linear heads by name, in the units of their targets."""
        values: dict[str, Tensor] = {}
        for (name, size), output in zip(self.regression_sizes.items(), outputs, strict=True):
            head: Any = self.regression_heads[module_key(name)]
            if not isinstance(size, int):
                values[f"{name}_logits"], output = output, expected_values(output, size)
            values[name] = head.norm(output)
        return values

    @property
    def value_norm(self) -> TargetUnits:
        """Units in which the head "value" is trained."""
        if "value" not in self.regression_sizes:
            return AS_TARGETS
        head: Any = self.regression_heads[module_key("value")]
        norm: TargetUnits = head.norm
        return norm


class RogueNetWithValueNet(_InputNormalised):
    """Policy and value function in separate networks, without shared weights or statistics.

    Args:
        config: hyperparameters of the policy.
        vf_config: hyperparameters of the value function.
        obs_space: the entity types and features of the input of both.
        action_space: the actions of the policy.
        regression_heads: outputs of the value function, as in `RogueNet`.
        normalized_heads: normalised outputs, as in `RogueNet`.

    Raises:
        ValueError: as in `RogueNet`; the message starts with `vf_config` for the value function.
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
        """Choose or evaluate actions as `RogueNet` does; attention weights are the policy's."""
        out: NetOutput = self.policy(batch, actions, uniforms, **options)
        values, memory = self.value_function.values_and_memory(_value_batch(batch), out.actions)
        return out._replace(values=values, memory_of_values=memory)

    def values(self, batch: EntityBatch) -> dict[str, Tensor]:
        """Run the value function only: (B, size) float32 for each output."""
        return self.value_function.values(_value_batch(batch))

    @property
    def remembering(self) -> MemorySpec | None:
        """Specification of the policy's recurrent states; None without memory."""
        return self.policy.remembering

    @property
    def value_norm(self) -> TargetUnits:
        """Units in which the head "value" is trained."""
        return self.value_function.value_norm

    @property
    def remembering_of_values(self) -> MemorySpec | None:
        """Specification of the value function's recurrent states; None without memory."""
        return self.value_function.remembering

    def input_moments(self, batch: EntityBatch) -> dict[str, Moments]:
        """Compute the moments of a batch, by the name of the `InputNorm` to update."""
        return {
            f"{part}.{module}": moments
            for part, net in (("policy", self.policy), ("value_function", self.value_function))
            for module, moments in net.input_moments(batch).items()
        }


def _value_batch(batch: EntityBatch) -> EntityBatch:
    """Replace the past of a batch with that of the separate value network."""
    return batch if batch.past is None else replace(batch, past=batch.past.value_past)
