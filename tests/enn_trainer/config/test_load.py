# hyperstate's type reader, which is tested here, supports only these annotations.
# ruff: noqa: UP006, UP035, UP045

import dataclasses
import json
import math
import re
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Dict, List, Optional

import pytest
from hypothesis import given
from hypothesis import strategies as st

from enn_trainer.base.errors import ConfigError
from enn_trainer.config import TrainConfig
from enn_trainer.config.load import dump_config, hps_info, load_config
from enn_trainer.config.rewrite_rules import (
    ChangeDefault,
    CheckValue,
    DeleteField,
    MapFieldValue,
    RenameField,
    RewriteRule,
)
from enn_trainer.config.schedules import follow_schedules, scheduled_fields
from enn_trainer.config.versioned import Versioned
from tests.enn_trainer.config.builders import GOLDEN, PUBLISHED, Inner, Outer

AS_RUN = json.loads((GOLDEN / "configs/as_run_by_0.1.16.json").read_text())["configs"]


def from_text(text: str, *overrides: str) -> Outer:
    return load_config(Outer, None, overrides, text)


def problems_of(cls: type, text: str, *overrides: str) -> tuple[str, ...]:
    with pytest.raises(ConfigError) as caught:
        load_config(cls, None, overrides, text)
    assert len(str(caught.value).splitlines()) == 1
    return caught.value.problems


def flat(config: Any, path: str = "") -> dict[str, Any]:
    """Every leaf of a configuration by its dotted path."""
    if not isinstance(config, dict):
        return {path: config}
    leaves: dict[str, Any] = {}
    for name, value in config.items():
        leaves |= flat(value, f"{path}.{name}" if path else name)
    return leaves


# Published files


@pytest.mark.parametrize("path", PUBLISHED, ids=lambda path: path.stem)
def test_published_config_keeps_its_meaning(path: Path) -> None:
    """All are of version 0: what they leave out has the defaults of version 0.

    The published code ran them with newer defaults where a whole section is absent; `as_run` is
    its list of what differs from their defaults, but for `rollout.processes`.
    """
    text = path.read_text()
    expected = flat(dataclasses.asdict(load_config(TrainConfig, None)))
    expected |= {"optim.bs": 1024, "ppo.ent_coef": 0.1, "net.init": "published"}
    expected |= {"ppo.norm_adv_over": "all", "ppo.clip_vloss": True, "ppo.value_norm": False}
    expected |= {"ppo.norm_adv_floor": 0.0, "ppo.ent_anneal_power": 1.0}
    expected |= {"rollout.steps": 16, "rollout.num_envs": 128, "ppo.gae_lambda": 0.95}
    expected |= {"ppo.value_loss": "mse"}
    expected |= {"wandb_entity": "entity-neural-network", **AS_RUN[path.stem]}
    expected["rollout.processes"] = 16 if "processes: 16" in text else 1
    if "ppo: " not in text:
        expected |= {"ppo.ent_coef": 0.01, "ppo.anneal_entropy": False}
    for section in ("net.relpos_encoding", "net.translation"):
        if any(name.startswith(f"{section}.") for name in AS_RUN[path.stem]):
            del expected[section]
    assert flat(dataclasses.asdict(load_config(TrainConfig, path))) == expected


def test_all_published_configs_are_tested() -> None:
    assert {path.stem for path in PUBLISHED} == set(AS_RUN)


def test_the_config_of_a_published_checkpoint_loads() -> None:
    config = load_config(TrainConfig, GOLDEN / "checkpoint_enn_trainer_0.1.16/config.ron")
    assert (config.env.id, config.net.d_model, config.optim.bs) == ("CherryPick", 16, 256)
    assert config.wandb_entity == "entity-neural-network"
    assert config.eval is None


# Versions


def test_missing_sections_of_an_old_file_have_old_defaults() -> None:
    config = load_config(TrainConfig, None, text="Old(version: 0)")
    assert (config.net.n_layer, config.net.d_model) == (1, 64)
    assert (config.optim.lr, config.optim.bs) == (0.00025, 128)
    assert (config.ppo.ent_coef, config.ppo.anneal_entropy) == (0.01, False)
    assert dataclasses.astuple(config.rollout)[:3] == (128, 4, 1)
    assert config.total_timesteps == 25000
    assert config.net.relpos_encoding is None
    assert config.vf_net is None


