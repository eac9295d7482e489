"""Playing by hand: typed numbers reach the environment, the display and the recording."""

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from entity_env import (
    Action,
    EntityEnvError,
    Environment,
    Match,
    Observation,
    batch_obs,
)
from entity_env.examples import (
    ENV_REGISTRY,
    CherryPick,
    Count,
    Duel,
    MineSweeper,
    RockPaperScissors,
    Shells,
    TreasureHunt,
)
from entity_env.play.game import Agent, play_by_hand
from entity_env.play.menus import HELP, Menu, Quit, ask_line
from entity_env.recording.read_recording import Episode, Recording
from entity_env.testing import DelayedIdentity, PickTheMarked
from entity_env.testing.random_play import random_choices
from entity_env.vec.batching import unbatch_actions
from entity_env.vec.vec_env import VecSelectEntityActionMask
from tests.entity_env.builders import check_probabilities
from tests.entity_env.play.hand_play import Spied, typing
from tests.entity_env.worlds import Bidding, Walk

CHOICE = re.compile(r"(?:^  |   )(\d+)\) (\S+(?: \S+)*)", re.MULTILINE)


class Person:
    """Types the numbers of listed legal choices, and stores their names."""

    def __init__(self, seed: int = 0) -> None:
        self.rng = np.random.default_rng(seed)
        self.output: list[str] = []
        self.meant: list[str] = []

    def show(self, text: str) -> None:
        self.output.append(text)

    def ask(self, prompt: str) -> str:
        self.output.append(prompt)
        if "Enter" in prompt:
            return ""
        listed = next(t for t in reversed(self.output) if CHOICE.search(t))
        choices = CHOICE.findall(listed)
        key, name = choices[self.rng.integers(len(choices))]
        self.meant.append(name)
        return str(key)


def nothing(text: str) -> None:
    pass


# Numbers, and parts that depend on each other, have tests of their own.
LISTED = [
    n for n, w in ENV_REGISTRY.items() if not any(a.components for a in w().action_space().values())
]
INDEPENDENT = [
    n for n in LISTED if not any(a.after for a in ENV_REGISTRY[n]().action_space().values())
]


@pytest.mark.parametrize("name", LISTED)
def test_every_environment_can_be_played_and_recorded(name: str, tmp_path: Path) -> None:
    person, spied = Person(), Spied(ENV_REGISTRY[name])
    steps = 0

    def ask(prompt: str) -> str:
        nonlocal steps
        steps += 1
        if steps > 30:
            raise EOFError
        return person.ask(prompt)

    path = tmp_path / "file"
    played = play_by_hand(spied, ask, person.show, seed=1, episodes=3, record=path)
    assert spied.closed == 1
    names = list(spied.names())
    meant = person.meant[: len(names)]  # of the step that was not finished nothing happened
    assert len(names) > 0
    for got, expected in zip(names, meant, strict=True):
        assert expected == got or expected.endswith(f" {got}")
    assert not [text for text in person.output if "expected" in text or "could be" in text]
    recording = Recording.open(path)
    assert recording.complete
    assert len(list(recording.steps())) == len(spied.action_log)
    ended = [e for e in recording.episodes() if e.ending in ("terminated", "truncated")]
    returns = [e.episodic_reward for e in ended]
    assert returns == pytest.approx([r for episode in played for r in episode.returns])


def actions_of(path: Path) -> list[dict[str, list[int]]]:
    """Return the recorded actions of each step."""
    return [
        {name: chosen.values.tolist() for name, chosen in step.decisions.actions.items()}
        for step in Recording.open(path).steps()
    ]


