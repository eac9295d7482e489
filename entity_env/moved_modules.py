"""Import modules that have moved under the paths that they had before, with a warning.

`MOVED` is the one table of all three packages. A folder needs a row of its own.
"""

import sys
import warnings
from collections.abc import Sequence
from importlib import import_module
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType

MOVED: dict[str, str] = {
    "entity_env.frame_in_words": "entity_env.play.menu",
    "entity_env.play_by_hand": "entity_env.play.game",
    "entity_env.typed_choices": "entity_env.play.menu",
    "enn_trainer.cuda_settings": "enn_trainer.runtime.process",
    "enn_trainer.garbage": "enn_trainer.runtime.process",
    "enn_trainer.malloc": "enn_trainer.runtime.process",
    "enn_trainer.tracking.span_times": "enn_trainer.tracking.spans",
}
"""The path of each moved module, by the path that it had."""


class _MovedModuleFinder(MetaPathFinder):
    """Finds the modules of `MOVED`, before a folder that was renamed is searched for them."""

    def find_spec(
        self,
        fullname: str,
        path: Sequence[str] | None = None,
        target: ModuleType | None = None,
    ) -> ModuleSpec | None:
        """Return the spec of a moved module, None for any other."""
        if fullname not in MOVED:
            return None
        return ModuleSpec(fullname, _MovedModuleLoader(fullname, MOVED[fullname]))


class _MovedModuleLoader(Loader):
    def __init__(self, old: str, new: str) -> None:
        self._old, self._new = old, new

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        """Return the module at its new path: one module, whichever path imports it."""
        warnings.warn(f"{self._old} is now {self._new}", DeprecationWarning, stacklevel=2)
        module = import_module(self._new)
        self._spec = module.__spec__
        return module

    def exec_module(self, module: ModuleType) -> None:
        """Restore the spec that the import system replaced: the module ran at its new path."""
        module.__spec__ = self._spec


def install() -> None:
    """Let `import` find moved modules; a second call changes nothing."""
    if not any(isinstance(finder, _MovedModuleFinder) for finder in sys.meta_path):
        sys.meta_path.insert(0, _MovedModuleFinder())
