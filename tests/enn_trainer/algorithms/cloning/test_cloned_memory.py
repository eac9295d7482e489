"""Memory learnt from recordings: sequences of recorded episodes, alone and beside PPO."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from enn_trainer import (
    BCConfig,
    ConfigError,
    OptimizerConfig,
    StateManager,
    TrainConfig,
    clone,
    load_agent,
    train,
)
from enn_trainer.algorithms.algorithm import Clock
from enn_trainer.algorithms.cloning.cloning import Cloning, imitation_losses, loss_of
from enn_trainer.algorithms.cloning.cloning_loss import CloningLoss, draw_sequences
from enn_trainer.config.load import load_config
from enn_trainer.config.ppo_config import PPOConfig
from enn_trainer.experience.collector import Collector, play
from enn_trainer.experience.demonstrations import Demonstrations, open_recordings
from enn_trainer.experience.players import AgentPlayer
from enn_trainer.experience.read_demonstrations import RecordingReader
from enn_trainer.experience.recording import Recorder
from enn_trainer.runtime.execution import DEFAULT_CONTEXT
from entity_env import Environment, EnvList
from entity_env.examples import HiddenArm, Shells
from entity_env.ragged import Ragged
from entity_env.recording.read_recording import Recording
from entity_env.recording.recording_format import RecordedFrames, RecordingError
from rogue_net import RogueNet, RogueNetConfig
from rogue_net.config import MemoryConfig
from rogue_net.ragged import RaggedTensor
from rogue_net.rogue_net import RogueNetWithValueNet
from tests.enn_trainer.demonstrated import (
    config,
    knows_the_ball,
    record_knowing,
    rewrite,
    tries_all_arms,
)
from tests.enn_trainer.experience.fog import FRAMES, MEMORY, copy_until, run
from tests.enn_trainer.experience.fog_world import Fog
from tests.enn_trainer.resuming import assert_same

CPU = torch.device("cpu")
REMEMBERS = RogueNetConfig(
    d_model=8, n_layer=1, memory=MemoryConfig(inputs=["action", "reward"], keep_absent=2)
)
BESIDE = ("optim.bs=16",)
"""Of PPO, whose minibatches have whole sequences too."""


def quiet(message: str) -> None:
    """Say nothing."""


def network(memory: RogueNetConfig = REMEMBERS, value_net: bool = False) -> Any:
    """A network of `Fog` whose memory changes its answers."""
    torch.manual_seed(0)
    world = Fog()
    spaces = world.obs_space(), world.action_space()
    if not value_net:
        net: Any = RogueNet(memory, *spaces, {"value": 1})
    else:
        net = RogueNetWithValueNet(memory, memory, *spaces)
    with torch.no_grad():
        for parameter in net.parameters():
            if not parameter.any():
                parameter.normal_(0, 0.5)
    return net.eval()


def record_fog(path: Path, net: Any, steps: int = 24) -> Path:
    """Let a network play, and record what it did and how probable that was."""
    envs = EnvList(Fog, 8)
    recorder = Recorder(path, envs.action_space())
    player = AgentPlayer(net, seed=3)
    collector = Collector(envs, player, watchers=[recorder])
    with torch.no_grad():
        play(collector, Fog().obs_space(), steps, seed=1)
    recorder.close()
    return path


def read(path: Path, net: Any, seq_len: int = 64, **options: Any) -> Demonstrations:
    reading = RecordingReader(Fog().obs_space(), 1.0, CPU, agent=net, seq_len=seq_len, **options)
    shown = reading.read(open_recordings([path]))
    assert shown is not None
    return shown


def judged(net: Any, shown: Demonstrations) -> Any:
    """The answers of a network for recorded frames and choices."""
    with torch.no_grad():
        return net(shown.batch, actions={name: x.values for name, x in shown.actions.items()})


def played(folder: Path, world: Environment, games: int) -> float:
    """The mean return of a saved agent."""
    agent, total = load_agent(folder), 0.0
    world.seed(5)
    for _ in range(games):
        obs, first = world.reset(), True
        while not obs.done:
            obs, first = world.act(agent.act(obs, first=first).actions), False
            total += obs.reward
    return total / games


# -- What is learnt ----------------------------------------------------------------------------


@pytest.fixture(scope="module")
def shells(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A recording of somebody who knows where the ball is."""
    path = tmp_path_factory.mktemp("shells") / "shells.rec"
    return record_knowing(path, Shells, knows_the_ball, 48, num_envs=32)


