"""`conformance` passes valid environments; probe environments test one ability each."""

import time
from collections.abc import Callable, Mapping

import numpy as np
import pytest

from entity_env import (
    Action,
    CategoricalAction,
    Environment,
    EnvList,
    GlobalCategoricalAction,
    Match,
    Observation,
    SelectEntityAction,
    VecObs,
)
from entity_env.examples import Duel, Medics, MultiSnake, Xor
from entity_env.testing import (
    CreditOneOfMany,
    DelayedIdentity,
    Identity,
    PickTheMarked,
    Timing,
    conformance,
)
from tests.entity_env.worlds import Bidding, Nan, Walk

PROBES: dict[str, Callable[[], Environment | Match]] = {
    "identity": Identity,
    "delayed identity": DelayedIdentity,
    "not delayed": lambda: DelayedIdentity(delay=0),
    "pick the marked": PickTheMarked,
    "credit one of many": CreditOneOfMany,
    "timing": lambda: Timing(step_s=0.0),
    "spinning": lambda: Timing(step_s=0.0, spin=True),
}


@pytest.mark.parametrize("kind", PROBES)
def test_probes_conform(kind: str) -> None:
    conformance(PROBES[kind])


@pytest.mark.parametrize("create_env", [Walk, Bidding, Xor, MultiSnake, Duel, Medics])
def test_valid_environments_conform(create_env: Callable[[], Environment | Match]) -> None:
    conformance(create_env)


class AlwaysNan(Nan):
    threshold = -1.0


@pytest.mark.slow
def test_conformance_failure_has_the_report() -> None:
    with pytest.raises(AssertionError, match=r"AlwaysNan: 1 problem.*\n.*\n  features of 'Goal'"):
        conformance(AlwaysNan)


def test_conformance_names_differing_fields_of_env_list(monkeypatch: pytest.MonkeyPatch) -> None:
    act = EnvList.act

    def cheat(self: EnvList, *args: object) -> VecObs:
        batch = act(self, *args)  # type: ignore[arg-type]
        batch.reward += 1
        return batch

    monkeypatch.setattr(EnvList, "act", cheat)
    with pytest.raises(AssertionError, match=r"step 1: EnvList differs .* in reward"):
        conformance(Walk)


def play(env: Environment, policy: Callable[[Observation], Mapping[str, Action]]) -> float:
    """The mean return of 50 episodes."""
    env.seed(0)
    total = 0.0
    for _ in range(50):
        obs = env.reset()
        while not obs.done:
            obs = env.act(policy(obs))
            total += obs.reward
    return total / 50


def say(obs: Observation, sign: int = 1) -> int:
    return int(sign * obs.features["Mark"][0][0] > 0)


def choose(labels: list[int]) -> CategoricalAction:
    return CategoricalAction(range(len(labels)), np.array(labels), ["minus", "plus"])


@pytest.mark.parametrize(("sign", "expected"), [(1, 1.0), (-1, 0.0)])
def test_probes_reward_the_right_action(sign: int, expected: float) -> None:
    assert play(Identity(), lambda o: {"say": choose([say(o, sign)])}) == expected

    def delayed(obs: Observation) -> dict[str, Action]:
        return {"say": GlobalCategoricalAction(say(obs, sign), "")} if obs.actions else {}

    assert play(DelayedIdentity(delay=2), delayed) == expected

    def marked(obs: Observation) -> dict[str, Action]:
        marks = [row[0] for row in obs.features["Item"]]
        item = marks.index(1.0) if sign > 0 else marks.index(0.0)
        return {"pick": SelectEntityAction([("Picker", 0)], [obs.ids["Item"][item]])}

    assert play(PickTheMarked(), marked) == expected

    def credited(obs: Observation) -> dict[str, Action]:
        rows = obs.features["Actor"]
        return {
            "choose": choose([int((wanted > 0) == (counts * sign > 0)) for wanted, counts in rows])
        }

    assert play(CreditOneOfMany(), credited) == expected


def test_delayed_reward_comes_after_the_delay() -> None:
    env = DelayedIdentity(delay=3)
    obs = env.reset()
    obs = env.act({"say": GlobalCategoricalAction(say(obs), "")})
    rewards = [obs.reward]
    while not obs.done:
        assert obs.actions == {}
        obs = env.act({})
        rewards.append(obs.reward)
    assert rewards == [0.0, 0.0, 0.0, 1.0]


@pytest.mark.alone
@pytest.mark.parametrize("spin", [False, True])
def test_timing_sleeps_or_spins(spin: bool) -> None:
    env = Timing(step_s=0.02, spin=spin)
    env.reset()
    wall, cpu = time.perf_counter(), time.thread_time()
    env.act({"wait": choose([0])})
    assert time.perf_counter() - wall >= 0.02
    if not spin:
        assert time.thread_time() - cpu < 0.01
