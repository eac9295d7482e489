"""Evaluation of an agent in separate environments, alone or against opponents."""

from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch import nn

from enn_trainer.agent import PPOAgent
from enn_trainer.capture import capture_of_evals, recorded
from enn_trainer.checkpoints.migrate.space_diff import label_orders
from enn_trainer.config import EvalConfig, TrainConfig
from enn_trainer.config.eval_config import all_suites, suite_path
from enn_trainer.envs import EnvFactory, global_randomness_kept
from enn_trainer.errors import ConfigError
from enn_trainer.evaluation.eval_envs import Trained, make_envs
from enn_trainer.evaluation.eval_film import VIDEOS, film_of_suite, require_writer
from enn_trainer.evaluation.eval_metrics import (
    NO_END,
    EpisodeStatistics,
    Measured,
    eval_scalars,
    in_words,
    quotas,
)
from enn_trainer.evaluation.opponents import CreateOpponent, RandomAgent
from enn_trainer.evaluation.play_episodes import Seats, play
from enn_trainer.evaluation.video import FilmedEnvs
from enn_trainer.lanes import ONE_LANE, Lanes
from enn_trainer.start_folder import absolute
from entity_env.seeding import derive_seed
from entity_env.vec.vec_env import VecEnv
from rogue_net.wiring import Wired

