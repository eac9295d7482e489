"""Types of fields: the forms that are read, their text, defaults and descriptions."""

# Both the older and the newer forms are tested.
# ruff: noqa: UP006, UP007, UP035, UP045

import enum
from dataclasses import MISSING, dataclass, field
from typing import Any, Dict, List, Literal, Optional, Union

import pytest

from enn_trainer.base.errors import ConfigError
from enn_trainer.config import TrainConfig
from enn_trainer.config.field_types import entries, type_text
from enn_trainer.config.help import hps_info
from enn_trainer.config.load import dump_config, load_config
from enn_trainer.config.schema import schema_of
from tests.enn_trainer.config.builders import Inner, Outer


class Colour(enum.Enum):
    RED = 1


@dataclass
class Newer(TrainConfig):
    """A configuration that a user derives.

    Attributes:
        sizes: One of
            them (each: an int).

        limit (int, optional): How many.
    """

    sizes: list[int] = field(default_factory=lambda: [1])
    limit: int | None = None
    inners: dict[str, Inner] = field(default_factory=dict)
    colour: "float | None" = None
    seed: int = 3

    @classmethod
    def version(cls) -> int:
        """Return its own version."""
        return 5


@pytest.mark.parametrize(
    ("kind", "text"),
    [
        (int, "int"),
        (List[int], "List[int]"),
        (list[int], "List[int]"),
        (Dict[str, List[float]], "Dict[str, List[float]]"),
        (dict[str, list[float]], "Dict[str, List[float]]"),
        (Optional[int], "Optional[int]"),
        (int | None, "Optional[int]"),
        (None | int, "Optional[int]"),
        (Union[int, str], "Union[int, str]"),
        (int | str | None, "Optional[Union[int, str]]"),
        (Literal["b", "a", None], "'a'|'b'|None"),
        (Inner, "Inner"),
        (list[Inner | None], "List[Optional[Inner]]"),
        (Colour, "Enum(name='Colour', variants={'RED': 1})"),
    ],
)
def test_old_and_new_annotations_have_the_same_text(kind: Any, text: str) -> None:
    assert type_text(kind) == text


def test_fields_have_defaults_and_inherited_descriptions() -> None:
    newer = {entry.path: entry for entry in entries(Newer)}
    docs = {name: newer[name].doc for name in ("sizes", "limit", "seed", "colour")}
    assert docs == {
        "sizes": "One of them (each: an int).",
        "limit": "How many.",
        "seed": "Seed of all random numbers.",
        "colour": "",
    }
    assert newer["sizes"].default == [1]
    outer = {entry.path: entry for entry in entries(Outer)}
    assert outer["inner"].default is MISSING


def test_configuration_with_new_annotations_is_supported() -> None:
    overrides = ["limit=4", "sizes=[1, 2]", 'inners={"a": (rate: 2)}', "colour=0.5"]
    config = load_config(Newer, None, overrides)
    assert (config.limit, config.sizes, config.colour) == (4, [1, 2], 0.5)
    assert config.inners == {"a": Inner(rate=2.0)}
    assert load_config(Newer, None, text=dump_config(config)) == config
    assert load_config(Newer, None, [*overrides, "limit=None"]).limit is None
    assert "limit: Optional[int] = None" in hps_info(Newer)
    assert schema_of(Newer).fields["inners[].rate"].type == "float"
    with pytest.raises(ConfigError, match=r"sizes: expected List\[int\], got 3"):
        load_config(Newer, None, ["sizes=3"])


@pytest.mark.parametrize("kind", [Any, tuple[int, ...], list, dict, None, object, "int"])
def test_unsupported_types_are_rejected_with_the_name_of_the_field(kind: Any) -> None:
    with pytest.raises(ConfigError, match=r"Section\.x: expected bool, int, float, .*, got "):
        type_text(kind, "Section.x")
