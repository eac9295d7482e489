"""`Notice`, and sums of rollouts."""

from collections.abc import Mapping, Sequence
from typing import NamedTuple, TypeAlias

PAGE = "docs/it-does-not-learn.md"
"""The page that explains each notice, under a heading with the anchor of the notice."""


class Notice(NamedTuple):
    """Sign that a run does not learn.

    Attributes:
        key: a name of its own; a notice is told once for each key.
        text: the sign and its meaning, in one line.
        anchor: anchor of the heading in `PAGE`.
    """

    key: str
    text: str
    anchor: str

    @property
    def page(self) -> str:
        """The page and the heading that explain the notice."""
        return f"{PAGE}#{self.anchor}"


Sums: TypeAlias = dict[str, dict[str, float]]
"""Numbers of rollouts by kind and name.

Those of several rollouts are added, but for names that end in ".min" and ".max". The kinds:

- `run`: frames, updates, examined (frames whose choices and features were looked at), idle (those
  of them without actors), episodes, return.sum, length.sum, explained.sum and explained.count (of
  explained variances), return.min, return.max, reward.min, reward.max, and running.max (steps of an
  episode that goes on). Sums over updates: steep.sum (share of steps with large gradient norms),
  norm.sum (gradient norm) and target.sum (mean of the returns that the values learn).
- `actors`: of each action.
- `policy/<action>`: choosing (actors with several legal choices), entropy (the sum of theirs).
- `chance/<action>`, `taken/<action>`: by label, how often uniform choices would take it, and how
  often it was taken.
- `late/<action>`: frames in the last fifth of the run, share.sum (their normalised entropy).
"""


def add_sums(total: Sums, more: Mapping[str, Mapping[str, float]]) -> None:
    """Add the sums of one rollout to those of others, in place."""
    for kind, numbers in more.items():
        into = total.setdefault(kind, {})
        for name, x in numbers.items():
            if name not in into:
                into[name] = x
            elif kind == "run" and name.endswith(".min"):
                into[name] = min(into[name], x)
            elif kind == "run" and name.endswith(".max"):
                into[name] = max(into[name], x)
            else:
                into[name] += x


def total_of(windows: Sequence[Sums]) -> Sums:
    """Return the sums of several windows together."""
    total: Sums = {}
    for window in windows:
        add_sums(total, window)
    return total
