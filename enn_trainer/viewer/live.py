"""A game that pages follow while it is played, in which a person can take the place of actors.

Messages are dictionaries of plain data, which `serve.py` carries; they are listed in `LiveGame`.
"""

import base64
import math
import time
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

from enn_trainer.base.policy import PPOAgent
from enn_trainer.evaluation.explain import MOST_ENTITIES, explain
from enn_trainer.experience.person import PersonPlayers
from enn_trainer.experience.players import AgentPlayer, Decisions, Players, SeatPlayer
from enn_trainer.experience.recall import Recall, recall_of_one
from enn_trainer.viewer.episodes import LiveEpisode, recorded
from enn_trainer.viewer.replay import Replay
from enn_trainer.viewer.replay_format import CHUNK_STEPS, live_header
from enn_trainer.viewer.what_if import Change, what_if
from entity_env.arrays import BoolArray, Float32Array
from entity_env.errors import short_repr
from entity_env.play.hand import Hand
from entity_env.spaces import ActionName
from entity_env.vec.vec_obs import VecObs
from rogue_net.ragged import EntityBatch

HOST = "127.0.0.1"
"""The address to listen on: whoever reaches the page can play."""
DEFAULT_FPS = 10.0
MOST_FPS = 1000.0
_LOOK_S = 0.5  # between two looks at a signal, and at the server
_LONGEST_S = 1e6  # that a page counts down
_OF_ALL_PAGES = ("joined", "left", "explain", "what_if")

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


