"""How the work of an update is done, which changes nothing of what comes out of it."""

from collections.abc import Callable
from dataclasses import dataclass

from enn_trainer.lanes import ONE_LANE, Lanes
from enn_trainer.tracking.spans import OFF, Spans


@dataclass(frozen=True)
class Work:
    """Around an update.

    Attributes:
        lanes: that compute what does not wait for each other.
        check: called before each step of the environments and each minibatch, and in lanes before
            each forward pass; what it raises ends the update.
        spans: measures the parts.
    """

    lanes: Lanes = ONE_LANE
    check: Callable[[], None] = lambda: None
    spans: Spans = OFF


PLAIN = Work()
