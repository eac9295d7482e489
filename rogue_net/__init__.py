"""The network: a transformer over entities, with heads for actions and values."""

from typing import TYPE_CHECKING

from entity_env.lazy_exports import export_lazily

if TYPE_CHECKING:
    from rogue_net.config import RogueNetConfig, ValueBinsConfig
    from rogue_net.ragged import ActionBatch, EntityBatch, RaggedTensor
    from rogue_net.relpos import RelposEncodingConfig
    from rogue_net.rogue_net import NetOutput, RogueNet, RogueNetWithValueNet
    from rogue_net.translation_config import TranslationConfig

export_lazily(
    __name__,
    {
        "rogue_net.config": "RogueNetConfig ValueBinsConfig",
        "rogue_net.ragged": "ActionBatch EntityBatch RaggedTensor",
        "rogue_net.relpos": "RelposEncodingConfig",
        "rogue_net.rogue_net": "NetOutput RogueNet RogueNetWithValueNet",
        "rogue_net.translation_config": "TranslationConfig",
    },
)

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
