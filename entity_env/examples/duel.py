"""Two-player zero-sum game of target selection."""

from collections.abc import Mapping, Sequence
from dataclasses import replace

from entity_env.actions import Action, SelectEntityAction, SelectEntityActionMask
from entity_env.environment import Observation
from entity_env.examples.draw import BLUE, PALE, RED, Drawn, Mark, Scene, as_hex
from entity_env.match import Match
from entity_env.plain_state import PlainState
from entity_env.spaces import ActionSpace, Entity, ObsSpace, SelectEntityActionSpace
from entity_env.view import EntityView, View

_HP = (12, 24)  # smallest and largest of a new unit
_DAMAGE = (1, 3)

_OBS_SPACE = ObsSpace(
    entities={"Ally": Entity(["hp", "damage"]), "Enemy": Entity(["hp", "damage"])}
)
_ACTION_SPACE: dict[str, ActionSpace] = {"attack": SelectEntityActionSpace()}
_ATTACK = {"attack": SelectEntityActionMask(actor_types=["Ally"], actee_types=["Enemy"])}


class Duel(PlainState, Drawn, Match):
    """A fight between two equal squads of units with random hit points and damage.

    In each step every living unit selects an enemy, all shots land at once, and units without hit
    points are removed. The side that loses all its units first gets -1, the other side 1; if both
    lose their last units in the same step it is a draw, with reward 0. The metrics `win` and `draw`
    of the last observation are 1 or 0.

    Wounded units deal full damage, so concentrating fire is better, first on units with high damage
    and few hit points. Damage beyond the hit points of a unit is wasted.

    Args:
        squad: number of units per side.

    Raises:
        ValueError: `squad` is below 1.
    """

    num_sides = 2
    squad: int = 4  # also in states that were saved before it was an argument

    def __init__(self, squad: int = 4) -> None:
        self.set_parameters(squad)

    def set_parameters(self, squad: int | None = None) -> None:
        """Change the argument of the constructor, from the next episode on."""
        if squad is None:
            return
        if squad < 1:
            raise ValueError(f"squad: expected at least 1, got {squad}")
        self.squad = squad

    def obs_space(self) -> ObsSpace:
        """Return the space of living units, as allies or enemies of the observing side.

        Ids start at 0, with the units of the first side: 0 to 3 and 4 to 7 for squads of four.
        """
        return _OBS_SPACE

    def action_space(self) -> dict[str, ActionSpace]:
        """Return the action: every ally selects an enemy."""
        return _ACTION_SPACE

    def reset(self) -> list[Observation]:
        """Draw one squad and give it to both sides."""
        self.hp = [self.rng.randint(*_HP) for _ in range(self.squad)] * 2
        self.damage = [self.rng.randint(*_DAMAGE) for _ in range(self.squad)] * 2
        return self._observe()

    def act(self, actions: Sequence[Mapping[str, Action]]) -> list[Observation]:
        """Fire all shots at once."""
        for side in actions:
            attack = side["attack"]
            assert isinstance(attack, SelectEntityAction)
            for shooter, target in zip(attack.actors, attack.actees, strict=True):
                self.hp[target] -= self.damage[shooter]  # type: ignore[call-overload]
        return self._observe()

    def view(self) -> View:
        """Return the colours of a side and its enemies, with their features as labels."""
        ally = EntityView(shape="circle", colour=as_hex(BLUE), label=("hp", "damage"))
        return View({"Ally": ally, "Enemy": replace(ally, shape="diamond", colour=as_hex(RED))})

    def scene(self) -> Scene:
        """Return the first side above the second; size shows damage, the bar hit points."""
        marks = []
        squad = len(self.hp) // 2
        apart = min(1.0, 3 / max(1, squad - 1))  # pictures are of the same size for any squad
        for i, (hp, damage) in enumerate(zip(self.hp, self.damage, strict=True)):
            x, y = apart * (i % squad), -1.2 * (i // squad)
            left, bar = x - 0.35, y - 0.5
            marks.append(Mark(left, bar, "", PALE, 0.05, to=(left + 0.7, bar)))
            if hp > 0:
                end = (left + 0.7 * hp / _HP[1], bar)
                colour = RED if i >= squad else BLUE
                marks.append(Mark(left, bar, "", colour, 0.05, to=end))
                marks.append(Mark(x, y, str(damage), colour, 0.1 + 0.08 * damage))
        caption = f"hit points {self.hp[:squad]} {self.hp[squad:]}; damage:"
        return Scene((-0.6, -2), (3.6, 0.6), marks, cell=0.6, caption=caption)

    def _observe(self) -> list[Observation]:
        units = list(zip(self.hp, self.damage, strict=True))
        squad = len(units) // 2
        first = [i for i in range(squad) if self.hp[i] > 0]
        second = [i for i in range(squad, 2 * squad) if self.hp[i] > 0]
        return [_view(units, first, second), _view(units, second, first)]


def _view(units: list[tuple[int, int]], allies: list[int], enemies: list[int]) -> Observation:
    """Return the observation of the side with the living units `allies`."""
    over = not allies or not enemies
    reward = float(bool(allies) - bool(enemies)) if over else 0.0
    return Observation(
        features={"Ally": [units[i] for i in allies], "Enemy": [units[i] for i in enemies]},
        ids={"Ally": allies, "Enemy": enemies},
        actions=_ATTACK,
        reward=reward,
        done=over,
        metrics={"win": float(reward > 0), "draw": float(reward == 0)} if over else None,
    )
