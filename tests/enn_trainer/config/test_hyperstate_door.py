"""Where hyperstate is installed, programs written for it work, and its own parts read ours."""

# hyperstate knows only the older forms of types.
# ruff: noqa: UP006, UP035, UP045

import copy
import dataclasses
import re
from dataclasses import MISSING, dataclass, field
from pathlib import Path
from typing import Any, Dict, List, Literal, Optional

import pytest
from hypothesis import given
from hypothesis import strategies as st

hyperstate = pytest.importorskip("hyperstate")

from hyperstate.schema import rewrite_rule as theirs  # noqa: E402
from hyperstate.schema.types import materialize_type  # noqa: E402

from enn_trainer.base.errors import ConfigError  # noqa: E402
from enn_trainer.config import (  # noqa: E402
    CloneRunConfig,
    PPOConfig,
    RolloutConfig,
    TrainConfig,
    Versioned,
)
from enn_trainer.config import rewrite_rules as ours  # noqa: E402
from enn_trainer.config.field_types import entries, type_text  # noqa: E402
from enn_trainer.config.load import dump_config, load_config  # noqa: E402
from enn_trainer.config.schema import schema_changes, schema_of  # noqa: E402
from tests.enn_trainer.config.builders import PUBLISHED, Inner, Outer  # noqa: E402

# Types

KINDS = st.recursive(
    st.one_of(
        st.sampled_from([bool, int, float, str, Inner, Outer]),
        st.sets(st.sampled_from(["a", "b", 1, None]), min_size=1).map(lambda a: Literal[*a]),
    ),
    lambda inner: st.one_of(
        inner.map(lambda kind: List[kind]),  # type: ignore[valid-type]
        inner.map(lambda kind: Dict[str, kind]),  # type: ignore[valid-type]
        inner.map(lambda kind: Optional[kind]),
    ),
    max_leaves=3,
)


@given(KINDS)
def test_type_texts_match_hyperstate(kind: Any) -> None:
    assert type_text(kind) == str(materialize_type(kind))


@pytest.mark.parametrize("cls", [TrainConfig, CloneRunConfig, Outer])
def test_field_types_match_hyperstate(cls: Any) -> None:
    def rows(kind: Any, path: str = "") -> Any:
        for name in ("type", "inner", "val"):
            while hasattr(kind, name) and not isinstance(kind.__dict__[name], str):
                kind = getattr(kind, name)
        for name, of in getattr(kind, "fields", {}).items():
            doc = " ".join((of.docstring or "").split())
            yield path + name, str(of.type), of.default if of.has_default else MISSING, doc
            yield from rows(of.type, f"{path}{name}.")

    read = [
        (re.sub(r"\[\]|\.<name>", "", entry.path), entry.type, entry.default, entry.doc)
        for entry in entries(cls)
    ]
    assert read == [*rows(materialize_type(cls))]


# Rules

VALUES = st.fixed_dictionaries(
    {},
    optional={
        "a": st.integers(),
        "s": st.fixed_dictionaries(
            {}, optional={"a": st.integers(), "t": st.fixed_dictionaries({"x": st.integers()})}
        ),
    },
)
PATHS = st.sampled_from([("a",), ("s", "a"), ("s", "t"), ("s", "t", "x"), ("u", "v", "w")])
RULES = st.one_of(
    st.tuples(st.just("RenameField"), PATHS, st.sampled_from([("b",), ("s", "b"), ("n", "b")])),
    st.tuples(st.just("DeleteField"), PATHS),
    st.tuples(st.just("MapFieldValue"), PATHS, st.just(str)),
    st.tuples(st.just("ChangeDefault"), PATHS, st.integers(), st.just(0)),
    st.tuples(st.just("AddDefault"), PATHS, st.integers()),
    st.tuples(st.just("CheckValue"), st.just(("a",)), st.just({0, 1})),
)


def without_marks(values: Any) -> Any:
    if not isinstance(values, dict):
        return values
    return {
        key: key == ours.WEAK_REF or without_marks(value) for key, value in sorted(values.items())
    }


@given(VALUES, RULES)
def test_rules_match_the_rules_of_hyperstate(values: Any, rule: tuple[Any, ...]) -> None:
    results = []
    for module in (ours, theirs):
        try:
            made = getattr(module, rule[0])(*rule[1:])
            results.append(without_marks(made.apply(copy.deepcopy(values))))
        except ValueError as error:
            results.append(str(error).partition(" for field")[0])
    assert results[0] == results[1]


@dataclass
class TheirRules(TrainConfig):
    """Our class with rules of hyperstate."""

    @classmethod
    def upgrade_rules(cls) -> Any:
        return {
            version: [getattr(theirs, type(rule).__name__)(**vars(rule)) for rule in rules]
            for version, rules in TrainConfig.upgrade_rules().items()
        }


