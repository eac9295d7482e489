"""The shell game: track the cup with the ball by memory."""

from collections.abc import Mapping
from typing import Any

from entity_env.actions import (
    Action,
    GlobalCategoricalAction,
    GlobalCategoricalActionMask,
    SelectEntityAction,
    SelectEntityActionMask,
)
from entity_env.environment import Environment, Observation
from entity_env.examples.draw import BLUE, COLOURS, GOLD, Drawn, Mark, Scene
from entity_env.kinds import Flag, Kind
from entity_env.plain_state import PlainState
from entity_env.spaces import (
    ActionSpace,
    Entity,
    GlobalCategoricalActionSpace,
    ObsSpace,
    SelectEntityActionSpace,
)
from entity_env.view import EntityView, View

_NAMES = ["blue", "red", "green", "gold"]
_FEWEST, _MOST = 3, 6
_SHUFFLES = 2
"""Frames in which the cups are moved about, between that with the ball and the choice."""


class Shells(PlainState, Drawn, Environment):
    """The shell game: the ball is visible once, then the cups are shuffled, and one is chosen.

    There are 3 to 6 cups with equal features, in random order in each frame: only ids identify
    them. The reward is 1 for the cup with the ball.

    Args:
        hidden: number of frames without visible cups before the choice.
        named: use four cups with different colours, and choose the colour of the cup with the ball
            when no cup is visible.
        new_ids: draw new ids in each frame, so that cups cannot be tracked.
    """

    def __init__(self, hidden: int = 0, named: bool = False, new_ids: bool = False) -> None:
        if hidden < 0:
            raise ValueError(f"hidden: expected at least 0, got {hidden}")
        self.hidden, self.named, self.new_ids = hidden, named, new_ids

    def obs_space(self) -> ObsSpace:
        """Return the space of the hand that chooses, and of the cups."""
        shown: list[Any] = [Flag("ball"), *([Kind("colour", _NAMES)] if self.named else [])]
        return ObsSpace(entities={"Hand": Entity([]), "Cup": Entity(shown)})

    def action_space(self) -> dict[str, ActionSpace]:
        """Return the action: choose a cup, or name a colour."""
        if self.named:
            return {"name": GlobalCategoricalActionSpace(_NAMES)}
        return {"choose": SelectEntityActionSpace()}

    def reset(self) -> Observation:
        """Hide the ball under a random cup."""
        num_cups = len(_NAMES) if self.named else self.rng.randint(_FEWEST, _MOST)
        self.cups = self.rng.sample(range(num_cups), num_cups)
        self.ball, self.step, self.chosen = self.rng.randrange(num_cups), 0, -1
        return self._observe()

    def act(self, actions: Mapping[str, Action]) -> Observation:
        """Shuffle the cups, or end the game if a cup was chosen."""
        self.step += 1
        self.rng.shuffle(self.cups)
        for action in actions.values():
            if isinstance(action, GlobalCategoricalAction):
                self.chosen = _NAMES.index(action.label)
            elif isinstance(action, SelectEntityAction) and action.actees:
                self.chosen = self._cup_of(action.actees[0])
        return self._observe()

    def view(self) -> View:
        """Return the cups; the one with the ball is bright."""
        return View({"Cup": EntityView(shape="triangle", colour="ball")})

    def scene(self) -> Scene:
        """Return the cups in the order of the last frame, and the ball."""
        marks = []
        for x, cup in enumerate(self.cups):
            colour = COLOURS[cup] if self.named else BLUE
            marks.append(Mark(x, 0, "U" if cup == self.chosen else "u", colour, 0.4))
            if cup == self.ball:
                marks.append(Mark(x, -1, "o", GOLD, 0.2))
        return Scene((-0.5, -1.5), (_MOST - 0.5, 0.5), marks, caption=f"step {self.step}")

    @property
    def _choice_step(self) -> int:
        """The step of the choice."""
        return 1 + _SHUFFLES + self.hidden

    def _ids(self) -> list[int]:
        """Return the ids of the cups in the order of the frame."""
        first = self.step * _MOST if self.new_ids else 0
        return [first + cup for cup in self.cups]

    def _cup_of(self, one: Any) -> int:
        """Return the cup with an id of the previous frame."""
        return int(one) % _MOST

    def _observe(self) -> Observation:
        is_choice = self.step == self._choice_step
        is_hidden = _SHUFFLES < self.step < self._choice_step or (is_choice and self.named)
        cups = [] if is_hidden else self.cups
        rows: list[list[Any]] = [[self.step == 0 and cup == self.ball] for cup in cups]
        if self.named:
            rows = [[*row, _NAMES[cup]] for row, cup in zip(rows, cups, strict=True)]
        actions: dict[str, Any] = {}
        if is_choice and self.named:
            actions = {"name": GlobalCategoricalActionMask()}
        elif is_choice:
            actions = {"choose": SelectEntityActionMask(actor_types=["Hand"], actee_types=["Cup"])}
        return Observation(
            features={"Hand": [[]], "Cup": rows},
            ids={"Hand": ["hand"], "Cup": [] if is_hidden else self._ids()},
            actions=actions,
            reward=float(self.chosen == self.ball),
            done=self.step > self._choice_step,
        )
