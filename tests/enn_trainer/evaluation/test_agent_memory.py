"""Sessions of an agent: each has a separate memory and random numbers, in any batch and thread."""

import copy
import pickle
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from enn_trainer import Act, RogueNetAgent
from entity_env import InvalidObservation, Observation
from entity_env.serialization.messages import pack, unpack
from rogue_net import RogueNet, RogueNetConfig, RogueNetWithValueNet
from rogue_net.config import MemoryConfig
from tests.enn_trainer.experience.fog_world import Fog

CONFIGS = {
    "entity": MemoryConfig(of="entity", keep_absent=2),
    "frame": MemoryConfig(of="frame"),
    "both": MemoryConfig(keep_absent=2, d_memory=12, inputs=["action", "reward"]),
}
KEYS: list[str | int] = ["a", 1, "1", -7]


def network(memory: MemoryConfig | None, value_memory: MemoryConfig | None = None) -> Any:
    """Return a network with random weights, so that its states matter."""
    torch.manual_seed(0)
    world = Fog()
    config, value_config = (
        RogueNetConfig(d_model=8, n_layer=1, memory=one) for one in (memory, value_memory)
    )
    spaces = world.obs_space(), world.action_space()
    net: Any = RogueNet(config, *spaces, {"value": 1})
    if value_memory is not None:
        net = RogueNetWithValueNet(config, value_config, *spaces)
    for weights in net.parameters():
        torch.nn.init.normal_(weights, std=0.3)
    return net


def frames_of(seed: int) -> Iterator[Observation]:
    """Yield the frames of one side in short episodes, in which entities come, go and hide."""
    world = Fog()
    world.seed(seed)
    while True:
        frames, world.length = world.reset(), 1 + seed % 4
        yield frames[0]
        while not frames[0].done:
            frames = world.act([{}, {}])
            frames[0].reward = world.rng.random()
            yield frames[0]


def streams() -> dict[str | int, Iterator[Observation]]:
    return {key: frames_of(i) for i, key in enumerate(KEYS)}


def choices(act: Act) -> str:
    """Return the actions without probabilities, which differ by rounding."""
    return repr([(name, vars(a) | {"probs": None}) for name, a in sorted(act.actions.items())])


def assert_close(act: Act, other: Act) -> None:
    assert act.value == pytest.approx(other.value, rel=1e-4, abs=1e-5)
    for name, action in act.actions.items():
        for probs in zip(action.probs, other.actions[name].probs, strict=True):  # type: ignore[arg-type]
            np.testing.assert_allclose(*probs, rtol=1e-4, atol=1e-5)


some_keys = st.permutations(KEYS).flatmap(
    lambda order: st.integers(1, len(order)).map(lambda n: order[:n])
)


@pytest.mark.parametrize(
    ("memory", "value_memory"),
    [
        (CONFIGS["entity"], None),
        (CONFIGS["frame"], None),
        (CONFIGS["both"], CONFIGS["both"]),
    ],
    ids=["entity", "frame", "both, and of a value network"],
)
@given(calls=st.lists(st.tuples(some_keys, st.sampled_from([None, *KEYS])), max_size=6))
def test_sessions_act_like_separate_agents(
    memory: MemoryConfig | None,
    value_memory: MemoryConfig | None,
    calls: Sequence[tuple[Sequence[str | int], str | int | None]],
) -> None:
    net, frames = network(memory, value_memory), streams()
    agent = RogueNetAgent(net, deterministic=True)
    alone = {key: RogueNetAgent(net, deterministic=True) for key in KEYS}
    for keys, forgotten in calls:
        observations = [next(frames[key]) for key in keys]
        acts = agent.act_batch(observations, sessions=keys)
        for key, obs, act in zip(keys, observations, acts, strict=True):
            assert_close(act, alone[key].act(obs))
        if forgotten is not None:
            agent.forget([forgotten])
            alone[forgotten].reset()


def test_next_episode_of_a_session_begins_with_an_empty_memory() -> None:
    agent, frames = RogueNetAgent(network(CONFIGS["both"]), deterministic=True), frames_of(0)
    for _ in range(4):  # the last frame of an episode has a reward, and entities of the next one
        first = RogueNetAgent(agent.agent, deterministic=True)
        for obs in (next(frames), next(frames)):
            [act] = agent.act_batch([obs], ["a"])
            assert_close(act, first.act(obs))
        assert obs.done


