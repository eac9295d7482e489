"""`enn config`: schemas, what changed since, and files of older versions rewritten."""

# hyperstate's type reader knows only these forms.
# ruff: noqa: UP006, UP035, UP045

import dataclasses
import secrets
import shutil
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Dict, List, Literal, Optional

import pytest

import enn_trainer
from enn_trainer.base.errors import ConfigError
from enn_trainer.cli import run
from enn_trainer.config import EvalSuiteConfig, ParamGroupConfig, RolloutConfig, TrainConfig
from enn_trainer.config.formats import format_text, read_file
from enn_trainer.config.load import dump_config, load_config
from enn_trainer.config.rewrite_rules import (
    ChangeDefault,
    CheckValue,
    DeleteField,
    RejectValues,
    RenameField,
    RewriteRule,
)
from enn_trainer.config.schema import (
    Schema,
    accepts,
    dump_schema,
    load_schema,
    schema_changes,
    schema_of,
)
from enn_trainer.config.upgrade_files import upgraded_file, write_whole
from enn_trainer.config.versioned import Versioned
from tests.enn_trainer.config.builders import PUBLISHED

ROOT = Path(enn_trainer.__file__).parents[1]


# Schemas


@dataclass
class Section:
    rate: float = 0.5
    kind: Literal["a", "b"] = "a"


@dataclass
class Old(Versioned):
    learning_rate: float
    section: Section
    count: int = 1
    text: str = "x"
    maybe: Optional[Section] = None
    items: List[Section] = field(default_factory=list)
    weights: Dict[str, float] = field(default_factory=dict)
    either: Optional[Literal["a", "b"]] = None
    name: str = field(default_factory=secrets.token_hex)
    groups: List[int] = field(default_factory=lambda: [1, 2])

    @classmethod
    def version(cls) -> int:
        return 3


def changed(name: str, kind: Any = None, default: Any = dataclasses.MISSING, **more: Any) -> Any:
    """The class `Old` with another field; without a kind, without the field."""
    fields = [
        (f.name, f.type, f) for f in dataclasses.fields(Old) if f.name not in (name, more.get("no"))
    ]
    if kind is not None:
        custom = field() if default is dataclasses.MISSING else field(default=default)
        custom = field(default_factory=default) if callable(default) else custom
        fields.append((name, kind, custom))
    methods = {
        "version": classmethod(lambda cls: more.get("version", 3)),
        "upgrade_rules": classmethod(lambda cls: more.get("rules", {})),
    }
    return dataclasses.make_dataclass(
        "Old", fields, bases=(Versioned,), kw_only=True, namespace=methods
    )


def test_schema_round_trips(tmp_path: Path) -> None:
    for cls in (Old, TrainConfig):
        path = tmp_path / "schema.ron"
        path.write_text(dump_schema(schema_of(cls)))
        assert load_schema(path) == schema_of(cls)
        assert schema_changes(load_schema(path), cls) == []


CHANGES = [
    (changed("count", int, 2), "WARN", "ChangeDefault(('count',), 1, 2)"),
    (changed("count", Optional[int], 1), "INFO", None),
    (changed("count", float, 1.0), "INFO", None),
    (changed("count", str, "1"), "ERROR", None),
    (changed("count", List[int], list), "WARN", "MapFieldValue(('count',), lambda value: [value])"),
    (changed("count"), "WARN", "DeleteField(('count',))"),
    (changed("count", int), "WARN", "AddDefault(('count',), 1)"),
    (changed("learning_rate", int), "WARN", "MapFieldValue(('learning_rate',), round)"),
    (changed("learning_rate", float, 0.1), "INFO", None),
    (changed("lr", float, no="learning_rate"), "WARN", "RenameField(('learning_rate',), ('lr',))"),
    (changed("counts", int, 1, no="count"), "WARN", "RenameField(('count',), ('counts',))"),
    (
        changed("sections", Section, no="section"),
        "WARN",
        "RenameField(('section',), ('sections',))",
    ),
    (changed("new", int, 1), "INFO", None),
    (changed("new", Section), "INFO", None),
    (changed("new", Optional[Section], None), "INFO", None),
    (changed("new", bool), "ERROR", None),
    (changed("new", Optional[int]), "WARN", "AddDefault(('new',), None)"),
    (changed("new", List[int]), "WARN", "AddDefault(('new',), [])"),
    (changed("either", Optional[Literal["a", "b", "c"]], None), "INFO", None),
    (changed("either", Literal["a", "b", None], None), "INFO", None),
    (changed("text", Literal["x", "y"], "x"), "WARN", "CheckValue(('text',), {'x', 'y'})"),
    (changed("section", Optional[Section], None), "INFO", None),
    (changed("name", str, "fixed"), "ERROR", None),
    (
        changed("groups", List[int], lambda: [1, 3]),
        "WARN",
        "ChangeDefault(('groups',), [1, 2], [1, 3])",
    ),
]