def test_recorded_choices_match_the_input(tmp_path: Path) -> None:
    """Includes several actors, masks, and labels that are numbers."""
    path = tmp_path / "file"

    def sweeper() -> MineSweeper:
        return MineSweeper(orbital_cannon=True, cooldown_period=1)

    spied = Spied(sweeper)
    typed = ["5", "5", "* 5", "7", "q"]
    play_by_hand(spied, typing(*typed), nothing, seed=2, record=path)
    assert actions_of(path) == [
        {"Move": [4, 4], "Fire Orbital Cannon": []},
        {"Move": [4, 4], "Fire Orbital Cannon": [6]},  # five mines, then the robots
    ]
    assert spied.action_log[1]["Fire Orbital Cannon"].actees == [("Robot", 1)]
    assert list(spied.action_log[1]["Move"].actors) == [("Robot", 0), ("Robot", 1)]
    answer: list[str] = []
    world = Count()

    def say(prompt: str) -> str:
        answer.append(str(world.count))
        return str(world.count + 1)  # the labels begin with 0

    played = play_by_hand(lambda: world, say, nothing, episodes=4, record=tmp_path / "count")
    assert [episode.returns for episode in played] == [[1.0]] * 4
    assert [a["count"] for a in actions_of(tmp_path / "count")] == [[int(a)] for a in answer]


def test_select_entity_action_has_the_entity_id() -> None:
    spied = Spied(PickTheMarked)
    play_by_hand(spied, typing("3"), nothing, episodes=1)
    assert spied.action_log[0]["pick"].actees == [2]
    spied = Spied(Duel)
    play_by_hand(spied, typing("1 2 3 4", "* 3", "* 3", "q"), nothing)
    first, second = spied.action_log[0]
    assert (list(first["attack"].actors), first["attack"].actees) == ([0, 1, 2, 3], [4, 5, 6, 7])
    assert (list(second["attack"].actors), second["attack"].actees) == ([4, 5, 6, 7], [2] * 4)


def test_invalid_input_is_asked_again() -> None:
    output: list[str] = []
    spied = Spied(TreasureHunt)
    play_by_hand(spied, typing("nonsense", "99", "", "* ?", "1", "q"), output.append, seed=0)
    assert len(spied.action_log) == 1
    assert sum("got 'nonsense'" in text for text in output) == 1
    assert sum("got nothing; ? for help" in text for text in output) == 1


@pytest.mark.parametrize("ending", ["q", EOFError, KeyboardInterrupt])
def test_quitting_mid_episode_keeps_the_recorded_steps(ending: Any, tmp_path: Path) -> None:
    path, spied = tmp_path / "file", Spied(TreasureHunt)
    played = play_by_hand(spied, typing("1", "1", "2", ending), nothing, seed=0, record=path)
    assert played == []
    assert spied.closed == 1
    recording = Recording.open(path)
    assert recording.complete
    [episode] = recording.episodes()
    assert (episode.ending, len(episode.rewards)) == ("unfinished", 3)
    play_by_hand(Spied(TreasureHunt), typing("1", ending), nothing, seed=1, record=path)
    assert [e.number for e in Recording.open(path).episodes()] == [0, 1]


def test_each_step_is_flushed_before_the_next_input(tmp_path: Path) -> None:
    """A killed process loses no step."""
    path = tmp_path / "file"
    counts: list[int] = []

    def ask(prompt: str) -> str:
        recording = Recording.open(path)
        assert recording.complete
        counts.append(len(list(recording.steps())))
        return "1" if len(counts) < 6 else "q"

    play_by_hand(TreasureHunt, ask, nothing, record=path)
    assert counts == [0, 1, 2, 3, 4, 5]


def test_episodes_are_a_function_of_the_seed() -> None:
    def shown(seed: int) -> list[str]:
        person = Person()
        play_by_hand(Walk, person.ask, person.show, seed=seed, episodes=3)
        return person.output

    assert shown(1) == shown(1)
    assert shown(1) != shown(2)


def test_environment_without_text_rendering_is_shown_as_a_table() -> None:
    output: list[str] = []
    play_by_hand(Walk, typing(), output.append, seed=3)
    [table] = [text for text in output if text.startswith("globals: clock 0")]
    assert re.search(r"^  Goal goal  x 0, y 1$", table, re.MULTILINE)
    assert re.search(r"^  Thing 0  x 0\.\d+$", table, re.MULTILINE)