def test_present_optional_sections_of_an_old_file_have_old_defaults() -> None:
    encoding = '(extent: [1], position_features: ["x"])'
    config = load_config(
        TrainConfig, None, text=f"(version: 0, vf_net: (relpos_encoding: {encoding}))"
    )
    assert config.vf_net is not None
    assert (config.vf_net.n_layer, config.vf_net.d_model) == (1, 64)
    assert config.vf_net.relpos_encoding is not None
    assert config.vf_net.relpos_encoding.per_entity_values
    assert config.vf_net.relpos_encoding.enable_negative_distance_weight_bug


def test_old_file_may_set_an_optional_section_to_none() -> None:
    config = load_config(
        TrainConfig, None, text="(version: 0, vf_net: None, net: (relpos_encoding: None))"
    )
    assert config.vf_net is None
    assert config.net.relpos_encoding is None


def test_each_version_is_upgraded_from_its_own_defaults() -> None:
    def loaded(version: int) -> TrainConfig:
        return load_config(TrainConfig, None, text=f"(version: {version}, rollout: (steps: 512))")

    assert [loaded(v).optim.bs for v in range(8)] == [128] * 2 + [1024] * 4 + [128] * 2
    assert [loaded(v).ppo.ent_coef for v in range(8)] == [0.01] * 2 + [0.1] * 4 + [0.2] * 2
    assert [loaded(v).net.init for v in range(8)] == ["published"] * 6 + ["scaled"] * 2
    assert [loaded(v).ppo.norm_adv_over for v in range(10)] == ["all"] * 7 + ["acting"] * 3
    assert [loaded(v).ppo.value_loss for v in range(10)] == ["mse"] * 9 + ["huber"]
    assert [loaded(v).ppo.ent_anneal_power for v in range(10)] == [1.0] * 8 + [4.0, 8.0]
    assert [loaded(v).total_timesteps for v in range(7)] == [25000] * 3 + [1000000] * 4
    assert [loaded(v).wandb_entity is None for v in range(7)] == [False] * 5 + [True] * 2


