"""Episodes that a person plays by hand, alone, with an agent's advice, or against the agent."""

import contextlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt

from entity_env.actions import Action
from entity_env.environment import Environment, Observation
from entity_env.errors import EntityEnvError
from entity_env.match import Match, Solo
from entity_env.play.menu import (
    Ask,
    Menu,
    Quit,
    Show,
    ask_line,
    entities_by_type,
    features_text,
    menus_of,
)
from entity_env.ragged import Ragged
from entity_env.recording.record import RecordingVecEnv
from entity_env.spaces import GLOBAL, ActionName, ActionSpace, ObsSpace
from entity_env.vec.env_list import EnvList
from entity_env.vec.features import batch_entities
from entity_env.vec.vec_env import VecObs

Agent: TypeAlias = Callable[[Observation], tuple[Mapping[ActionName, Action], float]]
"""Returns the actions in a frame, with the probabilities of all choices, and the value."""


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
    agent: Agent | None = None,
    side: int | None = None,
    record: str | Path | None = None,
) -> list[PlayedEpisode]:
    """Show frames and ask for actions until enough episodes are played or the person quits.

    `menu.HELP` lists the input. Ctrl-C and the end of the input quit as well.

    Args:
        create_env: makes the environment, or a match, of which the person plays all sides in turn.
        ask: shows a prompt and returns a line.
        show: shows text.
        seed: of the episodes.
        episodes: how many to play; without it the person is asked after each.
        agent: its probabilities and value are shown, and the probabilities recorded.
        side: the only side that the person plays; the agent plays the others.
        record: a file for a recording with a frame for each side; one that exists is continued. An
            episode that the person quits is "unfinished" in it.

    Raises:
        EntityEnvError: the match has no such `side`, or there is no agent for the others.
        RecordingError: the file is damaged, or a recording of something else.
        InvalidObservation: the environment returned what its spaces do not allow.
    """
    world = _ShownMatch(create_env())
    if side is not None and (agent is None or side not in range(world.num_sides)):
        world.close()
        raise EntityEnvError(
            f"side: expected one of {list(range(world.num_sides))} and an agent that plays the "
            f"others, got {side} and {'no agent' if agent is None else 'an agent'}"
        )
    envs: Any = EnvList(lambda: world, world.num_sides, validate=True)
    if record is not None:
        envs = RecordingVecEnv(envs, record)
    envs.seed(seed)
    game = _Game(world, envs, ask, show, agent, side, record is not None)
    played: list[PlayedEpisode] = []
    with contextlib.closing(envs), contextlib.suppress(Quit, KeyboardInterrupt):
        envs.reset(envs.obs_space())
        while len(played) != episodes:
            played.append(game.play_episode(len(played) + 1))
            if episodes is None:
                ask_line("Enter plays another episode, q quits> ", ask, show)
    return played


class _ShownMatch(Match):
    """A match that keeps its last frames, and how it looked at the end of an episode."""

    def __init__(self, env: Environment | Match) -> None:
        self.match = env if isinstance(env, Match) else Solo(env)
        self.num_sides = self.match.num_sides
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
        return self.frames

    def act(self, actions: Sequence[Mapping[ActionName, Action]]) -> list[Observation]:
        self.frames = self.match.act(actions)
        if any(obs.done for obs in self.frames):
            self.end = self.picture() or _table(self.frames[0], self.obs_space())
        return self.frames

    def picture(self) -> str | None:
        """Return the environment as text, None if it does not render text."""
        try:
            text = self.match.render(mode="text")
        except (NotImplementedError, TypeError, ValueError, EntityEnvError):
            return None
        return text if isinstance(text, str) else None


