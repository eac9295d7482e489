"""Replays of episodes as they are played, of evaluations or of `replay` for a loaded agent."""

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
    env_list_of,
    film_of_suite,
    picture_of,
    png_of,
)
from enn_trainer.experience.collector import Collector, Watcher, play
from enn_trainer.experience.players import AgentPlayer, Decisions
from enn_trainer.viewer.episodes import episode_of_frames, recorded
from enn_trainer.viewer.moments import explain_replay
from enn_trainer.viewer.replay import Episode, Replay
from enn_trainer.viewer.replay_format import WrittenReplay, page_of, write_replay
from entity_env.actions import EntityID, EntityName
from entity_env.arrays import Float32Array, IntArray
from entity_env.environment import Environment
from entity_env.errors import EntityEnvError, short_repr, truncate
from entity_env.match import CreateEnv, Match, match_of, world_of
from entity_env.recording import recording_format
from entity_env.seeding import derive_seed, global_randomness_kept
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
EPISODES = 3
MOST_NAME = 100
MOST_SHOWN_MB = 20.0
"""Size of the largest page that a notebook shows, which keeps it in its own file."""
MOST_STEPS = 2000
"""Steps of an episode that are shown; each costs room and forward passes."""


@dataclass(frozen=True)
class ReplaySettings:
    """Settings of the replay of an evaluation.

    Attributes:
        path: the page to write; None to return the replay, and to play only what it shows.
        episodes: number of episodes, or of matches.
        max_steps: number of steps after which an episode is cut.
        positions: names of the features that are positions, see `view_of`.
        beside: makes another agent, whose answers to the same frames are shown; None for none.
        pictures: True to show the world's own picture beside each step.
    """

    path: Path | None = None
    episodes: int = EPISODES
    max_steps: int = MOST_STEPS
    positions: Sequence[str] = ()
    beside: CreateAgent | None = None
    pictures: bool = False


