"""Cloning: what is learnt from recordings, and that it is a run which PPO continues."""

import re
import shlex
import signal
import subprocess
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from enn_trainer import (
    CheckpointError,
    CloneResult,
    ConfigError,
    NotFiniteError,
    StateManager,
    clone,
    load_agent,
    load_checkpoint,
    train,
)
from enn_trainer.algorithms.cloning.cloning import CloneScore, Cloning, loss_of, value_scale
from enn_trainer.algorithms.optimizers import value_norm
from enn_trainer.checkpoints import format as checkpoint
from enn_trainer.checkpoints import writer
from enn_trainer.checkpoints.run_dir import RunDir
from enn_trainer.checkpoints.run_lock import LOCK
from enn_trainer.checkpoints.state import init_train_state
from enn_trainer.cli import run as enn
from enn_trainer.experience.demonstrations import Demonstrations, open_recordings
from enn_trainer.experience.read_demonstrations import RecordingReader
from enn_trainer.run.clone import CloningStopped, run_epochs
from enn_trainer.runtime.execution import ExecutionContext
from entity_env import Observation
from entity_env.examples import Xor
from entity_env.play.game import play_by_hand
from entity_env.recording.read_recording import Recording
from entity_env.recording.record import recording_header
from entity_env.recording.recording_format import PREFIX, framed
from rogue_net import RogueNet, RogueNetConfig
from tests.enn_trainer.builders import run_pool
from tests.enn_trainer.demonstrated import SMALL, CutOff, Sorting, config, record
from tests.fork_server import ENN, start_program

SAMPLES = Path(__file__).parents[2] / "golden" / "entity_gym_samples"
STEPS = 30
"""Of the recordings from which something is learnt."""
LEARNS = ("clone.epochs=4", "clone.lr=0.04", "clone.bs=48")
"""Enough to learn it."""


def quiet(message: str) -> None:
    """Say nothing."""


def weights(result: CloneResult) -> torch.Tensor:
    return torch.cat([p.detach().flatten() for p in result.state.agent.parameters()])


def score_kept(result: CloneResult) -> CloneScore:
    assert result.test is not None
    return result.test


