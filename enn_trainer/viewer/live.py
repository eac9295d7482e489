"""A game that pages follow while it is played, in which a person can take the place of actors.

Messages are dictionaries of plain data, which `serve.py` carries; they are listed in `LiveGame`.
"""

import base64
import math
import time
from collections.abc import Callable, Collection, Sequence
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from enn_trainer.experience.memories import Recurrence
from enn_trainer.experience.person import PersonPlayers
from enn_trainer.experience.players import AgentPlayer, Decisions, Players, SeatPlayer
from enn_trainer.experience.recall import Recall, recall_of_one
from enn_trainer.policy import PPOAgent
from enn_trainer.viewer.episodes import episode_of_frames, recorded
from enn_trainer.viewer.explain import MOST_ENTITIES, Float32, explain
from enn_trainer.viewer.replay import Replay
from enn_trainer.viewer.replay_chunks import Columns, Json, encoded_chunk
from enn_trainer.viewer.replay_columns import encode_episode
from enn_trainer.viewer.replay_format import CHUNK_STEPS, live_header
from enn_trainer.viewer.what_if import Change, what_if
from entity_env.errors import short_repr
from entity_env.play.hand import Hand
from entity_env.ragged import Ragged
from entity_env.recording import recording_format
from entity_env.spaces import GLOBAL, ActionName
from entity_env.vec.vec_obs import VecObs
from rogue_net.ragged import EntityBatch

