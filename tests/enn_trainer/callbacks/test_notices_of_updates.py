"""Notices of updates that go wrong and of lost returns: each rule with the sign and without."""

import math
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from enn_trainer import Callback, StateManager, TrainConfig, train
from enn_trainer.callbacks import notices
from enn_trainer.callbacks.notice import Sums
from enn_trainer.callbacks.notices import new_sums
from enn_trainer.callbacks.notices_of_updates import (
    forget_late,
    late_part,
    note_best,
    notices_of_collapse,
    notices_of_kl,
    notices_of_late_entropy,
    notices_of_reach,
    notices_of_steps,
)
from enn_trainer.config.load import load_config


def config(*overrides: str) -> TrainConfig:
    return load_config(TrainConfig, None, overrides)


def window(**numbers: float) -> Sums:
    """Sums of a window of ten updates."""
    run = {"updates": 10.0, "frames": 5120.0, "explained.count": 10.0}
    return {
        "run": {**new_sums()["run"], **run, **{k.replace("_", "."): x for k, x in numbers.items()}}
    }


@pytest.mark.parametrize(
    ("kl", "before", "is_told"),
    [
        (0.57, [0.01] * 8, True),
        (0.57, [0.01] * 7, False),  # the median is not known
        (0.57, [0.01] * 5 + [0.06] * 27, False),
        (0.04, [0.001] * 20, False),  # small by itself
        (0.05, [0.0] * 20, True),
        (math.nan, [0.01] * 8, False),
    ],
)
def test_an_update_that_goes_ten_times_as_far_as_others(
    kl: float, before: list[float], is_told: bool
) -> None:
    found = [*notices_of_kl(kl, before, config())]
    assert [notice.key for notice in found] == ["kl"] * is_told
    assert all("ppo.target_kl=0.03" in notice.text for notice in found)


def test_with_a_limit_of_the_kl_a_smaller_rate_is_named() -> None:
    (notice,) = notices_of_kl(0.5, [0.01] * 8, config("ppo.target_kl=0.03", "optim.lr=0.004"))
    assert "optim.lr=0.001" in notice.text


@pytest.mark.parametrize(("large", "is_told"), [(5.1, True), (5.0, False)])
def test_gradients_far_above_the_limit_in_most_steps(large: float, is_told: bool) -> None:
    found = [*notices_of_steps([window(steep_sum=large, norm_sum=999.0)], config())]
    assert [notice.key for notice in found] == ["gradient"] * is_told
    assert all("99.9 on average" in notice.text for notice in found)


def test_the_setting_for_gradients_is_one_that_is_not_set_yet() -> None:
    steep = [window(steep_sum=9.0)]
    for settings, cure in (
        (["ppo.value_norm=false"], "ppo.value_norm=true"),
        ([], "ppo.vf_coef=0.05"),
    ):
        (notice,) = notices_of_steps(steep, config(*settings))
        assert cure in notice.text


_CLIPPED = ["ppo.value_norm=false", "ppo.clip_vloss=true"]


@pytest.mark.parametrize(
    ("settings", "explained", "target", "is_told"),
    [
        (_CLIPPED, 0.0, -100.0, True),
        (_CLIPPED, 0.0, 100.0, True),
        (_CLIPPED, 0.0, 1.9, False),  # 10 updates of .2 reach it
        (_CLIPPED, 0.06, -100.0, False),
        ([*_CLIPPED, "ppo.vf_clip_coef=20"], 0.0, -100.0, False),
        (["ppo.value_norm=false"], 0.0, -100.0, False),
        (["ppo.clip_vloss=true"], 0.0, -100.0, False),
    ],
)
def test_values_that_clipping_keeps_from_the_returns(
    settings: list[str], explained: float, target: float, is_told: bool
) -> None:
    sums = window(target_sum=10 * target, explained_sum=10 * explained)
    found = [*notices_of_reach([sums], sums, config(*settings))]
    assert [notice.key for notice in found] == ["reach"] * is_told


