"""The report of a search: table, importance, best configuration, plots."""

import csv
import json

import pytest

from enn_trainer.config import TrainConfig
from enn_trainer.config.load import load_config
from enn_trainer.tuning.report import importances, lines, table, with_comments, write_report
from enn_trainer.tuning.study import Study
from tests.enn_trainer.tuning.builders import reopened, toy_plan, toy_search

pytest.importorskip("optuna", reason="the extra tune is not installed")


@pytest.fixture(scope="module")
def study(tmp_path_factory: pytest.TempPathFactory) -> Study:
    """A search of two settings, one without an effect, with a failed trial."""
    ranges = {"ppo.ent_coef": "uniform 0 5", "net.d_model": "choice 16 32"}
    folder = tmp_path_factory.mktemp("report") / "s"
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("STUB", json.dumps({"fails": [3]}))
        toy_search(folder, toy_plan(ranges=ranges, seeds=2), trials=9, confirm=2)
    return reopened(folder)


def test_the_table_has_settings_score_seeds_frames_and_state(study: Study) -> None:
    rows = table(study)
    assert [row["trial"] for row in rows] == [*range(9)]
    assert rows[0] | {"seconds": 0} == {
        "trial": 0,
        "state": "complete",
        "score": pytest.approx(-3.24),
        "standard error": 0.0,
        "seeds": 2,
        "fresh score": pytest.approx(-3.24),
        "fresh standard error": 0.0,
        "frames": 800,
        "seconds": 0,
        "ppo.ent_coef": 0.2,
        "net.d_model": 32,
        "reason": "",
    }
    assert (rows[3]["state"], rows[3]["reason"]) == ("fail", "no space left on device")
    with (study.folder / "trials.csv").open() as file:
        assert [row["trial"] for row in csv.DictReader(file)] == [*map(str, range(9))]


def test_the_setting_with_an_effect_is_more_important(study: Study) -> None:
    shares = importances(study)
    assert shares["ppo.ent_coef"] > shares["net.d_model"]
    assert sum(shares.values()) == pytest.approx(1)


def test_the_best_configuration_has_comments_and_trains(study: Study) -> None:
    text = (study.folder / "best.ron").read_text()
    assert "        // searched: uniform 0 5; importance " in text
    best = load_config(TrainConfig, study.folder / "best.ron")
    params = study.optuna.best_trial.params
    assert (best.ppo.ent_coef, best.trial) == (params["ppo.ent_coef"], None)
    assert [*lines(study)][-1] == f"enn train --config {study.folder / 'best.ron'}"


def test_comments_stand_above_the_field_of_their_section() -> None:
    lines_of = ["C(", "    lr: 1,", "    net: N(", "        lr: 2,", "    ),", "    optim: O("]
    text = "\n".join([*lines_of, "        lr: 3,", "    ),", ")", ""])
    commented = with_comments(text, {"optim.lr": "three", "lr": "one"})
    assert commented == text.replace("    lr: 1", "    // one\n    lr: 1").replace(
        "        lr: 3", "        // three\n        lr: 3"
    )


def test_the_report_is_a_page_with_plots(study: Study) -> None:
    pytest.importorskip("matplotlib")
    (study.folder / "history.png").unlink()
    write_report(study)
    page = (study.folder / "report.md").read_text()
    assert page.startswith(
        "# Search for eval/episodic_reward.mean max\n\nbest on 2 fresh seeds: trial"
    )
    assert "| `net.d_model` | choice 16 32 | 0." in page
    for name in ("history.png", "slices.png"):
        assert (study.folder / name).read_bytes().startswith(b"\x89PNG")
