"""`TensorGuard`: detects that a module holds other tensors than before, in a few microseconds."""

from operator import getitem, is_
from typing import Any

from torch import Tensor, nn


class TensorGuard:
    """The submodules, parameters and buffers of a module at one moment.

    Changes of parameters in place are not detected, as their memory is the same; changes of buffers
    are.

    Args:
        module: the module, which is not referenced.
    """

    def __init__(self, module: nn.Module) -> None:
        tables: list[dict[str, Any]] = [
            table
            for part in module.modules()
            for table in (part._modules, part._parameters, part._buffers)
        ]
        places = [(table, key, value) for table in tables for key, value in table.items()]
        self._tables, self._keys, self._values = zip(*places, strict=True)
        self._parameters = [*module.parameters()]
        self._buffers = [*module.buffers()]
        self._memory = self._current_memory()

    def holds(self) -> bool:
        """Return whether the module still has the same tensors, and buffers the same content."""
        try:
            current = map(getitem, self._tables, self._keys)
            return all(map(is_, current, self._values)) and self._memory == self._current_memory()
        except KeyError:  # a tensor was removed
            return False

    def _current_memory(self) -> list[Any]:
        """Return the addresses of parameters, and the versions of buffers."""
        addresses = [x.data_ptr() for x in self._parameters]
        return [*addresses, *(_version(x) for x in self._buffers)]


def _version(buffer: Tensor) -> Any:
    """Return a value that differs after a change in place; of inference tensors, for each call."""
    return object() if buffer.is_inference() else (buffer.data_ptr(), buffer._version)
