"""Numbers of entities: equal numbers are the same entity in all frames of an episode."""

import contextlib
import os
import signal
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from entity_env import (
    Action,
    AddMetricsWrapper,
    Entity,
    EntityEnvError,
    Environment,
    EnvList,
    InvalidObservation,
    Observation,
    ObsSpace,
    ParallelEnvList,
    Ragged,
    VecEnv,
    VecObs,
)
from entity_env.adapters.any_vec_env import AnyVecEnv
from entity_env.examples import Duel, MultiSnake, VecMinefield, VecMultiSnake
from entity_env.recording.read_recording import Recording
from entity_env.recording.record import RecordingVecEnv
from entity_env.serialization.messages import pack, unpack
from entity_env.vec.episode_state import cat_states, split_state
from tests.entity_env.builders import assert_same, play, random_choices
from tests.entity_env.worker_worlds import CROWD, Crowd
from tests.entity_env.worlds import Named

SPACE = CROWD
TYPES = [*SPACE.entities]
Ids = dict[str, list[Any]]


class Episode(NamedTuple):
    """The ids of each frame by type; the last frame is shown only where it is cut off."""

    frames: list[Ids]
    is_cut_off: bool


class Scripted(Environment):
    """Show the entities that a script says, episode after episode, rocks without ids."""

    def __init__(self, episodes: list[Episode]) -> None:
        self.episodes, self.begun = episodes, 0

    def obs_space(self) -> ObsSpace:
        return SPACE

    def action_space(self) -> dict[str, Any]:
        return {}

    def reset(self) -> Observation:
        self.episode, self.t = self.episodes[self.begun % len(self.episodes)], 0
        self.begun += 1
        return self.observe()

    def act(self, actions: Mapping[str, Action]) -> Observation:
        self.t += 1
        return self.observe()

    def observe(self) -> Observation:
        ids = self.episode.frames[self.t]
        over, is_cut_off = self.t == len(self.episode.frames) - 1, self.episode.is_cut_off
        return Observation(
            features={"Rock": [[9.0]], **{name: [[0.0]] * len(ids[name]) for name in ids}},
            ids=ids,
            visible={name: [False] * len(ids[name]) for name in ids if self.t % 2},
            terminated=over and not is_cut_off,
            truncated=over and is_cut_off,
        )


class Resumable(Scripted):
    """Resume the only episode of a script."""

    def get_state(self) -> dict[str, Any]:
        return {"t": self.t}

    def set_state(self, state: dict[str, Any]) -> None:
        self.episode, self.t = self.episodes[0], state["t"]


@st.composite
def frames(draw: st.DrawFn) -> Ids:
    """Some of a few entities, in any order, each of one type or another."""
    ids = draw(st.permutations([0, "0", (0, 1), None, 2.5, b"x"]))
    first, last = sorted((draw(st.integers(0, 6)), draw(st.integers(0, 6))))
    ids_by_type = {"Dog": ids[:first], "Cat": ids[first:last]}
    left_out = draw(st.sets(st.sampled_from(["Cat", "Dog"])))
    return {name: ids for name, ids in ids_by_type.items() if name not in left_out}


scripts = st.lists(
    st.builds(Episode, st.lists(frames(), min_size=2, max_size=5), st.booleans()),
    min_size=1,
    max_size=3,
)


def model(episodes: list[Episode]) -> Iterator[tuple[Ids, Ids | None]]:
    """Yield the numbers in each step and in the last observation, from a list of ids."""

    def numbers(ids: Ids) -> Ids:
        by_type: Ids = {name: [] for name in TYPES}
        for name in TYPES:
            for entity_id in ids.get(name, []):
                if entity_id not in seen[name]:
                    seen[name].append(entity_id)
                by_type[name].append(seen[name].index(entity_id))
        return by_type

    last = None
    while True:
        for frames, is_cut_off in episodes:
            seen: Ids = {name: [] for name in TYPES}
            for ids in frames[:-1]:
                yield numbers(ids), last
                last = None
            last = numbers(frames[-1]) if is_cut_off else None


def numbers_in(obs: VecObs, i: int) -> Ids:
    return {name: rows[i].values.tolist() for name, rows in obs.identity.items()}