def test_environment_with_failing_render_is_shown_as_a_table() -> None:
    """Adapted environments created without a render mode raise."""

    class Refuses(Walk):
        def render(self, **kwargs: Any) -> Any:
            raise EntityEnvError("render: expected a world made with render_mode='ansi'")

    output: list[str] = []
    play_by_hand(Refuses, typing(), output.append, seed=3)
    assert any(text.startswith("globals: clock 0") for text in output)


def test_hidden_entities_are_not_shown() -> None:
    class Hidden(Walk):
        def observe(self, reward: float) -> Observation:
            obs = super().observe(reward)
            obs.actions, obs.visible = {}, {"Goal": [False]}
            return obs

    output: list[str] = []
    play_by_hand(Hidden, typing(), output.append, seed=3)
    assert "Goal: none" in "\n".join(output)
    assert "goal" not in "\n".join(output)


def test_last_frame_of_an_episode_is_shown() -> None:
    output: list[str] = []

    class Ends(TreasureHunt):
        def act(self, actions: Mapping[str, Action]) -> Observation:
            obs = super().act(actions)
            obs.terminated, obs.reward = True, 0.5
            return obs

        def render(self, **kwargs: Any) -> Any:
            return "the world"

    played = play_by_hand(Ends, typing("1", "", "1"), output.append)
    assert [(e.returns, e.steps) for e in played] == [([0.5], 1), ([0.5], 1)]
    assert any(text.startswith("episode 1 is over: 1 steps, return 0.5") for text in output)
    end, after = output.index("\nthe world"), output.index("\nepisode 2, step 0, return 0")
    assert end < after


def test_steps_without_a_choice_wait_for_enter() -> None:
    prompts: list[str] = []
    lines = typing("1", "", "", "")

    def ask(prompt: str) -> str:
        prompts.append(prompt)
        return lines(prompt)

    [episode] = play_by_hand(lambda: DelayedIdentity(3), ask, nothing, episodes=1)
    assert episode.steps == 4
    assert sum("nothing to choose" in prompt for prompt in prompts) == 3


def uniform_agent(env: Environment | Match, value: float = 0.25) -> Agent:
    """Agent that samples legal choices with equal probabilities."""
    spaces, rng = (env.obs_space(), env.action_space()), np.random.default_rng(0)

    def act(obs: Observation) -> tuple[dict[str, Action], float]:
        batch = batch_obs([obs], *spaces)
        probs = {}
        for name, mask in batch.action_masks.items():
            select = isinstance(mask, VecSelectEntityActionMask)
            n = mask.actees.items() if select else len(spaces[1][name])  # type: ignore
            shape = mask.actors.items(), n
            legal = np.ones(shape) if mask.mask is None else mask.mask.values.reshape(shape)
            probs[name] = [(legal / legal.sum(1, keepdims=True)).astype(np.float32)]
        choices = random_choices(batch, spaces[1], rng)
        return unbatch_actions(choices, batch, [obs], *spaces, probs)[0], value

    return act


@pytest.mark.parametrize("name", INDEPENDENT)
def test_agent_advises_in_every_environment(name: str, tmp_path: Path) -> None:
    cls, path = ENV_REGISTRY[name], tmp_path / "file"
    output: list[str] = []
    lines = typing(*["*"] * 10)

    def ask(prompt: str) -> str:
        return "" if "Enter" in prompt else lines(prompt)

    agent = uniform_agent(cls())
    play_by_hand(cls, ask, output.append, seed=1, episodes=3, agent=agent, record=path)
    assert "the agent expects 0.25" in output
    assert any("%" in text for text in output)
    for step in Recording.open(path).steps():
        check_probabilities(step.decisions)


