"""No release is forgotten: what its configurations say means today what it meant then.

`tests/golden/schemas` has the schema of every release. It is never changed: a change of the
settings needs a new version with an upgrade rule, or a default that does what was done before.
"""

# hyperstate's type reader knows only these forms.
# ruff: noqa: UP006, UP035, UP045

import copy
import dataclasses
import re
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path
from typing import Any, List, Literal, Optional, get_type_hints

import pytest
from hypothesis import given
from hypothesis import strategies as st

from enn_trainer.base.errors import ConfigError
from enn_trainer.config import CheckpointConfig, TrainConfig, ron
from enn_trainer.config.load import load_config
from enn_trainer.config.rewrite_rules import (
    AddDefault,
    ChangeDefault,
    CheckValue,
    DeleteField,
    MapFieldValue,
    RejectValues,
    RenameField,
    RewriteRule,
)
from enn_trainer.config.schema import (
    COMPUTED,
    NO_DEFAULT,
    Schema,
    load_schema,
    schema_changes,
    schema_of,
)
from enn_trainer.config.versioned import Versioned

SCHEMAS = sorted((Path(__file__).parents[2] / "golden/schemas").glob("*.ron"))
BY_VERSION = {schema.version: schema for schema in map(load_schema, SCHEMAS)}
NOW = TrainConfig.version()
LAST = NOW - 1

# Fields that came after a release, each with the default at which a run does what it did without
# the field. A field that is not here may give older configurations another meaning.
NEUTRAL: dict[str, Any] = {
    "bc.who": "hand",  # earlier recordings do not store the author of choices
    "bc.player": "",  # nor the player
    "bc.seq_len": None,
    "net.precision": "float32",
    "vf_net.precision": "float32",
    "optim.groups": [],
    "optim.name": "AdamW",
    "optim.kwargs": "{}",
    "optim.shuffle": True,
    "optim.max_entities": None,
    "ppo.ratio": "actor",
    "ppo.weight_by": "actor",
    "ppo.dual_clip": None,
    "ppo.vf_clip_coef": None,
    "ppo.huber_delta": 1.0,  # of a loss that they do not have
    "ppo.value_bins": None,
    "ppo.reward_scaling": False,
    "ppo.ent_targets": {},
    "ppo.ent_target_lr": 0.1,  # without targets none is learnt
    "ppo.magnet": None,
    "ppo.seq_len": None,
    "net.memory": None,
    "net.init_std": 1.0,
    "vf_net.init_std": 1.0,
    "vf_net.memory": None,
    "selfplay": None,
    "eval.episodes": None,
    "eval.max_steps": 10000,  # of whole episodes
    "eval.deterministic": False,
    "eval.seed": None,
    "eval.suites": {},
    "eval.capture_replays": False,
    "rollout.recover": "exact",
    "rollout.ray": None,
    "rollout.ray_resources": {"CPU": 1.0},
    "rollout.ray_files": [],
    "rollout.ray_env": None,
    "env.vary": {},
    "eval.env.vary": {},
    "eval.suites[].env.vary": {},
    "eval.ray": None,
    "eval.lag": 0,
    "scale.shards": None,
    "curricula": {},
    "curricula[].lessons": [],
    "curricula[].lessons[].vary": {},
    "curricula[].lessons[].ramp": {},
    "curricula[].lessons[].count": None,
    "curricula[].lessons[].until": [],
    "curricula[].lessons[].back": [],
    "curricula[].lessons[].episodes": 100,
    "curricula[].review": 0.0,
    "curricula[].restart": False,
    "scale.timeout_s": 300.0,
    **{  # the newest three, every minute
        f"checkpoint.{name}": value
        for name, value in dataclasses.asdict(CheckpointConfig()).items()
    },
    "stop": [],
    "bc": None,
    "mlflow_tracking_uri": None,
}


def unexplained(old: Schema, cls: type[Versioned]) -> list[str]:
    """What gives configurations of a release another meaning, or takes them their meaning."""
    fields = schema_of(cls).fields
    return [
        str(change)
        for change in schema_changes(old, cls)
        if change.severity != "INFO"
        or (
            change.description == "added"
            and fields[change.path].default is not NO_DEFAULT
            # a test below renames a section
            and (change.path.replace("rollouts.", "rollout."), fields[change.path].default)
            not in NEUTRAL.items()
        )
    ]


def of_a_change(old: Schema, cls: type[Versioned]) -> list[str]:
    """Return the unexplained changes of a variant of `TrainConfig` that it does not have itself."""
    before = unexplained(old, TrainConfig)
    return [c for c in unexplained(old, cls) if c.replace("rollouts.", "rollout.") not in before]


def test_every_change_since_a_release_is_explained() -> None:
    result = {path.stem: unexplained(load_schema(path), TrainConfig) for path in SCHEMAS}
    assert {change for changes in result.values() for change in changes} == set(), (
        f"add a version with upgrade rules to TrainConfig, or a field that by default changes "
        f"nothing to NEUTRAL: {result}"
    )