@given(st.lists(scripts, min_size=1, max_size=3))
def test_numbers_match_a_list_of_all_observed_entities(scripted: list[list[Episode]]) -> None:
    """Entities come, go, return, change places and types, are hidden or have no ids."""
    made = iter(scripted)
    envs = EnvList(lambda: Scripted(next(made)), len(scripted))
    envs.track()
    models = [model(episodes) for episodes in scripted]
    obs = envs.reset(SPACE)
    for _ in range(12):
        assert list(obs.identity) == TYPES
        expected = [next(one) for one in models]
        assert [numbers_in(obs, i) for i in range(len(obs))] == [numbers for numbers, _ in expected]
        finals = [last for _, last in expected if last is not None]
        assert (obs.final is None) == (not finals)
        if obs.final is not None:
            assert [numbers_in(obs.final, i) for i in range(len(finals))] == finals
        obs = envs.act({}, SPACE)


def test_only_tracked_types_in_the_filter_have_numbers() -> None:
    episodes = [Episode([{"Cat": ["a"], "Dog": ["b", "c"]}] * 2, True)]
    envs = EnvList(lambda: Scripted(episodes), 1)
    envs.track(["Cat"])
    envs.track(["Rock", "Dog"])
    obs = envs.reset(envs.obs_space())
    assert numbers_in(obs, 0) == {"Dog": [0, 1], "Rock": []}
    some = ObsSpace(entities={name: Entity(["x"]) for name in ("Dog", "Cat")})
    obs = envs.act({}, some)
    assert numbers_in(obs, 0) == {"Dog": [0, 1]}
    assert obs.final is not None
    assert numbers_in(obs.final, 0) == {"Dog": [0, 1]}


def future(envs: VecEnv, obs: VecObs, steps: int = 12) -> list[VecObs]:
    rng, frames = np.random.default_rng(1), [obs]
    for _ in range(steps):
        frames.append(envs.act(random_choices(envs, frames[-1], rng), envs.obs_space()))
    return frames[1:]


def tracked(envs: VecEnv) -> VecEnv:
    envs.track()
    return envs


def saved(envs: VecEnv) -> Any:
    state = envs.get_state()
    assert state is not None
    return unpack(pack(state, exact=True))


def restored(envs: VecEnv, state: Any) -> VecObs:
    obs = envs.set_state(state, envs.obs_space())
    assert obs is not None
    return obs


def without_numbers(obs: VecObs) -> VecObs:
    final = None if obs.final is None else without_numbers(obs.final)
    return replace(obs, identity={}, final=final)


def test_sides_of_a_match_number_entities_independently() -> None:
    """Units 0 to 3 are of one type for side 0, and of the other one for side 1."""
    envs = EnvList(Duel, 4)
    envs.track()
    envs.seed(3)
    obs, num_ended, rng = envs.reset(envs.obs_space()), 0, np.random.default_rng(0)
    for _ in range(30):
        assert envs._last is not None
        for i, frame in enumerate(envs._last[0]):
            numbers = {n: [k % 4 for k in ids] for n, ids in frame.ids.items()}  # type: ignore[operator]
            assert numbers_in(obs, i) == numbers
        obs = envs.act(random_choices(envs, obs, rng), envs.obs_space())
        num_ended += int(obs.done.sum())
    assert num_ended > 4


@pytest.mark.slow
@pytest.mark.parametrize(("create_env", "processes"), [(Crowd, 1), (Crowd, 3), (Duel, 2)])
def test_numbers_do_not_depend_on_processes(create_env: Callable[[], Any], processes: int) -> None:
    with contextlib.closing(ParallelEnvList(create_env, 6, processes)) as workers:
        expected = play(tracked(EnvList(create_env, 6)), 25)
        for got, want in zip(play(tracked(workers), 25), expected, strict=True):
            assert_same(got, want)
    assert any(obs.final is not None for obs in expected) == (create_env is Crowd)


@pytest.mark.slow
def test_ids_may_alternate_between_numpy_numbers_and_tuples() -> None:
    """NumPy compares a number with each member of a tuple."""
    envs = EnvList(Named, 4)
    envs.track()
    identities = [obs.identity["Who"] for obs in play(envs, 30)]
    assert all(len({*numbers.values}) > 0 for numbers in identities)


