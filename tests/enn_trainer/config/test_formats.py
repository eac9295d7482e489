"""Configurations in RON, YAML, TOML and JSON: they say the same, and fail in the same way."""

import contextlib
import json
import re
import tracemalloc
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from enn_trainer.base.errors import ConfigError
from enn_trainer.config import TrainConfig
from enn_trainer.config.build import as_data
from enn_trainer.config.formats import MAX_VALUES, format_text, read_file
from enn_trainer.config.load import dump_config, load_config
from enn_trainer.config.schedules import scheduled_fields
from tests.enn_trainer.config.builders import PUBLISHED, Inner, Outer

SUFFIXES = [".ron", ".yaml", ".yml", ".toml", ".json"]


def loaded(tmp_path: Path, suffix: str, text: str, cls: Any = TrainConfig) -> Any:
    path = tmp_path / f"config{suffix}"
    path.write_bytes(text.encode())
    return load_config(cls, path)


def refused(tmp_path: Path, suffix: str, text: str) -> str:
    with pytest.raises(ConfigError) as caught:
        loaded(tmp_path, suffix, text)
    assert len(str(caught.value).splitlines()) == 1
    return str(caught.value)


@pytest.mark.slow
@given(
    st.builds(
        Outer,
        inner=st.builds(Inner, st.floats(allow_nan=False), st.sampled_from(["a", "b"])),
        count=st.integers(0, 2**70),
        flag=st.booleans(),
        text=st.text() | st.sampled_from(["on", "null", "1e-3", "~", "2020-01-01", "0x1", "<<"]),
        maybe=st.none() | st.text(),
        limit=st.none() | st.integers(),
        names=st.lists(st.text()),
        weights=st.dictionaries(st.text(), st.floats(allow_nan=False)),
        extra=st.none() | st.builds(Inner, st.floats(allow_nan=False)),
    )
)
def test_a_configuration_is_the_same_in_all_formats(
    tmp_path_factory: pytest.TempPathFactory, config: Outer
) -> None:
    folder = tmp_path_factory.mktemp("formats")
    for suffix in SUFFIXES:
        text = format_text(Path(f"x{suffix}"), as_data(config))
        assert loaded(folder, suffix, text, Outer) == config, text


@pytest.mark.parametrize("suffix", SUFFIXES)
@pytest.mark.parametrize("path", PUBLISHED, ids=lambda path: path.stem)
def test_a_run_is_the_same_in_all_formats(path: Path, suffix: str, tmp_path: Path) -> None:
    """Also an old one: the rules of its version apply to what any format says."""
    config = load_config(
        TrainConfig,
        path,
        [
            "optim.lr=step: 0.1@0 cos 0@1e6",
            "eval.steps=3",
            "eval.interval=4",
            'optim.groups=[(pattern: "x")]',
        ],
    )
    again = loaded(tmp_path, suffix, format_text(Path(f"x{suffix}"), as_data(config)))
    assert dump_config(again) == dump_config(config)
    old = format_text(Path(f"x{suffix}"), read_file(path))
    assert dump_config(loaded(tmp_path, suffix, old)) == dump_config(load_config(TrainConfig, path))


SAME = {
    ".ron": '(version: 6, env: (kwargs: {"size": 3}, id: "Xor"), optim: (lr: 1e-3))',
    ".yaml": "version: 6\nenv:\n  kwargs: {size: 3}\n  id: Xor\noptim:\n  lr: 1e-3  # small\n",
    ".toml": 'version = 5\n[env]\nkwargs = {size = 3}\nid = "Xor"\n[optim]\nlr = 1e-3\n',
    ".json": '{"version": 5, "env": {"kwargs": {"size": 3}, "id": "Xor"}, "optim": {"lr": 1e-3}}',
}


@pytest.mark.parametrize("suffix", SAME)
def test_environment_arguments_may_be_a_section(suffix: str, tmp_path: Path) -> None:
    config = loaded(tmp_path, suffix, SAME[suffix])
    assert json.loads(config.env.kwargs) == {"size": 3}
    assert (config.env.id, config.optim.lr) == ("Xor", 0.001)
    assert load_config(TrainConfig, None, text=dump_config(config)) == config


