"""Episodes that a person plays by hand, alone, with an agent's advice, or against the agent.

Frames are shown as text, with numbered menus of the legal choices.
"""

import contextlib
import textwrap
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt

from entity_env.actions import Action
from entity_env.bot import Bot
from entity_env.environment import Environment, Observation
from entity_env.errors import EntityEnvError
from entity_env.match import Match, Solo
from entity_env.play.bots import SideBots
from entity_env.play.hand import Hand
from entity_env.ragged import Ragged
from entity_env.recording.record import RecordingVecEnv
from entity_env.spaces import (
    GLOBAL,
    ActionName,
    ActionSpace,
    Entity,
    EntityName,
    ObsSpace,
)
from entity_env.vec.batching import batch_entities, batch_obs
from entity_env.vec.serial import EnvList
from entity_env.vec.vec_env import VecEnv, VecObs

Ask: TypeAlias = Callable[[str], str]
"""Shows a prompt and returns the line that was typed; EOFError when there are no more."""
Show: TypeAlias = Callable[[str], None]
"""Shows lines of text."""
Agent: TypeAlias = Callable[[Observation], tuple[Mapping[ActionName, Action], float]]
"""Returns the actions in a frame, with the probabilities of all choices, and the value.

It is called with the frames of all sides in turn. If it has a method `reset`, that is called as a
game begins.
"""

HELP = """\
  2           the choice with this number
  1 1 2       one choice for each of the next actors
  * 2         the same choice for all remaining actors
  (nothing)   the most probable choice of the agent, if there is one; `*` for all remaining actors
  ?           this help
  q           quit; what was recorded so far is kept
Only legal choices are listed. A choice has the same number for every actor."""


class Quit(Exception):  # noqa: N818 (ends a game)
    """The person typed `q` or Ctrl-C, or the input ended."""


@dataclass(frozen=True)
class Menu:
    """Choices of all actors of an action in a frame."""

    titles: list[str]  # the action and each actor
    choices: list[tuple[str, str]]  # names and features; labels have no features
    legal: npt.NDArray[np.bool_]  # (actors, choices)
    probs: npt.NDArray[np.float32] | None  # (actors, choices), of an agent; None if not known
    advised: list[int]  # the choice of the agent for each actor

    def ask(self, prompt: str, ask: Ask, show: Show) -> list[int]:
        """Return the choice of each actor, counted from 0, when all have been typed.

        Raises:
            Quit: the person wants to.
        """
        chosen: list[int] = []
        listed = -1
        while len(chosen) < len(self.titles):
            actor, remaining = len(chosen), len(self.titles) - len(chosen)
            if listed != actor:  # not again after a mistake
                listed = actor
                show(self.listed(actor))
            of_all = f" [1 of {remaining}]" if remaining > 1 else ""
            text = ask_line(f"{prompt}{of_all}> ", ask, show)
            words = text.split() or [""]
            if text.startswith("*"):
                words = (text[1:].split() or [""]) * remaining
            try:
                if len(words) > remaining:
                    raise ValueError(f"{prompt}: expected at most {remaining} choices, got {text}")
                chosen += [self.find(word, actor + i) for i, word in enumerate(words)]
            except ValueError as error:
                show(str(error))
        return chosen

    def find(self, word: str, actor: int) -> int:
        """Return the choice with a number; without one, the most probable.

        Raises:
            ValueError: the actor has no such choice, or the probabilities are not known.
        """
        legal = np.flatnonzero(self.legal[actor])
        if not word and self.probs is not None:
            return int(legal[self.probs[actor, legal].argmax()])
        numbers = [str(choice + 1) for choice in legal]
        if word in numbers:
            return int(word) - 1
        expected = ", ".join(numbers) if len(numbers) < 12 else f"{numbers[0]} to {numbers[-1]}"
        got = f"{word!r}" if word else "nothing"
        raise ValueError(f"{self.titles[actor]}: expected {expected}, got {got}; ? for help")

    def listed(self, actor: int) -> str:
        """Return an actor and its numbered choices."""
        cells = []
        for choice in np.flatnonzero(self.legal[actor]).tolist():
            name, features = self.choices[choice]
            cells.append(f"{choice + 1}) {name}" + (f"  ({features})" if features else ""))
            if self.probs is not None:
                best = " <- Enter" if choice == self.find("", actor) else ""
                cells[-1] += f"  {self.probs[actor, choice]:.1%}{best}"
        if not any(features for _, features in self.choices):  # several in a line
            words = "   ".join(cell.replace(" ", "\0") for cell in cells)
            lines = textwrap.wrap(words, 80, break_long_words=False, break_on_hyphens=False)
            cells = [line.replace("\0", " ") for line in lines]
        return "\n  ".join([f"{self.titles[actor]}:", *cells])


