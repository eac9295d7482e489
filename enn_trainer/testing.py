"""Assertions for tests of your own environments and agents."""

from enn_trainer.experience.envs import EnvFactory
from enn_trainer.session import TrainResult
from enn_trainer.state_manager import StateManager
from enn_trainer.stop_conditions import AtLeast
from enn_trainer.trainer import Trainer
from entity_env.environment import Environment
from entity_env.match import Match


def assert_learns(
    state_manager: StateManager,
    env: type[Environment] | type[Match] | EnvFactory,
    key: str,
    bound: float,
) -> TrainResult:
    """Train until a metric reaches a bound, and raise if it does not.

    Example:
        >>> def test_orchard_can_be_learnt(tmp_path):
        ...     settings = ["total_timesteps=50000", f"data_dir={tmp_path}"]
        ...     manager = StateManager(overrides=settings)
        ...     assert_learns(manager, Orchard, "episodic_reward.mean", 2.2)

    Args:
        state_manager: state manager; `total_timesteps` of its configuration limits the training.
        env: the environment.
        key: tag of the metric, such as `eval/episodic_reward.mean`.
        bound: value that the metric has to reach.

    Raises:
        AssertionError: the bound was not reached; the message has the last value.
    """
    goal = AtLeast(key, bound)
    with Trainer(state_manager, env) as trainer:
        result = trainer.run(goal)
        reached = trainer.metrics.get(key)
    if reached is None or not goal.holds(reached):
        raise AssertionError(
            f"expected {goal} within {result.step} frames, got {reached} at the end"
        )
    return result
