"""Episodes played by a person: alone, with the advice of an agent, or against an agent.

Frames are shown as text, with numbered menus of legal choices.
"""

import contextlib
from collections.abc import Callable, Mapping, Sequence
from itertools import chain
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt

from entity_env.actions import Action
from entity_env.actions.chains import (
    choose_parts,
    has_choice,
    mask_given_parent,
    parent_rows,
    parents_first,
    spread,
)
from entity_env.arrays import BoolArray, Float32Array, FloatArray
from entity_env.bot import Bot
from entity_env.environment import Environment, Observation
from entity_env.errors import EntityEnvError, InvalidSampler
from entity_env.match import Match, copy_containers, match_of, world_of
from entity_env.play.bots import SideBots
from entity_env.play.menus import AnyMenu, Ask, Menu, NumbersMenu, Quit, Show, ask_line
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
from entity_env.vec.validate import check_same_spaces
from entity_env.vec.variation import Variation, check_parameters
from entity_env.vec.vec_env import VecEnv
from entity_env.vec.vec_obs import Choices, VecActionMask, VecObs

Agent: TypeAlias = Callable[[Observation], tuple[Mapping[ActionName, Action], float]]
"""Function of a frame that returns actions with the probabilities of all choices, and the value.

It is called with the frames of all sides in turn. An optional method `reset` is called at the start
of each game.
"""


def menu_of(
    name: ActionName,
    space: ActionSpace,
    mask: VecActionMask,
    entities: Sequence[tuple[str, str]],
    advice: "Advice",
) -> AnyMenu:
    """Create the menu of an action in a frame.

    Args:
        name: name of the action.
        space: action space.
        mask: mask of the active actors in this frame, given their parent actions.
        entities: name and features of each entity of the frame, and of the global actor.
        advice: choices of an agent for these actors.
    """
    actors = [entities[i] for i in mask.actors.values]
    titles = [f"{name}, {actor} ({features})" for actor, features in actors]
    titles = [title.removesuffix(" ()").removesuffix(", ") for title in titles]
    if space.components:
        return NumbersMenu(titles, space, mask, advice.choices)
    choices = _choices_of(space, mask, entities)
    shape = len(titles), len(choices)
    legal = np.ones(shape, np.bool_) if mask.mask is None else mask.mask.values.reshape(shape)
    return Menu(titles, choices, legal, advice.probs)


def _choices_of(
    space: ActionSpace, mask: VecActionMask, entities: Sequence[tuple[str, str]]
) -> list[tuple[str, str]]:
    """Return the name and features of each choice; labels have no features."""
    if mask.actees is not None:
        return [entities[i] for i in mask.actees.values]
    return [(label, "") for label in space.labels]


class Advice(NamedTuple):
    """Choices of an agent for the actors of an action in one frame.

    Attributes:
        choices: choices in the format of batches; -1 or NaN if unknown.
        probs: (actors, choices) float32, NaN if unknown; None if unknown for all actors.
    """

    choices: npt.NDArray[Any]
    probs: Float32Array | None

    def select(self, actors: BoolArray) -> "Advice":
        """Select actors; `actors` is a mask."""
        return Advice(self.choices[actors], None if self.probs is None else self.probs[actors])

    def masked(self, actors: BoolArray) -> "Advice":
        """Set the advice to unknown for all actors except a mask of them."""
        flags, missing = actors, np.nan if self.choices.dtype.kind == "f" else -1
        choices = np.where(_expand_flags(flags, self.choices), self.choices, missing)
        probs = self.probs
        if probs is not None:
            probs = np.where(_expand_flags(flags, probs), probs, np.float32(np.nan))
        return Advice(choices.astype(self.choices.dtype), probs)


def _expand_flags(flags: BoolArray, rows: npt.NDArray[Any]) -> BoolArray:
    """Append axes to flags of rows, to broadcast them in `np.where`."""
    return flags.reshape(-1, *[1] * (rows.ndim - 1))


def advice_of(
    obs: Observation,
    batch: VecObs,
    obs_space: ObsSpace,
    action_space: Mapping[ActionName, ActionSpace],
    agent_actions: Mapping[ActionName, Action],
) -> dict[ActionName, Advice]:
    """Return the choices of an agent in a frame for all actors of each action.

    Args:
        obs: a frame.
        batch: the same frame as a batch of one.
        obs_space: observation space.
        action_space: action spaces.
        agent_actions: actions of the agent; may lack actions that it does not know.
    """

    def encode(name: ActionName, mask: VecActionMask) -> Ragged:
        space, lengths = action_space[name], mask.actors.lengths
        if (action := agent_actions.get(name)) is not None:
            return space.encode(name, [action], mask, [obs], obs_space)
        no_actors = np.zeros(int(lengths.sum()), np.bool_)
        empty = Ragged(np.zeros((0, *space.choice_columns), space.choice_dtype), lengths * 0)
        return spread(space, empty, no_actors, lengths)

    advice = {}
    for name, rows in choose_parts(batch.action_masks, action_space, encode).items():
        probs, action_probs = None, getattr(agent_actions.get(name), "probs", None)
        if action_probs is not None and np.size(action_probs):
            is_chosen = has_choice(rows.values)
            table = np.asarray(action_probs, np.float32).reshape(int(is_chosen.sum()), -1)
            probs = np.full((len(is_chosen), table.shape[1]), np.nan, np.float32)
            probs[is_chosen] = table
        advice[name] = Advice(rows.values, probs)
    return advice


