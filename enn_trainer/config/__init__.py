"""Configuration of a run: dataclasses, loading, validation, help and upgrades."""

from enn_trainer.config.curriculum_config import CurriculumConfig, LessonConfig
from enn_trainer.config.eval_config import EnvConfig, EvalConfig, EvalEnvConfig, EvalSuiteConfig
from enn_trainer.config.ppo_config import (
    MagnetConfig,
    OptimizerConfig,
    ParamGroupConfig,
    PPOConfig,
)
from enn_trainer.config.rewrite_rules import (
    AddDefault,
    ChangeDefault,
    CheckValue,
    DeleteField,
    MapFieldValue,
    RejectValues,
    RenameField,
    RewriteRule,
)
from enn_trainer.config.selfplay_config import SelfplayConfig
from enn_trainer.config.train_config import (
    BCConfig,
    CheckpointConfig,
    CloneConfig,
    CloneRunConfig,
    RolloutConfig,
    ScaleConfig,
    TrainConfig,
)
from enn_trainer.config.versioned import Versioned
from rogue_net.config import RogueNetConfig

__all__ = [
    "BCConfig",
    "CheckpointConfig",
    "CloneConfig",
    "CloneRunConfig",
    "CurriculumConfig",
    "EnvConfig",
    "EvalConfig",
    "EvalEnvConfig",
    "EvalSuiteConfig",
    "LessonConfig",
    "MagnetConfig",
    "OptimizerConfig",
    "PPOConfig",
    "ParamGroupConfig",
    "RogueNetConfig",
    "RolloutConfig",
    "ScaleConfig",
    "SelfplayConfig",
    "TrainConfig",
    "Versioned",
    "RewriteRule",
    "AddDefault",
    "ChangeDefault",
    "CheckValue",
    "DeleteField",
    "MapFieldValue",
    "RejectValues",
    "RenameField",
]
