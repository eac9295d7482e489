"""Ranges of settings: the samplers of environment arguments, and `1-loguniform` for discounts."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from enn_trainer.base.errors import ConfigError
from enn_trainer.config import TrainConfig, ron
from enn_trainer.config.build import type_of_field
from enn_trainer.config.formats import read_file
from enn_trainer.config.help import unknown_field
from enn_trainer.config.load import load_config
from entity_env.errors import InvalidSampler, short_repr
from entity_env.vec.samplers import Sampler, read_sampler

if TYPE_CHECKING:
    from optuna.distributions import BaseDistribution

COMPLEMENT = "1-loguniform"
"""Word of the range of 1 - x with a log-uniform x, as for discounts near 1."""
WORDS = ("uniform", "loguniform", "int", "choice", COMPLEMENT)
_BETWEEN = 0.3183
"""Share of a range at which it is tried too: a whole number only by chance."""


@dataclass(frozen=True)
class Range:
    """Range of a setting.

    A parameter is a value in the terms of Optuna: the logarithmic number of `1-loguniform`, and the
    JSON text of a choice; otherwise the value of the setting.

    Attributes:
        field: path of the setting.
        text: the range as typed.
        sampler: its distribution, of x for `1-loguniform`.
    """

    field: str
    text: str
    sampler: Sampler

    @property
    def distribution(self) -> "BaseDistribution":
        """Distribution of the parameter."""
        from optuna.distributions import (
            CategoricalDistribution,
            FloatDistribution,
            IntDistribution,
        )

        if self.sampler.kind == "choice":
            return CategoricalDistribution(list(dict.fromkeys(self.sampler.values)))
        low, high = self.sampler.numbers
        if self.sampler.kind == "int":
            return IntDistribution(int(low), int(high))
        return FloatDistribution(low, high, log=self.sampler.kind == "loguniform")

    def value(self, param: Any) -> Any:
        """Return the value of the setting for a parameter."""
        if self.sampler.kind == "choice":
            return json.loads(param)
        return 1 - param if self._is_complement else param

    def param(self, value: Any) -> Any | None:
        """Return the parameter for a value of the setting; None outside of the range."""
        if self.sampler.kind == "choice":
            return next((p for p in self.sampler.values if json.loads(p) == value), None)
        if type(value) not in (int, float):
            return None
        param = 1 - value if self._is_complement else value
        low, high = self.sampler.numbers
        is_inside = low <= param <= high and (self.sampler.kind != "int" or param == int(param))
        return param if is_inside else None

    def at(self, share: float) -> Any:
        """Return the parameter at a share of the distribution, from 0 to below 1."""
        if self.sampler.kind == "choice":
            return self.sampler.values[int(share * len(self.sampler.values))]
        return self.sampler.draw(int(share * 2**64))

    def override(self, param: Any) -> str:
        """Return the assignment of the setting for a parameter, as on a command line.

        Raises:
            ConfigError: it is no parameter of this range, as in a damaged file.
        """
        is_choice = self.sampler.kind == "choice"
        if not (param in self.sampler.values if is_choice else type(param) in (int, float)):
            got = short_repr(param)
            raise ConfigError(f"{self.field}: expected a parameter of {self.text!r}, got {got}")
        value = self.value(param)
        return f"{self.field}={value if isinstance(value, str) else ron.in_one_line(value)}"

    def tried(self) -> list[Any]:
        """Return the parameters that must be valid: both ends and one between, or all choices."""
        if self.sampler.kind == "choice":
            return [*self.sampler.values]
        low, high = self.sampler.numbers
        return [low, self.at(_BETWEEN), high]

    @property
    def _is_complement(self) -> bool:
        return self.text.split()[0] == COMPLEMENT


def read_range(field: str, text: str) -> Range:
    """Parse the range of a setting.

    Args:
        field: path of the setting.
        text: `uniform LOW HIGH`, `loguniform LOW HIGH`, `1-loguniform LOW HIGH`, `int LOW HIGH` or
            `choice VALUE VALUE`, with values as JSON; a section as a JSON string with RON.

    Raises:
        ConfigError: the field does not exist, or the text has another form.
    """
    kind: Any = TrainConfig
    for name in field.split("."):
        kind = type_of_field(kind, name)
    if kind is None:
        raise ConfigError(unknown_field(TrainConfig, field, text))
    try:
        sampler = read_sampler(text.strip().removeprefix("1-"), field)
    except InvalidSampler as error:
        raise ConfigError(str(error)) from None
    is_plain = len(sampler.numbers) == (0 if sampler.kind == "choice" else 2)
    if text.split()[0] not in WORDS or not is_plain:
        expected = "uniform, loguniform, 1-loguniform, int with LOW HIGH or choice without weights"
        raise ConfigError(f"{field}: expected {expected}, got {short_repr(text)}")
    return Range(field, text.strip(), sampler)


def is_range(field: str, text: str) -> bool:
    """Return True if the text of an assignment is a range, not a fixed value.

    Samplers of arguments that vary between episodes are values.
    """
    words = text.split()
    return len(words) > 1 and words[0] in WORDS and ".vary." not in f".{field}."


def ranges_of_file(path: Path) -> dict[str, str]:
    """Read `ranges: {...}` of a file, which has texts by setting.

    Raises:
        ConfigError: the file cannot be read or has another content.
    """
    content = read_file(path)
    texts = content.get("ranges") if isinstance(content, dict) else None
    if not isinstance(texts, dict) or not all(isinstance(text, str) for text in texts.values()):
        raise ConfigError(f"--ranges: expected 'ranges: {{...}}' with texts, got {path}")
    return texts


def check_ranges(config: str, ranges: Sequence[Range]) -> None:
    """Check that a configuration takes both ends of each range, and all choices.

    A value that is invalid with the other settings as they are is tried with the other ranges at
    their low and at their high ends too: settings may have to change together.

    Args:
        config: the configuration, as RON.
        ranges: the ranges.

    Raises:
        ConfigError: no configuration takes the value; or two ranges are of one setting or section.
    """
    for tried in ranges:
        rest = [r for r in ranges if r is not tried]
        if outer := [r.field for r in rest if f"{tried.field}.".startswith(f"{r.field}.")]:
            raise ConfigError(f"{tried.field}: expected one range of {outer[0]}, got two")
        params = tried.tried()
        for param in (params[0], params[-1], *params[1:-1]):
            override = tried.override(param)
            tries = [[], *([r.override(r.tried()[i]) for r in rest] for i in (0, -1))]
            problems = [problem_of(config, [*changes, override]) for changes in tries]
            if all(problems):
                value = override.partition("=")[2]
                raise ConfigError(
                    f"{tried.field}: expected valid values, but {tried.text!r} includes {value}: "
                    f"{problems[0]}"
                )


def problem_of(config: str, overrides: Sequence[str]) -> str:
    """Return the problem of a configuration with overrides; "" if it is valid."""
    try:
        load_config(TrainConfig, None, overrides, text=config)
    except ConfigError as error:
        return str(error)
    return ""


def overrides_of(ranges: Sequence[Range], params: Mapping[str, Any]) -> list[str]:
    """Return the assignments of parameters by setting, in the order of the ranges."""
    return [one.override(params[one.field]) for one in ranges if one.field in params]
