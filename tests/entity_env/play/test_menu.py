"""Numbered menus: typed lines and the choices that they mean."""

import numpy as np
import pytest

from entity_env.play.menu import HELP, Menu, Quit, ask_line


def menu(
    *labels: str, actors: int = 1, illegal: tuple[str, ...] = (), probs: list[float] | None = None
) -> Menu:
    """A menu of labels; those in `illegal` come last."""
    choices = [(label, "") for label in (*labels, *illegal)]
    legal = np.array([[True] * len(labels) + [False] * len(illegal)] * actors)
    given = None if probs is None else np.array([probs] * actors, dtype=np.float32)
    return Menu([f"move, Robot {i}" for i in range(actors)], choices, legal, given, [])


MOVES = menu("Up", "Down", "Left", "Leap", "Defuse Mines", actors=3, illegal=("Right",))
TARGETS = Menu(
    ["fire"],
    [("Mine 0", ""), ("Mine 1", ""), ("Mine 2", ""), ("Unit boss", "hp 3")],
    np.array([[True, True, False, True]]),
    None,
    [],
)


@pytest.mark.parametrize(
    ("asked", "text", "choice"), [(MOVES, "1", 0), (MOVES, "5", 4), (TARGETS, "4", 3)]
)
def test_number_is_that_of_the_list(asked: Menu, text: str, choice: int) -> None:
    assert asked.find(text, 0) == choice


@pytest.mark.parametrize(
    ("asked", "text", "message"),
    [
        (MOVES, "6", "move, Robot 0: expected 1, 2, 3, 4, 5, got '6'"),
        (MOVES, "0", "got '0'"),
        (MOVES, "-1", "got '-1'"),
        (MOVES, "Up", "got 'Up'"),
        (MOVES, "", "got nothing; ? for help"),
        (TARGETS, "3", "fire: expected 1, 2, 4, got '3'"),
        (menu(*[f"l{i}" for i in range(20)]), "x", "expected 1 to 20"),
    ],
)
def test_bad_input_is_a_message_of_one_line(asked: Menu, text: str, message: str) -> None:
    with pytest.raises(ValueError, match="expected") as caught:
        asked.find(text, 0)
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


def play(asked: Menu, *typed: str) -> tuple[list[int], list[str]]:
    lines = iter(typed)
    shown: list[str] = []
    chosen = asked.ask("move", lambda prompt: next(lines), shown.append)
    assert next(lines, None) is None
    return chosen, shown


def test_actors_are_asked_one_by_one_or_several_at_once() -> None:
    assert play(MOVES, "1", "2", "3")[0] == [0, 1, 2]
    assert play(MOVES, "1 2 3")[0] == [0, 1, 2]
    assert play(MOVES, "5", "1 2")[0] == [4, 0, 1]
    assert play(MOVES, "1 2", "3")[0] == [0, 1, 2]
    assert play(MOVES, "* 2")[0] == [1, 1, 1]
    assert play(MOVES, "1", "*5")[0] == [0, 4, 4]
    assert play(menu("Up", actors=0))[0] == []


def test_number_means_the_same_for_every_actor() -> None:
    two = Menu(["a", "b"], [(x, "") for x in "uvw"], np.array([[1, 1, 1], [0, 0, 1]]) > 0, None, [])
    assert play(two, "* 3")[0] == [2, 2]
    assert play(two, "* 1", "3 3")[0] == [2, 2]


def test_bad_input_is_asked_again_and_changes_nothing() -> None:
    two = menu("Up", "Down", actors=2)
    chosen, shown = play(two, "x", "1 2 1", "* x", "1 x", "", "*", "2", "1")
    assert chosen == [1, 0]
    lists = [text for text in shown if "\n" in text]
    complaints = [text for text in shown if "\n" not in text]
    assert len(lists) == 2
    assert len(complaints) == 6
    assert "expected at most 2 choices, got 1 2 1" in complaints[1]
    assert "got nothing; ? for help" in complaints[4]


def test_nothing_takes_the_most_probable_choice_of_the_agent() -> None:
    choices = [("a", ""), ("b", "")]
    probs = np.array([[0.2, 0.8], [0.6, 0.4]], dtype=np.float32)
    two = Menu(["move, Robot 0", "move, Robot 1"], choices, probs > 0, probs, [])
    chosen, shown = play(two, "", "")
    assert chosen == [1, 0]
    assert shown[0] == "move, Robot 0:\n  1) a  20.0%   2) b  80.0% <- Enter"
    assert play(two, "*")[0] == [1, 0]
    assert play(two, "1 1")[0] == [0, 0]


def test_illegal_choice_is_never_the_most_probable() -> None:
    legal = np.array([[False, True, True]])
    probs = np.zeros((1, 3), dtype=np.float32)
    assert Menu(["x"], [(c, "") for c in "abc"], legal, probs, []).find("", 0) == 1


def test_help_and_quitting() -> None:
    lines = iter(["?", " q "])
    shown: list[str] = []
    with pytest.raises(Quit):
        ask_line("> ", lambda prompt: next(lines), shown.append)
    assert shown == [HELP]


def test_long_lists_are_broken_and_features_stand_alone() -> None:
    lines = menu(*[f"label{i}" for i in range(30)]).listed(0).split("\n")
    assert max(map(len, lines)) <= 84
    assert len(lines) < 9
    assert TARGETS.listed(0) == "fire:\n  1) Mine 0\n  2) Mine 1\n  4) Unit boss  (hp 3)"
    assert "5) Defuse Mines" in MOVES.listed(0)