class EpisodeKeeper:
    """Watcher of a collector that keeps the first episodes of an agent.

    They are those that an evaluation of as many episodes counts: as many of each environment, or
    match, in which the agent acts, except that the first ones have one more.

    Args:
        envs: B environments, before their first reset. Their entities are numbered if they have
            ids.
        own: (n,) int64, those in which the agent acts.
        settings: of the replay.
        running: the arguments of the running episodes; None if they do not vary.

    Raises:
        ConfigError: there are to be pictures of environments that are not stepped one by one.

    Attributes:
        settings: as given.
        sides: number of sides of a match.
        beside: the other agent, if there is one.
    """

    def __init__(
        self,
        envs: VecEnv,
        own: IntArray,
        settings: ReplaySettings,
        running: RunningArguments | None = None,
    ) -> None:
        self._arguments = running
        self.settings, self.sides, self._own = settings, envs.sides, set(own.tolist())
        self._obs_space, self._action_space = envs.obs_space(), envs.action_space()
        beside = settings.beside
        self.beside = None if beside is None else beside(Spaces.of(envs))
        self._env_list = env_list_of(envs)
        if settings.pictures and self._env_list is None:
            expected = "pictures: expected environments or matches that are stepped one by one"
            raise ConfigError(f"{expected}, got {type(envs).__name__}; leave pictures out")
        with suppress(EntityEnvError):  # raised where entities have no ids
            envs.track()
        matches = np.unique(own // self.sides)
        quota = quotas(settings.episodes, np.ones(len(matches), np.bool_))
        self._quota = {i: n for i, n in zip(matches.tolist(), quota.tolist(), strict=True) if n}
        self._running = {match: self._begun(match, 0) for match in self._quota}
        self._playing: list[int] = []  # matches whose current frames are kept
        self._ended: list[_Played] = []
        self._kept: list[recording_format.Decisions] = []
        self._num_frames = 0

    def is_own(self, episode: Episode, side: int) -> bool:
        """Return True if the agent acts for a side in an episode."""
        return (episode.env or 0) * self.sides + side in self._own

    def is_done(self) -> bool:
        """Return True when no episode is left to keep."""
        return not self._running

    def share_ended(self) -> float:
        """Return the share of the episodes that have ended, from 0 to 1."""
        return len(self._ended) / self.settings.episodes

    def begin(self, obs: VecObs, shown: ObsSpace, state: Mapping[str, Any] | None) -> None:
        """Take the first frames."""
        self._obs_space = shown

    def before_step(
        self, obs: VecObs, batch: EntityBatch, decisions: Decisions, run_step: int | None
    ) -> None:
        """Keep frames and decisions, except between two episodes."""
        is_padding = obs.is_padding[:: self.sides]
        self._playing = [match for match in self._running if not is_padding[match]]
        if not self._playing:
            return
        rows = np.concatenate([self._rows(match) for match in self._playing])
        self._kept.append(recorded(obs.take(rows), batch.take(rows), decisions.take(rows)))
        for match in self._playing:
            one = self._running[match]
            if self._arguments is not None:
                one.parameters = dict(self._arguments.arguments[match])
            if (env_list := self._env_list) is not None:
                if self.settings.pictures:
                    shown = env_list.matches[match]
                    name = type(world_of(shown)).__name__
                    picture = picture_of(shown, name, "pictures", "leave pictures out")
                    one.pictures[len(one.frames)] = png_of(picture)
                for (side, name), ids in one.ids.items():  # before a step that ends the episode
                    ids += env_list.tracked_ids(match * self.sides + side, name, len(ids))
            one.frames.append(np.arange(self.sides) + self._num_frames)
            self._num_frames += self.sides

    def after_step(self, obs: VecObs) -> None:
        """Keep rewards, and the ends of episodes."""
        for match in self._playing:
            one = self._running[match]
            one.rewards.append(obs.reward[self._rows(match)])
            first = match * self.sides
            one.ends = {name: bool(getattr(obs, name)[first]) for name in one.ends}
            if obs.done[first] or len(one.frames) == self.settings.max_steps:
                self._ended.append(self._running.pop(match))
            if obs.done[first] and one.number + 1 < self._quota[match]:
                self._running[match] = self._begun(match, one.number + 1)

    def get_state(self) -> dict[str, Any]:
        """Return nothing, as no episode is continued."""
        return {}

    def replay(
        self, title: str, about: dict[str, str], discount: float, net: RogueNetConfig | None = None
    ) -> Replay:
        """Return a replay of the episodes, without moments and explanations, before `envs` close.

        Args:
            title: of the page.
            about: facts by name.
            discount: per step.
            net: the network, which may have position features.

        Raises:
            InvalidView: the view of the world, or `positions`, do not fit its space.
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

    def _episodes(self) -> list[Episode]:
        """Return the episodes in order: the first one of each environment, the second ones, ..."""
        played = [*self._ended, *(one for one in self._running.values() if one.frames)]
        if not played:
            return []
        kept, episodes = recording_format.Decisions.cat(self._kept), []
        for one in sorted(played, key=lambda one: (one.number, one.match)):
            decisions = kept.take(np.concatenate(one.frames))
            rewards, names = np.concatenate(one.rewards), _names(self.sides, one.ids)
            others: dict[str, Any] = {"pictures": one.pictures, "env": one.match}
            others |= {**one.ends, "names": names, "parameters": one.parameters}
            episodes.append(episode_of_frames(decisions, rewards, self._action_space, **others))
        return episodes

    def _begun(self, match: int, number: int) -> "_Played":
        who = product(range(self.sides), self._obs_space.entities)
        return _Played(match, number, {one: [] for one in who})

    def _rows(self, match: int) -> IntArray:
        """Return the environments that are the sides of a match."""
        return np.arange(match * self.sides, (match + 1) * self.sides)


@dataclass
class _Played:
    """An episode: its match, its number in it, and where its frames are among all that are kept.

    `ids` has those of each side and type, in the order of `VecObs.identity`.
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
    """Return the printed id by side, type and number of identity; [] if no entity has one."""
    names: list[dict[EntityName, dict[int, str]]] = [{} for _ in range(sides)]
    for side, of_side in enumerate(names):
        own = {name: of_type for (i, name), of_type in ids.items() if i == side and of_type}
        texts = iter(printed_ids([*chain.from_iterable(own.values())]))
        of_side |= {name: {i: next(texts) for i in range(len(own[name]))} for name in own}
    return names if any(names) else []


def printed_ids(ids: Sequence[EntityID]) -> list[str]:
    """Return a text for each id: no two are the same, and none is much longer than 100 characters.

    An id that is printed like an earlier one gets its position: `1` and "1" are 1 and 1 #1.
    """
    texts: dict[str, None] = {}
    for number, one in enumerate(ids):
        text = truncate(one, MOST_NAME) if isinstance(one, str) else short_repr(one, MOST_NAME)
        while text in texts:
            text = f"{text} #{number}"
        texts[text] = None
    return [*texts]


def plain_view(
    own: View | None,
    obs_space: ObsSpace,
    positions: Sequence[str] = (),
    net: RogueNetConfig | None = None,
) -> dict[str, Any]:
    """Return the view of a world as plain data.

    Args:
        own: what `view` of the world returns.
        obs_space: its space.
        positions: names of features that are positions, in place of its own.
        net: the network, which may have position features.

    Raises:
        InvalidView: the view or the positions do not fit the space.
    """
    sections = (net.relpos_encoding, net.translation) if net else ()
    of_network = next((s.position_features for s in sections if s and s.position_features), ())
    return asdict(view_of(own, obs_space, positions, of_network))


class SuiteReplay(EpisodeCapture):
    """Replay of the first episodes of a suite, returned or written as a page.

    Args:
        settings: of the replay.
    """

    processes = 1

    def __init__(self, settings: ReplaySettings) -> None:
        self._settings = settings

    def of_suite(self, name: str) -> "SuiteReplay":
        """Return the replay of a suite; a page appends its name."""
        path = self._settings.path
        if path is None:
            return SuiteReplay(self._settings)
        return SuiteReplay(replace(self._settings, path=film_of_suite(path, name)))

    def watchers(self, envs: EpisodeStatistics, agent: IntArray, stack: ExitStack) -> list[Watcher]:
        """Return the watcher that keeps episodes."""
        self._keeper = EpisodeKeeper(envs, agent, self._settings, envs.running)
        return [self._keeper]

    def progress(self, share: float, is_done: bool) -> tuple[float, bool]:
        """Return that of the replay, if nothing else is to be played."""
        if self._settings.path is not None:
            return share, is_done
        return self._keeper.share_ended(), self._keeper.is_done()

    def results(self, facts: EvaluationFacts) -> dict[str, Any]:
        """Return the replay; or the page, or the reason why it is missing.

        Raises:
            InvalidView: the view of the world, or the given positions, do not fit its space, and
                no page was to be written.
        """

        def replay() -> Replay:
            keeper, config = self._keeper, facts.config
            played = keeper.replay(facts.title, facts.about, config.ppo.gamma, config.net)
            share_of = partial(facts.watch, EXPLAINING)
            explain_replay(played, facts.network, keeper.beside, keeper.is_own, share_of)
            return played

        path = self._settings.path
        if path is None:
            return {"replay": replay()}
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            write_replay(replay(), path)
        except Exception as error:  # `view` is code of the world; metrics do not depend on it
            return {"page_problem": cannot_write(path, error, "eval.capture_replays")}
        return {"page": path}


class PlayedReplay(Replay):
    """A replay that can be written, and that notebooks show."""

    def write(self, path: str | Path, max_mb: float = 20.0) -> WrittenReplay:
        """Write the page on which the episodes can be watched, completely or not at all.

        Args:
            path: of the page, in a folder that exists.
            max_mb: the most megabytes (10**6 bytes) of the page, see `docs/watching.md`.

        Raises:
            ReplayError: there is a file that is no replay; one episode alone is larger than
                `max_mb`; or the file cannot be written.
        """
        return write_replay(self, path, max_mb)

    def _repr_html_(self) -> str:
        """Return the page in a frame that may run its script and nothing else."""
        try:
            page, _ = page_of(self, MOST_SHOWN_MB)
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
    max_steps: int = MOST_STEPS,
    discount: float = PPOConfig.gamma,
    positions: Sequence[str] = (),
    beside: RogueNetAgent | None = None,
    pictures: bool = False,
) -> PlayedReplay:
    """Let an agent play, and return the episodes with its probabilities, values and explanations.

    The agent acts for all sides. The same arguments give the same episodes, whatever was played
    before. The agent, and all random number generators, stay as they are.

    Args:
        agent: as `load_agent` returns it, with `env=` if it was trained in another world.
        env: an environment or match, which begins new episodes and is not closed; or its class, or
            a function that makes one, of which each episode has its own.
        episodes: number of episodes, or of matches.
        seed: seed of the episodes and choices.
        max_steps: number of steps after which an episode is shown as far as it was played.
        discount: per step, for the returns that are compared with the values.
        positions: names of the features that are positions; by default those of the world's view,
            then features with usual names.
        beside: another agent, whose answers to the same frames are shown.
        pictures: True to show the world's own `render(mode="rgb_array")` beside each step.

    Raises:
        TypeError: `env` is no environment or match, and makes none.
        ValueError: its spaces are not those of the agents, or `episodes` or `max_steps` is below 1.
        ConfigError: there are to be pictures of a world that does not render.
        InvalidView: the view of the world, or `positions`, do not fit its space.
    """
    for name, count in ("episodes", episodes), ("max_steps", max_steps):
        if count < 1:
            raise ValueError(f"{name}: expected 1 or more, got {count}")
    with ExitStack() as stack:
        # The environments, whose spaces are those of the agent.
        stack.enter_context(global_randomness_kept())
        envs = _env_list(env, episodes, stack)
        spaces = Spaces.of(envs)
        for name, player in ("the agent", agent), ("beside", beside):
            if player is None:
                continue
            diff = diff_spaces(Spaces(player.obs_space, player.action_space), spaces)
            if different := [*diff.changed, *diff.reordered_labels]:
                got = f"{'; '.join(different)}; load_agent(..., env=...) adapts an agent to a world"
                raise ValueError(f"env: expected the spaces of {name}; {got}")

        # Play and explain.
        settings = ReplaySettings(None, episodes, max_steps, positions, pictures=pictures)
        other = None if beside is None else beside.agent
        keeper = EpisodeKeeper(envs, np.arange(len(envs)), settings)
        seed_of_play = derive_seed(seed, "eval")
        seat = AgentPlayer(agent.agent, None if agent.deterministic else seed_of_play)
        collector = Collector(envs, seat, device_of(agent.agent), [keeper])
        steps = max_steps * (episodes * envs.sides // len(envs))
        play(collector, agent.obs_space, steps, seed_of_play, stop=keeper.is_done)
        name = type(world_of(envs.matches[0])).__name__
        about = {"environment": name, "seed": str(seed)}
        played = PlayedReplay(**vars(keeper.replay(name, about, discount)))
        explain_replay(played, agent.agent, other, keeper.is_own)
        return played


def _env_list(env: Environment | Match | CreateEnv, episodes: int, stack: ExitStack) -> EnvList:
    """Return environments for some episodes; the stack closes those that are made here."""
    if isinstance(env, Environment | Match):
        return EnvList(lambda: env, match_of(env).num_sides)
    if not callable(env):
        expected = "an environment or match, its class, or a function that makes one"
        raise TypeError(f"env: expected {expected}, got {short_repr(env)}")
    world: object = env()
    if not isinstance(world, Environment | Match):
        expected = "what makes an Environment or a Match"
        raise TypeError(f"env: expected {expected}, got what makes {type(world).__name__}")
    sides = match_of(world).num_sides
    world.close()
    return stack.enter_context(closing(EnvList(env, episodes * sides)))
