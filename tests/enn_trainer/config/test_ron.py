import math
import re
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from enn_trainer.base.errors import EnnTrainerError
from enn_trainer.config.ron import MAX_DEPTH, RonError, Struct, dumps, loads

TEXTS = st.text(st.characters())  # lone surrogates included
FLOATS = st.floats() | st.sampled_from([math.inf, -math.inf, math.nan, 5e-324, -0.0, 1e308])
INTS = st.integers() | st.sampled_from([2**64, -(10**400), 10**499])
SCALARS = st.none() | st.booleans() | INTS | FLOATS | TEXTS
KEYS = TEXTS | st.integers()
PLAIN = st.recursive(
    SCALARS, lambda inner: st.lists(inner) | st.dictionaries(KEYS, inner), max_leaves=20
)
FRAGMENTS = st.sampled_from(
    [
        *("(", ")", "[", "]", "{", "}", ":", ",", '"', "'", "\\", "r#", '"#', "/*", "*/", "//"),
        *("Some", "None", "Some(", "true", "x", "A(", "a: ", "1", "-", "+", ".", "e", "0x", "_"),
        *("inf", "-NaN", "\\u{", "d800}", "\\x4", "#![enable(a)]", "é", "²", "٣", "9" * 501),
        *(" ", "\n", "\x00"),
    ]
)


def same(first: Any, second: Any) -> bool:
    """Equality that tells 1, 1.0, True apart, -0.0 from 0.0, and takes NaN for itself."""
    return repr(first) == repr(second)


def error_of(text: str) -> RonError | None:
    try:
        loads(text)
    except RonError as error:
        return error
    return None


@pytest.mark.slow
@given(PLAIN)
@example("'")
@example('"')
@example("\r\n\t\0\\ \u2028 \ud800 \U0001f600 日本")
@example([math.inf, -math.inf, math.nan, 5e-324, 1e16, -0.0, 10**499])
def test_ron_round_trips(value: Any) -> None:
    assert same(loads(dumps(value)), value)


@pytest.mark.slow
@given(PLAIN)
def test_ron_round_trips_through_a_text_file(value: Any) -> None:
    """A file is UTF-8, and reading one turns every line ending into a newline."""
    text = dumps(value).encode("utf-8").decode("utf-8").replace("\r\n", "\n").replace("\r", "\n")
    assert same(loads(text), value)


@pytest.mark.slow
@settings(max_examples=500)
@given(st.lists(FRAGMENTS, max_size=30).map("".join) | st.text())
def test_any_text_is_parsed_or_rejected_with_its_position(text: str) -> None:
    error = error_of(text)
    if error is not None:
        assert 1 <= error.line <= text.count("\n") + 1
        assert 1 <= error.column <= len(text) + 1


@pytest.mark.slow
@given(PLAIN, st.data())
def test_damaged_documents_are_parsed_or_rejected(value: Any, data: st.DataObject) -> None:
    text = dumps(value)
    start, end = sorted(data.draw(st.integers(0, len(text))) for _ in range(2))
    error_of(text[:start] + text[end:])


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("Point(x: 1, y: -2.5,)", {"x": 1, "y": -2.5}),
        ("(x: 1, y: (z: []))", {"x": 1, "y": {"z": []}}),
        ("(1, 2)", [1, 2]),
        ("Rgb(1, 2, 3,)", [1, 2, 3]),
        ("Meters(5)", [5]),
        ("()", {}),
        ("Unit()", {}),
        ("[1, [2], ]", [1, [2]]),
        ('{"a": 1, 2: true,}', {"a": 1, 2: True}),
        ("Variant", "Variant"),
        ("[A, b_2, é, nan]", ["A", "b_2", "é", "nan"]),
        ("(inf, A)", [math.inf, "A"]),
        ("(r#type: r#true)", {"type": "true"}),
        ("(None: None, Some: Some(3), true: false)", {"None": None, "Some": 3, "true": False}),
        ("Some(Some((a: 1)),)", {"a": 1}),
        ("'a'", "a"),
        (r"'\''", "'"),
        ("'''", "'"),
        (r'"\n\r\t\0\\\"\'\x41\u{1F600}"', "\n\r\t\0\\\"'A\U0001f600"),
        ('"two\nlines"', "two\nlines"),
        ('r"a\\b"', "a\\b"),
        ('r##"a"#b"##', 'a"#b'),
        ("1_000", 1000),
        ("-0xFf_0", -0xFF0),
        ("[0b1_01, 0o17, +5]", [5, 15, 5]),
        ("[1.5, 1., .5, -.5e1, 1e3, 1e-30, 1_0.0_1]", [1.5, 1.0, 0.5, -5.0, 1e3, 1e-30, 10.01]),
        ("[inf, -inf, +inf]", [math.inf, -math.inf, math.inf]),
        ("// one\n/* two /* three */ */ 4 // five", 4),
        ("#![enable(implicit_some)]\n#![enable(a, b)] (a: 1)", {"a": 1}),
    ],
)
def test_all_ron_forms_are_parsed_as_plain_data(text: str, value: Any) -> None:
    assert same(loads(text), value)


