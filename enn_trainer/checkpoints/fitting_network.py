"""Networks of saves: no larger than the weights that are there, and able to act."""

import re
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from enn_trainer.config import TrainConfig
from enn_trainer.errors import CheckpointError
from enn_trainer.state import make_network
from entity_env.spaces import ActionSpace, ObsSpace
from rogue_net.input_norm import InputNorm

MAX_WEIGHT = 1e9
"""Beyond, sums of products of weights leave what float32 can say; nothing learns such weights."""

_OF_ROGUE_NET = re.compile(
    r"((policy|value_function)\.)?(embedding|relpos|transformer|action_heads|regression_heads)\."
)


def fitting_network(
    where: str,
    config: TrainConfig,
    obs_space: ObsSpace,
    action_space: dict[str, ActionSpace],
    weights: Mapping[str, Tensor],
) -> Any:
    """A network of a configuration, if it is no larger than the weights that it gets.

    The arguments and errors are those of `refuse_larger`.
    """
    others = [name for name in weights if not _OF_ROGUE_NET.match(name)]
    if others:
        raise CheckpointError(
            f"{where}: the weights are those of a network of your own, with {min(others)}; "
            "expected those of a RogueNet, or that network beside the save, as agent= in Python"
        )
    refuse_larger(where, config, obs_space, action_space, weights)
    return make_network(config, obs_space, action_space)


def refuse_larger(
    where: str,
    config: TrainConfig,
    obs_space: ObsSpace,
    action_space: dict[str, ActionSpace],
    weights: Mapping[str, Tensor],
) -> None:
    """Refuse a configuration whose network is larger than the weights that are there for it.

    Args:
        where: the save, for messages.
        config: of the run.
        obs_space: what the network sees.
        action_space: what it does.
        weights: by name.

    Raises:
        CheckpointError: it is larger, or the configuration does not fit the spaces.
    """
    numbers = sum(t.numel() for t in weights.values())
    layers = config.net.n_layer + (0 if config.vf_net is None else config.vf_net.n_layer)
    try:
        # Each of these has a tensor of its own at least.
        fits = layers + len(obs_space.entities) + len(action_space) <= len(weights)
        if fits:
            with torch.device("meta"):  # takes no memory, whatever the configuration says
                outline = make_network(config, obs_space, action_space)
            fits = sum(p.numel() for p in outline.parameters()) <= numbers
    except ValueError as error:  # such as relative positions of what there is none of
        raise CheckpointError(f"{where}: config.ron does not fit state.ron: {error}") from None
    except (RuntimeError, OverflowError, TypeError):  # sizes beyond 64 bits
        fits = False
    if not fits:
        raise CheckpointError(
            f"{where}: the weights do not fit the network: config.ron asks for more than the "
            f"{numbers} numbers in {len(weights)} tensors that there are"
        )


def load_weights(where: str, network: nn.Module, weights: Mapping[str, Tensor]) -> None:
    """Give a network its weights.

    Args:
        where: the save, for messages.
        network: of the same shape; it is changed.
        weights: by name.

    Raises:
        CheckpointError: they are of another network, or no numbers that it could act by.
    """
    for name, wanted in network.state_dict().items():
        got = weights.get(name, wanted)
        if got.is_floating_point() != wanted.is_floating_point() or got.is_complex():
            kind = "floating-point" if wanted.is_floating_point() else "whole"
            raise CheckpointError(f"{where}: {name}: expected {kind} numbers, got {got.dtype}")
    try:
        network.load_state_dict(weights)
    except RuntimeError as error:
        raise CheckpointError(f"{where}: the weights do not fit the network: {error}") from None
    _refuse_unusable(where, network)


def _refuse_unusable(where: str, network: nn.Module) -> None:
    """Refuse weights that are no numbers: what they choose would look like a policy."""
    parameters = dict(network.named_parameters())
    # A buffer may be infinite on purpose, as in a mask.
    bad = [name for name, p in parameters.items() if not p.isfinite().all()]
    bad += [name for name, buffer in network.named_buffers() if buffer.isnan().any()]
    expected = "finite numbers"
    if not bad:
        bad = [name for name, p in parameters.items() if (p.detach().abs() > MAX_WEIGHT).any()]
        expected = f"numbers of at most {MAX_WEIGHT:g}"
    if bad:
        more = f" and {len(bad) - 3} more" if len(bad) > 3 else ""
        raise CheckpointError(
            f"{where}: expected weights that are {expected}, got others in "
            f"{', '.join(bad[:3])}{more}; take an earlier checkpoint"
        )
    for name, module in network.named_modules():
        problem = module.problem() if isinstance(module, InputNorm) else None
        if problem is not None:
            raise CheckpointError(f"{where}: {name}.{problem}; take an earlier checkpoint")
