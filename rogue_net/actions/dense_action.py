"""`DenseAction`: the actors of an action in padded frames, the input of `ActionHead.dense`."""

from dataclasses import dataclass

from torch import Tensor


@dataclass(frozen=True)
class DenseAction:
    """Actors of an action in B frames padded to N entities, and their choices.

    Attributes:
        actors: (B, A) int64, rows of the actors in their frame; any row for padding.
        mask: (B, A, choices) bool, True where allowed, at least once for each actor; None for
            continuous actions.
        actees: (B, K) int64, rows of the actees, any row for padding; for select-entity only.
        bounds: (B, A, 2, components) float, lower and upper bounds; for continuous actions only.
    """

    actors: Tensor
    mask: Tensor | None = None
    actees: Tensor | None = None
    bounds: Tensor | None = None

    def actor_rows(self, x: Tensor, parent: Tensor | None) -> Tensor:
        """Return the actors, plus the embeddings of their parent choices, (B, A, d_model).

        Args:
            x: (B, N, d_model), the entities.
            parent: (B, A, d_model), embeddings; None without a parent action.
        """
        rows = rows_of(x, self.actors)
        return rows if parent is None else rows + parent


def rows_of(x: Tensor, index: Tensor) -> Tensor:
    """Gather rows of each frame, (B, N, d) and (B, n) int64 -> (B, n, d)."""
    return x.gather(1, index.unsqueeze(2).expand(-1, -1, x.shape[2]))