@pytest.mark.parametrize("version", range(10))
def test_default_that_has_no_effect_in_a_file_is_kept_through_upgrades(version: int) -> None:
    text = f"(version: {version}, ppo: (anneal_entropy: false))"
    assert load_config(TrainConfig, None, text=text).ppo.anneal_entropy is False


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("(seed: 3)", "version: expected the version number .* currently 9, got None"),
        ("(version: true)", "version: expected the version number .*, got True"),
        ('(version: "4")', "version: expected the version number .*, got '4'"),
        ("(version: 10)", "version: expected 0 to 9, .* got 10"),
        ("(version: -1)", "version: expected 0 to 9, .* got -1"),
        ("[1]", r"expected TrainConfig\(...\), got \[1\]"),
        ("(version: 5", "line 1, column 12: expected ',' or '\\)'"),
        ("", "line 1, column 1: expected a value"),
    ],
)
def test_file_with_an_unknown_version_is_rejected(text: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        load_config(TrainConfig, None, text=text)


@dataclass
class Evolved(Versioned):
    """A class with a past."""

    a: Inner
    b: Optional[Inner] = None
    count: int = 1

    @classmethod
    def version(cls) -> int:
        return 2

    @classmethod
    def upgrade_rules(cls) -> Dict[int, List[RewriteRule]]:
        return {
            0: [
                ChangeDefault(("b", "rate"), 1.0, 2.0),
                ChangeDefault(("a", "rate"), 1.0, 2.0),
                RenameField(("number",), ("count",)),
                DeleteField(("gone",)),
                ChangeDefault(("dropped", "section", "x"), 1, 2),
            ],
            1: [
                ChangeDefault(("b", "rate"), 2.0, 0.5),
                ChangeDefault(("a", "rate"), 2.0, 0.5),
                MapFieldValue(("count",), lambda count: count * 2),
                CheckValue(("a", "kind"), {"a", "b"}),
            ],
        }


def test_a_default_that_changed_twice_leaves_an_absent_optional_section_absent() -> None:
    """hyperstate's own second rule would bring it to life."""
    config = load_config(Evolved, None, text="(version: 0)")
    assert config.b is None
    assert config.a.rate == 1.0
    assert load_config(Evolved, None, text="(version: 1)").a.rate == 2.0
    old = load_config(Evolved, None, text="(version: 0, b: (kind: b))")
    assert old.b == Inner(rate=1.0, kind="b")


@dataclass
class Regrouped(Versioned):
    """A class with upgrade rules for a section and for its fields."""

    group: Outer = field(default_factory=lambda: Outer(Inner(), count=9))
    other: Outer = field(default_factory=lambda: Outer(Inner(), count=9))

    @classmethod
    def version(cls) -> int:
        return 2

    @classmethod
    def upgrade_rules(cls) -> Dict[int, List[RewriteRule]]:
        return {
            0: [
                ChangeDefault(("group", "count"), 1, 2),
                ChangeDefault(("other", "extra", "rate"), 1.0, 2.0),
            ],
            1: [ChangeDefault(("group",), {"count": 3}, {"count": 9})],
        }


def test_rule_of_a_section_follows_rules_of_its_fields() -> None:
    assert load_config(Regrouped, None, text="(version: 0)").group.count == 3
    assert load_config(Regrouped, None, text="(version: 0, group: ())").group.count == 1
    assert load_config(Regrouped, None, text="(version: 2)").group.count == 9


def test_missing_section_has_its_default_without_a_rule() -> None:
    config = load_config(Regrouped, None, text="(version: 0)")
    assert (config.other.count, config.other.extra) == (9, None)


def test_fields_are_renamed_deleted_and_mapped() -> None:
    config = load_config(Evolved, None, text="(version: 0, number: 3, gone: [1])")
    assert config.count == 6


def test_overrides_use_the_current_version() -> None:
    config = load_config(Evolved, None, ["b.kind=b", "count=5"], "(version: 0, number: 3)")
    assert config.b == Inner(rate=0.5, kind="b")
    assert config.count == 5


def test_rule_that_rejects_a_value_prints_one_line() -> None:
    message = "upgrade from version 1: Value 'c' is deprecated"
    assert message in problems_of(Evolved, "(version: 1, a: (kind: c))")[0]
    assert "upgrade from version 0: " in problems_of(Evolved, "(version: 0, number: ())")[0]


def test_a_value_in_the_place_of_a_section_is_refused_after_the_upgrade() -> None:
    assert problems_of(TrainConfig, "(version: 0, net: 5, vf_net: x)") == (
        "net: expected RogueNetConfig, got 5",
        "vf_net: expected RogueNetConfig, got 'x'",
    )


def test_a_file_that_cannot_be_read_is_a_config_error(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"none\.ron: No such file"):
        load_config(Outer, tmp_path / "none.ron")
    binary = tmp_path / "binary.ron"
    binary.write_bytes(b"\xff\xfe\x00")
    with pytest.raises(ConfigError, match=r"binary\.ron: "):
        load_config(Outer, binary)


# Building


def test_required_sections_are_built_from_their_defaults() -> None:
    assert load_config(Outer, None) == Outer(inner=Inner())


def test_equal_ints_and_floats_are_interchangeable() -> None:
    config = from_text('(inner: (rate: 2), count: 1e3, weights: {"a": 1})')
    assert repr((config.inner.rate, config.count, config.weights)) == "(2.0, 1000, {'a': 1.0})"


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("(count: 1.5)", "count: expected int, got 1.5"),
        ("(count: inf)", "count: expected int, got inf"),
        ("(count: true)", "count: expected int, got True"),
        ("(count: [1])", "count: expected int, got [1]"),
        ("(inner: (rate: true))", "inner.rate: expected float, got True"),
        ("(inner: (rate: None))", "inner.rate: expected float, got None"),
        (
            f"(inner: (rate: {10**400}))",
            f"inner.rate: expected float, got an integer of 1329 bits: {str(10**400)[:77]}...",
        ),
        ("(inner: (kind: c))", "inner.kind: expected 'a'|'b'|None, got 'c'"),
        ("(inner: None)", "inner: expected Inner, got None"),
        ("(inner: [1])", "inner: expected Inner, got [1]"),
        ("(flag: 1)", "flag: expected bool, got 1"),
        ("(text: 1)", "text: expected str, got 1"),
        ("(limit: Some(x))", "limit: expected int, got 'x'"),
        ("(names: x)", "names: expected List[str], got 'x'"),
        ("(weights: {1: 1.0})", "weights, key 1: expected str, got 1"),
        ("(extra: 3)", "extra: expected Inner, got 3"),
        ("(count: -1)", "Outer: count is negative"),
        (
            "{1: 2}",
            "1=2: no such field; expected inner, count, flag, text, maybe, limit, names, "
            "weights, extra",
        ),
    ],
)
def test_a_wrong_value_is_refused_by_its_path(text: str, problem: str) -> None:
    assert problems_of(Outer, text) == (problem,)


