"""Packages whose exported names are imported when they are first used."""

import sys
from collections.abc import Mapping
from importlib import import_module
from importlib.util import find_spec
from types import ModuleType
from typing import Any


def export_lazily(package: str, names: Mapping[str, str]) -> None:
    """Let a package import what it exports when that is first used.

    Submodules are attributes of the package as well, without an `import` of their own. The names
    without an underscore become its `__all__`.

    Args:
        package: `__name__` of the package, which its `__init__` calls this with.
        names: the exported names of each module, with blanks between them; for the package itself
            those of exported modules in it.
    """
    module = sys.modules[package]
    module_of = {name: place for place in names for name in names[place].split()}
    exported = [name for name in module_of if not name.startswith("_")]
    module.__dict__.update(_module_of=module_of, __all__=exported)
    module.__class__ = _LazyPackage


class _LazyPackage(ModuleType):
    """Package with lazy exports, of which some have the name of a module in it."""

    _module_of: Mapping[str, str]

    def __getattr__(self, name: str) -> Any:
        if self._module_of.get(name, self.__name__) != self.__name__:
            value = getattr(import_module(self._module_of[name]), name)
        elif not name.startswith("_") and find_spec(f"{self.__name__}.{name}") is not None:
            value = import_module(f"{self.__name__}.{name}")
        else:
            return super().__getattribute__(name)  # raises Python's own error
        self.__dict__[name] = value
        return value

    def __setattr__(self, name: str, value: object) -> None:
        # The import system binds `enn_trainer.train` to the module, whenever that is imported; the
        # exported function of this name is what users mean.
        is_own_module = value is sys.modules.get(f"{self.__name__}.{name}")
        if not (is_own_module and name in self._module_of):
            super().__setattr__(name, value)

    def __dir__(self) -> list[str]:
        return sorted({*super().__dir__(), *self._module_of})

    def __reduce__(self) -> tuple[Any, ...]:  # of cloudpickle, which knows the type of modules only
        return import_module, (self.__name__,)
