"""Live game that pages display while it is played; a person can control actors in it.

Messages are dictionaries of plain data, sent by `serve.py` and listed in `LiveGame`.
"""

import base64
import math
import time
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

from enn_trainer.base.policy import PPOAgent
from enn_trainer.evaluation.explain import MAX_ENTITIES, explain
from enn_trainer.experience.person import PersonPlayers
from enn_trainer.experience.players import AgentPlayer, Decisions, Players, SeatPlayer
from enn_trainer.experience.recall import FrameStates, states_of_env
from enn_trainer.viewer.episodes import LiveEpisode, recorded_decisions
from enn_trainer.viewer.page import DEFAULT_FPS, MAX_FPS
from enn_trainer.viewer.replay import Replay
from enn_trainer.viewer.replay_format import CHUNK_STEPS, live_header
from enn_trainer.viewer.what_if import FeatureChange, what_if
from entity_env.arrays import BoolArray, Float32Array
from entity_env.errors import short_repr
from entity_env.play.hand import Hand
from entity_env.spaces import ActionName
from entity_env.vec.vec_obs import VecObs
from rogue_net.ragged import EntityBatch

_POLL_S = 0.5  # interval between checks for signals and server errors
_MAX_COUNTDOWN_S = 1e6  # longest countdown of a page
_ALLOWED_FOR_ALL = ("joined", "left", "explain", "what_if")

Message = dict[str, Any]
Place = tuple[int, str | None]
"""Side, and key of an entity as in the page; None for all actors of the side."""


class Link(Protocol):
    """Connections to the pages of a game, by page number."""

    def receive(self, timeout_s: float) -> tuple[int, Message] | None:
        """Return the next message and its page number; None on timeout.

        A connected page first sends `{"type": "joined"}`, a disconnected one `{"type": "left"}`.
        """

    def send(self, message: Message, pages: Collection[int]) -> None:
        """Send a message to some pages; slow ones may miss `steps` messages."""


@dataclass
class _Turn:
    """Step that waits for decisions.

    Attributes:
        hand: choices of the person.
        batch: frames on the device.
        decisions: decisions of the agents before the person chose.
        latest: decisions of the agents given the choices of the person.
        is_left_to_agent: True if the agent makes all remaining choices.
    """

    hand: Hand
    batch: EntityBatch
    decisions: Decisions
    latest: Decisions
    is_left_to_agent: bool = False


