"""`NetOutput`: the decisions and values of a network for a batch of frames."""

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
from rogue_net.ragged import lookup


class NetOutput(NamedTuple):
    """Output of a network for B frames. Actors are ordered by frame.

    Attributes:
        actions: per action (actors,) int64, the choices; (actors, components) float32 for
            continuous actions, before squashing.
        logprobs: per action (actors,) float32, the log-probability of each choice.
        entropies: per action (actors,) float32.
        log_probs: per action (actors, choices) float32, of all choices, -inf where not allowed.
            For select-entity the choices are the actees, padded to the largest number of a frame.
            Actions without a finite list of choices are missing.
        values: per regression head (B, size) float32; a head with bins has (B, 1), the expectation,
            and (B, bins) in `<name>_logits`.
        lengths: per action (B,) int64 on the host, the number of actors of each frame; None if
            unknown.
        attention: for each frame (layers, heads, n, n) float, the weight of entity j for entity
            i; None unless requested.
        distributions: per action, over the choices of all actors; see `distribution`.
        memory: (R, d_memory) float32, new recurrent states of the rows of `EntityBatch.past`; None
            for a network without memory.
        memory_of_values: likewise, of a separate value network, for `EntityBatch.past.value_past`.
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
        """Return the distribution of an action; `log_probs` have precedence if replaced."""
        stored, log_probs = self.distributions.get(name), self.log_probs.get(name)
        if stored is not None and stored.all_log_probs is log_probs:
            return stored
        return CategoricalDistribution(self.log_probs[name])


def answer(
    log_probs: dict[str, Tensor],
    values: dict[str, Tensor],
    actions: Mapping[str, Tensor] | None = None,
    uniforms: Mapping[str, Tensor] | None = None,
) -> NetOutput:
    """Evaluate `actions`, or sample with `uniforms`, or return the most probable actions.

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
        name: decide(distribution, lookup(actions, name), lookup(uniforms, name))
        for name, distribution in distributions.items()
    }


def output_of(decisions: Mapping[str, Decision], values: dict[str, Tensor]) -> NetOutput:
    """Combine decisions, by action, and values into the output of a network."""
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
