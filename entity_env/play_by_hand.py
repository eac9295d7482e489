"""Playing an environment by hand: a person reads what it shows and types what to do."""

import contextlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from entity_env.actions import Action
from entity_env.env_list import EnvList
from entity_env.environment import Environment, Observation
from entity_env.errors import EntityEnvError
from entity_env.frame_in_words import Turn, table, turns_of
from entity_env.match import Match, Solo
from entity_env.ragged import Ragged
from entity_env.record import RecordingVecEnv
from entity_env.spaces import ActionName, ActionSpace, ObsSpace, SelectEntityActionSpace
from entity_env.typed_choices import Ask, Quit, Show, ask_actors, ask_line
from entity_env.vec_env import VecEnv, VecObs

Agent: TypeAlias = Callable[[Observation], tuple[Mapping[ActionName, Action], float]]
"""What to do in a frame, with the probabilities of all choices, and the return to expect."""

_Decided: TypeAlias = tuple[dict[ActionName, Turn], dict[ActionName, list[int]]]
"""What there was to choose for a side, and what was chosen."""


@dataclass(frozen=True)
class PlayedEpisode:
    """An episode that was played to its end.

    Attributes:
        returns: of every side; of an `Environment` there is one.
        steps: how many there were.
    """

    returns: list[float]
    steps: int


def play_by_hand(
    create_env: Callable[[], Environment | Match],
    ask: Ask,
    show: Show,
    *,
    seed: int = 0,
    episodes: int | None = None,
    agent: Agent | None = None,
    side: int | None = None,
    record: str | Path | None = None,
) -> list[PlayedEpisode]:
    """Show frames and ask for actions until enough episodes are played or somebody quits.

    What can be typed says `typed_choices.HELP`. Ctrl-C and the end of the input quit as well.

    Args:
        create_env: makes the environment, or a match, of which the person plays all sides in turn.
        ask: shows a prompt and returns a line.
        show: shows text.
        seed: of the episodes.
        episodes: how many to play; without it the person is asked after each.
        agent: its probabilities are shown, and recorded, as is what it expects.
        side: the only side that the person plays; the agent plays the others.
        record: a file for a recording with a frame for each side; one that exists is continued. An
            episode that somebody quits is "unfinished" in it.

    Raises:
        EntityEnvError: `side` is none of the match, or there is no agent for the others.
        RecordingError: the file is damaged, or a recording of something else.
        InvalidObservation: the environment returned what its spaces do not allow.
    """
    world = _World(create_env())
    if side is not None and (agent is None or side not in range(world.num_sides)):
        world.close()
        raise EntityEnvError(
            f"side: expected one of {list(range(world.num_sides))} and an agent that plays the "
            f"others, got {side} and {'no agent' if agent is None else 'an agent'}"
        )
    envs: VecEnv = EnvList(lambda: world, world.num_sides, validate=True)
    if record is not None:
        envs = RecordingVecEnv(envs, record)
    envs.seed(seed)
    game = _Game(world, envs, ask, show, agent, side)
    played: list[PlayedEpisode] = []
    with (
        contextlib.closing(envs),
        contextlib.suppress(Quit, KeyboardInterrupt),
    ):
        envs.reset(envs.obs_space())
        while len(played) != episodes:
            played.append(game.play_episode(len(played) + 1))
            if episodes is None:
                ask_line("Enter plays another episode, q quits> ", ask, show)
    return played


class _World(Match):
    """Keeps what was seen last, also at the end of an episode, when others begin the next."""

    def __init__(self, env: Environment | Match) -> None:
        self.match = env if isinstance(env, Match) else Solo(env)
        self.num_sides = self.match.num_sides
        self.frames: list[Observation] = []
        self.end: str | None = None

    def obs_space(self) -> ObsSpace:
        return self.match.obs_space()

    def action_space(self) -> dict[ActionName, ActionSpace]:
        return self.match.action_space()

    def seed(self, seed: int) -> None:
        self.match.seed(seed)

    def reset(self) -> list[Observation]:
        self.frames = self.match.reset()
        return self.frames

    def act(self, actions: Sequence[Mapping[ActionName, Action]]) -> list[Observation]:
        self.frames = self.match.act(actions)
        if any(obs.done for obs in self.frames):
            self.end = self.picture() or table(self.frames[0], self.obs_space())
        return self.frames

    def picture(self) -> str | None:
        """The world as text, if it can do that."""
        try:
            text = self.match.render(mode="text")
        except (NotImplementedError, TypeError, ValueError, EntityEnvError):  # knows no such mode
            return None
        return text if isinstance(text, str) else None

    def close(self) -> None:
        self.match.close()


