"""Train transformer policies with PPO in environments made of typed entities."""

from typing import TYPE_CHECKING

from entity_env.imports import export_lazily
from entity_env.imports.extras import warn_about_published

if TYPE_CHECKING:
    from enn_trainer import stop_conditions as stop_conditions
    from enn_trainer.base.errors import AgentError as AgentError
    from enn_trainer.base.errors import CheckpointError as CheckpointError
    from enn_trainer.base.errors import ConfigError as ConfigError
    from enn_trainer.base.errors import EnnTrainerError as EnnTrainerError
    from enn_trainer.base.errors import NotFiniteError as NotFiniteError
    from enn_trainer.base.errors import RankError as RankError
    from enn_trainer.base.policy import PPOAgent as PPOAgent
    from enn_trainer.callbacks import Callback as Callback
    from enn_trainer.callbacks import RunningTrainer as RunningTrainer
    from enn_trainer.check_agent import check_agent as check_agent
    from enn_trainer.checkpoints.state import State as State
    from enn_trainer.checkpoints.state import init_train_state as init_train_state
    from enn_trainer.checkpoints.state_manager import StateManager as StateManager
    from enn_trainer.checkpoints.state_manager import load_checkpoint as load_checkpoint
    from enn_trainer.command import command as command
    from enn_trainer.config import BCConfig as BCConfig
    from enn_trainer.config import CheckpointConfig as CheckpointConfig
    from enn_trainer.config import CloneConfig as CloneConfig
    from enn_trainer.config import CloneRunConfig as CloneRunConfig
    from enn_trainer.config import EnvConfig as EnvConfig
    from enn_trainer.config import EvalConfig as EvalConfig
    from enn_trainer.config import EvalEnvConfig as EvalEnvConfig
    from enn_trainer.config import EvalSuiteConfig as EvalSuiteConfig
    from enn_trainer.config import MagnetConfig as MagnetConfig
    from enn_trainer.config import OptimizerConfig as OptimizerConfig
    from enn_trainer.config import ParamGroupConfig as ParamGroupConfig
    from enn_trainer.config import PPOConfig as PPOConfig
    from enn_trainer.config import RolloutConfig as RolloutConfig
    from enn_trainer.config import ScaleConfig as ScaleConfig
    from enn_trainer.config import SelfplayConfig as SelfplayConfig
    from enn_trainer.config import TrainConfig as TrainConfig
    from enn_trainer.evaluation.explain import Explanation as Explanation
    from enn_trainer.evaluation.load_agent import Act as Act
    from enn_trainer.evaluation.load_agent import RogueNetAgent as RogueNetAgent
    from enn_trainer.evaluation.load_agent import load_agent as load_agent
    from enn_trainer.experience.collector import Rollout as Rollout
    from enn_trainer.run.clone import CloneResult as CloneResult
    from enn_trainer.run.clone import clone as clone
    from enn_trainer.run.session import TrainResult as TrainResult
    from enn_trainer.run.tournament import exploit as exploit
    from enn_trainer.run.tournament import play_league as play_league
    from enn_trainer.run.trainer import Trainer as Trainer
    from enn_trainer.run.trainer import train as train
    from enn_trainer.runtime.versions import __version__ as __version__
    from enn_trainer.tuning.search import tune as tune
    from enn_trainer.viewer.played import replay as replay
    from rogue_net.config import RogueNetConfig as RogueNetConfig
    from rogue_net.config import ValueBinsConfig as ValueBinsConfig
    from rogue_net.relpos import RelposEncodingConfig as RelposEncodingConfig
    from rogue_net.relpos import TranslationConfig as TranslationConfig
    from rogue_net.rogue_net import RogueNet as RogueNet

export_lazily(
    __name__,
    {
        "enn_trainer": "stop_conditions",
        "enn_trainer.base.errors": (
            "AgentError CheckpointError ConfigError EnnTrainerError NotFiniteError RankError"
        ),
        "enn_trainer.base.policy": "PPOAgent",
        "enn_trainer.callbacks": "Callback RunningTrainer",
        "enn_trainer.check_agent": "check_agent",
        "enn_trainer.checkpoints.state": "State init_train_state",
        "enn_trainer.checkpoints.state_manager": "StateManager load_checkpoint",
        "enn_trainer.command": "command",
        "enn_trainer.config": (
            "BCConfig CheckpointConfig CloneConfig CloneRunConfig EnvConfig EvalConfig "
            "EvalEnvConfig EvalSuiteConfig MagnetConfig OptimizerConfig ParamGroupConfig "
            "PPOConfig RolloutConfig ScaleConfig SelfplayConfig TrainConfig"
        ),
        "enn_trainer.evaluation.explain": "Explanation",
        "enn_trainer.evaluation.load_agent": "Act RogueNetAgent load_agent",
        "enn_trainer.experience.collector": "Rollout",
        "enn_trainer.run.clone": "CloneResult clone",
        "enn_trainer.run.session": "TrainResult",
        "enn_trainer.run.tournament": "exploit play_league",
        "enn_trainer.run.trainer": "Trainer train",
        "enn_trainer.runtime.versions": "__version__",
        "enn_trainer.tuning.search": "tune",
        "enn_trainer.viewer.played": "replay",
        "rogue_net.config": "RogueNetConfig ValueBinsConfig",
        "rogue_net.relpos": "RelposEncodingConfig TranslationConfig",
        "rogue_net.rogue_net": "RogueNet",
    },
)
warn_about_published()