@pytest.fixture(scope="module")
def expert(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A recording of somebody who knows what to do, with logits."""
    path = tmp_path_factory.mktemp("expert") / "expert.rec"
    return record(path, steps=STEPS, logits=True)


@pytest.fixture(scope="module")
def few(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The beginning of the same, from which little is learnt."""
    return record(tmp_path_factory.mktemp("few") / "expert.rec", steps=8, logits=True)


@pytest.fixture(scope="module")
def cloned(expert: Path) -> CloneResult:
    """A clone of it that has learnt all there is."""
    return clone(expert, config(*LEARNS), say=quiet)


@pytest.mark.slow
def test_cloning_reproduces_the_recorded_choices(cloned: CloneResult) -> None:
    accuracy = score_kept(cloned).accuracy
    assert accuracy.keys() == {"side", "pick"}
    assert min(accuracy.values()) > 0.95


def test_kl_loss_reproduces_the_recorded_choices(expert: Path) -> None:
    """Masks lead to no NaN, although the published loss is NaN as soon as anything is masked."""
    result = clone(expert, config("clone.loss=kl", "clone.epochs=3", "clone.lr=0.03"), say=quiet)
    assert min(score_kept(result).accuracy.values()) > 0.95
    assert torch.isfinite(weights(result)).all()
    assert np.isfinite(score_kept(result).mean_loss(0.5))


@pytest.mark.slow
def test_random_choices_cannot_be_cloned(tmp_path: Path) -> None:
    """A control: the same frames, with choices that do not follow from them."""
    path = record(tmp_path / "rec", steps=STEPS, at_random=True)
    result = clone(path, config(*LEARNS), say=quiet)
    assert max(score_kept(result).accuracy.values()) < 0.8


def test_the_value_function_learns_the_returns(expert: Path, cloned: CloneResult) -> None:
    """So that PPO does not begin by unlearning what a value head that knows nothing tells it."""
    assert score_kept(cloned).explained_variance > 0.9
    without = clone(expert, config("clone.epochs=3", "clone.value_coef=0"), say=quiet)
    assert score_kept(without).explained_variance < 0.1


@pytest.mark.slow
@pytest.mark.parametrize(
    "settings",
    [
        ("ppo.value_loss=huber",),
        (
            "ppo.value_loss=hl_gauss",
            "ppo.value_bins.low=-4",
            "ppo.value_bins.high=4",
        ),
        ("vf_net.d_model=16",),
        ("ppo.value_norm=false",),
        ("ppo.value_norm=false", "ppo.reward_scaling=true"),
    ],
)
def test_every_kind_of_value_function_learns_the_returns(
    expert: Path, settings: tuple[str, ...]
) -> None:
    result = clone(expert, config(*LEARNS, *settings), say=quiet)
    assert score_kept(result).explained_variance > 0.8


def test_kl_without_logits_is_refused(tmp_path: Path) -> None:
    path = record(tmp_path / "rec", steps=4)
    with pytest.raises(ConfigError, match=r"clone.loss='kl': expected a recording with the logits"):
        clone(path, config("clone.loss=kl"), say=quiet)


@pytest.fixture(scope="module")
def league(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The rollouts of a run against a pool."""
    folder = tmp_path_factory.mktemp("league")
    run_pool(folder / "run", f"capture_samples={folder / 'league.rec'}", "total_timesteps=432")
    return folder / "league.rec"


def frames_alone(path: Path, player: str) -> Path:
    """A recording of the frames of one player, which does not say who played."""
    recording = Recording.open(path)
    assert recording.num_envs is not None
    header = recording_header(recording.obs_space, recording.action_space, recording.num_envs)
    payloads = [header]
    for step in recording.steps():
        own = np.flatnonzero(step.decisions.player == player)
        decisions = replace(step.decisions.take(own), player=np.full(len(own), "", object))
        payloads.append({**vars(step), **decisions.payload(), "kept": step.kept[own]})
        del payloads[-1]["decisions"]
    alone = path.with_name(f"alone{player}.rec")
    alone.write_bytes(PREFIX + b"".join(map(framed, payloads)))
    return alone


@pytest.mark.slow
@pytest.mark.parametrize("player", ["", "step-0"])
def test_only_frames_of_the_selected_player_are_cloned(league: Path, player: str) -> None:
    """Those of the agent by default; to the bit as from a file that holds no others."""
    few = config("clone.epochs=1")
    own = clone(league, config("clone.epochs=1", f"clone.player={player}"), say=quiet)
    alone = clone(frames_alone(league, player), few, say=quiet)
    assert torch.equal(weights(own), weights(alone))
    by_default = clone(league, few, say=quiet)
    assert torch.equal(weights(own), weights(by_default)) == (player == "")


@pytest.mark.slow
def test_the_command_clones_a_player(
    league: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    command = ["clone", str(league), *SMALL, "clone.epochs=1", "env.id=Duel"]
    folder = ["--checkpoint-dir", str(tmp_path / "run")]
    assert enn([*command, "--player", "step-1", *folder]) == 2
    told = capsys.readouterr().err
    assert "clone.player: expected a player of the recording" in told
    assert "['', 'step-0', 'step-288'], got 'step-1', did you mean step-0?" in told
    assert enn([*command, "--player", "step-0", *folder]) == 0
    saved = load_agent(tmp_path / "run").agent.state_dict()
    own = clone(league, config("clone.epochs=1", "clone.player=step-0"), say=quiet)
    for name, tensor in own.state.agent.state_dict().items():
        assert torch.equal(saved[name], tensor), name


def test_choices_of_a_person_are_cloned(tmp_path: Path) -> None:
    """It holds no probabilities."""
    path = tmp_path / "played.rec"
    typed = iter(["1"] * 1000)
    play_by_hand(Xor, lambda _: next(typed), quiet, seed=1, episodes=30, record=path)
    result = clone(path, config("clone.epochs=20"), say=quiet)
    assert score_kept(result).accuracy == {"output": 1.0}


@pytest.mark.parametrize("name", ["full", "subsampled"])
def test_recordings_of_entity_gym_are_cloned(tmp_path: Path, name: str) -> None:
    said: list[str] = []
    result = clone(
        SAMPLES / f"{name}.bin", config("clone.test_fraction=0"), tmp_path, say=said.append
    )
    assert result.train is not None
    assert np.isfinite(result.train.mean_loss(0.5))
    assert load_agent(tmp_path).obs_space.entities
    if name == "subsampled":  # such files tell no returns
        assert result.train.num_returns == 0
        assert any("of unknown episodes" in line for line in said)


def test_the_test_is_without_dropout_and_gradients(
    expert: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: set[tuple[bool, bool]] = set()
    forward = RogueNet.forward

    def noting(net: RogueNet, *args: Any, **kwargs: Any) -> Any:
        seen.add((net.training, torch.is_grad_enabled()))
        return forward(net, *args, **kwargs)

    monkeypatch.setattr(RogueNet, "forward", noting)
    clone(expert, config("clone.epochs=1", "net.resid_pdrop=0.1"), say=quiet)
    assert seen == {(True, True), (False, False)}


def test_fewer_frames_than_a_batch_and_no_test_frames_are_enough(tmp_path: Path) -> None:
    path = record(tmp_path / "rec", steps=1, num_envs=3)
    said: list[str] = []
    result = clone(path, config("clone.test_fraction=0"), say=said.append)
    assert result.epochs == 12
    assert result.test is None
    assert "no test episodes: no early stopping, the last weights are kept" in said
    with pytest.raises(
        ConfigError, match=r"expected episodes with choices to train on.* lower clone\.test_frac"
    ):
        clone(path, config("clone.test_fraction=0.999999"), say=quiet)


@pytest.mark.slow
def test_the_best_weights_are_kept_with_early_stopping(tmp_path: Path) -> None:
    """What was done at random can be learnt by heart, which makes it worse elsewhere."""
    path = record(tmp_path / "rec", steps=20, at_random=True)
    said: list[str] = []
    settings = config("clone.epochs=40", "clone.patience=4", "clone.lr=0.02", "clone.value_coef=0")
    result = clone(path, settings, say=said.append)
    losses = [float(m[1]) for line in said if (m := re.search(r"test loss (\S+)", line))]
    best = int(np.argmin(losses))
    assert result.epochs == len(losses) == best + 5 < 40
    assert losses[-1] > losses[best] + 0.01
    test = read_part(path, settings, of_test=True)
    norm = value_norm(result.state.agent)
    kept = loss_of(result.state.agent, test, "cross_entropy", settings.ppo, norm=norm)[2]
    assert kept.mean_loss(0.0) == pytest.approx(losses[best], abs=1e-4)
    assert score_kept(result).mean_loss(0.0) == pytest.approx(losses[best], abs=1e-4)


def read_part(path: Path, settings: Any, of_test: bool) -> Demonstrations:
    from entity_env.seeding import derive_seed

    recordings = open_recordings([path])
    seed = derive_seed(settings.seed, "clone split")
    parts = {p: r.split(settings.clone.test_fraction, seed)[of_test] for p, r in recordings.items()}
    reading = RecordingReader(recordings[path].obs_space, 1.0, torch.device("cpu"))
    read = reading.read(parts)
    assert read is not None
    return read


@pytest.mark.slow
def test_a_clone_is_a_function_of_recording_and_configuration(few: Path) -> None:
    short = ("clone.epochs=2", "net.resid_pdrop=0.1")
    first, again = (clone(few, config(*short), say=quiet) for _ in range(2))
    other = clone(few, config(*short, "seed=2"), say=quiet)
    assert torch.equal(weights(first), weights(again))
    assert not torch.equal(weights(first), weights(other))


@pytest.mark.slow
def test_results_do_not_depend_on_the_microbatch_size(few: Path) -> None:
    short = ("clone.epochs=1", "net.resid_pdrop=0.1", "optim.name=SGD", "clone.lr=0.1")
    whole = clone(few, config(*short), say=quiet)
    for limit in ("optim.micro_bs=7", "optim.max_entities=20"):
        pieces = clone(few, config(*short, limit), say=quiet)
        torch.testing.assert_close(weights(whole), weights(pieces), rtol=1e-4, atol=1e-5, msg=limit)


def test_input_statistics_are_of_the_training_frames(expert: Path) -> None:
    settings = config("clone.epochs=1")
    result = clone(expert, settings, say=quiet)
    things = read_part(expert, settings, of_test=False).batch.features["thing"].values.double()
    norm = result.state.agent.get_submodule("embedding.by_type./thing.norm")
    assert norm.count.tolist() == [len(things)] * len(norm.count)
    assert torch.isclose(norm.mean, things.mean(dim=0)).any()  # beside what is global


@pytest.mark.slow
def test_ppo_continues_from_a_clone(expert: Path, tmp_path: Path) -> None:
    run_dir = tmp_path / "run"
    result = clone(expert, config(f"data_dir={tmp_path}", "clone.epochs=1"), run_dir, say=quiet)
    assert result.checkpoint == run_dir / "step-000000000000"
    begun = StateManager(checkpoint_dir=run_dir)
    for name, tensor in result.state.agent.state_dict().items():
        assert torch.equal(begun.state.agent.state_dict()[name], tensor), name
    assert not any(optimizer.state for optimizer in begun.state.optimizers())  # fresh moments
    actions, value = load_agent(run_dir, deterministic=True).act(with_workers())
    assert {"side", "pick"} >= actions.keys()
    assert np.isfinite(value)
    manager = StateManager(checkpoint_dir=run_dir, overrides=["total_timesteps=48"])
    assert train(manager, Sorting).step == 48
    assert not torch.equal(
        torch.cat([p.detach().flatten() for p in manager.state.agent.parameters()]),
        weights(result),
    )
    count = "embedding.by_type./thing.norm.count"  # statistics go on, and do not begin again
    assert (manager.state.agent.state_dict()[count] > result.state.agent.state_dict()[count]).all()
    elsewhere = StateManager(init_path=run_dir / "step-000000000000")
    assert train(elsewhere, Sorting).step == 48


def test_ppo_continues_with_the_scale_of_the_recorded_returns(few: Path, tmp_path: Path) -> None:
    settings = config("ppo.reward_scaling=true", "clone.epochs=1", "ppo.gamma=1")
    clone(few, settings, tmp_path / "run", say=quiet)
    returns = read_part(few, settings, of_test=False).returns
    scaling = load_checkpoint(tmp_path / "run").state.reward_scaling
    assert scaling is not None
    expected = returns[~returns.isnan()].double().std(unbiased=False)
    assert expected != 1
    torch.testing.assert_close(scaling.deviation(), expected)


def with_workers() -> Any:
    env = Sorting()
    env.seed(0)
    return next(
        obs for _ in range(99) if (obs := env.reset()).actions and len(obs.features["worker"])
    )


def test_a_folder_with_a_run_is_refused_before_anything_is_read(tmp_path: Path) -> None:
    path = record(tmp_path / "rec", steps=4)
    clone(path, config("clone.epochs=1"), tmp_path / "run", say=quiet)
    with pytest.raises(CheckpointError, match="expected a folder for a new run, got one"):
        clone(path, config(), tmp_path / "run", say=pytest.fail)


def test_the_folder_of_a_clone_is_locked(tmp_path: Path) -> None:
    path, run_dir = record(tmp_path / "rec", steps=4), tmp_path / "run"
    run_dir.mkdir()
    with RunDir(run_dir).lock(), pytest.raises(CheckpointError, match="run that is not locked"):
        clone(path, config("clone.epochs=1"), run_dir, say=quiet)
    refused = []

    def begin_there(line: str) -> None:
        if (run_dir / LOCK).read_text() and line.startswith("epoch"):
            with pytest.raises(CheckpointError, match="is not locked"), RunDir(run_dir).lock():
                pass
            refused.append(line)

    clone(path, config("clone.epochs=1"), run_dir, say=begin_there)
    assert refused
    with RunDir(run_dir).lock():  # free again
        pass


@pytest.mark.parametrize("step", [0, 7])
def test_a_clone_does_not_overwrite_a_save_written_meanwhile(step: int, tmp_path: Path) -> None:
    path, run_dir = record(tmp_path / "rec", steps=4), tmp_path / "run"

    def write(line: str) -> None:
        if line.startswith("epoch"):
            writer.save(run_dir, step, {"a": b"b"}, "of somebody else")

    with pytest.raises(CheckpointError, match="expected a folder for a new run, got one"):
        clone(path, config("clone.epochs=1"), run_dir, say=write)
    (saved,) = RunDir(run_dir).saved_paths()
    assert checkpoint.verify(saved).manifest["why"] == "of somebody else"


def test_a_loss_that_is_not_finite_names_epoch_and_batch(expert: Path) -> None:
    with pytest.raises(NotFiniteError, match=r"epoch 1, batch 2 of \d+: the loss is .*clone\.lr"):
        clone(expert, config("clone.lr=1e30"), say=quiet)


@pytest.mark.parametrize("test_fraction", ["0", "0.1"])
def test_weights_that_are_not_finite_are_not_saved(
    expert: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], test_fraction: str
) -> None:
    """One step is enough, whose loss and gradient, of before it, are as they should be."""
    run_dir = tmp_path / "run"
    settings = ["clone.lr=1e30", "clone.epochs=1", "clone.bs=100000"]
    settings.append(f"clone.test_fraction={test_fraction}")
    assert enn(["clone", str(expert), *SMALL, *settings, "--checkpoint-dir", str(run_dir)]) == 1
    error = capsys.readouterr().err
    assert re.match(r"error: epoch 1, after the update: not finite are .* clone\.lr\n$", error)
    assert [path.name for path in run_dir.iterdir()] == [LOCK]


def test_a_test_loss_that_is_not_finite_names_the_epoch(expert: Path) -> None:
    settings = config("clone.lr=1e15", "clone.epochs=1", "clone.bs=100000")
    with pytest.raises(NotFiniteError, match=r"epoch 1: expected a finite test loss, got .*lr"):
        clone(expert, settings, say=quiet)


def test_a_gradient_that_is_not_finite_ends_cloning(expert: Path) -> None:
    """Its step is left out, which nobody would see."""
    recording = open_recordings([expert])[expert]
    spaces = recording.obs_space, recording.action_space
    net = RogueNet(RogueNetConfig(d_model=8), *spaces, {"value": 1})
    parameter = next(net.parameters())
    parameter.register_hook(lambda gradient: gradient * torch.inf)
    with pytest.raises(NotFiniteError, match=r"epoch 1, batch 1 of \d+: the norm of the gradient"):
        clone(expert, config(), agent=net, say=quiet)


class Large(Sorting):
    """The same with large rewards."""

    def _observe(self, reward: float) -> Observation:
        return super()._observe(1000 * reward)


class Won(Sorting):
    """The same with a reward at the end alone, so that returns hardly differ."""

    def _observe(self, reward: float) -> Observation:
        return super()._observe(float(reward > 0 and self.left == 0))


@pytest.mark.slow
@pytest.mark.parametrize("world", [Large, Won])
def test_cloning_is_independent_of_rewards(tmp_path: Path, world: Any) -> None:
    """Else the value's error fills the clipped gradient, and says which weights are the best."""
    path = record(tmp_path / "rec", steps=STEPS, world=world)
    result = clone(path, config(*LEARNS, "ppo.gamma=0.99"), say=quiet)
    assert min(score_kept(result).accuracy.values()) > 0.95


def test_the_loss_of_a_value_of_0_is_the_coefficient_for_every_size_of_returns() -> None:
    squared, huber = config("ppo.value_loss=mse").ppo, config("ppo.huber_delta=1").ppo
    returns = torch.tensor([3.0, -1.0, torch.nan])
    assert value_scale(returns, squared) == pytest.approx((9 + 1) / 2)
    assert value_scale(1000 * returns, squared) == pytest.approx(5e6)
    assert value_scale(returns, huber) == pytest.approx((2 * 2.5 + 1) / 2)  # 2.5 = 3 - 1 / 2
    assert value_scale(0 * returns, huber) == value_scale(returns[2:], huber) == 1.0


@pytest.mark.parametrize("tested", [0, 1])
def test_a_long_test_can_be_stopped_and_the_best_so_far_is_kept(expert: Path, tested: int) -> None:
    settings = config("clone.bs=64", "clone.test_fraction=0.5", "clone.lr=0.001")
    train, test = (read_part(expert, settings, of_test=of_test) for of_test in (False, True))
    recording = open_recordings([expert])[expert]
    spaces = {"obs_space": recording.obs_space, "action_space": recording.action_space}
    state, said, asked = init_train_state(settings, spaces), list[str](), list[bool]()

    def check() -> None:
        asked.append(not state.agent.training and len(said) == tested)
        if asked[-1]:
            raise CloningStopped

    algorithm = Cloning(settings, state.agent, train)
    num, best = run_epochs(algorithm, train, test, ExecutionContext(check=check), said.append)
    assert asked.count(True) == 1
    assert asked[-1]
    assert num == tested + 1
    assert (best is None) == (tested == 0)
    if best is not None:  # the weights of before the epoch whose test was cut short
        kept = loss_of(
            state.agent, test, "cross_entropy", settings.ppo, norm=value_norm(state.agent)
        )[2]
        assert kept.mean_loss(0.5) == pytest.approx(best.mean_loss(0.5), abs=1e-4)


@pytest.mark.slow
def test_frames_without_a_known_return_are_excluded_and_counted(tmp_path: Path) -> None:
    said: list[str] = []
    path = record(tmp_path / "rec", steps=STEPS, world=CutOff)
    result = clone(path, config(*LEARNS), say=said.append)
    assert score_kept(result).num_returns == 0
    assert min(score_kept(result).accuracy.values()) > 0.9
    (line,) = [line for line in said if line.startswith("the value function")]
    assert re.search(r"does not learn from (\d+) of \1 frames", line)
    assert "of truncated episodes" in line
    assert "of unfinished episodes" in line


@pytest.mark.alone
@pytest.mark.slow
def test_interrupting_saves_the_best_so_far(expert: Path, tmp_path: Path) -> None:
    settings = [*SMALL, "clone.epochs=100000", "clone.patience=None"]
    command = ["clone", str(expert), *settings, "--checkpoint-dir", str(tmp_path / "run")]
    process = start_program([*ENN, *command], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    for line in process.stdout:
        if line.startswith("epoch 1/"):
            process.send_signal(signal.SIGINT)
            break
    rest = process.stdout.read()
    process.stdout.close()
    assert process.wait(timeout=60) == 130
    assert "interrupted, saved" in rest
    assert load_agent(tmp_path / "run").obs_space.entities


@pytest.mark.slow
def test_the_command_clones_and_prints_the_next_command(
    expert: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run_dir = str(tmp_path / "run")
    assert enn(["clone", str(expert), *SMALL, "clone.epochs=2", "--checkpoint-dir", run_dir]) == 0
    out = capsys.readouterr().out
    assert "epoch 2/2  left 0s  loss" in out
    assert f"enn watch {run_dir} --env ...\n" in out
    assert f"enn resume {run_dir} env.id=...\n" in out
    assert "env.id=... must name the environment of the recordings" in out
    assert "env.id=MoveToOrigin" not in out  # the default, which is another world


def test_the_next_command_names_the_recorded_environment(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path, run_dir = tmp_path / "played.rec", str(tmp_path / "run")
    play_by_hand(Xor, lambda _: "1", quiet, seed=1, episodes=30, record=path)
    short = ["clone", str(path), *SMALL, "clone.epochs=1", "env.id=Xor"]
    assert enn([*short, "--checkpoint-dir", run_dir]) == 0
    out = capsys.readouterr().out
    assert f"enn watch {run_dir}\n" in out
    assert f"enn resume {run_dir} env.id=Xor\n" in out
    assert "must name" not in out


def test_the_next_command_works_with_an_environment_of_a_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("plain.py").write_text("from entity_env.examples import Xor\nclass Plain(Xor): ...\n")
    play_by_hand(Xor, lambda _: "1", quiet, seed=1, episodes=30, record=Path("played.rec"))
    short = ["clone", "played.rec", *SMALL, "clone.epochs=1", "env.id=plain.py:Plain"]
    assert enn([*short, "data_dir=.", "--checkpoint-dir", "run"]) == 0
    _, _, after = capsys.readouterr().out.rpartition("next:\n")
    *lines, note = after.splitlines()
    assert "plain.py:Plain was not checked" in note
    assert [shlex.split(line)[1] for line in lines] == ["watch", "eval", "resume"]
    for line in lines:
        assert enn(shlex.split(line)[1:]) == 0, capsys.readouterr().err


@pytest.mark.slow
def test_a_closed_pipe_ends_only_the_printing(expert: Path, tmp_path: Path) -> None:
    """Such as of enn clone ... | head -1."""
    settings = [*SMALL, "clone.epochs=1", "clone.max_frames=100"]
    settings += ["--checkpoint-dir", str(tmp_path / "run")]
    process = start_program(
        [*ENN, "clone", str(expert), *settings],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    assert process.stdout is not None
    assert process.stdout.readline().startswith(b"reading")
    process.stdout.close()
    assert process.stderr is not None
    assert process.stderr.read() == b""
    process.stderr.close()
    assert process.wait(timeout=60) == 0
    assert load_agent(tmp_path / "run").obs_space.entities


def test_environment_variables_are_settings(
    expert: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    command = ["clone", str(expert), *SMALL[:-3], "clone.bs=64"]
    monkeypatch.setenv("ENN_CLONE__EPOCHS", "1")
    assert enn([*command, "--checkpoint-dir", str(tmp_path / "run")]) == 0
    assert "epoch 1/1" in capsys.readouterr().out
    monkeypatch.setenv("ENN_CLONE__EPOCH", "1")
    assert enn([*command, "--checkpoint-dir", str(tmp_path / "other")]) == 2
    assert "ENN_CLONE__EPOCH" in capsys.readouterr().err


@pytest.mark.slow
def test_a_limit_without_actors_is_reported(tmp_path: Path) -> None:
    path = record(tmp_path / "rec", world=LateWork)
    with pytest.raises(ConfigError, match=r"got none; raise clone\.max_frames$"):
        clone(path, config("clone.max_frames=1"), say=quiet)


class LateWork(Sorting):
    """The same without workers in the first episodes."""

    begun = 0

    def reset(self) -> Observation:
        self.begun += 1
        return super().reset()

    def _observe(self, reward: float) -> Observation:
        obs = super()._observe(reward)
        if self.begun <= 2:
            obs.features = {**obs.features, "worker": []}
            obs.actions = {}
        return obs


def test_nothing_is_created_for_a_missing_recording(tmp_path: Path) -> None:
    assert enn(["clone", "none.rec", "--checkpoint-dir", str(tmp_path / "run")]) == 2
    assert not (tmp_path / "run").exists()


MISTAKES: Mapping[str, Callable[[str], list[str]]] = {
    "--checkpoint-dir: expected a folder": lambda rec: [rec],
    "RECORDING: expected one or more files": lambda _: ["--checkpoint-dir", "run"],
    "RECORDING: expected a file, got none.rec": lambda _: ["none.rec", "--checkpoint-dir", "run"],
    "RECORDING: expected each file once": lambda rec: [rec, rec, "--checkpoint-dir", "run"],
    "RECORDING: expected each file once, got": lambda rec: [
        *[rec, f"{Path(rec).parent}/../{Path(rec).parent.name}/expert.rec"],
        *["--checkpoint-dir", "run"],
    ],
    "clone.lr: expected a number above 0.0 and up to 1e+30, got 1e+38": lambda rec: [
        *[rec, "clone.lr=1e38", "--checkpoint-dir", "run"]
    ],
    "clone.epochs: expected a finite number of at least 1, got 0": lambda rec: [
        *[rec, "clone.epochs=0", "--checkpoint-dir", "run"]
    ],
    "did you mean clone.epochs": lambda rec: [rec, "clone.epoch=1", "--checkpoint-dir", "run"],
    "bc: expected none for cloning": lambda rec: [
        *[rec, f"bc.path={rec}", "--checkpoint-dir", "run"]
    ],
    "--config: expected a file": lambda rec: [
        *[rec, "--config", "none.ron", "--checkpoint-dir", "run"]
    ],
}


@pytest.mark.parametrize("message", MISTAKES)
def test_invalid_arguments_are_reported_in_one_line(
    message: str,
    expert: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    assert enn(["clone", *MISTAKES[message](str(expert))]) == 2
    error = capsys.readouterr().err
    assert message in error
    assert error.count("\n") == 1


def test_help_lists_the_settings_of_cloning(capsys: pytest.CaptureFixture[str]) -> None:
    assert enn(["clone", "--hps-info", "clone.patience"]) == 0
    assert "Stop after this many consecutive epochs" in capsys.readouterr().out


@pytest.fixture(scope="module")
def two_epochs(few: Path) -> torch.Tensor:
    """The weights of a clone with no other setting changed."""
    return weights(clone(few, config("clone.epochs=2"), say=quiet))


@pytest.mark.parametrize(
    "change",
    [
        "clone.loss=kl",
        "clone.epochs=1",
        "clone.bs=32",
        "clone.lr=0.005",
        "clone.value_coef=0.1",
        "clone.test_fraction=0.5",
        "clone.max_frames=60",
        "optim.weight_decay=0.5",
        "optim.anneal_lr=false",
    ],
)
def test_every_setting_has_an_effect(few: Path, two_epochs: torch.Tensor, change: str) -> None:
    with_it = clone(few, config("clone.epochs=2", change), say=quiet)
    assert not torch.equal(weights(with_it), two_epochs)
