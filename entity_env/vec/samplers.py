"""Samplers of arguments of an environment: a line of text that names values and their chances.

Every sampler is a pure function of 64 random bits.
"""

import json
import math
import re
import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from statistics import NormalDist
from typing import Any

from entity_env.errors import InvalidSampler, did_you_mean, short_repr

Number = int | float

_STANDARD_NORMAL = NormalDist()
_INT_64 = 2**63
_WORD = re.compile(r"\S+")
_NUMBER = re.compile(r"[+-]?(\d+(\.\d*)?|\.\d+)([eE][+-]?\d+)?", re.ASCII)
_LARGEST = sys.float_info.max
_OF_PYTHON = {"True": "true", "False": "false", "None": "null"}
_FORMS = {
    "uniform": "uniform LOW HIGH",
    "loguniform": "loguniform LOW HIGH",
    "normal": "normal MEAN STD or normal MEAN STD in LOW HIGH",
    "ranges": "ranges LOW..HIGH LOW..HIGH",
    "int": "int LOW HIGH or int LOW..HIGH LOW..HIGH",
    "choice": "choice VALUE VALUE or choice VALUE:WEIGHT VALUE:WEIGHT",
}


@dataclass(frozen=True)
class Sampler:
    """Distribution of one argument; `read_sampler` makes it of a text.

    Attributes:
        kind: "value" for always the same, or the first word of the text.
        numbers: those of the text in their order: bounds, mean and deviation, or weights of the
            choices (none if they are not given); that of a number that is always the same.
        values: the choices, or a value that is not a number, as JSON.
    """

    kind: str
    numbers: tuple[Number, ...] = ()
    values: tuple[str, ...] = ()

    def draw(self, bits: int) -> Any:
        """Return the value that 64 random bits stand for."""
        numbers = self.numbers
        if self.kind == "value":
            return numbers[0] if numbers else json.loads(self.values[0])
        if self.kind == "int":
            return self._whole_number(bits)
        if self.kind == "choice":
            return json.loads(self.values[self._choice(bits)])
        share = (bits >> 11) * 2.0**-53  # in [0, 1)
        if self.kind == "uniform":
            return _between(numbers[0], numbers[1], share)
        if self.kind == "loguniform":
            low, high = numbers
            number = math.exp(_between(math.log(low), math.log(high), share))
            return min(max(number, float(low)), float(high))
        if self.kind == "normal":
            return self._normal(((bits >> 12) + 0.5) * 2.0**-52)  # in (0, 1)
        return self._in_ranges(share)

    @cached_property
    def text(self) -> str:
        """The text that `read_sampler` makes this of."""
        numbers, values = self.numbers, self.values
        if self.kind == "value":
            return _written(numbers[0]) if numbers else values[0]
        words = [*map(_written, numbers)]
        if self.kind == "choice":
            words = [f"{v}:{w}" for v, w in zip(values, words, strict=True)] if words else [*values]
        elif self.kind == "normal" and len(numbers) > 2:
            words.insert(2, "in")
        elif self.kind == "ranges" or len(numbers) > 2:
            words = [f"{low}..{high}" for low, high in _pairs(words)]
        return " ".join([self.kind, *words])

    def possible_values(self, at_most: int = 20) -> list[Any] | None:
        """Return the values that can be drawn, or None if they are more than `at_most`."""
        if self.kind == "value":
            return [self.draw(0)]
        if self.kind == "choice":
            weights = self.numbers or (1,) * len(self.values)
            values = [json.loads(v) for v, w in zip(self.values, weights, strict=True) if w > 0]
        elif self.kind == "int":
            if sum(high - low + 1 for low, high in _pairs(self.numbers)) > at_most:
                return None
            values = [n for a, b in _pairs(self.numbers) for n in range(int(a), int(b) + 1)]
        else:
            return None
        return values if len(values) <= at_most else None

    def extremes(self) -> list[Any]:
        """Return values at the ends of the distribution, to try whether a world takes them."""
        if self.kind in ("value", "choice"):
            return [json.loads(v) for v in self.values] or [*self.numbers]
        return [self.draw(0), self.draw(2**64 - 1)]

    def _whole_number(self, bits: int) -> int:
        pairs = [(int(low), int(high)) for low, high in _pairs(self.numbers)]
        # The position among all of them: floor(bits / 2**64 * n).
        position = bits * sum(high - low + 1 for low, high in pairs) >> 64
        for low, high in pairs:
            if position <= high - low:
                return low + position
            position -= high - low + 1
        raise AssertionError

    def _choice(self, bits: int) -> int:
        if not self.numbers:
            return bits * len(self.values) >> 64
        weights = _summable(self.numbers)
        point, last = (bits >> 11) * 2.0**-53 * math.fsum(weights), 0
        for i, weight in enumerate(weights):
            if weight > 0:
                last = i
                if point < weight:
                    return i
            point -= weight
        return last  # by rounding

    def _normal(self, share: float) -> float:
        mean, deviation, *bounds = self.numbers
        if deviation == 0:
            return float(mean)
        if not bounds:
            number = mean + deviation * _STANDARD_NORMAL.inv_cdf(share)
            return min(max(number, -_LARGEST), _LARGEST)
        # Inverse of the distribution between the bounds. Where both are above the mean, of its
        # mirror image, since shares close to 1 have few digits.
        low, high = ((bound - mean) / deviation for bound in bounds)
        sign = -1.0 if low > 0 else 1.0
        below, above = _normal_share(sign * low), _normal_share(sign * high)
        share = min(max(below * (1 - share) + above * share, 5e-324), 1 - 2.0**-53)
        number = mean + sign * deviation * _STANDARD_NORMAL.inv_cdf(share)
        return min(max(number, float(bounds[0])), float(bounds[1]))

    def _in_ranges(self, share: float) -> float:
        pairs = _pairs(self.numbers)
        lengths = [high - low for low, high in pairs]
        if not any(lengths):  # single numbers, each as likely
            return float(pairs[int(share * len(pairs))][0])
        if not math.isfinite(sum(lengths)):  # of a part of them, which does not overflow
            scale = 2.0 ** -len(pairs).bit_length() / 2
            return (
                Sampler("ranges", tuple(n * scale for n in self.numbers))._in_ranges(share) / scale
            )
        point = share * math.fsum(lengths)
        for (low, _), length in zip(pairs, lengths, strict=True):
            if point < length:
                return float(low + point)
            point -= length
        return float(self.numbers[-1])  # by rounding


