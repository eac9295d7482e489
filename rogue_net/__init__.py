"""The network: a transformer over entities, with heads for actions and values."""

from typing import TYPE_CHECKING

from entity_env.imports import export_lazily

if TYPE_CHECKING:
    from rogue_net.config import RogueNetConfig as RogueNetConfig
    from rogue_net.config import ValueBinsConfig as ValueBinsConfig
    from rogue_net.ragged import ActionBatch as ActionBatch
    from rogue_net.ragged import EntityBatch as EntityBatch
    from rogue_net.ragged import RaggedTensor as RaggedTensor
    from rogue_net.relpos import RelposEncodingConfig as RelposEncodingConfig
    from rogue_net.relpos import TranslationConfig as TranslationConfig
    from rogue_net.rogue_net import NetOutput as NetOutput
    from rogue_net.rogue_net import RogueNet as RogueNet
    from rogue_net.rogue_net import RogueNetWithValueNet as RogueNetWithValueNet

export_lazily(
    __name__,
    {
        "rogue_net.config": "RogueNetConfig ValueBinsConfig",
        "rogue_net.ragged": "ActionBatch EntityBatch RaggedTensor",
        "rogue_net.relpos": "RelposEncodingConfig TranslationConfig",
        "rogue_net.rogue_net": "NetOutput RogueNet RogueNetWithValueNet",
    },
)
