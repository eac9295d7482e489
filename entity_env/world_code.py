"""Which code worlds are made of, so that a change of it can be told."""

import hashlib
import inspect
import sys

from entity_env.environment import Environment
from entity_env.match import Match
from entity_env.plain_state import PlainState
from entity_env.vec_env import VecEnv

_INTERFACE = {*Environment.__mro__, *Match.__mro__, *PlainState.__mro__, *VecEnv.__mro__}


def code_of(*worlds: type) -> dict[str, str]:
    """Digests of the source of classes and of those they derive from, by their names.

    What they derive from of this package's interface and of the standard library is left out, and
    so is a class whose source cannot be had here, as of one that was made at a prompt.

    Args:
        worlds: classes of environments and matches.
    """
    classes = {cls for world in worlds for cls in world.__mro__} - _INTERFACE
    digests = {}
    for cls in classes:
        if cls.__module__.partition(".")[0] in sys.stdlib_module_names:
            continue
        try:
            source = inspect.getsource(cls)
        except (OSError, TypeError, SyntaxError):  # no file, or not that of the class any more
            continue
        name = f"{cls.__module__}.{cls.__qualname__}"
        digests[name] = hashlib.sha256(source.encode()).hexdigest()
    return dict(sorted(digests.items()))