@dataclass
class _Turn:
    """A step that is being decided.

    Attributes:
        hand: the choices of the person.
        batch: the frames on the device.
        decisions: of the others, before the person chose.
        latest: of the others, after the choices of the person.
        is_left_to_agent: True if the person leaves the other choices to the agent.
    """

    hand: Hand
    batch: EntityBatch
    decisions: Decisions
    latest: Decisions
    is_left_to_agent: bool = False


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
        super().__init__(others, seats, replay.action_space)
        self._replay, self._link, self._renew = replay, link, renew
        self._header = live_header(replay)
        self._fps, self._is_paused, self._last_step_s = fps, False, 0.0
        self._pages: set[int] = set()
        self._places: dict[Place, int] = {}  # the page that has each; the same for all
        self._episode = LiveEpisode(replay, self._header, -1, "")
        self._turn: _Turn | None = None
        self._handlers: dict[str, Callable[[int, Message], None]] = {
            "joined": self._welcome,
            "left": self._part,
            **dict.fromkeys(["take", "give"], self._take),
            **dict.fromkeys(["choose", "agent"], self._choose),
            "explain": self._explain,
            "what_if": self._what_if,
            **dict.fromkeys(["pause", "fps"], self._set_pace),
        }

    # The game.

    def begin(self, obs: VecObs, is_resumed: bool) -> None:
        """Begin with the first frames."""
        super().begin(obs, is_resumed)
        self._begin_episode()

    def taken(self, obs: VecObs) -> dict[ActionName, BoolArray]:
        """Return the actors in places of a person."""
        keys = [self._keys(obs, side) for side in range(self._replay.sides)]
        taken = {n: np.zeros(len(m.actors.values), np.bool_) for n, m in obs.action_masks.items()}
        for (side, _, position), (name, row) in self._actors(obs).items():
            is_whole_side = (side, None) in self._places
            taken[name][row] = is_whole_side or (side, keys[side][position]) in self._places
        return taken

    def ask(self, obs: VecObs, batch: EntityBatch, decisions: Decisions, hand: Hand) -> None:
        """Show the frame, and wait for the person, or until the step is due."""
        self._turn = turn = _Turn(hand, batch, decisions, decisions)
        frames = recorded(obs.take(np.arange(len(obs))), batch, decisions)
        frames.actions, frames.by_hand = hand.fill()
        self._episode.add(frames, self.remembered)
        if self._episode.step == 0:
            self._show_episode(self._pages)
        shown: list[tuple[ActionName, int]] = []
        wait_s = 0.0
        while True:
            # A step that is decided is taken before other messages change that.
            while self._listen(min(wait_s, _LOOK_S)) and (any(hand.waiting()) or not shown):
                wait_s = 0.0
            waiting = list(hand.waiting())
            if waiting and waiting != shown:
                self._show_waiting(turn, self._pages)
            shown = waiting
            # Wait for the person without an end, or until the next step is due.
            wait_s = self._due_s()
            is_asked = self._fps is None and any(actors.any() for actors in hand.taken.values())
            if turn.is_left_to_agent:
                break
            if self._is_paused or not self._pages or (is_asked and waiting):
                wait_s = _LOOK_S
            elif is_asked or wait_s <= 0:
                break
        self._last_step_s = time.monotonic()

    def _due_s(self) -> float:
        """Return the seconds until the next step is due; infinite at the smallest rates."""
        return self._last_step_s + 1 / (self._fps or DEFAULT_FPS) - time.monotonic()

    def act(self, obs: VecObs, batch: EntityBatch, t: int) -> Decisions:
        """Let the others and the person choose."""
        decisions = super().act(obs, batch, t)
        frames, self._turn = self._episode.frames, None
        frames.actions, frames.by_hand = decisions.chosen_on_host(), dict(decisions.by_hand)
        return decisions

    def after_step(self, obs: VecObs) -> None:
        """Show what came of the step."""
        super().after_step(obs)
        self._episode.frames.obs.reward[:] = obs.reward
        self._show_steps(self._episode.step, 1, self._pages)
        if obs.done.any():
            ends = {name: bool(getattr(obs, name).all()) for name in ("terminated", "truncated")}
            self._send("end", self._pages, episode=self._episode.number, **ends)
            self._begin_episode()

    def _begin_episode(self) -> None:
        number, about = self._episode.number + 1, self._renew()
        self._episode = LiveEpisode(self._replay, self._header, number, about)

    # Messages to pages.

    def _send(self, kind: str, pages: Collection[int], **facts: Any) -> None:
        """Send a message to some pages."""
        self._link.send({"type": kind, **facts}, pages)

    def _show_episode(self, pages: Collection[int]) -> None:
        episode = self._episode
        facts = {"schema": episode.schema, "about": episode.about}
        self._send("episode", pages, episode=episode.number, **facts)

    def _show_steps(self, first: int, count: int, pages: Collection[int]) -> None:
        """Send some steps of the episode."""
        facts = {"first": first, "count": count, "raw": self._episode.chunk(first, count)}
        self._send("steps", pages, episode=self._episode.number, **facts)

    def _show_waiting(self, turn: _Turn, pages: Collection[int]) -> None:
        """Send the current frame and the actors that a person has to choose for."""
        waiting, ms = set(turn.hand.waiting()), None
        step, actors = self._episode.step, self._actors(self._episode.frames.obs)
        if self._fps is not None:
            ms = max(0, round(1000 * min(self._due_s(), _LONGEST_S)))
        facts = {
            "step": step,
            "actors": [place for place, actor in actors.items() if actor in waiting],
            "ms": ms,
            "raw": self._episode.chunk(step, 1),
        }
        self._send("waiting", pages, episode=self._episode.number, **facts)

    def _show_places(self, pages: Collection[int]) -> None:
        for page in pages:
            yours = page in self._places.values()
            self._send("places", [page], places=[*self._places], yours=yours)

    # Messages of pages.

    def _listen(self, timeout_s: float) -> bool:
        """Do what a page asks for next; return False if none asks in time."""
        if (received := self._link.receive(timeout_s)) is None:
            return False
        page, message = received
        kind = message.get("type")
        try:
            if not isinstance(kind, str) or kind not in self._handlers:
                expected = ", ".join(self._handlers)
                raise ValueError(f"expected one of {expected}, got {short_repr(kind)}")
            if kind not in _OF_ALL_PAGES and {*self._places.values()} - {page}:
                raise ValueError("another tab has the places; this one looks on")
            self._handlers[kind](page, message)
        except (ValueError, TypeError, KeyError, OverflowError) as error:
            text = f"{kind}: {error}" if str(error) else "unknown message"
            self._send("error", [page], text=text)
        return True

    def _welcome(self, page: int, message: Message) -> None:
        """Send all that happened in the episode so far."""
        self._pages.add(page)
        episode, pace = self._episode, {"fps": self._fps, "paused": self._is_paused}
        self._send("welcome", [page], header=self._header, **pace)
        if not episode.schema:
            return
        self._show_episode([page])
        end = episode.step + (self._turn is None)
        for first in range(episode.first_step, end, CHUNK_STEPS):
            self._show_steps(first, min(CHUNK_STEPS, end - first), [page])
        self._show_places([page])
        if self._turn is not None and any(self._turn.hand.waiting()):
            self._show_waiting(self._turn, [page])

    def _part(self, page: int, message: Message) -> None:
        self._pages.discard(page)
        if page in self._places.values():
            self._set_places({})

    def _take(self, page: int, message: Message) -> None:
        """Take a place, or give one or all back."""
        if message["type"] == "give" and "side" not in message:
            return self._set_places({})
        side, key = _whole(message, "side", self._replay.sides), message.get("key")
        # An actor may be gone since the frame that the page shows.
        shown = (self._keys(frames.obs, side) for frames, _ in reversed(self._episode.kept))
        if key is not None and not any(key in keys for keys in shown):
            expected = "that of an entity of the episode"
            raise ValueError(f"key: expected {expected}, got {short_repr(key)}")
        places = {place: page for place in self._places if place != (side, key)}
        self._set_places({**places, (side, key): page} if message["type"] == "take" else places)

    def _set_places(self, places: dict[Place, int]) -> None:
        self._places = places
        if self._turn is not None:
            self._turn.hand.taken = self.taken(self._episode.frames.obs)
            self._decide_again(self._turn)
        self._show_places(self._pages)

    def _choose(self, page: int, message: Message) -> None:
        """Choose for actors, or leave the rest of the step to the agent."""
        turn, step = self._turn, (message.get("episode"), message.get("step"))
        if turn is None or step != (self._episode.number, self._episode.step):
            raise ValueError("step: expected the current one, which waits; that one is over")
        if message["type"] == "agent":
            turn.is_left_to_agent = True
            return
        actors = self._actors(self._episode.frames.obs)
        for entry in _list(message, "choices"):
            if not (isinstance(entry, list) and [type(n) for n in entry[:-1]] == [int] * 3):
                expected = "three numbers and a choice each"
                raise ValueError(f"choices: expected {expected}, got {short_repr(entry)}")
            *place, choice = entry
            if (actor := actors.get(tuple(place))) is None:
                expected = "side, action and position of an actor of this step"
                raise ValueError(f"choices: expected {expected}, got {place}")
            turn.hand.choose(actor[0], actor[1], choice)
            self._decide_again(turn)

    def _decide_again(self, turn: _Turn) -> None:
        """Let the others decide what depends on choices of the person, and show it."""
        latest = self.decided_again(turn.batch, turn.decisions, turn.hand)
        if latest is turn.latest:  # choices of the agent stay beside those of the person
            return
        frames = self._episode.frames
        frames.logits = latest.parameters_on_host(turn.batch.actions)
        (frames.actions, frames.by_hand), turn.latest = turn.hand.fill(), latest
        if any(turn.hand.waiting()):
            self._show_waiting(turn, self._pages)

    def _set_pace(self, page: int, message: Message) -> None:
        """Pause or go on, or change the rate."""
        if message["type"] == "pause":
            self._is_paused = bool(message.get("on"))
        else:
            fps = message.get("value")
            if fps is not None and not (type(fps) in (int, float) and 0 < fps <= MOST_FPS):
                expected = f"0 to {MOST_FPS:g} or none"
                raise ValueError(f"value: expected {expected}, got {short_repr(fps)}")
            self._fps = fps
        self._send("paused", self._pages, on=self._is_paused, fps=self._fps)

    def _frame(self, message: Message) -> tuple[Message, VecObs, PPOAgent, Recall]:
        """Return the frame that a message names, as facts and alone, and the agent of its side.

        The agent is returned with what it remembered in the frame.
        """
        episode, side = self._episode, _whole(message, "side", self._replay.sides)
        step = _whole(message, "step", episode.step + 1)
        if message.get("episode") != episode.number or step < episode.first_step:
            raise ValueError("step: expected one of the running episode; that one is gone")
        seat = self.seats[side]  # which stays the same in an episode
        if not isinstance(seat, AgentPlayer):
            raise ValueError(f"side: expected one of a network, got {side}, which a bot plays")
        frames, memories = episode.kept[step - episode.first_step]
        facts = {"episode": episode.number, "step": step, "side": side}
        recall = recall_of_one(memories[side], side)
        return facts, frames.obs.take(np.array([side])), seat.agent, recall

    def _explain(self, page: int, message: Message) -> None:
        """Send attention and influence in a frame."""
        facts, obs, agent, recall = self._frame(message)
        batch, attention = EntityBatch.of(obs), None
        positions = range(int(batch.entities_of_frames()[0]))
        entities = _list(message, "entities")[:MOST_ENTITIES] if "entities" in message else None
        found = explain(agent, batch, positions, self.action_space, entities, recall)
        if found.attention is not None:
            layers, heads, size, _ = found.attention.shape
            packed = base64.b64encode(found.attention.astype("<f4").tobytes()).decode()
            attention = {"layers": layers, "heads": heads, "size": size, "weights": packed}
        names, changes = list(self.action_space), found.influence
        shown = {
            "entities": changes.entities.tolist(),
            "values": _finite(changes.value),
            "choices": [
                [names.index(name), [_finite(row) for row in table]]
                for name, table in changes.choice.items()
            ],
        }
        self._send("explained", [page], **facts, attention=attention, influence=shown)

    def _what_if(self, page: int, message: Message) -> None:
        """Send the agent's answer to a changed frame."""
        facts, obs, agent, recall = self._frame(message)
        changes = [_change(one) for one in _list(message, "changes")]
        answer = what_if(agent, obs, self._replay.obs_space, self.action_space, changes, recall)
        names = list(self.action_space)
        decisions = [
            [names.index(name), actor, _finite(probs)]
            for name, table in answer.probs.items()
            for actor, probs in table.items()
        ]
        [value] = _finite(np.array([answer.value], np.float32))
        self._send("what_if", [page], **facts, value=value, decisions=decisions)

    def _actors(self, obs: VecObs) -> dict[tuple[int, int, int], tuple[ActionName, int]]:
        """Return action and number of each actor by side, index of the action and position."""
        actors = {}
        for a, name in enumerate(self.action_space):
            rows = obs.action_masks[name].actors
            sides = np.repeat(np.arange(len(rows)), rows.lengths).tolist()
            for row, (side, position) in enumerate(zip(sides, rows.values.tolist(), strict=True)):
                actors[side, a, position] = name, row
        return actors

    def _keys(self, obs: VecObs, side: int) -> list[str]:
        """Return the keys of the entities in the frame of a side, the global one last."""
        keys = []
        for i, name in enumerate(self._replay.obs_space.entities):
            count, identity = int(obs.features[name].lengths[side]), obs.identity.get(name)
            if identity is not None and identity.lengths[side]:
                keys += [f"{i}id{number}" for number in identity[side].values.tolist()]
            else:
                keys += [f"{i}#{place}" for place in range(count)]
        return [*keys, "global"]


def _list(message: Message, field: str) -> list[Any]:
    """Return a field that is a list.

    Raises:
        ValueError: it is another value; names the field.
    """
    if not isinstance(value := message.get(field), list):
        raise ValueError(f"{field}: expected a list, got {short_repr(value)}")
    return value


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
    types: dict[str, list[type]] = {key: [int] for key in ("position", "feature", "kind")}
    types |= {"value": [int, float], "visible": [bool], "removed": [bool]}
    is_change = isinstance(given, dict) and "position" in given and len(given) > 1
    if not is_change or not all(type(one) in types.get(name, ()) for name, one in given.items()):
        expected = "a feature, a kind, visible or removed of a position"
        raise ValueError(f"changes: expected {expected}, got {short_repr(given)}")
    return Change(**given)


def _finite(values: Float32Array) -> list[float | None]:
    """Return numbers as JSON has them: None for those that are not finite."""
    return [value if math.isfinite(value) else None for value in values.tolist()]
