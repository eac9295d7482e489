"""Train transformer policies with PPO in worlds made of typed entities."""

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
from enn_trainer.session import TrainResult
from enn_trainer.state import State, init_train_state
from enn_trainer.state_manager import StateManager, load_checkpoint
from enn_trainer.trainer import Trainer, train
from rogue_net.relpos import RelposEncodingConfig
from rogue_net.rogue_net import RogueNet, RogueNetConfig
from rogue_net.translate import TranslationConfig
from rogue_net.value_bins import ValueBinsConfig

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
