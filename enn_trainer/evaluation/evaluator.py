"""Evaluation of an agent in environments of its own, alone or against opponents."""

import copy
import itertools
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing, contextmanager
from functools import partial
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import torch
from torch import nn

from enn_trainer.checkpoints.lookup import SavedRun, pool_of_run
from enn_trainer.checkpoints.migrate.space_diff import diff_spaces
from enn_trainer.config import EvalConfig, TrainConfig
from enn_trainer.config.eval_config import all_suites, suite_path
from enn_trainer.config.selfplay_config import result_metric
from enn_trainer.errors import CheckpointError, ConfigError
from enn_trainer.evaluation.eval_metrics import EpisodeCounts, EpisodeStatistics, quotas
from enn_trainer.evaluation.opponents import POOL, RandomAgent
from enn_trainer.evaluation.remote import packed
from enn_trainer.evaluation.results import (
    NO_REPLAY,
    EpisodeReplay,
    PlayElsewhere,
    SuiteResult,
    UnderWay,
    Watch,
)
from enn_trainer.evaluation.video import (
    NO_FILM,
    REPLAYS,
    VIDEOS,
    Film,
    FilmedEnvs,
    FilmFile,
    require_writer,
)
from enn_trainer.experience.bot_player import BotPlayer
from enn_trainer.experience.collector import Collector, Watcher, play
from enn_trainer.experience.envs import (
    EnvFactory,
    WorkerOptions,
    check_whole_matches,
    global_randomness_kept,
    in_section,
    in_whole_matches,
    sides_of,
    worker_options,
)
from enn_trainer.experience.players import AgentPlayer, Players, SeatPlayer
from enn_trainer.experience.recording import capture_of_evals, recorders
from enn_trainer.experience.seated_players import AGENT, SeatedPlayers, against, against_pool
from enn_trainer.experience.varied_envs import vary
from enn_trainer.policy import CreateOpponent, Opponent, eval_mode
from enn_trainer.runtime.execution import ONE_LANE, Lanes
from enn_trainer.runtime.process import cudnn_deterministic
from enn_trainer.runtime.start_folder import absolute
from enn_trainer.scale.group import ALONE, Group
from enn_trainer.scale.shards import Shards
from enn_trainer.selfplay.league import LEAGUE, League, Member
from enn_trainer.selfplay.members import make_opponent
from enn_trainer.state import State
from enn_trainer.stop_conditions import is_read
from entity_env.environment import Environment
from entity_env.match import Match
from entity_env.seeding import derive_seed
from entity_env.spaces import ActionName, ActionSpace
from entity_env.vec.variation import Variation
from entity_env.vec.vec_env import VecEnv
from rogue_net.wiring import Wired

Trained: TypeAlias = State | SavedRun
"""A run: the agent to evaluate, with the spaces and the number of frames it was trained with."""
_Played: TypeAlias = tuple[EpisodeCounts | None, dict[str, Any]]
"""Counts of a rank's environments, None if it has none, and further fields of a result."""