def test_all_problems_are_reported_at_once() -> None:
    text = '(inner: (rate: x, knd: a), count: "1", names: [1, "a", 2], weights: {"a": b})'
    assert problems_of(Outer, text, "flag=maybe", "nothing", "inner.rat=1") == (
        "'nothing': expected field=value or section.field=value",
        "inner.rat='1': no such field; did you mean inner.rate?",
        "inner.knd='a': no such field; did you mean inner.kind?",
        "inner.rate: expected float, got 'x'",
        "count: expected int, got '1'",
        "flag: expected bool, got 'maybe'",
        "names[0]: expected str, got 1",
        "names[2]: expected str, got 2",
        "weights['a']: expected float, got 'b'",
    )


def test_the_checks_of_all_sections_are_reported_with_their_paths() -> None:
    problems = problems_of(
        TrainConfig, "(version: 5, eval: (steps: 0, interval: 1))", "optim.lr=-1", "ppo.gamma=2"
    )
    assert [problem.split(":")[0] for problem in problems] == [
        "optim.lr",
        "ppo.gamma",
        "eval.steps",
    ]


def test_a_section_that_misses_a_required_value_names_it() -> None:
    assert problems_of(TrainConfig, "(version: 5)", "ppo.value_bins.high=3") == (
        "ppo.value_bins.low: expected float, got nothing",
    )


@pytest.mark.parametrize(
    ("override", "hint"),
    [
        ("lr=0.1", "did you mean optim.lr?"),
        ("optim.learning_rate=0.1", "did you mean optim.lr?"),
        ("ppo.lr=0.1", "did you mean optim.lr?"),
        ("optim.bss=3", "did you mean optim.bs?"),
        ("rollouts.num_envs=3", "did you mean rollout.num_envs"),
        ("optim.zzz=3", "expected optim.lr, optim.lr_warmup_steps, optim.bs,"),
        ("optim.lr.x=3", "optim.lr has no fields"),
        ("version=3", "no such field; "),
    ],
)
def test_an_unknown_field_names_the_nearest_ones(override: str, hint: str) -> None:
    (problem,) = problems_of(TrainConfig, "(version: 5)", override)
    assert hint in problem
    assert problem.startswith(override.split("=")[0] + "=")


# Schedules


@pytest.mark.parametrize("quote", ["", '"'])
def test_any_number_field_may_follow_a_schedule(quote: str) -> None:
    """As a shell passes it on: its own quotes are gone, those inside them are not."""
    schedule = "step: 0.25@0 lin 0.0@100"
    config = from_text(
        f'(inner: (rate: "{schedule}"))',
        f"extra.rate={quote}{schedule}{quote}",
        f"limit={quote}time_used: 3@0 7@100{quote}",
    )
    assert config.extra is not None
    assert (config.inner.rate, config.extra.rate, config.limit) == (0.25, 0.25, 3)
    assert scheduled_fields(config).keys() == {"inner.rate", "extra.rate", "limit"}


