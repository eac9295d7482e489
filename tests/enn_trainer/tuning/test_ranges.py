"""Ranges of settings, and their distributions."""

from pathlib import Path
from typing import Any

import pytest

from enn_trainer.base.errors import ConfigError
from enn_trainer.config import TrainConfig
from enn_trainer.config.load import dump_config, load_config
from enn_trainer.tuning.ranges import check_ranges, is_range, ranges_of_file, read_range

optuna = pytest.importorskip("optuna", reason="the extra tune is not installed")
distributions = optuna.distributions

CONFIG = dump_config(TrainConfig())


@pytest.mark.parametrize(
    ("field", "text", "expected"),
    [
        ("ppo.ent_coef", "uniform 0 0.5", distributions.FloatDistribution(0, 0.5)),
        ("optim.lr", "loguniform 1e-4 1e-2", distributions.FloatDistribution(1e-4, 0.01, log=True)),
        (
            "ppo.gamma",
            "1-loguniform 0.001 .1",
            distributions.FloatDistribution(1e-3, 0.1, log=True),
        ),
        ("net.n_layer", "int 1 4", distributions.IntDistribution(1, 4)),
        ("net.d_model", "choice 16 32", distributions.CategoricalDistribution(["16", "32"])),
        ("net.pooling", "choice null", distributions.CategoricalDistribution(["null"])),
    ],
)
def test_ranges_have_the_distribution_of_their_text(
    field: str, text: str, expected: object
) -> None:
    assert read_range(field, text).distribution == expected


def test_parameters_are_converted_to_assignments_and_back() -> None:
    discounts = read_range("ppo.gamma", "1-loguniform .001 .1")
    assert [discounts.value(param) for param in (0.001, 0.1)] == [0.999, 0.9]
    assert discounts.param(0.99) == pytest.approx(0.01)
    assert discounts.param(0.5) is None
    widths = read_range("net.d_model", "choice 16 32")
    assert (widths.override("32"), widths.param(32), widths.param(8)) == (
        "net.d_model=32",
        "32",
        None,
    )
    layers = read_range("net.n_layer", "int 1 4")
    assert (layers.param(2), layers.param(2.5), layers.param("2")) == (2, None, None)
    assert layers.override(3) == "net.n_layer=3"


def test_a_choice_can_be_a_whole_section_as_text() -> None:
    section = '(extent: [5, 5], position_features: [\\"x\\", \\"y\\"])'
    encodings = read_range("net.relpos_encoding", f'choice null "{section}"')
    absent, present = encodings.tried()
    config = load_config(TrainConfig, None, [encodings.override(present)])
    assert config.net.relpos_encoding is not None
    assert config.net.relpos_encoding.position_features == ["x", "y"]
    assert load_config(TrainConfig, None, [encodings.override(absent)]).net.relpos_encoding is None


def test_half_of_log_uniform_draws_are_below_the_geometric_mean() -> None:
    study = optuna.create_study(sampler=optuna.samplers.RandomSampler(seed=1))
    space = {"lr": read_range("optim.lr", "loguniform 1e-4 1e-2").distribution}
    below = sum(study.ask(space).params["lr"] < 1e-3 for _ in range(1000))
    assert abs(below - 500) < 5 * 0.5 * 1000**0.5  # five standard deviations of the binomial


@pytest.mark.parametrize("kind", ["uniform 0 1", "loguniform 0.001 1", "1-loguniform 0.001 1"])
def test_shares_of_a_range_are_within_its_ends(kind: str) -> None:
    searched = read_range("ppo.gamma", kind)
    low, high = searched.sampler.numbers
    drawn = [searched.at(i / 16) for i in range(16)]
    assert drawn == sorted(drawn)
    assert low <= drawn[0]
    assert drawn[-1] <= high


@pytest.mark.parametrize(
    ("field", "text", "problem"),
    [
        ("optim.rl", "uniform 0 1", "optim.rl='uniform 0 1': no such field; did you mean optim.lr"),
        ("optim.lr", "normal 0 1", "expected uniform, loguniform, 1-loguniform, int"),
        ("optim.lr", "ranges 0..1", "expected uniform, loguniform, 1-loguniform, int"),
        ("net.n_layer", "int 1..2 4..5", "expected uniform, loguniform, 1-loguniform, int"),
        ("net.n_layer", "choice 1:0.5 2:0.5", "choice without weights"),
        ("optim.lr", "uniform 1", "optim.lr: character 10: expected uniform LOW HIGH"),
        ("optim.lr", "loguniform 0 1", "expected a number above 0"),
    ],
)
def test_invalid_ranges_are_rejected(field: str, text: str, problem: str) -> None:
    with pytest.raises(ConfigError, match=problem):
        read_range(field, text)


@pytest.mark.parametrize(
    ("field", "text", "problem"),
    [
        ("ppo.gamma", "uniform 0.9 1.1", "includes 1.1: ppo.gamma"),
        ("net.n_layer", "uniform 1 4", "includes 1.9.*: net.n_layer: expected"),
        ("optim.name", 'choice "AdamW" "Adma"', "includes Adma: optim"),
    ],
)
def test_both_ends_of_a_range_are_checked(field: str, text: str, problem: str) -> None:
    with pytest.raises(ConfigError, match=problem):
        check_ranges(CONFIG, [read_range(field, text)])


def test_ends_that_need_another_range_are_accepted() -> None:
    minibatch = read_range("optim.bs", "choice 128 8192")  # the default rollout has 2,048 frames
    with pytest.raises(ConfigError, match=r"optim.bs: expected at most rollout.steps"):
        check_ranges(CONFIG, [minibatch])
    check_ranges(CONFIG, [minibatch, read_range("rollout.num_envs", "int 32 256")])


def test_a_setting_has_one_range() -> None:
    ranges = [read_range("net", 'choice "()"'), read_range("net.d_model", "int 8 64")]
    with pytest.raises(ConfigError, match=r"net.d_model: expected one range of net, got two"):
        check_ranges(CONFIG, ranges)


def test_samplers_of_environment_arguments_are_no_ranges() -> None:
    assert is_range("optim.lr", "loguniform 1e-4 1e-2")
    assert not is_range("optim.lr", "0.001")
    assert not is_range("optim.lr", "step: 0.003@0 cos 0@1e6")
    assert not is_range("env.vary.max_mines", "int 0 20")
    assert not is_range("eval.env.vary.max_mines", "int 0 20")


def test_a_file_can_hold_ranges(tmp_path: Path) -> None:
    file = tmp_path / "ranges.yaml"
    file.write_text("ranges: {optim.lr: loguniform 1e-4 1e-2}")
    assert ranges_of_file(file) == {"optim.lr": "loguniform 1e-4 1e-2"}
    file.write_text("optim.lr: loguniform 1e-4 1e-2")
    with pytest.raises(ConfigError, match="--ranges: expected 'ranges:"):
        ranges_of_file(file)


@pytest.mark.parametrize(
    ("field", "text", "param"),
    [
        ("env.id", 'choice "Xor" "Duel"', '"other.py:World"'),
        ("env.id", 'choice "Xor" "Duel"', 0),
        ("optim.lr", "loguniform 0.001 0.1", "other.py:World"),
        ("optim.lr", "loguniform 0.001 0.1", True),
    ],
)
def test_parameters_of_other_ranges_are_refused(field: str, text: str, param: Any) -> None:
    """A file cannot name other values than those of the range."""
    with pytest.raises(ConfigError, match=f"{field}: expected a parameter of"):
        read_range(field, text).override(param)
