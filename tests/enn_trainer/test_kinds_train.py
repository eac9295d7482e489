"""Runs in a world with kinds: workers, saves, recordings, agents."""

import hashlib
from copy import deepcopy
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from enn_trainer import ConfigError, StateManager, TrainConfig, load_agent, load_checkpoint, train
from enn_trainer.base.tables import rows_of_spaces
from enn_trainer.check_agent import check_agent
from enn_trainer.checkpoints.state_files import to_files
from enn_trainer.config import ron
from enn_trainer.config.build import as_data
from enn_trainer.experience.demonstrations import check_same_spaces
from enn_trainer.experience.read_demonstrations import RecordingReader
from enn_trainer.run.running_episodes import continue_episodes, take_episodes
from entity_env import Entity, EnvList, Flag, Kind, Observation, ObsSpace
from entity_env.recording.read_recording import Recording
from entity_env.recording.record import RecordingVecEnv
from entity_env.serialization.messages import pack
from entity_env.spaces import Spaces
from entity_env.testing.random_play import differences, fields_of, random_choices
from rogue_net import RogueNet, RogueNetConfig
from tests.enn_trainer.builders import SMALL, run_small, weights
from tests.enn_trainer.resuming import assert_same, assert_same_clocks, go
from tests.entity_env.kinds_world import COLORS, SEASONS, SPACE, Sorter
from tests.golden.make_checkpoint import Farm

REORDERED = ObsSpace(
    global_features=["time", Kind("season", SEASONS[::-1])],
    entities={
        "Wall": Entity([]),
        "Sign": Entity([Kind("color", COLORS[::-1])]),
        "Ball": Entity(["x", Flag("open"), Kind("color", ["blue", "red", "green"])]),
    },
)


class Reordered(Sorter):
    """The same world with its types, kinds and labels in another order."""

    def obs_space(self) -> ObsSpace:
        return REORDERED

    def _observe(self, reward: float) -> Observation:
        obs = super()._observe(reward)
        obs.features["Ball"] = [[x, is_open, c] for x, c, is_open in obs.features["Ball"]]  # type: ignore[misc]
        return obs


@pytest.mark.slow
def test_a_run_does_not_depend_on_workers(tmp_path: Path) -> None:
    alone = run_small(tmp_path, env=Sorter)
    assert torch.equal(
        weights(alone), weights(run_small(tmp_path, "rollout.processes=2", env=Sorter))
    )
    arrays = run_small(tmp_path, env=lambda: Sorter(as_arrays=True))
    assert torch.equal(weights(alone), weights(arrays))


SETTINGS = [
    *("rollout.num_envs=4", "rollout.steps=3", "rollout.processes=1", "optim.bs=6"),
    *("net.d_model=8", "net.n_layer=1", "total_timesteps=24", "capture_samples=rollouts.rec"),
]


@pytest.mark.slow
def test_a_resumed_run_continues_bit_for_bit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("enn_trainer.tracking.track._new_run_name", lambda runs, config: "it")
    go(tmp_path / "one", Sorter, *SETTINGS)
    go(tmp_path / "other", Sorter, *SETTINGS, stops=0)
    go(tmp_path / "other", Sorter, *SETTINGS)
    one, other = (load_checkpoint(tmp_path / name / "run").state for name in ("one", "other"))
    assert_same(one, other)
    assert_same_clocks(one, other)
    assert one.obs_space == SPACE
    files = [tmp_path / name / "rollouts.rec" for name in ("one", "other")]
    assert files[0].read_bytes() == files[1].read_bytes()
    # The recording has the frames of the run.
    recording = Recording.open(files[0])
    assert recording.obs_space == SPACE
    steps = list(recording.steps())
    assert all(step.decisions.obs.kinds.keys() == SPACE.kinds.keys() for step in steps)
    finals = [step.final for step in steps if step.final is not None]
    assert finals
    assert all(final.kinds["Sign"].values.shape == (len(final), 1) for final in finals)


def test_an_environment_without_categories_has_the_same_bytes_as_before(tmp_path: Path) -> None:
    """Recordings, messages of workers and spaces in saves, from before there were kinds."""
    envs = RecordingVecEnv(EnvList(Farm, 3), tmp_path / "frames.rec")
    envs.seed(1)
    space, rng, messages = envs.obs_space(), np.random.default_rng(0), []
    batch = envs.reset(space)
    for _ in range(10):
        messages.append(pack(batch))
        batch = envs.act(random_choices(batch, envs.action_space(), rng), space)
    envs.close()
    of_save = ron.dumps(as_data(space)).encode()
    digests = [
        hashlib.sha256(data).hexdigest()[:16]
        for data in ((tmp_path / "frames.rec").read_bytes(), b"".join(messages), of_save)
    ]
    assert digests == ["da8a6fc0817801fd", "a5fd24e9cb0052a2", "f3ab1d34faf450dd"]


def test_restored_environments_keep_their_labels() -> None:
    envs, others = EnvList(Sorter, 3), EnvList(Sorter, 3)
    envs.seed(1)
    first = envs.reset(SPACE)
    state = envs.get_state()
    assert state is not None
    again = others.set_state(state, SPACE)
    assert again is not None
    assert not differences(fields_of(first), fields_of(again))