@dataclass
class Deep:
    """A class of three levels."""

    outer: Outer


def test_schedules_are_followed_at_any_depth() -> None:
    """hyperstate's own reader fails at the third level."""
    config = load_config(Deep, None, ["outer.inner.rate=step: 1@0 2@8", "outer.count=step: 3@4"])
    follow_schedules(config, SimpleNamespace(step=4))
    assert (config.outer.inner.rate, config.outer.count) == (1.5, 3)
    assert scheduled_fields(config).keys() == {"outer.inner.rate", "outer.count"}
    assert load_config(Deep, None, text=dump_config(config)).outer.inner.rate == 1.0


def test_invalid_schedule_is_rejected_with_field_and_position() -> None:
    text = "step: 0.1@0 lin x@9"
    problem = "character 17: expected two finite numbers as value@position, got 'x@9'"
    assert problems_of(Outer, f'(inner: (rate: "{text}"))') == (f"inner.rate='{text}': {problem}",)
    assert problems_of(Outer, "()", f"extra.rate={text}") == (f"extra.rate='{text}': {problem}",)
    assert problems_of(Outer, "()", "count=step: 1@0 2.5@9") == (
        "count='step: 1@0 2.5@9': character 11: expected a whole number as the value, got '2.5@9'",
    )


def test_schedule_split_by_the_shell_is_rejected_with_the_fix() -> None:
    problems = problems_of(TrainConfig, "(version: 5)", *["optim.lr=step:", "0.1@0", "lin", "0@9"])
    assert "on a command line a schedule needs quotes" in problems[-1]


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ('(flag: "step: 0@0 1@9")', "flag: expected bool, got 'step: 0@0 1@9'"),
        ('(inner: "step: 0@0 1@9")', "inner: expected Inner, got 'step: 0@0 1@9'"),
        (
            '(weights: {"a": "step: 0@0"})',
            "weights['a']='step: 0@0': expected a number, got a schedule, which only fields "
            "support",
        ),
    ],
)
def test_only_number_fields_can_follow_a_schedule(text: str, problem: str) -> None:
    assert problems_of(Outer, text) == (problem,)


def test_text_that_looks_like_a_schedule_stays_text() -> None:
    assert from_text('(text: "step: 0@0 1@9")').text == "step: 0@0 1@9"


def test_all_values_of_a_schedule_are_validated_on_load() -> None:
    """Not at the step of a long run at which it is reached. Sections check each other, too."""
    overrides = (
        "optim.lr=step: 0.1@0 cos -0.1@5e6 0.1@1e7",
        "ppo.gamma=time_used: 0.5@0 2@60 2@70",
        "ppo.clip_coef=step: 0@-9 1@9",
    )
    assert problems_of(TrainConfig, "(version: 5)", *overrides) == (
        "ppo.clip_coef: expected a number above 0, got 0.0 (where step is -9)",
        "optim.lr: expected a finite number of at least 0.0, got -0.1 (where step is 5000000)",
        "ppo.gamma: expected a number from 0.0 to 1.0, got 2.0 (where time_used is 60)",
    )
    (problem,) = problems_of(TrainConfig, "(version: 5)", "optim.bs=step: 64@0 step 4096@9 repeat")
    assert problem.startswith("optim.bs: expected at most rollout.steps * rollout.num_envs = ")
    assert problem.endswith("(where step is 9)")


def test_fixed_numbers_cannot_follow_a_schedule() -> None:
    for path, reason in TrainConfig.fixed_during_run().items():
        field = {
            "net": "net.d_model",
            "vf_net": "vf_net.d_model",
            "rollout": "rollout.steps",
            "scale": "scale.shards",
            "selfplay": "selfplay.in_play",
            "checkpoint": "checkpoint.keep",
            "ppo.value_bins": "ppo.value_bins.low",
            "eval.suites": "eval.suites.a.steps",
            "curricula": "curricula.a.review",
        }
        name = field.get(path, path)
        problems = problems_of(TrainConfig, "(version: 5)", f"{name}=step: 4@0 8@100")
        expected = f"expected one number for the whole run, got a schedule: {reason}"
        named = name.replace("suites.a", "suites['a']").replace("curricula.a", "curricula['a']")
        assert f"{named}='step: 4@0 8@100': {expected}" in problems
    nested = 'net.relpos_encoding=(extent: ["step: 1@0"], position_features: [x])'
    (problem,) = problems_of(TrainConfig, "(version: 5)", nested)
    assert problem.endswith("got a schedule: the network is built once")


