"""Recordings round-trip, also after a crash of the writer or damage to the file."""

import contextlib
import functools
import json
import os
import signal
import struct
import subprocess
import sys
import tempfile
import time
import zlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgpack
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from entity_env import (
    ActionSpace,
    AddMetricsWrapper,
    EnvList,
    Metric,
    ObsSpace,
    Ragged,
    VecEnv,
    VecObs,
    VecSelectEntityActionMask,
    batch_obs,
)
from entity_env.examples import Duel, Minefield
from entity_env.recording.entity_gym_samples import open_entity_gym_samples
from entity_env.recording.read_recording import Episode, Recording
from entity_env.recording.record import RecordingVecEnv, end_before, recording_header
from entity_env.recording.recording_format import (
    RecordedFrames,
    RecordedStep,
    RecordingError,
    framed,
)
from entity_env.vec.variation import Variation
from tests.entity_env.builders import (
    ROOT,
    SAMPLES,
    Tiny,
    assert_same,
    expected_episodes,
    play,
    random_choices,
)
from tests.entity_env.recording.walk_recordings import record
from tests.entity_env.worlds import Walk
from tests.strategies import World, worlds

EXPECTED = json.loads((SAMPLES / "expected.json").read_text())


class Replay(VecEnv):
    """Shows the frames of a random world, each time from another one on. Only for tests."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.shown: list[VecObs] = []

    def obs_space(self) -> ObsSpace:
        return self.world.obs_space

    def action_space(self) -> dict[str, ActionSpace]:
        return self.world.action_space

    def __len__(self) -> int:
        return len(self.world.frames)

    def render(self, **kwargs: Any) -> Any:
        raise NotImplementedError

    def reset(self, obs_config: ObsSpace) -> VecObs:
        first = len(self.shown) % len(self)
        frames = self.world.frames[first:] + self.world.frames[:first]
        self.shown.append(batch_obs(frames, obs_config, self.world.action_space))
        return self.shown[-1]

    def act(self, actions: Mapping[str, Ragged], obs_filter: ObsSpace) -> VecObs:
        return self.reset(obs_filter)


def record_tiny(path: Path, steps: int) -> None:
    envs = RecordingVecEnv(EnvList(Tiny, 1), path)
    play(envs, steps)
    envs.close()


def outcomes(episodes: list[Episode]) -> list[tuple[int, Any]]:
    return [
        (len(e.rewards), pytest.approx(e.episodic_reward))
        for e in episodes
        if e.ending in ("terminated", "truncated")
    ]


@pytest.mark.slow
@given(worlds(numbers=True), st.integers(1, 3), st.integers(0, 2**32))
def test_frames_and_choices_round_trip(world: World, subsample: int, seed: int) -> None:
    rng = np.random.default_rng(seed)
    replay = Replay(world)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "file")
        envs = RecordingVecEnv(replay, path, subsample, seed)
        obs = envs.reset(world.obs_space)
        done = []
        for _ in range(3):
            actions = random_choices(envs, obs, rng)
            probs = {n: Ragged(rng.random(a.items()), a.lengths) for n, a in actions.items()}
            logits = {n: logits_of(obs, n, space) for n, space in world.action_space.items()}
            drawn = {
                name: Ragged(rng.random(rows.values.shape, np.float32), rows.lengths)
                for name, rows in actions.items()
                if world.action_space[name].components
            }
            done.append((actions, probs, logits, drawn))
            obs = envs.act(actions, world.obs_space, probs, logits, drawn=drawn)
        envs.close()
        recording = Recording.open(path)
        assert_same(recording.obs_space, world.obs_space)
        assert_same(recording.action_space, world.action_space)
        steps = list(recording.steps())
        episodes = list(recording.episodes())
    assert recording.complete
    assert len(steps) == 3
    for step, seen, did, outcome in zip(steps, replay.shown, done, replay.shown[1:], strict=False):
        whole = RecordedFrames(seen.take(np.arange(len(envs))), *did[:3], drawn=did[3])
        assert_same(step.decisions, whole.take(step.kept))
        for name in ("reward", "terminated", "truncated", "final"):
            assert_same(getattr(step, name), getattr(outcome, name))
        if subsample == 1:
            assert step.kept.tolist() == list(range(len(envs)))
    assert sum(len(e.decisions) for e in episodes) == sum(len(s.decisions) for s in steps)
    for episode in episodes:
        check_episode(episode, steps)


def logits_of(obs: VecObs, name: str, space: ActionSpace) -> Ragged:
    mask = obs.action_masks[name]
    if isinstance(mask, VecSelectEntityActionMask):
        lengths = mask.actors.lengths * mask.actees.lengths
        return Ragged(np.arange(lengths.sum(), dtype=np.float32), lengths)
    shape = mask.actors.items(), len(space.names) * (1 + bool(space.components))
    return Ragged(np.full(shape, 0.5, dtype=np.float32), mask.actors.lengths)


def check_episode(episode: Episode, steps: list[RecordedStep]) -> None:
    """An episode is the steps with its number, of one environment, and nothing else."""
    part = [(s, int(row)) for s in steps for row in np.flatnonzero(s.episode == episode.number)]
    assert {row for _, row in part} == {episode.env}
    assert episode.rewards.tolist() == [s.reward[row] for s, row in part]
    indices = [(s, s.kept.tolist().index(row)) for s, row in part if row in s.kept]
    assert episode.steps.tolist() == [s.step[s.kept[k]] for s, k in indices]
    for i, (step, k) in enumerate(indices):
        features = {n: f[i] for n, f in episode.decisions.obs.features.items()}
        assert_same(features, {n: f[k] for n, f in step.decisions.obs.features.items()})
        actions = {n: a[i] for n, a in episode.decisions.actions.items()}
        assert_same(actions, {n: a[k] for n, a in step.decisions.actions.items()})
    last, row = part[-1]
    assert not any(s.terminated[r] or s.truncated[r] for s, r in part[:-1])
    assert (episode.ending == "truncated") == last.truncated[row] == (episode.final is not None)
    assert (episode.ending == "terminated") == last.terminated[row]


def test_recorded_returns_equal_the_metrics(tmp_path: Path) -> None:
    """The reward of a step belongs to the episode that the choice was made in."""
    envs = RecordingVecEnv(AddMetricsWrapper(EnvList(Walk, 4)), tmp_path / "file")
    frames = play(envs, 20)[1:]
    envs.close()
    episodes = list(Recording.open(tmp_path / "file").episodes())
    ended = outcomes(episodes)
    assert expected_episodes(4, 20, [True] * 4) == ended
    metrics = sum((obs.metrics["episodic_reward"] for obs in frames), Metric())
    returns = [e.episodic_reward for e in episodes[: len(ended)]]
    assert (metrics.count, metrics.min, metrics.max) == (len(ended), min(returns), max(returns))
    assert metrics.sum == pytest.approx(sum(returns))
    assert [e.ending for e in episodes[len(ended) :]] == ["unfinished"] * (
        len(episodes) - len(ended)
    )


def test_truncated_episodes_have_their_last_observation(tmp_path: Path) -> None:
    record(tmp_path / "file", 30, 9)
    episodes = list(Recording.open(tmp_path / "file").episodes())
    assert {e.ending for e in episodes} == {"terminated", "truncated", "unfinished"}
    for episode in episodes:
        if episode.final is not None:
            assert episode.final.features["__global__"].values[0, 0] == len(episode.rewards)


@pytest.mark.slow
def test_subsamples_have_all_returns_and_the_same_frames(tmp_path: Path) -> None:
    record(tmp_path / "all", 60)
    record(tmp_path / "some", 60, subsample=3)
    record(tmp_path / "others", 60, subsample=3, seed=1)
    whole, some, other_seed = (
        list(Recording.open(tmp_path / name).episodes()) for name in ("all", "some", "others")
    )
    assert outcomes(some) == outcomes(whole)
    assert [e.final is None for e in some] == [e.final is None for e in whole]
    for part, episode in zip(some, whole, strict=True):
        assert part.number == episode.number
        assert_same(part.decisions.obs.features, episode.decisions.take(part.steps).obs.features)
        assert_same(part.decisions.actions, episode.decisions.take(part.steps).actions)
    num_frames = sum(len(e.decisions) for e in some)
    assert 50 < num_frames < 110, "about 80 of 240"
    assert [e.steps.tolist() for e in some] != [e.steps.tolist() for e in other_seed]


def test_episodes_ended_by_a_reset_are_unfinished(tmp_path: Path) -> None:
    envs = RecordingVecEnv(EnvList(Tiny, 2), tmp_path / "file")
    play(envs, 1)
    play(envs, 2)
    envs.close()
    episodes = list(Recording.open(tmp_path / "file").episodes())
    assert [(e.env, e.ending, e.episodic_reward) for e in episodes] == [
        (0, "unfinished", 1.0),
        (1, "unfinished", 1.0),
        (0, "truncated", 3.0),
        (1, "truncated", 3.0),
    ]


def test_episode_numbers_after_a_reset_have_no_gap(tmp_path: Path) -> None:
    """Episodes that began in the last step, without a step of their own, leave no gap."""
    envs = RecordingVecEnv(EnvList(Tiny, 2), tmp_path / "reset")
    for _ in range(2):
        play(envs, 2)
        record_tiny(tmp_path / "continued", 2)
    envs.close()
    for name in ("reset", "continued"):
        numbers = [e.number for e in Recording.open(tmp_path / name).episodes()]
        assert numbers == [*range(len(numbers))]


def test_steps_can_be_read_immediately(tmp_path: Path) -> None:
    envs = RecordingVecEnv(EnvList(Tiny, 2), tmp_path / "file")
    obs, rng = envs.reset(envs.obs_space()), np.random.default_rng(0)
    for count in range(3):
        recording = Recording.open(tmp_path / "file")
        assert recording.complete
        assert len(list(recording.steps())) == count
        obs = envs.act(random_choices(envs, obs, rng), envs.obs_space())
    envs.close()


def test_errors_of_a_full_disk_name_the_file(tmp_path: Path) -> None:
    path = tmp_path / "file"
    envs = RecordingVecEnv(EnvList(Tiny, 2), path)
    obs, rng = envs.reset(envs.obs_space()), np.random.default_rng(0)
    envs.act(random_choices(envs, obs, rng), envs.obs_space())
    file = envs.writer._file
    assert file is not None
    full = os.open("/dev/full", os.O_WRONLY)
    os.dup2(full, file.fileno())
    os.close(full)
    with pytest.raises(OSError, match=f"No space left on device: '{path}'"):
        envs.act(random_choices(envs, obs, rng), envs.obs_space())
    envs.close()
    assert len(list(Recording.open(path).steps())) == 1


def test_recording_does_not_change_the_frames(tmp_path: Path) -> None:
    for got, expected in zip(
        record(tmp_path / "file", 12), play(EnvList(Walk, 4), 12), strict=True
    ):
        assert_same(got, expected)


KILLED = """
import sys
from pathlib import Path
from tests.entity_env.recording.walk_recordings import record
print("ready", flush=True)
record(Path(sys.argv[1]), 1_000_000)
"""


@pytest.mark.alone
@pytest.mark.slow
def test_a_killed_writer_leaves_all_complete_steps_and_can_be_continued(tmp_path: Path) -> None:
    path = tmp_path / "file"
    rng = np.random.default_rng(int.from_bytes(os.urandom(4), "little"))
    rewards: list[list[float]] = []
    for _ in range(2):
        before = path.stat().st_size if path.exists() else 0
        with subprocess.Popen(
            [sys.executable, "-c", KILLED, str(path)], cwd=ROOT, stdout=subprocess.PIPE
        ) as child:
            assert child.stdout is not None
            child.stdout.readline()
            enough = before + int(rng.integers(5_000, 100_000))  # header and steps
            while not path.exists() or path.stat().st_size < enough:
                assert child.poll() is None
                time.sleep(0.0005)
            child.send_signal(signal.SIGKILL)
        steps = list(Recording.open(path).steps())
        assert [s.reward.tolist() for s in steps[: len(rewards)]] == rewards
        new = steps[len(rewards) :]
        assert len(new) > 0
        expected = play(EnvList(Walk, 4), len(new))[1:]
        assert [s.reward.tolist() for s in new] == [o.reward.tolist() for o in expected]
        rewards = [s.reward.tolist() for s in steps]
    numbers = [e.number for e in Recording.open(path).episodes()]
    assert len(set(numbers)) == len(numbers)


@pytest.mark.slow
def test_truncated_files_can_be_read_and_continued(tmp_path: Path) -> None:
    path, cut = tmp_path / "file", tmp_path / "cut"
    ends = []
    for steps in range(4):  # as many files, each a prefix of the next
        record_tiny(path, steps)
        ends.append(path.stat().st_size)
        data = path.read_bytes()
        path.unlink()
    whole = data
    near_ends = {end + i for end in [0, *ends] for i in range(-14, 15)}  # 12 bytes begin a record
    for length in sorted({*range(0, len(whole), 9), *near_ends} & {*range(len(whole))}):
        cut.write_bytes(whole[:length])
        complete = sum(end <= length for end in ends)
        if complete == 0:
            with pytest.raises(RecordingError, match="ends before its header"):
                Recording.open(cut)
        else:
            recording = Recording.open(cut)
            assert recording.complete == (length in ends)
            rewards = [float(s.reward[0]) for s in recording.steps()]
            assert rewards == [1.0, 2.0, 1.0][: complete - 1]
        if length % 27 == 0 or length in ends:
            record_tiny(cut, 1)
            recording = Recording.open(cut)
            rewards = [float(s.reward[0]) for s in recording.steps()]
            assert rewards == [*[1.0, 2.0, 1.0][: max(complete - 1, 0)], 1.0]
            assert recording.complete


@pytest.mark.slow
def test_every_changed_byte_is_detected(tmp_path: Path) -> None:
    path, damaged = tmp_path / "file", tmp_path / "damaged"
    record_tiny(path, 1)
    data = path.read_bytes()
    rng = np.random.default_rng(0)
    for at in range(len(data)):
        changed = bytearray(data)
        changed[at] ^= int(rng.integers(1, 256))
        damaged.write_bytes(changed)
        with pytest.raises(RecordingError):
            list(Recording.open(damaged).steps())


def test_errors_for_damaged_records_name_the_byte_and_keep_the_file(tmp_path: Path) -> None:
    """A damaged length must not count as a torn record: continuing would delete the rest."""
    path = tmp_path / "file"
    record_tiny(path, 0)
    at = path.stat().st_size
    record_tiny(path, 3)
    data = bytearray(path.read_bytes())
    data[at + 3] ^= 0x7F
    path.write_bytes(data)
    with pytest.raises(RecordingError, match=f"damaged record at byte {at}$"):
        Recording.open(path)
    with pytest.raises(RecordingError, match=f"damaged record at byte {at}$"):
        record_tiny(path, 3)
    assert path.read_bytes() == data
    data[at + 3] ^= 0x7F
    data[at + 40] ^= 1
    path.write_bytes(data)
    with pytest.raises(RecordingError, match=f"damaged record at byte {at}$"):
        list(Recording.open(path).steps())


@pytest.mark.parametrize("payload", [[1], {"obs": 1}, b"\xc1", {"kept": 0}])
def test_records_without_a_step_are_rejected(tmp_path: Path, payload: Any) -> None:
    path = tmp_path / "file"
    record_tiny(path, 0)
    data = payload if isinstance(payload, bytes) else msgpack.packb(payload)
    append(path, len(data), data)
    with pytest.raises(RecordingError, match="at byte"):
        list(Recording.open(path).steps())


def test_a_length_beyond_the_file_is_a_torn_record_and_allocates_nothing(tmp_path: Path) -> None:
    path = tmp_path / "file"
    record_tiny(path, 2)
    append(path, 2**32 - 1, b"few")
    recording = Recording.open(path)
    assert not recording.complete
    assert len(list(recording.steps())) == 2


def append(path: Path, length: int, data: bytes) -> None:
    head = struct.pack("<II", length, zlib.crc32(data))
    with path.open("ab") as file:
        file.write(head + struct.pack("<I", zlib.crc32(head)) + data)


@pytest.mark.parametrize(
    ("num_envs", "options", "named"),
    [
        (3, {}, "num_envs"),
        (4, {"subsample": 2}, "subsample"),
        (4, {"seed": 2}, "seed"),
    ],
)
def test_recordings_with_another_header_are_not_continued(
    tmp_path: Path, num_envs: int, options: Any, named: str
) -> None:
    record(tmp_path / "file", 2)
    before = (tmp_path / "file").read_bytes()
    with pytest.raises(RecordingError, match=f"recorded with another {named}$"):
        record(tmp_path / "file", 2, num_envs, **options)
    assert (tmp_path / "file").read_bytes() == before


@pytest.mark.parametrize("content", [b"a", b"a letter to somebody", b"enn-rec\0\3\0\0\0"])
def test_other_files_are_rejected_and_unchanged(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "file"
    path.write_bytes(content)
    with pytest.raises(RecordingError, match=r"not a recording|format version 1 or 2, got 3"):
        Recording.open(path)
    with pytest.raises(RecordingError, match=r"not a recording|format version 1 or 2, got 3"):
        record_tiny(path, 1)
    assert path.read_bytes() == content


def record_run(path: Path, run: str, first: int, steps: int) -> None:
    """As a trainer does, with one frame in a step. Only for tests."""
    envs = RecordingVecEnv(EnvList(Tiny, 1), path, run=run, keep_logits=False)
    obs, rng = envs.reset(envs.obs_space()), np.random.default_rng(0)
    for run_step in range(first, first + steps):
        actions = random_choices(envs, obs, rng)
        value, space = np.full(1, run_step / 2, dtype=np.float32), envs.obs_space()
        obs = envs.act(actions, space, logits=actions, values=value, run_step=run_step)
    envs.stop()
    envs.env.act(random_choices(envs, obs, rng), space)  # goes on, and is not recorded
    envs.close()


def test_values_and_run_step_are_recorded_and_logits_are_optional(tmp_path: Path) -> None:
    record_run(tmp_path / "file", "mine", 10, 5)
    steps = list(Recording.open(tmp_path / "file").steps())
    assert [s.run_step for s in steps] == [10, 11, 12, 13, 14]
    assert [s.decisions.values.tolist() for s in steps] == [[5.0], [5.5], [6.0], [6.5], [7.0]]
    assert all(s.decisions.logits == {} for s in steps)
    episodes = list(Recording.open(tmp_path / "file").episodes())
    assert [e.decisions.values.tolist() for e in episodes] == [[5.0, 5.5], [6.0, 6.5], [7.0]]
    record(tmp_path / "other", 1)
    (step,) = Recording.open(tmp_path / "other").steps()
    assert step.run_step is None
    assert np.isnan(step.decisions.values).all()
    assert step.decisions.values.shape == (4,)


def test_end_before_returns_the_position_of_a_run_step(tmp_path: Path) -> None:
    path = tmp_path / "file"
    record_run(path, "mine", 0, 3)
    before = path.read_bytes()
    record_run(path, "mine", 3, 4)
    envs = EnvList(Tiny, 1)
    header = recording_header(envs.obs_space(), envs.action_space(), 1, run="mine")
    assert end_before(path, header, 3) == len(before)
    assert end_before(path, header, 100) == path.stat().st_size
    assert before[: end_before(path, header, 0)].endswith(framed(header))
    with pytest.raises(RecordingError, match=r"recorded with another run$"):
        end_before(path, {**header, "run": "yours"}, 3)
    with pytest.raises(RecordingError, match=r"recorded with another run$"):
        record_tiny(path, 1)  # of no run
    (tmp_path / "torn").write_bytes(before[:20])
    assert end_before(tmp_path / "torn", header, 3) == 0


def test_recorded_logprobs_equal_the_input(tmp_path: Path) -> None:
    """Includes probabilities close to 0 and 1."""
    envs = RecordingVecEnv(EnvList(Tiny, 5), tmp_path / "file")
    obs = envs.reset(envs.obs_space())
    logprobs = np.array([-1e-9, -0.1, -1.0, -100.0, -700.0])
    probs = {"go": Ragged(np.exp(logprobs), np.ones(5, dtype=np.int64))}
    envs.act(random_choices(envs, obs, np.random.default_rng(0)), envs.obs_space(), probs)
    envs.close()
    (step,) = Recording.open(tmp_path / "file").steps()
    np.testing.assert_allclose(step.decisions.logprobs["go"].values, logprobs, rtol=1e-6)


@settings(max_examples=15)
@given(st.lists(st.lists(st.text(max_size=5), min_size=3, max_size=3), max_size=4), st.data())
def test_players_are_recorded_per_frame(names: list[list[str]], data: st.DataObject) -> None:
    """With any names; also in a sub-sample, by episode, and in any order of frames."""
    subsample = data.draw(st.integers(1, 2))
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "file")
        envs = RecordingVecEnv(EnvList(Tiny, 3), path, subsample)
        obs, rng = envs.reset(envs.obs_space()), np.random.default_rng(0)
        for players in names:
            actions = random_choices(envs, obs, rng)
            obs = envs.act(actions, envs.obs_space(), player=players)
        envs.close()
        steps = list(Recording.open(path).steps())
        episodes = list(Recording.open(path).episodes())
    by_frame = {}
    for step, players in zip(steps, names, strict=True):
        recorded = [players[env] for env in step.kept]
        assert step.decisions.player.tolist() == recorded
        at = zip(step.episode[step.kept].tolist(), step.step[step.kept].tolist(), strict=True)
        by_frame |= zip(at, recorded, strict=True)
    by_episode = {
        (one.number, int(number)): player
        for one in episodes
        for number, player in zip(one.steps, one.decisions.player, strict=True)
    }
    assert by_episode == by_frame
    if steps:
        joined = RecordedFrames.cat([step.decisions for step in steps])
        order = np.array(data.draw(st.permutations(range(len(joined)))), np.int64)
        assert joined.take(order).player.tolist() == joined.player[order].tolist()


def test_players_are_omitted_if_the_agent_is_the_only_one(tmp_path: Path) -> None:
    """Earlier releases can read the file, and earlier files have the agent as player."""
    for name, player in (("plain", None), ("agent", ["", ""]), ("pool", ["", "step-0"])):
        envs = RecordingVecEnv(EnvList(Tiny, 2), tmp_path / name)
        envs.seed(1)
        obs = envs.reset(envs.obs_space())
        actions = random_choices(envs, obs, np.random.default_rng(0))
        envs.act(actions, envs.obs_space(), player=player)
        envs.close()
    plain, agent, pool = ((tmp_path / n).read_bytes() for n in ("plain", "agent", "pool"))
    assert plain == agent
    assert b"player" not in plain
    assert len(plain) < len(pool) < len(plain) + 60
    (step,) = Recording.open(tmp_path / "plain").steps()
    assert step.decisions.player.tolist() == ["", ""]


def test_misuse_raises(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="subsample: expected at least 1, got 0"):
        RecordingVecEnv(EnvList(Tiny, 1), tmp_path / "file", subsample=0)
    envs = RecordingVecEnv(EnvList(Tiny, 2), tmp_path / "file")
    with pytest.raises(RecordingError, match="call reset first"):
        envs.act({}, envs.obs_space())
    obs = envs.reset(envs.obs_space())
    actions = random_choices(envs, obs, np.random.default_rng(0))
    with pytest.raises(RecordingError, match="obs_filter: expected the space of the recording"):
        envs.act(actions, ObsSpace())
    with pytest.raises(ValueError, match=r"probs\['go'\]: expected 2 frames, got 1"):
        envs.act(actions, envs.obs_space(), probs={"go": actions["go"][0]})
    with pytest.raises(ValueError, match="values: expected 2 frames, got 1"):
        envs.act(actions, envs.obs_space(), values=np.zeros(1, dtype=np.float32))
    with pytest.raises(ValueError, match="player: expected 2 frames, got 1"):
        envs.act(actions, envs.obs_space(), player=["step-0"])
    envs.close()
    envs.close()


@pytest.mark.slow
def test_split_partitions_the_episodes(tmp_path: Path) -> None:
    record(tmp_path / "file", 60)
    recording = Recording.open(tmp_path / "file")
    train, test = recording.split(0.25, seed=3)
    numbers = [{e.number for e in part.episodes()} for part in (recording, train, test)]
    assert numbers[0] == numbers[1] | numbers[2]
    assert not numbers[1] & numbers[2]
    assert 0.15 < len(numbers[2]) / len(numbers[0]) < 0.35
    assert max(numbers[2]) > len(numbers[0]) / 2, "not the earliest"
    assert {e.number for e in recording.split(0.25, seed=4)[1].episodes()} != numbers[2]
    for step, first, second in zip(recording.steps(), train.steps(), test.steps(), strict=True):
        assert set(step.episode[first.kept]) <= numbers[1]
        assert set(step.episode[second.kept]) <= numbers[2]
        assert sorted([*first.kept, *second.kept]) == step.kept.tolist()
        assert len(first.decisions) == len(first.kept)
    assert list(recording.split(1.0, 0)[0].episodes()) == []
    assert list(recording.split(0.0, 0)[1].episodes()) == []
    inner = {e.number for e in train.split(0.5, seed=5)[1].episodes()}
    assert inner < numbers[1]
    with pytest.raises(ValueError, match="test_fraction: expected a number from 0 to 1, got 2"):
        recording.split(2, 0)


def assert_rows(got: Ragged, expected: Any) -> None:
    if not expected["lengths"]:  # entity-gym's word for no rows at all
        assert got.items() == 0
        return
    assert got.lengths.tolist() == expected["lengths"]
    assert got.values.tolist() == np.array(expected["values"]).reshape(got.values.shape).tolist()


def check_sample(decisions: RecordedFrames, sample: Any) -> None:
    for name, rows in decisions.obs.features.items():
        assert len(rows) == len(decisions)
        assert_rows(rows, sample["features"][name])
    for what, named in (
        ("visible", decisions.obs.visible),
        ("actions", decisions.actions),
        ("probs", decisions.probs),
        ("logits", decisions.logits),
    ):
        assert named.keys() == sample[what].keys()
        for name, rows in named.items():
            assert_rows(rows, sample[what][name])
    for name, mask in decisions.obs.action_masks.items():
        fields = {key: rows for key, rows in vars(mask).items() if rows is not None}
        assert fields.keys() == sample["masks"][name].keys()
        for key, rows in fields.items():
            assert_rows(rows, sample["masks"][name][key])


@pytest.mark.parametrize("name", ["full", "subsampled"])
def test_entity_gym_samples_match_its_own_reader(name: str) -> None:
    expected = EXPECTED[name]
    recording = open_entity_gym_samples(SAMPLES / f"{name}.bin")
    steps = list(recording.steps())
    last_left_out = expected["samples"][: -1 if name == "full" else None]
    for step, sample in zip(steps, last_left_out, strict=True):
        assert step.episode.tolist() == sample["episode"]
        check_sample(step.decisions, sample)
    assert recording.complete
    assert recording.subsample == expected["subsample"]
    assert recording.obs_space.global_features == expected["global_features"]
    entities = {key: entity.features for key, entity in recording.obs_space.entities.items()}
    assert entities == expected["entities"]
    labels = {k: getattr(v, "index_to_label", None) for k, v in recording.action_space.items()}
    assert labels == expected["labels"]


def test_returns_of_entity_gym_samples_are_correct() -> None:
    """Its own loader adds the last reward of an episode to the next one."""
    expected = EXPECTED["full"]["finished_episodes"]
    recording = open_entity_gym_samples(SAMPLES / "full.bin")
    assert recording.num_envs == EXPECTED["full"]["num_envs"]
    episodes = list(recording.episodes())
    assert [
        {"number": e.number, "env": e.env, "length": len(e.rewards), "return": e.episodic_reward}
        for e in episodes
        if e.ending == "terminated"
    ] == expected
    steps = list(recording.steps())
    for episode in episodes:
        check_episode(episode, steps)


def test_missing_fields_of_entity_gym_subsamples_are_none_or_nan() -> None:
    recording = open_entity_gym_samples(SAMPLES / "subsampled.bin")
    assert recording.num_envs is None
    episodes = list(recording.episodes())
    assert {(e.env, e.ending) for e in episodes} == {(None, "unknown")}
    assert all(np.isnan(e.episodic_reward) for e in episodes)
    frames = sum(len(sample["episode"]) for sample in EXPECTED["subsampled"]["samples"])
    assert sum(len(e.decisions) for e in episodes) == frames


def test_episodes_ended_by_a_reset_in_entity_gym_files_are_unfinished(tmp_path: Path) -> None:
    """Two concatenated recordings have the steps of a reset: they begin again."""
    data = (SAMPLES / "full.bin").read_bytes()
    after_header = 16 + struct.unpack("<Q", data[8:16])[0]
    (tmp_path / "twice").write_bytes(data + data[after_header:])
    once = open_entity_gym_samples(SAMPLES / "full.bin")
    twice = list(open_entity_gym_samples(tmp_path / "twice").episodes())
    returns = sorted((e.episodic_reward, e.ending) for e in once.episodes())
    assert sorted((e.episodic_reward, e.ending) for e in twice) == sorted(returns * 2)
    assert len({e.number for e in twice}) == len(twice)


def samples_file(path: Path, header: Any) -> Path:
    data = msgpack.packb(header)
    path.write_bytes(struct.pack("<QQ", 1, len(data)) + data)
    return path


def test_pickles_and_other_classes_in_samples_are_rejected(tmp_path: Path) -> None:
    pickled = {b"nd": True, b"type": "|O", b"kind": b"O", b"shape": [1], b"data": b"\x80\x04N."}
    for value, message in (
        (pickled, "array of numbers"),
        ({**pickled, b"type": "<f4"}, "array of numbers"),
        ({**pickled, b"type": [["a", "<f4"]], b"kind": b"V"}, "array of numbers"),
        ({"__classname__": "Popen", "data": {}}, "got 'Popen'"),
    ):
        with pytest.raises(RecordingError, match=message):
            open_entity_gym_samples(samples_file(tmp_path / "file", {"act_space": value}))
    with pytest.raises(RecordingError, match="spaces"):
        open_entity_gym_samples(samples_file(tmp_path / "file", {}))


@pytest.mark.slow
def test_truncated_samples_are_read_and_damaged_ones_rejected(tmp_path: Path) -> None:
    """Such files have no checksums: damaged numbers cannot be detected, damaged structure can."""
    data = (SAMPLES / "full.bin").read_bytes()
    path = tmp_path / "file"
    header_end = 16 + struct.unpack("<Q", data[8:16])[0]
    for length in [0, 7, 15, header_end - 1]:
        path.write_bytes(data[:length])
        with pytest.raises(RecordingError, match=r"is not a sample file|ends before its header"):
            open_entity_gym_samples(path)
    for length in [*range(header_end + 1, len(data), 5999), len(data) - 1]:
        path.write_bytes(data[:length])
        recording = open_entity_gym_samples(path)
        assert not recording.complete
        assert len(list(recording.steps())) < 11
    rng = np.random.default_rng(0)
    for at in rng.integers(0, len(data), 40):
        changed = bytearray(data)
        changed[at] ^= int(rng.integers(1, 256))
        path.write_bytes(changed)
        with contextlib.suppress(RecordingError):
            list(open_entity_gym_samples(path).episodes())


VARIED = Variation.of({"max_mines": "int 0 9", "width": "uniform 60 90"})
SHORT = functools.partial(Minefield, max_steps=4)


def varied(path: Path, seed: int = 5, **options: Any) -> RecordingVecEnv:
    """Return recorded environments with varying arguments."""
    envs = RecordingVecEnv(EnvList(SHORT, 3), path, **options)
    envs.seed(seed)
    envs.vary(VARIED)
    return envs


@pytest.mark.parametrize("subsample", [1, 3])
def test_episodes_have_their_drawn_arguments(tmp_path: Path, subsample: int) -> None:
    envs = varied(tmp_path / "file", subsample=subsample)
    play(envs, 22)
    envs.close()
    episodes = [*Recording.open(tmp_path / "file").episodes()]
    assert len(episodes) > 12
    count: dict[int, int] = {}
    for episode in sorted(episodes, key=lambda episode: episode.number):
        assert episode.env is not None
        number = count[episode.env] = count.get(episode.env, -1) + 1
        assert episode.parameters == VARIED.arguments(5, episode.env, number)


def test_all_sides_of_a_match_have_the_same_arguments(tmp_path: Path) -> None:
    envs = RecordingVecEnv(EnvList(Duel, 4), tmp_path / "file")
    envs.seed(0)
    envs.vary(Variation.of({"squad": "int 1 5"}))
    play(envs, 1)
    envs.close()
    squads = [one.parameters["squad"] for one in Recording.open(tmp_path / "file").episodes()]
    assert squads[0] == squads[1]
    assert squads[2] == squads[3]


def test_continued_episodes_keep_their_arguments(tmp_path: Path) -> None:
    envs = varied(tmp_path / "file")
    play(envs, 6)
    state = envs.get_state()
    assert state is not None
    envs.close()
    other = varied(tmp_path / "file", seed=99)  # the seed of the state holds
    obs = other.set_state(state, other.obs_space())
    assert obs is not None
    rng = np.random.default_rng(0)
    for _ in range(8):
        obs = other.act(random_choices(other, obs, rng), other.obs_space())
    other.close()
    episodes = sorted(Recording.open(tmp_path / "file").episodes(), key=lambda e: e.number)
    count: dict[int, int] = {}
    for e in episodes:
        assert e.env is not None
        number = count[e.env] = count.get(e.env, -1) + 1
        assert e.parameters == VARIED.arguments(5, e.env, number)
    assert min(count.values()) >= 2


def test_files_are_unchanged_without_drawn_arguments(tmp_path: Path) -> None:
    record(tmp_path / "file", 8)
    data = (tmp_path / "file").read_bytes()
    assert b"parameters" not in data
    assert all(one.parameters == {} for one in Recording.open(tmp_path / "file").episodes())