HOST = "127.0.0.1"
"""The address to listen on: whoever reaches the page can play."""
DEFAULT_FPS = 10.0
MOST_FPS = 1000.0
MOST_STEPS = 10_000
"""Steps of an episode that are kept; of longer ones the last."""
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
        self._replay, self._link = replay, link
        self._fps, self._renew = fps, renew
        self._header = live_header(replay)
        self._schema: Message = {}
        self._is_paused = False
        self._pages: set[int] = set()
        self._holder: int | None = None  # the page that has the places
        self._places: list[Place] = []
        self._episode, self._about = -1, ""
        self._steps: list[recording_format.Decisions] = []  # with their rewards
        self._left_out = 0  # steps of the episode that are no longer kept
        self._hand: Hand | None = None  # while the current frame is decided
        self._is_left_to_agent = False
        self._last_step_s = 0.0
        self._doers: dict[str, Callable[[int, Message], None]] = {
            "joined": self._welcome,
            "left": self._part,
            **dict.fromkeys(["take", "give"], self._take),
            **dict.fromkeys(["choose", "agent"], self._choose),
            "explain": self._explain,
            "what_if": self._what_if,
            **dict.fromkeys(["pause", "fps"], self._pace),
        }

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
        self._asked, self._again = (batch, decisions), decisions
        self._keep(obs, batch, decisions, hand)
        shown: list[tuple[ActionName, int]] = []
        wait_s = 0.0
        while True:
            # A step that is decided is taken before other messages change that.
            while self._listen(min(wait_s, _LOOK_S)) and (any(hand.waiting()) or not shown):
                wait_s = 0.0
            waiting = list(hand.waiting())
            if waiting and waiting != shown:
                self._show_waiting(self._pages)
            shown = waiting
            # Wait for the person without an end, or until the next step is due.
            wait_s = self._due_s()
            is_asked = self._fps is None and any(taken.any() for taken in hand.taken.values())
            if self._is_left_to_agent:
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
        kept, self._hand = self._steps[-1], None
        kept.actions, kept.by_hand = decisions.chosen_on_host(), dict(decisions.by_hand)
        return decisions

    def after_step(self, obs: VecObs) -> None:
        """Show what came of the step."""
        super().after_step(obs)
        self._obs.reward[:] = obs.reward
        self._show_steps(self._step, 1, self._pages)
        if obs.done.any():
            ends = {name: bool(getattr(obs, name).all()) for name in ("terminated", "truncated")}
            self._send("end", self._pages, episode=self._episode, **ends)
            self._begin_episode()

    def _begin_episode(self) -> None:
        self._episode, self._steps, self._left_out, self._schema = self._episode + 1, [], 0, {}
        self._memories: list[list[Recurrence]] = []  # of the seats before each step
        self._about = self._renew()

    @property
    def _obs(self) -> VecObs:
        """The current frames."""
        return self._steps[-1].obs

    @property
    def _step(self) -> int:
        """Number of the current step of the episode."""
        return self._left_out + len(self._steps) - 1

    def _keep(self, obs: VecObs, batch: EntityBatch, decisions: Decisions, hand: Hand) -> None:
        """Keep the current frames, with what the others choose in them."""
        # Masks and visibility are written out, as other steps of the episode may have them.
        frames = obs.take(np.arange(len(obs)))
        for name, mask in frames.action_masks.items():
            if mask.bounds is None:
                mask.mask = mask.full_mask(self.action_space[name].mask_columns)
        frames.visible = {n: frames.visibility(n) for n in frames.features if n != GLOBAL}
        kept = recorded(frames, batch, decisions)
        kept.actions, kept.by_hand = hand.fill()
        self._steps.append(kept)
        self._memories.append(self.remembered)
        if len(self._steps) > MOST_STEPS:
            self._steps.pop(0)
            self._memories.pop(0)
            self._left_out += 1
        if not self._schema:
            schema, _ = self._encoded(self._steps)
            self._schema = {**schema, "steps": 0}
            self._show_episode(self._pages)

    # Messages.

    def _send(self, kind: str, pages: Collection[int], **facts: Any) -> None:
        """Send a message to some pages."""
        self._link.send({"type": kind, **facts}, pages)

    def _show_episode(self, pages: Collection[int]) -> None:
        schema, about = self._schema, self._about
        self._send("episode", pages, episode=self._episode, schema=schema, about=about)

    def _show_steps(self, first: int, count: int, pages: Collection[int]) -> None:
        """Send some steps of the episode."""
        facts = {"first": first, "count": count, "raw": self._raw(first, count)}
        self._send("steps", pages, episode=self._episode, **facts)

    def _raw(self, first: int, count: int) -> str:
        """Return a chunk of some steps, in base64."""
        _, columns = self._encoded(self._steps[first - self._left_out :][:count])
        raw = encoded_chunk(self._header, self._schema, count, columns, {})
        return base64.b64encode(raw).decode()

    def _encoded(self, steps: Sequence[recording_format.Decisions]) -> tuple[Json, Columns]:
        """Return some steps as the entry and the columns of an episode."""
        kept = recording_format.Decisions.cat(steps)
        ends = {"terminated": False, "truncated": False}
        episode = episode_of_frames(kept, kept.obs.reward, self.action_space, **ends)
        return encode_episode(self._replay, episode)

    def _show_waiting(self, pages: Collection[int]) -> None:
        """Send the current frame and the actors that a person has to choose for."""
        assert self._hand is not None
        waiting, ms = set(self._hand.waiting()), None
        actors = [place for place, actor in self._actors().items() if actor in waiting]
        if self._fps is not None:
            ms = max(0, round(1000 * min(self._due_s(), _LONGEST_S)))
        facts = {"actors": actors, "ms": ms, "raw": self._raw(self._step, 1)}
        self._send("waiting", pages, episode=self._episode, step=self._step, **facts)

    def _show_places(self, pages: Collection[int]) -> None:
        for one in pages:
            yours = one == self._holder and bool(self._places)
            self._send("places", [one], places=self._places, yours=yours)

    def _listen(self, timeout_s: float) -> bool:
        """Do what a page asks for next; return False if none asks in time."""
        if (received := self._link.receive(timeout_s)) is None:
            return False
        page, message = received
        kind = message.get("type")
        try:
            if not isinstance(kind, str) or kind not in self._doers:
                expected = ", ".join(self._doers)
                raise ValueError(f"expected one of {expected}, got {short_repr(kind)}")
            if kind not in _OF_ALL_PAGES and self._holder not in (None, page):
                raise ValueError("another tab has the places; this one looks on")
            self._doers[kind](page, message)
        except (ValueError, TypeError, KeyError, OverflowError) as error:
            text = f"{kind}: {error}" if str(error) else "unknown message"
            self._send("error", [page], text=text)
        return True

    def _welcome(self, page: int, message: Message) -> None:
        """Send all that happened in the episode so far."""
        self._pages.add(page)
        pace = {"fps": self._fps, "paused": self._is_paused}
        self._send("welcome", [page], header=self._header, **pace)
        if not self._schema:
            return
        self._show_episode([page])
        end = self._step + (self._hand is None)
        for first in range(self._left_out, end, CHUNK_STEPS):
            self._show_steps(first, min(CHUNK_STEPS, end - first), [page])
        self._show_places([page])
        if self._hand is not None and any(self._hand.waiting()):
            self._show_waiting([page])

    def _part(self, page: int, message: Message) -> None:
        self._pages.discard(page)
        if page == self._holder:
            self._set_places(None, [])

    def _take(self, page: int, message: Message) -> None:
        """Take a place, or give one or all back."""
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
            self._decide_again()
        self._show_places(self._pages)

    def _choose(self, page: int, message: Message) -> None:
        """Choose for actors, or leave the rest of the step to the agent."""
        asked = message.get("episode"), message.get("step")
        if self._hand is None or asked != (self._episode, self._step):
            raise ValueError("step: expected the current one, which waits; that one is over")
        if message["type"] == "agent":
            self._is_left_to_agent = True
            return
        actors = self._actors()
        for one in _list(message, "choices"):
            if not (isinstance(one, list) and [type(number) for number in one[:-1]] == [int] * 3):
                expected = "three numbers and a choice each"
                raise ValueError(f"choices: expected {expected}, got {short_repr(one)}")
            *place, choice = one
            if (actor := actors.get(tuple(place))) is None:
                expected = "side, action and position of an actor of this step"
                raise ValueError(f"choices: expected {expected}, got {place}")
            self._hand.choose(*actor, choice)
            self._decide_again()

    def _decide_again(self) -> None:
        """Let the others decide what depends on choices of the person, and show it."""
        assert self._hand is not None
        batch, decisions = self._asked
        again, kept = self.decided_again(batch, decisions, self._hand), self._steps[-1]
        if again is self._again:  # choices of the agent stay beside those of the person
            return
        kept.logits = again.parameters_on_host(batch.actions)
        (kept.actions, kept.by_hand), self._again = self._hand.fill(), again
        if any(self._hand.waiting()):
            self._show_waiting(self._pages)

    def _pace(self, page: int, message: Message) -> None:
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

    def _found(self, message: Message) -> tuple[Message, VecObs, PPOAgent, Recall]:
        """Return the frame that a message names, as facts and alone, and the agent of its side.

        The agent is returned with what it remembered in the frame.
        """
        side = _whole(message, "side", self._replay.sides)
        step = _whole(message, "step", self._step + 1)
        if message.get("episode") != self._episode or step < self._left_out:
            raise ValueError("step: expected one of the running episode; that one is gone")
        obs = self._steps[step - self._left_out].obs.take(np.array([side]))
        facts = {"episode": self._episode, "step": step, "side": side}
        seat = self.seats[side]  # which stays the same in an episode
        if not isinstance(seat, AgentPlayer):
            raise ValueError(f"side: expected one of a network, got {side}, which a bot plays")
        memory = self._memories[step - self._left_out][side]
        return facts, obs, seat.agent, recall_of_one(memory, side)

    def _explain(self, page: int, message: Message) -> None:
        """Send attention and influence in a frame."""
        facts, obs, agent, recall = self._found(message)
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
        facts, obs, agent, recall = self._found(message)
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

    def _actors(self) -> dict[tuple[int, int, int], tuple[ActionName, int]]:
        """Return action and number of each actor of the step by side, index of action, position."""
        return {
            (side, a, position): (name, row)
            for a, name in enumerate(self.action_space)
            for row, (side, position) in enumerate(_located(self._obs.action_masks[name].actors))
        }

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


def _located(actors: Ragged) -> list[tuple[int, int]]:
    """Return side and position of each actor."""
    sides = np.repeat(np.arange(len(actors)), actors.lengths)
    return list(zip(sides.tolist(), actors.values.tolist(), strict=True))


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


def _finite(values: Float32) -> list[float | None]:
    """Return numbers as JSON has them: None for those that are not finite."""
    return [value if math.isfinite(value) else None for value in values.tolist()]
