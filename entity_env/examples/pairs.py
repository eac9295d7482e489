"""The memory game: find pairs of equal cards that lie face down."""

from collections.abc import Mapping

from entity_env.actions import Action, SelectEntityAction, SelectEntityActionMask
from entity_env.environment import Environment, Observation
from entity_env.examples.draw import BLUE, GOLD, PALE, Drawn, Mark, Scene
from entity_env.kinds import Kind
from entity_env.plain_state import PlainState
from entity_env.spaces import ActionSpace, Entity, ObsSpace, SelectEntityActionSpace
from entity_env.view import EntityView, View

_MAX_PAIRS = 12
_MAX_MOVES = 100
_COST_OF_MOVE = 0.05
_DOWN = "down"


class Pairs(PlainState, Drawn, Environment):
    """Single-player memory: a move turns two cards, and equal cards are removed.

    Different cards are turned back. A card that is face down has no features, and the order of
    cards is random in each frame: only ids identify them. The rewards of all pairs sum to 1, each
    move costs 0.05; the metric `moves` is the number of moves. 6 pairs take 36 moves without
    memory, 9.2 with perfect memory. Source: Velleman and Warrington 2012, arXiv:1208.4854.

    Args:
        pairs: number of pairs, at most 12.

    Raises:
        ValueError: there are no or too many pairs.
    """

    def __init__(self, pairs: int = 6) -> None:
        if not 1 <= pairs <= _MAX_PAIRS:
            raise ValueError(f"pairs: expected 1 to {_MAX_PAIRS}, got {pairs}")
        self.pairs = pairs

    def obs_space(self) -> ObsSpace:
        """Return the space of the player and the cards."""
        faces = [_DOWN, *(f"picture {i + 1}" for i in range(self.pairs))]
        card = Entity([Kind("face", faces)])
        return ObsSpace(entities={"Player": Entity([]), "Card": card})

    def action_space(self) -> dict[str, ActionSpace]:
        """Return the action: turn a card."""
        return {"turn": SelectEntityActionSpace()}

    def reset(self) -> Observation:
        """Shuffle the cards, face down."""
        self.pictures = [i // 2 for i in range(2 * self.pairs)]
        self.rng.shuffle(self.pictures)
        self.left = list(range(len(self.pictures)))
        self.up: list[int] = []
        self.moves = 0
        return self._observe(0.0)

    def act(self, actions: Mapping[str, Action]) -> Observation:
        """Turn a card; after the second one, remove both, or turn them back in the next step."""
        turn = actions["turn"]
        assert isinstance(turn, SelectEntityAction)
        card = turn.actees[0]
        assert isinstance(card, int)
        if len(self.up) == 2:
            self.up = []
        self.up.append(card)
        reward = 0.0
        if len(self.up) == 2:
            self.moves += 1
            reward = -_COST_OF_MOVE
            if self.pictures[self.up[0]] == self.pictures[self.up[1]]:
                reward += 1 / self.pairs
                self.left = [one for one in self.left if one not in self.up]
                self.up = []
        return self._observe(reward)

    def view(self) -> View:
        """Return the cards with their faces."""
        return View({"Card": EntityView(shape="square", colour="face", label=("face",))})

    def scene(self) -> Scene:
        """Return the cards at their positions, with a letter if face up."""
        marks = []
        for card, picture in enumerate(self.pictures):
            place = card % 6, -(card // 6)
            if card in self.up:
                marks.append(Mark(*place, chr(ord("A") + picture), GOLD, square=True))
            else:
                is_left = card in self.left
                marks.append(Mark(*place, ".#"[is_left], BLUE if is_left else PALE, square=True))
        rows = -(-len(self.pictures) // 6)
        return Scene((-0.5, 0.5 - rows), (5.5, 0.5), marks, caption=f"{self.moves} moves")

    def _observe(self, reward: float) -> Observation:
        cards = self.rng.sample(self.left, len(self.left))
        faces = [f"picture {self.pictures[c] + 1}" if c in self.up else _DOWN for c in cards]
        # The second card must differ from the first.
        choices = cards if len(self.up) != 1 else [c for c in cards if c not in self.up]
        over = not self.left or self.moves == _MAX_MOVES
        mask = SelectEntityActionMask(actor_ids=["player"], actee_ids=choices)
        return Observation(
            features={"Player": [[]], "Card": [[face] for face in faces]},
            ids={"Player": ["player"], "Card": cards},
            actions={} if over else {"turn": mask},
            reward=reward,
            done=over,
            metrics={"moves": float(self.moves)} if over else None,
        )
