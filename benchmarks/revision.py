"""Which commit was measured."""

import re

from enn_trainer.checkpoints.made_by import git_revision


def short_revision() -> str:
    """The commit of the folder in seven digits, with "-dirty" if files differ from it."""
    return re.sub(r"^(\w{7})\w*", r"\1", git_revision() or "none")