class LiveGame(PersonPlayers):
    """Players of a game that pages display; one of the pages can control places in it.

    A page sends `take`, `give`, `choose`, `agent` (the agent makes the remaining choices),
    `explain`, `what_if`, `pause` and `fps`. It receives `welcome`, `episode`, `steps`, `waiting`,
    `places`, `end`, `paused`, `explained`, `what_if` and `error`. Frames are sent as chunks of a
    replay.

    While a person has to choose, the game waits, or continues on time if it has a rate. It also
    waits while it is paused, and while no page is connected.

    Args:
        others: players that act for all other actors.
        seats: player of each side; agents are explained.
        replay: replay with the spaces and the view; has no episodes.
        link: connections to the pages.
        fps: steps per second, the time in which a person has to choose; None to wait for the
            person.
        renew: called between episodes; may replace the agent, returns its description in one line.
    """

    def __init__(
        self,
        base_players: Players,
        seats: Sequence[SeatPlayer],
        replay: Replay,
        link: Link,
        fps: float | None = None,
        renew: Callable[[], str] = lambda: "",
    ) -> None:
        super().__init__(base_players, seats, replay.action_space)
        self._replay, self._link, self._renew = replay, link, renew
        self._header = live_header(replay)
        self._fps, self._is_paused, self._last_step_s = fps, False, 0.0
        self._pages: set[int] = set()
        self._holders: dict[Place, int] = {}  # controlling page, the same for all
        self._episode = LiveEpisode(replay, self._header, -1, "")
        self._turn: _Turn | None = None
        self._handlers: dict[str, Callable[[int, Message], None]] = {
            "joined": self._on_joined,
            "left": self._on_left,
            **dict.fromkeys(["take", "give"], self._take),
            **dict.fromkeys(["choose", "agent"], self._choose),
            "explain": self._explain,
            "what_if": self._what_if,
            **dict.fromkeys(["pause", "fps"], self._set_pace),
        }

    # Game loop.

    def begin(self, obs: VecObs, is_resumed: bool) -> None:
        """Start with the first frames."""
        super().begin(obs, is_resumed)
        self._begin_episode()

    def controlled_actors(self, obs: VecObs) -> dict[ActionName, BoolArray]:
        """Return the actors in places of a person."""
        keys = [self._keys(obs, side) for side in range(self._replay.sides)]
        is_controlled = {
            n: np.zeros(len(m.actors.values), np.bool_) for n, m in obs.action_masks.items()
        }
        for (side, _, position), (name, row) in self._actors(obs).items():
            is_whole_side = (side, None) in self._holders
            has_entity = (side, keys[side][position]) in self._holders
            is_controlled[name][row] = is_whole_side or has_entity
        return is_controlled

    def ask(self, obs: VecObs, batch: EntityBatch, decisions: Decisions, hand: Hand) -> None:
        """Display the frame, and wait for the person or until the step is due."""
        self._turn = turn = _Turn(hand, batch, decisions, decisions)
        frames = recorded_decisions(obs.take(np.arange(len(obs))), batch, decisions)
        frames.actions, frames.by_hand = hand.fill()
        self._episode.add(frames, self.previous_states)
        if self._episode.step == 0:
            self._show_episode(self._pages)
        displayed: list[tuple[ActionName, int]] = []
        wait_s = 0.0
        while True:
            # Take a decided step before further messages change the decision.
            while self._listen(min(wait_s, _POLL_S)) and (any(hand.waiting()) or not displayed):
                wait_s = 0.0
            waiting = list(hand.waiting())
            if waiting and waiting != displayed:
                self._show_waiting(turn, self._pages)
            displayed = waiting
            # Wait for the person without time limit, or until the next step is due.
            wait_s = self._due_s()
            is_asked = self._fps is None and any(map(np.any, hand.controlled.values()))
            if turn.is_left_to_agent:
                break
            if self._is_paused or not self._pages or (is_asked and waiting):
                wait_s = _POLL_S
            elif is_asked or wait_s <= 0:
                break
        self._last_step_s = time.monotonic()

    def _due_s(self) -> float:
        """Return the time until the next step is due in s; infinite at the smallest rates."""
        return self._last_step_s + 1 / (self._fps or DEFAULT_FPS) - time.monotonic()

    def act(self, obs: VecObs, batch: EntityBatch, t: int) -> Decisions:
        """Choose the actions of the agents and of the person."""
        decisions = super().act(obs, batch, t)
        frames, self._turn = self._episode.frames, None
        frames.actions, frames.by_hand = decisions.chosen_on_host(), dict(decisions.by_hand)
        return decisions

    def after_step(self, obs: VecObs) -> None:
        """Display the outcome of the step."""
        super().after_step(obs)
        self._episode.frames.obs.reward[:] = obs.reward
        self._show_steps(self._episode.step, 1, self._pages)
        if obs.done.any():
            ends = {name: bool(getattr(obs, name).all()) for name in ("terminated", "truncated")}
            self._send("end", self._pages, episode=self._episode.number, **ends)
            self._begin_episode()

    def _begin_episode(self) -> None:
        number, description = self._episode.number + 1, self._renew()
        self._episode = LiveEpisode(self._replay, self._header, number, description)

    # Messages to pages.

    def _send(self, kind: str, pages: Collection[int], **facts: Any) -> None:
        """Send a message to some pages."""
        self._link.send({"type": kind, **facts}, pages)

    def _show_episode(self, pages: Collection[int]) -> None:
        episode = self._episode
        facts = {"schema": episode.schema, "about": episode.description}
        self._send("episode", pages, episode=episode.number, **facts)

    def _show_steps(self, first: int, count: int, pages: Collection[int]) -> None:
        """Send some steps of the episode."""
        facts = {"first": first, "count": count, "raw": self._episode.chunk(first, count)}
        self._send("steps", pages, episode=self._episode.number, **facts)

    def _show_waiting(self, turn: _Turn, pages: Collection[int]) -> None:
        """Send the current frame and the actors that wait for choices of a person."""
        waiting, ms = set(turn.hand.waiting()), None
        step, actors = self._episode.step, self._actors(self._episode.frames.obs)
        if self._fps is not None:
            ms = max(0, round(1000 * min(self._due_s(), _MAX_COUNTDOWN_S)))
        facts = {
            "step": step,
            "actors": [place for place, actor in actors.items() if actor in waiting],
            "ms": ms,
            "raw": self._episode.chunk(step, 1),
        }
        self._send("waiting", pages, episode=self._episode.number, **facts)

    def _show_places(self, pages: Collection[int]) -> None:
        for page in pages:
            yours = page in self._holders.values()
            self._send("places", [page], places=[*self._holders], yours=yours)

    # Messages from pages.

    def _listen(self, timeout_s: float) -> bool:
        """Handle the next message of a page; return False on timeout."""
        if (received := self._link.receive(timeout_s)) is None:
            return False
        page, message = received
        kind = message.get("type")
        try:
            if not isinstance(kind, str) or kind not in self._handlers:
                expected = ", ".join(self._handlers)
                raise ValueError(f"expected one of {expected}, got {short_repr(kind)}")
            if kind not in _ALLOWED_FOR_ALL and {*self._holders.values()} - {page}:
                raise ValueError("another tab controls the places; this one is read-only")
            self._handlers[kind](page, message)
        except (ValueError, TypeError, KeyError, OverflowError) as error:
            text = f"{kind}: {error}" if str(error) else "unknown message"
            self._send("error", [page], text=text)
        return True

    def _on_joined(self, page: int, message: Message) -> None:
        """Send the state of the running episode."""
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

    def _on_left(self, page: int, message: Message) -> None:
        self._pages.discard(page)
        if page in self._holders.values():
            self._set_places({})

    def _take(self, page: int, message: Message) -> None:
        """Take a place, or release one or all places."""
        if message["type"] == "give" and "side" not in message:
            return self._set_places({})
        side, key = _int_field(message, "side", self._replay.sides), message.get("key")
        # The actor may no longer exist in the current frame; search the displayed frames.
        frame_keys = (self._keys(frames.obs, side) for frames, _ in reversed(self._episode.history))
        if key is not None and not any(key in keys for keys in frame_keys):
            expected = "the key of an entity of the episode"
            raise ValueError(f"key: expected {expected}, got {short_repr(key)}")
        holders = {place: page for place in self._holders if place != (side, key)}
        self._set_places({**holders, (side, key): page} if message["type"] == "take" else holders)

    def _set_places(self, places: dict[Place, int]) -> None:
        self._holders = places
        if self._turn is not None:
            self._turn.hand.controlled = self.controlled_actors(self._episode.frames.obs)
            self._decide_again(self._turn)
        self._show_places(self._pages)

    def _choose(self, page: int, message: Message) -> None:
        """Choose for actors, or leave the remaining choices of the step to the agent."""
        turn, step = self._turn, (message.get("episode"), message.get("step"))
        if turn is None or step != (self._episode.number, self._episode.step):
            raise ValueError("step: expected the current one, got one that is over")
        if message["type"] == "agent":
            turn.is_left_to_agent = True
            return
        actors = self._actors(self._episode.frames.obs)
        for entry in _list_field(message, "choices"):
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
        """Recompute decisions that depend on choices of the person, and display them."""
        latest = self.decide_dependent(turn.batch, turn.decisions, turn.hand)
        if latest is turn.latest:  # the agent's independent choices are unchanged
            return
        frames = self._episode.frames
        frames.logits = latest.parameters_on_host(turn.batch.actions)
        (frames.actions, frames.by_hand), turn.latest = turn.hand.fill(), latest
        if any(turn.hand.waiting()):
            self._show_waiting(turn, self._pages)

    def _set_pace(self, page: int, message: Message) -> None:
        """Pause, resume, or change the rate."""
        if message["type"] == "pause":
            self._is_paused = bool(message.get("on"))
        else:
            fps = message.get("value")
            if fps is not None and not (type(fps) in (int, float) and 0 < fps <= MAX_FPS):
                expected = f"0 to {MAX_FPS:g} or none"
                raise ValueError(f"value: expected {expected}, got {short_repr(fps)}")
            self._fps = fps
        self._send("paused", self._pages, on=self._is_paused, fps=self._fps)

    def _frame(self, message: Message) -> tuple[Message, VecObs, PPOAgent, FrameStates]:
        """Return the frame that a message refers to, with its recurrent state.

        Returns:
            Message fields, the frame as a batch of 1, the agent of its side, and the agent's
            recurrent state in the frame.
        """
        episode, side = self._episode, _int_field(message, "side", self._replay.sides)
        step = _int_field(message, "step", episode.step + 1)
        if message.get("episode") != episode.number or step < episode.first_step:
            raise ValueError("step: expected one of the running episode, got one not stored")
        seat = self.seats[side]  # constant within an episode
        if not isinstance(seat, AgentPlayer):
            raise ValueError(f"side: expected one played by a network, got {side}, a bot")
        frames, memories = episode.history[step - episode.first_step]
        facts = {"episode": episode.number, "step": step, "side": side}
        recall = states_of_env(memories[side], side)
        return facts, frames.obs.take(np.array([side])), seat.agent, recall

    def _explain(self, page: int, message: Message) -> None:
        """Send attention and influence in a frame."""
        facts, obs, agent, recall = self._frame(message)
        batch, attention = EntityBatch.of(obs), None
        positions = range(int(batch.entities_of_frames()[0]))
        entities = (
            _list_field(message, "entities")[:MAX_ENTITIES] if "entities" in message else None
        )
        explanation = explain(agent, batch, positions, self.action_space, entities, recall)
        if explanation.attention is not None:
            layers, heads, size, _ = explanation.attention.shape
            packed = base64.b64encode(explanation.attention.astype("<f4").tobytes()).decode()
            attention = {"layers": layers, "heads": heads, "size": size, "weights": packed}
        names, changes = list(self.action_space), explanation.influence
        influence = {
            "entities": changes.entities.tolist(),
            "values": _finite_or_none(changes.value),
            "choices": [
                [names.index(name), [_finite_or_none(row) for row in table]]
                for name, table in changes.choice.items()
            ],
        }
        self._send("explained", [page], **facts, attention=attention, influence=influence)

    def _what_if(self, page: int, message: Message) -> None:
        """Send the agent's output for an edited frame."""
        facts, obs, agent, recall = self._frame(message)
        changes = [_parse_change(one) for one in _list_field(message, "changes")]
        answer = what_if(agent, obs, self._replay.obs_space, self.action_space, changes, recall)
        names = list(self.action_space)
        decisions = [
            [names.index(name), actor, _finite_or_none(probs)]
            for name, table in answer.probs.items()
            for actor, probs in table.items()
        ]
        [value] = _finite_or_none(np.array([answer.value], np.float32))
        self._send("what_if", [page], **facts, value=value, decisions=decisions)

    def _actors(self, obs: VecObs) -> dict[tuple[int, int, int], tuple[ActionName, int]]:
        """Return action name and index of each actor, by side, action index and position."""
        actors = {}
        for a, name in enumerate(self.action_space):
            rows = obs.action_masks[name].actors
            sides = np.repeat(np.arange(len(rows)), rows.lengths).tolist()
            for row, (side, position) in enumerate(zip(sides, rows.values.tolist(), strict=True)):
                actors[side, a, position] = name, row
        return actors

    def _keys(self, obs: VecObs, side: int) -> list[str]:
        """Return the keys of the entities in the frame of a side; the global entity is last."""
        keys = []
        for i, name in enumerate(self._replay.obs_space.entities):
            count, identity = int(obs.features[name].lengths[side]), obs.identity.get(name)
            if identity is not None and identity.lengths[side]:
                keys += [f"{i}id{number}" for number in identity[side].values.tolist()]
            else:
                keys += [f"{i}#{place}" for place in range(count)]
        return [*keys, "global"]