def ask_line(prompt: str, ask: Ask, show: Show) -> str:
    """Return the line that was typed, after answering `?`.

    Raises:
        Quit: `q` or Ctrl-C was typed, or there are no more lines.
    """
    while True:
        try:
            text = ask(prompt).strip()
        except (EOFError, KeyboardInterrupt):
            raise Quit from None
        if text == "q":
            raise Quit
        if text != "?":
            return text
        show(HELP)


def menus_of(
    obs: Observation,
    obs_space: ObsSpace,
    action_space: Mapping[ActionName, ActionSpace],
    advice: Mapping[ActionName, Action],
) -> dict[ActionName, Menu]:
    """Return the menus of a frame by action, with the choices and probabilities in `advice`."""
    batch = batch_obs([obs], obs_space, action_space)
    # By position in the frame; the global actor comes last.
    by_type = _entities_by_type(obs, obs_space, batch.features, batch.kinds)
    entities = [*chain.from_iterable(by_type.values()), ("", "")]
    menus = {}
    for name, space in action_space.items():
        mask, action = batch.action_masks[name], advice.get(name)
        actors = [entities[i] for i in mask.actors.values]
        titles = [f"{name}, {actor} ({features})" for actor, features in actors]
        titles = [title.removesuffix(" ()").removesuffix(", ") for title in titles]
        choices = [(label, "") for label in space.labels]
        if mask.actees is not None:
            choices = [entities[i] for i in mask.actees.values]
        shape = len(titles), len(choices)
        legal = np.ones(shape, np.bool_) if mask.mask is None else mask.mask.values.reshape(shape)
        advised = []
        if action is not None:
            advised = space.encode(name, [action], mask, [obs], obs_space).values.tolist()
        probs = None if titles else np.zeros(shape, np.float32)
        if action is not None and action.probs is not None:
            probs = np.asarray(action.probs, dtype=np.float32).reshape(shape)
        menus[name] = Menu(titles, choices, legal, probs, advised)
    return menus


def frame_text(obs: Observation, obs_space: ObsSpace) -> str:
    """Return the globals and the visible entities of a frame, type by type."""
    rows, visible, kinds = batch_entities([obs], obs_space, with_globals=True)
    lines = []
    if obs_space.global_features or obs_space.global_kinds:
        [text] = _features(obs_space.global_entity, rows[GLOBAL], kinds.get(GLOBAL))
        lines.append(f"globals: {text}")
    for name, entities in _entities_by_type(obs, obs_space, rows, kinds).items():
        flags = visible[name].values if name in visible else [True] * len(entities)
        seen = [entity for entity, is_seen in zip(entities, flags, strict=True) if is_seen]
        lines.append(f"{name}: {len(seen) or 'none'}")
        lines += [f"  {entity}  {features}".rstrip() for entity, features in seen]
    return "\n".join(lines)


def _entities_by_type(
    obs: Observation,
    obs_space: ObsSpace,
    rows: Mapping[EntityName, Ragged],
    kinds: Mapping[EntityName, Ragged],
) -> dict[EntityName, list[tuple[str, str]]]:
    """Return name and features of each entity of a frame, also of those that are not visible."""
    return {
        name: [
            (f"{name} {row if i == (name, row) else i}", text)
            for row, (i, text) in enumerate(
                zip(
                    obs.ids_of_type(name),
                    _features(entity, rows[name], kinds.get(name)),
                    strict=True,
                )
            )
        ]
        for name, entity in obs_space.entities.items()
    }


def _features(entity: Entity, rows: Ragged, indices: Ragged | None) -> list[str]:
    """Return the features of each entity of a type on one line, with labels for kinds."""
    texts = []
    labels: Any = [()] * len(rows.values) if indices is None else indices.values
    for values, of_row in zip(rows.values, labels, strict=True):
        shown = [f"{name} {v:.4g}" for name, v in zip(entity.features, values, strict=True)]
        of_kinds = zip(entity.kinds, of_row, strict=True)
        shown += [f"{kind.name} {kind.labels[i]}" for kind, i in of_kinds]
        texts.append(", ".join(shown))
    return texts


