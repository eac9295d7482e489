"""Continuous and autoregressive actions in play by hand."""

import re
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from entity_env import Bot, ContinuousActionSpace, EnvList, InvalidAction
from entity_env.actions.chains import has_choice
from entity_env.play.bots import SideBots
from entity_env.play.game import play_by_hand
from entity_env.play.hand import Hand
from entity_env.testing.random_play import random_choices
from entity_env.vec.batching import batch_obs, unbatch_actions
from tests.enn_trainer.chains_world import Camp
from tests.enn_trainer.numbers_world import Targets
from tests.entity_env.play.hand_play import Spied, typing
from tests.entity_env.play.random_bots import Lucky, LuckyArcher

NUMBER = re.compile(r"^  (\w+)=  (?:from (\S+) to (\S+)|any number|(\S+) alone)$", re.MULTILINE)
CHOICE = re.compile(r"(?:^  |   )(\d+)\) ", re.MULTILINE)


class Person:
    """Types listed legal choices, and exact float32 numbers in any order."""

    def __init__(self, seed: int = 0) -> None:
        self.rng = np.random.default_rng(seed)
        self.output: list[str] = []
        self.meant: list[dict[str, float]] = []

    def show(self, text: str) -> None:
        self.output.append(text)

    def ask(self, prompt: str) -> str:
        if "Enter" in prompt:
            return ""
        listed = self.output[-1]
        if not (numbers := NUMBER.findall(listed)):
            return str(self.rng.choice(CHOICE.findall(listed)))
        meant = {}
        for name, low, high, alone in numbers:
            start, end = (float(low), float(high)) if low else (-3.0, 3.0)
            number = np.float32(start + (end - start) * self.rng.random())
            meant[name] = float(alone) if alone else float(np.clip(number, start, end))
        self.meant.append(meant)
        names = self.rng.permutation([*meant])
        return " ".join(f"{name}={meant[name]!r}" for name in names)


@pytest.mark.parametrize("world", [Targets, Camp])
def test_environment_receives_the_typed_actions(world: Any) -> None:
    person, spied = Person(1), Spied(world)
    played = play_by_hand(spied, person.ask, person.show, seed=1, episodes=3)
    assert [one.steps for one in played] == [10] * 3
    assert not [text for text in person.output if "expected" in text]
    got = []
    for actions in spied.action_log:
        for name in ("aim", "mean", "force", "price"):
            action: Any = actions.get(name)
            rows = [] if action is None else np.atleast_2d(action.values).tolist()
            got += [dict(zip(action.names, row, strict=True)) for row in rows]
    assert got == person.meant


def test_single_number_needs_no_name_and_invalid_input_is_asked_again() -> None:
    output: list[str] = []
    spied = Spied(Targets)
    bad = [
        "x=2 free=0",
        "x=0",
        "x=0 y=1",
        "x=a free=1",
        "x=0 free=nan",
        "free=1 x=0 1",
        "",
        "x=0 x=1",
    ]
    lines = [*bad, "* free=7 x=0.25", "* 1", "mean=3", "3.5", "q"]
    play_by_hand(spied, typing(*lines), output.append, seed=5)
    complaints = [text for text in output if "; ? for help" in text or "at most" in text]
    assert len(complaints) == len(bad) + 1
    assert "expected numbers within their bounds, got x=2, which is not from" in complaints[0]
    assert "expected x=NUMBER free=NUMBER, got 'x=0'" in complaints[1]
    assert complaints[-1].startswith("mean: expected m=NUMBER, got 'mean=3'")
    assert not any("\n" in text for text in complaints)
    assert (spied.action_log[0]["aim"].values == np.float32([0.25, 7])).all()
    assert spied.action_log[0]["mean"].of("m") == 3.5


def test_star_applies_numbers_to_all_remaining_actors() -> None:
    spied = Spied(Targets)
    play_by_hand(spied, typing("* x=0.25 free=-1", "* 2", "m=4", "q"), lambda text: None, seed=5)
    assert (spied.action_log[0]["aim"].values == np.float32([0.25, -1])).all()


