"""Replays of episodes as they are played, in evaluations or with `replay` for a loaded agent."""

import html
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, closing, suppress
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from itertools import chain, product
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np

from enn_trainer.base.errors import ConfigError, ReplayError
from enn_trainer.base.policy import PPOAgent, device_of
from enn_trainer.config import PPOConfig
from enn_trainer.evaluation.eval_metrics import EpisodeStatistics, quotas
from enn_trainer.evaluation.evaluation import EXPLAINING, EpisodeCapture, EvaluationFacts
from enn_trainer.evaluation.load_agent import RogueNetAgent
from enn_trainer.evaluation.video import (
    cannot_write,
    encode_png,
    env_list_of,
    path_of_suite,
    render_image,
)
from enn_trainer.experience.collector import Collector, Watcher, play
from enn_trainer.experience.players import AgentPlayer, Decisions
from enn_trainer.viewer.episodes import episode_of_frames, recorded_decisions
from enn_trainer.viewer.moments import explain_replay
from enn_trainer.viewer.page import EPISODES, MAX_STEPS
from enn_trainer.viewer.replay import Replay, ReplayEpisode
from enn_trainer.viewer.replay_format import WrittenReplay, page_of, write_replay
from entity_env.actions import EntityID, EntityName
from entity_env.arrays import Float32Array, IntArray
from entity_env.environment import Environment
from entity_env.errors import EntityEnvError, short_repr, truncate
from entity_env.match import CreateEnv, Match, match_of, world_of
from entity_env.recording import recording_format
from entity_env.seeding import derive_seed, preserve_global_rng
from entity_env.spaces import ObsSpace, Spaces
from entity_env.vec.serial import EnvList
from entity_env.vec.variation import RunningArguments
from entity_env.vec.vec_env import VecEnv
from entity_env.vec.vec_obs import VecObs
from entity_env.view import View, view_of
from rogue_net.config import RogueNetConfig
from rogue_net.ragged import EntityBatch
from rogue_net.space_diff import diff_spaces

CreateAgent: TypeAlias = Callable[[Spaces], PPOAgent]
"""Factory of an agent for the spaces of an environment."""
MAX_NAME = 100
MAX_NOTEBOOK_MB = 20.0
"""Maximal size of a page displayed in a notebook, which stores it in its own file."""


@dataclass(frozen=True)
class ReplaySettings:
    """Settings of the replay of an evaluation.

    Attributes:
        path: file of the page; None to return the replay, and to play only its episodes.
        episodes: number of episodes, or of matches.
        max_steps: number of steps after which an episode is cut.
        positions: names of the features that are positions, see `view_of`.
        create_other: factory of a second agent, to compare its outputs in the same frames; None for
            none.
        pictures: True to show the environment's rendered image of each step.
    """

    path: Path | None = None
    episodes: int = EPISODES
    max_steps: int = MAX_STEPS
    positions: Sequence[str] = ()
    create_other: CreateAgent | None = None
    pictures: bool = False