def test_numbers_continue_from_a_state_in_any_number_of_processes() -> None:
    with contextlib.ExitStack() as stack:
        workers = [
            stack.enter_context(contextlib.closing(ParallelEnvList(Crowd, 5, processes)))
            for processes in (1, 2)
        ]
        local = tracked(EnvList(Crowd, 5))
        obs = play(local, 6)[-1]
        state = saved(local)
        expected = future(local, obs)
        for envs in (EnvList(Crowd, 5), *workers):
            last = restored(tracked(envs), state)
            assert_same(last.identity, obs.identity)
            for got, want in zip(future(envs, last), expected, strict=True):
                assert_same(got, want)
        # a state of workers, split and put together, in this process
        last = restored(workers[0], state)
        again = cat_states(split_state(saved(workers[0]), [1, 4]))
        assert pack(again, exact=True) == pack(state, exact=True)
        assert_same(restored(EnvList(Crowd, 5), again), without_numbers(last))


def test_states_without_tracking_start_numbering_at_their_last_frames() -> None:
    episode = Episode([{"Cat": [5, 6]}, {"Cat": [7, 6]}, {"Cat": [5, 7]}, {}], True)

    def made() -> VecEnv:
        return EnvList(lambda: Resumable([episode]), 1)

    states = []
    for envs in (made(), tracked(made())):
        envs.reset(SPACE)
        envs.act({}, SPACE)
        states.append(saved(envs))
    for state, expected in zip(states, ([[0, 1], [2, 0]], [[2, 1], [0, 2]]), strict=True):
        envs = tracked(made())
        frames = restored(envs, state), envs.act({}, SPACE)
        assert [numbers_in(obs, 0)["Cat"] for obs in frames] == expected
    # Environments that are not tracked pass over the numbers of a state.
    envs = made()
    assert restored(envs, states[1]).identity == {}
    assert pack(envs.get_state(), exact=True) == pack(states[0], exact=True)


def test_frames_states_and_recordings_are_unchanged_without_tracking(tmp_path: Path) -> None:
    """So that files stay readable for earlier releases."""
    plain, numbered = EnvList(Crowd, 3), tracked(EnvList(Crowd, 3))
    for actual, other in zip(play(plain, 12), play(numbered, 12), strict=True):
        assert actual.identity == {}
        assert b"identity" not in pack(actual)
        assert pack(actual) == pack(without_numbers(other))
        assert b"identity" in pack(other)
    assert b"identity" not in pack(plain.get_state(), exact=True)
    assert b"identity" in pack(numbered.get_state(), exact=True)
    with contextlib.closing(RecordingVecEnv(EnvList(Crowd, 3), tmp_path / "plain.rec")) as envs:
        play(envs, 5)
    assert b"identity" not in (tmp_path / "plain.rec").read_bytes()


def test_recordings_have_numbers_and_can_be_continued_without(tmp_path: Path) -> None:
    path = tmp_path / "some.rec"
    with contextlib.closing(RecordingVecEnv(tracked(EnvList(Crowd, 2)), path)) as envs:
        frames = play(envs, 6)
    with contextlib.closing(RecordingVecEnv(EnvList(Crowd, 2), path)) as envs:
        play(envs, 6)
    recording = Recording.open(path)
    for step, obs in zip(recording.steps(), frames[:-1], strict=False):
        assert_same(step.decisions.obs.identity, obs.identity)
    episodes = [episode.decisions.obs for episode in recording.episodes()]
    counts = [obs.identity["Cat"].lengths.tolist() for obs in episodes]
    assert counts[0] == episodes[0].features["Cat"].lengths.tolist()
    assert not any(counts[-1])


def test_wrappers_pass_numbers_through() -> None:
    expected = play(tracked(EnvList(Crowd, 3)), 12)
    for wrapped in (AddMetricsWrapper(EnvList(Crowd, 3)), AnyVecEnv(EnvList(Crowd, 3))):
        for got, want in zip(play(tracked(wrapped), 12), expected, strict=True):
            assert_same(got.identity, want.identity)