# Overrides


@pytest.mark.parametrize(
    ("override", "value"),
    [
        ("text=/tmp/x y", "/tmp/x y"),
        ("text=a=b", "a=b"),
        ("text=", ""),
        ("text= x ", " x "),
        ('text="a\\n\\"b"', 'a\n"b'),
        ("text=None", "None"),
        ("text=3", "3"),
        ('text="', '"'),
        ("maybe=runs/a", "runs/a"),
        ("maybe=None", None),
        ("maybe=none", None),
        ('maybe="None"', "None"),
        ("limit=3", 3),
        ("limit=None", None),
        ("count=1e3", 1000),
        ("count=0x10", 16),
        ("flag=true", True),
        ("flag=T", True),
        ("flag=1", True),
        ("flag=False", False),
        ("flag=f", False),
        ("flag=0", False),
        ('names=["x", "y z"]', ["x", "y z"]),
        ("names=[x]", ["x"]),
        ("names=[]", []),
        ('weights={"a": 1}', {"a": 1.0}),
        ('inner=(rate: 3, kind: "b")', Inner(3.0, "b")),
        ("extra=()", Inner()),
        ("extra=None", None),
        (" count =2", 2),
    ],
)
def test_override_is_parsed_by_the_type_of_its_field(override: str, value: Any) -> None:
    text = '(text: "old", maybe: "old", limit: 9, names: ["old"], extra: (rate: 9.0))'
    config = from_text(text, override)
    assert repr(getattr(config, override.split("=")[0].strip())) == repr(value)


@pytest.mark.parametrize(
    ("override", "value"),
    [
        ("rate=1", 1.0),
        ("rate=inf", math.inf),
        ("kind=b", "b"),
        ('kind="b"', "b"),
        ("kind=None", None),
    ],
)
def test_an_override_reaches_into_a_section(override: str, value: Any) -> None:
    name = override.split("=")[0]
    assert getattr(from_text("()", f"inner.{override}").inner, name) == value
    assert getattr(from_text("(extra: None)", f"extra.{override}").extra, name) == value


@pytest.mark.parametrize(
    ("override", "problem"),
    [
        ("count=x y", "count: expected int, got 'x y'"),
        ("count=", "count: expected int, got ''"),
        ("inner.kind=c d", "inner.kind: expected 'a'|'b'|None, got 'c d'"),
        ('text="a"b"', "text='\"a\"b\"': line 1, column 4: expected the end of the text, got 'b'"),
        ("names=[", "names='[': line 1, column 2: expected a value, got the end"),
        ("inner=3", "inner: expected Inner, got 3"),
        ("=3", "'=3': expected field=value or section.field=value"),
        ("count", "'count': expected field=value or section.field=value"),
    ],
)
def test_invalid_override_is_rejected(override: str, problem: str) -> None:
    assert problems_of(Outer, "()", override) == (problem,)


def test_overrides_apply_in_order() -> None:
    config = from_text("()", "extra=(rate: 1, kind: b)", "extra.rate=2", "count=1", "count=2")
    assert config.extra == Inner(2.0, "b")
    assert config.count == 2


def test_optional_section_of_the_command_line_is_complete() -> None:
    config = load_config(
        TrainConfig,
        None,
        [
            'net.relpos_encoding=(extent: [8], position_features: ["x"])',
            "eval.steps=1",
            "eval.interval=2",
            "eval.env.id=Xor",
            "eval.opponent=runs/a",
            "data_dir=/tmp/x y",
        ],
    )
    assert config.net.relpos_encoding is not None
    assert config.net.relpos_encoding.extent == [8]
    assert config.eval is not None
    assert config.eval.env is not None
    assert (config.eval.env.id, config.eval.opponent) == ("Xor", "runs/a")
    assert config.data_dir == "/tmp/x y"