@dataclass
class _Game:
    world: _ShownMatch
    envs: Any
    ask: Ask
    show: Show
    agent: Agent | None
    side: int | None
    is_recorded: bool

    def play_episode(self, number: int) -> PlayedEpisode:
        """Play until the episode ends."""
        totals, steps, over = np.zeros(self.world.num_sides), 0, False
        while not over:
            self.show(f"\nepisode {number}, step {steps}, return {_numbers(totals)}")
            obs = self.step()
            totals, steps, over = totals + obs.reward, steps + 1, bool(obs.done[0])
        how = "was cut off" if obs.truncated[0] else "is over"
        self.show(f"\n{self.world.end}")
        self.show(f"episode {number} {how}: {steps} steps, return {_numbers(totals)}")
        return PlayedEpisode(totals.tolist(), steps)

    def step(self) -> VecObs:
        """Let all sides choose, and take a step."""
        picture = self.world.picture()
        if picture is not None:
            self.show(picture)
        menus, chosen, is_asked = [], [], False
        for side, obs in enumerate(self.world.frames):
            menus.append(self.show_side(side, obs, has_picture=picture is not None))
            if self.side in (None, side):
                is_asked |= any(menu.titles for menu in menus[-1].values())
                chosen.append({n: m.ask(n, self.ask, self.show) for n, m in menus[-1].items()})
            else:
                chosen.append({name: menu.advised for name, menu in menus[-1].items()})
        if not is_asked:
            ask_line("nothing to choose, Enter continues> ", self.ask, self.show)
        actions = {name: _cat([np.array(c[name], np.int64) for c in chosen]) for name in chosen[0]}
        has_probs = self.is_recorded and self.agent is not None
        recorded = self.probs_and_logits(menus, chosen) if has_probs else ()
        shown: VecObs = self.envs.act(actions, self.world.obs_space(), *recorded)
        return shown

    def probs_and_logits(
        self, menus: Sequence[Mapping[str, Menu]], chosen: Sequence[Mapping[str, list[int]]]
    ) -> tuple[dict[ActionName, Ragged], dict[ActionName, Ragged]]:
        """Return how probable the agent finds the choices of all sides, and logits of all choices.

        Raises:
            ValueError: the agent gives no probabilities.
        """
        probs, logits = {}, {}
        for name, space in self.world.action_space().items():
            sides = []
            for menu in (of_side[name] for of_side in menus):
                if menu.probs is None:
                    raise ValueError(
                        f"agent: expected the probabilities of all choices of {name!r} to record, "
                        "got none"
                    )
                sides.append(menu.probs)
            rows = zip(sides, (c[name] for c in chosen), strict=True)
            probs[name] = _cat([p[np.arange(len(c)), c] for p, c in rows])
            with np.errstate(divide="ignore"):  # illegal choices have -inf
                logits[name] = _cat([np.log(p).reshape(-1, *space.mask_columns) for p in sides])
        return probs, logits

    def show_side(self, side: int, obs: Observation, has_picture: bool) -> dict[ActionName, Menu]:
        """Show what a side sees, or what the agent chose for it, and return its menus."""
        spaces = self.world.obs_space(), self.world.action_space()
        advice, value = ({}, None) if self.agent is None else self.agent(obs)
        menus = menus_of(obs, *spaces, advice)
        if self.side not in (None, side):
            chosen = [
                f"{name} {', '.join(menu.choices[i][0] for i in menu.advised)}"
                for name, menu in menus.items()
                if menu.advised
            ]
            self.show(f"side {side}, the agent: {'; '.join(chosen) or 'nothing to choose'}")
            return menus
        if self.world.num_sides > 1:
            self.show(f"side {side}")
        if not has_picture:
            self.show(_table(obs, spaces[0]))
        if value is not None:
            self.show(f"the agent expects {value:.3g}")
        return menus


def _table(obs: Observation, obs_space: ObsSpace) -> str:
    """Return the globals and the visible entities of a frame, type by type."""
    rows, visible = batch_entities([obs], obs_space, with_globals=True)
    lines = []
    if obs_space.global_features:
        globals_text = features_text(obs_space.global_features, rows[GLOBAL].values[0])
        lines.append(f"globals: {globals_text}")
    for name, entities in entities_by_type(obs, obs_space).items():
        flags = visible[name].values if name in visible else [True] * len(entities)
        seen = [entity for entity, is_seen in zip(entities, flags, strict=True) if is_seen]
        lines.append(f"{name}: {len(seen) or 'none'}")
        lines += [f"  {entity}  {features}".rstrip() for entity, features in seen]
    return "\n".join(lines)


def _cat(rows: Sequence[npt.NDArray[Any]]) -> Ragged:
    return Ragged(np.concatenate(rows), np.array([len(row) for row in rows]))


def _numbers(values: npt.NDArray[np.float64]) -> str:
    return ", ".join(f"{value:.4g}" for value in values)
