"""A game that pages follow while it is played, in which a person can take the place of actors.

Messages are dictionaries of plain data, which `serve.py` carries; they are listed in `LiveGame`.
"""

import base64
import math
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple, Protocol

import numpy as np
import numpy.typing as npt

from enn_trainer.experience.person import PersonPlayers
from enn_trainer.experience.players import AgentPlayer, Decisions, Players, SeatPlayer
from enn_trainer.viewer.episodes import episode_of_frames
from enn_trainer.viewer.explain import (
    MOST_ENTITIES,
    Float32,
    attention_of,
    influence,
    most_attended,
)
from enn_trainer.viewer.replay import Episode, Replay
from enn_trainer.viewer.replay_chunks import encoded_chunk
from enn_trainer.viewer.replay_columns import columns_of, episode_schema
from enn_trainer.viewer.replay_format import CHUNK_STEPS, live_header
from enn_trainer.viewer.what_if import Change, what_if
from entity_env.errors import short_repr
from entity_env.play.hand import Hand
from entity_env.ragged import Ragged
from entity_env.recording import recording_format
from entity_env.spaces import GLOBAL, ActionName, ActionSpace
from entity_env.vec.vec_obs import VecActionMask, VecObs, take_obs
from rogue_net.ragged import EntityBatch

HOST = "127.0.0.1"
"""The address to listen on: whoever reaches the page can play."""
DEFAULT_FPS = 10.0
MOST_FPS = 1000.0
MOST_STEPS = 10_000
"""Steps of an episode that are kept; of longer ones the last."""
_LOOK_S = 0.5  # between two looks at a signal

Message = dict[str, Any]
Place = tuple[int, str | None]
"""A side, and the key of an entity as the page has it; None for all actors of the side."""


class Link(Protocol):
    """The pages that follow a game, each with a number."""

    def receive(self, timeout_s: float) -> tuple[int, Message] | None:
        """Return the next message and its page; None if there is none in time.

        A page that comes says `{"type": "joined"}`, one that goes `{"type": "left"}`.
        """

    def send(self, message: Message, pages: Collection[int]) -> None:
        """Send a message to some pages; those that are slow may miss some `steps`."""


class _Step(NamedTuple):
    """A step of S sides: what they saw and chose, and the rewards."""

    decisions: recording_format.Decisions
    rewards: Float32


