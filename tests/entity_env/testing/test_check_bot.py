"""`check_env(world, bot=...)` reports the defect of a bot, and nothing else."""

import pytest

from entity_env import Bot, check_env
from entity_env.examples import Duel
from entity_env.testing.random_play import Report
from tests.entity_env import duel_bots
from tests.entity_env.invalid_worlds import Good, Returns, frame


def judged(bot: type[Bot]) -> Report:
    return check_env(Duel, episodes=2, max_steps=30, bot=bot)


@pytest.mark.parametrize("bot", [duel_bots.Greedy, duel_bots.Shoots, duel_bots.Waits])
def test_valid_bots_have_no_problems(bot: type[Bot]) -> None:
    report = judged(bot)
    assert report.ok, str(report)
    assert report.steps > check_env(Duel, episodes=2, max_steps=30).steps


@pytest.mark.parametrize(
    ("bot", "field", "words"),
    [
        (duel_bots.Unseeded, "bot.seed", ["a function of the seed", "self.rng"]),
        (
            duel_bots.Forgets,
            "bot.set_state",
            ["expected the choices of the saved bot", "PlainState"],
        ),
        (duel_bots.Impure, "bot.get_state", ["plain data", "Generator"]),
        (
            duel_bots.ShootsItself,
            "bot.act",
            ["episode 0, step 0", "ShootsItself", "side 0", "expected one of [('Enemy', 0)"],
        ),
        (duel_bots.Raises, "bot.act", ["ZeroDivisionError: nobody there", "duel_bots.py"]),
        (duel_bots.Sized, "bot", ["size"]),
    ],
)
def test_defect_of_a_bot_is_a_problem_with_a_fix(
    bot: type[Bot], field: str, words: list[str]
) -> None:
    report = judged(bot)
    [problem] = report.problems
    assert problem.field == field
    for word in words:
        assert word in str(problem)


def test_bot_is_not_checked_in_an_invalid_environment() -> None:
    world = Returns(frame(reward=float("nan")))
    report = check_env(world, episodes=1, max_steps=20, bot=duel_bots.Raises)
    assert {problem.field for problem in report.problems} == {"reward"}
    assert check_env(Good, max_steps=20, bot=duel_bots.Raises).problems[0].field == "bot.act"
