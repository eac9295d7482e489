"""Where settings come from: the order in which they overrule each other, and `--print-config`."""

import re
import textwrap
from pathlib import Path

import pytest

from enn_trainer.base.errors import ConfigError
from enn_trainer.cli import run
from enn_trainer.config import TrainConfig
from enn_trainer.config.load import load_with_sources
from tests.enn_trainer.builders import OURS, SMALL


def shown(capsys: pytest.CaptureFixture[str], *arguments: str) -> dict[str, tuple[str, str]]:
    """Value and source of each field, by its path, as `--print-config` prints them."""
    assert run(["train", "--print-config", *arguments]) == 0
    result, sections = {}, [""]
    for line in capsys.readouterr().out.splitlines():
        depth = (len(line) - len(line.lstrip())) // 2
        name, *rest = re.split(r"\s{2,}", line.strip())
        if rest:
            result[".".join([*sections[1 : depth + 1], name])] = (rest[0], rest[1])
        else:
            sections = [*sections[: depth + 1], name]
    return result


def write(path: Path, text: str) -> Path:
    path.write_text(text)
    return path


def test_precedence_is_default_file_environment_command_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    file = write(tmp_path / "c.ron", "(version: 5, optim: (lr: 0.1, bs: 11, weight_decay: 0.2))")
    monkeypatch.setenv("ENN_OPTIM__LR", "0.2")
    monkeypatch.setenv("ENN_OPTIM__BS", "12")
    result = shown(capsys, "--config", str(file), "optim.bs=13")
    assert result["optim.bs"] == ("13", "command line")
    assert result["optim.lr"] == ("0.2", "environment variable ENN_OPTIM__LR")
    assert result["optim.weight_decay"] == ("0.2", f"file {file}")
    assert result["optim.micro_bs"] == ("None", "default")
    assert result["env.id"] == ('"MoveToOrigin"', "default")


