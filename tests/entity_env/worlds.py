"""Small environments that several tests use."""

import ctypes
import os
import time
from collections.abc import Mapping, Sequence
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
    Match,
    Observation,
    ObsSpace,
    PlainState,
    SelectEntityAction,
    SelectEntityActionMask,
    SelectEntityActionSpace,
)

SPACE = ObsSpace(
    global_features=["clock"], entities={"Thing": Entity(["x"]), "Goal": Entity(["x", "y"])}
)
ACTIONS: dict[str, ActionSpace] = {
    "move": CategoricalActionSpace(["left", "right", "stay"]),
    "pick": SelectEntityActionSpace(),
}


class Walk(Environment):
    """Things walk on a line; episodes of random length end or are cut off. Only for tests."""

    def obs_space(self) -> ObsSpace:
        return SPACE

    def action_space(self) -> dict[str, ActionSpace]:
        return ACTIONS

    def reset(self) -> Observation:
        self.things = [self.rng.random() for _ in range(self.rng.randint(0, 3))]
        self.clock, self.last = 0, self.rng.randint(1, 5)
        self.cut = self.rng.random() < 0.5
        return self.observe(0.0)

    def act(self, actions: Mapping[str, Action]) -> Observation:
        self.clock += 1
        reward = self.rng.random() / 3
        move, pick = actions["move"], actions.get("pick")
        assert isinstance(move, CategoricalAction)
        for actor, choice in zip(move.actors, move.indices, strict=True):
            assert isinstance(actor, tuple)
            self.things[actor[1]] += float(choice) - 1
        if isinstance(pick, SelectEntityAction):
            reward += sum(actee == "goal" for actee in pick.actees)
        return self.observe(reward)

    def observe(self, reward: float) -> Observation:
        over = self.clock >= self.last
        actions = {"move": CategoricalActionMask(actor_types=["Thing"])}
        if self.clock % 2 == 0:
            actions["pick"] = SelectEntityActionMask(  # type: ignore[assignment]
                actor_types=["Thing"],
                mask=[
                    [i != k for k in range(len(self.things) + 1)] for i in range(len(self.things))
                ],
            )
        return Observation(
            entities={
                "Goal": ([[self.clock / 3, 1.0]], ["goal"]),
                "Thing": [[x] for x in self.things],
            },
            global_features=[self.clock],
            actions=actions,
            visible={"Goal": [True]} if self.clock == 1 else None,
            reward=reward,
            terminated=over and not self.cut,
            truncated=over and self.cut,
            metrics={"x": sum(self.things)} if self.things else None,
        )


class Bidding(Match):
    """Two sides bid; the higher bid earns 1. Only for tests."""

    def obs_space(self) -> ObsSpace:
        return ObsSpace(entities={"Purse": Entity(["gold", "side"])})

    def action_space(self) -> dict[str, ActionSpace]:
        return {"bid": CategoricalActionSpace(["0", "1", "2"])}

    def reset(self) -> list[Observation]:
        self.turn, self.gold = 0, self.rng.random()
        return self.observe([0.0, 0.0])

    def act(self, actions: Sequence[Mapping[str, Action]]) -> list[Observation]:
        self.turn += 1
        bids = [int(action["bid"].indices[0]) for action in actions]  # type: ignore[union-attr]
        return self.observe([float(bids[0] > bids[1]), float(bids[1] > bids[0])])

    def observe(self, rewards: list[float]) -> list[Observation]:
        return [
            Observation(
                entities={"Purse": [[self.gold, side]]},
                actions={"bid": CategoricalActionMask()},
                reward=reward,
                truncated=self.turn == 3,
            )
            for side, reward in enumerate(rewards)
        ]


class FailsLater(Walk):
    """Raises in its second step, in one way or another."""

    how = "raise"
    threshold = 0.7  # of a first draw: only some of the environments fail

    def reset(self) -> Observation:
        self.fails = self.rng.random() > self.threshold
        obs = super().reset()
        self.last = 100
        return obs

    def act(self, actions: Mapping[str, Action]) -> Observation:
        obs = super().act(actions)
        if self.clock == 2 and self.fails:
            if self.how == "exit":
                os._exit(7)
            if self.how == "nan":
                obs.features["Goal"] = [[float("nan"), 0.0]]
                return obs
            raise KeyError("a bug of the environment")
        return obs


