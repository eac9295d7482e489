"""Measuring an agent in environments of its own, alone or against opponents."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import numpy as np
import torch
from torch import nn

from enn_trainer.agent import PPOAgent
from enn_trainer.capture import capture_of_evals, recorded
from enn_trainer.config import EvalConfig, TrainConfig
from enn_trainer.envs import EnvFactory, global_randomness_kept
from enn_trainer.errors import ConfigError
from enn_trainer.eval_config import all_suites, suite_path
from enn_trainer.eval_metrics import NO_END, EpisodeStatistics, Measured, in_words, quotas
from enn_trainer.opponents import CreateOpponent, RandomAgent, space_differences
from enn_trainer.play_episodes import Seats, play
from enn_trainer.video import FilmedEnvs, require_writer
from entity_env.seeding import derive_seed
from entity_env.spaces import ActionSpace, ObsSpace
from entity_env.vec_env import VecEnv

Opponents = Mapping[str, PPOAgent]
"""Those whom the suites name, by the path that the configuration has."""
Watch = Callable[[str, float], None]
"""Told after each step which suite is played and how much of it is done, from 0 to 1."""


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


class SuiteResult(NamedTuple):
    """What one suite showed.

    Attributes:
        metrics: by name.
        episodes: how many whole episodes count.
        missing: how many more should count, but were not over within `max_steps`, or before the
            evaluation was stopped.
        max_steps: that limit.
    """

    metrics: Mapping[str, Measured]
    episodes: int
    missing: int
    max_steps: int

    def in_words(self) -> str:
        """One line."""
        words = in_words(self.metrics)
        if not self.missing:
            return words
        return (
            f"{words}  WARNING: {self.missing} of {self.episodes + self.missing} episodes were not "
            f"over within max_steps={self.max_steps} and are left out: the rest are the shorter "
            f"ones; raise eval.max_steps"
        )


def evaluate(
    config: TrainConfig,
    create_envs: EnvFactory,
    state: Trained,
    opponents: Opponents,
    device: torch.device,
    stop: Callable[[], bool] = lambda: False,
    watch: Watch = lambda suite, share: None,
    film: Path | None = None,
) -> dict[str, SuiteResult]:
    """Play what `eval` asks for: `steps` steps or `episodes` whole episodes, in each suite.

    With an opponent, the agent plays where the index is even and the opponent where it is odd,
    and only the agent's environments count; with `eval.opponent_only` the opponent plays
    everywhere. The result is a function of the configuration and the agents: environments,
    episodes and choices are the evaluation's own, and neither the agents nor any generator of
    random numbers is changed. With `eval.capture_samples` the frames of both sides are recorded.

    Args:
        config: of the run, with `eval`.
        create_envs: makes the environments.
        state: of the run, with the agent to measure.
        opponents: what `create_opponents` returns.
        device: where they play.
        stop: asked before each step whether to end early; what was not begun is then left out.
        watch: told how far it is.
        film: a file for a video; by default, with `eval.capture_videos`, one in the run's folder.
            Suites with names add theirs to it.

    Returns:
        The results by the names of the suites, the unnamed one under "".

    Raises:
        ConfigError: the environment of a suite is another world than that of the run, or cannot be
            made or filmed.
    """
    assert config.eval is not None
    if film is None and config.eval.capture_videos:
        folder = Path(config.data_dir, "runs", state.run_name, "videos")
        film = folder / f"step-{state.step:012d}.mp4"
    results: dict[str, SuiteResult] = {}
    for name, suite in all_suites(config.eval, config.env):
        if stop():
            break
        opponent = None if suite.opponent is None else opponents[suite.opponent]
        with global_randomness_kept(), acting(state.agent, opponent), ExitStack() as stack:
            in_process = 1 if film is not None else None
            envs = make_envs(config, name, suite, create_envs, state, in_process)
            stack.callback(envs.close)
            if film is not None:
                envs = filmed = FilmedEnvs(envs, film_of_suite(film, name))
                stack.push(lambda kind, *_, filmed=filmed: filmed.finish(kind is not None))
            everywhere = np.arange(len(envs))
            counted = np.ones(len(envs), dtype=np.bool_)
            greedy = suite.deterministic
            if opponent is None:
                seats = [Seats(state.agent, everywhere, greedy)]
            else:
                others = greedy and not isinstance(opponent, RandomAgent)
                seats = [Seats(opponent, everywhere, others)]
                if not suite.opponent_only:
                    counted = everywhere % 2 == 0
                    seats = [
                        Seats(state.agent, everywhere[::2], greedy),
                        Seats(opponent, everywhere[1::2], others),
                    ]
            quota = np.where(counted, NO_END, 0)
            if suite.episodes is not None:
                quota = quotas(suite.episodes, counted)
            statistics = EpisodeStatistics(envs, quota)
            results[name] = _played(
                config, name, suite, statistics, seats, state, device, stop, watch, stack
            )
    return results


def _played(
    config: TrainConfig,
    name: str,
    suite: EvalConfig,
    statistics: EpisodeStatistics,
    seats: Sequence[Seats],
    state: Trained,
    device: torch.device,
    stop: Callable[[], bool],
    watch: Watch,
    stack: ExitStack,
) -> SuiteResult:
    """Play one suite."""
    envs = recorded(statistics, None if name else capture_of_evals(config), state.run_name, stack)
    steps = suite.max_steps if suite.steps is None else suite.steps
    whole = suite.episodes is not None
    taken = 0

    def is_over() -> bool:
        nonlocal taken
        share = statistics.num_episodes() / suite.episodes if suite.episodes else taken / steps
        watch(name, share)
        taken += 1
        return stop() or (whole and statistics.is_done())

    seed = derive_seed(config.seed if suite.seed is None else suite.seed, "eval")
    play(envs, seats, steps, seed, device, is_over, state.step, state.obs_space)
    return SuiteResult(
        statistics.measured(), statistics.num_episodes(), statistics.num_missing(), steps
    )


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
        raise ConfigError(*(f"{where}{problem}" for problem in error.problems)) from None
    different = space_differences(
        state.obs_space, dict(state.action_space), envs.obs_space(), envs.action_space()
    )
    if different:
        envs.close()
        raise ConfigError(
            f"{where or 'eval.'}env: expected the world of env; {'; '.join(different)}"
        )
    return envs


def create_opponents(
    config: TrainConfig, create: CreateOpponent, state: Trained, device: torch.device
) -> dict[str, PPOAgent]:
    """All whom the suites name, by path; made before time is spent on anything else.

    Args:
        config: of the run.
        create: makes one.
        state: what of a run is evaluated.
        device: where they play.
    """
    if config.eval is None:
        return {}
    paths = {suite.opponent for _, suite in all_suites(config.eval, config.env)} - {None}
    return {
        path: create(path, state.obs_space, state.action_space, device) for path in sorted(paths)
    }


def check_videos(config: TrainConfig, create_envs: EnvFactory, state: Trained) -> None:
    """Refuse `eval.capture_videos` where there will be none, before time is spent on a run.

    Raises:
        ConfigError: a package is missing, or a world does not render.
    """
    if config.eval is None or not config.eval.capture_videos:
        return
    require_writer(Path(".mp4"), "eval.capture_videos")
    for name, suite in all_suites(config.eval, config.env):
        with global_randomness_kept(), ExitStack() as stack:
            envs = make_envs(config, name, suite, create_envs, state, processes=1)
            stack.callback(envs.close)
            filmed = FilmedEnvs(envs, None)
            filmed.seed(0)
            filmed.reset(state.obs_space)


def film_of_suite(film: Path, name: str) -> Path:
    """The file of a suite's video."""
    return film.with_stem(f"{film.stem}-{name}") if name else film


@contextmanager
def acting(*agents: object) -> Iterator[None]:
    """Switch agents to how they act, without dropout, and back."""
    modules = [agent for agent in agents if isinstance(agent, nn.Module)]
    before = [module.training for module in modules]
    try:
        for module in modules:
            module.eval()
        yield
    finally:
        for module, training in zip(modules, before, strict=True):
            module.train(training)
