"""`RoundCounter`: counts the rounds of episodes of a run."""

from enn_trainer.callbacks.callback import Callback, RunningTrainer
from enn_trainer.experience.collector import Rollout
from enn_trainer.experience.rounds import RunRounds
from enn_trainer.state import State


class RoundCounter(Callback):
    """Counts the rounds of episodes after each update, before other callbacks read them.

    Args:
        state: state of the run, which has the part `RunRounds`.
        num_envs: number of environments of the run.

    Attributes:
        rounds: the part.
    """

    def __init__(self, state: State, num_envs: int) -> None:
        part = state.part(RunRounds)
        assert part is not None  # every state has it
        self.rounds, self._num_envs = part, num_envs
        if state.step and not len(part.rounds.ended):  # of a save without rounds
            part.rounds.first = -1
        self._rollout: Rollout | None = None

    def on_update_start(self, trainer: RunningTrainer) -> None:
        """Free the rollout of an update that failed."""
        self._rollout = None

    def on_rollout_end(self, trainer: RunningTrainer, rollout: Rollout) -> None:
        """Keep the rollout; its episodes count once the update has succeeded."""
        self._rollout = rollout

    def on_update_end(self, trainer: RunningTrainer, metrics: dict[str, float]) -> None:
        """Count the episodes of the rollout."""
        rollout, self._rollout = self._rollout, None
        assert rollout is not None
        self.rounds.add(rollout.episodes, rollout.metrics, self._num_envs, rollout.num_frames)
