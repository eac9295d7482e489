"""`Curriculum`: the arguments of the episodes of a run, and what becomes of them."""

from collections.abc import Mapping

from enn_trainer.callbacks.callback import Callback, RunningTrainer
from enn_trainer.config import TrainConfig
from enn_trainer.errors import ConfigError
from enn_trainer.experience.collector import Rollout
from enn_trainer.experience.lessons import CURRICULUM, Lessons
from enn_trainer.experience.varied_envs import Arguments, VariedEnvs, parameter_scalars, vary
from enn_trainer.state import State
from entity_env.vec.variation import Variation


class Curriculum(Callback):
    """Lets the arguments of environments vary, and adds metrics of those that were drawn.

    Args:
        config: configuration of the run.
        state: state of the run, with the part `Lessons`.
        envs: environments of the run, before their first episodes.

    Raises:
        ConfigError: the environments do not take an argument, or none of them can vary.
    """

    def __init__(self, config: TrainConfig, state: State, envs: VariedEnvs) -> None:
        part = state.parts.setdefault(CURRICULUM, Lessons())
        if not isinstance(part, Lessons):
            raise ConfigError(f"State.parts: expected {CURRICULUM!r} to be Lessons, got {part!r}")
        self._config, self._lessons, self._envs = config, part, envs
        self._ended: list[Arguments] = []
        self._variation = Variation()
        if config.env.vary or part.parameters:
            self._vary("env.vary")

    def set_parameters(self, samplers: Mapping[str, str]) -> None:
        """Draw arguments from other samplers in the episodes that begin from now on.

        Raises:
            ConfigError: a text cannot be read, or the environments do not take an argument.
        """
        before = self._lessons.parameters
        self._lessons.parameters = {**before, **samplers}
        try:
            self._vary("set_parameters")
        except BaseException:
            self._lessons.parameters = before
            raise

    def on_update_start(self, trainer: RunningTrainer) -> None:
        """Forget the episodes of an update that failed."""
        self._ended = []

    def on_rollout_end(self, trainer: RunningTrainer, rollout: Rollout) -> None:
        """Take the episodes that ended."""
        self._ended = self._envs.take_ended()

    def on_update_end(self, trainer: RunningTrainer, metrics: dict[str, float]) -> None:
        """Add metrics of the arguments of the episodes that ended."""
        metrics |= parameter_scalars(self._ended, self._variation)

    def _vary(self, field: str) -> None:
        """Let the environments draw from what holds now.

        Raises:
            ConfigError: they cannot.
        """
        self._variation = vary(self._envs, self._lessons.samplers(self._config.env), field)