@pytest.mark.parametrize("where", ["overrides", "text"])
def test_evaluations_default_to_the_environment_of_rollouts(where: str) -> None:
    """Also if it has arguments of its own."""
    overrides, text = ["env.id=Minefield"], None
    if where == "text":
        arguments = 'eval: (steps: 1, interval: 2, env: (vary: {"max_mines": "int 0 4"}))'
        text = f"TrainConfig(version: {TrainConfig.version()}, {arguments})"
    else:
        overrides += ["eval.steps=1", "eval.interval=2", 'eval.env.vary.max_mines="int 0 4"']
    for named, wanted in [([], "Minefield"), (["eval.env.id=Duel"], "Duel")]:
        config = load_config(TrainConfig, None, [*overrides, *named], text)
        assert config.eval is not None
        assert config.eval.env is not None
        assert config.eval.env.id == wanted
        assert config.eval.env.vary == {"max_mines": "int 0 4"}


# Writing


@given(
    st.builds(
        Outer,
        inner=st.builds(Inner, st.floats(allow_nan=False), st.sampled_from(["a", "b", None])),
        count=st.integers(0, 2**70),
        flag=st.booleans(),
        text=st.text(),
        maybe=st.none() | st.text(),
        limit=st.none() | st.integers(),
        names=st.lists(st.text()),
        weights=st.dictionaries(st.text(), st.floats(allow_nan=False)),
        extra=st.none() | st.builds(Inner, st.floats(allow_nan=False)),
    )
)
def test_config_round_trips(config: Outer) -> None:
    assert from_text(dump_config(config)) == config


@pytest.mark.parametrize("path", PUBLISHED, ids=lambda path: path.stem)
def test_train_config_round_trips_with_its_version_first(path: Path, tmp_path: Path) -> None:
    config = load_config(TrainConfig, path, ["eval.steps=3", "eval.interval=4"])
    text = dump_config(config)
    assert text.startswith("TrainConfig(\n    version: 9,\n    env: EnvConfig(\n")
    (tmp_path / "config.ron").write_text(text, "utf-8")
    assert load_config(TrainConfig, tmp_path / "config.ron") == config


def test_schedule_is_written_as_given_at_any_step() -> None:
    arguments = ["optim.lr=step: 1e-1@0 lin 0.@15e7", "ppo.target_kl=time_used: .5@0"]
    config = load_config(TrainConfig, None, arguments)
    follow_schedules(config, SimpleNamespace(step=10**8, time_used=3.0))
    text = dump_config(config)
    assert 'lr: "step: 1e-1@0 lin 0.@15e7",' in text
    again = load_config(TrainConfig, None, text=text)
    assert dump_config(again) == text
    assert again.optim.lr == 0.1


# Help


def test_help_lists_every_field_under_its_section() -> None:
    lines = [" ".join(line.split("  #")).rstrip() for line in hps_info(Outer, None).splitlines()]
    assert lines[0] == "inner: Inner"
    assert lines[1].startswith("  rate: float = 0.5 ")
    assert lines[1].endswith(" How fast it goes.")
    assert "names: List[str] = []" in lines
    assert "extra: Optional[Inner] = None" in lines
    assert hps_info(Outer, "") == hps_info(Outer)


@pytest.mark.parametrize(
    ("query", "first"),
    [
        ("lr", "optim.lr: float = 0.001 "),
        ("learning rate", "optim.lr: float = 0.001 "),
        ("optim.bs", "optim.bs: int = 128 "),
        ("batch size", "optim.bs: int = 128 "),
        ("optim", "optim: OptimizerConfig "),
        ("gama", "ppo.gamma: float = 0.99 "),
        ("value_bins.low", "ppo.value_bins.low: float (required) "),
        ("Discount", "ppo.gamma: float = 0.99 "),
    ],
)
def test_help_finds_a_field_by_name_path_or_description(query: str, first: str) -> None:
    assert hps_info(TrainConfig, query).startswith(first)