def test_nan_is_read() -> None:
    assert [math.isnan(value) for value in loads("[NaN, -NaN, +NaN]")] == [True] * 3


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "line 1, column 1: expected a value, got the end"),
        ("(a: 1\n b: 2)", "line 2, column 2: expected ',' or ')' after the value of 'a', got 'b'"),
        ("(a: 1, a: 2)", "line 1, column 8: expected 'a' once, got it twice, got 'a'"),
        ('{"a": 1, "a": 2}', "line 1, column 10: expected 'a' once, got it twice, got '\"'"),
        ("(a: 1, 2)", "column 8: expected the name of a field or ')', got '2'"),
        ("(a: 1, b)", "column 9: expected ':' after 'b', got ')'"),
        ("{[1]: 2}", "column 2: expected a key that is a string, a number or a word"),
        ("[1 2]", "column 4: expected ',' or ']' after this item, got '2'"),
        ("[1,", "column 4: expected a value, got the end"),
        ("1 2", "column 3: expected the end of the text, got '2'"),
        ("Some", "column 5: expected '(' after Some, got the end"),
        ("Some(1, 2)", "column 9: expected ')' after the value of Some, got '2'"),
        ('"abc', 'column 1: expected " to end this string'),
        ('r#"abc"', 'column 1: expected "# to end this string'),
        (r'"\q"', "column 2: expected one of"),
        (r'"\u{110000}"', "column 2: expected one of"),
        ("'ab'", "column 1: expected one character between ' and '"),
        ("''", "column 1: expected one character between ' and '"),
        ("/* /* */", "column 1: expected */ to end this comment"),
        ("#![allow(x)] 1", "column 1: expected #![enable"),
        ("-", "column 1: expected a number, got '-'"),
        ("1x", "column 2: expected the end of this number, got 'x'"),
        ("0x", "column 2: expected the end of this number, got 'x'"),
        ("1.2.3", "column 4: expected the end of this number, got '.'"),
        ("-info", "column 1: expected a number"),
        ("9" * 501, "column 1: expected a number of at most 500 characters"),
        ("0x" + "f" * 498, "column 1: expected at most 500 decimal digits"),
    ],
)
def test_errors_name_the_position_and_the_expected_token(text: str, message: str) -> None:
    with pytest.raises(RonError, match=re.escape(message)):
        loads(text)


@pytest.mark.parametrize("opening", ["[", "(", "{1:", "A(", "Some(", "(a: ", "((", "[Some("])
def test_deep_nesting_is_rejected_at_any_depth(opening: str) -> None:
    with pytest.raises(RonError, match=f"at most {MAX_DEPTH} levels"):
        loads(opening * 100_000)


def test_nesting_up_to_the_limit_round_trips() -> None:
    value: Any = 1
    for _ in range(MAX_DEPTH - 1):
        value = [value]
    assert loads(dumps(value)) == value
    with pytest.raises(RonError, match="levels of nesting"):
        dumps([value])
    with pytest.raises(RonError, match="levels of nesting"):
        loads("[" + dumps(value) + "]")


@pytest.mark.timeout(20)
@pytest.mark.parametrize(
    "text",
    [
        "/*" * 300_000 + "*/",
        "1" * 300_000 + "x",
        "_" * 300_000 + "(",
        "r" + "#" * 300_000,
        "// \n" * 100_000,
        '"' + "\\n" * 100_000,
        "[" + "1," * 100_000,
        "(a" + " " * 300_000,
    ],
)
def test_parsing_takes_linear_time(text: str) -> None:
    with pytest.raises(RonError):
        loads(text)


def test_a_struct_is_written_with_its_name_and_bare_fields() -> None:
    value = Struct("Config", {"n": 1, "empty": Struct("E", {}), "opt": None, "map": {"a b": [0.5]}})
    expected = """\
Config(
    n: 1,
    empty: E(),
    opt: None,
    map: {
        "a b": [
            0.5,
        ],
    },
)"""
    assert dumps(value) == expected
    assert loads(expected) == {"n": 1, "empty": {}, "opt": None, "map": {"a b": [0.5]}}


def test_numpy_scalars_are_written_as_plain_numbers() -> None:
    np = pytest.importorskip("numpy")
    assert dumps([np.float64(0.1), np.str_("a")]) == '[\n    0.1,\n    "a",\n]'


@pytest.mark.parametrize(
    "value",
    [{1}, object(), b"bytes", [1j], {(1, 2): 3}, Struct("a b", {}), Struct("A", {"b c": 1})],
)
def test_unsupported_values_are_rejected_by_ron(value: Any) -> None:
    with pytest.raises(RonError, match="expected"):
        dumps(value)


def test_too_large_numbers_are_rejected_while_writing() -> None:
    for number in (10**500, 1 << 100_000):
        with pytest.raises(RonError, match="a number of at most"):
            dumps(number)


def test_recursive_structures_are_rejected() -> None:
    value: list[Any] = []
    value.append(value)
    with pytest.raises(RonError, match="levels of nesting"):
        dumps(value)


def test_ron_error_is_a_config_error_and_a_value_error() -> None:
    assert issubclass(RonError, EnnTrainerError)
    assert issubclass(RonError, ValueError)


def test_structs_are_rejected_as_keys() -> None:
    with pytest.raises(RonError, match="expected a key that is a string"):
        loads("{A(b: 1): 2}", named=True)


HASH_MODULUS = 2**61 - 1  # integers that are equal modulo it share a hash


def test_keys_with_equal_hashes_are_rejected() -> None:
    text = "{" + ",".join(f"{HASH_MODULUS * i}: 0" for i in range(1000)) + "}"
    error = error_of(text)
    assert error is not None
    assert error.line == 1
    assert "expected keys with different hashes" in str(error)


def test_very_many_large_keys_are_read() -> None:
    value = {(i + 1) * 2**80 + i * 2**64: i for i in range(5000)}
    assert loads(dumps(value)) == value
