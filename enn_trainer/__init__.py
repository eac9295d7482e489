"""Train transformer policies with PPO in worlds made of typed entities."""

from typing import TYPE_CHECKING

from entity_env.lazy_exports import export_lazily

if TYPE_CHECKING:
    from enn_trainer import stop_conditions
    from enn_trainer.algorithms.cloning.clone import CloneResult, clone
    from enn_trainer.callbacks import Callback
    from enn_trainer.check_agent import check_agent
    from enn_trainer.command import command
    from enn_trainer.config import (
        BCConfig,
        CheckpointConfig,
        CloneConfig,
        CloneRunConfig,
        EnvConfig,
        EvalConfig,
        EvalEnvConfig,
        EvalSuiteConfig,
        OptimizerConfig,
        ParamGroupConfig,
        PPOConfig,
        RolloutConfig,
        TrainConfig,
    )
    from enn_trainer.errors import (
        AgentError,
        CheckpointError,
        ConfigError,
        EnnTrainerError,
        NotFiniteError,
    )
    from enn_trainer.load_agent import Act, RogueNetAgent, load_agent
    from enn_trainer.policy import PPOAgent
    from enn_trainer.runtime.versions import __version__ as __version__
    from enn_trainer.session import TrainResult
    from enn_trainer.state import State, init_train_state
    from enn_trainer.state_manager import StateManager, load_checkpoint
    from enn_trainer.trainer import Trainer, train
    from rogue_net.config import RogueNetConfig, ValueBinsConfig
    from rogue_net.relpos import RelposEncodingConfig
    from rogue_net.rogue_net import RogueNet
    from rogue_net.translation_config import TranslationConfig

export_lazily(
    __name__,
    {
        "enn_trainer.algorithms.cloning.clone": "CloneResult clone",
        "enn_trainer.callbacks": "Callback",
        "enn_trainer.check_agent": "check_agent",
        "enn_trainer.command": "command",
        "enn_trainer.config": (
            "BCConfig CheckpointConfig CloneConfig CloneRunConfig EnvConfig EvalConfig "
            "EvalEnvConfig EvalSuiteConfig OptimizerConfig ParamGroupConfig PPOConfig "
            "RolloutConfig TrainConfig"
        ),
        "enn_trainer.errors": (
            "AgentError CheckpointError ConfigError EnnTrainerError NotFiniteError"
        ),
        "enn_trainer.load_agent": "Act RogueNetAgent load_agent",
        "enn_trainer.policy": "PPOAgent",
        "enn_trainer.runtime.versions": "__version__",
        "enn_trainer.session": "TrainResult",
        "enn_trainer.state": "State init_train_state",
        "enn_trainer.state_manager": "StateManager load_checkpoint",
        "enn_trainer.trainer": "Trainer train",
        "rogue_net.config": "RogueNetConfig ValueBinsConfig",
        "rogue_net.relpos": "RelposEncodingConfig",
        "rogue_net.rogue_net": "RogueNet",
        "rogue_net.translation_config": "TranslationConfig",
    },
)

__all__ = [
    # Run
    "train",
    "TrainResult",
    "Trainer",
    "Callback",
    "stop_conditions",
    "command",
    "StateManager",
    "State",
    "init_train_state",
    "load_checkpoint",
    # Clone
    "clone",
    "CloneResult",
    "CloneConfig",
    "CloneRunConfig",
    # Act
    "load_agent",
    "RogueNetAgent",
    "Act",
    "RogueNet",
    "PPOAgent",
    "check_agent",
    # Configuration
    "TrainConfig",
    "EnvConfig",
    "RogueNetConfig",
    "RelposEncodingConfig",
    "TranslationConfig",
    "ValueBinsConfig",
    "OptimizerConfig",
    "ParamGroupConfig",
    "PPOConfig",
    "RolloutConfig",
    "EvalConfig",
    "EvalSuiteConfig",
    "EvalEnvConfig",
    "BCConfig",
    "CheckpointConfig",
    # Errors
    "EnnTrainerError",
    "ConfigError",
    "CheckpointError",
    "AgentError",
    "NotFiniteError",
]