def test_keys_of_environment_arguments_must_be_text(tmp_path: Path) -> None:
    message = refused(tmp_path, ".yaml", "version: 6\nenv: {kwargs: {3: 4}}")
    assert "env.kwargs, key 3: expected str" in message


@pytest.mark.parametrize("name", ["config.txt", "config", "config.RON", "config.yaml.bak"])
def test_unknown_suffix_is_rejected_with_the_supported_ones(name: str, tmp_path: Path) -> None:
    (tmp_path / name).write_text("version: 6")
    with pytest.raises(ConfigError, match=r"expected a file of \.ron, \.yaml, \.yml, \.toml, \.j"):
        load_config(TrainConfig, tmp_path / name)


NO_VERSION = {".ron": "()", ".yaml": "seed: 3", ".toml": "seed = 3", ".json": '{"seed": 3}'}
FUTURE = {".ron": "(version: 99)", ".yaml": "version: 99", ".toml": "version = 99"}
TWICE = {
    ".ron": "(version: 6, seed: 1, seed: 2)",
    ".yaml": "version: 6\nenv: {id: Xor, id: Count}",
    ".toml": "version = 5\nseed = 1\nseed = 2",
    ".json": '{"version": 5, "seed": 1, "seed": 2}',
}
WRONG = {
    ".ron": '(version: 6, optim: (lr: "fast", bss: 3))',
    ".yaml": "version: 6\noptim: {lr: fast, bss: 3}",
    ".toml": 'version = 5\noptim.lr = "fast"\noptim.bss = 3',
    ".json": '{"version": 5, "optim": {"lr": "fast", "bss": 3}}',
}
BROKEN = {".ron": "(version", ".yaml": "a: [", ".toml": "a = =", ".json": '{"a": '}
DEEP = {
    ".ron": "[" * 5000,
    ".yaml": "[" * 5000,
    ".toml": "a = " + "[" * 5000,
    ".json": "[" * 500_000,
}


@pytest.mark.parametrize("suffix", NO_VERSION)
def test_every_format_needs_a_version(suffix: str, tmp_path: Path) -> None:
    assert "version: expected the version number" in refused(tmp_path, suffix, NO_VERSION[suffix])


@pytest.mark.parametrize("suffix", FUTURE)
def test_a_future_version_is_refused_in_every_format(suffix: str, tmp_path: Path) -> None:
    assert "version: expected 0 to " in refused(tmp_path, suffix, FUTURE[suffix])


@pytest.mark.parametrize("suffix", TWICE)
def test_repeated_field_is_rejected(suffix: str, tmp_path: Path) -> None:
    message = refused(tmp_path, suffix, TWICE[suffix])
    assert "twice" in message or "overwrite a value" in message
    assert str(tmp_path / f"config{suffix}") in message


@pytest.mark.parametrize("suffix", WRONG)
def test_problems_name_the_field_in_every_format(suffix: str, tmp_path: Path) -> None:
    message = refused(tmp_path, suffix, WRONG[suffix])
    assert "optim.lr: expected float, got 'fast'" in message
    assert "optim.bss=3: no such field; did you mean optim.bs?" in message


@pytest.mark.parametrize("suffix", BROKEN)
def test_invalid_syntax_is_rejected(suffix: str, tmp_path: Path) -> None:
    assert "line 1" in refused(tmp_path, suffix, BROKEN[suffix])


@pytest.mark.slow
@pytest.mark.parametrize("suffix", DEEP)
def test_deep_nesting_is_refused(suffix: str, tmp_path: Path) -> None:
    assert "at most 64 levels of nesting" in refused(tmp_path, suffix, DEEP[suffix])


@pytest.mark.parametrize(
    ("suffix", "opening", "closing"),
    [(".ron", "[", "]"), (".yaml", "[", "]"), (".json", "[", "]"), (".toml", "a.", "b = 1")],
)
def test_nesting_limit_is_the_same_in_every_format(
    suffix: str, opening: str, closing: str, tmp_path: Path
) -> None:
    def text(depth: int) -> str:
        if suffix == ".toml":
            return opening * (depth - 1) + "b = 1"  # the number is a level as well
        return opening * depth + closing * depth

    path = tmp_path / f"deep{suffix}"
    path.write_text(text(63))
    read_file(path)
    path.write_text(text(66))
    with pytest.raises(ConfigError, match="at most 64 levels"):
        read_file(path)


