"""Environments that tests step in workers.

A worker imports their module, and pytest or hypothesis would take longer than the test.
"""

import builtins
import multiprocessing
import os
import subprocess
import time
import zlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from entity_env import (
    Action,
    ActionSpace,
    CategoricalAction,
    CategoricalActionMask,
    CategoricalActionSpace,
    Entity,
    Environment,
    GlobalCategoricalAction,
    Observation,
    ObsSpace,
    PlainState,
)
from entity_env.spaces import GLOBAL
from tests.entity_env.worlds import Walk

LIFE_S = 60
"""How long children live that nothing ends."""
CROWD = ObsSpace(entities={name: Entity(["x"]) for name in ("Cat", "Dog", "Rock")})


class Doubles(Walk):
    """Twice as many things in each step: after 16 steps a frame takes more than a megabyte."""

    def observe(self, reward: float) -> Observation:
        rows = np.arange(2**self.clock, dtype=np.float32).reshape(-1, 1)
        return Observation(
            features={"Thing": rows if self.clock else rows[:0]},
            global_features=[self.clock],
            actions={"move": CategoricalActionMask(actor_ids=[])},
        )

    def act(self, actions: Mapping[str, Action]) -> Observation:
        self.clock += 1
        return self.observe(0.0)


class KeepsActions(Walk):
    """Rewards 1 if what it was sent first still is what it was."""

    def reset(self) -> Observation:
        self.sent: list[np.ndarray] = []  # type: ignore[type-arg]
        super().reset()
        return self.observe(0.0)

    def act(self, actions: Mapping[str, Action]) -> Observation:
        move = actions["move"]
        assert isinstance(move, CategoricalAction)
        self.sent.append(move.indices)
        return self.observe(float(self.sent[0].tolist() == [0, 0]))

    def observe(self, reward: float) -> Observation:
        return Observation(
            features={"Thing": [[0.0], [1.0]]},
            global_features=[0.0],
            actions={"move": CategoricalActionMask(actor_types=["Thing"])},
            reward=reward,
        )


class Forks(Walk):
    """Start a child that lives on, then lose the worker in the next step."""

    def __init__(self, how: str, pids: str) -> None:
        self.how, self.pids = how, Path(pids)

    def reset(self) -> Observation:
        pid = self._start()
        with self.pids.open("a") as file:
            file.write(f"{pid}\n")
        obs = super().reset()
        self.last = 100
        return obs

    def act(self, actions: Mapping[str, Action]) -> Observation:
        os._exit(7)

    def _start(self) -> int | None:
        if self.how == "fork":
            pid = os.fork()
            if pid == 0:
                time.sleep(LIFE_S)
                os._exit(0)
            return pid
        if self.how == "exec":
            return subprocess.Popen(["sleep", str(LIFE_S)], close_fds=False).pid
        process = multiprocessing.get_context("fork").Process(target=time.sleep, args=[LIFE_S])
        process.start()
        return process.pid


class ForksInStep(Forks):
    """Start a child in the first step, and go on."""

    def reset(self) -> Observation:
        obs = Walk.reset(self)
        self.last = 100
        return obs

    def act(self, actions: Mapping[str, Action]) -> Observation:
        if self.clock == 0:
            with self.pids.open("a") as file:
                file.write(f"{self._start()}\n")
        return Walk.act(self, actions)