def test_agent_plays_the_other_sides(tmp_path: Path) -> None:
    path, spied = tmp_path / "file", Spied(Duel)
    output: list[str] = []
    agent = uniform_agent(Duel())
    play_by_hand(spied, typing("* 2", "* 2", "q"), output.append, agent=agent, side=0, record=path)
    assert len(spied.action_log) == 2
    assert [step[0]["attack"].actees for step in spied.action_log] == [[5] * 4] * 2
    assert len({actee for step in spied.action_log for actee in step[1]["attack"].actees}) > 1
    said = [text for text in output if text.startswith("side 1, the agent: attack Enemy ")]
    assert len(said) >= 2
    for step, step_actions in zip(Recording.open(path).steps(), spied.action_log, strict=True):
        assert (
            step.decisions.actions["attack"][1].values.tolist() == step_actions[1]["attack"].actees
        )
        assert step.decisions.by_hand["attack"].values.tolist() == [True] * 4 + [False] * 4
        check_probabilities(step.decisions)


def test_one_person_plays_all_sides_in_turn() -> None:
    output: list[str] = []
    spied = Spied(Bidding)
    played = play_by_hand(spied, typing("1", "2", "3", "2", "1", "1"), output.append, episodes=1)
    assert [episode.returns for episode in played] == [[1.0, 1.0]]
    assert [[side["bid"].labels for side in step] for step in spied.action_log] == [
        [["0"], ["1"]],
        [["2"], ["1"]],
        [["0"], ["0"]],
    ]
    assert output.count("side 0") == output.count("side 1") == 3
    assert any("was cut off" in text and "return 1, 1" in text for text in output)


@pytest.mark.parametrize("side", [-1, 2, 1])
def test_side_needs_a_match_and_an_agent(side: int) -> None:
    agent = uniform_agent(RockPaperScissors()) if side != 1 else None
    spied = Spied(Duel)
    with pytest.raises(EntityEnvError, match=r"side: expected one of \[0, 1\] and an agent"):
        play_by_hand(spied, typing(), nothing, agent=agent, side=side)
    assert spied.closed == 1


def test_recording_needs_probabilities_from_an_agent(tmp_path: Path) -> None:
    def act(obs: Observation) -> tuple[dict[str, Action], float]:
        actions, value = uniform_agent(CherryPick())(obs)
        for action in actions.values():
            action.probs = None
        return dict(actions), value

    with pytest.raises(ValueError, match="agent: expected the probabilities of all choices"):
        play_by_hand(CherryPick, typing("1"), nothing, agent=act, record=tmp_path / "file")


def test_recorded_returns_match_the_displayed_ones(tmp_path: Path) -> None:
    person = Person(3)
    played = play_by_hand(
        CherryPick, person.ask, person.show, seed=4, episodes=2, record=tmp_path / "file"
    )
    episodes: list[Episode] = list(Recording.open(tmp_path / "file").episodes())
    assert [len(e.rewards) for e in episodes] == [e.steps for e in played]
    assert [e.episodic_reward for e in episodes] == pytest.approx([e.returns[0] for e in played])


def menu(
    *labels: str, actors: int = 1, illegal: tuple[str, ...] = (), probs: list[float] | None = None
) -> Menu:
    """A menu of labels; those in `illegal` come last."""
    choices = [(label, "") for label in (*labels, *illegal)]
    legal = np.array([[True] * len(labels) + [False] * len(illegal)] * actors)
    advice = None if probs is None else np.array([probs] * actors, dtype=np.float32)
    return Menu([f"move, Robot {i}" for i in range(actors)], choices, legal, advice)


MOVES = menu("Up", "Down", "Left", "Leap", "Defuse Mines", actors=3, illegal=("Right",))
TARGETS = Menu(
    ["fire"],
    [("Mine 0", ""), ("Mine 1", ""), ("Mine 2", ""), ("Unit boss", "hp 3")],
    np.array([[True, True, False, True]]),
    None,
)


@pytest.mark.parametrize(
    ("asked", "text", "choice"), [(MOVES, "1", 0), (MOVES, "5", 4), (TARGETS, "4", 3)]
)
def test_typed_number_selects_the_listed_choice(asked: Menu, text: str, choice: int) -> None:
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
def test_invalid_input_gives_a_one_line_message(asked: Menu, text: str, message: str) -> None:
    with pytest.raises(ValueError, match="expected") as caught:
        asked.find(text, 0)
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