@pytest.mark.parametrize(("cls", "severity", "rule"), CHANGES)
def test_schema_change_has_a_severity_and_a_rule(cls: Any, severity: str, rule: str | None) -> None:
    worst = max(schema_changes(schema_of(Old), cls), key=lambda c: len(c.severity.strip("INFO")))
    assert (worst.severity, worst.rule) == (severity, rule)


RULES: List[tuple[Any, List[RewriteRule]]] = [
    (changed("count", int, 2), [ChangeDefault(("count",), 1, 2)]),
    (changed("count"), [DeleteField(("count",))]),
    (changed("lr", float, no="learning_rate"), [RenameField(("learning_rate",), ("lr",))]),
    (changed("text", Literal["x", "y"], "x"), [CheckValue(("text",), {"x", "y"})]),
]


@pytest.mark.parametrize(("cls", "rules"), RULES)
def test_upgrade_rule_resolves_a_schema_change(cls: Any, rules: List[RewriteRule]) -> None:
    cls.version = classmethod(lambda cls: 4)
    assert schema_changes(schema_of(Old), cls)
    cls.upgrade_rules = classmethod(lambda cls: {3: rules})
    assert schema_changes(schema_of(Old), cls) == []


def test_change_inside_a_list_has_no_rule() -> None:
    schema = schema_of(Old)
    fields = {
        **schema.fields,
        "items[].rate": dataclasses.replace(schema.fields["items[].rate"], default=9.0),
    }
    (change,) = schema_changes(Schema("Old", 3, fields), Old)
    assert change.severity == "ERROR"
    assert "rules cannot change items of lists" in change.description


def test_schema_of_a_later_version_is_rejected() -> None:
    with pytest.raises(ConfigError, match="version: expected at most 3"):
        schema_changes(dataclasses.replace(schema_of(Old), version=4), Old)


def test_type_accepts_compatible_types() -> None:
    assert accepts("float", "int")
    assert not accepts("int", "float")
    assert accepts("Optional[float]", "Optional[int]")
    assert not accepts("float", "Optional[float]")
    assert accepts("str", "'a'|'b'")
    assert not accepts("str", "'a'|None")
    assert not accepts("'a'|'b'", "str")


# The command


