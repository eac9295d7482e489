"""`Bot`: a player that a person writes, and the frames that it sees."""

import copy
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from typing import Any

import numpy as np

from entity_env.actions import Action, ActionName, EntityID
from entity_env.actions.chains import choose_parts
from entity_env.environment import SeededRandom
from entity_env.errors import InvalidAction, as_error, short_repr
from entity_env.observation import GLOBAL, Observation, ObsSpace, filter_observation
from entity_env.plain_state import from_plain, to_plain
from entity_env.ragged import Ragged
from entity_env.spaces import Spaces
from entity_env.vec.vec_obs import Choices, VecActionMask, VecObs


class Bot(SeededRandom, ABC):
    """Player without a network: a class that is made without arguments.

    One instance plays one seat of one match, or one environment, game after game. It sees what a
    policy sees: visible entities with their features, a mask that lists all actors, choices and
    flags of each action, and neither rewards nor metrics. Entities have the ids `(type, row)`,
    counted among those that are visible; labels of features are given by their index.

    A bot that keeps anything but `rng` between steps offers `get_state` and `set_state`, so that
    games can be resumed; `class Careful(PlainState, Bot)` has both.
    """

    @abstractmethod
    def act(self, observation: Observation) -> Mapping[ActionName, Action]:
        """Return a legal choice of each actor of each action that the observation offers."""

    def seed(self, seed: int) -> None:
        """Begin a game, whose choices are a function of `seed`; forget the one before."""
        self.rng = np.random.default_rng(seed)

    @cached_property
    def rng(self) -> np.random.Generator:  # type: ignore[override]
        """The source of randomness, set by `seed`."""
        return np.random.default_rng()


def bot_state(bot: Bot) -> Any:
    """Return the state of a bot, of one without `get_state` that of its generator, as plain data.

    Raises:
        TypeError: `rng` was replaced by another generator, of a bot without `get_state`.
    """
    get_state = getattr(bot, "get_state", None)
    return to_plain(bot.rng, "rng") if get_state is None else get_state()


def restore_bot(bot: Bot, state: Any) -> None:
    """Continue from a state that `bot_state` returned."""
    if (set_state := getattr(bot, "set_state", None)) is None:
        bot.rng = from_plain(state)
    else:
        set_state(state)


def ask_bots(
    bots: Sequence[Bot],
    frames: Sequence[Observation],
    batch: VecObs,
    spaces: Spaces,
    where: Callable[[int], str],
) -> Choices:
    """Return the choices of bots in their frames.

    Args:
        bots: B bots.
        frames: B of them, from `shown_frames`.
        batch: the same B frames.
        spaces: of the frames, and the actions.
        where: returns the place of a frame, for messages, by its index.

    Returns:
        Per action int64 (actors,) per frame.

    Raises:
        InvalidAction: a choice is not legal; the message names the bot and what was allowed.
        Exception: raised by a bot, with a note that names it.
    """
    obs_space, action_space = spaces

    def named(i: int) -> str:
        return f"{type(bots[i]).__name__} in {where(i)}"

    answers: list[Mapping[ActionName, Action]] = []
    for i, (bot, frame) in enumerate(zip(bots, frames, strict=True)):
        try:
            given: Any = bot.act(_lent(frame))
        except BaseException as error:
            raised = as_error(error)
            raised.add_note(f"in bot {named(i)}")
            raise raised  # noqa: B904 (has its cause)
        if not isinstance(given, Mapping) or not given.keys() <= action_space.keys():
            got = short_repr([*given] if isinstance(given, Mapping) else given)
            expected = f"actions by their names {list(action_space)}"
            raise InvalidAction(f"bot {named(i)}: expected {expected}, got {got}")
        answers.append(given)

    def encode(name: ActionName, mask: VecActionMask) -> Ragged:
        actions = [answer.get(name) for answer in answers]
        try:
            return action_space[name].encode(name, actions, mask, frames, obs_space)
        except InvalidAction as error:
            raise InvalidAction(f"bot {named(error.env_index or 0)}: {error}") from None

    return choose_parts(batch.action_masks, action_space, encode)


def shown_frames(batch: VecObs, shown: ObsSpace, spaces: Spaces) -> list[Observation]:
    """Return B frames as bots see them.

    Args:
        batch: the B frames, also of environments in other processes.
        shown: the space of their features.
        spaces: of the environment, whose order features and labels are to have.
    """
    obs_space, action_space = spaces
    own = batch.take(np.arange(len(batch)))  # bots may keep it, batches are written over
    frames = [Observation() for _ in range(len(own))]
    ids: list[list[EntityID]] = [[] for _ in frames]  # of all entities, also of hidden ones
    for name, blocks in _blocks_of(own).items():
        flags = own.visible.get(name)
        visible = [None] * len(frames) if flags is None else flags.of_frames()
        for frame, ids_of_frame, block, seen in zip(frames, ids, blocks, visible, strict=True):
            rows: Sequence[int] = range(len(block))
            if seen is not None:
                block, rows = block[seen], (np.cumsum(seen) - 1).tolist()
            if name == GLOBAL:
                frame.global_features = block[0]
                continue
            frame.features[name] = block
            ids_of_frame += [(name, row) for row in rows]
    for of_frame in ids:
        of_frame.append(GLOBAL)  # stands behind all entities
    for name, space in action_space.items():
        masks = space.unbatch_mask(own.action_masks[name], ids)
        for frame, mask in zip(frames, masks, strict=True):
            if mask is not None:
                frame.actions = {**frame.actions, name: mask}
    return [filter_observation(frame, shown, obs_space) for frame in frames]


def _lent(frame: Observation) -> Observation:
    """Return a frame for a bot, which may change all of it but the names of `frame`."""
    lent, actions = copy.copy(frame), {}
    for name, mask in frame.actions.items():
        actions[name] = own = copy.copy(mask)
        for field in mask.entity_fields:
            if (names := getattr(mask, field)) is not None:
                setattr(own, field, [*names])
    lent.features, lent.ids, lent.actions = {**frame.features}, {**frame.ids}, actions
    return lent


def _blocks_of(batch: VecObs) -> dict[str, list[Any]]:
    """Return (n, numbers + kinds) float32 of each frame, by type."""
    blocks = {}
    for name, rows in batch.features.items():
        values = rows.values
        if name in batch.kinds:
            values = np.hstack([values, batch.kinds[name].values.astype(np.float32)])
        blocks[name] = Ragged(values, rows.lengths).of_frames()
    return blocks