def test_take_and_cat_preserve_numbers() -> None:
    obs = play(tracked(EnvList(Crowd, 4)), 5)[-1]
    order = np.array([2, 0, 3, 1])
    permuted = obs.take(order)
    assert [numbers_in(permuted, i) for i in range(4)] == [numbers_in(obs, i) for i in order]
    together = VecObs.cat([permuted, without_numbers(obs)])
    assert [numbers_in(together, i) for i in range(4)] == [numbers_in(obs, i) for i in order]
    assert numbers_in(together, 5) == {name: [] for name in TYPES}
    permuted.extend(obs)
    assert [numbers_in(permuted, i) for i in range(4, 8)] == [numbers_in(obs, i) for i in range(4)]


@pytest.mark.alone
@pytest.mark.slow
def test_replaced_workers_number_new_episodes() -> None:
    with contextlib.closing(ParallelEnvList(Crowd, 4, 2, recover="truncate")) as workers:
        before = play(tracked(workers), 1)[-1]
        os.kill(workers._workers[1].process.pid, signal.SIGKILL)
        obs = workers.act(random_choices(workers, before, np.random.default_rng(1)), SPACE)
        assert obs.final is not None
        last = np.flatnonzero(np.flatnonzero(obs.truncated) >= 2)
        for k, i in zip(last.tolist(), (2, 3), strict=True):
            assert numbers_in(obs.final, k) == numbers_in(before, i)
            for begun in numbers_in(obs, i).values():
                assert begun == [*range(len(begun))]


@pytest.mark.slow
@pytest.mark.parametrize(
    "make",
    [
        lambda: EnvList(Crowd, 2),
        lambda: AnyVecEnv(EnvList(Crowd, 2)),
        lambda: AddMetricsWrapper(ParallelEnvList(Crowd, 2, 1)),
    ],
    ids=["here", "any", "workers"],
)
def test_track_rejects_unknown_types_and_calls_after_a_reset(make: Callable[[], VecEnv]) -> None:
    with contextlib.closing(make()) as envs:
        expected = r"^track: expected types among \['Cat', 'Dog', 'Rock'\], got \['Cats'\]$"
        with pytest.raises(EntityEnvError, match=expected):
            envs.track(["Dog", "Cats"])
        assert envs.reset(SPACE).identity == {}
        with pytest.raises(EntityEnvError, match=r"^track: call it before the first reset$"):
            envs.track()
        state = saved(envs)
    with contextlib.closing(make()) as envs:
        restored(envs, state)
        with pytest.raises(EntityEnvError, match="before the first reset"):
            envs.track(["Dog"])


def test_environments_in_array_operations_number_persistent_entities() -> None:
    """Mines stay where they are; heads of snakes have the ids of the plain world."""
    mines, rng = VecMinefield(6, max_mines=4), np.random.default_rng(0)
    mines.track(["Target", "Mine"])
    obs, ends = mines.reset(mines.obs_space()), 0
    for _ in range(300):
        assert list(obs.identity) == ["Mine", "Target"]
        for i in range(6):
            count = len(obs.features["Mine"][i].values)
            assert numbers_in(obs, i) == {"Mine": [*range(count)], "Target": [0]}
        obs = mines.act(random_choices(mines, obs, rng), mines.obs_space())
        ends += int(obs.done.sum())
    assert ends > 0
    snakes, plain = VecMultiSnake(3, num_snakes=3), EnvList(lambda: MultiSnake(num_snakes=3), 3)
    frames = [tracked(envs).reset(envs.obs_space()) for envs in (snakes, plain)]
    assert_same(frames[0].identity["SnakeHead"], frames[1].identity["SnakeHead"])
    for obs in frames:
        assert {name: int(of.lengths.sum()) for name, of in obs.identity.items()} == {
            "SnakeHead": 9,
            "SnakeBody": 0,
            "Food": 0,
        }
    with pytest.raises(EntityEnvError, match="call it before the first reset"):
        snakes.track()


class Others:
    """A vectorised environment that is no `VecEnv`."""

    def obs_space(self) -> ObsSpace:
        return SPACE

    def action_space(self) -> dict[str, Any]:
        return {}


