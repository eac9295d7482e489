"""`SuiteEnvs`: environments of evaluation suites."""

from collections.abc import Iterator
from contextlib import closing, contextmanager
from functools import partial

from enn_trainer.base.errors import ConfigError
from enn_trainer.base.group import ALONE, Group
from enn_trainer.config import EvalConfig, TrainConfig
from enn_trainer.config.eval_config import origin_of, suite_path
from enn_trainer.evaluation.members import Trained
from enn_trainer.experience.envs import (
    EnvFactory,
    WorkerOptions,
    check_whole_matches,
    in_section,
    make_whole_matches,
    sides_of,
    worker_options,
)
from enn_trainer.experience.varied_envs import vary
from enn_trainer.runtime.shards import Shards
from entity_env.environment import Environment
from entity_env.match import Match
from entity_env.spaces import Spaces
from entity_env.vec.vec_env import VecEnv
from rogue_net.space_diff import diff_spaces


class SuiteEnvs:
    """Factory of the environments of suites.

    Args:
        create_envs: factory of environments.
    """

    def __init__(self, create_envs: EnvFactory) -> None:
        self._create_envs = create_envs
        self._sides: dict[str, int] = {}

    @contextmanager
    def open(
        self,
        config: TrainConfig,
        run: Trained,
        name: str,
        suite: EvalConfig,
        processes: int,
        num_members: int = 0,
        group: Group = ALONE,
    ) -> Iterator[tuple[VecEnv | None, Shards]]:
        """Context manager that creates the environments of a suite and their shards.

        Args:
            config: configuration of the run.
            run: training state or checkpoint, for the spaces.
            name: name of the suite.
            suite: settings of the suite, from `all_suites`.
            processes: number of worker processes; 0 for the configured number.
            num_members: number of pool members to play against.
            group: ranks that share the environments; a rank without shards gets None.

        Raises:
            ConfigError: the environments cannot be created, or their spaces differ from the run's.
        """
        assert config.eval is not None
        assert suite.env is not None

        # Create the environments; error messages name the responsible setting.
        num_envs = suite.num_envs or config.rollout.num_envs
        prefix = f"eval.{suite_path(name)}." if name else "" if config.eval.env is None else "eval."
        processes = processes or suite.processes or min(config.rollout.processes, num_envs)
        try:
            with worker_options(WorkerOptions(config.rollout.recover)):
                make = partial(self._create_envs, suite.env)

                def envs_and_sides(num_envs: int) -> tuple[VecEnv | None, int]:
                    if group.size == 1:
                        envs = make(num_envs, processes, 0)
                        return envs, envs.sides
                    sides = self._sides_of(suite, num_envs)
                    check_whole_matches(num_envs, sides)
                    return None, sides

                is_chosen = suite.num_envs is not None
                made, num_envs = make_whole_matches(envs_and_sides, num_envs, is_chosen)
                envs, sides = made
                # Play equally many matches against each member and in each seat.
                round_size = num_members * sides**2
                if round_size and num_envs % round_size:
                    num_envs = max(round_size, num_envs - num_envs % round_size)
                    if envs is not None:
                        envs.close()
                        envs = make(num_envs, processes, 0)
                num_envs = num_envs if envs is None else len(envs)
                count = min(config.scale.shards or 1, num_envs // sides)
                shards = Shards.of(num_envs, sides, count).for_rank(group.rank, group.size)
                if envs is None and shards.local:
                    rank_envs = len(shards.columns)
                    envs = make(rank_envs, min(processes, rank_envs), shards.columns.start)
        except ConfigError as error:
            suite_field = f"eval.{suite_path(name)}.num_envs" if name else "eval.num_envs"
            field = origin_of(config.eval, name, "num_envs")
            hint = "" if field == suite_field else f"; set {suite_field}"
            problems = [
                in_section(p, field, prefix) + (hint if p.startswith("num_envs: ") else "")
                for p in error.problems
            ]
            raise ConfigError(*problems) from None

        # Check the spaces.
        if envs is None:
            yield None, shards
            return
        with closing(envs):
            if len(envs) != len(shards.columns):
                expected = f"{len(shards.columns)} environments of a rank"
                raise ConfigError(f"{prefix or 'eval.'}env: expected {expected}, got {len(envs)}")
            if mismatches := space_differences(run, envs):
                raise ConfigError(
                    f"{prefix or 'eval.'}env: expected the spaces of env; {'; '.join(mismatches)}"
                )
            if suite.env.vary:
                vary(envs, suite.env.vary, f"{prefix}env.vary")
            yield envs, shards

    def _sides_of(self, suite: EvalConfig, num_envs: int) -> int:
        """Return the number of sides of a match; cached."""
        assert suite.env is not None
        key = repr((suite.env, num_envs))
        if key not in self._sides:
            self._sides[key] = sides_of(partial(self._create_envs, suite.env), num_envs)
        return self._sides[key]


def space_differences(state: Trained, env: VecEnv | Environment | Match) -> list[str]:
    """Return the differences between the spaces of a run and of an environment, as text."""
    return diff_spaces(state.spaces, Spaces.of(env)).changed