def test_episodes_of_labels_in_another_order_are_not_continued(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Saved frames have indices, and the same columns."""
    envs, config = EnvList(Sorter, 3), TrainConfig()
    envs.seed(1)
    envs.reset(SPACE)
    state: Any = SimpleNamespace(envs=take_episodes(envs, config, 0), step=0, obs_space=SPACE)
    assert continue_episodes(envs, state, config, "run")[0] is not None
    other = deepcopy(SPACE)
    other.global_kinds[0].labels.reverse()
    monkeypatch.setattr("tests.entity_env.kinds_world.SPACE", other)
    restored, why = continue_episodes(EnvList(Sorter, 3), state, config, "run")
    assert restored is None
    assert why == "the environment has features, types or labels in another order"


def test_recordings_are_read_with_the_labels_of_the_network(tmp_path: Path) -> None:
    """As cloning does."""
    path = tmp_path / "frames.rec"
    envs = RecordingVecEnv(EnvList(Sorter, 3), path)
    envs.seed(1)
    batch, rng = envs.reset(SPACE), np.random.default_rng(0)
    for _ in range(20):
        batch = envs.act(random_choices(batch, envs.action_space(), rng), SPACE)
    envs.close()
    recordings = {path: Recording.open(path)}
    own, other = (
        RecordingReader(space, gamma=0.9, device=torch.device("cpu")).read(recordings)
        for space in (SPACE, REORDERED)
    )
    assert own is not None
    assert other is not None
    names = {}
    for space, read in ((SPACE, own), (REORDERED, other)):
        for name, kinds in space.kinds.items():
            rows = read.batch.kinds[name]
            assert rows.lengths.tolist() == read.batch.features[name].lengths.tolist()
            for column, kind in enumerate(kinds):
                labels = [kind.labels[i] for i in rows.values[:, column]]
                assert len({*labels}) > 1
                assert names.setdefault((name, kind.name), labels) == labels
    check_same_spaces("a", recordings[path], "b", Spaces(REORDERED, Sorter().action_space()))
    fewer = ObsSpace(["time", Kind("season", ["dry"])], REORDERED.entities)
    with pytest.raises(ConfigError, match=r"labels of global.season: added \['wet'\]"):
        check_same_spaces("a", recordings[path], "b", Spaces(fewer, Sorter().action_space()))


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> StateManager:
    folder = tmp_path_factory.mktemp("run")
    return run_small(folder, env=Sorter, checkpoint_dir=folder / "run")


def frame(env: Any) -> Observation:
    env.seed(5)
    return env.reset()  # type: ignore[no-any-return]


def probabilities(agent: Any, obs: Observation) -> Any:
    return agent.act(obs).actions["do"].probs


def test_a_save_contains_labels(run: StateManager) -> None:
    assert run.checkpoint_dir is not None
    state = load_checkpoint(run.checkpoint_dir).state
    assert state.obs_space == SPACE
    assert torch.equal(weights(run), torch.cat([p.flatten() for p in state.agent.parameters()]))
    files = to_files(run.config, run.state)
    text = b"".join(files["state.ron"].split())
    assert b'Kind(name:"color",labels:["red","green","blue",],)' in text


def test_an_agent_acts_with_labels_in_another_order(run: StateManager) -> None:
    assert run.checkpoint_dir is not None
    agent = load_agent(run.checkpoint_dir, deterministic=True)
    other = load_agent(run.checkpoint_dir, deterministic=True, env=Reordered())
    for seed in range(3):
        worlds = Sorter(), Reordered()
        for world in worlds:
            world.seed(seed)
        expected, got = (
            probabilities(a, w.reset()) for a, w in zip((agent, other), worlds, strict=True)
        )
        np.testing.assert_allclose(got, expected, rtol=1e-5)


@pytest.mark.slow
def test_a_run_continues_with_labels_in_another_order(run: StateManager, tmp_path: Path) -> None:
    """The filter gives the frames of the save: the weights stay as they are."""
    overrides = [*SMALL, "total_timesteps=96", f"data_dir={tmp_path}"]
    finals = []
    for env in (Sorter, Reordered):
        manager = StateManager(overrides=overrides, init_path=run.checkpoint_dir)
        train(manager, env)
        assert manager.state.obs_space == SPACE
        finals.append(manager)
    assert torch.isfinite(weights(finals[1])).all()


def test_networks_pass_the_check_of_agents() -> None:
    torch.manual_seed(0)
    actions = Sorter().action_space()
    net = RogueNet(RogueNetConfig(d_model=16), SPACE, actions, {"value": 1})
    check_agent(net, SPACE, actions)


def test_tables_show_labels() -> None:
    rows = dict(rows_of_spaces(SPACE, {}))
    assert rows["global"] == "time, season (dry, wet)"
    assert rows["entity Ball"] == "x, color (red, green, blue), open (False, True)"


def test_tables_show_the_number_and_the_first_of_many_labels() -> None:
    """A kind has up to 32,768 of them, all of which would be on one line."""
    words = Kind("word", [f"word{i}" for i in range(1000)])
    row = dict(rows_of_spaces(ObsSpace(["time", words]), {}))["global"]
    assert row.startswith("time, word (1000 labels: word0, word1, word2, ")
    assert row.endswith("...)")
    assert len(row) < 120


class Picker(Sorter):
    """Take the red balls."""

    def _wanted(self, ball: list[Any]) -> bool:
        return bool(ball[1] == "red")


@pytest.mark.slow
def test_labels_are_learnt(tmp_path: Path) -> None:
    """No number says what to do. In a fifth of the frames there is nothing to do: 4 at most."""
    settings = ["total_timesteps=4096", "rollout.num_envs=64", "rollout.steps=8", "net.n_layer=1"]
    settings += ["rollout.processes=1", "optim.bs=128", "optim.lr=0.01", "net.d_model=16"]
    manager = StateManager(overrides=[*settings, f"data_dir={tmp_path}"])
    train(manager, Picker)
    assert manager.state.metrics["episodic_reward.mean"] > 3.7
