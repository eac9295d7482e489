"""`benchmarks/panel.py`: rows, settings and scores of the panel."""

from typing import Any

import pytest

from enn_trainer import StateManager


@pytest.fixture
def panel(benchmark: Any) -> Any:
    return benchmark("panel")


def test_every_row_can_be_trained_with_all_settings(panel: Any) -> None:
    """With a number of environments that its sides divide, and schedules that end with the run."""
    assert len(panel.BY_NAME) == len([*panel.ROWS, *panel.HELD_OUT])
    for row in panel.BY_NAME.values():
        assert row.score(row.random) == 0
        assert row.score(row.bar) == row.score(2 * row.bar - row.random) == 1
        for settings in panel.SETTINGS.values():
            config = StateManager(overrides=[*row.needs, *settings.of(row)]).config
            assert config.rollout.num_envs % row.sides == 0
            assert settings.num_envs - row.sides < config.rollout.num_envs <= settings.num_envs
            assert "{" not in str(config.ppo.ent_coef)
    row = panel.BY_NAME["CartPole"]
    falls = panel.SETTINGS["scaled, 32 x 64, entropy falls"].of(row)
    assert "ppo.ent_coef=step: 0.2@0 lin 0.02@20000 lin 0@50000" in falls


def test_run_is_evaluated_and_reported(panel: Any) -> None:
    xor = panel.BY_NAME["Xor"]._replace(frames=2048)
    result = panel.run(xor, "defaults", 3)
    assert result["frames"] == 2048
    assert all(0 <= result[how] <= 1 for how in ("sampled", "greedy"))
    assert result["processor_seconds"] > 0
    page = panel.document([result])
    assert f"| Xor | 2,048 | 0.498 | 1 | defaults | 3: {result['sampled']:.4g} |" in page
    score = xor.score(result["sampled"])
    assert f"| Xor | {score:.2f}, least {score:.2f} |\n" in page
    assert f"| mean | {score:.3f} of 1 |" in page
    assert "## Search" in page
    assert "## Report" not in page


def test_lost_result_is_reported(panel: Any) -> None:
    """Of a run of three times the frames, by its own episodes or by evaluations."""
    for name in ("Xor", "Duel"):
        row = panel.BY_NAME[name]._replace(frames=1400)
        result = panel.run(row, panel.LONG, 1)
        assert len(result["tenths"]) == 10
        assert 0 <= result["tenths"][-1] <= 1
    lost = {**result, "row": "Duel", "tenths": [0.5, 0.9, float("nan"), 0.483]}
    assert "| Duel | 1 |" in (page := panel.document([lost]))
    assert "| 0.9 | 0.483 | 0.000 |" in page


def test_deciding_environment_is_named(panel: Any) -> None:
    """Settings of which one is better everywhere but in the first environment."""

    def result(row: Any, settings: str, score: float, seed: int) -> dict[str, Any]:
        sampled = row.random + score * (row.bar - row.random)
        about = {"row": row.name, "settings": settings, "seed": seed, "frames": 1}
        return {**about, "sampled": sampled, "greedy": sampled, "processor_seconds": 1.0}

    first = panel.ROWS[0]
    results = [
        result(row, name, (0.7 if row is first else rest) if name == "defaults" else other, seed)
        for seed in (1, 11)
        for row in panel.ROWS
        for name, rest, other in (("defaults", 0.8, 0), ("no floor", 0, 0.5 if row is first else 1))
    ]
    page = panel.document(results)
    for title in ("## Report", "## Search"):
        part = page.split(title)[1].split("\n## ")[0]
        assert "| none | defaults | 0.794 | 0.794 |" in part
        assert f"| {first.name} | no floor | 1.000 | 0.800 |" in part
        assert part.count("| no floor |") == 1 + 1  # in the head of the scores
