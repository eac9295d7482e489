"""`Bot`: a scripted player, and its observations and actions."""

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
    """Base class of scripted players. The constructor takes no arguments.

    An instance plays one side of a match, or one environment, for any number of episodes. Its
    observations contain what a policy observes: visible entities with their features, and masks
    with all actors, choices and flags; no rewards or metrics. The id of an entity is
    `(type, row)`, counted over visible entities. Categorical features are label indices.

    A bot with state besides `rng` implements `get_state` and `set_state`, so that episodes can be
    resumed; `class MyBot(PlainState, Bot)` inherits both.
    """

    @abstractmethod
    def act(self, observation: Observation) -> Mapping[ActionName, Action]:
        """Return, for each available action, a legal choice of each actor."""

    def seed(self, seed: int) -> None:
        """Start an episode: reset all state, and make the choices a function of `seed`."""
        self.rng = np.random.default_rng(seed)

    @cached_property
    def rng(self) -> np.random.Generator:  # type: ignore[override]
        """The random number generator, seeded by `seed`."""
        return np.random.default_rng()


def bot_state(bot: Bot) -> Any:
    """Return the state of a bot as plain data; without `get_state`, the state of its `rng`.

    Raises:
        TypeError: the bot has no `get_state`, and `to_plain` does not support its `rng`.
    """
    get_state = getattr(bot, "get_state", None)
    return to_plain(bot.rng, "rng") if get_state is None else get_state()


def restore_bot(bot: Bot, state: Any) -> None:
    """Restore a state that `bot_state` returned."""
    if (set_state := getattr(bot, "set_state", None)) is None:
        bot.rng = from_plain(state)
    else:
        set_state(state)


def bot_choices(
    bots: Sequence[Bot],
    frames: Sequence[Observation],
    batch: VecObs,
    spaces: Spaces,
    where: Callable[[int], str],
) -> Choices:
    """Let bots act, and convert their actions to choices.

    Args:
        bots: B bots.
        frames: B observations, from `bot_observations`.
        batch: the same B frames.
        spaces: of the frames, and the actions.
        where: returns the description of a frame, by its index, for messages.

    Returns:
        By action, int64 (actors,) per frame.

    Raises:
        InvalidAction: a choice is not legal; the message names the bot and the legal choices.
        Exception: raised by a bot, with a note that names it.
    """
    obs_space, action_space = spaces

    def bot_name(i: int) -> str:
        return f"{type(bots[i]).__name__} in {where(i)}"

    answers: list[Mapping[ActionName, Action]] = []
    for i, (bot, frame) in enumerate(zip(bots, frames, strict=True)):
        try:
            bot_actions: Any = bot.act(_copy_for_bot(frame))
        except BaseException as error:
            outer_error = as_error(error)
            outer_error.add_note(f"in bot {bot_name(i)}")
            raise outer_error  # noqa: B904 (has its cause)
        if not isinstance(bot_actions, Mapping) or not bot_actions.keys() <= action_space.keys():
            got = short_repr([*bot_actions] if isinstance(bot_actions, Mapping) else bot_actions)
            expected = f"actions by their names {list(action_space)}"
            raise InvalidAction(f"bot {bot_name(i)}: expected {expected}, got {got}")
        answers.append(bot_actions)

    def encode(name: ActionName, mask: VecActionMask) -> Ragged:
        actions = [answer.get(name) for answer in answers]
        try:
            return action_space[name].encode(name, actions, mask, frames, obs_space)
        except InvalidAction as error:
            raise InvalidAction(f"bot {bot_name(error.env_index or 0)}: {error}") from None

    return choose_parts(batch.action_masks, action_space, encode)


def bot_observations(batch: VecObs, batch_space: ObsSpace, spaces: Spaces) -> list[Observation]:
    """Convert a batch of B frames to the observations of bots.

    Args:
        batch: B frames.
        batch_space: the observation space of the batch.
        spaces: of the environment; they give the order of features and labels.
    """
    obs_space, action_space = spaces
    snapshot = batch.take(np.arange(len(batch)))  # batches are reused, and bots may keep frames
    frames = [Observation() for _ in range(len(snapshot))]
    ids: list[list[EntityID]] = [[] for _ in frames]  # of all entities, including hidden ones
    for name, blocks in _blocks_of(snapshot).items():
        flags = snapshot.visible.get(name)
        visible = [None] * len(frames) if flags is None else flags.of_frames()
        for frame, frame_ids, block, is_visible in zip(frames, ids, blocks, visible, strict=True):
            rows: Sequence[int] = range(len(block))
            if is_visible is not None:
                block, rows = block[is_visible], (np.cumsum(is_visible) - 1).tolist()
            if name == GLOBAL:
                frame.global_features = block[0]
                continue
            frame.features[name] = block
            frame_ids += [(name, row) for row in rows]
    for entity_ids in ids:
        entity_ids.append(GLOBAL)  # the global entity is the last one
    for name, space in action_space.items():
        masks = space.unbatch_mask(snapshot.action_masks[name], ids)
        for frame, mask in zip(frames, masks, strict=True):
            if mask is not None:
                frame.actions = {**frame.actions, name: mask}
    return [filter_observation(frame, batch_space, obs_space) for frame in frames]


def _copy_for_bot(frame: Observation) -> Observation:
    """Copy a frame, so that changes by a bot have no effect on `frame`."""
    result, actions = copy.copy(frame), {}
    for name, mask in frame.actions.items():
        actions[name] = mask_copy = copy.copy(mask)
        for field in mask.entity_fields:
            if (names := getattr(mask, field)) is not None:
                setattr(mask_copy, field, [*names])
    result.features, result.ids, result.actions = {**frame.features}, {**frame.ids}, actions
    return result


def _blocks_of(batch: VecObs) -> dict[str, list[Any]]:
    """Return the features of each frame by type, (n, numbers + categorical features) float32."""
    blocks = {}
    for name, rows in batch.features.items():
        values = rows.values
        if name in batch.kinds:
            values = np.hstack([values, batch.kinds[name].values.astype(np.float32)])
        blocks[name] = Ragged(values, rows.lengths).of_frames()
    return blocks
