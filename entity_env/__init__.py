"""The world's side: spaces, observations, actions and vectorised environments. No torch."""

from typing import TYPE_CHECKING

from entity_env import moved_modules
from entity_env.lazy_exports import export_lazily

if TYPE_CHECKING:
    from entity_env.actions import (
        Action,
        ActionMask,
        CategoricalAction,
        CategoricalActionMask,
        GlobalCategoricalAction,
        GlobalCategoricalActionMask,
        SelectEntityAction,
        SelectEntityActionMask,
    )
    from entity_env.check_env import check_env
    from entity_env.environment import Environment, Features, Observation
    from entity_env.errors import (
        EntityEnvError,
        InvalidAction,
        InvalidObservation,
        InvalidSpace,
        WorkerError,
    )
    from entity_env.match import Match
    from entity_env.plain_state import PlainState
    from entity_env.ragged import Ragged
    from entity_env.spaces import (
        ActionName,
        ActionSpace,
        CategoricalActionSpace,
        Entity,
        EntityID,
        EntityName,
        GlobalCategoricalActionSpace,
        ObsSpace,
        SelectEntityActionSpace,
    )
    from entity_env.vec.batching import action_index_to_actions, batch_obs
    from entity_env.vec.parallel import ParallelEnvList
    from entity_env.vec.serial import EnvList
    from entity_env.vec.validate import ValidatingEnv
    from entity_env.vec.vec_env import (
        AddMetricsWrapper,
        Metric,
        VecActionMask,
        VecCategoricalActionMask,
        VecEnv,
        VecObs,
        VecSelectEntityActionMask,
    )

moved_modules.install()
export_lazily(
    __name__,
    {
        "entity_env.actions": (
            "Action ActionMask CategoricalAction CategoricalActionMask GlobalCategoricalAction "
            "GlobalCategoricalActionMask SelectEntityAction SelectEntityActionMask"
        ),
        "entity_env.check_env": "check_env",
        "entity_env.environment": "Environment Features Observation",
        "entity_env.errors": (
            "EntityEnvError InvalidAction InvalidObservation InvalidSpace WorkerError"
        ),
        "entity_env.match": "Match",
        "entity_env.plain_state": "PlainState",
        "entity_env.ragged": "Ragged",
        "entity_env.spaces": (
            "ActionName ActionSpace CategoricalActionSpace Entity EntityID EntityName "
            "GlobalCategoricalActionSpace ObsSpace SelectEntityActionSpace"
        ),
        "entity_env.vec.batching": "action_index_to_actions batch_obs",
        "entity_env.vec.parallel": "ParallelEnvList",
        "entity_env.vec.serial": "EnvList",
        "entity_env.vec.validate": "ValidatingEnv",
        "entity_env.vec.vec_env": (
            "AddMetricsWrapper Metric VecActionMask VecCategoricalActionMask VecEnv VecObs "
            "VecSelectEntityActionMask"
        ),
    },
)

__all__ = [
    "Environment",
    "Match",
    "PlainState",
    # Observation
    "ObsSpace",
    "Entity",
    "Observation",
    "EntityName",
    "ActionName",
    "EntityID",
    "Features",
    # Action
    "Action",
    "ActionSpace",
    "ActionMask",
    "CategoricalActionSpace",
    "CategoricalAction",
    "CategoricalActionMask",
    "GlobalCategoricalActionSpace",
    "GlobalCategoricalAction",
    "GlobalCategoricalActionMask",
    "SelectEntityAction",
    "SelectEntityActionSpace",
    "SelectEntityActionMask",
    # VecEnv
    "VecEnv",
    "EnvList",
    "ParallelEnvList",
    "VecActionMask",
    "VecObs",
    "VecCategoricalActionMask",
    "VecSelectEntityActionMask",
    "Metric",
    "Ragged",
    "batch_obs",
    "action_index_to_actions",
    # Checks and wrappers
    "ValidatingEnv",
    "check_env",
    "AddMetricsWrapper",
    # Errors
    "EntityEnvError",
    "InvalidSpace",
    "InvalidObservation",
    "InvalidAction",
    "WorkerError",
]
