"""`evaluate`: episodes of players, their metrics, and what captures make of them."""

import itertools
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias

import torch

from enn_trainer.base.policy import PPOAgent
from enn_trainer.config import TrainConfig
from enn_trainer.evaluation.eval_metrics import (
    EpisodeCounts,
    EpisodeStatistics,
    PlayedEpisode,
    with_interval,
)
from enn_trainer.experience.collector import Collector, Watcher, play
from enn_trainer.experience.episodes import Measured
from enn_trainer.experience.players import Players
from enn_trainer.experience.recording import Capture, recorders
from entity_env.arrays import BoolArray, IntArray
from entity_env.spaces import ObsSpace
from entity_env.vec.finite_metrics import never
from entity_env.vec.variation import Variation
from entity_env.vec.vec_env import VecEnv

Watch: TypeAlias = Callable[[str, float], None]
"""Callback before each step: name of the suite, and its finished share from 0 to 1."""
EXPLAINING = "explaining"
"""Name that `Watch` gets in place of a suite's, while the frames of a replay are explained."""

VIDEOS = "videos"
"""Name of the folder for videos in the folder of a run's metrics."""
REPLAYS = "replays"
"""Name of the folder for replays, likewise."""


class SuiteResult(NamedTuple):
    """Result of one suite.

    Attributes:
        metrics: metrics by name.
        episodes: number of whole episodes that count.
        missing: number of episodes that should count but did not end within `max_steps`, or before
            the evaluation was stopped.
        max_steps: the limit on the steps of each environment.
        limit: the setting that defines `max_steps`.
        film: the video file; None without one.
        film_problem: the reason why a requested video is missing; None without a problem.
        replay: `Replay` of the first episodes, if it was asked for without a page to write.
        page: the page with the first episodes; None without one.
        opponents: metrics by name against each member of a pool, by the name of the member.
        page_problem: the reason why a requested page is missing; None without a problem.
        played: the episodes that count, if they were asked for.
    """

    metrics: Mapping[str, Measured]
    episodes: int
    missing: int
    max_steps: int
    limit: str = "eval.max_steps"
    film: Path | None = None
    film_problem: str | None = None
    replay: Any = None
    page: Path | None = None
    page_problem: str | None = None
    opponents: Mapping[str, Mapping[str, Measured]] = {}
    played: Sequence[PlayedEpisode] = ()

    def in_words(self) -> str:
        """Return the result as one line of text."""
        words = [f"{name} {with_interval(m)}" for name, m in self.metrics.items() if m.count]
        if self.missing:
            words.append(
                f"WARNING: {self.missing} of {self.episodes + self.missing} episodes did not end "
                f"within max_steps={self.max_steps} and are left out, which favours short "
                f"episodes; raise {self.limit}"
            )
        if self.film_problem:
            words.append(f"WARNING: no video: {self.film_problem}")
        if self.page_problem:
            words.append(f"WARNING: no replay: {self.page_problem}")
        return "  ".join(words)


class EvaluationFacts(NamedTuple):
    """Facts of an evaluation that its captures show.

    Attributes:
        network: acts in the episodes; None if it is not known.
        title: of the episodes.
        about: facts by name.
        config: configuration of the run.
        watch: progress callback.
    """

    network: PPOAgent | None
    title: str
    about: dict[str, str]
    config: TrainConfig
    watch: Watch


class EpisodeCapture:
    """Product of the episodes of an evaluation, such as a video; here none.

    Attributes:
        processes: number of worker processes that the environments need to have; 0 for any.
    """

    processes: int = 0

    def of_suite(self, name: str) -> "EpisodeCapture":
        """Return the capture of a suite, with a file of its own."""
        return self

    def captured(self, envs: VecEnv, counted: BoolArray, stack: ExitStack) -> VecEnv:
        """Return the environments in a wrapper that captures them until the stack is closed.

        Args:
            envs: B environments.
            counted: (B,) bool, those in which episodes count.
            stack: completes a file.
        """
        return envs

    def watchers(
        self, envs: EpisodeStatistics, agent: IntArray, stack: ExitStack
    ) -> Sequence[Watcher]:
        """Return the watchers of the steps.

        Args:
            envs: the environments, before their first reset.
            agent: (n,) int64, those in which the agent acts.
            stack: completes a file.
        """
        return []

    def progress(self, share: float, is_done: bool) -> tuple[float, bool]:
        """Return the finished share of what is to be played, and True if it is done.

        Args:
            share: finished share of the episodes that count.
            is_done: True if all of these have ended.
        """
        return share, is_done

    def results(self, facts: EvaluationFacts) -> dict[str, Any]:
        """Return fields of `SuiteResult`, after the episodes and before the environments close."""
        return {}


