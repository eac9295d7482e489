"""What a network says: the choices of all actors, how probable they are, and values."""

from collections.abc import Mapping
from typing import NamedTuple

import torch
from torch import Tensor

from rogue_net.heads import entropy, sample
from rogue_net.native.network import Said
from rogue_net.ragged import Lengths


class NetOutput(NamedTuple):
    """What a network says about B frames. Actors come frame after frame.

    Attributes:
        actions: per action (actors,) int64, the choices.
        logprobs: per action (actors,) float32, the log-probability of each choice.
        entropies: per action (actors,) float32.
        log_probs: per action (actors, choices) float32, of all choices, -inf where not allowed.
            For select-entity the choices are the actees, padded to the most of any frame.
            `actee_log_probs` takes the padding off.
        values: per regression head (B, its size) float32; one of bins has (B, 1), their
            expectation, and (B, bins) in `<name>_logits`.
        lengths: per action (B,) int64 on the host, the actors of each frame; None where it is not
            known.
        attention: for each frame (layers, heads, n, n) float, how much entity i looks at entity j;
            None unless asked for.
    """

    actions: dict[str, Tensor]
    logprobs: dict[str, Tensor]
    entropies: dict[str, Tensor]
    log_probs: dict[str, Tensor]
    values: dict[str, Tensor]
    lengths: dict[str, Lengths] | None = None
    attention: list[Tensor] | None = None


def answer(
    log_probs: dict[str, Tensor],
    values: dict[str, Tensor],
    actions: Mapping[str, Tensor] | None = None,
    uniforms: Mapping[str, Tensor] | None = None,
    said: Mapping[str, Said] | None = None,
) -> NetOutput:
    """Judge `actions`, or sample them with `uniforms`, or take the most probable ones.

    Args:
        log_probs: per action (actors, choices), of all choices.
        values: per regression head (B, size).
        actions: per action (actors,) int64.
        uniforms: per action (actors,) float32 in [0, 1).
        said: of some of the actions, the answer.
    """
    said = dict(said or {})
    for name, p in log_probs.items():
        if name not in said:
            chosen = None if actions is None else actions[name]
            if chosen is None:
                chosen = choose(p, None if uniforms is None else uniforms[name])
            logprobs = p.gather(1, chosen.unsqueeze(1)).squeeze(1)
            said[name] = Said(p, logprobs, entropy(p), chosen)
    return NetOutput(
        actions={name: said[name].chosen for name in log_probs},
        logprobs={name: said[name].logprobs for name in log_probs},
        entropies={name: said[name].entropies for name in log_probs},
        log_probs=log_probs,
        values=values,
    )


def choose(log_probs: Tensor, uniforms: Tensor | None) -> Tensor:
    """(actors, choices) -> (actors,) int64: sampled, or without `uniforms` the most probable."""
    if log_probs.shape[0] == 0:
        return torch.zeros(0, dtype=torch.int64, device=log_probs.device)
    return log_probs.argmax(dim=-1) if uniforms is None else sample(log_probs, uniforms)


def draw(log_probs: Tensor, generator: torch.Generator) -> Tensor:
    """(actors,) float32 in [0, 1), as `sample` needs them."""
    shape = (log_probs.shape[0],)
    bits = torch.randint(2**23, shape, generator=generator, device=generator.device)
    return bits.to(log_probs.device).float() * 2.0**-23


def tempered(log_probs: Tensor, temperature: float) -> Tensor:
    """Log-probabilities (actors, choices) as if all scores had been divided by a temperature."""
    if temperature == 1 or log_probs.numel() == 0:
        return log_probs
    # From the largest on, which stays possible however small the temperature is.
    top = log_probs.amax(dim=-1, keepdim=True)
    return ((log_probs - top) / temperature).log_softmax(dim=-1)