class PlayedEpisode(NamedTuple):
    """The returns of all sides (an `Environment` has one) and the steps of a whole episode."""

    returns: list[float]
    steps: int


def play_by_hand(
    create_env: Callable[[], Environment | Match],
    ask: Ask,
    show: Show,
    *,
    seed: int = 0,
    episodes: int | None = None,
    agent: Agent | type[Bot] | None = None,
    side: int | None = None,
    record: str | Path | None = None,
) -> list[PlayedEpisode]:
    """Show frames and ask for actions until enough episodes are played or the person quits.

    `HELP` lists the input. Ctrl-C and the end of the input quit as well.

    Args:
        create_env: makes the environment, or a match, of which the person plays all sides in turn.
        ask: shows a prompt and returns a line.
        show: shows text.
        seed: of the episodes.
        episodes: how many to play; without it the person is asked after each.
        agent: its probabilities and value are shown, and the probabilities recorded; or the class
            of a bot, one of which advises or plays each side.
        side: the only side that the person plays; the agent plays the others.
        record: a file for a recording with a frame for each side; one that exists is continued. An
            episode that the person quits is "unfinished" in it.

    Raises:
        EntityEnvError: the match has no such `side`, or there is no agent for the others.
        RecordingError: the file is damaged, or a recording of something else.
        InvalidObservation: the environment returned what its spaces do not allow.
    """
    game = _Game(create_env(), ask, show, agent, side, seed)
    if side is not None and (agent is None or side not in range(game.num_sides)):
        game.close()
        raise EntityEnvError(
            f"side: expected one of {list(range(game.num_sides))} and an agent that plays the "
            f"others, got {side} and {'no agent' if agent is None else 'an agent'}"
        )
    envs: VecEnv = EnvList(lambda: game, game.num_sides, validate=True)
    if record is not None:
        envs.track()  # so that memory can learn from the recording
        envs = RecordingVecEnv(envs, record)
    envs.seed(seed)
    played: list[PlayedEpisode] = []
    with contextlib.closing(envs), contextlib.suppress(Quit, KeyboardInterrupt):
        envs.reset(game.obs_space())
        while len(played) != episodes:
            played.append(game.play_episode(envs, len(played) + 1))
            if episodes is None:
                ask_line("Enter plays another episode, q quits> ", ask, show)
    return played


