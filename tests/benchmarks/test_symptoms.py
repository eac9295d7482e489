"""Examples of `docs/it-does-not-learn.md`: complete, and equal to the committed runs."""

import re
from pathlib import Path
from typing import Any

import pytest

from enn_trainer import StateManager

RESULTS = Path(__file__).parents[2] / "benchmarks/results"
PAGE = Path(__file__).parents[2] / "docs/it-does-not-learn.md"


@pytest.fixture
def symptoms(benchmark: Any) -> Any:
    return benchmark("symptoms")


@pytest.fixture
def kept(symptoms: Any) -> Any:
    return symptoms.read_kept(RESULTS / "symptoms.jsonl")


def test_every_section_about_a_symptom_has_an_example(symptoms: Any) -> None:
    sections = re.findall(r"^### (.*?)$(.*?)(?=^##|\Z)", PAGE.read_text(), re.M | re.S)
    headings = [heading.lower().replace(" ", "-") for heading, _ in sections]
    assert headings == list(symptoms.BY_NAME)
    for name, (_, text) in zip(headings, sections, strict=True):
        (shown,) = re.findall(r"<!-- run: (.*?) -->\n(.+?)\n<!-- end of run -->", text, re.S)
        assert shown[0] == name
        assert "| --- |" in shown[1]
    assert "<!-- committed run" not in PAGE.read_text()


def test_page_matches_the_committed_runs(symptoms: Any, kept: Any) -> None:
    page = PAGE.read_text()
    assert symptoms.with_examples(page, kept) == page
    assert symptoms.picture(kept) == (RESULTS / "symptoms.svg").read_text()
    written, expected = (
        [line for line in text.splitlines() if line.startswith("|")]
        for text in ((RESULTS / "symptoms.md").read_text(), symptoms.table(kept))
    )
    assert written == expected


def test_another_result_changes_the_page(symptoms: Any, kept: Any) -> None:
    page = PAGE.read_text()
    for result in kept:
        metric, before = next(iter(result["metrics"].items()))
        result["metrics"][metric] = 12345.0
        assert symptoms.with_examples(page, kept) != page
        result["metrics"][metric] = before


def test_no_seed_learns_with_the_fault_and_all_learn_without(symptoms: Any, kept: Any) -> None:
    for symptom in symptoms.SYMPTOMS:
        faulty, *_, cured = (
            symptoms.results_of_case(kept, symptom, case) for case in symptom.cases
        )
        assert [result["seed"] for result in faulty] == [1, 2, 3]
        assert symptoms.reached(faulty, symptom) == "0 of 3", symptom.name
        assert symptoms.reached(cured, symptom) == "3 of 3", symptom.name


def test_runs_have_unique_names_and_valid_settings(symptoms: Any, kept: Any) -> None:
    named = [(s.name, symptoms.label(s, case)) for s in symptoms.SYMPTOMS for case in s.cases]
    assert len(set(named)) == len(named)
    done = [(result["symptom"], result["case"], result["seed"]) for result in kept]
    assert len(set(done)) == len(done)
    assert {(symptom, case) for symptom, case, _ in done} == set(named)
    for symptom in symptoms.SYMPTOMS:
        for case in symptom.cases:
            StateManager(overrides=symptoms.settings(symptom, case, 1))


def test_columns_average_the_last_or_first_updates(symptoms: Any) -> None:
    updates: list[dict[str, Any]] = [{"step": i, "x": i} for i in range(40)]
    updates[37]["x"] = "nan"
    del updates[2]["x"]
    assert symptoms.column(updates, "x") == pytest.approx((36 + 38 + 39) / 3)
    assert symptoms.column(updates, "first x") == pytest.approx((0 + 1 + 3) / 3)
    assert symptoms.column(updates, "y") is None


@pytest.mark.slow
def test_symptom_and_fix_are_reproduced(symptoms: Any) -> None:
    symptom = symptoms.BY_NAME["frames-without-actors"]
    faulty, cured = (symptoms.run(symptom, case, seed=1) for case in symptom.cases)
    assert symptoms.reached([faulty], symptom) == "0 of 1"
    assert symptoms.reached([cured], symptom) == "1 of 1"
    assert any(symptom.name in notice for notice in faulty["notices"])
    assert cured["notices"] == []
