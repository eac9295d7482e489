"""Kuhn poker, a small game with known Nash equilibria."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import permutations

from entity_env.actions import Action, GlobalCategoricalAction, GlobalCategoricalActionMask
from entity_env.environment import Observation
from entity_env.errors import EntityEnvError
from entity_env.examples.draw import BLUE, RED, Drawn, Mark, Scene
from entity_env.kinds import Flag, Kind
from entity_env.match import Match
from entity_env.plain_state import PlainState
from entity_env.spaces import ActionSpace, Entity, GlobalCategoricalActionSpace, ObsSpace
from entity_env.view import EntityView, View

_RANKS = ["jack", "queen", "king"]
_DEALS = list(permutations(range(3), 2))

_OBS_SPACE = ObsSpace(
    [Flag("is_first")],
    {
        "Card": Entity([Kind("rank", _RANKS), Flag("is_own")]),
        "Bet": Entity(["chips", Flag("is_own")]),
    },
)
_ACTION_SPACE: dict[str, ActionSpace] = {"play": GlobalCategoricalActionSpace(["pass", "bet"])}
_PLAY = {"play": GlobalCategoricalActionMask()}


class KuhnPoker(PlainState, Drawn, Match):
    """Kuhn poker: two sides, a deck of three cards, and a single round of bets.

    Both sides pay an ante of one chip. The first side passes or bets another chip, then the second
    side; if the first side passed before a bet, it acts again. Passing after a bet folds. Otherwise
    the higher card wins. Rewards are the chips won or lost. The metrics `win` and `showdown` of the
    last observation are 1 or 0: the side won, and the cards were compared.

    In a Nash equilibrium the first side loses 1/18 of a chip per game. With some a from 0 to 1/3 it
    bets on a jack with probability a, on a king with 3a, never on a queen, and calls with a queen
    with probability a + 1/3. Source: Kuhn 1950, *A simplified two-person poker*.

    Args:
        deal: the cards of both sides in every game, 0 to 2 from jack to king; None to draw one of
            the six deals uniformly.

    Raises:
        EntityEnvError: the deal is invalid.
    """

    num_sides = 2

    def __init__(self, deal: Sequence[int] | None = None) -> None:
        if deal is not None and tuple(deal) not in _DEALS:
            raise EntityEnvError(f"deal: expected two different cards, 0 to 2, got {deal!r}")
        self.deal = None if deal is None else tuple(deal)

    def obs_space(self) -> ObsSpace:
        """Return the space of cards and bets; `is_first` is 1 for the side that acts first."""
        return _OBS_SPACE

    def action_space(self) -> dict[str, ActionSpace]:
        """Return the action of the side to move."""
        return _ACTION_SPACE

    def reset(self) -> list[Observation]:
        """Deal the cards and collect the antes."""
        self.cards = self.rng.choice(_DEALS) if self.deal is None else self.deal
        self.chips, self.moves, self.winner = [1, 1], 0, -1
        return self._observe()

    def act(self, actions: Sequence[Mapping[str, Action]]) -> list[Observation]:
        """Let the side to move pass or bet."""
        side = self.moves % 2
        play = actions[side]["play"]
        assert isinstance(play, GlobalCategoricalAction)
        was_bet = self.chips[1 - side] > self.chips[side]
        self.moves += 1
        if play.label == "bet":
            self.chips[side] = 2
        if play.label == "pass" and was_bet:
            self.winner = 1 - side
        elif was_bet or (play.label == "pass" and self.moves == 2):
            self.winner = int(self.cards[1] > self.cards[0])
        return self._observe()

    def view(self) -> View:
        """Return the colours of cards and bets by their owner."""
        card = EntityView(shape="square", colour="is_own", label=("rank",))
        return View({"Card": card, "Bet": replace(card, shape="circle", label=("chips",))})

    def scene(self) -> Scene:
        """Return the cards and chips of both sides, the first side above the second."""
        marks = []
        for side, (card, chips) in enumerate(zip(self.cards, self.chips, strict=True)):
            colour = RED if side else BLUE
            marks.append(Mark(0, -side, _RANKS[card][0].upper(), colour, square=True))
            marks += [Mark(1 + i, -side, "o", colour, 0.2) for i in range(chips)]
        return Scene(
            (-0.5, -1.5), (2.5, 0.5), marks, caption="first side, second side: card, chips"
        )

    def _observe(self) -> list[Observation]:
        return [self._view(side) for side in (0, 1)]

    def _view(self, side: int) -> Observation:
        """Return the observation of a side, with the other card only at the end."""
        over, won = self.winner >= 0, self.winner == side
        cards = [(_RANKS[self.cards[side]], True)]
        if over:
            cards.append((_RANKS[self.cards[1 - side]], False))
        reward = float(self.chips[1 - side] if won else -self.chips[side])
        compared = self.chips[0] == self.chips[1]
        return Observation(
            features={
                "Card": cards,
                "Bet": [(self.chips[side], True), (self.chips[1 - side], False)],
            },
            global_features=[side == 0],
            actions=_PLAY if not over and self.moves % 2 == side else {},
            reward=reward if over else 0.0,
            done=over,
            metrics={"win": float(won), "showdown": float(compared)} if over else None,
        )