def read_sampler(text: str, field: str = "sampler") -> Sampler:
    """Return the sampler of a text.

    Args:
        text: a value as JSON has it (`7`, `true`, `"maze"`); `uniform LOW HIGH`,
            `loguniform LOW HIGH`; `normal MEAN STD`, also with `in LOW HIGH`; `ranges LOW..HIGH`;
            `int LOW HIGH` or `int LOW..HIGH ...`; `choice VALUE ...` or `choice VALUE:WEIGHT ...`.
        field: the name of the setting, for errors.

    Raises:
        InvalidSampler: with the field and the character at which the text cannot be read.
    """
    if not isinstance(text, str):
        raise InvalidSampler(f"{field}: expected text, as in 'int 0 20', got {short_repr(text)}")
    try:
        return _read(text)
    except InvalidSampler as error:
        raise InvalidSampler(f"{field}: {error}, in {short_repr(text)}") from None


def interpolate(first: Sampler, last: Sampler, share: float) -> Sampler:
    """Return the sampler whose numbers are at a share of the way from `first` to `last`.

    Whole numbers are rounded for `int` and where both values are whole.

    Args:
        first: the sampler at 0.
        last: the sampler at 1, of the same kind, with as many numbers and the same values.
        share: from 0 to 1.

    Raises:
        InvalidSampler: the samplers are of two kinds.
    """
    kinds = first.kind, len(first.numbers), first.values
    if kinds != (last.kind, len(last.numbers), last.values):
        got = f"{first.text!r} and {last.text!r}"
        raise InvalidSampler(f"expected two samplers of the same kind and form, got {got}")
    if share in (0, 1):
        return last if share else first
    numbers: list[Number] = []
    for a, b in zip(first.numbers, last.numbers, strict=True):
        number = a + (b - a) * share
        if not math.isfinite(number):
            number = _between(a, b, share)
        whole = first.kind == "int" or (first.kind == "value" and type(a) is type(b) is int)
        numbers.append(math.floor(number + 0.5) if whole else number)
    return _checked(replace(first, numbers=tuple(numbers)), 1)