class EpisodeRecording(EpisodeCapture):
    """Recording of the episodes of the unnamed suite.

    Args:
        capture: settings of the recording.
        run: name of the run.
    """

    def __init__(self, capture: Capture, run: str) -> None:
        self._capture, self._run = capture, run

    def of_suite(self, name: str) -> EpisodeCapture:
        """Return the recording for the unnamed suite alone."""
        return EpisodeCapture() if name else self

    def watchers(
        self, envs: EpisodeStatistics, agent: IntArray, stack: ExitStack
    ) -> Sequence[Watcher]:
        """Return the watcher that records."""
        return recorders(self._capture, envs, self._run, stack, envs.running)


@dataclass(frozen=True)
class EpisodePlan:
    """Episodes of an evaluation in B environments.

    Attributes:
        obs_space: the features that frames show.
        seed: seed of the episodes.
        steps: limit of the steps of each environment.
        quota: (B,) int64, the number of episodes of each that count; `NO_END` for all steps.
        agent: (n,) int64, environments in which the agent acts.
        first: number of the first environment among those of all ranks.
        run_step: number of frames of the run before, for recordings.
        device: device of the frames.
        result: metric by which the sides of a match are compared, as of `EpisodeStatistics`.
        variation: what arguments of episodes are drawn from; None if they do not vary.
        is_required: returns if a value of a metric that is not finite is an error, by its name.
        by_episode: True to keep each episode that counts, with its arguments.
    """

    obs_space: ObsSpace
    seed: int
    steps: int
    quota: IntArray
    agent: IntArray
    first: int = 0
    run_step: int = 0
    device: torch.device | str = "cpu"
    result: str | None = None
    variation: Variation | None = None
    is_required: Callable[[str], bool] = never
    by_episode: bool = False

    def statistics(self, envs: VecEnv) -> EpisodeStatistics:
        """Return the environments with the statistics of these episodes."""
        statistics = EpisodeStatistics(envs, self.quota, self.result)
        statistics.finite.is_required = self.is_required
        statistics.finite.first_env_index = self.first
        statistics.running.variation = self.variation
        statistics.counts.played = [] if self.by_episode else None
        return statistics


def evaluate(
    players: Players,
    envs: VecEnv,
    episodes: EpisodePlan,
    captures: Sequence[EpisodeCapture] = (),
    stop: Callable[[], bool] = lambda: False,
    watch: Callable[[float], None] = lambda share: None,
) -> EpisodeCounts:
    """Play episodes until those that count have ended, or for the planned steps.

    Args:
        players: act in all environments.
        envs: B environments, which are not closed.
        episodes: the episodes that count, and limits.
        captures: what else is made of the episodes.
        stop: called before each step; True ends the evaluation early.
        watch: called before each step with the finished share, from 0 to 1.

    Returns:
        Metrics of the episodes that count.
    """
    with ExitStack() as stack:
        # Wrap the environments.
        for capture in captures:
            envs = capture.captured(envs, episodes.quota > 0, stack)
        statistics = episodes.statistics(envs)
        watchers = [
            watcher
            for capture in captures
            for watcher in capture.watchers(statistics, episodes.agent, stack)
        ]

        # Play until the steps are taken or the episodes have ended.
        steps = itertools.count()

        def is_over() -> bool:
            share, is_done = statistics.counts.progress()
            for capture in captures:
                share, is_done = capture.progress(share, is_done)
            watch(max(share, next(steps) / episodes.steps))
            return stop() or is_done

        play(
            Collector(statistics, players, episodes.device, watchers),
            episodes.obs_space,
            episodes.steps,
            episodes.seed,
            run_step=episodes.run_step,
            stop=is_over,
        )
    return statistics.counts


def scalars_of(suites: Mapping[str, SuiteResult]) -> dict[str, float]:
    """Return scalars by tag: `eval/<suite>/<metric>.mean`, `.ci95`, `.min`, `.max`, `.count`.

    The unnamed suite is left out of the name. A metric that counted nothing has only its count.
    """
    scalars: dict[str, float] = {}
    for suite, result in suites.items():
        for name, m in result.metrics.items():
            tag = f"eval/{suite}/{name}" if suite else f"eval/{name}"
            if m.count:
                scalars |= {f"{tag}.mean": m.mean, f"{tag}.min": m.min, f"{tag}.max": m.max}
                if m.ci95 is not None:
                    scalars[f"{tag}.ci95"] = m.ci95
            scalars[f"{tag}.count"] = float(m.count)
    return scalars