@pytest.mark.parametrize(
    ("suffix", "text"),
    [
        (".ron", f"(version: 6, seed: 0x{'f' * 450})"),
        (".yaml", f"version: 6\nseed: 0x{'f' * 450}"),
        (".toml", f"version = 5\nseed = 0x{'f' * 5000}"),
        (".json", f'{{"version": 5, "seed": 1{"0" * 600}}}'),
    ],
)
def test_too_long_number_is_rejected(suffix: str, text: str, tmp_path: Path) -> None:
    assert re.search("expected (a number of )?at most 500 ", refused(tmp_path, suffix, text))


@pytest.mark.parametrize("suffix", SUFFIXES)
def test_binary_file_is_rejected(suffix: str, tmp_path: Path) -> None:
    path = tmp_path / f"config{suffix}"
    path.write_bytes(b"\xff\xfe\x00")
    with pytest.raises(ConfigError, match="config"):
        load_config(TrainConfig, path)
    with pytest.raises(ConfigError, match="No such file"):
        load_config(TrainConfig, tmp_path / f"none{suffix}")


@pytest.mark.parametrize("suffix", SAME)
def test_byte_order_mark_is_skipped(suffix: str, tmp_path: Path) -> None:
    assert loaded(tmp_path, suffix, "\ufeff" + SAME[suffix]).env.id == "Xor"


@pytest.mark.parametrize(
    ("yaml", "value"),
    [
        ("1e-3", 0.001),
        ("1e3", 1000.0),
        ("1E+3", 1000.0),
        ("1_000.5", 1000.5),
        (".5", 0.5),
        ("5.", 5.0),
        ("-3", -3.0),
        ("0x10", 16.0),
        (".inf", float("inf")),
    ],
)
def test_yaml_numbers_follow_the_core_schema(yaml: str, value: float, tmp_path: Path) -> None:
    """YAML 1.1, as PyYAML reads it, takes 1e-3 for text."""
    assert loaded(tmp_path, ".yaml", f"inner: {{rate: {yaml}}}", Outer).inner.rate == value


@pytest.mark.parametrize(
    ("field", "yaml", "message"),
    [
        ("seed", "010", "seed: expected int, got '010'"),  # 8 or 10
        ("seed", "0o10", "seed: expected int, got '0o10'"),
        ("max_train_time", "1:30", "max_train_time='1:30': expected one number"),  # 90
        ("cuda", "on", "cuda: expected bool, got 'on'"),
        ("cuda", "yes", "cuda: expected bool, got 'yes'"),
        ("seed", "2020-01-01", "seed: expected int, got '2020-01-01'"),
        ("name", "1e-3", "name: expected str, got 0.001"),
        ("name", "null", "name: expected str, got None"),
        ("name", "!!timestamp 2020-01-01", "could not determine a constructor"),
        ("name", "!!binary aGk=", "could not determine a constructor"),
        ("name", "!!python/object/apply:os.system [ls]", "could not determine a constructor"),
        ("seed", "!!bool 3", "a value that fits its tag"),
        ("seed", "*nothing", "undefined alias"),
        ("name", "{<<: {a: 1}}", "expected no merge key (<<); write out its fields"),
        ("env", "{<<: {id: Xor}}", "line 2, column 7: expected no merge key (<<)"),
        ("env", "{'<<': {id: Xor}}", "env.<<={'id': 'Xor'}: no such field"),
        ("? [1]", "2", "unhashable key"),
    ],
)
def test_ambiguous_yaml_is_rejected(field: str, yaml: str, message: str, tmp_path: Path) -> None:
    assert message in refused(tmp_path, ".yaml", f"version: 6\n{field}: {yaml}\n")


def test_text_in_yaml_needs_no_quotes(tmp_path: Path) -> None:
    text = "version: 6\nname: on\nwandb_entity: 2020-01-01\nmax_train_time:\ntrial: ~\n"
    config = loaded(tmp_path, ".yaml", text)
    assert (config.name, config.wandb_entity) == ("on", "2020-01-01")
    assert config.max_train_time is None
    assert config.trial is None


