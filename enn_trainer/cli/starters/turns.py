"""A game to change into your own; `enn check world.py:World` finds mistakes in it."""

from collections.abc import Mapping, Sequence

from entity_env import (
    Action,
    ActionSpace,
    Entity,
    Flag,
    Match,
    Observation,
    ObsSpace,
    PlainState,
    SelectEntityActionMask,
    SelectEntityActionSpace,
)


class World(PlainState, Match):
    """Two sides take a coin in turn until none is left, and the richer one wins."""

    num_sides = 2

    def obs_space(self) -> ObsSpace:
        """Declare what a side observes; `to_move` is for the value function."""
        types = {"Me": Entity(["lead"]), "Coin": Entity(["value"])}
        return ObsSpace(global_features=[Flag("to_move")], entities=types)

    def action_space(self) -> Mapping[str, ActionSpace]:
        """Declare the actions of a side: to select an entity, or to choose a label."""
        return {"take": SelectEntityActionSpace()}

    def reset(self) -> list[Observation]:
        """Begin a game; draw from `self.rng`, so that its seed repeats it."""
        self.coins = {i: self.rng.random() for i in range(self.rng.choice([6, 8, 10]))}
        self.wealth, self.mover = [0.0, 0.0], self.rng.randrange(2)
        return [self.observe(0), self.observe(1)]

    def act(self, actions: Sequence[Mapping[str, Action]]) -> list[Observation]:
        """Take a step with the action of the side to move; the other side has none."""
        coin = actions[self.mover]["take"].actees[0]  # its id
        self.wealth[self.mover] += self.coins.pop(coin)
        self.mover = 1 - self.mover
        return [self.observe(0), self.observe(1)]

    def observe(self, side: int) -> Observation:
        """Return what a side observes; at the end the winner gets 1, the other -1."""
        lead, done = self.wealth[side] - self.wealth[1 - side], not self.coins
        features, ids = [[value] for value in self.coins.values()], [*self.coins]
        take = SelectEntityActionMask(actor_types=["Me"], actee_types=["Coin"])
        return Observation(
            global_features=[side == self.mover],
            entities={"Me": [[lead]], "Coin": (features, ids)},  # any number of each
            actions={"take": take} if side == self.mover and not done else {},
            reward=float((lead > 0) - (lead < 0)) if done else 0.0,
            done=done,
            metrics={"win": float(lead > 0)} if done else None,
        )
