"""Small environments with or without a fault that prevents learning."""

from collections.abc import Mapping
from typing import Any

from entity_env import (
    Action,
    CategoricalActionMask,
    CategoricalActionSpace,
    ContinuousActionMask,
    ContinuousActionSpace,
    Entity,
    Environment,
    GlobalCategoricalActionMask,
    GlobalCategoricalActionSpace,
    Kind,
    Observation,
    ObsSpace,
    PlainState,
)
from entity_env.testing import Identity


class Corridor(PlainState, Environment):
    """Corridor of doors: go when the light is green, in one of ten frames.

    Going at another time ends the episode with -1; passing the last door pays 1.

    Args:
        cells: number of uninformative entities.
        doors: number of doors.
        green: share of the frames in which the light is green.
        limit: number of steps until truncation.
    """

    def __init__(
        self, cells: int = 20, doors: int = 4, green: float = 0.1, limit: int = 100
    ) -> None:
        self.cells, self.doors, self.green, self.limit = cells, doors, green, limit

    def obs_space(self) -> ObsSpace:
        return ObsSpace(entities={"Light": Entity(["green"]), "Cell": Entity(["x", "y"])})

    def action_space(self) -> dict[str, Any]:
        return {"do": GlobalCategoricalActionSpace(["wait", "turn", "go"])}

    def reset(self) -> Observation:
        self.passed = self.steps = 0
        return self.observe()

    def act(self, actions: Mapping[str, Action]) -> Observation:
        do: Any = actions["do"]
        self.steps += 1
        if do.label != "go":
            return self.observe()
        if not self.is_green:
            return self.observe(-1.0, terminated=True)
        self.passed += 1
        is_last = self.passed == self.doors
        return self.observe(float(is_last), is_last)

    def observe(self, reward: float = 0.0, terminated: bool = False) -> Observation:
        self.is_green = self.rng.random() < self.green
        cells = [[self.rng.random(), self.rng.random()] for _ in range(self.cells)]
        return Observation(
            features={"Light": [[float(self.is_green)]], "Cell": cells},
            actions={"do": GlobalCategoricalActionMask()},
            reward=reward,
            terminated=terminated,
            truncated=self.steps >= self.limit,
        )


class Lock(PlainState, Environment):
    """Lock that opens after eight right choices of four; a wrong one resets it.

    Args:
        limit: number of steps until truncation.
        prize: reward for the open lock.
        progress: reward for each place gained, subtracted for each place lost.
        wage: reward of every step.
        anywhere: True to start episodes at a random place instead of the first one.
        ends: True if episodes end; otherwise the open lock is closed again.
    """

    RIGHT = (2, 0, 3, 3, 1, 2, 0, 1)

    def __init__(
        self,
        *,
        limit: int = 8,
        prize: float = 1.0,
        progress: float = 0.0,
        wage: float = 0.0,
        anywhere: bool = False,
        ends: bool = True,
    ) -> None:
        self.limit, self.prize, self.progress, self.wage = limit, prize, progress, wage
        self.anywhere, self.ends = anywhere, ends

    def obs_space(self) -> ObsSpace:
        return ObsSpace(entities={"Lock": Entity([Kind("place", list("ABCDEFGH"))])})

    def action_space(self) -> dict[str, Any]:
        return {"turn": CategoricalActionSpace(["north", "east", "south", "west"])}

    def reset(self) -> Observation:
        self.place = self.rng.randrange(len(self.RIGHT)) if self.anywhere else 0
        self.steps = 0
        return self.observe()

    def act(self, actions: Mapping[str, Action]) -> Observation:
        turn: Any = actions["turn"]
        before, self.steps = self.place, self.steps + 1
        self.place = before + 1 if turn.indices[0] == self.RIGHT[before] else 0
        reward = self.progress * (self.place - before) + self.wage
        if self.place < len(self.RIGHT):
            return self.observe(reward)
        self.place = 0
        return self.observe(reward + self.prize, is_open=True)

    def observe(self, reward: float = 0.0, is_open: bool = False) -> Observation:
        is_over = self.ends and (is_open or self.steps >= self.limit)
        return Observation(
            features={"Lock": [[self.place]]},
            actions={"turn": CategoricalActionMask()},
            reward=reward,
            terminated=is_over and is_open,
            truncated=is_over,
            metrics={"open": float(is_open)} if is_over else {},
        )


class Turns(Identity):
    """`Identity` where the mark may be named only in the last of several frames.

    Args:
        wait: number of earlier frames without actors.
    """

    def __init__(self, wait: int = 0) -> None:
        self.wait = wait

    def reset(self) -> Observation:
        self.left = self.wait
        return super().reset()

    def act(self, actions: Mapping[str, Action]) -> Observation:
        if not self.left:
            return super().act(actions)
        self.left -= 1
        return self._observe()

    def _observe(self, reward: float = 0.0, done: bool = False) -> Observation:
        obs = super()._observe(reward, done)
        obs.actions = {"say": CategoricalActionMask(actor_types=[] if self.left else ["Mark"])}
        return obs


class Noisy(Identity):
    """`Identity` with a mostly random reward.

    Args:
        share: reward of the right word, in addition to a random 1 or -1.
    """

    def __init__(self, share: float = 0.2) -> None:
        self.share = share

    def _observe(self, reward: float = 0.0, done: bool = False) -> Observation:
        obs = super()._observe(self.share * reward + self.rng.choice([-1.0, 1.0]), done)
        if done:
            obs.metrics = {"right": reward}
        return obs