class Evaluator:
    """Evaluator of the agent of a run, in the suites of a configuration.

    Opponents are made once, before training starts, so that a mistake costs no time.

    Args:
        config: configuration of the run; without `eval` it evaluates with other settings only.
        create_envs: factory of environments.
        create_opponent: factory of opponents.
        state: the run, with the agent.
        device: device of the agents.
        lanes: lanes in which forward passes are computed.
        folder: folder for videos, replays and recordings; by default they are below `data_dir`.

    Attributes:
        results: results of the last evaluation of the configuration, by suite.
        by_episode: True to keep each episode in the results, with its arguments.
        read_tags: tags of metrics of which a value that is not finite is an error.

    Raises:
        ConfigError: an opponent does not exist, or videos are configured but not possible.
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
        lanes: Lanes = ONE_LANE,
        folder: Path | None = None,
    ) -> None:
        self._config, self._state, self._device, self._lanes = config, state, device, lanes
        self._folder = folder
        self._create_envs, self._create_opponent = create_envs, create_opponent
        self._sides: dict[str, int] = {}
        self._opponents = self._make_opponents()
        if config.eval is not None and config.eval.capture_videos:
            require_writer(Path("video.mp4"), "eval.capture_videos")
            self.check_pictures()

    def measure(
        self,
        stop: Callable[[], bool] = lambda: False,
        watch: Watch = lambda suite, share: None,
        film: Film = NO_FILM,
        replay: EpisodeReplay = NO_REPLAY,
    ) -> dict[str, SuiteResult]:
        """Evaluate the agent in each suite, for `steps` steps or `episodes` whole episodes.

        With an opponent, the agent plays the environments with even indices and the opponent those
        with odd ones, and only the agent's environments count; with `eval.opponent_only` the
        opponent plays all of them. The result is a function of the configuration and the agents:
        the evaluation has its own environments and random draws, and changes neither the agents nor
        any random generator. With `eval.capture_samples` the frames of both sides are recorded.

        Args:
            stop: called before each step; True ends the evaluation early, without the remaining
                suites.
            watch: progress callback.
            film: video of the first episodes; by default, with `eval.capture_videos`, in a file of
                the run's folder. If pictures cannot be taken or written, the result has
                `film_problem` instead.
            replay: replay of the first episodes, which the result then has; by default, with
                `eval.capture_replays`, on a page in the run's folder. If a page cannot be written,
                the result has `page_problem`.

        Returns:
            The results by suite name, with "" for the unnamed one.

        Raises:
            ConfigError: the environments of a suite cannot be made or filmed, or their spaces
                differ from those of the run.
        """
        played = self._play_suites(stop, watch, film, replay)
        self.results = {
            name: self._result(name, suite, *played[name])
            for name, suite in self._suites
            if name in played
        }
        return dict(self.results)

    def _play_suites(
        self,
        stop: Callable[[], bool],
        watch: Watch,
        film: Film = NO_FILM,
        replay: EpisodeReplay = NO_REPLAY,
        group: Group = ALONE,
    ) -> dict[str, _Played]:
        """Play the suites, this rank's share of a group, as `measure`."""
        config, state = self._config, self._state
        assert config.eval is not None
        folder = absolute(self._folder or Path(config.data_dir, "runs", state.run_name))
        if film is NO_FILM and config.eval.capture_videos:
            film = FilmFile(folder / VIDEOS / f"step-{state.step:012d}.mp4")
        if replay is NO_REPLAY and config.eval.capture_replays:
            replay = _page_of_replay(folder / REPLAYS / f"step-{state.step:012d}.html")
        played: dict[str, _Played] = {}
        for name, suite in self._suites:
            if stop():
                break
            opponent = self._opponents.get(suite.opponent or "")
            captures = film.of_suite(name), replay.of_suite(name)
            with global_randomness_kept(), eval_mode(state.agent, opponent):
                played[name] = self._play_suite(name, suite, stop, watch, *captures, group)
        return played

    def measure_alone(self, name: str) -> SuiteResult:
        """Evaluate one suite, in the process that unpacked this evaluator."""
        suite, state = dict(self._suites)[name], self._state
        opponent = self._opponents.get(suite.opponent or "")
        state.agent.to(self._device)
        if isinstance(opponent, nn.Module):
            opponent.to(self._device)
        with (
            Lanes.of(state.agent) as self._lanes,
            self._lanes.at_work(),
            cudnn_deterministic(self._config.torch_deterministic),
            global_randomness_kept(),
            eval_mode(state.agent, opponent),
        ):
            never, unseen = (lambda: False), (lambda suite, share: None)
            played = self._play_suite(name, suite, never, unseen, NO_FILM, NO_REPLAY, ALONE)
            return self._result(name, suite, *played)

    def measure_elsewhere(self, play: PlayElsewhere, watch: Watch) -> dict[str, SuiteResult]:
        """Evaluate the agent in each suite elsewhere, and return the results by suite."""
        return dict(self.begin(play).results(lambda: False, watch) or {})

    def begin(self, play: PlayElsewhere) -> UnderWay:
        """Begin to evaluate the agent elsewhere, with the weights that it has now."""
        other, state = copy.copy(self), self._state
        spaces = state.obs_space, dict(state.action_space)
        league = None if isinstance(state, SavedRun) else state.part(League)
        if isinstance(state, State):  # what evaluations read of it
            agent = copy.deepcopy(state.agent).cpu()
            other._state = State(state.step, 0, None, agent, *spaces, run_name=state.run_name)
            other._state.parts = {} if league is None else {LEAGUE: league}
        other._lanes, other.results = ONE_LANE, {}
        vars(other).pop("group", None)  # it cannot be sent
        return play(packed(other), [name for name, _ in self._suites])

    def action_space(self) -> Mapping[ActionName, ActionSpace]:
        """Return the actions of the unnamed suite; their labels may have an order of their own."""
        if self._config.eval is None or self._config.eval.env is None:
            return self._state.action_space
        name, unnamed = self._suites[0]
        with global_randomness_kept(), self._envs(name, unnamed, processes=1) as (envs, _):
            assert envs is not None
            return envs.action_space()

    def check_pictures(self) -> None:
        """Raise if the environments of the suites do not render their first frames.

        Raises:
            ConfigError: a world does not render.
        """
        for name, suite in self._suites:
            with global_randomness_kept(), self._envs(name, suite, processes=1) as (envs, _):
                assert envs is not None
                filmed = FilmedEnvs(envs, None)
                filmed.seed(0)
                filmed.reset(self._state.obs_space)
                if filmed.problem is not None:
                    raise ConfigError(filmed.problem)

    @property
    def _suites(self) -> list[tuple[str, EvalConfig]]:
        """Evaluations of the configuration by name, the unnamed one first."""
        config = self._config
        return [] if config.eval is None else list(all_suites(config.eval, config.env))

    def _play_suite(
        self,
        name: str,
        suite: EvalConfig,
        stop: Callable[[], bool],
        watch: Watch,
        film: Film,
        replay: EpisodeReplay,
        group: Group,
    ) -> _Played:
        """Play a suite, or this rank's share of a group."""
        config, state = self._config, self._state
        assert suite.env is not None
        seed = derive_seed(config.seed if suite.seed is None else suite.seed, "eval")
        with ExitStack() as stack:
            # Environments, players, and the episodes that count.
            processes = film.processes or replay.processes
            pool = self._members() if suite.opponent == POOL else []
            opened = self._envs(name, suite, processes, len(pool), group)
            envs, shards = stack.enter_context(opened)
            if envs is None:
                return None, {}
            players, counted = self._players(suite, envs, shards, seed, pool)
            quota = quotas(suite.episodes, counted)[shards.columns.start : shards.columns.stop]

            # Metrics, with the recording and the replay.
            envs = film.filmed(envs, quota > 0, stack)
            result = result_metric(config.selfplay) if pool else None
            statistics = EpisodeStatistics(envs, quota, result)
            prefix = f"eval/{name}/" if name else "eval/"
            statistics.finite.is_required = partial(is_read, self.read_tags, prefix)
            statistics.finite.first_env_index = shards.columns.start
            counts, running = statistics.counts, statistics.running
            running.variation = _variation_of(suite)
            counts.played = [] if self.by_episode else None
            capture = None if name else capture_of_evals(config, self._folder)
            watchers: list[Watcher] = [
                *recorders(capture, statistics, state.run_name, stack, running),
                *replay.watchers(envs, np.flatnonzero(counted), running),
            ]

            # Play until the steps are taken or the episodes have ended.
            steps, taken = _steps_of(suite), itertools.count()

            def is_over() -> bool:
                share, is_done = replay.progress(*counts.progress(suite.episodes))
                watch(name, max(share, next(taken) / steps))
                return stop() or is_done

            collector = Collector(statistics, players, self._device, watchers)
            play(collector, state.obs_space, steps, seed, run_step=state.step, stop=is_over)
            about = {"save": str(state.path)} if isinstance(state, SavedRun) else {}
            about |= {"step": str(state.step), "environment": f"{suite.env.id} {suite.env.kwargs}"}
            title = f"{suite.env.id}, step {state.step}"
            results = replay.results(players.network, title, about, config, watch)
        return counts, {**results, **film.results()}

    def _result(
        self, name: str, suite: EvalConfig, counts: EpisodeCounts | None, results: dict[str, Any]
    ) -> SuiteResult:
        """Return the result of a suite, with the setting that limits the steps."""
        assert counts is not None
        if suite.opponent == POOL:
            of_members, counted = {}, counts.quota > 0
            members = self._members()
            matches = np.arange(len(counted)) // counts.sides
            for i, member in enumerate(members):
                against = matches % len(members) == i
                of_members[member.name] = counts.measured(counted & against)
            results = {**results, "opponents": of_members}
        results = {**results, "played": counts.played or ()}
        played = counts.measured(), counts.num_episodes(), counts.num_missing()
        return SuiteResult(*played, _steps_of(suite), self._origin(name, "max_steps"), **results)

    def _players(
        self,
        suite: EvalConfig,
        envs: VecEnv,
        shards: Shards,
        seed: int,
        pool: Sequence[Member],
    ) -> tuple[Players, npt.NDArray[np.bool_]]:
        """Return the players in some environments, and bool, which of all in the suite count."""
        known, actions = (self._state.obs_space, self._state.action_space), envs.action_space()
        is_reordered = bool(diff_spaces(*known, envs.obs_space(), actions).reordered_labels)

        def player(agent: Opponent, is_greedy: bool) -> SeatPlayer:
            if isinstance(agent, type):
                spaces = known[0], envs.obs_space(), actions
                return BotPlayer(agent, seed, *spaces, envs.sides, shards.columns.start)
            if is_reordered:  # labels in another order than the run's
                agent = Wired(agent, known[0], actions, *known)
            return AgentPlayer(agent, None if is_greedy else seed, self._lanes, shards=shards)

        players = {AGENT: player(self._state.agent, suite.deterministic)}
        everywhere = np.ones(shards.num_columns, np.bool_)
        if suite.opponent is None:
            return players[AGENT], everywhere
        if pool:
            lineup = against_pool([member.name for member in pool], envs.sides)
            makers = self._state.agent, self._create_opponent, *known, self._device
            for member in pool:
                opponent = make_opponent(member, *makers)
                players[member.name] = player(opponent, suite.deterministic)
        else:
            opponent, lineup = self._opponents[suite.opponent], against(suite.opponent, envs.sides)
            is_greedy = suite.deterministic and not isinstance(opponent, RandomAgent)
            players[suite.opponent] = player(opponent, is_greedy)
        if suite.opponent_only:
            return players[suite.opponent], everywhere
        matches = range(shards.num_columns // envs.sides)
        names = [name for match in matches for name in lineup(match, 0)]
        seated = SeatedPlayers(players, lineup, envs.sides, shards.columns.start)
        return seated, np.array(names) == AGENT

    def _pool(self) -> list[Member]:
        """Return the members of the run's pool.

        Raises:
            ConfigError: there are none.
        """
        if isinstance(self._state, SavedRun):
            try:
                pool = pool_of_run(self._state)
            except CheckpointError as error:
                raise ConfigError(f"eval.opponent: {error}") from None
            self._state = self._state._replace(pool=pool)
            return pool
        league = self._state.part(League)
        if league is None:
            raise ConfigError(
                "eval.opponent: expected a run with opponents (selfplay) beside 'pool', got none"
            )
        return league.pool

    def _members(self) -> list[Member]:
        """Return the members of the pool, of which there has to be one.

        Raises:
            ConfigError: there are none, as before the first update.
        """
        members = self._pool()
        if not members:
            raise ConfigError(
                "eval.opponent: expected members in the pool, got none yet: the first copy of the "
                "agent joins as training begins, those of selfplay.opponents are there before"
            )
        return members

    def _make_opponents(self) -> dict[str, Opponent]:
        """Make the opponents of all suites, by the path in the configuration."""
        state = self._state
        paths = {suite.opponent for _, suite in self._suites if suite.opponent is not None}
        if POOL in paths:
            paths.remove(POOL)
            self._pool()  # raises if there is none
            if any(s.opponent_only and s.opponent == POOL for _, s in self._suites):
                raise ConfigError("eval.opponent_only: expected false beside eval.opponent='pool'")
        return {
            path: self._create_opponent(path, state.obs_space, state.action_space, self._device)
            for path in sorted(paths)
        }

    def _origin(self, name: str, field: str) -> str:
        """Return the setting that defines a field of a suite: its own, of `eval` or of rollouts."""
        evaluation = self._config.eval
        assert evaluation is not None
        own = evaluation.suites.get(name)
        if own is not None and getattr(own, field) is not None:
            return f"eval.{suite_path(name)}.{field}"
        return f"rollout.{field}" if getattr(evaluation, field) is None else f"eval.{field}"

    @contextmanager
    def _envs(
        self,
        name: str,
        suite: EvalConfig,
        processes: int | None,
        num_members: int = 0,
        group: Group = ALONE,
    ) -> Iterator[tuple[VecEnv | None, Shards]]:
        """Return a context with environments of a suite, and their shards.

        Args:
            name: name of the suite.
            suite: its settings, from `all_suites`.
            processes: number of processes; None for the configured number.
            num_members: number of members of a pool that is played against.
            group: its ranks share the environments out; None of them where a rank has no shards.

        Raises:
            ConfigError: they cannot be made, or their spaces differ from those of the run.
        """
        config = self._config
        assert config.eval is not None
        assert suite.env is not None

        # Make the environments; problems name the setting that they come from.
        num_envs = suite.num_envs or config.rollout.num_envs
        where = f"eval.{suite_path(name)}." if name else "" if config.eval.env is None else "eval."
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
                made, num_envs = in_whole_matches(envs_and_sides, num_envs, is_chosen)
                envs, sides = made
                # As many matches against each member and in each seat.
                whole = num_members * sides**2
                if whole and num_envs % whole:
                    num_envs = max(whole, num_envs - num_envs % whole)
                    if envs is not None:
                        envs.close()
                        envs = make(num_envs, processes, 0)
                num_envs = num_envs if envs is None else len(envs)
                count = min(config.scale.shards or 1, num_envs // sides)
                shards = Shards.of(num_envs, sides, count).of_rank(group.rank, group.size)
                if envs is None and shards.own:
                    num_own = len(shards.columns)
                    envs = make(num_own, min(processes, num_own), shards.columns.start)
        except ConfigError as error:
            own = f"eval.{suite_path(name)}.num_envs" if name else "eval.num_envs"
            field = self._origin(name, "num_envs")
            hint = "" if field == own else f"; set {own}"
            problems = [
                in_section(p, field, where) + (hint if p.startswith("num_envs: ") else "")
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
                raise ConfigError(f"{where or 'eval.'}env: expected {expected}, got {len(envs)}")
            if different := differences(self._state, envs):
                raise ConfigError(
                    f"{where or 'eval.'}env: expected the spaces of env; {'; '.join(different)}"
                )
            if suite.env.vary:
                vary(envs, suite.env.vary, f"{where}env.vary")
            yield envs, shards

    def _sides_of(self, suite: EvalConfig, num_envs: int) -> int:
        """Return the number of sides of a match; it is found out once."""
        assert suite.env is not None
        key = repr((suite.env, num_envs))
        if key not in self._sides:
            self._sides[key] = sides_of(partial(self._create_envs, suite.env), num_envs)
        return self._sides[key]


def _page_of_replay(path: Path) -> EpisodeReplay:
    """Return the replay that is written as a page."""
    from enn_trainer.viewer.played import ReplaySettings  # needs more than most runs
    from enn_trainer.viewer.suite_replay import SuiteReplay

    return SuiteReplay(ReplaySettings(path))


def _steps_of(suite: EvalConfig) -> int:
    """Return the number of steps of each environment of a suite, at most."""
    return suite.max_steps if suite.steps is None else suite.steps


def _variation_of(suite: EvalConfig) -> Variation | None:
    """Return what the arguments of a suite are drawn from; None if they do not vary."""
    return Variation.of(suite.env.vary) if suite.env is not None and suite.env.vary else None


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


def differences(state: Trained, world: VecEnv | Environment | Match) -> list[str]:
    """Return the differences between the spaces of a run and of a world, as text."""
    spaces = world.obs_space(), world.action_space()
    return diff_spaces(state.obs_space, state.action_space, *spaces).changed
