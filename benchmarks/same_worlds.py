"""Environments of `same.py`: every kind of action, mask and episode end, and interruptions."""

import os
import signal
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from entity_env import (
    Action,
    ActionSpace,
    CategoricalAction,
    CategoricalActionMask,
    CategoricalActionSpace,
    Entity,
    GlobalCategoricalActionMask,
    GlobalCategoricalActionSpace,
    Match,
    Observation,
    ObsSpace,
    PlainState,
    SelectEntityActionMask,
    SelectEntityActionSpace,
)


class Herd(PlainState, Match):
    """Match of two sides with changing numbers of sheep and wolves; a function of the seed.

    Args:
        raises_at: the step of the process at which `act` raises; 0 for never.
        stops_at: the step of the process at which it gets SIGTERM, in the middle of an update that
            takes seconds; 0 for never. Either happens once in a folder.
    """

    num_sides = 2
    steps_of_process = 0
    labels = ("left", "stay", "right")
    sheep_features = ("x", "wool", "age")

    def __init__(self, raises_at: int = 0, stops_at: int = 0) -> None:
        self.raises_at, self.stops_at = raises_at, stops_at

    def obs_space(self) -> ObsSpace:
        """Return sheep with features, wolves with one, stones without."""
        sheep = Entity(list(self.sheep_features))
        entities = {"sheep": sheep, "wolf": Entity(["x"]), "stone": Entity([])}
        return ObsSpace(global_features=["hour"], entities=entities)

    def action_space(self) -> dict[str, ActionSpace]:
        """Return one action of each kind."""
        return {
            "walk": CategoricalActionSpace(list(self.labels)),
            "watch": SelectEntityActionSpace(),
            "call": GlobalCategoricalActionSpace(["quiet", "bleat"]),
        }

    def reset(self) -> list[Observation]:
        """Begin an episode of 1 to 6 steps."""
        self.hour, self.length = 0, self.rng.randint(1, 6)
        return self._observe([0.0, 0.0])

    def act(self, actions: Sequence[Mapping[str, Action]]) -> list[Observation]:
        """Reward each side for the sheep that walk right."""
        Herd.steps_of_process += 1
        happened = Path("happened")
        if Herd.steps_of_process in (self.raises_at, self.stops_at) and not happened.exists():
            happened.touch()
            if self.raises_at:
                raise RuntimeError("the herd ran away")
            os.kill(os.getpid(), signal.SIGTERM)
            time.sleep(7)  # longer than the end of an update is waited for
        self.hour += 1
        return self._observe([_rightward(side.get("walk")) for side in actions])

    def _observe(self, rewards: list[float]) -> list[Observation]:
        over, cut = self.hour >= self.length, self.rng.random() < 0.3
        return [self._view(reward, over and not cut, over and cut) for reward in rewards]

    def _view(self, reward: float, terminated: bool, truncated: bool) -> Observation:
        rng = self.rng
        sheep, wolves = rng.randint(0, 4), rng.randint(0, 2)
        features = {"x": rng.random, "wool": lambda: rng.gauss(0, 1), "age": rng.random}
        drawn = [{name: draw() for name, draw in features.items()} for _ in range(sheep)]
        actions = {}
        if rng.random() < 0.8:
            allowed = [[rng.random() < 0.7 for _ in self.labels] for _ in range(sheep)]
            ids = [f"s{i}" for i in range(sheep)]
            actions["walk"] = CategoricalActionMask(
                actor_ids=ids, mask=allowed if rng.random() < 0.5 else None
            )
        if rng.random() < 0.8:
            actions["watch"] = SelectEntityActionMask(
                actor_types=["sheep"], actee_types=["sheep", "stone"]
            )
        if rng.random() < 0.8:
            actions["call"] = GlobalCategoricalActionMask()
        return Observation(
            entities={
                "sheep": (
                    [[one[name] for name in self.sheep_features] for one in drawn],
                    [f"s{i}" for i in range(sheep)],
                ),
                "wolf": [[rng.random()] for _ in range(wolves)],
                "stone": [[]] * rng.randint(0, 2),
            },
            visible={"wolf": [rng.random() < 0.5 for _ in range(wolves)]},
            global_features=[self.hour],
            actions=actions,
            reward=reward,
            terminated=terminated,
            truncated=truncated,
        )


class OlderHerd(Herd):
    """Herd with fewer features, and labels in another order."""

    labels = ("right", "left", "stay")
    sheep_features = ("wool", "x")


def _rightward(walk: Action | None) -> float:
    return walk.labels.count("right") / 4 if isinstance(walk, CategoricalAction) else 0.0
