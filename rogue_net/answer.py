"""`NetOutput`: the decisions and values of a network."""

from collections.abc import Mapping
from typing import NamedTuple

from torch import Tensor

from entity_env.arrays import IntArray
from rogue_net.actions.distributions import (
    ActionDistribution,
    CategoricalDistribution,
    Decision,
    decide,
)
from rogue_net.ragged import of_action


class NetOutput(NamedTuple):
    """The output of a network for B frames. Actors come frame after frame.

    Attributes:
        actions: per action (actors,) int64, the choices; (actors, components) float32 of numbers,
            as they were drawn.
        logprobs: per action (actors,) float32, the log-probability of each choice.
        entropies: per action (actors,) float32.
        log_probs: per action (actors, choices) float32, of all choices, -inf where not allowed.
            For select-entity the choices are the actees, padded to the most of any frame. Kinds of
            actions whose choices cannot be listed are missing.
        values: per regression head (B, its size) float32; one of bins has (B, 1), their
            expectation, and (B, bins) in `<name>_logits`.
        lengths: per action (B,) int64 on the host, the actors of each frame; None where it is not
            known.
        attention: for each frame (layers, heads, n, n) float, the weight of entity j for entity
            i; None unless requested.
        distributions: per action, over the choices of all actors; see `distribution`.
        memory: (R, d_memory) float32, the states to remember of the rows of `EntityBatch.past`;
            None of a network without memory.
        memory_of_values: likewise, of a separate value network, of `EntityBatch.past.of_values`.
    """

    actions: dict[str, Tensor]
    logprobs: dict[str, Tensor]
    entropies: dict[str, Tensor]
    log_probs: dict[str, Tensor]
    values: dict[str, Tensor]
    lengths: dict[str, IntArray] | None = None
    attention: list[Tensor] | None = None
    distributions: Mapping[str, ActionDistribution] = {}
    memory: Tensor | None = None
    memory_of_values: Tensor | None = None

    def distribution(self, name: str) -> ActionDistribution:
        """Return the distribution over the choices of an action; of `log_probs` if given."""
        known, log_probs = self.distributions.get(name), self.log_probs.get(name)
        if known is not None and known.all_log_probs is log_probs:
            return known
        return CategoricalDistribution(self.log_probs[name])


def answer(
    log_probs: dict[str, Tensor],
    values: dict[str, Tensor],
    actions: Mapping[str, Tensor] | None = None,
    uniforms: Mapping[str, Tensor] | None = None,
) -> NetOutput:
    """Evaluate `actions`, or sample them with `uniforms`, or take the most probable ones.

    Args:
        log_probs: per action (actors, choices), of all choices.
        values: per regression head (B, size).
        actions: per action (actors,) int64.
        uniforms: per action (actors,) float32 in [0, 1).
    """
    distributions = {name: CategoricalDistribution(p) for name, p in log_probs.items()}
    return output_of(decide_all(distributions, actions, uniforms), values)


def decide_all(
    distributions: Mapping[str, ActionDistribution],
    actions: Mapping[str, Tensor] | None,
    uniforms: Mapping[str, Tensor] | None,
) -> dict[str, Decision]:
    """Evaluate or choose all actions, see `decide`."""
    return {
        name: decide(distribution, of_action(actions, name), of_action(uniforms, name))
        for name, distribution in distributions.items()
    }


def output_of(decisions: Mapping[str, Decision], values: dict[str, Tensor]) -> NetOutput:
    """Return the output of a network with these decisions, by action, and values."""
    distributions = {name: one.distribution for name, one in decisions.items()}
    tables = {name: one.all_log_probs for name, one in distributions.items()}
    return NetOutput(
        actions={name: one.chosen for name, one in decisions.items()},
        logprobs={name: one.log_prob for name, one in decisions.items()},
        entropies={name: one.entropy for name, one in decisions.items()},
        log_probs={name: table for name, table in tables.items() if table is not None},
        values=values,
        distributions=distributions,
    )