def test_session_memory_matters() -> None:
    """Otherwise the comparisons above would hold without any."""
    agent, frames = RogueNetAgent(network(CONFIGS["entity"])), frames_of(3)
    values = []
    for _ in range(4):
        obs = next(frames)
        values.append(agent.act_batch([obs], ["a"])[0].value)
        values.append(RogueNetAgent(agent.agent).act(obs).value)
    assert values[0] == pytest.approx(values[1])
    assert values[6] != pytest.approx(values[7], rel=1e-3)


def test_sampled_actions_of_a_session_depend_on_the_session_alone() -> None:
    net, frames = network(CONFIGS["both"]), streams()
    agent = RogueNetAgent(net, seed=3)
    alone = {key: RogueNetAgent(net, seed=3) for key in KEYS}
    for t in range(12):
        keys = [*np.random.default_rng(t).permutation(np.array(KEYS, object))][t % 3 :]
        observations = [next(frames[key]) for key in keys]
        acts = agent.act_batch(observations, keys)
        for key, obs, act in zip(keys, observations, acts, strict=True):
            assert choices(act) == choices(alone[key].act_batch([obs], [key])[0])


def test_random_numbers_differ_by_session_frame_and_seed() -> None:
    net = network(CONFIGS["frame"])
    obs = next(frame for frame in frames_of(2) if len(frame.ids["Scout"]) > 3)

    def drawn(seed: int) -> list[str]:
        agent = RogueNetAgent(net, seed=seed)
        return [choices(a) for _ in range(2) for a in agent.act_batch([obs] * 20, [*range(20)])]

    first, second = drawn(1)[:20], drawn(1)[20:]
    assert len({*first}) > 5
    assert first != second
    assert first == drawn(1)[:20]
    assert first != drawn(2)[:20]


def test_state_of_sessions_is_plain_data() -> None:
    net, frames = network(CONFIGS["both"]), streams()
    agent, other = (RogueNetAgent(net, seed=3) for _ in range(2))
    for t in range(8):
        observations = [next(frames[key]) for key in KEYS]
        agent.act_batch(observations, KEYS)
        agent.act_batch(observations[:2])
        if t == 3:
            agent.forget([1])
        state = agent.get_state()
    other.set_state(unpack(pack(state, exact=True)))
    assert other.sessions == agent.sessions == KEYS
    for _ in range(4):
        observations = [next(frames[key]) for key in KEYS]
        for sessions in (KEYS, None):
            acts = (one.act_batch(observations, sessions) for one in (agent, other))
            assert len({repr(act) for act in acts}) == 1
    other.set_state({"frames": 0, "memory": {}})
    assert other.sessions == []


def test_sessions_are_ordered_by_their_last_frame_until_forgotten() -> None:
    agent, obs = RogueNetAgent(network(CONFIGS["frame"])), next(frames_of(0))
    agent.act_batch([obs] * 3, ["a", "b", "c"])
    agent.act_batch([obs], ["a"])
    assert agent.sessions == ["b", "c", "a"]
    agent.forget(["c", "unknown"])
    agent.reset()
    assert agent.sessions == ["b", "a"]


@pytest.mark.parametrize("memory", [None, CONFIGS["frame"]])
def test_invalid_session_keys_are_refused(memory: MemoryConfig | None) -> None:
    agent, obs = RogueNetAgent(network(memory)), next(frames_of(0))
    keys: Any
    for keys, message in (
        (["a", "b", "a"], "sessions: expected distinct keys, got 'a' twice"),
        (["a", "b"], "sessions: expected 3 keys, one for each observation, got 2"),
        (["a", "b", ("c", 1)], r"expected str or int, got tuple \('c', 1\); pass str\(key\)"),
        ([1, 2, True], "expected str or int, got bool True"),
    ):
        with pytest.raises(ValueError, match=message):
            agent.act_batch([obs] * 3, keys)
    assert agent.act_batch([], []) == agent.sessions == []