def ask_menu(asked: Menu, *typed: str) -> tuple[list[int], list[str]]:
    lines = iter(typed)
    output: list[str] = []
    chosen = asked.ask("move", lambda prompt: next(lines), output.append)
    assert next(lines, None) is None
    return chosen, output


def test_actors_are_asked_one_by_one_or_several_at_once() -> None:
    assert ask_menu(MOVES, "1", "2", "3")[0] == [0, 1, 2]
    assert ask_menu(MOVES, "1 2 3")[0] == [0, 1, 2]
    assert ask_menu(MOVES, "5", "1 2")[0] == [4, 0, 1]
    assert ask_menu(MOVES, "1 2", "3")[0] == [0, 1, 2]
    assert ask_menu(MOVES, "* 2")[0] == [1, 1, 1]
    assert ask_menu(MOVES, "1", "*5")[0] == [0, 4, 4]
    assert ask_menu(menu("Up", actors=0))[0] == []


def test_choices_have_equal_numbers_for_all_actors() -> None:
    two = Menu(["a", "b"], [(x, "") for x in "uvw"], np.array([[1, 1, 1], [0, 0, 1]]) > 0, None)
    assert ask_menu(two, "* 3")[0] == [2, 2]
    assert ask_menu(two, "* 1", "3 3")[0] == [2, 2]


def test_invalid_menu_input_is_asked_again_without_effect() -> None:
    two = menu("Up", "Down", actors=2)
    chosen, output = ask_menu(two, "x", "1 2 1", "* x", "1 x", "", "*", "2", "1")
    assert chosen == [1, 0]
    lists = [text for text in output if "\n" in text]
    complaints = [text for text in output if "\n" not in text]
    assert len(lists) == 2
    assert len(complaints) == 6
    assert "expected at most 2 choices, got 1 2 1" in complaints[1]
    assert "got nothing; ? for help" in complaints[4]


def test_empty_input_selects_the_most_probable_choice() -> None:
    choices = [("a", ""), ("b", "")]
    probs = np.array([[0.2, 0.8], [0.6, 0.4]], dtype=np.float32)
    two = Menu(["move, Robot 0", "move, Robot 1"], choices, probs > 0, probs)
    chosen, output = ask_menu(two, "", "")
    assert chosen == [1, 0]
    assert output[0] == "move, Robot 0:\n  1) a  20.0%   2) b  80.0% <- Enter"
    assert ask_menu(two, "*")[0] == [1, 0]
    assert ask_menu(two, "1 1")[0] == [0, 0]


def test_illegal_choice_is_never_the_most_probable() -> None:
    legal = np.array([[False, True, True]])
    probs = np.zeros((1, 3), dtype=np.float32)
    assert Menu(["x"], [(c, "") for c in "abc"], legal, probs).find("", 0) == 1


def test_help_and_quitting() -> None:
    lines = iter(["?", " q "])
    output: list[str] = []
    with pytest.raises(Quit):
        ask_line("> ", lambda prompt: next(lines), output.append)
    assert output == [HELP]


def test_long_menus_wrap_and_features_get_separate_lines() -> None:
    lines = menu(*[f"label{i}" for i in range(30)]).listed(0).split("\n")
    assert max(map(len, lines)) <= 84
    assert len(lines) < 9
    assert TARGETS.listed(0) == "fire:\n  1) Mine 0\n  2) Mine 1\n  4) Unit boss  (hp 3)"
    assert "5) Defuse Mines" in MOVES.listed(0)


def test_played_episodes_are_recorded_with_entity_identity(tmp_path: Path) -> None:
    """Networks with memory can learn from the recording."""
    play_by_hand(Shells, lambda _: "1", nothing, seed=1, episodes=2, record=tmp_path / "file")
    for episode in Recording.open(tmp_path / "file").episodes():
        obs = episode.decisions.obs
        numbers = obs.identity["Cup"]
        first = sorted(numbers[0].values.tolist())
        assert first == [*range(len(first))]
        assert all(
            sorted(frame.values.tolist()) == first for frame in map(numbers.__getitem__, (1, 3))
        )