def test_every_release_has_its_schema() -> None:
    names = [re.fullmatch(r"(.+)-config(\d+)", path.stem) for path in SCHEMAS]
    assert all(names)
    assert [int(match[2]) for match in names if match] == [load_schema(p).version for p in SCHEMAS]
    assert {*BY_VERSION, TrainConfig.version()} == set(range(TrainConfig.version() + 1))
    release = version("enn-trainer")
    assert any(match and match[1] == release for match in names), (
        f"type: enn config dump-schema tests/golden/schemas/{release}-config"
        f"{TrainConfig.version()}.ron"
    )


def test_neutral_fields_have_their_neutral_defaults() -> None:
    """The list has the current defaults: otherwise it would excuse other changes."""
    fields = schema_of(TrainConfig).fields
    assert {path: fields[path].default for path in NEUTRAL} == NEUTRAL
    oldest = BY_VERSION[min(BY_VERSION)]
    assert not NEUTRAL.keys() & oldest.fields.keys()


# A class that changed


def doctored(
    section: str,
    name: str,
    *new: tuple[str, Any, Any],
    config_version: int = NOW,
    rule: RewriteRule | None = None,
) -> type[Versioned]:
    """`TrainConfig` without a field of a section, and with other fields in its place."""
    hints = get_type_hints(TrainConfig)
    kinds = {f.name: hints[f.name] for f in dataclasses.fields(TrainConfig)}
    custom = {f.name: copy.copy(f) for f in dataclasses.fields(TrainConfig)}
    if section:
        kinds[section], custom[section] = _other(kinds[section], name, new), dataclasses.field()
        return _class(kinds, custom, config_version, rule)
    del kinds[name], custom[name]
    for field_name, kind, default in new:
        kinds[field_name] = kind
        custom[field_name] = _field(default)
    return _class(kinds, custom, config_version, rule)


def _field(default: Any) -> Any:
    if default is NO_DEFAULT:
        return dataclasses.field()
    if isinstance(default, list):
        return dataclasses.field(default_factory=lambda: list(default))
    return dataclasses.field(default=default)


def _other(cls: Any, name: str, new: tuple[tuple[str, Any, Any], ...]) -> type:
    hints = get_type_hints(cls)
    fields = [
        (f.name, hints[f.name], copy.copy(f)) for f in dataclasses.fields(cls) if f.name != name
    ]
    fields += [(field_name, kind, _field(default)) for field_name, kind, default in new]
    return dataclasses.make_dataclass(cls.__name__, fields, kw_only=True)


def _class(
    kinds: dict[str, Any], custom: dict[str, Any], config_version: int, rule: RewriteRule | None
) -> type[Versioned]:
    rules = TrainConfig.upgrade_rules()
    rules[LAST] = [*rules.get(LAST, []), *([] if rule is None else [rule])]
    return dataclasses.make_dataclass(
        "TrainConfig",
        [(name, kind, custom[name]) for name, kind in kinds.items()],
        bases=(Versioned,),
        kw_only=True,
        namespace={
            "version": classmethod(lambda cls: config_version),
            "upgrade_rules": classmethod(lambda cls: rules),
        },
    )


CHANGES: dict[str, tuple[Callable[..., type[Versioned]], RewriteRule]] = {
    "another default": (
        lambda **more: doctored("ppo", "gamma", ("gamma", float, 0.9), **more),
        ChangeDefault(("ppo", "gamma"), 0.99, 0.9),
    ),
    "a field that is gone": (
        lambda **more: doctored("optim", "shuffle", **more),
        DeleteField(("optim", "shuffle")),
    ),
    "another name": (
        lambda **more: doctored("rollout", "steps", ("num_steps", int, 64), **more),
        RenameField(("rollout", "steps"), ("rollout", "num_steps")),
    ),
    "another name of a section": (
        lambda **more: doctored(
            "", "rollout", ("rollouts", get_type_hints(TrainConfig)["rollout"], NO_DEFAULT), **more
        ),
        RenameField(("rollout",), ("rollouts",)),
    ),
    "fewer values": (
        lambda **more: doctored("ppo", "ratio", ("ratio", Literal["actor"], "actor"), **more),
        CheckValue(("ppo", "ratio"), {"actor"}),
    ),
    "fewer values, by those that went": (
        lambda **more: doctored("ppo", "ratio", ("ratio", Literal["actor"], "actor"), **more),
        RejectValues(("ppo", "ratio"), {"frame"}),
    ),
    "another type": (
        lambda **more: doctored("", "trial", ("trial", Optional[List[int]], None), **more),
        MapFieldValue(("trial",), lambda trial: trial if trial is None else [trial]),
    ),
    "a default that is gone": (
        lambda **more: doctored("env", "id", ("id", str, NO_DEFAULT), **more),
        AddDefault(("env", "id"), "MoveToOrigin"),
    ),
    "a new field without a default": (
        lambda **more: doctored("env", "", ("size", Optional[int], NO_DEFAULT), **more),
        AddDefault(("env", "size"), None),
    ),
}


