"""The environments of evaluations, which are of the world of the run."""

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
from entity_env.vec_env import VecEnv


class Trained(Protocol):
    """What of a run is evaluated; a `State` is one."""

    @property
    def agent(self) -> Any:
        """Who is measured."""

    @property
    def obs_space(self) -> ObsSpace:
        """What it sees."""

    @property
    def action_space(self) -> Mapping[str, ActionSpace]:
        """What it does."""

    @property
    def step(self) -> int:
        """How many frames it was trained for."""

    @property
    def run_name(self) -> str:
        """The folder of the run's logs."""


def make_envs(
    config: TrainConfig,
    name: str,
    suite: EvalConfig,
    create_envs: EnvFactory,
    state: Trained,
    processes: int | None = None,
) -> VecEnv:
    """The environments of a suite.

    Args:
        config: of the run.
        name: of the suite.
        suite: one of `all_suites`.
        create_envs: makes environments.
        state: what of a run is evaluated.
        processes: how many; as configured if None.

    Raises:
        ConfigError: they cannot be made, or are another world than that of the run.
    """
    assert config.eval is not None
    assert suite.env is not None
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
    different = differences(state, envs)
    if different:
        envs.close()
        raise ConfigError(
            f"{where or 'eval.'}env: expected the world of env; {'; '.join(different)}"
        )
    return envs


def _num_envs_field(evaluation: EvalConfig, name: str) -> tuple[str, str]:
    """Return the setting that the number of a suite's environments is from, and what to set."""
    own = evaluation.suites.get(name)
    if own is not None and own.num_envs is not None:
        return f"eval.{suite_path(name)}.num_envs", ""
    field = "eval.num_envs" if evaluation.num_envs is not None else "rollout.num_envs"
    if name:
        return field, f"; set eval.{suite_path(name)}.num_envs"
    return field, "" if evaluation.num_envs is not None else "; set eval.num_envs"


def differences(state: Trained, world: VecEnv | Environment | Match) -> list[str]:
    """How a world differs from that of a run, in words, one difference each."""
    return space_differences(
        state.obs_space, dict(state.action_space), world.obs_space(), world.action_space()
    )