class Crowd(PlainState, Environment):
    """A crowd with other visible members in each step, and ids of all types."""

    names: tuple[Any, ...] = (0, "0", (0, ("1", None)), None, 2.5, b"x", np.int16(7), 2**70)

    def obs_space(self) -> ObsSpace:
        return CROWD

    def action_space(self) -> dict[str, Any]:
        return {"go": CategoricalActionSpace(["l", "r"])}

    def reset(self) -> Observation:
        self.left = self.rng.randint(1, 9)
        return self.observe()

    def act(self, actions: Mapping[str, Action]) -> Observation:
        self.left -= 1
        return self.observe()

    def observe(self) -> Observation:
        names = self.rng.sample(self.names, self.rng.randint(0, len(self.names)))
        cut = self.rng.randint(0, len(names))
        ids = {"Cat": names[:cut], "Dog": names[cut:]} if self.rng.random() < 0.8 else {}
        over, is_cut_off = self.left == 0, self.rng.random() < 0.5
        return Observation(
            features={
                "Rock": [[0.0]] * self.rng.randint(0, 2),
                **{name: [[self.rng.random()]] * len(of_type) for name, of_type in ids.items()},
            },
            ids=ids,
            actions={"go": CategoricalActionMask(actor_types=["Rock"])},
            terminated=over and not is_cut_off,
            truncated=over and is_cut_off,
        )


class Unpicklable(Exception):  # noqa: N818
    """An exception that no other process can be sent."""

    def __init__(self, text: str) -> None:
        super().__init__(text, lambda: None)

    def __reduce__(self) -> str:
        raise TypeError("cannot be pickled")


class Raises(Walk):
    """Raise in the second step, or in another method."""

    def __init__(self, kind: str, where: str = "act") -> None:
        super().__init__()
        self.kind, self.where = kind, where
        self._fail("init")

    def reset(self) -> Observation:
        self._fail("reset")
        obs = super().reset()
        self.last = 100
        return obs

    def act(self, actions: Mapping[str, Action]) -> Observation:
        if self.clock == 1:
            self._fail("act")
        return super().act(actions)

    def close(self) -> None:
        self._fail("close")

    def _fail(self, where: str) -> None:
        if where == self.where:
            raise getattr(builtins, self.kind, Unpicklable)("a bug of the environment")


class RaisesEach(Raises):
    """Raise the next of some exceptions in the second step of each episode."""

    def __init__(self, kinds: Sequence[str]) -> None:
        super().__init__(kinds[0])
        self.kinds = iter(kinds)

    def reset(self) -> Observation:
        self.kind = next(self.kinds)
        return super().reset()


class Slow(Walk):
    def reset(self) -> Observation:
        time.sleep(0.002)
        return super().reset()

    def act(self, actions: Mapping[str, Action]) -> Observation:
        time.sleep(0.002)
        return super().act(actions)


def digest(chosen: dict[str, list[tuple[Any, Any]]]) -> float:
    """A digest of the actions of all entities, exact in float32."""
    return float(zlib.crc32(repr(sorted(chosen.items())).encode()) % 2**20)


class Replay(Environment):
    """Replays frames, and rewards with the digest of the actions."""

    def __init__(
        self, obs_space: ObsSpace, action_space: dict[str, ActionSpace], frames: list[Observation]
    ) -> None:
        self.spaces, self.frames, self.turn = (obs_space, action_space), frames, 0

    def obs_space(self) -> ObsSpace:
        return self.spaces[0]

    def action_space(self) -> dict[str, ActionSpace]:
        return self.spaces[1]

    def seed(self, seed: int) -> None:
        self.turn = seed % 1000

    def reset(self) -> Observation:
        return self.show(-float(self.turn))

    def act(self, actions: Mapping[str, Action]) -> Observation:
        self.turn += 1
        return self.show(digest({name: pairs_of(action) for name, action in actions.items()}))

    def show(self, reward: float) -> Observation:
        frame = self.frames[self.turn % len(self.frames)]
        return Observation(
            features=frame.features,
            ids=frame.ids,
            global_features=frame.global_features,
            actions=frame.actions,
            visible=frame.visible,
            reward=reward,
        )


def pairs_of(action: Action) -> list[tuple[Any, Any]]:
    """Actions by entity."""
    if isinstance(action, GlobalCategoricalAction):
        return [(GLOBAL, action.label)]
    told = action.labels if isinstance(action, CategoricalAction) else action.actees
    return list(zip(action.actors, told, strict=True))
