"""A class with the arguments of its constructor in it, as training takes environments."""

from typing import Any, TypeVar, cast

T = TypeVar("T")


def bind(cls: type[T], attributes: dict[str, Any], *args: Any, **kwargs: Any) -> type[T]:
    """A subclass whose constructor has these arguments, and takes more by name.

    Args:
        cls: the class.
        attributes: of the subclass.
        args: of the constructor.
        kwargs: of the constructor.
    """

    def init(self: Any, **more: Any) -> None:
        cast(Any, cls).__init__(self, *args, **{**kwargs, **more})

    members = {"__init__": init, "__doc__": cls.__doc__, "__module__": cls.__module__}
    return cast(type[T], type(cls.__name__, (cls,), members | attributes))