def advising(world: Any) -> Callable[[Any], Any]:
    """Agent that advises random choices with equal probabilities."""
    rng = np.random.default_rng(0)
    spaces = world().obs_space(), world().action_space()

    def act(obs: Any) -> Any:
        batch = batch_obs([obs], *spaces)
        chosen = random_choices(batch, spaces[1], rng)
        probs = {}
        for name, space in spaces[1].items():
            probs[name] = space.certain(chosen[name], batch.action_masks[name])
        return unbatch_actions(chosen, batch, [obs], *spaces, probs)[0], 0.5

    return act


@pytest.mark.parametrize("world", [Targets, Camp])
def test_enter_accepts_known_advice(world: Any) -> None:
    spied, advised = Spied(world), []
    agent = advising(world)

    def noted(obs: Any) -> Any:
        advice = agent(obs)
        advised.append(advice[0])
        return advice

    play_by_hand(spied, lambda prompt: "*", lambda text: None, agent=noted, episodes=2)
    for step_actions, wanted in zip(spied.action_log, advised, strict=True):
        assert step_actions.keys() == wanted.keys()
        for name, action in step_actions.items():
            assert [*action.chosen] == [*wanted[name].chosen]


def test_advice_on_autoregressive_actions_requires_the_advised_parent() -> None:
    person = Person(2)
    play_by_hand(Camp, person.ask, person.show, agent=advising(Camp), episodes=4)
    menus = [text for text in person.output if text.startswith("whom, Medic")]
    assert {"<- Enter" in text for text in menus} == {True, False}
    assert not any("nan" in text for text in person.output)
    prices = [text for text in person.output if text.startswith("price:")]
    assert {"<- Enter" in text for text in prices} == {True, False}


class Calm(Bot):
    """Bot that rests and does not trade."""

    def act(self, observation: Any) -> dict[str, Any]:
        return {name: mask for name, mask in observation.actions.items() if name == "nothing"}


@pytest.mark.parametrize(("world", "bot"), [(Camp, Lucky), (Targets, LuckyArcher)])
def test_bots_advise_continuous_and_autoregressive_actions(world: Any, bot: type[Bot]) -> None:
    spied = Spied(world)
    played = play_by_hand(spied, lambda prompt: "*", lambda text: None, agent=bot, episodes=2)
    assert [one.steps for one in played] == [10, 10]
    bots = SideBots(bot, 1, 0)
    bots.begin()
    game = world()
    game.seed(1)
    obs = game.reset()
    spaces = game.obs_space(), game.action_space()
    for _ in range(8):
        [actions] = bots.act([obs], batch_obs([obs], *spaces), *spaces)
        for name, action in actions.items():
            if spaces[1][name].components:
                assert action.probs is None
            else:
                assert action.probs is not None
                rows = np.atleast_2d(action.probs)
                assert (rows.sum(axis=1) == 1).all()
        obs = game.act(actions)


@given(st.integers(0, 2**32 - 1), st.floats(0, 1), st.sampled_from([Camp, Targets]))
def test_waiting_actors_are_controlled_and_choices_stay_legal(
    seed: int, share: float, world: Any
) -> None:
    rng = np.random.default_rng(seed)
    envs = EnvList(world, 3)
    envs.seed(seed)
    obs, space = envs.reset(envs.obs_space()), envs.action_space()
    defaults = random_choices(obs, space, rng)
    everyone = rng.random() < share
    controlled = {name: np.full(len(rows.values), everyone) for name, rows in defaults.items()}
    hand = Hand(obs, space, controlled, defaults)
    for _ in range(200):
        if not (waiting := list(hand.waiting())):
            break
        name, actor = waiting[rng.integers(len(waiting))]
        row = space[name].random_choices(hand.mask(name, actor), rng).values[0]
        hand.choose(name, actor, row.tolist())
    actions, by_hand = hand.fill()
    envs.act(actions, envs.obs_space())  # which checks them
    for name, rows in actions.items():
        assert (by_hand[name].values == (has_choice(rows.values) & everyone)).all()


