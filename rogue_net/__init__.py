"""The network: a transformer over entities, with heads for actions and values."""

from rogue_net.ragged import ActionBatch, EntityBatch, RaggedTensor
from rogue_net.relpos import RelposEncodingConfig
from rogue_net.rogue_net import NetOutput, RogueNet, RogueNetConfig, RogueNetWithValueNet
from rogue_net.translate import TranslationConfig
from rogue_net.value_bins import ValueBinsConfig

__all__ = [
    "RogueNet",
    "RogueNetConfig",
    "RogueNetWithValueNet",
    "RelposEncodingConfig",
    "TranslationConfig",
    "ValueBinsConfig",
    "NetOutput",
    "EntityBatch",
    "ActionBatch",
    "RaggedTensor",
]