@lru_cache(maxsize=4096)
def _read(text: str) -> Sampler:
    words = [(match.group(), match.start() + 1) for match in _WORD.finditer(text)]
    if not words:
        raise _expected(1, "a value or a sampler", "nothing")
    kind, place = words[0]
    if kind not in _FORMS:
        return _value(text, kind, place)
    rest = words[1:]
    if kind == "choice":
        return _choices(text, place + len(kind) - 1)
    if not rest:
        raise _expected(len(text) + 1, _FORMS[kind], "nothing more")
    if kind == "normal" and len(rest) > 2:
        if rest[2][0] != "in":
            raise _expected(rest[2][1], "in LOW HIGH", repr(rest[2][0]))
        del rest[2]
        _check_count(rest, 4, kind, text)
    elif kind == "ranges" or (kind == "int" and ".." in rest[0][0]):
        rest = [end for word, at in rest for end in _ends_of_range(word, at)]
    else:
        _check_count(rest, 2, kind, text)
    numbers = [_number(word, at, whole=kind == "int") for word, at in rest]
    return _checked(Sampler(kind, tuple(numbers)), *[at for _, at in rest])


def _value(text: str, word: str, place: int) -> Sampler:
    try:
        value = json.loads(text, parse_constant=_no_constant)
    except (json.JSONDecodeError, ValueError, RecursionError) as error:
        hint = did_you_mean(word, _FORMS, separator="; ")
        if text.strip() in _OF_PYTHON:
            hint = f"; did you mean {_OF_PYTHON[text.strip()]}?"
        elif not hint and re.fullmatch(r"\w+", text.strip()):
            word = text.strip()
            hint = f'; text is written as "{word}", in the quotes of a setting as "\\"{word}\\""'
        at = error.pos + 1 if isinstance(error, json.JSONDecodeError) and error.pos else place
        got = short_repr([*text[at - 1 :].split(), word][0])
        expected = f"a value as JSON has it or one of {', '.join(_FORMS)}"
        raise InvalidSampler(f"character {at}: expected {expected}, got {got}{hint}") from None
    if type(value) in (int, float):
        return Sampler("value", (_number(text.strip(), place),))
    return Sampler("value", (), (_json(value, place),))


def _choices(text: str, position: int) -> Sampler:
    values, weights, places = [], [], []
    decoder = json.JSONDecoder(parse_constant=_no_constant)
    position = _behind_spaces(text, position)
    while position < len(text):
        places.append(position + 1)
        try:
            value, position = decoder.raw_decode(text, position)
        except (ValueError, RecursionError):
            word = text[position:].split()[0]
            raise _expected(places[-1], 'a value, as in 4 or "open"', repr(word)) from None
        values.append(_json(value, places[-1]))
        if text[position : position + 1] == ":":
            match = _WORD.match(text, position + 1)
            word = match.group() if match else ""
            weights.append(_number(word, position + 2))
            if weights[-1] < 0:
                raise _expected(position + 2, "a weight of at least 0", word)
            position += 1 + len(word)
        elif position < len(text) and not text[position].isspace():
            raise _expected(position + 1, "a space or a weight, as in 4:0.5", repr(text[position]))
        position = _behind_spaces(text, position)
    if not values:
        raise _expected(len(text) + 1, _FORMS["choice"], "nothing more")
    if weights and len(weights) < len(values):
        raise _expected(places[0], "a weight for every value or for none", f"{len(weights)}")
    if weights and not sum(weights) > 0:
        raise _expected(places[0], "a weight above 0", "weights that are all 0")
    return Sampler("choice", tuple(weights), tuple(values))


