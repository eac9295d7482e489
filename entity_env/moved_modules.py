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
    "entity_env.adapters.action_parts": "entity_env.adapters.action_components",
    "entity_env.adapters.bind": "entity_env.adapters.gymnasium_api",
    "entity_env.adapters.choose": "entity_env.adapters.action_translators",
    "entity_env.adapters.declared": "entity_env.adapters.known_envs",
    "entity_env.adapters.gymnasium_agents": "entity_env.adapters.tuple_to_parallel",
    "entity_env.adapters.infer": "entity_env.adapters.field_inference",
    "entity_env.adapters.observe": "entity_env.adapters.observation_reader",
    "entity_env.adapters.padded": "entity_env.adapters.to_gymnasium",
    "entity_env.adapters.port": "entity_env.adapters.agent_translator",
    "entity_env.adapters.sides": "entity_env.adapters.side_translators",
    "entity_env.adapters.space_numbers": "entity_env.adapters.gymnasium_spaces",
    "entity_env.adapters.tables": "entity_env.adapters.observation_fields",
    "entity_env.adapters.teams": "entity_env.adapters.side_translators",
    "entity_env.any_vec_env": "entity_env.adapters.any_vec_env",
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
