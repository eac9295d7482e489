"""Command lines: options that name settings, and the world as their first word."""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from enn_trainer.base.errors import ConfigError
from enn_trainer.cli import run
from enn_trainer.cli.arguments import OneLineParser
from enn_trainer.cli.typed_settings import parse_typed, settings_from_options, typed_settings
from enn_trainer.config import CloneRunConfig, PPOConfig, TrainConfig
from enn_trainer.config.load import load_config

WORLD = """
from entity_env.examples import Xor


class Orchard(Xor):
    def __init__(self, trees=5, label=""):
        super().__init__()
"""


def parser() -> OneLineParser:
    parser = OneLineParser(prog="enn test")
    parser.add_argument("words", nargs="*")
    parser.option("--config", "FILE")
    parser.option("--checkpoint-dir", "DIR")
    parser.flag("--verbose", "show more")
    return parser


@pytest.mark.parametrize(
    ("typed", "settings"),
    [
        ("--seed 3", "seed=3"),
        ("--seed=3", "seed=3"),
        ("--seed -3", "seed=-3"),
        ("--total-timesteps 1000", "total_timesteps=1000"),
        ("--total_timesteps=1000", "total_timesteps=1000"),
        ("--lr 0.1", "optim.lr=0.1"),
        ("--optim.lr 0.1", "optim.lr=0.1"),
        ("--optim-lr 0.1", "optim.lr=0.1"),
        ("--env Xor", "env.id=Xor"),
        ("--env.id Xor", "env.id=Xor"),
        ("--env-kwargs {}", "env.kwargs={}"),
        ("--eval.seed 3", "eval.seed=3"),
        ("--relpos-encoding.extent [1]", None),
        ("--track", "track=true"),
        ("--track Xor", "track=true Xor"),
        ("--track false Xor", "track=false Xor"),
        ("--track=0", "track=0"),
        ("--track --seed 3", "track=true seed=3"),
        ("Xor --seed 3 optim.lr=1 --lr 2", "Xor seed=3 optim.lr=1 optim.lr=2"),
        ("--config --seed", None),
        ("--verb --check dir --seed 3", "--verb --check dir seed=3"),
        ("-v --seed 3 -- --seed 4", "-v seed=3 -- --seed 4"),
    ],
)
def test_options_set_settings_by_path_or_unique_name(typed: str, settings: str | None) -> None:
    words = typed.split()
    if settings is None:
        with pytest.raises(SystemExit):
            settings_from_options(parser(), words, TrainConfig)
    else:
        assert settings_from_options(parser(), words, TrainConfig) == settings.split()


@pytest.mark.parametrize(
    ("typed", "expected"),
    [
        ("--steps 3", "--steps: expected --rollout.steps or --eval.steps, got an ambiguous"),
        ("--sede 3", "--sede: no such option, did you mean --seed?"),
        ("--total-timestep 3", "did you mean --total-timesteps?"),
        ("--learning-rate-of-all 3", "--learning-rate-of-all: no such option;"),
        ("--chekpoint-dir d", "did you mean --checkpoint-dir?"),
        ("--optim.lrr 3", "did you mean --optim.lr?"),
        ("--enf Xor", "did you mean --env?"),
        ("--seed", "--seed: expected a value of seed, got none"),
        ("--seed --track", "--seed: expected a value of seed, got none"),
        ("--optim 3", "--optim: no such option"),  # a section
    ],
)
def test_unknown_option_prints_one_line_with_a_suggestion(
    typed: str, expected: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as exit:
        parse_typed(parser(), typed.split(), TrainConfig)
    assert exit.value.code == 2
    error = capsys.readouterr().err
    assert error.startswith("error: ")
    assert expected in error
    assert error.count("\n") == 1


@pytest.mark.parametrize(
    ("typed", "setting"),
    [
        (["--env-kwargs", "size=3"], 'env.kwargs={"size": 3}'),
        (["env.kwargs=size=3,label=a b"], 'env.kwargs={"size": 3, "label": "a b"}'),
        (["--eval.env.kwargs=grid=[1, 2]"], 'eval.env.kwargs={"grid": [1, 2]}'),
        (["--env-kwargs", '{"size": 3}'], 'env.kwargs={"size": 3}'),
        (["env.kwargs="], "env.kwargs="),
    ],
)
def test_environment_arguments_use_the_common_syntax(typed: list[str], setting: str) -> None:
    assert parse_typed(parser(), typed, TrainConfig).words == [setting]


def test_repeated_environment_argument_is_rejected(
    capsys: pytest.CaptureFixture[str],
) -> None:
    with pytest.raises(SystemExit):
        parse_typed(parser(), ["--env-kwargs", "size=3,size=4"], TrainConfig)
    assert "error: env.kwargs: expected every argument once" in capsys.readouterr().err


def test_options_come_from_the_configuration_class(capsys: pytest.CaptureFixture[str]) -> None:
    assert parse_typed(parser(), ["--epochs", "3"], CloneRunConfig).words == ["clone.epochs=3"]
    with pytest.raises(SystemExit):
        parse_typed(parser(), ["--epochs", "3"], TrainConfig)
    with pytest.raises(SystemExit):
        parse_typed(parser(), ["--lr", "3"], CloneRunConfig)
    assert "--optim.lr or --clone.lr" in capsys.readouterr().err


def test_first_word_selects_an_environment_with_its_shipped_configuration() -> None:
    typed = typed_settings(TrainConfig, ["MultiSnake", "seed=3"], None, is_new=True)
    assert typed.overrides == ["env.id=MultiSnake", "seed=3"]
    assert typed.config is not None
    assert typed.config.name == "multisnake_1snakes11len.ron"
    assert typed.note == (
        "settings: shipped configuration multisnake_1snakes11len; for others: --config FILE or "
        "multisnake_2snakes11len"
    )


@pytest.mark.parametrize(
    ("words", "config", "is_new"),
    [
        (["Xor"], Path("count"), True),
        (["Xor"], None, False),
        (["MineSweeper"], None, True),
        (["gymnasium:CartPole-v1"], None, True),
        (["env.id=Xor"], None, True),
        ([], None, True),
    ],
)
def test_other_command_lines_choose_no_configuration(
    words: list[str], config: Path | None, is_new: bool
) -> None:
    typed = typed_settings(TrainConfig, words, config, is_new)
    assert (typed.config is None) == (config is None)
    assert typed.note == ""
    if words:
        assert typed.overrides == [f"env.id={words[0].removeprefix('env.id=')}"]


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["lr"], "lr: expected a value, as in optim.lr=VALUE"),
        (["optim.lr"], "optim.lr: expected a value, as in optim.lr=VALUE"),
        (["xor"], "'xor': expected an environment, got a configuration; use --config xor"),
        (["my/own.yaml"], "'my/own.yaml': expected an environment, got a configuration; use"),
        (["Xor", "env.id=Count"], "env.id: expected one environment, got Xor and env.id=Count"),
        (["Xor", "Count"], "'Count': expected FIELD=VALUE; name the environment first"),
        (["seed=3", "Xor"], "'Xor': expected FIELD=VALUE; name the environment first"),
    ],
)
def test_invalid_words_print_one_line_with_the_correction(words: list[str], expected: str) -> None:
    with pytest.raises(ConfigError) as error:
        typed_settings(TrainConfig, words, None, is_new=True)
    assert str(error.value).startswith(expected)