def test_agent_without_memory_ignores_sessions() -> None:
    agent, other = (RogueNetAgent(network(None), seed=2) for _ in range(2))
    observations = [next(frames_of(i)) for i in range(4)]
    for _ in range(3):
        acts = agent.act_batch(observations, KEYS)
        assert repr(acts) == repr(other.act_batch(observations))
    assert agent.sessions == []
    agent.forget(KEYS)


def test_invalid_observation_leaves_all_sessions_unchanged() -> None:
    agent, frames = RogueNetAgent(network(CONFIGS["both"])), streams()
    agent.act_batch([next(frames[key]) for key in KEYS[:3]], KEYS[:3])
    state, observations = agent.get_state(), [next(frames[key]) for key in KEYS]
    observations[2].features["Scout"] = [[1.0, 2.0]]
    observations[2].ids["Scout"] = ["s0"]
    with pytest.raises(InvalidObservation, match="environment 2"):
        agent.act_batch(observations, KEYS)
    assert repr(agent.get_state()) == repr(state)


def test_explaining_an_observation_of_a_session_leaves_it_unchanged() -> None:
    agent, frames = RogueNetAgent(network(CONFIGS["both"])), streams()
    for _ in range(5):
        observations = [next(frames[key]) for key in KEYS]
        values = [
            agent.explain(obs, session=key).value
            for key, obs in zip(KEYS, observations, strict=True)
        ]
        acts = agent.act_batch(observations, KEYS)
        assert values == pytest.approx([act.value for act in acts], rel=1e-4, abs=1e-5)


@pytest.mark.parametrize("copied", [copy.deepcopy, lambda x: pickle.loads(pickle.dumps(x))])
def test_copied_agent_continues_the_sessions(copied: Callable[[Any], Any]) -> None:
    agent, frames = RogueNetAgent(network(CONFIGS["both"])), streams()
    for _ in range(3):
        agent.act_batch([next(frames[key]) for key in KEYS], KEYS)
    other, observations = copied(agent), [next(frames[key]) for key in KEYS]
    acts, copied_acts = (one.act_batch(observations, KEYS) for one in (agent, other))
    assert repr(acts) == repr(copied_acts)


def run_in_thread(function: Callable[[], Any]) -> Any:
    with ThreadPoolExecutor(1) as pool:
        return pool.submit(function).result()


def test_threads_that_share_an_agent_act_one_after_the_other() -> None:
    net, inside, most = network(CONFIGS["both"]), list[int](), list[int]()

    def enter(*_: Any) -> None:
        inside.append(threading.get_ident())
        most.append(len(inside))
        time.sleep(0.002)  # another thread would enter

    def leave(*_: Any) -> None:
        inside.remove(threading.get_ident())

    net.register_forward_pre_hook(enter)
    net.register_forward_hook(leave)
    agent = RogueNetAgent(net, seed=3)

    def play(i: int) -> list[str]:
        frames = frames_of(i)
        return [choices(agent.act_batch([next(frames)], [i])[0]) for _ in range(12)]

    with ThreadPoolExecutor(6) as pool:
        together = [*pool.map(play, range(6))]
    assert max(most) == 1
    agent.forget(agent.sessions)
    assert together == [play(i) for i in range(6)]


def test_episodes_without_session_keys_belong_to_the_thread_in_which_they_began() -> None:
    agent, frames = RogueNetAgent(network(CONFIGS["frame"])), frames_of(3)
    agent.act(next(frames))
    obs = next(frames)
    message = "expected the thread in which the episode began, got another one; .* sessions="
    for observations in ([obs], [obs, obs]):
        with pytest.raises(RuntimeError, match=message):
            run_in_thread(partial(agent.act_batch, observations))
    run_in_thread(lambda: agent.act_batch([obs], ["a"]))
    state = agent.get_state()
    assert run_in_thread(lambda: agent.act(obs, first=True)).actions
    agent.set_state(state)
    assert run_in_thread(lambda: agent.act(obs)).actions
    without_memory = RogueNetAgent(network(None))
    without_memory.act(obs)
    assert run_in_thread(lambda: without_memory.act(obs)).actions
