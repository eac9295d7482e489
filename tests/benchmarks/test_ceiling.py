"""What `benchmarks/ceiling.py` measures and says."""

from pathlib import Path
from typing import Any

import pytest

from enn_trainer import StateManager

SETTINGS = ["env.id=Minefield", "rollout.num_envs=4", "rollout.steps=4", "optim.bs=8"]
SETTINGS += ["net.d_model=8", "net.n_layer=1"]


@pytest.fixture
def found() -> dict[str, dict[str, float]]:
    """What was measured of a case that could reach 2e6 / (10 + 90) frames/s."""
    train = {"frames_s": 5000.0, "cores": 1.0, "overhead": 0.2, "act": 0.6, "logging": 0.001}
    return {
        "environments": {"env_us": 10.0},
        "torch": {"us": 190.0},
        "compiled": {"us": 90.0},
        "train": train,
    }


def test_all_cases_are_configurations(benchmark: Any) -> None:
    ceiling = benchmark("ceiling")
    for case, settings in ceiling.CASES.items():
        assert StateManager(overrides=settings).config.net.d_model == ceiling.width(case)


def test_environments_and_network_are_measured(benchmark: Any) -> None:
    measure = benchmark("ceiling_measure")
    assert measure.environments(SETTINGS, 0.01)["env_us"] > 0
    once = measure.network([*SETTINGS, "optim.update_epochs=1"], 0.01)
    assert once["us"] == pytest.approx(once["act_us"] + once["learn_us"])
    assert min(once["learn_us"], once["act_us"]) > 0


@pytest.mark.slow
def test_shares_of_training_add_up(benchmark: Any) -> None:
    found = benchmark("ceiling_measure").train([*SETTINGS, "rollout.processes=2"], 0.05)
    told = {
        name: share for name, share in found.items() if name not in benchmark("ceiling").NO_SHARES
    }
    assert sum(told.values()) == pytest.approx(1)
    passes = [told[name] for name in ("env", "act", "forward", "backward")]
    assert min(passes) > 0
    assert found["overhead"] == pytest.approx(1 - sum(passes))
    assert found["frames_s"] > 0


def test_ceiling_counts_only_environments_and_network(benchmark: Any, found: Any) -> None:
    ceiling = benchmark("ceiling")
    assert ceiling.floor_row("minefield", found) == (
        "| minefield | 32 | 10.0 | 190.0 | 90.0 | - | 10,000 | 20,000 | - |"
    )
    assert ceiling.train_row("minefield", found) == (
        "| minefield | 5,000 | 0.25 | 1.00 | 200.0 | 0.50 | 20.0% (promised: 15%) |"
    )
    assert ceiling.shares("minefield", found["train"]) == "- minefield: act 60.0%"


def test_narrow_networks_have_no_overhead_limit(benchmark: Any, found: Any) -> None:
    assert "promised" not in benchmark("ceiling").train_row("xor", found)


def test_an_unknown_case_is_an_error(
    benchmark: Any, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("sys.argv", ["ceiling.py", "xor", "chess"])
    with pytest.raises(SystemExit):
        benchmark("ceiling").main()
    assert "pick_matching_balls, got chess" in capsys.readouterr().err


def test_the_report_has_medians_of_all_repeats(
    benchmark: Any, found: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    ceiling, path = benchmark("ceiling"), tmp_path / "ceiling.md"
    faster = {**found, "train": {**found["train"], "frames_s": 7000.0}}
    repeats = iter([found, faster])
    monkeypatch.setattr(ceiling, "measured", lambda case, seconds: next(repeats))
    monkeypatch.setattr(ceiling, "INSTRUCTIONS", "x86-64-v4")
    monkeypatch.setattr("sys.argv", ["ceiling.py", "minefield", "--results", str(path)])
    ceiling.main()
    text = path.read_text()
    assert "| minefield | 6,000 | 0.30 |" in text
    assert ceiling.floor_row("minefield", found) in text
    assert text.endswith("- minefield: act 60.0%\n")