class Gate(PlainState, Environment):
    """Forward pays 1 if the gate is open, in one of ten frames, and -1 otherwise.

    If the gate is not observed, the best action is left or right.
    """

    def __init__(self, shown: bool = True) -> None:
        self.shown = shown

    def obs_space(self) -> ObsSpace:
        return ObsSpace(entities={"Me": Entity(["open", "noise"])})

    def action_space(self) -> dict[str, Any]:
        return {"do": CategoricalActionSpace(["left", "right", "forward"])}

    def reset(self) -> Observation:
        self.open = self.rng.random() < 0.1
        return self.observe()

    def act(self, actions: Mapping[str, Action]) -> Observation:
        do: Any = actions["do"]
        return self.observe((1.0 if self.open else -1.0) if do.labels == ["forward"] else 0.0, True)

    def observe(self, reward: float = 0.0, done: bool = False) -> Observation:
        seen = float(self.open if self.shown else self.rng.random() < 0.1)
        return Observation(
            features={"Me": [[seen, self.rng.random()]]},
            actions={"do": CategoricalActionMask()},
            reward=reward,
            done=done,
        )


class Luck(PlainState, Environment):
    """Coin that lands after four steps, independent of actions; its side is observed or not."""

    def __init__(self, shown: bool = True) -> None:
        self.shown = shown

    def obs_space(self) -> ObsSpace:
        return ObsSpace(global_features=["side", "noise"])

    def action_space(self) -> dict[str, Any]:
        return {"say": GlobalCategoricalActionSpace(["a", "b"])}

    def reset(self) -> Observation:
        self.side, self.left = self.rng.choice([-1.0, 1.0]), 4
        return self.observe()

    def act(self, actions: Mapping[str, Action]) -> Observation:
        self.left -= 1
        return self.observe(self.side if self.left == 0 else 0.0, self.left == 0)

    def observe(self, reward: float = 0.0, done: bool = False) -> Observation:
        return Observation(
            global_features=[self.side if self.shown else self.rng.random(), self.rng.random()],
            actions={"say": GlobalCategoricalActionMask()},
            reward=reward,
            done=done,
        )


class Marked(Identity):
    """`Identity` with a constant mark, in addition to the informative one or instead of it."""

    def __init__(self, shown: bool = True) -> None:
        self.shown = shown

    def obs_space(self) -> ObsSpace:
        return ObsSpace(entities={"Mark": Entity(["kind", "always"]), "Noise": Entity(["x"])})

    def action_space(self) -> dict[str, Any]:
        return {**super().action_space(), "never": CategoricalActionSpace(["a", "b"])}

    def _observe(self, reward: float = 0.0, done: bool = False) -> Observation:
        kind = 2.0 * self.mark - 1 if self.shown else 7.0
        return Observation(
            features={"Mark": [[kind, 3.0]], "Noise": [[self.rng.random()]]},
            actions={"say": CategoricalActionMask(actor_types=["Mark"])},
            reward=reward,
            done=done,
        )


class Steps(PlainState, Environment):
    """Random rewards of `scale`, in episodes of some steps or without end.

    Args:
        length: number of steps per episode; 0 for no end.
        scale: largest reward.
        every: one of `every` frames has actors.
        cost: subtracted from all rewards.
    """

    def __init__(
        self, length: int = 5, scale: float = 1.0, every: int = 1, cost: float = 0.0
    ) -> None:
        self.length, self.scale, self.every, self.cost = length, scale, every, cost

    def obs_space(self) -> ObsSpace:
        return ObsSpace(entities={"Me": Entity(["x"])})

    def action_space(self) -> dict[str, Any]:
        return {"go": CategoricalActionSpace(["a", "b"])}

    def reset(self) -> Observation:
        self.steps = 0
        return self.observe()

    def act(self, actions: Mapping[str, Action]) -> Observation:
        self.steps += 1
        reward = self.scale * self.rng.random() - self.cost
        return self.observe(reward, self.steps == self.length)

    def observe(self, reward: float = 0.0, done: bool = False) -> Observation:
        actors = ["Me"] if self.steps % self.every == 0 else []
        return Observation(
            features={"Me": [[self.rng.random()]]},
            actions={"go": CategoricalActionMask(actor_types=actors)},
            reward=reward,
            done=done,
        )


class Tap(PlainState, Environment):
    """Tap with a continuous opening; the demand of each step is met with an opening up to 10.

    A step pays 1, less the difference between demand and flow.

    Args:
        most: largest opening; from 10 on the flow is that of 10.
        start: initial mean of the opening; None for the middle.
    """

    LENGTH = 8

    def __init__(self, most: float = 1000.0, start: float | None = None) -> None:
        self.most, self.start = most, start

    def obs_space(self) -> ObsSpace:
        return ObsSpace(entities={"Tap": Entity(["demand"])})

    def action_space(self) -> dict[str, Any]:
        start = {} if self.start is None else {"opening": self.start}
        return {"turn": ContinuousActionSpace({"opening": (0.0, self.most)}, start=start)}

    def reset(self) -> Observation:
        self.steps = 0
        return self.observe()

    def act(self, actions: Mapping[str, Action]) -> Observation:
        flow = min(float(actions["turn"].of("opening")[0]) / 10, 1.0)
        self.steps += 1
        return self.observe(1 - abs(self.demand - flow))

    def observe(self, reward: float = 0.0) -> Observation:
        self.demand = self.rng.random()
        return Observation(
            features={"Tap": [[self.demand]]},
            actions={"turn": ContinuousActionMask(actor_types=["Tap"])},
            reward=reward,
            done=self.steps == self.LENGTH,
        )
