"""`Evaluator`: evaluation of a run's agent, alone or against opponents."""

import copy
from collections.abc import Callable, Collection, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import torch
from torch import nn

from enn_trainer.base.errors import ConfigError
from enn_trainer.base.group import ALONE, Group
from enn_trainer.base.policy import CreateOpponent, Opponent, eval_mode
from enn_trainer.checkpoints.saved_run import SavedRun
from enn_trainer.checkpoints.state import State
from enn_trainer.config import EvalConfig, TrainConfig
from enn_trainer.config.eval_config import all_suites, origin_of
from enn_trainer.config.selfplay_config import result_metric
from enn_trainer.evaluation.eval_metrics import EpisodeCounts, quotas
from enn_trainer.evaluation.evaluation import (
    REPLAYS,
    VIDEOS,
    EpisodeCapture,
    EpisodePlan,
    EpisodeRecording,
    EvaluationFacts,
    SuiteResult,
    Watch,
    evaluate,
)
from enn_trainer.evaluation.members import Trained, make_opponent, members_of_pool, with_pool
from enn_trainer.evaluation.opponents import RandomAgent
from enn_trainer.evaluation.remote import RemoteEvaluator, RunningEvaluation, pack_evaluator
from enn_trainer.evaluation.suite_envs import SuiteEnvs
from enn_trainer.experience.bot_player import BotPlayer
from enn_trainer.experience.envs import EnvFactory
from enn_trainer.experience.players import AgentPlayer, Players, SeatPlayer
from enn_trainer.experience.recording import capture_of_evals
from enn_trainer.experience.seated_players import AGENT, SeatedPlayers, against, against_pool
from enn_trainer.runtime.execution import SINGLE_THREAD, ThreadPool
from enn_trainer.runtime.process import cudnn_deterministic
from enn_trainer.runtime.shards import Shards
from enn_trainer.runtime.start_folder import absolute
from enn_trainer.selfplay.league import LEAGUE, POOL, League, Member
from enn_trainer.stop_conditions import is_read
from entity_env.arrays import BoolArray
from entity_env.seeding import derive_seed, preserve_global_rng
from entity_env.spaces import ActionName, ActionSpace, Spaces
from entity_env.vec.variation import Variation
from entity_env.vec.vec_env import VecEnv
from rogue_net.space_diff import diff_spaces
from rogue_net.wiring import Wired

_SuiteCounts: TypeAlias = tuple[EpisodeCounts | None, dict[str, Any]]
"""Counts of a rank's environments (None if it has none), and further fields of a `SuiteResult`."""


