"""Base class of settings: a misspelled attribute is an error."""

import dataclasses
from typing import Any

from entity_env.errors import did_you_mean


class StrictFields:
    """Dataclass that accepts assignments to its fields only, and to names that begin with `_`.

    Raises:
        AttributeError: an attribute that is assigned is not a field.
    """

    def __setattr__(self, name: str, value: object) -> None:
        settings: Any = self
        fields = [field.name for field in dataclasses.fields(settings)]
        if name not in fields and not name.startswith("_"):
            hint = did_you_mean(name, fields) or f"; expected one of {', '.join(fields)}"
            raise AttributeError(f"{type(self).__name__}.{name}: no such setting{hint}")
        super().__setattr__(name, value)