@pytest.mark.slow
def test_recurrent_clone_solves_the_task_and_continues_with_ppo(
    shells: Path, tmp_path: Path
) -> None:
    """Of 3 to 6 cups that look alike, one in .24 is right without memory."""
    small = ("clone.epochs=3", "clone.lr=0.02", *BESIDE)
    result = clone(shells, config("net.memory=()", *small), tmp_path / "run", say=quiet)
    assert result.test is not None
    assert result.test.accuracy["choose"] > 0.9
    assert played(tmp_path / "run", Shells(), 40) > 0.9
    manager = StateManager(overrides=["total_timesteps=72"], checkpoint_dir=tmp_path / "run")
    train(manager, Shells)
    assert manager.state.step == 72
    assert played(tmp_path / "run", Shells(), 40) > 0.9


@pytest.mark.slow
def test_clone_without_memory_or_identity_fails_the_task(shells: Path, tmp_path: Path) -> None:
    """Controls: the same choices, which do not follow from what the network knows."""
    without = clone(shells, config("clone.epochs=3"), say=quiet)
    nameless = record_knowing(
        tmp_path / "rec", Shells, knows_the_ball, 48, track=False, num_envs=32
    )
    said: list[str] = []
    settings = ("net.memory=()", "clone.epochs=3", *BESIDE)
    by_frame = clone(nameless, config(*settings), say=said.append)
    for result in (without, by_frame):
        assert result.test is not None
        assert result.test.accuracy["choose"] < 0.5
    (line,) = [one for one in said if "identity" in one and "Cup" in one]
    assert "RECORDING: " in line
    assert "entities of Cup have no identity and get no memory" in line


@pytest.mark.soak
def test_recorded_choices_and_rewards_enter_memory(tmp_path: Path) -> None:
    """Nothing else tells which arm pays; 4 of 20 pulls do by chance, 18 at best.

    That they enter memory as they did while acting, the comparison of probabilities below shows.
    """
    path = record_knowing(tmp_path / "rec", HiddenArm, tries_all_arms, 60, num_envs=32)
    memory = 'net.memory=(of: "frame", inputs: ["action", "reward"])'
    clone(path, config(memory, "clone.epochs=15", *BESIDE), tmp_path / "run", say=quiet)
    assert played(tmp_path / "run", HiddenArm(), 30) > 16


# -- Sequences ---------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("value_net", [False, True], ids=["shared", "vf_net"])
def test_logprobs_of_recorded_frames_are_reproduced(tmp_path: Path, value_net: bool) -> None:
    """With all that entered memory: those who are absent or hidden, choices and rewards."""
    net = network(value_net=value_net)
    path = record_fog(tmp_path / "fog.rec", net)
    shown = read(path, net)
    episodes = [*Recording.open(path).episodes()]
    assert shown.lengths.tolist() == [len(episode.steps) for episode in episodes]
    recorded = RecordedFrames.cat([episode.decisions for episode in episodes])
    assert recorded.obs.identity["Beast"].values.any()
    out = judged(net, shown)
    for name, logprobs in recorded.logprobs.items():
        found = out.logprobs[name].numpy()
        np.testing.assert_allclose(found, logprobs.values, rtol=1e-4, atol=1e-5)
    values = out.values["value"].flatten().numpy()
    np.testing.assert_allclose(values, recorded.values, rtol=1e-4, atol=1e-5)