def test_environment_arguments_are_typed_like_settings(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("orchard.py").write_text(WORLD)
    Path("mine.ron").write_text(
        'TrainConfig(version: 1, env: (id: "orchard.py:Orchard", kwargs: "{\\"trees\\": 5}"))'
    )

    def kwargs(*words: str, config: str | None = None, is_new: bool = True) -> dict[str, Any]:
        file = None if config is None else Path(config)
        typed = typed_settings(TrainConfig, words, file, is_new)
        arguments: dict[str, Any] = json.loads(
            load_config(TrainConfig, typed.config, typed.overrides).env.kwargs
        )
        return arguments

    assert kwargs("orchard.py:Orchard", "trees=3") == {"trees": 3}
    assert kwargs("env.id=orchard.py:Orchard", "label=a b", "seed=4") == {"label": "a b"}
    # Other arguments keep the value of the configuration, the variable, or `env.kwargs`.
    assert kwargs("label=a", config="mine.ron") == {"trees": 5, "label": "a"}
    assert kwargs("trees=3", config="mine.ron") == {"trees": 3}
    assert kwargs("MultiSnake", "num_players=2", config="multisnake_1snakes11len") == {
        "num_snakes": 1,
        "max_snake_length": 11,
        "num_players": 2,
    }
    typed = ["orchard.py:Orchard", 'env.kwargs={"trees": 2}', "label=b"]
    assert kwargs(*typed) == {"trees": 2, "label": "b"}
    monkeypatch.setenv("ENN_ENV__KWARGS", '{"trees": 7}')
    assert kwargs("orchard.py:Orchard", "label=c") == {"trees": 7, "label": "c"}
    # Unknown names, and arguments of a resumed run, are passed to the loader.
    for words in (["nowhere.py:Orchard", "trees=3"], ["orchard.py:Orchard", "twigs=3"]):
        assert typed_settings(TrainConfig, words, None, is_new=True).overrides[1:] == words[1:]
    with pytest.raises(ConfigError, match="trees"):
        kwargs("orchard.py:Orchard", "trees=3", is_new=False)


def test_typed_settings_override_variables_and_variables_override_the_shipped_file(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ENN_OPTIM__LR", "0.5")
    monkeypatch.setenv("ENN_SEED", "5")
    monkeypatch.setenv("ENN_ENV__ID", "Count")
    assert run(["train", "Xor", "--seed", "6", "--print-config"]) == 0
    table = capsys.readouterr().out
    rows = {line.split()[0]: " ".join(line.split()[1:]) for line in table.splitlines()}
    assert rows["seed"] == "6 command line"
    assert rows["id"] == '"Xor" command line'
    assert rows["lr"] == "0.5 environment variable ENN_OPTIM__LR"
    assert rows["total_timesteps"].endswith("configs/xor.ron")
    assert "shipped" not in table


def test_configuration_has_all_defaults() -> None:
    assert TrainConfig() == load_config(TrainConfig, None)
    assert CloneRunConfig() == load_config(CloneRunConfig, None)


def test_redeclared_section_of_a_subclass_has_its_own_defaults() -> None:
    @dataclass
    class OwnPPO(PPOConfig):
        bonus: float = 2.0

    @dataclass
    class OwnConfig(TrainConfig):
        ppo: OwnPPO

    assert OwnConfig().ppo == OwnPPO() == load_config(OwnConfig, None).ppo