class LiveGame(PersonPlayers):
    """Players of a game that pages follow; one of the pages can take places in it.

    A page sends `take`, `give`, `choose`, `agent` (to choose for the rest), `explain`, `what_if`,
    `pause` and `fps`. It gets `welcome`, `episode`, `steps`, `waiting`, `places`, `end`, `paused`,
    `explained`, `what_if` and `error`. Frames are sent as chunks of a replay.

    While somebody is asked, the game waits, or goes on in time if it has a rate. It also waits
    while it is paused, and while nobody follows.

    Args:
        others: play where no person does.
        seats: the player of each side; agents are explained.
        replay: with the spaces and the view; it has no episodes.
        link: to the pages.
        fps: steps in a second, in which a person has to choose; None to wait for the person.
        renew: called between episodes; returns a line about the agent, which may be another one.
    """

    def __init__(
        self,
        others: Players,
        seats: Sequence[SeatPlayer],
        replay: Replay,
        link: Link,
        fps: float | None = None,
        renew: Callable[[], str] = lambda: "",
    ) -> None:
        super().__init__(others, replay.action_space)
        self._seats, self._replay, self._link = seats, replay, link
        self._fps, self._renew = fps, renew
        self._header = live_header(replay)
        self._schema: Message = {}
        self._is_paused = False
        self._pages: set[int] = set()
        self._holder: int | None = None  # the page that has the places
        self._places: list[Place] = []
        self._episode, self._about = -1, ""
        self._steps: list[_Step] = []
        self._left_out = 0  # steps of the episode that are no longer kept
        self._hand: Hand | None = None  # while the current frame is decided
        self._is_left_to_agent = False
        self._last_step_s = 0.0

    # The game.

    def begin(self, obs: VecObs, is_resumed: bool) -> None:
        """Begin with the first frames."""
        super().begin(obs, is_resumed)
        self._begin_episode()

    def taken(self, obs: VecObs) -> dict[ActionName, npt.NDArray[np.bool_]]:
        """Return the actors in places of a person."""
        keys = [self._keys(obs, side) for side in range(self._replay.sides)]

        def is_taken(side: int, position: int) -> bool:
            return (side, None) in self._places or (side, keys[side][position]) in self._places

        return {
            name: np.array([is_taken(*row) for row in _located(mask.actors)], np.bool_)
            for name, mask in obs.action_masks.items()
        }

    def ask(self, obs: VecObs, batch: EntityBatch, decisions: Decisions, hand: Hand) -> None:
        """Show the frame, and wait for the person, or until the step is due."""
        self._hand, self._is_left_to_agent = hand, False
        self._keep(obs, batch, decisions, hand)
        shown: list[tuple[ActionName, int]] = []
        wait_s = 0.0
        while True:
            # A step that is decided is taken before other messages change that.
            while self._listen(wait_s) and (any(hand.waiting()) or not shown):
                wait_s = 0.0
            waiting = list(hand.waiting())
            if waiting and waiting != shown:
                self._show_waiting(self._pages)
            shown = waiting
            # Wait for the person without an end, or until the next step is due.
            wait_s = self._last_step_s + 1 / (self._fps or DEFAULT_FPS) - time.monotonic()
            is_asked = self._fps is None and any(taken.any() for taken in hand.taken.values())
            if self._is_left_to_agent:
                break
            if self._is_paused or not self._pages or (is_asked and waiting):
                wait_s = _LOOK_S
            elif is_asked or wait_s <= 0:
                break
        self._last_step_s = time.monotonic()

    def act(self, obs: VecObs, batch: EntityBatch, t: int) -> Decisions:
        """Let the others and the person choose."""
        decisions = super().act(obs, batch, t)
        kept, self._hand = self._steps[-1].decisions, None
        kept.actions, kept.by_hand = decisions.chosen_on_host(), dict(decisions.by_hand)
        return decisions

    def after_step(self, obs: VecObs) -> None:
        """Show what came of the step."""
        super().after_step(obs)
        self._steps[-1].rewards[:] = obs.reward
        self._send(self._shown(self._step, 1))
        if obs.done.any():
            ends = {name: bool(getattr(obs, name).all()) for name in ("terminated", "truncated")}
            self._send({"type": "end", "episode": self._episode, **ends})
            self._begin_episode()

    def _begin_episode(self) -> None:
        self._episode, self._steps, self._left_out, self._schema = self._episode + 1, [], 0, {}
        self._about = self._renew()

    @property
    def _obs(self) -> VecObs:
        """The current frames."""
        return self._steps[-1].decisions.obs

    @property
    def _step(self) -> int:
        """Number of the current step of the episode."""
        return self._left_out + len(self._steps) - 1

    def _keep(self, obs: VecObs, batch: EntityBatch, decisions: Decisions, hand: Hand) -> None:
        """Keep the current frames, with what the others choose in them."""
        kept = _filled(take_obs(obs, np.arange(len(obs))), self.action_space)
        log_probs = decisions.log_probs_on_host(batch.actions)
        values = decisions.values.float().cpu().numpy()
        actions, nobody = hand.fill(decisions.chosen_on_host())
        kept_decisions = recording_format.Decisions(kept, actions, {}, log_probs, values, nobody)
        self._steps.append(_Step(kept_decisions, np.zeros(len(obs), np.float32)))
        if len(self._steps) > MOST_STEPS:
            self._steps.pop(0)
            self._left_out += 1
        if not self._schema:
            self._schema = {**episode_schema(self._replay, self._joined(self._steps)), "steps": 0}
            self._send(self._opening())

    # Messages.

    def _opening(self) -> Message:
        facts = {"episode": self._episode, "schema": self._schema, "about": self._about}
        return {"type": "episode", **facts}

    def _shown(self, first: int, count: int) -> Message:
        """Return the message with some steps of the episode."""
        facts = {"episode": self._episode, "first": first, "count": count}
        return {"type": "steps", **facts, "raw": self._raw(first, count)}

    def _raw(self, first: int, count: int) -> str:
        """Return a chunk of some steps, in base64."""
        episode = self._joined(self._steps[first - self._left_out :][:count])
        columns = columns_of(self._replay, episode)
        raw = encoded_chunk(self._header, self._schema, count, columns, {})
        return base64.b64encode(raw).decode()

    def _joined(self, steps: Sequence[_Step]) -> Episode:
        """Return some steps as an episode."""
        decisions = recording_format.Decisions.cat([step.decisions for step in steps])
        rewards = np.concatenate([step.rewards for step in steps])
        ends = {"terminated": False, "truncated": False}
        return episode_of_frames(decisions, rewards, self.action_space, **ends)

    def _send(self, message: Message) -> None:
        """Send a message to all pages."""
        self._link.send(message, self._pages)

    def _show_waiting(self, pages: Collection[int]) -> None:
        """Send the current frame and the actors that a person has to choose for."""
        assert self._hand is not None
        masks, names = self._obs.action_masks, list(self.action_space)
        actors = []
        for name, row in self._hand.waiting():
            side, position = _located(masks[name].actors)[row]
            actors.append([side, names.index(name), position])
        ms = None
        if self._fps is not None:
            ms = max(0, round(1000 * (self._last_step_s + 1 / self._fps - time.monotonic())))
        facts = {"episode": self._episode, "step": self._step, "actors": actors, "ms": ms}
        self._link.send({"type": "waiting", **facts, "raw": self._raw(self._step, 1)}, pages)

    def _show_places(self, pages: Collection[int]) -> None:
        for one in pages:
            yours = one == self._holder and bool(self._places)
            self._link.send({"type": "places", "places": self._places, "yours": yours}, [one])

    def _listen(self, timeout_s: float) -> bool:
        """Do what a page asks for next; return False if none asks in time."""
        if (received := self._link.receive(timeout_s)) is None:
            return False
        page, message = received
        try:
            self._do(page, message)
        except (ValueError, TypeError, KeyError, OverflowError) as error:
            text = f"{message.get('type')}: {error}" if str(error) else "unknown message"
            self._link.send({"type": "error", "text": text}, [page])
        return True

    def _do(self, page: int, message: Message) -> None:
        """Do what a page asks for.

        Raises:
            ValueError: the message does not fit the game; names the field.
        """
        kind = message.get("type")
        doers: dict[Any, Callable[[int, Message], None]] = {
            "joined": self._welcome,
            "left": self._part,
            "take": self._take,
            "give": self._take,
            "choose": self._choose,
            "agent": self._choose,
            "explain": self._explain,
            "what_if": self._what_if,
            "pause": self._pace,
            "fps": self._pace,
        }
        if not isinstance(kind, str) or kind not in doers:
            raise ValueError(f"expected one of {', '.join(doers)}, got {short_repr(kind)}")
        doers[kind](page, message)

    def _welcome(self, page: int, message: Message) -> None:
        """Send all that happened in the episode so far."""
        self._pages.add(page)
        facts = {"header": self._header, "fps": self._fps, "paused": self._is_paused}
        self._link.send({"type": "welcome", **facts}, [page])
        if not self._schema:
            return
        self._link.send(self._opening(), [page])
        end = self._step + (self._hand is None)
        for first in range(self._left_out, end, CHUNK_STEPS):
            self._link.send(self._shown(first, min(CHUNK_STEPS, end - first)), [page])
        self._show_places([page])
        if self._hand is not None and any(self._hand.waiting()):
            self._show_waiting([page])

    def _part(self, page: int, message: Message) -> None:
        self._pages.discard(page)
        if page == self._holder:
            self._set_places(None, [])

    def _take(self, page: int, message: Message) -> None:
        """Take a place, or give one or all back."""
        self._may_decide(page)
        if message["type"] == "give" and "side" not in message:
            return self._set_places(None, [])
        side, key = _whole(message, "side", self._replay.sides), message.get("key")
        if key is not None and key not in self._keys(self._obs, side):
            raise ValueError(f"key: expected that of an entity of the frame, got {short_repr(key)}")
        others = [place for place in self._places if place != (side, key)]
        self._set_places(page, [*others, (side, key)] if message["type"] == "take" else others)

    def _set_places(self, page: int | None, places: list[Place]) -> None:
        self._holder, self._places = page if places else None, places
        if self._hand is not None:
            self._hand.taken = self.taken(self._obs)
        self._show_places(self._pages)

    def _choose(self, page: int, message: Message) -> None:
        """Choose for actors, or leave the rest of the step to the agent."""
        self._may_decide(page)
        asked = message.get("episode"), message.get("step")
        if self._hand is None or asked != (self._episode, self._step):
            raise ValueError("step: expected the current one, which waits; that one is over")
        if message["type"] == "agent":
            self._is_left_to_agent = True
            return
        names, masks = list(self.action_space), self._obs.action_masks
        choices = message.get("choices")
        if not isinstance(choices, list):
            raise ValueError(f"choices: expected a list, got {short_repr(choices)}")
        for one in choices:
            if not (isinstance(one, list) and [type(number) for number in one] == [int] * 4):
                raise ValueError(f"choices: expected four numbers each, got {short_repr(one)}")
            side, action, position, choice = one
            if not 0 <= action < len(names):
                raise ValueError(f"choices: expected an action, got number {action}")
            located = _located(masks[names[action]].actors)
            if (side, position) not in located:
                raise ValueError(f"choices: side {side} has no actor {position} in this step")
            self._hand.choose(names[action], located.index((side, position)), choice)

    def _may_decide(self, page: int) -> None:
        if self._holder not in (None, page):
            raise ValueError("another tab has the places; this one looks on")

    def _pace(self, page: int, message: Message) -> None:
        """Pause or go on, or change the rate."""
        self._may_decide(page)
        if message["type"] == "pause":
            self._is_paused = bool(message.get("on"))
        else:
            fps = message.get("value")
            if fps is not None and not (isinstance(fps, int | float) and 0 < fps <= MOST_FPS):
                raise ValueError(
                    f"value: expected 0 to {MOST_FPS:g} or none, got {short_repr(fps)}"
                )
            self._fps = fps
        self._send({"type": "paused", "on": self._is_paused, "fps": self._fps})

    def _found(self, message: Message) -> tuple[Message, VecObs, AgentPlayer]:
        """Return the frame that a message names, as facts and alone, and the agent of its side."""
        side = _whole(message, "side", self._replay.sides)
        step = _whole(message, "step", self._step + 1)
        if message.get("episode") != self._episode or step < self._left_out:
            raise ValueError("step: expected one of the running episode; that one is gone")
        kept = self._steps[step - self._left_out]
        facts = {"type": message["type"], "episode": self._episode, "step": step, "side": side}
        # The agent of a side stays the same in an episode.
        seat = self._seats[side]
        if not isinstance(seat, AgentPlayer):
            raise ValueError(f"side: expected one of a network, got {side}, which a bot plays")
        player = AgentPlayer(seat.agent, None)
        return facts, take_obs(kept.decisions.obs, np.array([side])), player

    def _explain(self, page: int, message: Message) -> None:
        """Send attention and influence in a frame."""
        facts, obs, player = self._found(message)
        batch = EntityBatch.of(obs)
        num_entities = int(batch.entities_of_frames()[0])
        decisions = player.choose(batch, np.zeros(1, np.int64), 0)
        all_weights, attention = attention_of(player.agent, batch), None
        weights = None if all_weights is None else all_weights[0]
        if weights is not None:
            layers, heads, size, _ = weights.shape
            packed = base64.b64encode(weights.astype("<f4").tobytes()).decode()
            attention = {"layers": layers, "heads": heads, "size": size, "weights": packed}
        entities = most_attended(weights, num_entities, MOST_ENTITIES)
        if isinstance(asked := message.get("entities"), list):
            asked = [_whole({"entities": one}, "entities", num_entities) for one in asked]
            entities = np.array(asked[:MOST_ENTITIES], np.int64)
        [found] = influence(player.agent, batch, decisions, [entities])
        shown = {
            "entities": found.entities.tolist(),
            "values": _finite(found.value),
            "choices": [
                [list(self.action_space).index(name), [_finite(row) for row in table]]
                for name, table in found.choice.items()
            ],
        }
        facts["type"] = "explained"
        self._link.send({**facts, "attention": attention, "influence": shown}, [page])

    def _what_if(self, page: int, message: Message) -> None:
        """Send the agent's answer to a changed frame."""
        facts, obs, player = self._found(message)
        given = message.get("changes")
        if not isinstance(given, list):
            raise ValueError(f"changes: expected a list, got {short_repr(given)}")
        changes = [_change(one) for one in given]
        answer = what_if(player.agent, obs, self._replay.obs_space, changes)
        names = list(self.action_space)
        decisions = [
            [names.index(name), actor, _finite(probs)]
            for name, table in answer.probs.items()
            for actor, probs in table.items()
        ]
        [value] = _finite(np.array([answer.value], np.float32))
        self._link.send({**facts, "value": value, "decisions": decisions}, [page])

    def _keys(self, obs: VecObs, side: int) -> list[str]:
        """Return the keys of the entities in the frame of a side, the global one last."""
        keys = []
        for i, name in enumerate(self._replay.obs_space.entities):
            count, identity = int(obs.features[name].lengths[side]), obs.identity.get(name)
            if identity is not None and identity.lengths[side]:
                keys += [f"id{number}" for number in identity[side].values.tolist()]
            else:
                keys += [f"{i}#{place}" for place in range(count)]
        return [*keys, "global"]


