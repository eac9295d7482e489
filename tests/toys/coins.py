"""A kind of action in which each actor throws three coins, and a world with it.

They need no torch, which workers would take seconds to import.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from entity_env import (
    Action,
    ActionMask,
    ActionSpace,
    Entity,
    Match,
    Observation,
    ObsSpace,
    PlainState,
    Ragged,
    VecActionMask,
    VecCategoricalActionMask,
)
from entity_env.spaces import ACTION_SPACES, Actors, Probabilities
from entity_env.vec.frames import Frames

NUM_COINS = 3


@dataclass
class CoinsMask(ActionMask):
    """Every entity throws coins."""


@dataclass
class VecCoinsMask(VecCategoricalActionMask):
    """The actors of frames in which coins are thrown."""

    num_draws = NUM_COINS


@dataclass
class CoinsAction(Action):
    """How many coins of each actor fell heads."""

    heads: np.ndarray[Any, Any]
    probs: np.ndarray[Any, Any] | None = None

    @property
    def chosen(self) -> list[str]:
        """The numbers of heads."""
        return [str(n) for n in self.heads]


@dataclass
class CoinsSpace(ActionSpace):
    """Each actor throws coins."""

    kind = "coins"
    mask_type = CoinsMask
    batch_mask_type = VecCoinsMask

    @property
    def labels(self) -> list[str]:
        """The numbers of heads."""
        return [str(n) for n in range(NUM_COINS + 1)]

    @property
    def mask_columns(self) -> tuple[int, ...]:
        """One column per number of heads."""
        return (NUM_COINS + 1,)

    def num_choices(self, action: Actors) -> Any:
        """Return the numbers of heads that there are."""
        return np.full(int(action.actors.lengths.sum()), NUM_COINS + 1)

    def num_parameters(self, action: Actors) -> Any:
        """Return one per actor."""
        return np.ones(int(action.actors.lengths.sum()), dtype=np.int64)

    def batch_mask(self, frames: Frames, name: str) -> VecCoinsMask:
        """Batch the masks of B frames."""
        masks = self._masks_of(frames, name, None)
        ids: list[Any] = [() if mask is None else None for mask in masks]
        return VecCoinsMask(frames.locate(ids, [None] * len(masks), name), None)

    def decode(
        self,
        name: str,
        choices: Ragged,
        mask: VecActionMask,
        obs: Sequence[Observation],
        obs_space: ObsSpace,
        probs: Probabilities,
    ) -> Iterator[Action | None]:
        """Yield the action of each environment."""
        of_frames = np.split(choices.values, np.cumsum(choices.lengths)[:-1])
        for heads in of_frames:
            yield CoinsAction(heads) if len(heads) else None


ACTION_SPACES[CoinsSpace.__name__] = CoinsSpace


class Tossing(PlainState, Match):
    """Two sides throw coins; each thrower wants heads or tails. Fair coins earn half of the best.

    Args:
        seen: also show how lucky a thrower is, which says nothing.
    """

    def __init__(self, seen: bool = False) -> None:
        self.seen = seen

    def obs_space(self) -> ObsSpace:
        """Throwers, and what they want."""
        return ObsSpace(entities={"Thrower": Entity(["luck", "wants"] if self.seen else ["wants"])})

    def action_space(self) -> dict[str, ActionSpace]:
        """All throwers throw."""
        return {"toss": CoinsSpace()}

    def reset(self) -> list[Observation]:
        """Begin a game of three steps."""
        self.left = 3
        return self._show([0.0, 0.0])

    def act(self, actions: Sequence[Mapping[str, Action]]) -> list[Observation]:
        """Reward heads of entities with the feature `heads`, and tails of others."""
        rewards = []
        for side, wants in enumerate(self.wants):
            toss: Any = actions[side].get("toss")
            heads = [] if toss is None else toss.heads.tolist()
            paid = [n if w > 0 else NUM_COINS - n for n, w in zip(heads, wants, strict=True)]
            rewards.append(sum(paid) / (NUM_COINS * len(paid)))
        self.left -= 1
        return self._show(rewards)

    def _show(self, rewards: list[float]) -> list[Observation]:
        self.wants = [
            [self.rng.choice([-1.0, 1.0]) for _ in range(self.rng.randint(1, 3))] for _ in range(2)
        ]
        return [
            Observation(
                features={"Thrower": [[0.5, w] if self.seen else [w] for w in wants]},
                actions={"toss": CoinsMask()},
                reward=reward,
                done=self.left == 0,
            )
            for wants, reward in zip(self.wants, rewards, strict=True)
        ]