def test_upgraded_values_have_a_source_of_their_own(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = write(tmp_path / "c.yaml", "version: 0\noptim: {lr: 0.1}\nvf_net: {n_head: 1}\n")
    result = shown(capsys, "--config", str(file))
    assert result["optim.lr"] == ("0.1", f"file {file}")
    assert result["optim.bs"] == ("128", f"file {file}, upgraded from version 0")
    assert result["rollout.num_envs"] == ("4", f"file {file}, upgraded from version 0")
    assert result["vf_net.d_model"] == ("64", f"file {file}, upgraded from version 0")
    assert result["vf_net.n_head"] == ("1", f"file {file}")
    assert result["ppo.gamma"] == ("0.99", "default")


def test_schedules_lists_and_sections_are_printed(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("ENN_EVAL", "(steps: 3, interval: 4)")
    monkeypatch.setenv("ENN_EVAL__STEPS", "5")
    groups = 'optim.groups=[(pattern: "a  b")]'
    result = shown(capsys, "optim.lr=step: 0.1@0 lin 0@9", groups, 'ppo.ent_targets={"a": 0.5}')
    assert result["optim.lr"] == ('"step: 0.1@0 lin 0@9"', "command line (schedule)")
    assert result["ppo.ent_targets"] == ('{"a": 0.5}', "command line")
    assert result["eval.steps"] == ("5", "environment variable ENN_EVAL__STEPS")
    assert result["eval.interval"] == ("4", "environment variable ENN_EVAL")
    assert result["eval.opponent"] == ("None", "default")


def test_columns_are_aligned_and_plain(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["train", "--print-config"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert len({line.index("default") for line in lines if line.endswith("default")}) == 1
    assert "\x1b" not in "".join(lines)
    assert lines[0] == "env"
    assert lines[1].startswith("  kwargs")


def test_checkpoint_is_the_source_instead_of_a_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = ["--checkpoint-dir", str(tmp_path / "run")]
    assert run(["train", "env.id=Xor", *SMALL, f"data_dir={tmp_path}", *folder]) == 0
    capsys.readouterr()
    monkeypatch.setenv("ENN_SEED", "3")
    result = shown(capsys, *folder, "--resume", "total_timesteps=99")
    save = max((tmp_path / "run").glob("step-*"))
    assert result["env.id"] == ('"Xor"', f"checkpoint {save}")
    assert result["seed"] == ("3", "environment variable ENN_SEED")
    assert result["total_timesteps"] == ("99", "command line")
    file = write(tmp_path / "other.toml", 'version = 5\nenv.id = "Count"\n')
    assert run(["train", "--print-config", "--config", str(file), *folder, "--resume"]) == 0
    out = capsys.readouterr().out
    assert out.count(f"{file} differs in env.id") == 1
    assert f"checkpoint {save}" in out


def test_print_config_starts_no_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    shown(capsys, "--checkpoint-dir", str(tmp_path / "run"), f"data_dir={tmp_path}")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("ENN_OPTM__LR", "3", "environment variable ENN_OPTM__LR: optm.lr='3': no such field; did"),
        ("ENN_LR", "3", "did you mean optim.lr?"),
        ("ENN_VERSION", "3", "environment variable ENN_VERSION: "),
        ("ENN_", "3", "environment variable ENN_: "),
        ("ENN_OPTIM__LR", "fast", "optim.lr: expected float, got 'fast' (from environment "),
        ("ENN_OPTIM__GROUPS", "[", "environment variable ENN_OPTIM__GROUPS: optim.groups='[':"),
        ("ENN_SEED", "-1", "seed: expected a finite number of at least 0, got -1 (from environm"),
    ],
)
def test_invalid_environment_variable_is_named(
    name: str,
    value: str,
    message: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setenv(name, value)
    assert run(["train"]) == 2
    captured = capsys.readouterr()
    assert message in captured.err
    assert captured.err.count("\n") == 1


def test_environment_variable_affects_the_run_and_its_checkpoint(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ENN_ENV__ID", "Xor")
    monkeypatch.setenv("ENN_SEED", "7")
    folder = tmp_path / "run"
    assert run(["train", *SMALL, f"data_dir={tmp_path}", "--checkpoint-dir", str(folder)]) == 0
    text = (max(folder.glob("step-*")) / "config.ron").read_text()
    assert "seed: 7," in text
    assert 'id: "Xor",' in text


def test_environment_variables_are_ignored_from_python(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ENN_SEED", "7")
    config, sources = load_with_sources(TrainConfig, None)
    assert (config.seed, sources.of("seed")) == (1, "default")
    arguments, _ = load_with_sources(TrainConfig, None, environment={"ENN_SEED": "3", "OTHER": "x"})
    assert arguments.seed == 3


def test_later_override_of_a_section_replaces_its_fields() -> None:
    overrides = ["eval.steps=3", "eval=(steps: 1, interval: 2)"]
    _, sources = load_with_sources(
        TrainConfig, None, overrides, environment={"ENN_EVAL__OPPONENT": "random"}
    )
    assert sources.of("eval.steps") == "command line"
    assert sources.of("eval.opponent") == "default"


def test_names_with_dots_have_separate_sources() -> None:
    suites = '{"big": (episodes: 4), "big.episodes": (steps: 5, env: (id: "Xor"))}'
    _, sources = load_with_sources(
        TrainConfig,
        None,
        ["eval.suites.big.episodes=3"],
        text=f"(version: 5, eval: (steps: 1, interval: 2, suites: {suites}))",
    )
    assert sources.is_explicit(("eval", "suites", "big", "episodes"))
    assert not sources.is_explicit(("eval", "suites", "big.episodes", "env", "id"))
    assert not sources.is_explicit(("eval", "suites"))


def test_defaults_are_not_explicit(tmp_path: Path) -> None:
    file = write(tmp_path / "c.ron", "(version: 5, seed: 2)")
    _, sources = load_with_sources(TrainConfig, file, environment={"ENN_TRIAL": "3"})
    assert [sources.is_explicit((name,)) for name in ("seed", "trial", "name")] == [
        True,
        True,
        False,
    ]


def test_invalid_value_of_a_file_does_not_name_a_variable(tmp_path: Path) -> None:
    file = write(tmp_path / "c.ron", "(version: 5, seed: -1)")
    with pytest.raises(ConfigError) as caught:
        load_with_sources(TrainConfig, file, environment={"ENN_TRIAL": "3"})
    assert "environment" not in str(caught.value)


def test_user_program_prints_its_settings(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("sys.argv", ["mine.py", "--print-config", "seed=4"])
    source = textwrap.dedent(OURS).replace('if __name__ == "__main__":\n', "if True:\n")
    with pytest.raises(SystemExit) as ended:
        exec(compile(source, "mine.py", "exec"), {})
    assert ended.value.code == 0
    assert re.search(r"^seed +4 +command line$", capsys.readouterr().out, re.MULTILINE)


def test_names_below_a_dict_keep_their_case_in_environment_variables() -> None:
    variables = {
        "ENN_EVAL": "(steps: 3)",
        "ENN_EVAL__SUITES__MySuite__STEPS": "7",
        "ENN_EVAL__SUITES__MySuite__ENV__ID": "Xor",
    }
    config, _ = load_with_sources(TrainConfig, None, environment=variables)
    assert config.eval is not None
    (suite,) = config.eval.suites.items()
    assert (suite[0], suite[1].steps) == ("MySuite", 7)
    assert suite[1].env is not None
    assert suite[1].env.id == "Xor"
