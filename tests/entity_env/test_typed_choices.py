"""What a person types, and what is made of it."""

import pytest

from entity_env.typed_choices import (
    HELP,
    Choice,
    NotUnderstood,
    Question,
    Quit,
    ask_actors,
    ask_line,
)


def question(
    *labels: str, illegal: tuple[str, ...] = (), probs: list[float] | None = None
) -> Question:
    """Choices by label; those of `illegal` come last and are not allowed."""
    choices = [
        Choice(i, label, label, prob=None if probs is None else probs[i])
        for i, label in enumerate(labels)
    ]
    return Question("move", "Robot 0", choices, list(illegal))


MOVES = question("Up", "Down", "Left", "Leap", "Defuse Mines", illegal=("Right",))
TARGETS = Question(
    "fire",
    "",
    [
        Choice(0, "Mine 0", "Mine 0"),
        Choice(1, "Mine 1", "Mine 1"),
        Choice(3, "Unit boss", "boss", "hp 3"),
    ],
    [],
)
NUMBERED = Question(
    "pick", "", [Choice(0, "Fruit 7", "7"), Choice(1, "Fruit 2", "2"), Choice(2, "Nut b", "b")], []
)


@pytest.mark.parametrize(
    ("asked", "text", "index"),
    [
        (MOVES, "1", 0),
        (MOVES, "5", 4),
        (MOVES, "Up", 0),
        (MOVES, "up", 0),
        (MOVES, "u", 0),
        (MOVES, "def", 4),
        (MOVES, "defuse mines", 4),
        (MOVES, "lef", 2),
        (TARGETS, "1", 0),
        (TARGETS, "4", 3),
        (TARGETS, "Mine 1", 1),
        (TARGETS, "boss", 3),
        (TARGETS, "b", 3),
        (TARGETS, "unit", 3),
        (NUMBERED, "7", 0),
        (NUMBERED, "2", 1),
        (NUMBERED, "Fruit 2", 1),
        (NUMBERED, "b", 2),
    ],
)
def test_choice_is_found(asked: Question, text: str, index: int) -> None:
    assert asked.find(text).index == index


@pytest.mark.parametrize(
    ("asked", "text", "message"),
    [
        (MOVES, "6", "move, Robot 0: expected 1, 2, 3, 4, 5 or a name, got '6'"),
        (MOVES, "le", "'le' could be Left, Leap"),
        (MOVES, "right", "Right is not allowed now"),
        (MOVES, "jump", "got 'jump'"),
        (MOVES, "-1", "got '-1'"),
        (TARGETS, "3", "fire: expected 1, 2, 4 or a name, got '3'"),
        (TARGETS, "mine", "could be Mine 0, Mine 1"),
        (NUMBERED, "1", "pick: expected 7, 2, b or a name, got '1'"),
        (NUMBERED, "0", "got '0'"),
        (question("10", "11"), "1", "expected 10, 11"),
        (question(*[f"l{i}" for i in range(20)]), "x", "expected 1 to 20"),
    ],
)
def test_what_is_not_understood_is_one_line(asked: Question, text: str, message: str) -> None:
    with pytest.raises(NotUnderstood) as caught:
        asked.find(text)
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


def test_ids_that_cannot_be_told_apart_are_numbered() -> None:
    same = Question("pick", "", [Choice(0, "A 1", "1"), Choice(1, "B 1", "1")], [])
    assert same.keys == ["1", "2"]
    assert same.find("2").index == 1
    assert same.find("B 1").index == 1


def play(questions: list[Question], *typed: str) -> tuple[list[int], list[str]]:
    lines = iter(typed)
    shown: list[str] = []
    chosen = ask_actors(questions, lambda prompt: next(lines), shown.append)
    assert next(lines, None) is None
    return chosen, shown


def test_actors_are_asked_one_by_one_or_all_at_once() -> None:
    three = [MOVES, MOVES, MOVES]
    assert play(three, "1", "down", "3")[0] == [0, 1, 2]
    assert play(three, "1 down 3")[0] == [0, 1, 2]
    assert play(three, "1, 2, 3")[0] == [0, 1, 2]
    assert play(three, "defuse mines", "1 2")[0] == [4, 0, 1]
    assert play(three, "* 2")[0] == [1, 1, 1]
    assert play(three, "1", "*defuse mines")[0] == [0, 4, 4]
    assert play([], *[])[0] == []


def test_number_means_the_same_for_every_actor() -> None:
    corner = Question("move", "Robot 1", MOVES.choices[2:], ["Up", "Down"])
    assert play([MOVES, corner], "* 5")[0] == [4, 4]
    assert play([MOVES, corner], "* 1", "3 3")[0] == [2, 2]


def test_bad_input_is_asked_again_and_changes_nothing() -> None:
    chosen, shown = play([MOVES, MOVES], "x", "1 2 3", "* x", "1 x", "", "*", "2", "1")
    assert chosen == [1, 0]
    lists = [text for text in shown if "\n" in text]
    complaints = [text for text in shown if "\n" not in text]
    assert len(lists) == 2
    assert len(complaints) == 6
    assert "expected one choice or 2, got 3" in complaints[1]
    assert "type a choice, or ? for help" in complaints[4]


def test_nothing_takes_what_the_agent_finds_most_probable() -> None:
    first, second = question("a", "b", probs=[0.2, 0.8]), question("a", "b", probs=[0.6, 0.4])
    chosen, shown = play([first, second], "", "")
    assert chosen == [1, 0]
    assert shown[0] == "move, Robot 0:\n  1) a  20.0%   2) b  80.0% <- Enter"
    assert play([first, second], "*")[0] == [1, 0]
    assert play([first, second], "1 1")[0] == [0, 0]


def test_help_and_quitting() -> None:
    lines = iter(["?", " q "])
    shown: list[str] = []
    with pytest.raises(Quit):
        ask_line("> ", lambda prompt: next(lines), shown.append)
    assert shown == [HELP]


def test_long_lists_are_broken_and_details_stand_alone() -> None:
    lines = question(*[f"label{i}" for i in range(30)]).listed().split("\n")
    assert max(map(len, lines)) <= 84
    assert len(lines) < 8
    assert TARGETS.listed() == "fire:\n  1) Mine 0\n  2) Mine 1\n  4) Unit boss  (hp 3)"
    assert NUMBERED.listed() == "pick:\n  7) Fruit 7   2) Fruit 2   b) Nut b"
