"""A world to change into your own; `enn check world.py:World` finds mistakes in it."""

from collections.abc import Mapping

from entity_env import (
    Action,
    ActionSpace,
    Entity,
    Environment,
    Observation,
    ObsSpace,
    PlainState,
    SelectEntityActionMask,
    SelectEntityActionSpace,
)

ROOM = 3  # the number of parcels that the van holds


class World(PlainState, Environment):
    """A robot loads parcels into a van; a fragile one breaks, and is worth nothing.

    The rewards of an episode add up to 1 if the robot loads the best that it can.
    """

    def obs_space(self) -> ObsSpace:
        """Declare the types of entities, and the names of their features."""
        types = {"Robot": Entity([]), "Parcel": Entity(["value", "is_fragile"])}
        return ObsSpace(global_features=["loaded"], entities=types)

    def action_space(self) -> Mapping[str, ActionSpace]:
        """Declare the actions: to select an entity, or to choose among labels."""
        return {"load": SelectEntityActionSpace()}

    def reset(self) -> Observation:
        """Begin an episode; draw from `self.rng`, so that its seed repeats it."""
        draw = self.rng.random
        count = self.rng.randint(5, 9)
        self.parcels = {i: [draw(), float(draw() < 0.5)] for i in range(count)}
        self.parcels[0][1] = 0.0  # one does not break
        worth = sorted(v * (1 - fragile) for v, fragile in self.parcels.values())
        self.best, self.loaded = sum(worth[-ROOM:]), 0
        return self.observe(reward=0.0)

    def act(self, actions: Mapping[str, Action]) -> Observation:
        """Take a step: the parcel that was selected is gone."""
        value, fragile = self.parcels.pop(actions["load"].actees[0])  # by its id
        self.loaded += 1
        return self.observe(reward=value * (1 - fragile) / self.best)

    def observe(self, reward: float) -> Observation:
        """Return the entities that there are now, and which of them may do what."""
        features, ids = [*self.parcels.values()], [*self.parcels]
        load = SelectEntityActionMask(actor_types=["Robot"], actee_types=["Parcel"])
        return Observation(
            global_features=[self.loaded / ROOM],
            entities={"Robot": [[]], "Parcel": (features, ids)},  # any number of each
            actions={"load": load},  # its argument `mask` would forbid some parcels
            reward=reward,
            done=self.loaded == ROOM,  # or truncated=True, if time is up
        )
