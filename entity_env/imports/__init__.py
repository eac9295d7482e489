"""Lazy imports of the exported names of packages."""

import sys
from collections.abc import Mapping
from importlib import import_module
from importlib.util import find_spec
from types import ModuleType
from typing import Any


def export_lazily(package: str, names: Mapping[str, str]) -> None:
    """Make a package import its exported names at their first use.

    Submodules also become attributes of the package. Names without a leading underscore are its
    `__all__`.

    Args:
        package: `__name__` of the package; called in its `__init__`.
        names: exported names by module, separated by blanks; at the package's own name, exported
            submodules.
    """
    module = sys.modules[package]
    module_of = {name: place for place in names for name in names[place].split()}
    exported = [name for name in module_of if not name.startswith("_")]
    module.__dict__.update(_module_of=module_of, __all__=exported)
    module.__class__ = _LazyPackage


class _LazyPackage(ModuleType):
    """Package with lazy exports; some have the same name as a submodule."""

    _module_of: Mapping[str, str]

    def __getattr__(self, name: str) -> Any:
        if self._module_of.get(name, self.__name__) != self.__name__:
            value = getattr(import_module(self._module_of[name]), name)
        elif not name.startswith("_") and find_spec(f"{self.__name__}.{name}") is not None:
            value = import_module(f"{self.__name__}.{name}")
        else:
            return super().__getattribute__(name)  # raises the usual AttributeError
        self.__dict__[name] = value
        return value

    def __setattr__(self, name: str, value: object) -> None:
        # The import system binds `enn_trainer.train` to the module when it is imported; keep the
        # exported function of the same name instead.
        is_own_module = value is sys.modules.get(f"{self.__name__}.{name}")
        if not (is_own_module and name in self._module_of):
            super().__setattr__(name, value)

    def __dir__(self) -> list[str]:
        return sorted({*super().__dir__(), *self._module_of})

    def __reduce__(self) -> tuple[Any, ...]:  # for cloudpickle
        return import_module, (self.__name__,)