@pytest.mark.slow
def test_sequence_within_an_episode_starts_with_empty_memory(tmp_path: Path) -> None:
    """Sequences of one episode do not depend on each other, and rewards before them are known."""
    net = network()
    path = record_fog(tmp_path / "fog.rec", net)
    whole, cut = read(path, net), read(path, net, seq_len=3)
    assert cut.lengths.max() == 3
    assert len(cut) == len(whole) == cut.lengths.sum()
    assert whole.batch.past is not None
    assert cut.batch.past is not None
    assert np.array_equal(whole.batch.past.reward, cut.batch.past.reward)
    together, apart = judged(net, cut), []
    for i in range(len(cut.lengths)):
        apart.append(judged(net, cut.take_sequences(np.array([i]))).values["value"])
    torch.testing.assert_close(torch.cat(apart), together.values["value"], rtol=1e-4, atol=1e-5)
    first = np.flatnonzero(whole.batch.past.level < 3)
    values = judged(net, whole).values["value"]
    torch.testing.assert_close(values[first], together.values["value"][first])
    later = np.flatnonzero(whole.batch.past.level >= 3)
    assert not torch.allclose(values[later], together.values["value"][later])


def halves(decisions: RecordedFrames) -> None:
    """Somebody else played in the second half of all episodes' frames, and a person a part."""
    decisions.player[len(decisions) // 2 :] = "other"
    decisions.by_hand = {
        name: Ragged(np.arange(len(rows.values)) % 3 == 0, rows.lengths)
        for name, rows in decisions.actions.items()
    }


def alternating(decisions: RecordedFrames) -> None:
    """The players of a game change in every frame."""
    number = int(decisions.obs.features["__global__"].values[0, 0])
    decisions.player[:] = "other" if number % 2 else ""


@pytest.mark.slow
@pytest.mark.parametrize("change", [halves, alternating])
def test_choices_that_are_not_imitated_enter_memory(tmp_path: Path, change: Any) -> None:
    """Choices of others, and frames in which others play on in the same seat."""
    net = network()
    path = record_fog(tmp_path / "fog.rec", net)
    changed = rewrite(path, tmp_path / "changed.rec", change)
    all_of, own = read(path, net), read(changed, net, who="hand")
    kept = [e for e in Recording.open(changed).episodes() if (e.decisions.player == "").any()]
    numbers = {episode.number for episode in kept}
    episodes = [episode.number for episode in Recording.open(path).episodes()]
    of_kept = np.flatnonzero([number in numbers for number in episodes])
    same, recorded = all_of.take_sequences(of_kept), RecordedFrames.cat([e.decisions for e in kept])
    out, expected = judged(net, own), judged(net, same)
    losses, everybody = (
        imitation_losses(*pair, "cross_entropy") for pair in ((out, own), (expected, same))
    )
    is_own = recorded.player == ""
    for name, rows in recorded.actions.items():
        is_learnt = np.repeat(is_own, rows.lengths) & recorded.is_by_hand(name, unknown=True)
        assert 0 < len(losses[name]) == is_learnt.sum() < len(is_learnt)
        torch.testing.assert_close(losses[name], everybody[name][torch.from_numpy(is_learnt)])
    assert own.num_actors().sum() == sum(map(len, losses.values()))
    assert own.returns[~is_own].isnan().all()


def test_losses_do_not_depend_on_microbatches(tmp_path: Path) -> None:
    """Of cloning alone: whole sequences, each frame once."""
    net = network()
    shown = read(record_fog(tmp_path / "fog.rec", net), net, seq_len=4)
    run_config = config("net.memory=()", "clone.bs=16", "clone.seq_len=4", *BESIDE)
    algorithm = Cloning(run_config, net, shown)
    batches = algorithm.batches(shown, epoch=3)
    assert sorted(np.concatenate(batches).tolist()) == [*range(len(shown.lengths))]
    assert all(shown.lengths[units].sum() <= 16 for units in batches)
    _, _, whole = loss_of(net, shown, "cross_entropy", PPOConfig())
    cut = algorithm.score(shown, 1, DEFAULT_CONTEXT)
    assert cut.actors == whole.actors
    assert float(cut.imitation) == pytest.approx(float(whole.imitation), rel=1e-5)


# -- Beside PPO --------------------------------------------------------------------------------


@pytest.mark.slow
def test_gradient_does_not_depend_on_microbatches_of_sequences(tmp_path: Path) -> None:
    net = network()
    path = record_fog(tmp_path / "fog.rec", net)
    shown, net = read(path, net, seq_len=4), net.double()
    rows = shown.batch.features.items()
    features = {name: RaggedTensor(x.values.double(), x.lengths) for name, x in rows}
    shown = replace(shown, batch=replace(shown.batch, features=features))
    assert len(shown) > 24

    def gradient(**limits: int) -> torch.Tensor:
        net.zero_grad()
        bc, optim = BCConfig(str(path), 1.0, 24, seq_len=4), replace(OptimizerConfig(), **limits)  # type: ignore[arg-type]
        plain = load_config(TrainConfig, None, ["net.memory=()", "ppo.seq_len=4"])
        loss = CloningLoss(replace(plain, bc=bc, optim=optim), net)
        loss.demonstrations = shown
        assert loss.begin_update(Clock(0, 0.0))
        loss.add_gradient(0, DEFAULT_CONTEXT)
        return torch.cat([p.grad.flatten() for p in net.parameters() if p.grad is not None])

    whole = gradient()
    assert net.memory.cell.weight_hh.grad.any()
    torch.testing.assert_close(gradient(micro_bs=4), whole, rtol=1e-6, atol=1e-12)
    torch.testing.assert_close(gradient(max_entities=9), whole, rtol=1e-6, atol=1e-12)


def test_minibatches_have_whole_sequences_within_the_size() -> None:
    lengths = np.array([4, 4, 1, 3, 4, 2])
    for step in range(20):
        drawn = draw_sequences(lengths, 8, 7, step)
        assert 0 < lengths[drawn].sum() <= 8
        assert len(set(drawn.tolist())) == len(drawn)
        assert drawn.tolist() == draw_sequences(lengths, 8, 7, step).tolist()
    assert sorted(draw_sequences(lengths, 100, 7, 0).tolist()) == [*range(6)]


@pytest.mark.slow
def test_resumed_run_draws_the_same_sequences(tmp_path: Path) -> None:
    path = record_fog(tmp_path / "fog.rec", network())
    settings = [MEMORY, f"bc.path={path}", "bc.bs=8", "bc.seq_len=4"]
    straight = run(tmp_path / "straight", 3, *settings)
    copy_until(tmp_path / "straight", 2 * FRAMES, tmp_path / "parts")
    parts = run(tmp_path / "parts", 3, *settings)
    assert_same(straight.state, parts.state)
    other = run(tmp_path / "other", 3, *settings[:-1], "bc.seq_len=2")
    weights = [
        torch.cat([p.flatten() for p in m.state.agent.parameters()]) for m in (straight, other)
    ]
    assert not torch.equal(*weights)


@pytest.mark.slow
def test_run_reports_entities_without_identity_in_the_recording(tmp_path: Path) -> None:
    path = record_fog(tmp_path / "fog.rec", network())

    def forget(decisions: RecordedFrames) -> None:
        decisions.obs.identity = {}

    nameless, said = rewrite(path, tmp_path / "nameless.rec", forget), list[str]()
    StateManager.say, before = staticmethod(said.append), StateManager.say
    try:
        run(tmp_path / "run", 1, MEMORY, f"bc.path={nameless}", "bc.bs=64")
    finally:
        StateManager.say = before  # type: ignore[method-assign]
    found = [line for line in said if "no identity" in line]
    assert [line.split()[-1] for line in found] == ["reset"] * 2
    assert all(line.startswith(f"bc.path: {nameless}: ") for line in found)


def test_files_with_and_without_identity_can_be_combined(tmp_path: Path) -> None:
    one = record_knowing(tmp_path / "one", Shells, knows_the_ball, 8, num_envs=4)
    two = record_knowing(tmp_path / "two", Shells, knows_the_ball, 8, track=False, num_envs=4)
    for settings in (["net.memory=()", *BESIDE], []):
        said: list[str] = []
        small = config("clone.epochs=1", "clone.test_fraction=0", *settings)
        clone([two, one], small, say=said.append)
        assert (
            len([line for line in said if "of Cup have no identity" in line]) == len(settings) // 2
        )


# -- Bad input ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        (["clone.seq_len=4"], r"clone\.seq_len: expected a network with memory \(net\.memory\)"),
        (["net.memory=()", "clone.bs=100"], r"clone\.bs: expected a multiple of clone\.seq_len=64"),
        (["net.memory=()", "clone.seq_len=7"], r"clone\.bs: expected a multiple .*=7.* got 64"),
        (
            ["net.memory=()", "optim.micro_bs=32"],
            r"optim\.micro_bs: expected at least clone\.seq_len=64",
        ),
        (["net.memory=()", "clone.seq_len=0"], r"clone\.seq_len: expected a finite number of at"),
    ],
)
def test_invalid_sequence_settings_of_clone_are_one_line_errors(
    settings: Sequence[str], expected: str
) -> None:
    with pytest.raises(ConfigError, match=expected):
        config(*settings, *BESIDE)


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        (["bc.seq_len=4"], r"bc\.seq_len: expected a network with memory"),
        (["net.memory=()", "bc.bs=100"], r"bc\.bs: expected a multiple of bc\.seq_len=64"),
        (["net.memory=()", "optim.micro_bs=63"], r"optim\.micro_bs: expected at least bc\.seq_len"),
    ],
)
def test_invalid_sequence_settings_of_bc_are_one_line_errors(
    settings: Sequence[str], expected: str
) -> None:
    with pytest.raises(ConfigError, match=expected):
        load_config(TrainConfig, None, ["bc.path=x.rec", *settings])