class ReplayRecorder:
    """Watcher of a collector that records the first episodes of an agent.

    These are the episodes that an evaluation of `episodes` episodes counts: equally many of each
    environment, or match, in which the agent acts; the first ones get the remainder.

    Args:
        envs: B environments before their first reset. Their entities are tracked if they have ids.
        agent_envs: (n,) int64, environments in which the agent acts.
        settings: settings of the replay.
        running: arguments of the running episodes; None if they do not vary.

    Raises:
        ConfigError: images are requested of environments that are not an `EnvList`.

    Attributes:
        settings: see Args.
        sides: number of sides of a match.
        other_agent: the second agent, if there is one.
    """

    def __init__(
        self,
        envs: VecEnv,
        agent_envs: IntArray,
        settings: ReplaySettings,
        running: RunningArguments | None = None,
    ) -> None:
        self._arguments = running
        self.settings, self.sides, self._agent_envs = settings, envs.sides, set(agent_envs.tolist())
        self._obs_space, self._action_space = envs.obs_space(), envs.action_space()
        create = settings.create_other
        self.other_agent = None if create is None else create(Spaces.of(envs))
        self._env_list = env_list_of(envs)
        if settings.pictures and self._env_list is None:
            expected = "pictures: expected environments or matches that are stepped one by one"
            raise ConfigError(f"{expected}, got {type(envs).__name__}; leave pictures out")
        with suppress(EntityEnvError):  # raised if entities have no ids
            envs.track()
        matches = np.unique(agent_envs // self.sides)
        quota = quotas(settings.episodes, np.ones(len(matches), np.bool_))
        self._quota = {i: n for i, n in zip(matches.tolist(), quota.tolist(), strict=True) if n}
        self._running = {match: self._new_episode(match, 0) for match in self._quota}
        self._playing: list[int] = []  # matches with frames to record in this step
        self._ended: list[_RecordedEpisode] = []
        self._decisions: list[recording_format.RecordedFrames] = []
        self._num_frames = 0

    def is_agent(self, episode: ReplayEpisode, side: int) -> bool:
        """Return True if the agent acts for a side of an episode."""
        return (episode.env or 0) * self.sides + side in self._agent_envs

    def is_done(self) -> bool:
        """Return True when all episodes are recorded."""
        return not self._running

    def share_ended(self) -> float:
        """Return the finished share of the episodes, from 0 to 1."""
        return len(self._ended) / self.settings.episodes

    def begin(self, obs: VecObs, obs_space: ObsSpace, state: Mapping[str, Any] | None) -> None:
        """Store the observation space of the first frames."""
        self._obs_space = obs_space

    def before_step(
        self, obs: VecObs, batch: EntityBatch, decisions: Decisions, run_step: int | None
    ) -> None:
        """Record frames and decisions, except between two episodes."""
        is_padding = obs.is_padding[:: self.sides]
        self._playing = [match for match in self._running if not is_padding[match]]
        if not self._playing:
            return
        rows = np.concatenate([self._rows(match) for match in self._playing])
        frames = recorded_decisions(obs.take(rows), batch.take(rows), decisions.take(rows))
        self._decisions.append(frames)
        for match in self._playing:
            episode = self._running[match]
            if self._arguments is not None:
                episode.parameters = dict(self._arguments.arguments[match])
            if (env_list := self._env_list) is not None:
                if self.settings.pictures:
                    env = env_list.matches[match]
                    name = type(world_of(env)).__name__
                    picture = render_image(env, name, "pictures", "leave pictures out")
                    episode.pictures[len(episode.frames)] = encode_png(picture)
                for (side, name), ids in episode.ids.items():  # before the episode may end
                    ids += env_list.tracked_ids(match * self.sides + side, name, len(ids))
            episode.frames.append(np.arange(self.sides) + self._num_frames)
            self._num_frames += self.sides

    def after_step(self, obs: VecObs) -> None:
        """Record rewards and the ends of episodes."""
        for match in self._playing:
            episode = self._running[match]
            episode.rewards.append(obs.reward[self._rows(match)])
            first = match * self.sides
            episode.ends = {name: bool(getattr(obs, name)[first]) for name in episode.ends}
            if obs.done[first] or len(episode.frames) == self.settings.max_steps:
                self._ended.append(self._running.pop(match))
            if obs.done[first] and episode.number + 1 < self._quota[match]:
                self._running[match] = self._new_episode(match, episode.number + 1)

    def get_state(self) -> dict[str, Any]:
        """Return an empty state; episodes are not resumed."""
        return {}

    def replay(
        self, title: str, about: dict[str, str], discount: float, net: RogueNetConfig | None = None
    ) -> Replay:
        """Return the episodes without highlights and explanations, before the environments close.

        Args:
            title: title of the page.
            about: facts by name.
            discount: discount factor per step.
            net: network configuration, which may name position features.

        Raises:
            InvalidView: the environment's view, or `positions`, do not fit its space.
        """
        view = None if self._env_list is None else self._env_list.matches[0].view()
        return Replay(
            title,
            about,
            self._obs_space,
            self._action_space,
            self.sides,
            discount,
            self._episodes(),
            view=plain_view(view, self._obs_space, self.settings.positions, net),
        )

    def _episodes(self) -> list[ReplayEpisode]:
        """Return the episodes in order: the first of each environment, the second ones, ..."""
        played = [*self._ended, *(episode for episode in self._running.values() if episode.frames)]
        if not played:
            return []
        decisions_of_all, episodes = recording_format.RecordedFrames.cat(self._decisions), []
        for episode in sorted(played, key=lambda episode: (episode.number, episode.match)):
            decisions = decisions_of_all.take(np.concatenate(episode.frames))
            rewards, names = np.concatenate(episode.rewards), _names(self.sides, episode.ids)
            fields: dict[str, Any] = {"pictures": episode.pictures, "env": episode.match}
            fields |= {**episode.ends, "names": names, "parameters": episode.parameters}
            episodes.append(episode_of_frames(decisions, rewards, self._action_space, **fields))
        return episodes

    def _new_episode(self, match: int, number: int) -> "_RecordedEpisode":
        keys = product(range(self.sides), self._obs_space.entities)
        return _RecordedEpisode(match, number, {key: [] for key in keys})

    def _rows(self, match: int) -> IntArray:
        """Return the indices of the environments that are the sides of a match."""
        return np.arange(match * self.sides, (match + 1) * self.sides)


@dataclass
class _RecordedEpisode:
    """Recorded episode: its match, its index, and the indices of its frames in all recorded frames.

    `ids` are the tracked ids by side and type, in the order of `VecObs.identity`.
    """

    match: int
    number: int
    ids: dict[tuple[int, EntityName], list[EntityID]]
    frames: list[IntArray] = field(default_factory=list)
    rewards: list[Float32Array] = field(default_factory=list)
    pictures: dict[int, bytes] = field(default_factory=dict)
    parameters: dict[str, Any] = field(default_factory=dict)
    ends: dict[str, bool] = field(default_factory=lambda: {"terminated": False, "truncated": False})


def _names(
    sides: int, ids: Mapping[tuple[int, EntityName], Sequence[EntityID]]
) -> list[dict[EntityName, dict[int, str]]]:
    """Return printed ids by side, type and number of identity; [] if no entity has an id."""
    names: list[dict[EntityName, dict[int, str]]] = [{} for _ in range(sides)]
    for side, side_names in enumerate(names):
        by_type = {name: values for (i, name), values in ids.items() if i == side and values}
        texts = iter(printed_ids([*chain.from_iterable(by_type.values())]))
        side_names |= {n: {i: next(texts) for i in range(len(by_type[n]))} for n in by_type}
    return names if any(names) else []


def printed_ids(ids: Sequence[EntityID]) -> list[str]:
    """Format ids as unique texts of about 100 characters at most.

    An id with the same text as an earlier one gets its position: `1` and "1" become 1 and 1 #1.
    """
    texts: dict[str, None] = {}
    for number, id_ in enumerate(ids):
        text = truncate(id_, MAX_NAME) if isinstance(id_, str) else short_repr(id_, MAX_NAME)
        while text in texts:
            text = f"{text} #{number}"
        texts[text] = None
    return [*texts]


def plain_view(
    env_view: View | None,
    obs_space: ObsSpace,
    positions: Sequence[str] = (),
    net: RogueNetConfig | None = None,
) -> dict[str, Any]:
    """Convert the view of an environment to plain data.

    Args:
        env_view: result of the environment's `view`.
        obs_space: observation space.
        positions: names of features that are positions; override the view's.
        net: network configuration, which may name position features.

    Raises:
        InvalidView: the view or the positions do not fit the space.
    """
    sections = (net.relpos_encoding, net.translation) if net else ()
    defaults = next((s.position_features for s in sections if s and s.position_features), ())
    return asdict(view_of(env_view, obs_space, positions, defaults))


class SuiteReplay(EpisodeCapture):
    """Capture of the first episodes of a suite as a replay, returned or written as a page.

    Args:
        settings: settings of the replay.
    """

    processes = 1

    def __init__(self, settings: ReplaySettings) -> None:
        self._settings = settings

    def for_suite(self, name: str) -> "SuiteReplay":
        """Return the capture of one suite; the file of the page appends its name."""
        path = self._settings.path
        if path is None:
            return SuiteReplay(self._settings)
        return SuiteReplay(replace(self._settings, path=path_of_suite(path, name)))

    def watchers(self, envs: EpisodeStatistics, agent: IntArray, stack: ExitStack) -> list[Watcher]:
        """Create the recorder of the episodes."""
        self._recorder = ReplayRecorder(envs, agent, self._settings, envs.running)
        return [self._recorder]

    def progress(self, share: float, is_done: bool) -> tuple[float, bool]:
        """Return the progress of the replay, if only its episodes are played."""
        if self._settings.path is not None:
            return share, is_done
        return self._recorder.share_ended(), self._recorder.is_done()

    def results(self, facts: EvaluationFacts) -> dict[str, Any]:
        """Return the replay; or the page, or an error message.

        Raises:
            InvalidView: the environment's view, or `positions`, do not fit its space, and no page
                was requested.
        """

        def replay() -> Replay:
            recorder, config = self._recorder, facts.config
            played = recorder.replay(facts.title, facts.about, config.ppo.gamma, config.net)
            share_of = partial(facts.watch, EXPLAINING)
            explain_replay(played, facts.network, recorder.other_agent, recorder.is_agent, share_of)
            return played

        path = self._settings.path
        if path is None:
            return {"replay": replay()}
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            write_replay(replay(), path)
        except Exception as error:  # `view` is environment code; metrics do not depend on it
            return {"page_problem": cannot_write(path, error, "eval.capture_replays")}
        return {"page": path}


class PlayedReplay(Replay):
    """Replay with a method to write it, and a notebook representation."""

    def write(self, path: str | Path, max_mb: float = 20.0) -> WrittenReplay:
        """Write the replay as a page, atomically.

        Args:
            path: file of the page, in an existing folder.
            max_mb: maximal size of the page in megabytes (10**6 bytes), see `docs/watching.md`.

        Raises:
            ReplayError: the file exists and is not a replay; one episode alone is larger than
                `max_mb`; or the file cannot be written.
        """
        return write_replay(self, path, max_mb)

    def _repr_html_(self) -> str:
        """Return the page in an iframe that may run its script and nothing else."""
        try:
            page, _ = page_of(self, MAX_NOTEBOOK_MB)
        except ReplayError as error:
            fix = "write a page to open in a browser: .write('replay.html', max_mb=...)"
            return f"<p>{html.escape(f'{error}. Or {fix}')}</p>"
        return (
            f'<iframe title="{html.escape(self.title)}" sandbox="allow-scripts" '
            'style="width: 100%; height: 720px; border: 0" '
            f'srcdoc="{html.escape(page.decode())}"></iframe>'
        )


def replay(
    agent: RogueNetAgent,
    env: Environment | Match | CreateEnv,
    episodes: int = EPISODES,
    seed: int = 0,
    max_steps: int = MAX_STEPS,
    discount: float = PPOConfig.gamma,
    positions: Sequence[str] = (),
    beside: RogueNetAgent | None = None,
    pictures: bool = False,
) -> PlayedReplay:
    """Let an agent play, and return the episodes with probabilities, values and explanations.

    The agent acts for all sides. The result is a function of the arguments. Neither the agent nor
    any random number generator is changed.

    Args:
        agent: as `load_agent` returns it; with `env=` if it was trained in another environment.
        env: an environment or match, which is reset and not closed; or its class or factory, called
            once per episode.
        episodes: number of episodes, or of matches.
        seed: seed of the episodes and choices.
        max_steps: number of steps after which an episode is cut.
        discount: discount factor per step, for the returns that values are compared with.
        positions: names of the features that are positions; by default those of the environment's
            view, then features with usual names.
        beside: a second agent, to compare its outputs in the same frames.
        pictures: True to show the environment's `render(mode="rgb_array")` of each step.

    Raises:
        TypeError: `env` is neither an environment or match nor a factory of one.
        ValueError: the spaces differ from the agents', or `episodes` or `max_steps` is below 1.
        ConfigError: images are requested of an environment that does not render.
        InvalidView: the environment's view, or `positions`, do not fit its space.
    """
    for name, count in ("episodes", episodes), ("max_steps", max_steps):
        if count < 1:
            raise ValueError(f"{name}: expected 1 or more, got {count}")
    with ExitStack() as stack:
        # Create the environments and check their spaces.
        stack.enter_context(preserve_global_rng())
        envs = _env_list(env, episodes, stack)
        spaces = Spaces.of(envs)
        for name, player in ("the agent", agent), ("beside", beside):
            if player is None:
                continue
            diff = diff_spaces(Spaces(player.obs_space, player.action_space), spaces)
            if mismatches := [*diff.changed, *diff.reordered_labels]:
                got = f"{'; '.join(mismatches)}; load_agent(..., env=...) adapts an agent"
                raise ValueError(f"env: expected the spaces of {name}; {got}")

        # Play and explain.
        settings = ReplaySettings(None, episodes, max_steps, positions, pictures=pictures)
        other = None if beside is None else beside.agent
        recorder = ReplayRecorder(envs, np.arange(len(envs)), settings)
        play_seed = derive_seed(seed, "eval")
        seat = AgentPlayer(agent.agent, None if agent.deterministic else play_seed)
        collector = Collector(envs, seat, device_of(agent.agent), [recorder])
        steps = max_steps * (episodes * envs.sides // len(envs))
        play(collector, agent.obs_space, steps, play_seed, stop=recorder.is_done)
        name = type(world_of(envs.matches[0])).__name__
        about = {"environment": name, "seed": str(seed)}
        played = PlayedReplay(**vars(recorder.replay(name, about, discount)))
        explain_replay(played, agent.agent, other, recorder.is_agent)
        return played


def _env_list(env: Environment | Match | CreateEnv, episodes: int, stack: ExitStack) -> EnvList:
    """Create environments for some episodes; the stack closes environments created here."""
    if isinstance(env, Environment | Match):
        return EnvList(lambda: env, match_of(env).num_sides)
    if not callable(env):
        expected = "an environment or match, its class, or a factory"
        raise TypeError(f"env: expected {expected}, got {short_repr(env)}")
    made: object = env()
    if not isinstance(made, Environment | Match):
        expected = "a factory of an Environment or a Match"
        raise TypeError(f"env: expected {expected}, got one of {type(made).__name__}")
    sides = match_of(made).num_sides
    made.close()
    return stack.enter_context(closing(EnvList(env, episodes * sides)))