def _list_field(message: Message, field: str) -> list[Any]:
    """Return a message field that is a list.

    Raises:
        ValueError: it has another type; the message names the field.
    """
    if not isinstance(value := message.get(field), list):
        raise ValueError(f"{field}: expected a list, got {short_repr(value)}")
    return value


def _int_field(message: Message, field: str, limit: int) -> int:
    """Return a message field that is an integer in [0, limit).

    Raises:
        ValueError: it has another value; the message names the field.
    """
    value = message.get(field)
    if type(value) is not int or not 0 <= value < limit:
        raise ValueError(f"{field}: expected 0 to {limit - 1}, got {short_repr(value)}")
    return value


def _parse_change(message: Any) -> FeatureChange:
    """Parse a change sent by a page."""
    types: dict[str, list[type]] = {key: [int] for key in ("position", "feature", "kind")}
    types |= {"value": [int, float], "visible": [bool], "removed": [bool]}
    is_change = isinstance(message, dict) and "position" in message and len(message) > 1
    if not is_change or not all(type(one) in types.get(name, ()) for name, one in message.items()):
        expected = "position, and one of feature, kind, visible, removed"
        raise ValueError(f"changes: expected {expected}, got {short_repr(message)}")
    return FeatureChange(**message)


def _finite_or_none(values: Float32Array) -> list[float | None]:
    """Convert numbers to JSON values: None where not finite."""
    return [value if math.isfinite(value) else None for value in values.tolist()]