def test_changed_choice_discards_dependent_choices() -> None:
    envs = EnvList(Camp, 1)
    envs.seed(3)
    obs, space = envs.reset(envs.obs_space()), envs.action_space()
    defaults = random_choices(obs, space, np.random.default_rng(0))
    controlled = {name: np.ones(len(rows.values), np.bool_) for name, rows in defaults.items()}
    hand = Hand(obs, space, controlled, defaults)
    hand.choose("trade", 0, 2)
    assert ("price", 0) in list(hand.waiting())
    hand.choose("price", 0, [2.5])
    assert ("price", 0) not in list(hand.waiting())
    hand.choose("trade", 0, 2)  # the same again
    assert ("price", 0) not in list(hand.waiting())
    hand.choose("trade", 0, 0)
    with pytest.raises(ValueError, match="price, actor 0: expected another choice of trade"):
        hand.choose("price", 0, [2.5])
    hand.choose("trade", 0, 2)
    assert ("price", 0) in list(hand.waiting())
    for wrong in (2.5, [2.5, 1.0], ["2.5"], [True], None, [float("nan")], [10.0], {}):
        with pytest.raises(ValueError, match="price, actor 0: expected"):
            hand.choose("price", 0, wrong)
    assert ("price", 0) in list(hand.waiting())


def test_mean_deviation_and_range_match_samples() -> None:
    space = ContinuousActionSpace({"a": (-1.0, 3.0), "b": (-np.inf, np.inf), "c": (0.0, 1e6)})
    envs = EnvList(Targets, 1)
    envs.seed(0)
    rng = np.random.default_rng(0)
    mean, log_std = np.float32([[0.7, -2.0, -1.0]]), np.log(np.float32([[0.5, 3.0, 2.0]]))
    low, high = np.float32([[-1, -np.inf, 0]]), np.float32([[3, np.inf, 1e6]])
    from entity_env.ragged import Ragged
    from entity_env.vec.vec_obs import VecContinuousActionMask

    rows = (Ragged(x, np.array([1])) for x in (low, high))
    mask = VecContinuousActionMask(Ragged(np.array([0]), np.array([1])), *rows)
    parameters = np.hstack([mean, log_std])
    statistics = space.shown(parameters, mask, np.zeros((1, 3), np.float32)).reshape(3, 4)
    z = mean + np.exp(log_std) * rng.standard_normal((400_000, 3))
    y = 1 / (1 + np.exp(-z))
    draws = np.where(np.isfinite(low), np.where(np.isfinite(low), low, 0) * (1 - y) + high * y, z)
    draws[:, 1] = z[:, 1]
    scale = draws.std(axis=0)
    assert (np.abs(statistics[:, 0] - draws.mean(axis=0)) < 0.01 * scale).all()
    np.testing.assert_allclose(statistics[:, 1], scale, rtol=0.01)
    for column, share in ((2, 0.05), (3, 0.95)):
        assert (
            np.abs(statistics[:, column] - np.quantile(draws, share, axis=0)) < 0.02 * scale
        ).all()
    # A uniform distribution, and one of nobody.
    parameters[:, 3:] = np.inf
    uniform = space.shown(parameters, mask, np.zeros((1, 3), np.float32)).reshape(3, 4)
    np.testing.assert_allclose(uniform[0], [1, 4 / np.sqrt(12), -0.8, 2.8], atol=1e-3)
    np.testing.assert_allclose(uniform[1], [-2, 1, -2 - 1.645, -2 + 1.645], atol=1e-3)
    assert np.isnan(space.shown(parameters, mask, np.full((1, 3), np.nan))).all()


def test_illegal_advice_of_a_bot_is_refused() -> None:
    with pytest.raises(InvalidAction, match="bot Calm"):
        play_by_hand(Camp, lambda prompt: "*", lambda text: None, agent=Calm, episodes=1)
