"""A chain of locks with a sparse reward, to be learnt with a curriculum."""

from collections.abc import Mapping

from entity_env.actions import Action, SelectEntityAction, SelectEntityActionMask
from entity_env.environment import Environment, Observation
from entity_env.examples.draw import COLOURS, GREEN, PALE, Drawn, Mark, Scene
from entity_env.kinds import Kind
from entity_env.plain_state import PlainState
from entity_env.spaces import ActionSpace, Entity, ObsSpace, SelectEntityActionSpace
from entity_env.view import EntityView, View

_SHAPES = ["circle", "diamond", "heart", "moon", "star", "triangle"]

_OBS_SPACE = ObsSpace(
    entities={"Lock": Entity([Kind("shape", _SHAPES)]), "Key": Entity([Kind("shape", _SHAPES)])}
)
_ACTION_SPACE: dict[str, ActionSpace] = {"pick": SelectEntityActionSpace()}


class Locks(PlainState, Drawn, Environment):
    """Open a chain of locks, each with the key of its shape.

    The observation of each step is the next lock and several keys, one with the same shape. A wrong
    key ends the episode. The reward is 1 after the last lock, 0 before: random keys open 12 locks
    in one of 531,441 episodes. The metric `opened` of the last observation is the number of opened
    locks.

    Args:
        length: number of locks.
        keys: number of keys per lock, 2 to 6.

    Raises:
        ValueError: `length` is below 1, or there are too few or too many keys.
    """

    def __init__(self, length: int = 12, keys: int = 3) -> None:
        self.set_parameters(length, keys)

    def set_parameters(self, length: int | None = None, keys: int | None = None) -> None:
        """Change arguments of the constructor, from the next episode on."""
        if length is not None and length < 1:
            raise ValueError(f"length: expected at least 1, got {length}")
        if keys is not None and not 2 <= keys <= len(_SHAPES):
            raise ValueError(f"keys: expected 2 to {len(_SHAPES)}, got {keys}")
        if length is not None:
            self.length = length
        if keys is not None:
            self.keys = keys

    def obs_space(self) -> ObsSpace:
        """Return the space of the next lock and the keys."""
        return _OBS_SPACE

    def action_space(self) -> dict[str, ActionSpace]:
        """Return the action: pick a key for the lock."""
        return _ACTION_SPACE

    def reset(self) -> Observation:
        """Start at the first lock."""
        self.opened = 0
        self._approach()
        return self._observe(fits=True)

    def act(self, actions: Mapping[str, Action]) -> Observation:
        """Try a key, and go on to the next lock if it fits."""
        pick = actions["pick"]
        assert isinstance(pick, SelectEntityAction)
        key = pick.actees[0]
        assert isinstance(key, int)
        fits = self.shapes[key] == self.lock
        if fits:
            self.opened += 1
            self._approach()
        return self._observe(fits)

    def view(self) -> View:
        """Return the lock and the keys, in the colours of their shapes."""
        lock = EntityView(shape="square", colour="shape", label=("shape",))
        return View({"Lock": lock, "Key": EntityView(shape="star", colour="shape")})

    def scene(self) -> Scene:
        """Return how far the chain is opened, the next lock, and the keys below it."""
        done = 4 * self.opened / self.length
        marks = [
            Mark(0.5, 1, "", PALE, 0.05, to=(4.5, 1)),
            Mark(0.5, 1, "", GREEN, 0.05, to=(0.5 + done, 1)),
            Mark(2.5, 0, _letter(self.lock), COLOURS[self.lock], 0.4, square=True),
        ]
        for i, shape in enumerate(self.shapes):
            marks.append(Mark(i, -1, _letter(shape), COLOURS[shape], 0.3))
        caption = f"{self.opened} of {self.length} locks are open"
        return Scene((-0.5, -1.5), (5.5, 1.5), marks, caption=caption)

    def _approach(self) -> None:
        """Draw the shapes of the keys, and that of the next lock among them."""
        self.shapes = self.rng.sample(range(len(_SHAPES)), self.keys)
        self.lock = self.rng.choice(self.shapes)

    def _observe(self, fits: bool) -> Observation:
        is_through = self.opened == self.length
        done = is_through or not fits
        keys = [*range(len(self.shapes))]
        return Observation(
            features={"Lock": [[self.lock]], "Key": [[shape] for shape in self.shapes]},
            ids={"Lock": ["lock"], "Key": keys},
            actions={"pick": SelectEntityActionMask(actor_types=["Lock"], actee_types=["Key"])},
            reward=float(is_through),
            done=done,
            metrics={"opened": float(self.opened)} if done else None,
        )


def _letter(shape: int) -> str:
    return _SHAPES[shape][0].upper()