def frame_text(obs: Observation, obs_space: ObsSpace) -> str:
    """Return a text of the global features and the visible entities of a frame, type by type."""
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
    """Return name and features of each entity of a frame, including invisible ones."""
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
    """Return a line of features for each entity of a type, with the labels of kinds."""
    texts = []
    labels: Any = [()] * len(rows.values) if indices is None else indices.values
    for values, row_labels in zip(rows.values, labels, strict=True):
        parts = [f"{name} {v:.4g}" for name, v in zip(entity.features, values, strict=True)]
        row_kinds = zip(entity.kinds, row_labels, strict=True)
        parts += [f"{kind.name} {kind.labels[i]}" for kind, i in row_kinds]
        texts.append(", ".join(parts))
    return texts


class PlayedEpisode(NamedTuple):
    """Return of each side (one for an `Environment`) and number of steps of a complete episode."""

    returns: list[float]
    steps: int


def play_by_hand(
    create_env: Callable[..., Environment | Match],
    ask: Ask,
    show: Show,
    *,
    seed: int = 0,
    episodes: int | None = None,
    agent: Agent | type[Bot] | None = None,
    side: int | None = None,
    record: str | Path | None = None,
    vary: Variation | None = None,
) -> list[PlayedEpisode]:
    """Play episodes interactively, until the number of episodes is reached or the person quits.

    `menus.HELP` documents the input. Ctrl-C and the end of the input quit as well.

    Args:
        create_env: function that creates an environment, or a match, where the person plays all
            sides in turn. It is called with varied arguments if the environment has no
            `set_parameters`.
        ask: function that shows a prompt and returns a line.
        show: function that shows text.
        seed: seed of the episodes.
        episodes: number of episodes; None to ask after each.
        agent: agent to advise the person; its probabilities and value are shown, and the
            probabilities recorded. Or a bot class, with one bot for each side.
        side: side that the person plays; the agent plays the others. None for all sides.
        record: file of a recording with a frame for each side; an existing one is continued. An
            episode that the person quits is recorded as "unfinished".
        vary: samplers of arguments drawn for each episode, like in an evaluation of one environment
            with this seed.

    Returns:
        The completed episodes.

    Raises:
        InvalidSampler: the environment has no argument of a name, or refuses a value.
        EntityEnvError: the match has no such `side`, or there is no agent for the other sides.
        RecordingError: the file is damaged, or a recording of another environment.
        InvalidObservation: the environment returned an observation outside its spaces.
    """
    game = _Game(create_env, ask, show, agent, side, seed)
    if side is not None and (agent is None or side not in range(game.num_sides)):
        game.close()
        raise EntityEnvError(
            f"side: expected one of {list(range(game.num_sides))} and an agent that plays the "
            f"others, got {side} and {'no agent' if agent is None else 'an agent'}"
        )
    envs: VecEnv = EnvList(lambda: game, game.num_sides, validate=True)
    if record is not None:
        envs.track()  # needed to train networks with memory
        envs = RecordingVecEnv(envs, record)
    envs.seed(seed)
    played: list[PlayedEpisode] = []
    with contextlib.closing(envs), contextlib.suppress(Quit, KeyboardInterrupt):
        if vary is not None:
            check_parameters(world_of(game.match), create_env, vary)
            envs.vary(vary)
        envs.reset(game.obs_space())
        while len(played) != episodes:
            played.append(game.play_episode(envs, len(played) + 1))
            if episodes is None:
                ask_line("Enter plays another episode, q quits> ", ask, show)
    return played


