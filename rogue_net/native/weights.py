"""Parameters and input statistics of networks for compiled code; collected once for each network.

Collecting them takes longer than a small forward pass.
"""

from collections.abc import Callable, Iterable, MutableMapping, Sequence
from copy import copy
from operator import attrgetter, getitem, is_
from typing import Any, NamedTuple, Protocol
from weakref import WeakKeyDictionary

import numpy as np
import torch
from torch import Tensor, nn

from entity_env.spaces import ActionSpace
from rogue_net.actions.heads import CategoricalHead
from rogue_net.config import RogueNetConfig
from rogue_net.embedding import EntityEmbedding, TypeEmbedding, module_key
from rogue_net.memory import Memory
from rogue_net.native.functions import TypeRows, contiguous
from rogue_net.native.library import addresses_of
from rogue_net.relpos.encoding import RelposEncoding
from rogue_net.transformer import Transformer


class CompilableNetwork(Protocol):
    """Interface of networks that can be compiled: `RogueNet`.

    Attributes:
        config: settings of the network.
        embedding: embedding of entities.
        relpos: relative position encoding, or None.
        transformer: the blocks before memory.
        memory: recurrent state, or None.
        action_space: the actions.
        action_heads: their heads, in the same order.
        regression_heads: linear functions of the mean over the entities of a frame.
        training: True if dropout is enabled.
    """

    config: RogueNetConfig
    embedding: EntityEmbedding
    relpos: RelposEncoding | None
    transformer: Transformer
    memory: Memory | None
    action_space: dict[str, ActionSpace]
    action_heads: nn.ModuleDict
    regression_heads: nn.ModuleDict
    training: bool


COMPILED_HEADS: dict[type[Any], Callable[[Any], nn.Linear]] = {
    CategoricalHead: attrgetter("project")
}
"""Head classes that are compiled, and their layer."""


class Weights:
    """Parameters and input statistics of a network, in the order of `blocks.h`.

    Args:
        parameters: tables of relative keys and values; weight and bias of the gate; for each
            block, weight and bias of norm_1, query_key_value, project, norm_2, and both layers of
            the perceptron; the embedding of each type; weight and bias of each action head, then
            of each regression head.
        statistics: mean and standard deviation of the features of each type.

    Attributes:
        has_copies: True if a parameter is not contiguous, so that changes in place need new ones.
    """

    def __init__(
        self, parameters: Sequence[Tensor | None], statistics: Sequence[Tensor | None]
    ) -> None:
        self.parameters = [contiguous(x) for x in parameters]
        self.addresses = addresses_of(self.parameters)
        self.statistics = [contiguous(x) for x in statistics]
        self.addresses_of_statistics = addresses_of(self.statistics)
        self.has_copies = not all(map(is_, self.parameters, parameters))

    def completed(
        self, first: Sequence[Tensor | None], statistics: Sequence[Tensor | None]
    ) -> "Weights":
        """Return these weights after some more parameters, and with these statistics."""
        added, weights = Weights(first, statistics), copy(self)
        weights.parameters = [*added.parameters, *self.parameters]
        weights.addresses = np.concatenate([added.addresses, self.addresses])
        weights.statistics = added.statistics
        weights.addresses_of_statistics = added.addresses_of_statistics
        return weights


class TypeParameters(NamedTuple):
    """Input statistics and parameters of the embedding of an entity type, see `TypeRows`."""

    mean: Tensor | None
    std: Tensor | None
    parameters: Sequence[Tensor]


