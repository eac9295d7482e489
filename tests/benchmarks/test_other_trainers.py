"""What `benchmarks/other_trainers.py` compares: the same worlds, counted in the same way."""

from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from entity_env import EnvList
from tests.entity_env.builders import assert_same, play

WORLD = "Foraging-5x5-2p-1f-v3"


def nothing(obs: npt.NDArray[np.float32]) -> npt.NDArray[np.int64]:
    return np.zeros(len(obs), dtype=np.int64)


def test_players_of_a_match_are_adjacent_and_end_together(benchmark: Any) -> None:
    worlds = benchmark("flat_foraging").FlatForaging(WORLD, 6, seed=3)
    assert (worlds.sides, worlds.num_actions, worlds.obs.shape) == (2, 6, (6, 9))
    before = worlds.obs
    steps = 0
    while not (outcome := worlds.step(nothing(worlds.obs))).ends.any():
        np.testing.assert_array_equal(outcome.last, before)  # nobody moves
        steps += 1
    assert steps == 49  # of 50, after which this world says that it terminated
    assert outcome.ends.all()
    assert not outcome.truncated.any()
    assert not outcome.rewards.any()
    np.testing.assert_array_equal(outcome.last, before)
    assert (worlds.obs != before).any()  # other episodes begin
    assert np.abs(worlds.obs).max() <= 1


@pytest.mark.slow
def test_native_match_equals_the_adapter(benchmark: Any) -> None:
    """Frames, masks, rewards and ends of whole episodes that are played in the same way."""
    env_id = "Foraging-6x6-3p-2f-v3"
    through_adapters = benchmark("foraging").foraging(env_id)
    by_itself = benchmark("foraging_match").Foraging.of(env_id)
    shown, expected = (play(EnvList(kind, 12), 120) for kind in (by_itself, through_adapters))
    for one, other in zip(shown, expected, strict=True):
        assert_same(one, other)
    assert sum(int(obs.done.sum()) for obs in expected) > 12
    assert sum(np.count_nonzero(obs.reward) for obs in expected) > 5


def test_env_id_without_number_of_players_is_rejected(benchmark: Any) -> None:
    with pytest.raises(ValueError, match=r"env.id: expected one such as .* got 'Foraging-8x8-v3'"):
        benchmark("foraging_match").Foraging.of("Foraging-8x8-v3")


def test_partially_observed_environment_is_rejected(benchmark: Any) -> None:
    with pytest.raises(ValueError, match=r"expected an environment with full observability"):
        benchmark("foraging_match").Foraging("Foraging-2s-8x8-2p-2f-v3")


def test_mean_return_sums_players_and_is_deterministic(benchmark: Any) -> None:
    flat = benchmark("flat_foraging")

    def at_random(seed: int) -> float:
        rng = np.random.default_rng(0)
        worlds = flat.FlatForaging(WORLD, 16, seed)
        result: float = flat.mean_return(worlds, lambda obs: rng.integers(6, size=len(obs)), 2)
        return result

    assert flat.mean_return(flat.FlatForaging(WORLD, 4, seed=1), nothing, 1) == 0
    assert 0 < at_random(1) == at_random(1) <= 1


@pytest.mark.slow
def test_reference_ppo_learns(benchmark: Any) -> None:
    flat, ppo = benchmark("flat_foraging"), benchmark("mlp_ppo")
    settings = ppo.Settings(32, 512, 4, 0.002, 0.97, 0.95, 0.2, 0.02, 0.5, 0.5)
    learner = ppo.MlpPPO(flat.FlatForaging(WORLD, 64, seed=1), 32, settings, seed=1)

    def result() -> float:
        worlds = flat.FlatForaging(WORLD, 64, seed=10_000)
        mean: float = flat.mean_return(worlds, learner.choose, 2)
        return mean

    before = result()
    assert sum(learner.update() for _ in range(16)) == 16 * 32 * 64
    assert before < 0.6
    assert result() > before + 0.2


def test_sb3_row_is_skipped_without_sb3(
    benchmark: Any, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    other = benchmark("other_trainers")
    run = {"parameters": 5, "frames_per_s": 9.0, "reached": None, "result": 0.25}
    monkeypatch.setattr(other, "run_in_process", lambda *_: run)
    monkeypatch.setattr("sys.argv", ["other_trainers.py", "--sb3", "/bin/false", "--seeds", "1"])
    other.main()
    out = capsys.readouterr().out
    assert "stable-baselines3 is skipped: /bin/false cannot import it" in out
    assert "| enn-trainer | 5 | 9 (9-9) | not (0.25) | not (0.25) |" in out


def test_our_trainer_is_measured_with_one_process_and_one_per_core(
    benchmark: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = benchmark("other_trainers")
    learner = other.Learner(5, lambda: 8, lambda: 1.0)
    asked: list[int] = []

    def ours(seed: int, folder: str, processes: int = 1, adapter: bool = False) -> Any:
        asked.append(other.manager_of(seed, folder, processes).config.rollout.processes)
        return learner

    monkeypatch.setattr(other, "ours", ours)
    monkeypatch.setattr(other, "CORES", 2)
    for name in ("ours", "workers", "adapter"):
        assert other.run(name, 1, 10.0)["reached"]["frames"] == 8 * other.BETWEEN_EVALS
    assert asked == [1, 2, 2]
