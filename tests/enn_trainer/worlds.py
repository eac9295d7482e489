"""Small worlds that test the trainer."""

import os
import sys
from collections.abc import Mapping
from typing import Any

from entity_env import (
    Action,
    CategoricalAction,
    CategoricalActionMask,
    CategoricalActionSpace,
    Entity,
    Environment,
    GlobalCategoricalActionMask,
    GlobalCategoricalActionSpace,
    Match,
    Observation,
    ObsSpace,
    PlainState,
    SelectEntityActionMask,
    SelectEntityActionSpace,
)
from entity_env.examples import Minefield


class Meadow(Environment):
    """Sheep and wolves in changing numbers, with every kind of action, mask and ending."""

    def obs_space(self) -> ObsSpace:
        return ObsSpace(
            global_features=["hour"],
            entities={
                "sheep": Entity(["x", "wool"]),
                "wolf": Entity(["x"]),
                "stone": Entity([]),
            },
        )

    def action_space(self) -> dict[str, object]:  # type: ignore[override]
        return {
            "walk": CategoricalActionSpace(["left", "stay", "right"]),
            "watch": SelectEntityActionSpace(),
            "call": GlobalCategoricalActionSpace(["quiet", "bleat"]),
        }

    def reset(self) -> Observation:
        self.hour = 0
        self.length = self.rng.randint(1, 6)
        return self._observe(0.0)

    def act(self, actions: Mapping[str, Action]) -> Observation:
        self.hour += 1
        reward = 0.0
        walk = actions.get("walk")
        if isinstance(walk, CategoricalAction):
            reward = sum(label == "right" for label in walk.labels) / 4
        return self._observe(reward)

    def _observe(self, reward: float) -> Observation:
        rng = self.rng
        sheep, wolves = rng.randint(0, 3), rng.randint(0, 2)
        actions = {}
        if rng.random() < 0.8:
            mask = None
            if rng.random() < 0.5:
                mask = [[rng.random() < 0.7 for _ in range(3)] for _ in range(sheep)]
            actions["walk"] = CategoricalActionMask(
                actor_ids=[f"s{i}" for i in range(sheep)], mask=mask
            )
        if rng.random() < 0.8:
            actions["watch"] = SelectEntityActionMask(
                actor_types=["sheep"], actee_types=["wolf", "stone"]
            )
        if rng.random() < 0.8:
            actions["call"] = GlobalCategoricalActionMask()
        over = self.hour >= self.length
        return Observation(
            entities={
                "sheep": (
                    [[rng.random(), rng.gauss(0, 1)] for _ in range(sheep)],
                    [f"s{i}" for i in range(sheep)],
                ),
                "wolf": [[rng.random()] for _ in range(wolves)],
                "stone": [[] for _ in range(rng.randint(0, 1))],
            },
            global_features=[self.hour],
            actions=actions,
            reward=reward,
            terminated=over and self.length % 2 == 0,
            truncated=over and self.length % 2 == 1,
            metrics={"sheep": float(sheep)},
        )


class Levels(Meadow):
    """Every environment takes its rewards from a list that it uses up."""

    def __init__(self, levels: Any) -> None:
        super().__init__()
        self.levels = levels["rewards"]

    def _observe(self, reward: float) -> Observation:
        return super()._observe(float(self.levels.pop() if self.levels else 0))


class Pasture(PlainState, Meadow):
    """A meadow that can be saved."""


class Clockwork(Environment):
    """The same every time: a run that is resumed between episodes cannot be told from one that
    went on, so that they must be equal to the last bit. Episodes take two steps."""

    def obs_space(self) -> ObsSpace:
        return ObsSpace(
            global_features=["hour"], entities={"gear": Entity(["x"]), "peg": Entity([])}
        )

    def action_space(self) -> dict[str, object]:  # type: ignore[override]
        return {
            "turn": CategoricalActionSpace(["left", "right"]),
            "grip": SelectEntityActionSpace(),
        }

    def reset(self) -> Observation:
        self.hour = 0
        return self._observe(0.0)

    def act(self, actions: Mapping[str, Action]) -> Observation:
        self.hour += 1
        turn = actions["turn"]
        assert isinstance(turn, CategoricalAction)
        return self._observe(sum(label == "right" for label in turn.labels) / 2)

    def _observe(self, reward: float) -> Observation:
        return Observation(
            entities={"gear": [[0.5 + self.hour], [-1.0]], "peg": [[]]},
            global_features=[self.hour],
            actions={
                "turn": CategoricalActionMask(actor_types=["gear"]),
                "grip": SelectEntityActionMask(actor_types=["peg"], actee_types=["gear"]),
            },
            reward=reward,
            terminated=self.hour == 2,
        )


class Seen(Meadow):
    """Shows in its metrics where and how it runs."""

    def __init__(self, size: int = 0, faulty: bool = False) -> None:
        super().__init__()
        self.size, self.faulty = size, faulty

    def _observe(self, reward: float) -> Observation:
        obs = super()._observe(float("nan") if self.faulty else reward)
        torch = sys.modules.get("torch")  # not in workers, which would take seconds to import it
        deterministic = torch is not None and torch.backends.cudnn.deterministic
        obs.metrics |= {
            "process": float(os.getpid()),
            "deterministic": float(deterministic),
            "size": float(self.size),
        }
        return obs


class MadeAnew(Minefield):
    """Minefield that hides `set_parameters` once it is made."""

    def __getattribute__(self, name: str) -> Any:
        """Return an attribute; that one is for the constructor alone."""
        if name == "set_parameters" and "max_mines" in vars(self):
            raise AttributeError(name)
        return super().__getattribute__(name)


class Ring(Match):
    """A match whose number of sides is an argument."""

    def __init__(self, n: int = 2) -> None:
        self.num_sides = n

    def obs_space(self) -> ObsSpace:
        return ObsSpace(["t"])

    def action_space(self) -> dict[str, Any]:
        return {"bid": GlobalCategoricalActionSpace(["low", "high"])}

    def reset(self) -> list[Observation]:
        self.t = 0
        return self._observe()

    def act(self, actions: Any) -> list[Observation]:
        self.t += 1
        return self._observe()

    def _observe(self) -> list[Observation]:
        offered = {"bid": GlobalCategoricalActionMask()}
        return [
            Observation(global_features=[self.t], actions=offered, reward=1.0, done=self.t == 4)
            for _ in range(self.num_sides)
        ]


def make_ring(n: int = 2) -> Match:
    return Ring(n)


def make_meadow():  # type: ignore[no-untyped-def]
    return Meadow()


def make_pasture() -> Environment:
    return Pasture()
