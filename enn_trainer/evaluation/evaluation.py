"""`evaluate`: play episodes, measure them, and produce videos, replays and recordings."""

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
    SCORE,
    EpisodeCounts,
    EpisodeResult,
    EpisodeStatistics,
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
"""Suite name passed to `Watch` while the frames of a replay are explained."""

VIDEOS = "videos"
"""Name of the videos folder in a run's folder."""
REPLAYS = "replays"
"""Name of the replays folder in a run's folder."""


class SuiteResult(NamedTuple):
    """Result of one suite.

    Attributes:
        metrics: metrics by name.
        episodes: number of counted, complete episodes.
        missing: number of episodes that did not end within `max_steps` or before an early stop.
        max_steps: maximal number of steps per environment.
        limit: name of the setting that defines `max_steps`.
        video: video file, or None.
        video_problem: error message of a requested video that could not be made, or None.
        replay: `Replay` of the first episodes, if requested without a file.
        page: replay page of the first episodes, or None.
        page_problem: error message of a requested page that could not be made, or None.
        opponents: metrics by name against each pool member, by member name.
        played: counted episodes, if requested.
    """

    metrics: Mapping[str, Measured]
    episodes: int
    missing: int
    max_steps: int
    limit: str = "eval.max_steps"
    video: Path | None = None
    video_problem: str | None = None
    replay: Any = None
    page: Path | None = None
    page_problem: str | None = None
    opponents: Mapping[str, Mapping[str, Measured]] = {}
    played: Sequence[EpisodeResult] = ()

    def in_words(self) -> str:
        """Format the result as one line of text."""
        metrics = main_metrics(self.metrics)
        words = [f"{name} {with_interval(m)}" for name, m in metrics.items() if m.count]
        if self.missing:
            words.append(
                f"WARNING: {self.missing} of {self.episodes + self.missing} episodes did not end "
                f"within max_steps={self.max_steps} and are left out, which favours short "
                f"episodes; raise {self.limit}"
            )
        if self.video_problem:
            words.append(f"WARNING: no video: {self.video_problem}")
        if self.page_problem:
            words.append(f"WARNING: no replay: {self.page_problem}")
        return "  ".join(words)


def main_metrics(metrics: Mapping[str, Measured]) -> dict[str, Measured]:
    """Return the metrics for people: scores and the return first, no steps and entity counts."""
    names = [name for name in metrics if name != "step" and not name.startswith("entity_count")]
    names.sort(key=lambda name: (not name.startswith(SCORE), name != "episodic_reward"))
    return {name: metrics[name] for name in names}


class EvaluationFacts(NamedTuple):
    """Properties of an evaluation that videos and replays display.

    Attributes:
        network: policy that acts in the episodes; None if unknown.
        title: title of a replay page.
        about: details by name.
        config: configuration of the run.
        watch: progress callback.
    """

    network: PPOAgent | None
    title: str
    about: dict[str, str]
    config: TrainConfig
    watch: Watch


class EpisodeCapture:
    """Base class of an evaluation's outputs, such as a video; captures nothing.

    Attributes:
        processes: required number of worker processes; 0 for any.
    """

    processes: int = 0

    def for_suite(self, name: str) -> "EpisodeCapture":
        """Return the capture of one suite, with its own file."""
        return self

    def wrap(self, envs: VecEnv, counted: BoolArray, stack: ExitStack) -> VecEnv:
        """Wrap environments to capture them until the stack is closed.

        Args:
            envs: B environments.
            counted: (B,) bool, True for counted environments.
            stack: exit stack that completes the file.
        """
        return envs

    def watchers(
        self, envs: EpisodeStatistics, agent: IntArray, stack: ExitStack
    ) -> Sequence[Watcher]:
        """Create watchers of the steps.

        Args:
            envs: environments before their first reset.
            agent: (n,) int64, environments in which the agent acts.
            stack: exit stack that completes the file.
        """
        return []

    def progress(self, share: float, is_done: bool) -> tuple[float, bool]:
        """Return the finished share of the capture, and True if it is complete.

        Args:
            share: finished share of the counted episodes.
            is_done: True if all counted episodes have ended.
        """
        return share, is_done

    def results(self, facts: EvaluationFacts) -> dict[str, Any]:
        """Return fields of `SuiteResult`; called after the episodes, with open environments."""
        return {}


class EpisodeRecording(EpisodeCapture):
    """Recording of the unnamed suite's episodes.

    Args:
        capture: recording settings.
        run: name of the run.
    """

    def __init__(self, capture: Capture, run: str) -> None:
        self._capture, self._run = capture, run

    def for_suite(self, name: str) -> EpisodeCapture:
        """Return the recording for the unnamed suite, and an empty capture for named ones."""
        return EpisodeCapture() if name else self

    def watchers(
        self, envs: EpisodeStatistics, agent: IntArray, stack: ExitStack
    ) -> Sequence[Watcher]:
        """Create the recorder."""
        return recorders(self._capture, envs, self._run, stack, envs.running)


@dataclass(frozen=True)
class EpisodePlan:
    """Episodes to play in B environments.

    Attributes:
        obs_space: observation space of the frames.
        seed: random seed.
        steps: maximal number of steps per environment.
        quota: (B,) int64, number of counted episodes per environment; `NO_END` for all steps.
        agent: (n,) int64, environments in which the agent acts.
        first: global index of the first environment, over all ranks.
        run_step: number of earlier frames of the run, for recordings.
        device: device of the frames.
        result: metric that compares the sides of a match, see `EpisodeStatistics`.
        variation: distributions of the episodes' arguments; None if they do not vary.
        is_required: predicate on metric names: True if values that are not finite are errors.
        by_episode: True to store the result of each counted episode.
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
        """Wrap environments to measure these episodes."""
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
    """Play episodes until all counted ones have ended, or for the planned steps.

    Args:
        players: choose the actions in all environments.
        envs: B environments; not closed.
        episodes: episodes that count, and limits.
        captures: further outputs, such as videos.
        stop: called before each step; True ends the evaluation early.
        watch: called before each step with the finished share, from 0 to 1.

    Returns:
        Metrics of the counted episodes.
    """
    with ExitStack() as stack:
        # Wrap the environments.
        for capture in captures:
            envs = capture.wrap(envs, episodes.quota > 0, stack)
        statistics = episodes.statistics(envs)
        watchers = [
            watcher
            for capture in captures
            for watcher in capture.watchers(statistics, episodes.agent, stack)
        ]

        # Play until the episodes have ended or the step limit is reached.
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

    Tags of the unnamed suite have no suite name. A metric without values has only `.count`.
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