def test_schema_commands(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "schema.ron"
    assert run(["config", "dump-schema", str(path)]) == 0
    current = path.read_text()
    assert current == dump_schema(schema_of(TrainConfig))
    assert run(["config", "check-schema", str(path)]) == 0
    assert "the schema matches TrainConfig" in capsys.readouterr().out
    older = current.replace(
        '"optim.lr": (type: "float", default: 0.001)', '"optim.lr": (type: "float", default: 0.5)'
    )
    path.write_text(older)
    assert run(["config", "check-schema", str(path)]) == 1
    out = capsys.readouterr().out
    assert "WARN   optim.lr: default changed from 0.5 to 0.001" in out
    assert f"let version() return {TrainConfig.version() + 1}" in out
    assert (
        f"    {TrainConfig.version()}: [\n        ChangeDefault(('optim', 'lr'), 0.5, 0.001),\n"
        in out
    )
    assert run(["config", "upgrade-schema", str(path)]) == 1
    assert path.read_text() == older
    lacking = "\n".join(line for line in current.splitlines() if '"seed"' not in line)
    path.write_text(lacking)
    assert run(["config", "check-schema", str(path)]) == 0
    assert run(["config", "upgrade-schema", str(path)]) == 0
    assert path.read_text() == current


OWN = """
from dataclasses import dataclass
from enn_trainer import TrainConfig

@dataclass
class Mine(TrainConfig):
    size: int = 3
"""


def test_schema_of_a_custom_configuration(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "own.py").write_text(OWN)
    mine = f"{tmp_path}/own.py:Mine"
    assert run(["config", "--class", mine, "dump-schema", str(tmp_path / "schema.ron")]) == 0
    assert '"size": (type: "int", default: 3)' in (tmp_path / "schema.ron").read_text()
    (tmp_path / "config.json").write_text('{"version": 0, "size": 4}')
    assert run(["config", "--class", mine, "upgrade-config", str(tmp_path / "config.json")]) == 0


@pytest.mark.parametrize(
    ("arguments", "status", "words"),
    [
        ([], 2, ["COMMAND"]),
        (["chek-schema", "x"], 2, ["chek-schema"]),
        (["check-schema"], 2, ["FILE"]),
        (["check-schema", "nowhere.ron"], 2, ["nowhere.ron", "No such file"]),
        (["check-schema", "pyproject.toml"], 2, ["pyproject.toml"]),
        (["check-schema", "configs/xor.ron"], 2, ["configs/xor.ron", "a schema"]),
        (["dump-schema", "no/such/folder"], 2, ["no/such/folder"]),
        (["--class", "Xor", "dump-schema", "x"], 2, ["--class", "'Xor'"]),
        (["--class", "entity_env.examples:Xor", "dump-schema", "x"], 2, ["--class", "TrainConfig"]),
        (["upgrade-config", "nowhere.ron"], 1, ["nowhere.ron"]),
    ],
)
def test_usage_errors_print_one_line(
    arguments: list[str],
    status: int,
    words: list[str],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(ROOT)
    try:
        ended = run(["config", *arguments])
    except SystemExit as error:  # from argparse
        ended = int(error.code or 0)
    err = capsys.readouterr().err
    assert ended == status
    assert err.count("\n") == 1
    assert err.startswith("error: ")
    for word in words:
        assert word in err


# Files


@pytest.mark.parametrize("more", [[], ["--include-defaults"]])
@pytest.mark.parametrize("path", PUBLISHED, ids=lambda path: path.stem)
def test_a_published_file_is_upgraded_and_keeps_its_comments(
    path: Path, more: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    copy = Path(shutil.copy(path, tmp_path))
    before = dump_config(load_config(TrainConfig, copy))
    assert run(["config", "upgrade-config", "--dry-run", *more, str(copy)]) == 0
    assert copy.read_text() == path.read_text()
    assert f"+    version: {TrainConfig.version()}," in capsys.readouterr().out
    assert run(["config", "upgrade-config", *more, str(copy)]) == 0
    assert "lost" not in capsys.readouterr().out
    assert read_file(copy)["version"] == TrainConfig.version()
    assert dump_config(load_config(TrainConfig, copy)) == before
    for line in path.read_text().splitlines():
        assert line in copy.read_text() or "version" in line or "(" in line or "," not in line
    if more:
        assert len(dict(read_file(copy)["ppo"])) == len(dataclasses.fields(enn_trainer.PPOConfig))
    assert run(["config", "upgrade-config", str(copy)]) == 0
    assert "nothing to do" in capsys.readouterr().out


@pytest.mark.parametrize("suffix", [".yaml", ".toml", ".json"])
@pytest.mark.parametrize("path", PUBLISHED, ids=lambda path: path.stem)
def test_files_of_other_formats_are_upgraded(suffix: str, path: Path, tmp_path: Path) -> None:
    copy = tmp_path / f"copy{suffix}"
    copy.write_text(format_text(copy, read_file(path)))
    before = dump_config(load_config(TrainConfig, copy))
    assert run(["config", "upgrade-config", str(copy)]) == 0
    assert read_file(copy)["version"] == TrainConfig.version()
    assert dump_config(load_config(TrainConfig, copy)) == before


def test_comments_are_kept_or_their_loss_is_reported(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    text = "# At the top.\n\nversion: 0\noptim:\n    lr: 1e-3  # inside\n"
    file = tmp_path / "config.yaml"
    file.write_text(text)
    assert run(["config", "upgrade-config", str(file)]) == 0
    assert "comments inside it are lost" in capsys.readouterr().out
    newest = f"version: {TrainConfig.version()}"
    assert file.read_text().startswith(f"# At the top.\n\n{newest}\n")
    file.write_text(text.replace("version: 0", newest))
    assert run(["config", "upgrade-config", str(file)]) == 0
    assert "# inside" in file.read_text()


@dataclass
class Plain(Versioned):
    """A class with a newest version that does not change files."""

    wandb_entity: str = ""
    seed: int = 1
    name: str = ""

    @classmethod
    def version(cls) -> int:
        return 5


PLAIN = f"{__file__}:Plain"


def test_only_the_version_number_changes_without_other_changes(tmp_path: Path) -> None:
    file = tmp_path / "config.toml"
    text = 'wandb_entity = "me" # mine\nversion = 4\nname = "version = 4"\n'
    file.write_text(text)
    assert run(["config", "--class", PLAIN, "upgrade-config", str(file)]) == 0
    assert file.read_text() == text.replace("version = 4\n", "version = 5\n", 1)


@pytest.mark.parametrize(
    ("suffix", "text", "after"),
    [
        (
            ".yaml",
            "# from version: 4\nversion: 4\nwandb_entity: me\n",
            "# from version: 4\nversion: 5\nwandb_entity: me\n",
        ),
        (
            ".ron",
            '// this was version: 4\n(\n    version: 4, // inside\n    wandb_entity: "me",\n)\n',
            '// this was version: 4\n(\n    version: 5, // inside\n    wandb_entity: "me",\n)\n',
        ),
        (
            ".toml",
            'seed = 3 # version = 4\nversion = 4\nwandb_entity = "me" # mine\n',
            'seed = 3 # version = 4\nversion = 5\nwandb_entity = "me" # mine\n',
        ),
        (
            ".json",
            '{"name": "version: 4", "version": 4, "wandb_entity": "me"}',
            '{"name": "version: 4", "version": 5, "wandb_entity": "me"}',
        ),
    ],
)
@pytest.mark.parametrize("line_break", ["\n", "\r\n"])
def test_version_is_found_among_similar_comments_and_text(
    suffix: str,
    text: str,
    after: str,
    line_break: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    file = tmp_path / f"config{suffix}"
    file.write_bytes(text.replace("\n", line_break).encode())
    assert run(["config", "--class", PLAIN, "upgrade-config", str(file)]) == 0
    assert file.read_bytes() == after.replace("\n", line_break).encode()
    assert capsys.readouterr().out.endswith("upgraded from version 4 to 5\n")


def test_file_without_a_locatable_version_is_rewritten(tmp_path: Path) -> None:
    file = tmp_path / "config.yaml"
    file.write_text("# version: 4\nversion: 0x4\nwandb_entity: me\n")
    assert run(["config", "--class", PLAIN, "upgrade-config", str(file)]) == 0
    assert file.read_text() == "# version: 4\nversion: 5\nwandb_entity: me\n"


def test_rewritten_file_keeps_its_line_breaks(tmp_path: Path) -> None:
    file = tmp_path / "config.ron"
    file.write_bytes(b"// Mine.\r\n(\r\n    version: 0,\r\n    count: 3,\r\n)\r\n")
    upgrade = upgraded_file(Renamed, file)
    expected = "// Mine.\r\nRenamed(\r\n    version: 2,\r\n    number: 3,\r\n)\r\n"
    assert upgrade.after == expected


def test_sections_in_lists_and_dicts_and_empty_ones_keep_their_comments(tmp_path: Path) -> None:
    file = tmp_path / "config.ron"
    file.write_text(
        "( // (mine)\n"
        "    version: 0, // old\n"
        '    env: (kwargs: {"size": 3}),\n'
        "    rollout: (),\n"
        '    optim: (groups: [(pattern: "x")]), // (groups)\n'
        '    eval: (steps: 1, suites: {"a": (/* (few) */ steps: 2)}),\n'
        ")\n"
    )
    before = dump_config(load_config(TrainConfig, file))
    upgrade = upgraded_file(TrainConfig, file, include_defaults=True)
    assert not upgrade.loses_comments
    for text in ("( // (mine)\n", ", // old\n", "// (groups)\n", "/* (few) */", '{"size": 3}'):
        assert text in upgrade.after
    file.write_text(upgrade.after)
    assert dump_config(load_config(TrainConfig, file)) == before
    values = read_file(file)
    assert len(values["optim"]["groups"][0]) == len(dataclasses.fields(ParamGroupConfig))
    assert len(values["eval"]["suites"]["a"]) == len(dataclasses.fields(EvalSuiteConfig))
    assert len(values["rollout"]) == len(dataclasses.fields(RolloutConfig))


@dataclass
class Renamed(Versioned):
    """A class with a renamed field and a value that is no longer allowed."""

    section: Section
    number: int = 1

    @classmethod
    def version(cls) -> int:
        return 2

    @classmethod
    def upgrade_rules(cls) -> Dict[int, List[RewriteRule]]:
        return {
            0: [RenameField(("count",), ("number",))],
            1: [RejectValues(("section", "kind"), {"c"})],
        }


def test_a_renamed_field_is_written_by_its_new_name(tmp_path: Path) -> None:
    file = tmp_path / "config.ron"
    file.write_text("// Mine.\n(version: 0, /* so many */ count: 3)")
    upgrade = upgraded_file(Renamed, file)
    assert upgrade.after == "// Mine.\nRenamed(\n    version: 2,\n    number: 3,\n)\n"
    assert upgrade.loses_comments


def test_a_rule_that_rejects_values_keeps_the_others() -> None:
    """hyperstate's own takes away the values that it allows."""
    config = load_config(Renamed, None, text="(version: 1, section: (kind: b))")
    assert config.section.kind == "b"
    with pytest.raises(ConfigError, match="upgrade from version 1: Value 'c' is deprecated"):
        load_config(Renamed, None, text="(version: 1, section: (kind: c))")


def test_error_in_a_file_does_not_stop_the_upgrade_of_others(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    bad, good = tmp_path / "bad.ron", tmp_path / "good.ron"
    bad.write_text("(version: 0, sed: 3)")
    good.write_text("(version: 0, seed: 3)")
    assert run(["config", "upgrade-config", str(bad), str(good)]) == 1
    assert bad.read_text() == "(version: 0, sed: 3)"
    assert read_file(good)["version"] == TrainConfig.version()
    assert "did you mean seed?" in capsys.readouterr().err


def test_a_file_keeps_its_mode_and_links_stay_links(tmp_path: Path) -> None:
    file, link = tmp_path / "file.ron", tmp_path / "link.ron"
    file.write_text("old")
    file.chmod(0o640)
    link.symlink_to(file)
    write_whole(link, "new")
    assert link.is_symlink()
    assert (file.read_text(), file.stat().st_mode & 0o777) == ("new", 0o640)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["file.ron", "link.ron"]


def test_failed_write_keeps_the_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "file.ron"
    file.write_text("old")

    def full(descriptor: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("os.fsync", full)
    with pytest.raises(ConfigError, match=r"file\.ron: No space left"):
        write_whole(file, "new")
    assert file.read_text() == "old"
    assert [path.name for path in tmp_path.iterdir()] == ["file.ron"]