def _checked(sampler: Sampler, *places: int) -> Sampler:
    """Return a sampler, or raise for bounds the wrong way round and numbers that mean nothing."""
    kind, numbers, place = sampler.kind, sampler.numbers, places[0]
    bounds: Sequence[Number] = numbers[2:] if kind == "normal" else numbers
    if kind == "normal" and numbers[1] < 0:
        raise _expected(places[-1], "a deviation of at least 0", _written(numbers[1]))
    if kind in ("uniform", "loguniform", "normal", "ranges", "int"):
        for low, high in _pairs(bounds):
            if low > high:
                expected = f"a bound of at least {_written(low)}"
                raise _expected(places[-1], expected, _written(high))
    if kind == "loguniform" and numbers[0] <= 0:
        raise _expected(place, "a number above 0", _written(numbers[0]))
    if kind == "normal" and bounds:
        mean, deviation, low, high = numbers
        is_within = low <= mean <= high
        if deviation > 0 and not is_within:
            distance = min(abs(low - mean), abs(high - mean)) / deviation
            is_within = distance < 37 and low < high
        if not is_within:
            raise _expected(places[-1], "bounds that hold a part of the distribution", "none of it")
    return sampler


def _number(word: str, place: int, whole: bool = False) -> Number:
    what = "a whole number" if whole else "a number"
    if not _NUMBER.fullmatch(word) or len(word) > 100:
        raise _expected(place, what, repr(word[:100]) if word else "nothing")
    number: Number = int(word) if re.fullmatch(r"[+-]?\d+", word) else float(word)
    if whole and not isinstance(number, int):
        raise _expected(place, what, repr(word))
    if not math.isfinite(number) or (isinstance(number, int) and not abs(number) < _INT_64):
        raise _expected(place, f"{what} of 64 bits", repr(word))
    return number


def _ends_of_range(word: str, place: int) -> list[tuple[str, int]]:
    low, dots, high = word.partition("..")
    if not dots or high.startswith("."):  # 0...5 may be meant as 0..5 or as 0..0.5
        raise _expected(place, "a range, as in 0..1", repr(word))
    return [(low, place), (high, place + len(low) + 2)]


def _check_count(words: Sequence[tuple[str, int]], count: int, kind: str, text: str) -> None:
    if len(words) > count:
        raise _expected(words[count][1], _FORMS[kind], repr(words[count][0]))
    if len(words) < count:
        raise _expected(len(text) + 1, _FORMS[kind], "nothing more")


def _expected(place: int, expected: str, got: str) -> InvalidSampler:
    return InvalidSampler(f"character {place}: expected {expected}, got {got}")


def _json(value: Any, place: int) -> str:
    """Return a value as JSON, or raise for numbers and text that cannot be sent and saved."""
    parts = [value]
    for part in parts:  # grows by the parts of containers
        if isinstance(part, dict):
            parts += [*part, *part.values()]
        elif isinstance(part, list):
            parts += part
        elif isinstance(part, str):
            if not part.isascii() and part != part.encode(errors="replace").decode():
                raise _expected(place, "text without halves of characters", ascii(part))
        elif type(part) in (int, float):
            is_finite = math.isfinite(part) if isinstance(part, float) else abs(part) < _INT_64
            if not is_finite:
                raise _expected(place, "numbers of 64 bits", short_repr(part))
    return json.dumps(value, ensure_ascii=False)


def _summable(weights: Sequence[Number]) -> Sequence[Number]:
    """Return weights whose sum does not overflow, in the same proportions."""
    return weights if math.isfinite(sum(weights)) else [w / len(weights) for w in weights]


def _no_constant(name: str) -> Any:
    raise ValueError(name)


def _behind_spaces(text: str, position: int) -> int:
    return len(text) - len(text[position:].lstrip())


def _between(low: Number, high: Number, share: float) -> float:
    # Neither difference nor result overflows.
    return min(max(low * (1 - share) + high * share, float(low)), float(high))


def _normal_share(number: float) -> float:
    """Return the share of the standard normal distribution below a number, in all digits."""
    return 0.5 * math.erfc(-number / math.sqrt(2))


def _pairs(numbers: Sequence[Any]) -> list[tuple[Any, Any]]:
    return [*zip(numbers[::2], numbers[1::2], strict=True)]


def _written(number: Number) -> str:
    return repr(number)