class _Game(Match):
    """A match in which a person plays. It keeps its last frames, and how an episode ended."""

    def __init__(
        self,
        env: Environment | Match,
        ask: Ask,
        show: Show,
        agent: Agent | type[Bot] | None,
        side: int | None,
        seed: int,
    ) -> None:
        self.match = env if isinstance(env, Match) else Solo(env)
        self.num_sides = self.match.num_sides
        self.ask, self.show, self.agent, self.side = ask, show, agent, side
        self.bots: SideBots | None = None
        if isinstance(agent, type):
            self.bots = SideBots(agent, self.num_sides, seed)
        self.frames: list[Observation] = []
        self.end = ""

    def obs_space(self) -> ObsSpace:
        return self.match.obs_space()

    def action_space(self) -> dict[ActionName, ActionSpace]:
        return self.match.action_space()

    def seed(self, seed: int) -> None:
        self.match.seed(seed)

    def close(self) -> None:
        self.match.close()

    def reset(self) -> list[Observation]:
        self.frames = self.match.reset()
        if self.bots is not None:
            self.bots.begin()
        if (reset := getattr(self.agent, "reset", None)) is not None and self.bots is None:
            reset()  # of an agent that remembers
        return self.frames

    def act(self, actions: Sequence[Mapping[ActionName, Action]]) -> list[Observation]:
        self.frames = self.match.act(actions)
        if any(obs.done for obs in self.frames):
            self.end = self.picture() or frame_text(self.frames[0], self.obs_space())
        return self.frames

    def picture(self) -> str | None:
        """Return the environment as text, None if it does not render text."""
        try:
            text = self.match.render(mode="text")
        except (NotImplementedError, TypeError, ValueError, EntityEnvError):
            return None
        return text if isinstance(text, str) else None

    def play_episode(self, envs: VecEnv, number: int) -> PlayedEpisode:
        """Play in `envs`, which step this match, until the episode ends."""
        totals, steps, over = np.zeros(self.num_sides), 0, False
        while not over:
            self.show(f"\nepisode {number}, step {steps}, return {_numbers(totals)}")
            obs = self.step(envs)
            totals, steps, over = totals + obs.reward, steps + 1, bool(obs.done[0])
        how = "was cut off" if obs.truncated[0] else "is over"
        self.show(f"\n{self.end}")
        self.show(f"episode {number} {how}: {steps} steps, return {_numbers(totals)}")
        return PlayedEpisode(totals.tolist(), steps)

    def step(self, envs: VecEnv) -> VecObs:
        """Let all sides choose, and take a step."""
        obs_space, action_space, picture = self.obs_space(), self.action_space(), self.picture()
        if picture is not None:
            self.show(picture)
        batch = batch_obs(self.frames, obs_space, action_space)
        by_person = np.array([self.side in (None, side) for side in range(self.num_sides)])
        lengths = {name: mask.actors.lengths for name, mask in batch.action_masks.items()}
        hand = Hand(batch, action_space, {n: np.repeat(by_person, m) for n, m in lengths.items()})
        menus: list[dict[ActionName, Menu]] = []
        for side, (obs, (advice, value)) in enumerate(
            zip(self.frames, self.advice(batch), strict=True)
        ):
            own = menus_of(obs, obs_space, action_space, advice)
            menus.append(own)

            # A side that the agent plays.
            if not by_person[side]:
                taken = [
                    f"{name} {', '.join(menu.choices[i][0] for i in menu.advised)}"
                    for name, menu in own.items()
                    if menu.advised
                ]
                self.show(f"side {side}, the agent: {'; '.join(taken) or 'nothing to choose'}")
                continue

            # A side that the person plays.
            if self.num_sides > 1:
                self.show(f"side {side}")
            if picture is None:
                self.show(frame_text(obs, obs_space))
            if value is not None:
                self.show(f"the agent expects {value:.3g}")
            for name, menu in own.items():
                first = int(batch.action_masks[name].actors.starts[side])
                for i, choice in enumerate(menu.ask(name, self.ask, self.show)):
                    hand.choose(name, first + i, choice)
        if not any(taken.any() for taken in hand.taken.values()):
            ask_line("nothing to choose, Enter continues> ", self.ask, self.show)

        advised = {}
        if self.agent is not None:
            for name in lengths:
                advised[name] = _cat([np.array(own[name].advised, np.int64) for own in menus])
        actions, by_hand = hand.fill(advised)
        if not isinstance(envs, RecordingVecEnv):
            return envs.act(actions, obs_space)
        probs, logits = ({}, {}) if self.agent is None else self.probs_and_logits(menus, actions)
        return envs.act(actions, obs_space, probs, logits, by_hand=by_hand)

    def advice(self, batch: VecObs) -> list[tuple[Mapping[ActionName, Action], float | None]]:
        """Return the actions that the agent would take for each side, and the value."""
        if self.bots is not None:
            spaces = self.obs_space(), self.action_space()
            return [(actions, None) for actions in self.bots.act(self.frames, batch, *spaces)]
        if self.agent is None or isinstance(self.agent, type):
            return [({}, None)] * self.num_sides
        return list(map(self.agent, self.frames))

    def probs_and_logits(
        self, menus: Sequence[Mapping[str, Menu]], actions: Mapping[ActionName, Ragged]
    ) -> tuple[dict[ActionName, Ragged], dict[ActionName, Ragged]]:
        """Return how probable the agent finds the choices of all sides, and logits of all choices.

        Raises:
            ValueError: the agent gives no probabilities.
        """
        probs, logits = {}, {}
        for name, space in self.action_space().items():
            known = [p for own in menus if (p := own[name].probs) is not None]
            if len(known) < len(menus):
                raise ValueError(
                    f"agent: expected the probabilities of all choices of {name!r} to record, got "
                    "none"
                )
            chosen = actions[name]
            of_sides = np.split(chosen.values, chosen.starts[1:])
            rows = zip(known, of_sides, strict=True)
            probs[name] = _cat([p[np.arange(len(c)), c] for p, c in rows])
            with np.errstate(divide="ignore"):  # illegal choices have -inf
                logits[name] = _cat([np.log(p).reshape(-1, *space.mask_columns) for p in known])
        return probs, logits


def _cat(rows: Sequence[npt.NDArray[Any]]) -> Ragged:
    return Ragged(np.concatenate(rows), np.array([len(row) for row in rows]))


def _numbers(values: npt.NDArray[np.float64]) -> str:
    return ", ".join(f"{value:.4g}" for value in values)
