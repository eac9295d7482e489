"""Imports of moved modules by the paths of earlier releases, with a deprecation warning.

Add a line to `MOVED` for each released module that moves; the line of a folder covers the modules
in it. `docs/coming_from.md` lists all modules of enn_trainer 0.1.16.
"""

import sys
import warnings
from collections.abc import Sequence
from importlib import import_module
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType

MOVED = {
    # enn_trainer 0.1.16 and rogue_net 0.1.9
    "enn_trainer.agent": "enn_trainer.evaluation.load_agent",
    "enn_trainer.ppo": "enn_trainer.algorithms.ppo",
    "rogue_net.relpos_encoding": "rogue_net.relpos.encoding",
    # 0.2.0
    "enn_trainer.algorithms.cloning.clone": "enn_trainer.run.clone",
    "enn_trainer.algorithms.torch_optimizers": "enn_trainer.config.torch_optimizers",
    "enn_trainer.checkpointing": "enn_trainer.run.checkpointing",
    "enn_trainer.checkpoints.migrate.space_diff": "rogue_net.space_diff",
    "enn_trainer.errors": "enn_trainer.base.errors",
    "enn_trainer.experience.frame_memory": "enn_trainer.experience.frame_limits",
    "enn_trainer.experience.running_episodes": "enn_trainer.run.running_episodes",
    "enn_trainer.load_agent": "enn_trainer.evaluation.load_agent",
    "enn_trainer.open_run": "enn_trainer.run.open_run",
    "enn_trainer.policy": "enn_trainer.base.policy",
    "enn_trainer.session": "enn_trainer.run.session",
    "enn_trainer.snapshot": "enn_trainer.run.snapshot",
    "enn_trainer.state": "enn_trainer.checkpoints.state",
    "enn_trainer.state_manager": "enn_trainer.checkpoints.state_manager",
    "enn_trainer.state_part": "enn_trainer.base.state_part",
    "enn_trainer.stopping": "enn_trainer.run.stopping",
    "enn_trainer.tables": "enn_trainer.base.tables",
    "enn_trainer.trainer": "enn_trainer.run.trainer",
    "entity_env.check_env": "entity_env.testing.check_env",
    "entity_env.random_play": "entity_env.testing.random_play",
    "rogue_net.check_distribution": "rogue_net.actions.check_distribution",
    "rogue_net.distributions": "rogue_net.actions.distributions",
    "rogue_net.heads": "rogue_net.actions.heads",
    "rogue_net.translate": "rogue_net.relpos.translate",
}
"""New path of each moved module or folder, by its old path."""


class _MovedModuleFinder(MetaPathFinder):
    """Finder of the modules in `MOVED`."""

    def find_spec(
        self,
        fullname: str,
        path: Sequence[str] | None = None,
        target: ModuleType | None = None,
    ) -> ModuleSpec | None:
        """Return the spec of a moved module, None for other modules."""
        old = fullname
        while old and old not in MOVED:
            old = old.rpartition(".")[0]
        if not old:
            return None
        new = MOVED[old] + fullname.removeprefix(old)
        return ModuleSpec(fullname, _MovedModuleLoader(fullname, new))


class _MovedModuleLoader(Loader):
    def __init__(self, old: str, new: str) -> None:
        self._old, self._new = old, new

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        """Import the module from its new path, so that both paths give the same module."""
        warnings.warn(f"{self._old} is now {self._new}", DeprecationWarning, stacklevel=2)
        module = import_module(self._new)
        self._spec = module.__spec__
        return module

    def exec_module(self, module: ModuleType) -> None:
        """Restore the spec that the import system replaced; the module is already executed."""
        module.__spec__ = self._spec


def install() -> None:
    """Install the finder of moved modules; further calls have no effect."""
    if not any(isinstance(finder, _MovedModuleFinder) for finder in sys.meta_path):
        sys.meta_path.insert(0, _MovedModuleFinder())