@pytest.mark.parametrize(("changed", "rule"), CHANGES.values(), ids=CHANGES.keys())
def test_a_change_without_a_rule_fails_and_passes_with_one(
    changed: Callable[..., type[Versioned]], rule: RewriteRule
) -> None:
    assert of_a_change(BY_VERSION[LAST], changed(config_version=LAST))
    assert of_a_change(BY_VERSION[LAST], changed(config_version=NOW)), "a version alone is no rule"
    for release in BY_VERSION.values():
        assert of_a_change(release, changed(config_version=NOW, rule=rule)) == []


def test_rule_for_a_released_version_is_rejected() -> None:
    """Files of that version were written with the default of then, and say so by its number."""
    late = doctored("ppo", "gamma", ("gamma", float, 0.9))
    rules = TrainConfig.upgrade_rules()
    rules[LAST - 1] = [*rules[LAST - 1], ChangeDefault(("ppo", "gamma"), 0.99, 0.9)]
    late.upgrade_rules = classmethod(lambda cls: rules)  # type: ignore[assignment, method-assign]
    assert of_a_change(BY_VERSION[LAST - 1], late) == []
    assert of_a_change(BY_VERSION[LAST], late)


def test_a_rule_from_another_default_than_the_released_one_does_not_count() -> None:
    rule = ChangeDefault(("ppo", "gamma"), 0.95, 0.9)
    changed = doctored("ppo", "gamma", ("gamma", float, 0.9), rule=rule)
    assert of_a_change(BY_VERSION[LAST], changed)


def test_new_field_that_changes_runs_needs_a_rule() -> None:
    """Its default is no proof that older configurations mean what they meant."""
    assert of_a_change(BY_VERSION[LAST], doctored("ppo", "", ("bonus", float, 1.0)))


def test_released_file_keeps_its_meaning_with_the_rule() -> None:
    change, rule = CHANGES["another default"]
    cls: Any = change(config_version=NOW, rule=rule)
    for text in (f"(version: {LAST})", f"(version: {LAST}, ppo: (gae: true))", "(version: 0)"):
        assert load_config(cls, None, text=text).ppo.gamma == 0.99
    assert load_config(cls, None, text=f"(version: {LAST}, ppo: (gamma: 0.5))").ppo.gamma == 0.5
    assert load_config(cls, None, text=f"(version: {NOW})").ppo.gamma == 0.9
    change, rule = CHANGES["another name of a section"]
    cls = change(config_version=NOW, rule=rule)
    assert (
        load_config(cls, None, text=f"(version: {LAST}, rollout: (steps: 3))").rollouts.steps == 3
    )
    change, rule = CHANGES["fewer values, by those that went"]
    cls = change(config_version=NOW, rule=rule)
    assert (
        load_config(cls, None, text=f"(version: {LAST}, ppo: (ratio: actor))").ppo.ratio == "actor"
    )
    with pytest.raises(ConfigError, match=f"upgrade from version {LAST}: Value 'frame'"):
        load_config(cls, None, text=f"(version: {LAST}, ppo: (ratio: frame))")


# Whole files


def leaves(schema: Schema) -> dict[str, Any]:
    """Defaults of a release that every configuration has: outside optional sections and lists."""
    optional = [path for path, f in schema.fields.items() if f.type.startswith("Optional[")]
    return {
        path: f.default
        for path, f in schema.fields.items()
        if f.default is not NO_DEFAULT
        and f.default != COMPUTED
        and "[]" not in path
        and not any(path.startswith(f"{section}.") for section in optional)
    }


def at(config: Any, path: str) -> Any:
    for name in path.split("."):
        config = getattr(config, name)
    return config


OTHER: dict[str, Any] = {
    "env.validate": False,
    "net.d_qk": 8,
    "optim.max_grad_norm": 1.0,
    "optim.update_epochs": 5,
    "ppo.gamma": 0.5,
    "ppo.vf_coef": 0.25,
    "rollout.steps": 256,
    "seed": 7,
    "trial": 3,
}


@given(st.sampled_from(sorted(BY_VERSION)), st.sets(st.sampled_from(sorted(OTHER))), st.data())
def test_missing_fields_have_the_default_of_the_file_version(
    config_version: int, named: set[str], data: st.DataObject
) -> None:
    """Whether fields or whole sections are absent; and sections may be there and empty."""
    empty = data.draw(st.sets(st.sampled_from(["env", "net", "optim", "ppo", "rollout"])))
    content: dict[str, Any] = {"version": config_version, **{name: {} for name in empty}}
    for path in named:
        section, _, name = path.rpartition(".")
        (content.setdefault(section, {}) if section else content)[name] = OTHER[path]
    config = load_config(TrainConfig, None, text=ron.dumps(ron.Struct("TrainConfig", content)))
    for path, default in leaves(BY_VERSION[config_version]).items():
        got = at(config, path)
        if dataclasses.is_dataclass(got):
            continue  # a section; its fields are compared one by one
        assert got == (OTHER[path] if path in named else default), path