def test_help_shows_the_fields_of_a_requested_section() -> None:
    result = [line.split(":")[0] for line in hps_info(TrainConfig, "rollout").splitlines()]
    assert {"rollout", "rollout.steps", "rollout.num_envs", "rollout.processes"} <= set(result)


def test_help_explains_schedules() -> None:
    """With an example that can be used as it stands."""
    examples = re.findall(r'"(step: [^"]*)"', hps_info(TrainConfig))
    assert examples
    for example in examples:
        config = load_config(TrainConfig, None, [f"optim.lr={example}"])
        assert scheduled_fields(config).keys() == {"optim.lr"}


def test_help_reports_no_matches() -> None:
    assert hps_info(TrainConfig, "xyzzy") == "no field matches 'xyzzy'"


def test_list_of_sections_is_read_and_written() -> None:
    as_json = 'optim.groups=[{"pattern": "embedding.*", "lr_factor": 2}, {"pattern": "x"}]'
    as_ron = 'optim.groups=[(pattern: "embedding.*", lr_factor: 2.0), (pattern: "x")]'
    config = load_config(TrainConfig, None, [as_json])
    assert [(g.pattern, g.lr_factor) for g in config.optim.groups] == [
        ("embedding.*", 2.0),
        ("x", 1.0),
    ]
    assert load_config(TrainConfig, None, [as_ron]) == config
    assert load_config(TrainConfig, None, text=dump_config(config)) == config


def test_problems_in_a_list_of_sections_are_located() -> None:
    problems = problems_of(
        TrainConfig,
        '(version: 5, optim: (groups: [(pattern: "x"), (patern: "y"), 3, (pattern: "", lr: 1)]))',
    )
    assert problems[:3] == (
        "optim.groups[1].patern='y': no such field; did you mean optim.groups[].pattern?",
        "optim.groups[1].pattern: expected str, got nothing",
        "optim.groups[2]: expected ParamGroupConfig, got 3",
    )
    assert problems[3].startswith("optim.groups[3].lr=1: no such field")


GROUPS = '(pattern: "x", lr: 0.1), ' * 4000
SUITES = "".join(f'"{i}": (zz: 1), ' for i in range(4000))


@pytest.mark.timeout(20)
@pytest.mark.parametrize(
    "sections",
    [f"optim: (groups: [{GROUPS}])", f"eval: (steps: 1, suites: {{{SUITES}}})"],
    ids=["list", "dict"],
)
def test_many_unknown_fields_are_rejected_in_time_with_a_short_message(sections: str) -> None:
    problems = problems_of(TrainConfig, f"(version: 5, {sections})")
    assert len(problems) == 21
    assert "no such field; " in problems[19]
    assert problems[20] == "and 3980 more"


def test_a_problem_in_a_section_of_a_long_name_is_cut_short() -> None:
    suite = f'(version: 5, eval: (steps: 1, suites: {{"{"a" * 5000}": (steps: "x")}}))'
    (problem,) = problems_of(TrainConfig, suite)
    assert len(problem) == 1000


def test_help_shows_the_fields_of_a_list_of_sections() -> None:
    assert hps_info(TrainConfig, "freeze_until").startswith("optim.groups[].freeze_until: Optional")


def test_hints_of_problems_are_no_settings() -> None:
    """Hints follow a semicolon, as further problems of a section do."""
    relpos = "extent: [4], position_features: [x, y], distance: true, value_gate: relu"
    rotation = "rotation_vec_features: [a, b], rotation_angle_feature: c"
    with pytest.raises(ConfigError) as caught:
        load_config(TrainConfig, None, [f"net.relpos_encoding=({relpos}, {rotation})"])
    where = "net.relpos_encoding.rotation_vec_features, rotation_angle_feature: expected"
    assert [*caught.value.problems] == [
        f"{where} one of them, got both; leave one out",
        f"{where} radial=true, as only angles are rotated; set it, or leave them out",
    ]
