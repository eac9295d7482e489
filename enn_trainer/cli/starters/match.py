"""A game to change into your own; `enn check world.py:World` finds mistakes in it."""

from collections.abc import Mapping, Sequence

from entity_env import (
    Action,
    ActionSpace,
    Entity,
    Match,
    Observation,
    ObsSpace,
    PlainState,
    SelectEntityActionMask,
    SelectEntityActionSpace,
)

ROUNDS = 4


class World(PlainState, Match):
    """Two sides take a coin each, four times, and the richer one wins.

    If both want the same coin, chance decides who gets it.
    """

    num_sides = 2

    def obs_space(self) -> ObsSpace:
        """Declare the types of entities that a side observes, and their features."""
        return ObsSpace(entities={"Me": Entity(["lead"]), "Coin": Entity(["value"])})

    def action_space(self) -> Mapping[str, ActionSpace]:
        """Declare the actions of a side: to select an entity, or to choose a label."""
        return {"take": SelectEntityActionSpace()}

    def reset(self) -> list[Observation]:
        """Begin a game; draw from `self.rng`, so that its seed repeats it."""
        self.coins = {i: self.rng.random() for i in range(self.rng.randint(8, 12))}
        self.wealth, self.round = [0.0, 0.0], 0
        return [self.observe(0), self.observe(1)]

    def act(self, actions: Sequence[Mapping[str, Action]]) -> list[Observation]:
        """Take a step with the actions of both sides."""
        for side in self.rng.sample([0, 1], 2):  # in either order
            coin = actions[side]["take"].actees[0]  # its id
            self.wealth[side] += self.coins.pop(coin, 0.0)
        self.round += 1
        return [self.observe(0), self.observe(1)]

    def observe(self, side: int) -> Observation:
        """Return what a side observes; at the end the winner gets 1, the other -1."""
        lead, done = self.wealth[side] - self.wealth[1 - side], self.round == ROUNDS
        features, ids = [[value] for value in self.coins.values()], [*self.coins]
        take = SelectEntityActionMask(actor_types=["Me"], actee_types=["Coin"])
        return Observation(
            entities={"Me": [[lead]], "Coin": (features, ids)},  # any number of each
            actions={"take": take},  # its argument `mask` would forbid some coins
            reward=float((lead > 0) - (lead < 0)) if done else 0.0,
            done=done,
            metrics={"win": float(lead > 0)} if done else None,
        )