@pytest.mark.parametrize("version", range(6))
def test_old_files_upgrade_equally_with_rules_of_hyperstate(version: int, tmp_path: Path) -> None:
    """Also for hyperstate's loader, to which a section that is left out has its newest defaults.

    Unless two of its rules change the default of one field: then it has the oldest one.
    """
    text = f"(version: {version}, optim: (lr: 0.5), net: (relpos_encoding: None), ppo: (gae: true))"
    file = tmp_path / "config.ron"
    file.write_text(text)
    for path in (file, *PUBLISHED):
        with_ours = dataclasses.asdict(load_config(TrainConfig, path))
        assert with_ours == dataclasses.asdict(load_config(TheirRules, path))
        with_ours, with_theirs = (
            dataclasses.asdict(hyperstate.load(cls, path)) for cls in (TrainConfig, TheirRules)
        )
        if "ppo: " not in path.read_text():
            assert with_ours.pop("ppo") == dataclasses.asdict(PPOConfig())
            assert with_theirs.pop("ppo")["ent_coef"] == 0.01
        if path == file and version < 2:
            assert with_ours.pop("rollout") == dataclasses.asdict(RolloutConfig())
            assert with_theirs.pop("rollout")["steps"] == 128
        assert with_ours == with_theirs
    assert hyperstate.load(TrainConfig, file).ppo.ent_coef == (0.01 if version < 2 else 0.1)


class Renamed(Outer, Versioned):
    """A class of ours with our rules."""

    @classmethod
    def version(cls) -> int:
        return 1

    @classmethod
    def upgrade_rules(cls) -> dict[int, list[ours.RewriteRule]]:
        return {
            0: [ours.RenameField(("number",), ("count",)), ours.ChangeDefault(("text",), 1, "")]
        }


def test_schema_tools_of_hyperstate_accept_our_rules() -> None:
    before: Any = dataclasses.replace(materialize_type(Renamed), version=0)
    before.fields["number"] = before.fields.pop("count")
    before.fields["text"] = dataclasses.replace(before.fields["text"], default=1)
    Renamed._apply_schema_upgrades(before)  # type: ignore[attr-defined]
    assert before.fields == materialize_type(Renamed).fields  # type: ignore[union-attr]


# Programs


class Doubled(theirs.MapFieldValue):
    """A rule that a user derived."""

    def __init__(self, path: Any) -> None:
        super().__init__(path, lambda value: value * 2)
        self.note = "mine"


class Forgotten(theirs.RewriteRule):
    """A rule of a user's own."""

    def apply(self, state_dict: Any) -> Any:
        state_dict.pop("forgotten", None)
        return state_dict

    def apply_to_schema(self, schema: Any) -> None:
        pass


@dataclass
class Program(hyperstate.Versioned):  # type: ignore[misc, name-defined]
    """A class as programs for hyperstate have it."""

    inner: Inner
    count: int = 1
    other: Optional[Inner] = None
    kind: Literal["a", "b"] = "a"
    names: List[str] = field(default_factory=list)

    @classmethod
    def version(cls) -> int:
        return 2

    @classmethod
    def upgrade_rules(cls) -> Dict[int, List[theirs.RewriteRule]]:
        return {
            0: [
                theirs.RenameField(("number",), ("count",)),
                theirs.ChangeDefault(("other", "rate"), 1.0, 2.0),
                theirs.RejectValues(("kind",), {"c"}),
            ],
            1: [
                Doubled(("count",)),
                Forgotten(),
                theirs.ChangeDefault(("other", "rate"), 2.0, 0.5),
            ],
        }


def test_a_class_and_rules_for_hyperstate_load_here() -> None:
    config = load_config(Program, None, text="(version: 0, number: 3, kind: b, forgotten: 1)")
    assert config == Program(Inner(), count=6, kind="b")
    old = load_config(Program, None, text="(version: 0, other: ())")
    assert old.other == Inner(rate=1.0)
    assert load_config(Program, None, text=dump_config(config)) == config
    assert "version: 2" in dump_config(config)
    with pytest.raises(ConfigError, match="upgrade from version 0: Value 'c' is deprecated"):
        load_config(Program, None, text="(version: 0, kind: c)")
    with pytest.raises(ConfigError, match="version: expected"):
        load_config(Program, None, text="(number: 3)")


def test_rules_for_hyperstate_explain_a_changed_schema() -> None:
    now = schema_of(Program)
    fields = {**now.fields, "number": now.fields["count"]}
    del fields["count"]
    assert schema_changes(dataclasses.replace(now, version=0, fields=fields), Program) == []


def test_classes_of_both_kinds_have_a_version() -> None:
    assert issubclass(Program, Versioned)
    assert issubclass(TrainConfig, Versioned)
    assert issubclass(TrainConfig, hyperstate.Versioned)
    assert not issubclass(Outer, Versioned)
    assert not issubclass(Program, TrainConfig)
    assert not issubclass(hyperstate.Versioned, TrainConfig)
    with pytest.raises(TypeError, match="abstract"):
        Versioned()  # type: ignore[abstract]