Opponents = Mapping[str, PPOAgent]
"""Opponents by the path in the configuration."""
Watch = Callable[[str, float], None]
"""Callback after each step: name of the suite, and its finished share from 0 to 1."""


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
    """

    metrics: Mapping[str, Measured]
    episodes: int
    missing: int
    max_steps: int
    limit: str = "eval.max_steps"
    film: Path | None = None
    film_problem: str | None = None

    def in_words(self) -> str:
        """Return the result as one line of text."""
        words = [in_words(self.metrics)]
        if self.missing:
            words.append(
                f"WARNING: {self.missing} of {self.episodes + self.missing} episodes did not end "
                f"within max_steps={self.max_steps} and are left out, which favours short "
                f"episodes; raise {self.limit}"
            )
        if self.film_problem:
            words.append(f"WARNING: no video: {self.film_problem}")
        return "  ".join(filter(None, words))


def evaluate(
    config: TrainConfig,
    create_envs: EnvFactory,
    state: Trained,
    opponents: Opponents,
    device: torch.device,
    stop: Callable[[], bool] = lambda: False,
    watch: Watch = lambda suite, share: None,
    film: Path | None = None,
    lanes: Lanes = ONE_LANE,
) -> dict[str, SuiteResult]:
    """Evaluate the agent in each suite, for `steps` steps or `episodes` whole episodes.

    With an opponent, the agent plays the environments with even indices and the opponent those with
    odd ones, and only the agent's environments count; with `eval.opponent_only` the opponent plays
    all of them. The result is a function of the configuration and the agents: the evaluation has
    its own environments and random draws, and changes neither the agents nor any random generator.
    With `eval.capture_samples` the frames of both sides are recorded.

    Args:
        config: configuration of the run, with `eval`.
        create_envs: factory of environments.
        state: the run, with the agent to evaluate.
        opponents: opponents from `create_opponents`.
        device: device of the agents.
        stop: called before each step; True ends the evaluation early, without the remaining suites.
        watch: progress callback.
        film: video file; by default, with `eval.capture_videos`, one in the run's folder. Named
            suites append their name. If pictures cannot be taken or written, the result has
            `film_problem` instead.
        lanes: lanes in which the forward passes are computed.

    Returns:
        The results by suite name, with "" for the unnamed one.

    Raises:
        ConfigError: the environments of a suite cannot be made or filmed, or their spaces differ
            from those of the run.
    """
    assert config.eval is not None
    if film is None and config.eval.capture_videos:
        folder = absolute(config.data_dir) / "runs" / state.run_name / VIDEOS
        film = folder / f"step-{state.step:012d}.mp4"
    results: dict[str, SuiteResult] = {}
    for name, suite in all_suites(config.eval, config.env):
        if stop():
            break
        opponent = None if suite.opponent is None else opponents[suite.opponent]
        played = _Suite(config, name, suite, state, opponent, lanes)
        with global_randomness_kept(), eval_mode(state.agent, opponent):
            path = None if film is None else film_of_suite(film, name)
            results[name] = played.result(create_envs, device, stop, watch, path)
    return results


class _Suite(NamedTuple):
    """Evaluation of one suite; `opponent` is None without one."""

    config: TrainConfig
    name: str
    settings: EvalConfig
    state: Trained
    opponent: PPOAgent | None
    lanes: Lanes

    def result(
        self,
        create_envs: EnvFactory,
        device: torch.device,
        stop: Callable[[], bool],
        watch: Watch,
        film: Path | None,
    ) -> SuiteResult:
        """Play the suite and return its metrics."""
        suite, state, filmed = self.settings, self.state, None
        with ExitStack() as stack:
            # Environments, with wrappers for the video, the metrics and the recording.
            processes = None if film is None else 1
            envs = make_envs(self.config, self.name, suite, create_envs, state, processes)
            stack.callback(envs.close)
            seats, counted = self._seats(envs)
            quota = np.where(counted, NO_END, 0)
            if suite.episodes is not None:
                quota = quotas(suite.episodes, counted)
            if film is not None:
                envs = filmed = stack.enter_context(FilmedEnvs(envs, film, quota > 0))
            envs = statistics = EpisodeStatistics(envs, quota)
            capture = None if self.name else capture_of_evals(self.config)
            envs = recorded(envs, capture, state.run_name, stack)

            # Play until the steps are taken or the episodes have ended.
            steps = suite.max_steps if suite.steps is None else suite.steps
            taken = -1

            def is_over() -> bool:
                nonlocal taken
                taken += 1
                ended = statistics.num_episodes() / suite.episodes if suite.episodes else 0
                watch(self.name, max(ended, taken / steps))
                return stop() or (suite.episodes is not None and statistics.is_done())

            seed = self.config.seed if suite.seed is None else suite.seed
            seed = derive_seed(seed, "eval")
            play(envs, seats, steps, seed, device, is_over, state.step, state.obs_space, self.lanes)
        problem = None if filmed is None else filmed.problem
        return SuiteResult(
            statistics.measured(),
            statistics.num_episodes(),
            statistics.num_missing(),
            steps,
            self._limit(),
            film=film if problem is None else None,
            film_problem=problem,
        )

    def _seats(self, envs: VecEnv) -> tuple[list[Seats], npt.NDArray[np.bool_]]:
        """Return the environments of each agent, and (num_envs,) bool, those that count."""
        agent, greedy = self._in_order(self.state.agent, envs), self.settings.deterministic
        everywhere, counted = np.arange(len(envs)), np.ones(len(envs), dtype=np.bool_)
        if self.opponent is None:
            return [Seats(agent, everywhere, greedy)], counted
        opponent = self._in_order(self.opponent, envs)
        others = greedy and not isinstance(self.opponent, RandomAgent)
        if self.settings.opponent_only:
            return [Seats(opponent, everywhere, others)], counted
        ours = Seats(agent, everywhere[::2], greedy)
        return [ours, Seats(opponent, everywhere[1::2], others)], everywhere % 2 == 0

    def _in_order(self, agent: PPOAgent, envs: VecEnv) -> PPOAgent:
        """Wrap an agent if the labels of a suite's actions are in another order than the run's."""
        known, actions = (self.state.obs_space, self.state.action_space), envs.action_space()
        if not label_orders(known[1], actions):
            return agent
        return Wired(agent, known[0], actions, *known)

    def _limit(self) -> str:
        """Return the setting that defines `max_steps`."""
        assert self.config.eval is not None
        suite = self.config.eval.suites.get(self.name)
        own = suite is not None and suite.max_steps is not None
        return f"eval.{suite_path(self.name)}.max_steps" if own else "eval.max_steps"


def scalars_of(suites: Mapping[str, SuiteResult]) -> dict[str, float]:
    """Return the scalars of an evaluation by tag, for tracking."""
    return eval_scalars({name: suite.metrics for name, suite in suites.items()})


def create_opponents(
    config: TrainConfig, create: CreateOpponent, state: Trained, device: torch.device
) -> dict[str, PPOAgent]:
    """Make the opponents of all suites, by path.

    Called before training starts, so that a mistake costs no time.

    Args:
        config: configuration of the run.
        create: factory of opponents.
        state: the run to evaluate.
        device: device of the opponents.
    """
    if config.eval is None:
        return {}
    paths = {suite.opponent for _, suite in all_suites(config.eval, config.env)} - {None}
    return {
        path: create(path, state.obs_space, state.action_space, device) for path in sorted(paths)
    }


def check_videos(config: TrainConfig, create_envs: EnvFactory, state: Trained) -> None:
    """Raise if `eval.capture_videos` cannot produce videos, before training starts.

    Raises:
        ConfigError: a package is missing, or a world does not render.
    """
    if config.eval is None or not config.eval.capture_videos:
        return
    require_writer(Path("video.mp4"), "eval.capture_videos")
    check_pictures(config, create_envs, state)


def check_pictures(config: TrainConfig, create_envs: EnvFactory, state: Trained) -> None:
    """Raise if the environments of an evaluation do not render their first frames.

    Raises:
        ConfigError: a world does not render.
    """
    assert config.eval is not None
    for name, suite in all_suites(config.eval, config.env):
        with global_randomness_kept(), ExitStack() as stack:
            envs = make_envs(config, name, suite, create_envs, state, processes=1)
            stack.callback(envs.close)
            filmed = FilmedEnvs(envs, None)
            filmed.seed(0)
            filmed.reset(state.obs_space)
            if filmed.problem is not None:
                raise ConfigError(filmed.problem)


@contextmanager
def eval_mode(*agents: object) -> Iterator[None]:
    """Put agents in eval mode, without dropout, and restore their mode afterwards."""
    modules = [agent for agent in agents if isinstance(agent, nn.Module)]
    before = [module.training for module in modules]
    try:
        for module in modules:
            module.eval()
        yield
    finally:
        for module, training in zip(modules, before, strict=True):
            module.train(training)
