"""`Curriculum`: callback that varies environment arguments by samplers and curriculum stages."""

import json
from collections.abc import Mapping

from enn_trainer.base.errors import ConfigError
from enn_trainer.callbacks.callback import Callback, RolloutCallback, RunningTrainer
from enn_trainer.checkpoints.state import State
from enn_trainer.checkpoints.state_manager import StateManager
from enn_trainer.config.curriculum_config import curriculum_path
from enn_trainer.curriculum.lessons import CURRICULUM, Groups, Lessons
from enn_trainer.curriculum.rounds import RunRounds
from enn_trainer.evaluation.run_evaluator import RunEvaluator
from enn_trainer.experience.collector import Rollout
from enn_trainer.experience.episodes import NO_EPISODES
from enn_trainer.experience.varied_envs import (
    Arguments,
    VariedEnvs,
    named_as,
    parameter_scalars,
)
from enn_trainer.run.running_episodes import RunningEpisodes
from entity_env.vec.variation import Variation
from entity_env.vec.vec_env import VecEnv


class Curriculum(Callback):
    """Varies environment arguments, advances curriculum stages, and adds metrics of both.

    Args:
        manager: state manager of the run, whose state has the part `Lessons`.
        envs: environments of the run, before their first episodes.
        episodes: unfinished episodes, which a new stage may cut off.
        evaluator: evaluator of the run.
        rounds: rounds of episodes of the run, updated before this callback.
        num_envs: number of environments of the run.

    Raises:
        ConfigError: the environments do not take an argument or cannot vary it, or the current
            stage no longer exists.
    """

    def __init__(
        self,
        manager: StateManager,
        envs: VariedEnvs,
        episodes: RunningEpisodes,
        evaluator: RunEvaluator,
        rounds: RunRounds,
        num_envs: int,
    ) -> None:
        state, config = manager.state, manager.config
        part = state.part(Lessons)
        assert part is not None  # every state has it
        self._manager, self._config, self._lessons = manager, config, part
        self._envs, self._episodes, self._evaluator = envs, episodes, evaluator
        self._rounds, self._num_envs = rounds, num_envs
        self._all = {name: one.all_lessons() for name, one in config.curricula.items()}
        self._ended: list[Arguments] = []
        self._rollout_episodes = NO_EPISODES
        self._variation = Variation()
        for message in part.arrange(config.curricula, state.step):
            manager.say(message)
        for setter, arguments in self._setters().items():
            for name in sorted({*part.parameters} & arguments):
                del part.parameters[name]
                manager.say(f"set_parameters: {name} is forgotten, as {setter} sets it now")
        for name, text in part.parameters.items():
            if config.env.vary.get(name, text) != text:
                manager.say(f"env.vary.{name}: not used, as set_parameters replaced it by {text!r}")
        if config.env.vary or part.parameters or config.curricula:
            check_varied(envs, part.groups(config, self._all))
            self._vary("curricula")

    def set_parameters(self, samplers: Mapping[str, str]) -> None:
        """Draw arguments of new episodes from other samplers.

        Raises:
            ConfigError: a text cannot be read, the environments do not take an argument, or
                `env.kwargs` or a curriculum sets it.
        """
        for setter, arguments in self._setters().items():
            if both := sorted({*samplers} & arguments):
                expected = f"arguments that {setter} does not set"
                raise ConfigError(f"set_parameters: expected {expected}, got {', '.join(both)}")
        before = self._lessons.parameters
        self._lessons.parameters = {**before, **samplers}
        try:
            self._vary("set_parameters")
        except BaseException:
            self._lessons.parameters = before
            raise

    def on_update_start(self, trainer: RunningTrainer) -> None:
        """Discard the episodes of a failed update."""
        self._ended, self._rollout_episodes = [], NO_EPISODES

    def on_rollout_end(self, trainer: RunningTrainer, rollout: Rollout) -> None:
        """Store the completed episodes, which are counted after the update has succeeded."""
        ended: list[Arguments] = [dict(arguments) for arguments in self._envs.pop_ended()]
        if self._variation.groups:
            ended = self._manager.group.gather_shards(ended, "collecting")
        self._ended, self._rollout_episodes = ended, rollout.episodes

    def on_update_end(self, trainer: RunningTrainer, metrics: dict[str, float]) -> None:
        """Count the episodes, add metrics, and advance curriculum stages."""
        metrics |= parameter_scalars(self._ended, self._variation)
        step = trainer.state.step
        for name, lessons in self._all.items():
            progress = self._lessons.curricula[name]
            i = progress.index(lessons)
            progress.count(name, lessons[i], self._rollout_episodes, self._num_envs)
            progress.note(name, lessons[i], self._over_rounds(metrics))
            tag = f"{CURRICULUM}/{name}"
            metrics |= {f"{tag}/lesson": float(i), f"{tag}/episodes": float(progress.episodes)}
            first = next(iter(lessons[i].metrics()), None)
            if first is not None and (value := progress.measure(first, step)) is not None:
                metrics[f"{tag}/measure"] = value
        self._decide_by(None, self._over_rounds(metrics), step)  # with the tags of all curricula
        # Apply evaluations that were pending at the end of the previous run.
        waiting = self._lessons.waiting
        self._lessons.waiting = [one for one in waiting if one[0] > step]
        for counts_at, measured, results in waiting:
            if counts_at <= step:
                self._decide_by(measured, results, step)

    def on_eval_end(self, trainer: RunningTrainer, metrics: dict[str, float]) -> None:
        """Advance curriculum stages by an evaluation.

        An extra evaluation at the end of the run does not count. A result that is due at a later
        step counts if the run is extended.
        """
        evaluator, step = self._evaluator, trainer.state.step
        counts_at, measured = evaluator.counts_at, evaluator.evaluated_step
        if evaluator.is_extra or not self._all:
            return
        if counts_at is not None and measured is not None and counts_at > step:
            results = {tag: float(value) for tag, value in metrics.items()}
            self._lessons.waiting.append([counts_at, measured, results])
        else:
            self._decide_by(measured, metrics, step)

    def _over_rounds(self, metrics: Mapping[str, float]) -> dict[str, float]:
        """Return the metrics of an update, with episode metrics over the completed rounds."""
        return self._rounds.over_rounds(metrics, self._rounds.fresh)

    def _decide_by(self, measured: int | None, metrics: Mapping[str, float], step: int) -> None:
        """Advance curriculum stages by metrics.

        Args:
            measured: step of the evaluated weights; None for metrics of an update.
            metrics: metrics by tag.
            step: step of the run.
        """
        for name, lessons in self._all.items():
            progress = self._lessons.curricula[name]
            if measured is None or measured >= progress.step:
                progress.note(name, lessons[progress.index(lessons)], metrics)
        self._decide(step)

    def _decide(self, step: int) -> None:
        """Start the next stage of each curriculum whose bounds are met."""
        has_changed = restarts = False
        for name, lessons in self._all.items():
            progress = self._lessons.curricula[name]
            decided = progress.decision(lessons, step)
            if decided is None:
                continue
            lesson, why = decided
            text = f"lesson {lesson.name} begins after {progress.lesson}, as {why}"
            self._manager.say(f"curriculum {name}: {text}")
            progress.begin(lesson, step, why)
            has_changed = True
            restarts = restarts or self._config.curricula[name].restart
        if has_changed:
            self._vary("curricula")
        if restarts:
            # Truncated episodes: the values of their last frames were bootstrapped.
            self._episodes.are_valid = False

    def _setters(self) -> dict[str, set[str]]:
        """Return the arguments that `set_parameters` cannot change, by setting."""
        lessons = {curriculum_path(name): {*one[0].samplers} for name, one in self._all.items()}
        return {"env.kwargs": {*json.loads(self._config.env.kwargs)}, **lessons}

    def _vary(self, field: str) -> None:
        """Pass the current samplers to the environments.

        Raises:
            ConfigError: the environments cannot vary an argument.
        """
        numbers = {name: self._lessons.curricula[name].number for name in self._all}
        with named_as(field):
            variation = Variation([*self._lessons.groups(self._config, self._all).values()])
            self._envs.vary(variation, numbers)
        self._variation = variation


def check_varied(envs: VecEnv, groups: Groups) -> None:
    """Raise if environments do not take the arguments of samplers.

    Args:
        envs: environments without varied arguments so far.
        groups: samplers by setting.

    Raises:
        ConfigError: an argument is not supported; the message names the setting.
    """
    for field, group in groups.items():
        with named_as(field):
            envs.vary(Variation((group,)))


class RoundCounter(RolloutCallback):
    """Counts rounds of episodes after each update, before other callbacks read them.

    Args:
        state: state of the run, which has the part `RunRounds`.
        num_envs: number of environments of the run.

    Attributes:
        rounds: the part `RunRounds`.
    """

    def __init__(self, state: State, num_envs: int) -> None:
        part = state.part(RunRounds)
        assert part is not None  # every state has it
        self.rounds, self._num_envs = part, num_envs
        if state.step and not len(part.rounds.ended):  # of a checkpoint without rounds
            part.rounds.first = -1

    def on_update_end(self, trainer: RunningTrainer, metrics: dict[str, float]) -> None:
        """Count the episodes of the rollout."""
        rollout = self.take_rollout()
        self.rounds.add(rollout.episodes, rollout.metrics, self._num_envs, rollout.num_frames)