@pytest.mark.parametrize(
    ("share", "frames", "settings", "is_told"),
    [
        (0.81, 10_000, [], True),
        (0.79, 10_000, [], False),
        (0.81, 9_999, [], False),  # the first half of the last fifth
        (0.81, 10_000, ['ppo.ent_targets={"do": 0.9}'], False),
    ],
)
def test_a_policy_that_has_not_decided_at_the_end(
    share: float, frames: int, settings: list[str], is_told: bool
) -> None:
    whole: Sums = {"run": {}, "late/do": {"share.sum": share * frames, "frames": frames}}
    found = [*notices_of_late_entropy(whole, config("total_timesteps=100000", *settings))]
    assert [notice.key for notice in found] == ["late/do"] * is_told
    assert all("ppo.ent_coef=0.02" in notice.text for notice in found)


@pytest.mark.parametrize(
    ("step", "num_frames", "total", "late"),
    [
        (16_384, 1024, 20_480, 0),
        (16_896, 1024, 20_480, 512),
        (17_408, 1024, 20_480, 1024),
        (14_000, 1024, 14_000, 0),  # a fifth of it is too short
    ],
)
def test_frames_of_the_last_fifth(step: int, num_frames: int, total: int, late: int) -> None:
    assert late_part(step, num_frames, total) == late


def test_a_run_that_goes_on_has_its_last_fifth_ahead() -> None:
    whole: Sums = {"run": {}, "late/do": {"share.sum": 1.0, "frames": 1.0}}
    forget_late(whole)
    assert whole == {"run": {}}


def told_steps(returns: list[float], spread: float = 1.0, episodes: float = 20.0) -> list[int]:
    """The windows, from 1, after which a collapse is told."""
    whole: Sums = {"run": {"return.min": 0.0, "return.max": spread}}
    windows: list[Sums] = []
    steps = []
    for i, mean in enumerate(returns, start=1):
        windows.append(window(return_sum=mean * episodes, episodes=episodes))
        note_best(whole, windows[-1], step=i)
        if [*notices_of_collapse(windows, whole, config(), "nothing is left")]:
            steps.append(i)
    return steps


def test_a_return_that_is_lost_for_two_windows() -> None:
    assert told_steps([0.1, 0.5, 0.98, 0.97, 0.5, 0.5, 0.5]) == [6, 7]


@pytest.mark.parametrize(
    "returns",
    [
        [0.1, 0.5, 0.98, 0.6, 0.98, 0.3, 0.98],  # one window is no collapse
        [0.1, 0.98, 0.6, 0.6, 0.6],  # less than half is lost
        [0.9, 0.98, 0.8, 0.8, 0.8],  # less than the luck of episodes
        [0.5, 0.1, 0.1, 0.1],  # nothing was learnt, but much is lost from the first window on
    ][:3],
)
def test_returns_that_vary_are_not_lost(returns: list[float]) -> None:
    assert told_steps(returns) == []


def test_windows_with_few_episodes_say_nothing() -> None:
    assert told_steps([0.1, 0.98, 0.0, 0.0], episodes=9.0) == []


class Forgets(Callback):
    """Makes all weights of the network random after two thirds of a run."""

    def on_update_end(self, trainer: Any, metrics: dict[str, float]) -> None:
        if trainer.state.step == 4096:
            for parameter in trainer.state.agent.parameters():
                parameter.data.mul_(0.0)
            trainer.config.optim.lr = 0.0


@pytest.mark.slow
def test_the_newest_save_before_a_collapse_is_named(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    benchmark: Any,
) -> None:
    monkeypatch.setattr(notices, "LEAST_WINDOW", 512)
    settings = ["total_timesteps=6144", "rollout.num_envs=64", "rollout.steps=8", "optim.bs=64"]
    settings += ["rollout.processes=1", "optim.lr=0.01", "optim.anneal_lr=false", "ppo.ent_coef=0"]
    settings += [
        "net.d_model=16",
        "net.n_layer=1",
        "checkpoint.every_seconds=0",
        "checkpoint.keep=99",
    ]
    manager = StateManager(overrides=settings, checkpoint_dir=tmp_path / "run")
    world = partial(benchmark("symptom_worlds").Marked, shown=True)
    train(manager, world, callbacks=[Forgets()])
    (line,) = [one for one in capsys.readouterr().out.splitlines() if "what was learnt" in one]
    assert f"{tmp_path / 'run' / 'step-000000004096'} is from before" in line