class Evaluator:
    """Evaluate a run's agent in the suites of a configuration.

    Opponents are loaded in the constructor, so that mistakes are reported before training starts.

    Args:
        config: configuration of the run; without `eval` only other settings can be evaluated.
        create_envs: factory of environments.
        create_opponent: factory of opponents.
        state: training state or checkpoint, with the agent.
        device: device of the agents.
        threads: thread pool of forward passes.
        folder: folder for videos, replays and recordings; by default below `data_dir`.

    Attributes:
        results: results of the configuration's last evaluation, by suite.
        by_episode: True to store the result of each counted episode.
        read_tags: tags of metrics for which values that are not finite are errors.

    Raises:
        ConfigError: an opponent does not exist, or the configured videos cannot be made.
    """

    results: Mapping[str, SuiteResult] = {}
    by_episode = False
    read_tags: Collection[str] = ()

    def __init__(
        self,
        config: TrainConfig,
        create_envs: EnvFactory,
        create_opponent: CreateOpponent,
        state: Trained,
        device: torch.device,
        threads: ThreadPool = SINGLE_THREAD,
        folder: Path | None = None,
    ) -> None:
        self._config, self._state, self._device, self._threads = config, state, device, threads
        self._folder = folder
        self._suite_envs, self._create_opponent = SuiteEnvs(create_envs), create_opponent
        self._opponents = self._make_opponents()
        if config.eval is not None and config.eval.capture_videos:
            from enn_trainer.evaluation.video import require_writer  # needs an extra

            require_writer(Path("video.mp4"), "eval.capture_videos")
            self.check_rendering()

    def measure(
        self,
        stop: Callable[[], bool] = lambda: False,
        watch: Watch = lambda suite, share: None,
        captures: Sequence[EpisodeCapture] = (),
    ) -> dict[str, SuiteResult]:
        """Evaluate the agent in each suite, for `steps` steps or `episodes` complete episodes.

        With an opponent, the agent plays the environments with even indices, the opponent those
        with odd indices, and only the agent's environments count; with `eval.opponent_only` the
        opponent plays all of them. The result is a function of the configuration and the agents: an
        evaluation has its own environments and random number generators, and changes neither the
        agents nor any other generator. With `eval.capture_samples` the frames of both sides are
        recorded.

        Args:
            stop: called before each step; True ends the evaluation early and skips the remaining
                suites.
            watch: progress callback.
            captures: videos and replays of the first episodes, in addition to the files of
                `eval.capture_videos` and `eval.capture_replays` in the run's folder. If a file
                cannot be written, the result has `video_problem` or `page_problem` instead.

        Returns:
            Results by suite name; the unnamed suite is "".

        Raises:
            ConfigError: the environments of a suite cannot be created or rendered, or their spaces
                differ from the run's.
        """
        captures = [*self._recordings(), *self._videos_and_replays(), *captures]
        played = self._play_suites(stop, watch, captures)
        self.results = {
            name: self._result(name, suite, played[name])
            for name, suite in self._suites
            if name in played
        }
        return dict(self.results)

    def _play_suites(
        self,
        stop: Callable[[], bool],
        watch: Watch,
        captures: Sequence[EpisodeCapture] = (),
        group: Group = ALONE,
    ) -> dict[str, _SuiteCounts]:
        """Play this rank's share of all suites; arguments as in `measure`."""
        played: dict[str, _SuiteCounts] = {}
        for name, suite in self._suites:
            if stop():
                break
            played[name] = self._play_suite(name, suite, stop, watch, captures, group)
        return played

    def _recordings(self) -> list[EpisodeCapture]:
        """Return the recording of the unnamed suite, if configured."""
        capture = capture_of_evals(self._config, self._folder)
        return [] if capture is None else [EpisodeRecording(capture, self._state.run_name)]

    def _videos_and_replays(self) -> list[EpisodeCapture]:
        """Return the configured videos and replays, with files in the run's folder."""
        config, state = self._eval, self._state
        folder = absolute(self._folder or Path(self._config.data_dir, "runs", state.run_name))
        step, captures = f"step-{state.step:012d}", list[EpisodeCapture]()
        if config.capture_videos:
            from enn_trainer.evaluation.video import VideoFile  # needs an extra

            captures.append(VideoFile(folder / VIDEOS / f"{step}.mp4"))
        if config.capture_replays:
            from enn_trainer.viewer.played import ReplaySettings, SuiteReplay

            captures.append(SuiteReplay(ReplaySettings(folder / REPLAYS / f"{step}.html")))
        return captures

    def measure_suite(self, name: str) -> SuiteResult:
        """Evaluate one suite in the process that unpickled this evaluator."""
        suite, state = dict(self._suites)[name], self._state
        opponent = self._opponents.get(suite.opponent or "")
        state.agent.to(self._device)
        if isinstance(opponent, nn.Module):
            opponent.to(self._device)
        with (
            ThreadPool.of(state.agent) as self._threads,
            self._threads.at_work(),
            cudnn_deterministic(self._config.torch_deterministic),
        ):
            never, no_progress = (lambda: False), (lambda suite, share: None)
            played = self._play_suite(name, suite, never, no_progress, self._recordings())
            return self._result(name, suite, played)

    def measure_remotely(self, evaluator: RemoteEvaluator, watch: Watch) -> dict[str, SuiteResult]:
        """Evaluate the agent in each suite on other machines, and return the results by suite."""
        return dict(self.start(evaluator).results(lambda: False, watch) or {})

    def start(self, evaluator: RemoteEvaluator) -> RunningEvaluation:
        """Start a remote evaluation of the agent's current weights."""
        snapshot, state = copy.copy(self), self._state
        league = None if isinstance(state, SavedRun) else state.part(League)
        if isinstance(state, State):  # the fields that evaluations read
            agent = copy.deepcopy(state.agent).cpu()
            snapshot._state = State(
                step=state.step,
                restart=0,
                next_eval_step=None,
                agent=agent,
                obs_space=state.obs_space,
                action_space=dict(state.action_space),
                run_name=state.run_name,
            )
            snapshot._state.parts = {} if league is None else {LEAGUE: league}
        snapshot._threads, snapshot.results = SINGLE_THREAD, {}
        vars(snapshot).pop("group", None)  # cannot be pickled
        return evaluator(pack_evaluator(snapshot), [name for name, _ in self._suites])

    def action_space(self) -> Mapping[ActionName, ActionSpace]:
        """Return the action space of the unnamed suite; the order of its labels may differ."""
        if self._config.eval is None or self._config.eval.env is None:
            return self._state.action_space
        name, unnamed = self._suites[0]
        opened = self._suite_envs.open(self._config, self._state, name, unnamed, processes=1)
        with preserve_global_rng(), opened as (envs, _):
            assert envs is not None
            return envs.action_space()

    def check_rendering(self) -> None:
        """Check that the environments of all suites render their first frames.

        Raises:
            ConfigError: an environment does not render.
        """
        from enn_trainer.evaluation.video import RecordVideo  # an extra, needed for videos only

        for name, suite in self._suites:
            opened = self._suite_envs.open(self._config, self._state, name, suite, processes=1)
            with preserve_global_rng(), opened as (envs, _):
                assert envs is not None
                filmed = RecordVideo(envs, None)
                filmed.seed(0)
                filmed.reset(self._state.obs_space)
                if filmed.problem is not None:
                    raise ConfigError(filmed.problem)

    @property
    def _eval(self) -> EvalConfig:
        """Section `eval` of the configuration; requires that it exists."""
        assert self._config.eval is not None
        return self._config.eval

    @property
    def _suites(self) -> list[tuple[str, EvalConfig]]:
        """Suites of the configuration by name, the unnamed one first."""
        config = self._config
        return [] if config.eval is None else list(all_suites(config.eval, config.env))

    def _play_suite(
        self,
        name: str,
        suite: EvalConfig,
        stop: Callable[[], bool],
        watch: Watch,
        captures: Sequence[EpisodeCapture],
        group: Group = ALONE,
    ) -> _SuiteCounts:
        """Play this rank's share of a suite."""
        config, state = self._config, self._state
        assert suite.env is not None
        seed = derive_seed(config.seed if suite.seed is None else suite.seed, "eval")
        captures = [capture.for_suite(name) for capture in captures]
        processes = max((capture.processes for capture in captures), default=0)
        pool = members_of_pool(state) if suite.opponent == POOL else []
        opponent = self._opponents.get(suite.opponent or "")
        opened = self._suite_envs.open(config, state, name, suite, processes, len(pool), group)
        with preserve_global_rng(), eval_mode(state.agent, opponent), opened as (envs, shards):
            if envs is None:
                return None, {}

            # Play the counted episodes.
            players, counted = self._players(suite, envs, shards, seed, pool)
            local = slice(shards.columns.start, shards.columns.stop)
            plan = EpisodePlan(
                obs_space=state.obs_space,
                seed=seed,
                steps=_steps_of(suite),
                quota=quotas(suite.episodes, counted)[local],
                agent=np.flatnonzero(counted[local]),
                first=shards.columns.start,
                run_step=state.step,
                device=self._device,
                result=result_metric(config.selfplay) if pool else None,
                variation=Variation.of(suite.env.vary) if suite.env.vary else None,
                is_required=partial(is_read, self.read_tags, f"eval/{name}/" if name else "eval/"),
                by_episode=self.by_episode,
            )
            counts = evaluate(players, envs, plan, captures, stop, partial(watch, name))

            # Complete videos and replays.
            info = {"save": str(state.path)} if isinstance(state, SavedRun) else {}
            info["step"] = str(state.step)
            info["environment"] = f"{suite.env.id} {suite.env.kwargs}"
            title, results = f"{suite.env.id}, step {state.step}", dict[str, Any]()
            facts = EvaluationFacts(players.network, title, info, config, watch)
            for capture in captures:
                results |= capture.results(facts)
        return counts, results

    def _result(self, name: str, suite: EvalConfig, played: _SuiteCounts) -> SuiteResult:
        """Return the result of a suite, with the setting that limits its steps."""
        counts, results = played
        assert counts is not None
        if suite.opponent == POOL:
            by_member, counted = {}, counts.quota > 0
            members = members_of_pool(self._state)
            matches = np.arange(len(counted)) // counts.sides
            for i, member in enumerate(members):
                is_opponent = matches % len(members) == i
                by_member[member.name] = counts.measured(counted & is_opponent)
            results = {**results, "opponents": by_member}
        results = {**results, "played": counts.played or ()}
        steps, limit = _steps_of(suite), origin_of(self._eval, name, "max_steps")
        return SuiteResult(
            counts.measured(), counts.num_episodes(), counts.num_missing(), steps, limit, **results
        )

    def _players(
        self,
        suite: EvalConfig,
        envs: VecEnv,
        shards: Shards,
        seed: int,
        pool: Sequence[Member],
    ) -> tuple[Players, BoolArray]:
        """Return the players of some environments, and which of the suite's environments count."""
        spaces, env_spaces = self._state.spaces, Spaces.of(envs)
        is_reordered = bool(diff_spaces(spaces, env_spaces).reordered_labels)

        def player(agent: Opponent, is_greedy: bool) -> SeatPlayer:
            if isinstance(agent, type):
                first = shards.columns.start
                return BotPlayer(agent, seed, spaces.obs_space, env_spaces, envs.sides, first)
            if is_reordered:  # the order of labels differs from the run's
                agent = Wired(
                    agent,
                    spaces.obs_space,
                    env_spaces.action_space,
                    spaces.obs_space,
                    spaces.action_space,
                )
            return AgentPlayer(agent, None if is_greedy else seed, self._threads, shards=shards)

        # Assign the agent and its opponents to sides by a lineup.
        players = {AGENT: player(self._state.agent, suite.deterministic)}
        all_envs = np.ones(shards.num_columns, np.bool_)
        if suite.opponent is None:
            return players[AGENT], all_envs
        if pool:
            lineup = against_pool([member.name for member in pool], envs.sides)
            create = self._create_opponent
            for member in pool:
                opponent = make_opponent(member, self._state.agent, create, spaces, self._device)
                players[member.name] = player(opponent, suite.deterministic)
        else:
            opponent, lineup = self._opponents[suite.opponent], against(suite.opponent, envs.sides)
            is_greedy = suite.deterministic and not isinstance(opponent, RandomAgent)
            players[suite.opponent] = player(opponent, is_greedy)
        if suite.opponent_only:
            return players[suite.opponent], all_envs
        matches = range(shards.num_columns // envs.sides)
        names = [name for match in matches for name in lineup(match, 0)]
        seated = SeatedPlayers(players, lineup, envs.sides, shards.columns.start)
        return seated, np.array(names) == AGENT

    def _make_opponents(self) -> dict[str, Opponent]:
        """Load the opponents of all suites, by configured path."""
        paths = {suite.opponent for _, suite in self._suites if suite.opponent is not None}
        if POOL in paths:
            paths.remove(POOL)
            self._state = with_pool(self._state)
            if any(s.opponent_only and s.opponent == POOL for _, s in self._suites):
                raise ConfigError("eval.opponent_only: expected false with eval.opponent='pool'")
        state = self._state
        return {
            path: self._create_opponent(path, state.obs_space, state.action_space, self._device)
            for path in sorted(paths)
        }


def _steps_of(suite: EvalConfig) -> int:
    """Return the maximal number of steps per environment of a suite."""
    return suite.max_steps if suite.steps is None else suite.steps