def test_schedules_are_text_in_every_format(tmp_path: Path) -> None:
    for suffix, text in {
        ".yaml": 'version: 6\noptim:\n  lr: "step: 0.1@0 lin 0@100"\n',
        ".toml": 'version = 5\noptim.lr = "step: 0.1@0 lin 0@100"\n',
        ".json": '{"version": 5, "optim": {"lr": "step: 0.1@0 lin 0@100"}}',
    }.items():
        assert scheduled_fields(loaded(tmp_path, suffix, text)).keys() == {"optim.lr"}


def test_null_is_none(tmp_path: Path) -> None:
    assert loaded(tmp_path, ".json", '{"version": 0, "vf_net": null}').vf_net is None
    assert loaded(tmp_path, ".yaml", "version: 0\nvf_net: null").vf_net is None


def test_dates_in_toml_are_refused_by_their_path(tmp_path: Path) -> None:
    message = refused(tmp_path, ".toml", "version = 5\nenv.id = 2020-01-01")
    assert "env.id: expected text in quotes, a number" in message
    assert "got date '2020-01-01'" in message


def test_yaml_aliases_are_supported(tmp_path: Path) -> None:
    text = "version: 6\nenv: &world {id: Xor}\neval: {steps: 1, interval: 2, env: *world}\n"
    config = loaded(tmp_path, ".yaml", text)
    assert config.eval.env == config.env
    assert config.eval.env is not config.env


def test_aliases_do_not_grow_without_bound(tmp_path: Path) -> None:
    lines = ["a0: &a0 [1, 1, 1, 1, 1, 1, 1, 1, 1, 1]"]
    lines += [f"a{i}: &a{i} [{', '.join([f'*a{i - 1}'] * 10)}]" for i in range(1, 12)]
    message = refused(tmp_path, ".yaml", "\n".join(lines))
    assert f"expected at most {MAX_VALUES} values" in message
    assert "levels of nesting" in refused(tmp_path, ".yaml", "a: &a {a: *a}")


def test_none_in_a_list_cannot_be_written_as_toml(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="expected no None in a list"):
        format_text(Path("x.toml"), {"a": [None]})  # type: ignore[arg-type]


@given(st.text(alphabet=st.sampled_from(list("{}[]()-:,&*!?|>'\"\\#\n\t 1ea.~=<%@`")), max_size=40))
def test_arbitrary_content_raises_only_config_errors(
    tmp_path_factory: pytest.TempPathFactory, text: str
) -> None:
    folder = tmp_path_factory.mktemp("fuzz")
    for suffix in SUFFIXES:
        path = folder / f"x{suffix}"
        path.write_bytes(text.encode())
        with contextlib.suppress(ConfigError):
            read_file(path)


@pytest.mark.alone
@pytest.mark.slow
@pytest.mark.parametrize(
    ("suffix", "text", "message"),
    [
        (
            ".yaml",
            "".join(f"{(2**61 - 1) * i}: 0\n" for i in range(1000)),
            "expected keys with different hashes",
        ),
        (".yaml", "a: !!int " + "1:" * 50_000 + "1", "expected a number"),
        (".yaml", "a: !!int " + "1" * 1000, "expected a number"),
        (".json", json.dumps({"a" * 100_000: dict.fromkeys(map(str, range(5000)), 0)}), "paths of"),
        (".ron", f'{{"{"a" * 100_000}": [{"0," * 5000}]}}', "paths of at most"),
        (".ron", "(" + " " * (1 << 22) + ")", "expected at most 4194304 characters"),
    ],
    ids=["hashes", "base 60", "digits", "names", "list", "blanks"],
)
def test_expensive_files_are_rejected(suffix: str, text: str, message: str, tmp_path: Path) -> None:
    path = tmp_path / f"config{suffix}"
    path.write_text(text)
    tracemalloc.start()
    with pytest.raises(ConfigError, match=message):
        read_file(path)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 100 * len(text) + 10_000_000  # mostly the import of YAML