class Dies(FailsLater):
    how = "exit"


class Nan(FailsLater):
    how = "nan"


class Breaks(Walk):
    """Episodes of two steps, cut off; something is wrong at the end of one or the start of one."""

    def __init__(self, wrong: str) -> None:
        self.wrong, self.begun = wrong, 0

    def reset(self) -> Observation:
        self.begun += 1
        self.turn = 0
        return self.shown(np.nan if self.wrong == "first frame" and self.begun == 3 else 0.0)

    def act(self, actions: Any) -> Observation:
        self.turn += 1
        is_last = self.begun == 2 and self.turn == 2
        obs = self.shown(np.nan if self.wrong == "last frame" and is_last else 0.0)
        obs.truncated = self.turn == 2
        if is_last:
            obs.reward = np.nan if self.wrong == "reward" else 0.0
            obs.metrics = {"fuel": "none"} if self.wrong == "metric" else {}  # type: ignore[dict-item]
        return obs

    def shown(self, x: float) -> Observation:
        return Observation(features={"Thing": [[x]]}, global_features=[0.0])


class Repeats(PlainState, Walk):
    """An array and a view that repeats it, which no state describes."""

    def reset(self) -> Observation:
        self.row = np.zeros(3)
        self.table = np.broadcast_to(self.row, (4, 3))
        return super().reset()


class HoldsTheInterpreter(Walk):
    """Never leaves a call in C that keeps Python's lock, as some regular expressions do."""

    def act(self, actions: Mapping[str, Action]) -> Observation:
        ctypes.PyDLL(None).sleep(600)
        raise AssertionError


class Sleeps(Walk):
    """Never answers a step."""

    def act(self, actions: Mapping[str, Action]) -> Observation:
        time.sleep(600)
        raise AssertionError


class Named(PlainState, Environment):
    """Entities with ids of all types of plain data; actors and actees vary.

    It says in its reward who acted and who was selected.
    """

    names: tuple[Any, ...] = (7, "seven", (7, "of", 9), None, 7.5, b"7", np.int16(3), 2**70)

    def obs_space(self) -> ObsSpace:
        return ObsSpace(["t"], {"Who": Entity(["x"]), "Nobody": Entity(["y"])})

    def action_space(self) -> dict[str, Any]:
        return {"do": CategoricalActionSpace(["a", "b"]), "pick": SelectEntityActionSpace()}

    def reset(self) -> Observation:
        self.t, self.told = 0, 0.0
        return self._observe()

    def act(self, actions: Any) -> Observation:
        self.t += 1
        said = [(a.actors, getattr(a, "actees", ())) for a in actions.values()]
        self.told = float(sum(map(ord, repr(said))))
        return self._observe()

    def _observe(self) -> Observation:
        names = self.rng.sample(self.names, self.rng.randint(1, len(self.names)))
        rows = [[self.rng.random()] for _ in names]
        by_type = self.rng.random() < 0.5
        some = None if by_type else tuple(names[:2])
        return Observation(
            entities={"Who": (rows, names), "Nobody": [[1.0]] * self.rng.randint(0, 2)},
            global_features=[self.t],
            actions={
                "do": CategoricalActionMask(
                    actor_ids=some,
                    mask=[[True, False]] + [[False, False]] * (len(names) - 1) if by_type else None,
                    actor_types=["Who"] if by_type else None,
                ),
                "pick": SelectEntityActionMask(actor_types=["Who"], actee_ids=names[-2:]),
            },
            reward=self.told,
            visible={"Who": [self.rng.random() < 2 for _ in names]},
            truncated=self.t == 5,
            metrics={"t": self.t},
        )


class NamedInArrays(Named):
    """Its ids are NumPy's."""

    def _observe(self) -> Observation:
        ids = np.array([f"s{self.rng.randint(0, 99)}", "longer"])
        return Observation(
            entities={
                "Who": ([[self.rng.random()]] * 2, ids),
                "Nobody": ([[1.0]], [np.str_(f"n{self.t}")]),
            },
            global_features=[self.t],
            actions={
                "do": CategoricalActionMask(actor_ids=ids[:1]),
                "pick": SelectEntityActionMask(actor_ids=np.array([ids[1]]), actee_ids=ids),
            },
            reward=self.told,
            truncated=self.t == 5,
        )
