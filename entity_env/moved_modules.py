"""Import modules that have moved under the paths that they had before, with a warning.

`moved_modules.txt` is the one table of all three packages: a line for each module, its old path and
its new one. A folder needs a line of its own.
"""

import sys
import warnings
from collections.abc import Sequence
from importlib import import_module
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType

MOVED: dict[str, str] = dict(
    line.split()
    for line in Path(__file__).with_suffix(".txt").read_text(encoding="ascii").splitlines()
)
"""The path of each moved module, by the path that it had."""
_IN_MOVED_FOLDERS = {
    f"{MOVED[folder]}.{name}": new
    for old, new in MOVED.items()
    for folder, _, name in [old.rpartition(".")]
    if folder in MOVED and f"{MOVED[folder]}.{name}" not in MOVED.values()
}
"""For `from OLD.FOLDER import old_module`, which asks the folder at its new path."""


class _MovedModuleFinder(MetaPathFinder):
    """Finder of the modules of `MOVED`, before a folder that was renamed is searched."""

    def find_spec(
        self,
        fullname: str,
        path: Sequence[str] | None = None,
        target: ModuleType | None = None,
    ) -> ModuleSpec | None:
        """Return the spec of a moved module, None for any other."""
        new = MOVED.get(fullname) or _IN_MOVED_FOLDERS.get(fullname)
        return None if new is None else ModuleSpec(fullname, _MovedModuleLoader(fullname, new))


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