class TensorGuard:
    """The submodules, parameters and buffers of a module at one moment.

    Changes in place are not detected, as the memory stays the same.

    Args:
        module: the module, which is not referenced.
    """

    def __init__(self, module: nn.Module) -> None:
        tables: list[dict[str, Any]] = [
            table
            for part in module.modules()
            for table in (part._modules, part._parameters, part._buffers)
        ]
        places = [(table, key, value) for table in tables for key, value in table.items()]
        self._tables, self._keys, self._values = zip(*places, strict=True)
        self._tensors = [*module.parameters(), *module.buffers()]
        self._addresses = self._current_addresses()

    def holds(self) -> bool:
        """Return whether the module still has the same tensors, in the same memory."""
        try:
            current = map(getitem, self._tables, self._keys)
            is_same = all(map(is_, current, self._values))
        except KeyError:  # a tensor was removed
            return False
        return is_same and self._addresses == self._current_addresses()

    def _current_addresses(self) -> list[int]:
        return [tensor.data_ptr() for tensor in self._tensors]


class NetworkTensors:
    """Parameters of a network for compiled code, as long as its modules hold them.

    Collecting them takes longer than a small forward pass.

    Args:
        net: the network.
    """

    def __init__(self, net: Any) -> None:
        by_type = net.embedding.by_type
        self._types = [by_type[module_key(name)] for name in net.embedding.types]
        self._parameters = [module.parameters_in_order() for module in self._types]
        self._guard = TensorGuard(net)
        self._weights: dict[tuple[Any, ...], Weights] = {}

    def are_current(self) -> bool:
        """Return whether the network still holds these tensors."""
        return self._guard.holds()

    def types(self) -> list[TypeParameters]:
        """Return the current input statistics and the parameters of each type."""
        types = []
        for module, parameters in zip(self._types, self._parameters, strict=True):
            mean = std = None
            if isinstance(module, TypeEmbedding):
                mean, std = module.norm.mean_and_std(torch.float32)
            types.append(TypeParameters(mean, std, parameters))
        return types

    def weights(
        self,
        net: CompilableNetwork,
        types: Sequence[TypeParameters | TypeRows],
        tables: Sequence[Tensor | None],
        actions: Iterable[str],
        means: Iterable[str],
        blocks: Transformer | None = None,
    ) -> Weights:
        """Return the weights of the network.

        Args:
            net: the network.
            types: parameters and statistics of the embedding of each type; [] without embedding.
            tables: relative keys and values, which are computed for each call.
            actions: the compiled action heads.
            means: the regression heads; weight and bias are None for heads that the network lacks.
            blocks: the blocks to run; those before memory by default.
        """
        key = (*actions, None, *means, blocks is None)
        weights = self._weights.get(key)
        if weights is None:
            weights = _weights(net, types, actions, means, blocks)
            if not weights.has_copies:
                self._weights[key] = weights
        return weights.completed(tables, [x for one in types for x in (one.mean, one.std)])


_TENSORS: MutableMapping[Any, NetworkTensors] = WeakKeyDictionary()


def tensors_of(net: CompilableNetwork) -> NetworkTensors:
    """Return the parameters of a network; cached until one of them is replaced."""
    tensors = _TENSORS.get(net)
    if tensors is None or not tensors.are_current():
        tensors = _TENSORS[net] = NetworkTensors(net)
    return tensors


def _weights(
    net: CompilableNetwork,
    types: Sequence[TypeParameters | TypeRows],
    actions: Iterable[str],
    means: Iterable[str],
    blocks: Transformer | None,
) -> Weights:
    """Return the weights of a network, without relative positions and input statistics.

    Args:
        net: the network.
        types: parameters of the embedding of each type.
        actions: as in `NetworkTensors.weights`, like the remaining ones.
        means: the regression heads.
        blocks: the blocks to run.
    """
    gate = None if net.relpos is None else net.relpos.gate
    heads = [net.action_heads[module_key(name)] for name in actions]
    linears: list[Any] = [COMPILED_HEADS[type(head)](head) for head in heads]
    regression_heads = dict(net.regression_heads.items())
    linears += [regression_heads.get(name) for name in means]
    parameters = [
        *((None, None) if gate is None else (gate.weight, gate.bias)),
        *(blocks or net.transformer).parameters_in_order(),
        *(parameter for one in types for parameter in one.parameters),
        *(x for one in linears for x in ((None, None) if one is None else (one.weight, one.bias))),
    ]
    return Weights(parameters, [])