def test_recordings_without_data_for_memory_raise(tmp_path: Path) -> None:
    nameless = record_knowing(tmp_path / "one", Shells, knows_the_ball, 8, False, num_envs=4)
    entity = config('net.memory=(of: "entity")', *BESIDE)
    expected = r"RECORDING: expected a recording with the identity of entities, for net\.memory"
    with pytest.raises(ConfigError, match=expected):
        clone(nameless, entity, say=quiet)
    expected = r"bc\.path: .*one: expected a recording with the identity of entities"
    with pytest.raises(ConfigError, match=expected):
        run_bc(nameless, 'net.memory=(of: "entity")', tmp_path)
    sampled = record_knowing(tmp_path / "two", Shells, knows_the_ball, 8, num_envs=4, subsample=2)
    expected = r"net\.memory: expected a recording of all frames, .*two, which was sub-sampled"
    with pytest.raises(ConfigError, match=expected):
        clone(sampled, config("net.memory=()", *BESIDE), say=quiet)
    with pytest.raises(ConfigError, match=expected):
        run_bc(sampled, "net.memory=()", tmp_path)
    golden = Path(__file__).parents[3] / "golden" / "entity_gym_samples" / "subsampled.bin"
    with pytest.raises(ConfigError, match=r"net\.memory: .*subsampled\.bin, which was sub-sampled"):
        clone(golden, config('net.memory=(of: "frame")', *BESIDE), say=quiet)


def run_bc(path: Path, memory: str, tmp_path: Path) -> None:
    settings = [memory, f"bc.path={path}", "total_timesteps=64", "rollout.num_envs=4"]
    more = ["rollout.processes=1", "rollout.steps=16", "optim.bs=16", f"data_dir={tmp_path}"]
    train(StateManager(overrides=[*settings, *more]), Shells)


def test_episode_with_missing_frames_raises(tmp_path: Path) -> None:
    net = network()
    path = record_fog(tmp_path / "fog.rec", net, steps=2)
    recording = Recording.open(path)
    (episode, *_) = recording.episodes()
    reading = RecordingReader(Fog().obs_space(), 1.0, CPU, agent=net)
    with pytest.raises(RecordingError, match=r"fog\.rec: episode 0: expected all its frames"):
        reading._sequences(path, [replace(episode, steps=2 * episode.steps)])
