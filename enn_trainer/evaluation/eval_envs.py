"""Environments of an evaluation, checked to have the spaces of the run."""

from collections.abc import Mapping
from typing import Any, Protocol

from enn_trainer.checkpoints.migrate.space_diff import space_differences
from enn_trainer.config import EvalConfig, TrainConfig
from enn_trainer.config.eval_config import suite_path
from enn_trainer.envs import EnvFactory, in_section
from enn_trainer.errors import ConfigError
from entity_env.environment import Environment
from entity_env.match import Match
from entity_env.spaces import ActionSpace, ObsSpace
from entity_env.vec.vec_env import VecEnv


class Trained(Protocol):
    """Part of a run that an evaluation reads; implemented by `State` and `SavedRun`."""

    @property
    def agent(self) -> Any:
        """The agent to evaluate."""

    @property
    def obs_space(self) -> ObsSpace:
        """The observation space it was trained with."""

    @property
    def action_space(self) -> Mapping[str, ActionSpace]:
        """The action space it was trained with."""

    @property
    def step(self) -> int:
        """Number of frames it was trained on."""

    @property
    def run_name(self) -> str:
        """Name of the folder of the run's logs."""


def make_envs(
    config: TrainConfig,
    name: str,
    suite: EvalConfig,
    create_envs: EnvFactory,
    state: Trained,
    processes: int | None = None,
) -> VecEnv:
    """Make the environments of a suite.

    Args:
        config: configuration of the run.
        name: name of the suite.
        suite: its settings, from `all_suites`.
        create_envs: factory of environments.
        state: the run to evaluate.
        processes: number of processes; None for the configured number.

    Raises:
        ConfigError: the environments cannot be made, or their spaces differ from those of the run.
    """
    assert config.eval is not None
    assert suite.env is not None

    # Make the environments; problems name the setting that they come from.
    num_envs = suite.num_envs or config.rollout.num_envs
    where = f"eval.{suite_path(name)}." if name else "" if config.eval.env is None else "eval."
    processes = processes or suite.processes or min(config.rollout.processes, num_envs)
    try:
        envs = create_envs(suite.env, num_envs, processes, 0)
    except ConfigError as error:
        field, hint = _num_envs_field(config.eval, name)
        raise ConfigError(
            *(
                in_section(p, field, where) + (hint if p.startswith("num_envs: ") else "")
                for p in error.problems
            )
        ) from None

    # Check the spaces.
    different = differences(state, envs)
    if different:
        envs.close()
        raise ConfigError(
            f"{where or 'eval.'}env: expected the spaces of env; {'; '.join(different)}"
        )
    return envs


def _num_envs_field(evaluation: EvalConfig, name: str) -> tuple[str, str]:
    """Return the setting that defines the number of a suite's environments, and a hint."""
    own = evaluation.suites.get(name)
    if own is not None and own.num_envs is not None:
        return f"eval.{suite_path(name)}.num_envs", ""
    field = "eval.num_envs" if evaluation.num_envs is not None else "rollout.num_envs"
    if name:
        return field, f"; set eval.{suite_path(name)}.num_envs"
    return field, "" if evaluation.num_envs is not None else "; set eval.num_envs"


def differences(state: Trained, world: VecEnv | Environment | Match) -> list[str]:
    """Return the differences between the spaces of a run and of a world, as text."""
    return space_differences(
        state.obs_space, dict(state.action_space), world.obs_space(), world.action_space()
    )