class _Game:
    def __init__(
        self,
        world: _World,
        envs: VecEnv,
        ask: Ask,
        show: Show,
        agent: Agent | None,
        side: int | None,
    ) -> None:
        self.world, self.envs, self.ask, self.show = world, envs, ask, show
        self.agent, self.side = agent, side
        self.obs_space, self.action_space = envs.obs_space(), envs.action_space()

    def play_episode(self, number: int) -> PlayedEpisode:
        totals, steps, over = np.zeros(len(self.envs)), 0, False
        while not over:
            self.show(f"\nepisode {number}, step {steps}, return {_numbers(totals)}")
            obs = self._step()
            totals, steps, over = totals + obs.reward, steps + 1, bool(obs.done[0])
        how = "was cut off" if obs.truncated[0] else "is over"
        self.show(f"\n{self.world.end}")
        self.show(f"episode {number} {how}: {steps} steps, return {_numbers(totals)}")
        return PlayedEpisode(totals.tolist(), steps)

    def _step(self) -> VecObs:
        picture = self.world.picture()
        if picture is not None:
            self.show(picture)
        decided = [
            self._decide(side, obs, picture is not None)
            for side, obs in enumerate(self.world.frames)
        ]
        people = [turns for side, (turns, _) in enumerate(decided) if self.side in (None, side)]
        if not any(turn.questions for turns in people for turn in turns.values()):
            ask_line("nothing to choose, Enter goes on> ", self.ask, self.show)
        actions = {
            name: _cat([np.array(chosen[name], dtype=np.int64) for _, chosen in decided])
            for name in self.action_space
        }
        if not isinstance(self.envs, RecordingVecEnv):
            return self.envs.act(actions, self.obs_space)
        return self.envs.act(actions, self.obs_space, *self._judged(decided))

    def _decide(self, side: int, obs: Observation, is_shown: bool) -> _Decided:
        """Ask the person or the agent what a side does."""
        advice, value = (None, None) if self.agent is None else self.agent(obs)
        turns = turns_of(obs, self.obs_space, self.action_space, advice)
        if self.side not in (None, side):
            chosen = {n: turn.indices_of((advice or {}).get(n)) for n, turn in turns.items()}
            said = [turns[name].in_words(indices) for name, indices in chosen.items() if indices]
            self.show(f"side {side}, the agent: {'; '.join(said) or 'nothing to choose'}")
            return turns, chosen
        if self.world.num_sides > 1:
            self.show(f"side {side}")
        if not is_shown:
            self.show(table(obs, self.obs_space))
        if value is not None:
            self.show(f"the agent expects {value:.3g}")
        return turns, {
            name: ask_actors(turn.questions, self.ask, self.show) for name, turn in turns.items()
        }

    def _judged(self, decided: Sequence[_Decided]) -> tuple[Any, Any]:
        """How probable the agent finds what was chosen, and everything, as recordings have it."""
        if self.agent is None:
            return None, None
        probs, logits = {}, {}
        for name, space in self.action_space.items():
            sides = [(_probs(turns[name]), chosen[name]) for turns, chosen in decided]
            probs[name] = _cat([p[np.arange(len(c)), c] for p, c in sides])
            with np.errstate(divide="ignore"):  # what is not allowed has -inf
                all_logits = [np.log(p) for p, _ in sides]
            flat = isinstance(space, SelectEntityActionSpace)
            logits[name] = _cat([log.reshape(-1) if flat else log for log in all_logits])
        return probs, logits


def _probs(turn: Turn) -> npt.NDArray[np.float32]:
    if turn.probs is None:
        raise ValueError(
            f"agent: expected the probabilities of all choices of {turn.questions[0].action!r} "
            "to record, got none"
        )
    return turn.probs


def _cat(rows: Sequence[npt.NDArray[Any]]) -> Ragged:
    return Ragged(np.concatenate(rows), np.array([len(row) for row in rows]))


def _numbers(values: npt.NDArray[np.float64]) -> str:
    return ", ".join(f"{value:.4g}" for value in values)