def test_environments_without_numbering_raise() -> None:
    with pytest.raises(EntityEnvError, match=r"^track: Others does not number .*; over"):
        AnyVecEnv(Others()).track()


class Numbers(Others):
    """Number cats as a test says."""

    def __init__(self, identity: dict[str, Ragged]) -> None:
        self.identity = identity

    def __len__(self) -> int:
        return 2

    def track(self, types: Any) -> None:
        pass

    def reset(self, shown: ObsSpace) -> VecObs:
        rows = Ragged(np.zeros((3, 1), np.float32), np.array([1, 2]))
        nothing = np.zeros(2, np.float32), np.zeros(2, np.bool_)
        features = dict.fromkeys(TYPES, rows)
        return VecObs(features, {}, {}, *nothing, {}, identity=self.identity)


@pytest.mark.parametrize(
    ("identity", "expected"),
    [
        ({"Cow": [0, 0, 1]}, r"identity\['Cow'\]: expected types among"),
        ({"Cat": [0.0, 0.0, 1.0]}, "expected int64"),
        ({"Cat": [0, 0, -1]}, "expected numbers from 0"),
        ({"Cat": [0, 0]}, "expected one for each entity, or none"),
    ],
)
def test_numbers_of_third_party_vectorized_environments_are_checked(
    identity: dict[str, list[Any]], expected: str
) -> None:
    rows = {n: Ragged(np.array(v), np.array([1, len(v) - 1])) for n, v in identity.items()}
    envs = AnyVecEnv(Numbers(rows))
    envs.track()
    with pytest.raises(InvalidObservation, match=expected):
        envs.reset(SPACE)
    right = {"Cat": Ragged(np.array([1, 2]), np.array([0, 2]))}
    assert AnyVecEnv(Numbers(right)).reset(SPACE).identity == right


@pytest.mark.parametrize(
    ("ids", "expected"),
    [
        ([1, 1], "expected unique ids, got 1 for two entities"),
        ([[], 1], "expected hashable ids"),
    ],
)
def test_errors_for_ids_of_final_name_the_environment(ids: list[Any], expected: str) -> None:
    """Without tracking these ids are not checked."""
    endings: tuple[Ids, Ids] = {}, {"Cat": ids}
    made = iter([[Episode([{}, {}, ending], True)] for ending in endings] * 2)
    plain, numbered = (EnvList(lambda: Scripted(next(made)), 2) for _ in range(2))
    for envs in (plain, tracked(numbered)):
        envs.reset(SPACE)
        envs.act({}, SPACE)
    plain.act({}, SPACE)
    place = "environment 1, episode 0, step 2: last observation of a truncated episode: "
    with pytest.raises(InvalidObservation, match=rf"{place}ids\['Cat'\]: {expected}"):
        numbered.act({}, SPACE)


@pytest.mark.parametrize(
    ("ids", "expected"),
    [
        ([[1]], "unhashable"),
        ([k * (2**61 - 1) for k in range(2000)], "expected keys with different hashes"),
    ],
)
def test_damaged_numbers_of_a_state_are_an_error(ids: list[Any], expected: str) -> None:
    envs = tracked(EnvList(Crowd, 1))
    envs.reset(SPACE)
    state = saved(envs)
    match = unpack(state["matches"].values.tobytes())
    match["identity"] = [{"Cat": ids}]
    data = np.frombuffer(pack(match, exact=True), np.uint8)
    state["matches"] = Ragged(data, np.array([len(data)]))
    with pytest.raises(EntityEnvError, match=rf"environment 0 \(Crowd\): set_state: .*{expected}"):
        tracked(EnvList(Crowd, 1)).set_state(state, SPACE)


def test_ids_that_are_not_plain_data_raise_even_after_their_entity_is_gone() -> None:
    envs = EnvList(lambda: Resumable([Episode([{"Cat": [object()]}, {}, {}], True)]), 1)
    envs.track()
    envs.reset(SPACE)
    envs.act({}, SPACE)
    with pytest.raises(EntityEnvError, match="ids of this episode: expected plain data, got obj"):
        envs.get_state()