def _located(actors: Ragged) -> list[tuple[int, int]]:
    """Return side and position of each actor."""
    sides = np.repeat(np.arange(len(actors)), actors.lengths)
    return list(zip(sides.tolist(), actors.values.tolist(), strict=True))


def _filled(obs: VecObs, action_space: Mapping[ActionName, ActionSpace]) -> VecObs:
    """Return frames with masks and visibility written out, which other steps of them may have."""
    masks: dict[ActionName, VecActionMask] = {}
    for name, mask in obs.action_masks.items():
        given: Any = mask
        masks[name] = replace(given, mask=mask.full_mask(action_space[name].mask_columns))
    visible = {name: obs.visibility(name) for name in obs.features if name != GLOBAL}
    return replace(obs, action_masks=masks, visible={**obs.visible, **visible})


def _whole(message: Message, field: str, limit: int) -> int:
    """Return a field that is a number from 0 to below a limit.

    Raises:
        ValueError: it is another value; names the field.
    """
    value = message.get(field)
    if type(value) is not int or not 0 <= value < limit:
        raise ValueError(f"{field}: expected 0 to {limit - 1}, got {short_repr(value)}")
    return value


def _change(given: Any) -> Change:
    """Return a change that a page sent."""
    if not isinstance(given, dict) or type(given.get("position")) is not int:
        raise ValueError(f"changes: expected entities by position, got {short_repr(given)}")
    position = given["position"]
    if given.get("removed") is True or given.get("visible") is False:
        return Change(position, is_hidden="removed" not in given, is_removed="removed" in given)
    value = given.get("value")
    if type(given.get("kind")) is int and type(value) is int:
        return Change(position, labels={given["kind"]: value})
    if type(given.get("feature")) is int and isinstance(value, int | float):
        return Change(position, numbers={given["feature"]: float(value)})
    raise ValueError(
        f"changes: expected a feature, a kind, visible or removed, got {short_repr(given)}"
    )


def _finite(values: Float32) -> list[float | None]:
    """Return numbers as JSON has them: None for those that are not finite."""
    return [value if math.isfinite(value) else None for value in values.tolist()]
