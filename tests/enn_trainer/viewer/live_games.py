"""Live games, and pages in this process that follow them."""

import base64
from collections import deque
from collections.abc import Callable, Collection
from typing import Any

import torch

from enn_trainer.experience.collector import Collector
from enn_trainer.experience.players import AgentPlayer
from enn_trainer.viewer.live import LiveGame, Message
from enn_trainer.viewer.replay import Replay, ReplayEpisode
from enn_trainer.viewer.replay_chunks import decode_chunk
from enn_trainer.viewer.replay_columns import episode_of
from entity_env import EnvList
from entity_env.match import match_of
from rogue_net.config import RogueNetConfig
from rogue_net.ragged import EntityBatch
from rogue_net.rogue_net import RogueNet

Answer = Callable[[Message], list[Message]]


class Pages:
    """Pages in this process: each message that they get may be answered with others."""

    def __init__(self, *answers: Answer) -> None:
        self.answers = answers
        self.told: list[list[Message]] = [[] for _ in answers]
        self.inbox = deque((page, {"type": "joined"}) for page in range(len(answers)))

    def receive(self, timeout_s: float) -> tuple[int, Message] | None:
        return self.inbox.popleft() if self.inbox else None

    def send(self, message: Message, pages: Collection[int]) -> None:
        for one, answer in enumerate(self.answers):
            if one in pages:
                self.told[one].append(message)
                self.inbox.extend((one, said) for said in answer(message))

    def of(self, kind: str, page: int = 0) -> list[Message]:
        return [message for message in self.told[page] if message["type"] == kind]


def quiet(message: Message) -> list[Message]:
    return []


class Played:
    """A network that has learnt nothing plays, and pages follow."""

    def __init__(
        self, world: Any, *answers: Answer, fps: float | None = None, memory: Any = None
    ) -> None:
        one = match_of(world())
        self.sides = one.num_sides
        self.envs = EnvList(world, self.sides)
        torch.manual_seed(0)
        self.spaces = self.envs.obs_space(), self.envs.action_space()
        config = RogueNetConfig(d_model=16, memory=memory)
        self.network = RogueNet(config, *self.spaces, {"value": 1}).eval()
        for weights in self.network.parameters():
            torch.nn.init.normal_(weights, std=0.3)  # also the value head, which begins with 0
        seen = EnvList(world, 32 * self.sides).reset(self.spaces[0])
        self.network.update_input_stats(EntityBatch.of(seen))
        player = AgentPlayer(self.network, 1)
        self.pages = Pages(*answers)
        replay = Replay("live", {}, *self.spaces, self.sides, 0.99)
        self.game = LiveGame(player, [player] * self.sides, replay, self.pages, fps)

    def play(self, steps: int, watcher: Any = None) -> list[Any]:
        """Return the observations of each step, and the choices."""
        self.envs.track()
        collector = Collector(self.envs, self.game, watchers=[watcher] if watcher else [])
        collector.seed(5)
        collector.reset(self.spaces[0])
        self.game._last_step_s = -1e6
        found = []
        with torch.no_grad():
            for t in range(steps):
                self.game._last_step_s = -1e6  # the next step is due
                batch, decisions, obs = collector.step(t, None)
                found.append((batch, decisions, obs))
        return found

    def episode(self, message: Message, page: int = 0) -> ReplayEpisode:
        """Return the frames of a message, as a page decodes them."""
        schema = next(
            m for m in self.pages.of("episode", page) if m["episode"] == message["episode"]
        )
        header = self.pages.of("welcome", page)[0]["header"]
        count = message.get("count", 1)
        columns = decode_chunk(header, schema["schema"], count, base64.b64decode(message["raw"]))
        shown = {**schema["schema"], "steps": count}
        return episode_of(header, shown, columns, *self.spaces)