class _Game(Match):
    """Match with a person; stores the current frames, and a text of the last frame."""

    def __init__(
        self,
        create_env: Callable[..., Environment | Match],
        ask: Ask,
        show: Show,
        agent: Agent | type[Bot] | None,
        side: int | None,
        seed: int,
    ) -> None:
        self.create_env, self.match = create_env, match_of(create_env())
        self.arguments: dict[str, Any] = {}
        self.num_sides = self.match.num_sides
        self.ask, self.show, self.agent, self.side = ask, show, agent, side
        self.bots: SideBots | None = None
        if isinstance(agent, type):
            self.bots = SideBots(agent, self.num_sides, seed)
        self.frames: list[Observation] = []
        self.end = ""

    def obs_space(self) -> ObsSpace:
        return self.match.obs_space()

    def action_space(self) -> Mapping[ActionName, ActionSpace]:
        return self.match.action_space()

    def seed(self, seed: int) -> None:
        self.match.seed(seed)

    def close(self) -> None:
        self.match.close()

    def set_parameters(self, **arguments: Any) -> None:
        world, self.arguments = world_of(self.match), arguments
        spaces = self.obs_space(), self.action_space()
        try:
            if callable(setter := getattr(world, "set_parameters", None)):
                setter(**copy_containers(arguments))
            else:
                match = match_of(self.create_env(**copy_containers(arguments)))
                self.match.close()
                self.match = match
            new_spaces = self.obs_space(), self.action_space()
            check_same_spaces(spaces, new_spaces, f"with the arguments {arguments}")
        except Exception as error:
            what = str(error) or type(error).__name__
            raise InvalidSampler(
                f"{type(world).__name__} does not take {arguments}: {what}"
            ) from error

    def reset(self) -> list[Observation]:
        self.frames = self.match.reset()
        if self.bots is not None:
            self.bots.begin()
        if (reset := getattr(self.agent, "reset", None)) is not None and self.bots is None:
            reset()  # clear the memory of the agent
        return self.frames

    def act(self, actions: Sequence[Mapping[ActionName, Action]]) -> list[Observation]:
        self.frames = self.match.act(actions)
        if any(obs.done for obs in self.frames):
            self.end = self.picture() or frame_text(self.frames[0], self.obs_space())
        return self.frames

    def picture(self) -> str | None:
        """Render the environment as text; return None if it does not support text."""
        try:
            text = self.match.render(mode="text")
        except (NotImplementedError, TypeError, ValueError, EntityEnvError):
            return None
        return text if isinstance(text, str) else None

    def play_episode(self, envs: VecEnv, number: int) -> PlayedEpisode:
        """Play an episode in `envs`, which step this match."""
        totals, steps, over = np.zeros(self.num_sides), 0, False
        if self.arguments:
            self.show("\n" + ", ".join(f"{n}={v!r}" for n, v in self.arguments.items()))
        while not over:
            self.show(f"\nepisode {number}, step {steps}, return {_numbers(totals)}")
            obs = self.step(envs)
            totals, steps, over = totals + obs.reward, steps + 1, bool(obs.done[0])
        outcome = "was cut off" if obs.truncated[0] else "is over"
        self.show(f"\n{self.end}")
        self.show(f"episode {number} {outcome}: {steps} steps, return {_numbers(totals)}")
        return PlayedEpisode(totals.tolist(), steps)

    def step(self, envs: VecEnv) -> VecObs:
        """Choose the actions of all sides, and step."""
        obs_space, action_space, picture = self.obs_space(), self.action_space(), self.picture()
        if picture is not None:
            self.show(picture)
        batch = batch_obs(self.frames, obs_space, action_space)
        advice: list[dict[ActionName, Advice]] = []
        chosen: list[Choices] = []
        for side, (obs, (agent_actions, value)) in enumerate(
            zip(self.frames, self.advice(batch), strict=True)
        ):
            frame = batch.take(np.array([side]))
            by_type = _entities_by_type(obs, obs_space, frame.features, frame.kinds)
            # By position in the frame; the global actor comes last.
            entities = [*chain.from_iterable(by_type.values()), ("", "")]
            advice.append(advice_of(obs, frame, obs_space, action_space, agent_actions))

            # Side of the agent.
            if not self.is_played(side):
                advised = {name: part.choices for name, part in advice[side].items()}
                chosen.append(
                    {n: Ragged(c, frame.action_masks[n].actors.lengths) for n, c in advised.items()}
                )
                texts = self.texts_of(frame.action_masks, advised, entities)
                self.show(f"side {side}, the agent: {'; '.join(texts) or 'nothing to choose'}")
                continue

            # Side of the person.
            if self.num_sides > 1:
                self.show(f"side {side}")
            if picture is None:
                self.show(frame_text(obs, obs_space))
            if value is not None:
                self.show(f"the agent expects {value:.3g}")
            chosen.append(self.choices_of_person(frame.action_masks, entities, advice[side]))
        sides = [(c, self.is_played(side)) for side, c in enumerate(chosen)]
        by_hand = {
            name: _cat([has_choice(c[name].values) & by_person for c, by_person in sides])
            for name in action_space
        }
        if not any(rows.values.any() for rows in by_hand.values()):
            ask_line("nothing to choose, Enter continues> ", self.ask, self.show)
        actions = {name: Ragged.cat([c[name] for c in chosen]) for name in action_space}
        if not isinstance(envs, RecordingVecEnv):
            return envs.act(actions, obs_space)
        probs, logits = ({}, {}) if self.agent is None else self.probs_and_logits(advice, actions)
        return envs.act(actions, obs_space, probs, logits, by_hand=by_hand)

    def is_played(self, side: int) -> bool:
        """Return whether the person plays a side."""
        return self.side in (None, side)

    def texts_of(
        self,
        masks: Mapping[ActionName, VecActionMask],
        chosen: Mapping[ActionName, npt.NDArray[Any]],
        entities: Sequence[tuple[str, str]],
    ) -> list[str]:
        """Return a text for each action with choices of a side."""
        texts = []
        for name, space in self.action_space().items():
            names = [choice for choice, _ in _choices_of(space, masks[name], entities)]
            rows = chosen[name][has_choice(chosen[name])]
            if len(rows):
                texts.append(f"{name} {', '.join(space.text_of(row, names) for row in rows)}")
        return texts

    def choices_of_person(
        self,
        masks: Mapping[ActionName, VecActionMask],
        entities: Sequence[tuple[str, str]],
        advice: Mapping[ActionName, Advice],
    ) -> Choices:
        """Ask the person for all choices in one frame, parent actions first.

        The agent's advice on an autoregressive action is shown only to actors for which the person
        followed its advice on the parent action.
        """
        chosen: Choices = {}
        agrees: dict[ActionName, BoolArray] = {}
        for name in parents_first(self.action_space()):
            space, mask, side_advice = self.action_space()[name], masks[name], advice[name]
            active = np.ones(len(mask.actors.values), np.bool_)
            part, agrees[name] = mask, active
            if mask.after is not None:
                parent = chosen[mask.after.action]
                part, active = mask_given_parent(mask, parent)
                agrees[name] = agrees[mask.after.action][parent_rows(mask, parent)]
            menu = menu_of(
                name, space, part, entities, side_advice.masked(agrees[name]).select(active)
            )
            rows = np.array(menu.ask(name, self.ask, self.show), space.choice_dtype)
            rows = rows.reshape(-1, *space.choice_columns)
            lengths = mask.actors.lengths
            chosen[name] = spread(space, Ragged(rows, part.actors.lengths), active, lengths)
            if not space.components:
                agrees[name] = agrees[name] & (chosen[name].values == side_advice.choices)
        return chosen

    def advice(self, batch: VecObs) -> list[tuple[Mapping[ActionName, Action], float | None]]:
        """Return the actions of the agent for each side, and the value."""
        if self.bots is not None:
            obs_space, action_space = self.obs_space(), self.action_space()
            chosen = self.bots.act(self.frames, batch, obs_space, action_space)
            return [(actions, None) for actions in chosen]
        if self.agent is None or isinstance(self.agent, type):
            return [({}, None)] * self.num_sides
        return list(map(self.agent, self.frames))

    def probs_and_logits(
        self,
        advice: Sequence[Mapping[ActionName, Advice]],
        actions: Mapping[ActionName, Ragged],
    ) -> tuple[dict[ActionName, Ragged], dict[ActionName, Ragged]]:
        """Return the agent's probabilities of the choices of all sides, and its logits.

        Continuous and autoregressive actions are omitted, because the probabilities after other
        choices of the parent action are unknown.

        Raises:
            ValueError: the agent returns no probabilities.
        """
        probs, logits = {}, {}
        for name, space in self.action_space().items():
            if space.components or space.after is not None:
                continue
            side_choices, tables = Ragged.of_frames(actions[name]), []
            for side_advice, chosen in zip(advice, side_choices, strict=True):
                if (table := side_advice[name].probs) is None and len(chosen):
                    raise ValueError(
                        f"agent: expected the probabilities of all choices of {name!r} to record, "
                        "got none"
                    )
                tables.append(np.zeros((0, 1), np.float32) if table is None else table)
            rows = zip(tables, side_choices, strict=True)
            probs[name] = _cat([p[np.arange(len(c)), c] for p, c in rows])
            with np.errstate(divide="ignore"):  # illegal choices have -inf
                logits[name] = _cat([np.log(p).reshape(-1, *space.mask_columns) for p in tables])
        return probs, logits


def _cat(rows: Sequence[npt.NDArray[Any]]) -> Ragged:
    return Ragged(np.concatenate(rows), np.array([len(row) for row in rows]))


def _numbers(values: FloatArray) -> str:
    return ", ".join(f"{value:.4g}" for value in values)
