"""Environments: spaces, observations, actions and vectorised environments. No torch."""

from typing import TYPE_CHECKING

from entity_env.imports import export_lazily, moved_modules

if TYPE_CHECKING:
    from entity_env.actions import Action as Action
    from entity_env.actions import ActionMask as ActionMask
    from entity_env.actions import CategoricalAction as CategoricalAction
    from entity_env.actions import CategoricalActionMask as CategoricalActionMask
    from entity_env.actions import ContinuousAction as ContinuousAction
    from entity_env.actions import ContinuousActionMask as ContinuousActionMask
    from entity_env.actions import GlobalCategoricalAction as GlobalCategoricalAction
    from entity_env.actions import GlobalCategoricalActionMask as GlobalCategoricalActionMask
    from entity_env.actions import GlobalContinuousAction as GlobalContinuousAction
    from entity_env.actions import GlobalContinuousActionMask as GlobalContinuousActionMask
    from entity_env.actions import SelectEntityAction as SelectEntityAction
    from entity_env.actions import SelectEntityActionMask as SelectEntityActionMask
    from entity_env.bot import Bot as Bot
    from entity_env.environment import Environment as Environment
    from entity_env.environment import Features as Features
    from entity_env.environment import Observation as Observation
    from entity_env.errors import EntityEnvError as EntityEnvError
    from entity_env.errors import InvalidAction as InvalidAction
    from entity_env.errors import InvalidObservation as InvalidObservation
    from entity_env.errors import InvalidSpace as InvalidSpace
    from entity_env.errors import WorkerError as WorkerError
    from entity_env.kinds import Flag as Flag
    from entity_env.kinds import Kind as Kind
    from entity_env.match import Match as Match
    from entity_env.plain_state import PlainState as PlainState
    from entity_env.ragged import Ragged as Ragged
    from entity_env.spaces import ActionName as ActionName
    from entity_env.spaces import ActionSpace as ActionSpace
    from entity_env.spaces import CategoricalActionSpace as CategoricalActionSpace
    from entity_env.spaces import ContinuousActionSpace as ContinuousActionSpace
    from entity_env.spaces import Entity as Entity
    from entity_env.spaces import EntityID as EntityID
    from entity_env.spaces import EntityName as EntityName
    from entity_env.spaces import GlobalCategoricalActionSpace as GlobalCategoricalActionSpace
    from entity_env.spaces import GlobalContinuousActionSpace as GlobalContinuousActionSpace
    from entity_env.spaces import ObsSpace as ObsSpace
    from entity_env.spaces import SelectEntityActionSpace as SelectEntityActionSpace
    from entity_env.testing.check_env import check_env as check_env
    from entity_env.vec.batching import action_index_to_actions as action_index_to_actions
    from entity_env.vec.batching import batch_obs as batch_obs
    from entity_env.vec.parallel import ParallelEnvList as ParallelEnvList
    from entity_env.vec.serial import EnvList as EnvList
    from entity_env.vec.validate import ValidatingEnv as ValidatingEnv
    from entity_env.vec.vec_env import AddMetricsWrapper as AddMetricsWrapper
    from entity_env.vec.vec_env import Metric as Metric
    from entity_env.vec.vec_env import VecActionMask as VecActionMask
    from entity_env.vec.vec_env import VecCategoricalActionMask as VecCategoricalActionMask
    from entity_env.vec.vec_env import VecContinuousActionMask as VecContinuousActionMask
    from entity_env.vec.vec_env import VecEnv as VecEnv
    from entity_env.vec.vec_env import VecObs as VecObs
    from entity_env.vec.vec_env import VecSelectEntityActionMask as VecSelectEntityActionMask
    from entity_env.view import EntityView as EntityView
    from entity_env.view import View as View

moved_modules.install()
export_lazily(
    __name__,
    {
        "entity_env.actions": (
            "Action ActionMask CategoricalAction CategoricalActionMask ContinuousAction "
            "ContinuousActionMask GlobalCategoricalAction GlobalCategoricalActionMask "
            "GlobalContinuousAction GlobalContinuousActionMask SelectEntityAction "
            "SelectEntityActionMask"
        ),
        "entity_env.bot": "Bot",
        "entity_env.environment": "Environment Features Observation",
        "entity_env.errors": (
            "EntityEnvError InvalidAction InvalidObservation InvalidSpace WorkerError"
        ),
        "entity_env.kinds": "Flag Kind",
        "entity_env.match": "Match",
        "entity_env.plain_state": "PlainState",
        "entity_env.ragged": "Ragged",
        "entity_env.spaces": (
            "ActionName ActionSpace CategoricalActionSpace ContinuousActionSpace Entity EntityID "
            "EntityName GlobalCategoricalActionSpace GlobalContinuousActionSpace ObsSpace "
            "SelectEntityActionSpace"
        ),
        "entity_env.testing.check_env": "check_env",
        "entity_env.vec.batching": "action_index_to_actions batch_obs",
        "entity_env.vec.parallel": "ParallelEnvList",
        "entity_env.vec.serial": "EnvList",
        "entity_env.vec.validate": "ValidatingEnv",
        "entity_env.vec.vec_env": (
            "AddMetricsWrapper Metric VecActionMask VecCategoricalActionMask "
            "VecContinuousActionMask VecEnv VecObs VecSelectEntityActionMask"
        ),
        "entity_env.view": "EntityView View",
    },
)
