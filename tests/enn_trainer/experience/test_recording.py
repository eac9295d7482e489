"""What a run records: all that was seen, done and said, once, and nothing is changed by it."""

import signal
import subprocess
import threading
from collections.abc import Mapping
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from enn_trainer import Callback, ConfigError, StateManager, Trainer, train
from enn_trainer.cli import run as enn
from enn_trainer.experience.collector import Collector, Rollout, collect
from enn_trainer.experience.players import AgentPlayer, draw_uniforms
from enn_trainer.experience.recording import Capture, Recorder, recorders
from enn_trainer.selfplay.league_players import LeaguePlayers
from enn_trainer.viewer.replay_format import read_replay
from entity_env import Action, CategoricalActionSpace, EnvList, Observation, Ragged, VecObs
from entity_env.examples import Duel
from entity_env.recording.read_recording import Recording
from entity_env.recording.record import RecordingVecEnv
from entity_env.recording.recording_format import RecordedStep, records
from rogue_net import EntityBatch, RogueNet, RogueNetConfig
from tests.enn_trainer.builders import SMALL, run_pool, run_small, weights
from tests.enn_trainer.experience.fog import MEMORY, run
from tests.enn_trainer.worlds import Meadow
from tests.entity_env.builders import assert_same
from tests.fork_server import ENN, run_program, start_program

CAPTURE = ["capture_samples=rollouts.rec", "capture_logits=true"]
EVAL = ["eval.steps=5", "eval.interval=24", "eval.num_envs=4"]
CAPTURE_EVAL = [*EVAL, "eval.capture_samples=evals.rec"]
FRAMES = 6  # of one step of the environments of a rollout


def steps_of(path: Path) -> list[RecordedStep]:
    recording = Recording.open(path)
    assert recording.complete
    return list(recording.steps())


def run_steps(path: Path) -> list[int | None]:
    return [step.run_step for step in steps_of(path)]


def assert_all_same(got: list[RecordedStep], expected: list[RecordedStep]) -> None:
    assert len(got) == len(expected)
    for one, other in zip(got, expected, strict=True):
        assert_same(one, other)


class Breaks(Meadow):
    """Raises when all of them together have taken `left` steps. Only for tests."""

    left = 10**9

    def act(self, actions: Mapping[str, Action]) -> Observation:
        Breaks.left -= 1
        if Breaks.left == 0:
            raise ZeroDivisionError
        return super().act(actions)


@pytest.mark.slow
def test_recording_does_not_change_training(tmp_path: Path) -> None:
    plain = run_small(tmp_path / "plain", *EVAL)
    captured = run_small(tmp_path / "captured", *CAPTURE, *CAPTURE_EVAL)
    assert torch.equal(weights(plain), weights(captured))
    for one, other in zip(plain.state.agent.buffers(), captured.state.agent.buffers(), strict=True):
        assert torch.equal(one, other)


def test_recording_has_the_data_of_the_rollout(tmp_path: Path) -> None:
    """Of every kind of action and ending, also with several actors that select in one frame."""
    envs = EnvList(Meadow, 5)
    torch.manual_seed(0)
    net = RogueNet(RogueNetConfig(d_model=8), envs.obs_space(), envs.action_space(), {"value": 1})
    torch.nn.init.normal_(net.regression_heads["/value"].weight)
    envs.seed(1)
    with ExitStack() as stack:
        capture = Capture("", tmp_path / "file", logits=True, subsample=1, seed=0, num_envs=5)
        watchers = recorders(capture, envs, "mine", stack)
        collector = Collector(envs, AgentPlayer(net, seed=3), watchers=watchers)
        collector.reset(envs.obs_space())
        rollout = collect(collector, steps=12, first_frame=100)
    steps = steps_of(tmp_path / "file")
    assert [s.run_step for s in steps] == list(range(100, 160, 5))
    batch = EntityBatch.of(VecObs.cat([s.decisions.obs for s in steps]))
    for name, rows in rollout.batch.features.items():
        assert torch.equal(rows.values, batch.features[name].values)
        assert np.array_equal(rows.lengths, batch.features[name].lengths)
    for what in ("rewards", "terminated", "truncated"):
        shown = np.stack([getattr(s, what.removesuffix("s")) for s in steps])
        np.testing.assert_array_equal(getattr(rollout, what).numpy(), shown)
    assert torch.equal(
        rollout.values.flatten(),
        torch.from_numpy(np.concatenate([s.decisions.values for s in steps])),
    )
    said = net(rollout.batch)
    for name, action in rollout.batch.actions.items():
        chosen = np.concatenate([s.decisions.actions[name].values for s in steps])
        np.testing.assert_array_equal(rollout.actions[name].values.numpy(), chosen)
        logprobs = np.concatenate([s.decisions.logprobs[name].values for s in steps])
        np.testing.assert_allclose(rollout.logprobs[name].values.numpy(), logprobs, rtol=1e-12)
        expected = said.log_probs[name].detach()
        if action.actees is not None:
            expected = said.distribution(name).to_rows(action).values.detach()
            assert max(action.actors.lengths * action.actees.lengths) > 3
        logits = np.concatenate([s.decisions.logits[name].values for s in steps])
        np.testing.assert_allclose(expected.numpy(), logits, atol=1e-6)
        assert logits.size > len(chosen)


@torch.no_grad()
@pytest.mark.parametrize("logits", [False, True])
def test_recorder_and_wrapper_write_the_same_bytes(tmp_path: Path, logits: bool) -> None:
    """Differential: `RecordingVecEnv` is told by hand what the network said."""
    options: dict[str, Any] = {"subsample": 3, "seed": 4, "run": "mine", "keep_logits": logits}
    space, actions = Meadow().obs_space(), Meadow().action_space()
    torch.manual_seed(0)
    net = RogueNet(RogueNetConfig(d_model=8), space, actions, {"value": 1}).eval()
    torch.nn.init.normal_(net.regression_heads["/value"].weight)
    # Twice, so that the second run of steps is appended with new episodes.
    for _ in range(2):
        envs = EnvList(Meadow, 5)
        with closing(Recorder(tmp_path / "watched", actions, **options)) as recorder:
            collector = Collector(envs, AgentPlayer(net, seed=1), watchers=[recorder])
            collector.seed(2)
            collector.reset(space)
            collect(collector, steps=8, first_frame=40)
        with closing(RecordingVecEnv(EnvList(Meadow, 5), tmp_path / "told", **options)) as told:
            told.seed(2)
            obs = told.reset(space)
            for run_step in range(40, 80, 5):
                batch = EntityBatch.of(obs)
                draws = draw_uniforms(batch.actions, 1, np.arange(5), run_step)
                out = net(batch, uniforms=draws)
                rows = {
                    name: out.distribution(name).to_rows(a) for name, a in batch.actions.items()
                }
                lengths = {name: action.actors.lengths for name, action in batch.actions.items()}
                obs = told.act(
                    {name: Ragged(t.numpy(), lengths[name]) for name, t in out.actions.items()},
                    space,
                    probs={
                        name: Ragged(t.double().exp().numpy(), lengths[name])
                        for name, t in out.logprobs.items()
                    },
                    logits={name: Ragged(r.values.numpy(), r.lengths) for name, r in rows.items()},
                    values=out.values["value"][:, 0].numpy(),
                    run_step=run_step,
                )
    content = (tmp_path / "told").read_bytes()
    assert (tmp_path / "watched").read_bytes() == content
    assert len(run_steps(tmp_path / "told")) == 16


@pytest.mark.slow
def test_subsample_does_not_depend_on_processes(tmp_path: Path) -> None:
    sampled = [*CAPTURE, "capture_samples_subsample=3"]
    run_small(tmp_path / "one", *sampled)
    run_small(tmp_path / "many", *sampled, "rollout.processes=2")
    run_small(tmp_path / "all", *CAPTURE)
    one, many, whole = (steps_of(tmp_path / d / "rollouts.rec") for d in ("one", "many", "all"))
    assert_all_same(one, many)
    assert sum(len(s.kept) for s in whole) == 72
    assert 12 < sum(len(s.kept) for s in one) < 36, "about 24"
    for part, step in zip(one, whole, strict=True):
        assert_same(part.decisions, step.decisions.take(part.kept))
        assert_same(part.reward, step.reward)


@pytest.mark.slow
def test_logits_are_recorded_by_capture_logits(tmp_path: Path) -> None:
    run_small(tmp_path, "capture_samples=rollouts.rec", *CAPTURE_EVAL, "eval.capture_logits=false")
    for name in ("rollouts.rec", "evals.rec"):
        assert all(s.decisions.logits == {} for s in steps_of(tmp_path / name))
        assert all(
            s.decisions.probs.keys() == {"walk", "watch", "call"} for s in steps_of(tmp_path / name)
        )


@pytest.mark.parametrize("only", [False, True])
def test_evaluations_against_an_opponent_are_recorded(tmp_path: Path, only: bool) -> None:
    """Both sides are: the agent's frames are those of the even environments."""
    manager = StateManager(
        overrides=[
            *[*SMALL, *CAPTURE_EVAL, f"data_dir={tmp_path}", "eval.opponent=random"],
            f"eval.opponent_only={str(only).lower()}",
        ]
    )
    train(manager, Duel)
    steps = steps_of(tmp_path / "evals.rec")
    assert [s.run_step for s in steps] == [0] * 5 + [24] * 5 + [48] * 5 + [72] * 5
    for step in steps:
        assert len(step.kept) == 4
        for name, rows in step.decisions.logits.items():
            of_random = [len(np.unique(frame[np.isfinite(frame)])) <= 1 for frame in frames(rows)]
            assert all(of_random[1::2]), name
        assert (step.decisions.values[1::2] == 0).all()
    trained = np.stack([s.decisions.values[::2] for s in steps if s.run_step])
    assert (trained == 0).all() == only


OPPOSED = ['selfplay.opponents=["random"]', "capture_samples=pool.rec", "capture_logits=true"]
STEADY = ["optim.anneal_lr=false", "ppo.anneal_entropy=false"]


@pytest.fixture(scope="module")
def pool(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run against a pool of its snapshots and a random player, which records its rollouts."""
    run = tmp_path_factory.mktemp("pool") / "run"
    run_pool(run, *OPPOSED, *STEADY, "total_timesteps=576")
    return run


@pytest.mark.slow
def test_selfplay_recording_has_all_sides_and_players(pool: Path) -> None:
    steps = steps_of(pool / "pool.rec")
    assert [step.run_step for step in steps] == list(range(0, 576, 12)), "frames of the agent"
    for step in steps:
        assert step.kept.tolist() == list(range(16))
        of_matches = step.decisions.player.reshape(-1, 2)
        assert (of_matches[:4] == "").all(), "mirror play"
        assert ((of_matches[4:] == "").sum(axis=1) == 1).all(), "the agent has one seat"
    players = np.concatenate([step.decisions.player for step in steps])
    assert (players == "").sum() == 576
    assert {*players} == {"", "random", "step-0", "step-288"}
    for step in steps:  # a random player likes all that it may choose equally
        rows = step.decisions.logits["attack"]
        of_random = [len(np.unique(one[np.isfinite(one)])) <= 1 for one in frames(rows)]
        assert all(np.array(of_random)[step.decisions.player == "random"])
    # Games begin with their players, who stay.
    for episode in Recording.open(pool / "pool.rec").episodes():
        assert len({*episode.decisions.player}) == 1


def test_recorded_agent_frames_are_the_trained_frames(
    tmp_path: Path,
) -> None:
    told: list[np.ndarray[Any, Any]] = []
    learnt: list[np.ndarray[Any, Any]] = []
    act = LeaguePlayers.act

    def noting(players: LeaguePlayers, *args: Any) -> Any:
        decisions = act(players, *args)
        assert players.learnt is not None
        learnt.append(players.learnt.copy())
        told.append(np.flatnonzero(np.array(decisions.players, object) == ""))
        return decisions

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(LeaguePlayers, "act", noting)
        run_pool(tmp_path, "total_timesteps=288")
    assert len(told) == 24
    for one, other in zip(told, learnt, strict=True):
        assert one.tolist() == other.tolist()


@pytest.mark.slow
def test_resumed_selfplay_run_records_the_same_bytes(pool: Path, tmp_path: Path) -> None:
    """Its games go on with their players; steps that no save has are recorded again."""
    run = tmp_path / "run"
    run_pool(run, *OPPOSED, *STEADY, "total_timesteps=288")
    size = (run / "pool.rec").stat().st_size
    with pytest.raises(ZeroDivisionError):
        run_pool(run, "total_timesteps=576", callbacks=[Fails()])
    assert (run / "pool.rec").stat().st_size > size
    run_pool(run, "total_timesteps=576", "rollout.processes=2")
    straight, resumed = steps_as_bytes(pool / "pool.rec"), steps_as_bytes(run / "pool.rec")
    assert len(straight) > 10_000
    assert straight == resumed


@pytest.mark.slow
def test_recurrent_run_records_identity(tmp_path: Path) -> None:
    """Rollouts and evaluations; a run that remembers no entity writes nothing of it."""
    for memory, expected in ((MEMORY, {"Scout", "Beast"}), ('net.memory=(of: "frame")', set())):
        folder = tmp_path / str(len(expected))
        run(folder, 1, memory, *CAPTURE, *CAPTURE_EVAL)
        for name in ("rollouts.rec", "evals.rec"):
            steps = steps_of(folder / name)
            found = {one for step in steps for one in step.decisions.obs.identity}
            assert found == expected
            assert {one for s in steps if s.final for one in s.final.identity} <= expected


class Fails(Callback):
    """Fails once steps are recorded, before they are learnt from."""

    def on_rollout_end(self, trainer: Any, rollout: Rollout) -> None:
        raise ZeroDivisionError


def steps_as_bytes(path: Path) -> bytes:
    """All but the header, in which the run has its name."""
    with path.open("rb") as file:
        header = next(records(file, path))
    return path.read_bytes()[header.end :]


@pytest.mark.slow
def test_selfplay_recording_can_be_watched(pool: Path, tmp_path: Path) -> None:
    page = tmp_path / "page.html"
    assert enn(["watch", str(pool / "pool.rec"), "--out", str(page), "--episodes", "3"]) == 0
    assert len(read_replay(page).episodes) == 3


@pytest.mark.slow
def test_decisions_of_two_agents_are_merged_by_frame(tmp_path: Path) -> None:
    """Also for a selection, whose choices are as many as there are others in the frame."""
    options = ["eval.steps=20", "eval.num_envs=7", "eval.opponent=random"]
    run_small(tmp_path, "total_timesteps=24", *CAPTURE_EVAL, *options)
    sizes = set()
    for step in steps_of(tmp_path / "evals.rec"):
        said = step.decisions
        for name, logits in said.logits.items():
            for i, of_frame in enumerate(frames(logits)):
                chosen, logprobs = said.actions[name][i].values, said.logprobs[name][i].values
                table = of_frame.reshape(len(chosen), -1) if len(chosen) else np.zeros((0, 1))
                np.testing.assert_allclose(table[np.arange(len(chosen)), chosen], logprobs)
                np.testing.assert_allclose(np.exp(table).sum(1), 1, rtol=1e-5)
                sizes.add((name, table.shape))
    assert len(sizes) > 8


def frames(rows: Any) -> list[Any]:
    return [rows[i].values for i in range(len(rows))]


@pytest.mark.slow
def test_path_is_below_data_dir_and_folders_are_created(tmp_path: Path) -> None:
    elsewhere = tmp_path / "else" / "where.rec"
    run_small(
        tmp_path / "data", "capture_samples=a/b/c.rec", *EVAL, f"eval.capture_samples={elsewhere}"
    )
    assert steps_of(tmp_path / "data" / "a" / "b" / "c.rec")
    assert steps_of(elsewhere)


@pytest.mark.slow
def test_resumed_run_truncates_the_recording_to_its_save(tmp_path: Path) -> None:
    """What came after the save is done again, so it must go, or it would be there twice."""
    where = {"checkpoint_dir": tmp_path / "run"}
    options = [*CAPTURE, *CAPTURE_EVAL]
    run_small(tmp_path, "total_timesteps=48", *options, env=Breaks, **where)
    before = steps_of(tmp_path / "rollouts.rec")
    Breaks.left = 24 + 20 + 8  # a rollout, an evaluation, a rollout: in its second step
    with pytest.raises(ZeroDivisionError):
        run_small(tmp_path, "total_timesteps=144", env=Breaks, **where)
    Breaks.left = 10**9
    assert run_steps(tmp_path / "rollouts.rec") == list(range(0, 72 + FRAMES, FRAMES))
    assert run_steps(tmp_path / "evals.rec") == [s for s in (0, 24, 48, 72) for _ in range(5)]
    run_small(tmp_path, "total_timesteps=144", env=Breaks, **where)
    after = steps_of(tmp_path / "rollouts.rec")
    assert [s.run_step for s in after] == list(range(0, 144, FRAMES))
    assert_all_same(after[: len(before)], before)
    at = [0, 24, 48, 72, 96, 120, 144]
    assert run_steps(tmp_path / "evals.rec") == [s for s in at for _ in range(5)]
    for name in ("rollouts.rec", "evals.rec"):
        numbers = [e.number for e in Recording.open(tmp_path / name).episodes()]
        assert len(set(numbers)) == len(numbers)


@pytest.mark.slow
def test_finished_run_can_be_started_again(tmp_path: Path) -> None:
    where = {"checkpoint_dir": tmp_path / "run"}
    run_small(tmp_path, *CAPTURE, *CAPTURE_EVAL, **where)
    files = [tmp_path / "rollouts.rec", tmp_path / "evals.rec"]
    before = [steps_of(file) for file in files]
    run_small(tmp_path, **where)
    for file, steps in zip(files, before, strict=True):
        assert [s.reward.tolist() for s in steps_of(file)] == [s.reward.tolist() for s in steps]


@pytest.mark.alone
@pytest.mark.slow
def test_killed_run_is_continued_by_the_same_command(
    tmp_path: Path,
) -> None:
    command = [
        *[*ENN, "train", "env.id=MoveToOrigin", *SMALL],
        *[*CAPTURE, f"data_dir={tmp_path}", "--checkpoint-dir", str(tmp_path / "run")],
        "--resume-or-start",
    ]
    process = start_program(
        [*command, "total_timesteps=100000000"], stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    timer = threading.Timer(100, process.kill)
    timer.start()
    with process.stdout:
        line = next(line for line in process.stdout if line.startswith("step "))
        process.send_signal(signal.SIGKILL)
    timer.cancel()
    process.wait()
    told = int(line.split()[1].replace(",", "").split("/")[0])
    recording = Recording.open(tmp_path / "rollouts.rec")
    found = [step.run_step for step in recording.steps()]
    assert found == list(range(0, FRAMES * len(found), FRAMES))
    assert FRAMES * len(found) >= told > 0
    run_program([*command, "total_timesteps=120"], check=True)
    assert run_steps(tmp_path / "rollouts.rec") == list(range(0, 120, FRAMES))


@pytest.mark.alone
def test_files_are_closed_when_a_run_fails(tmp_path: Path) -> None:
    Breaks.left = 40
    with pytest.raises(ZeroDivisionError):
        run_small(tmp_path, *CAPTURE, *CAPTURE_EVAL, env=Breaks)
    Breaks.left = 10**9
    open_files = {link.readlink() for link in Path("/proc/self/fd").iterdir() if link.is_symlink()}
    assert not {tmp_path / "rollouts.rec", tmp_path / "evals.rec"} & open_files
    assert steps_of(tmp_path / "rollouts.rec")


@pytest.mark.slow
@pytest.mark.parametrize("field", ["capture_samples", "eval.capture_samples"])
def test_existing_file_is_not_overwritten(tmp_path: Path, field: str) -> None:
    options = [*EVAL, f"{field}={tmp_path / 'file'}"]
    run_small(tmp_path, *options)
    before = (tmp_path / "file").read_bytes()
    with pytest.raises(ConfigError, match=rf"^{field}: expected a new file .*file is there"):
        run_small(tmp_path, *options, "total_timesteps=100000000")
    assert (tmp_path / "file").read_bytes() == before


@pytest.mark.slow
def test_empty_recording_is_overwritten(tmp_path: Path) -> None:
    """As a process leaves it that is killed before the run is saved for the first time."""
    run_small(tmp_path / "other", *CAPTURE)
    settings = [*SMALL, *CAPTURE, f"data_dir={tmp_path}"]
    Trainer(StateManager(overrides=settings), Meadow).close()
    assert (tmp_path / "rollouts.rec").stat().st_size > 0
    run_small(tmp_path, *CAPTURE)
    whole = (tmp_path / "rollouts.rec").read_bytes()
    assert len(steps_of(tmp_path / "rollouts.rec")) == len(
        steps_of(tmp_path / "other/rollouts.rec")
    )
    for damaged in (b"a letter", whole[:-1], whole[:30] + b"?" + whole[31:]):
        (tmp_path / "rollouts.rec").write_bytes(damaged)
        with pytest.raises(ConfigError, match="expected a new file"):
            run_small(tmp_path, *CAPTURE)
        assert (tmp_path / "rollouts.rec").read_bytes() == damaged


@pytest.mark.slow
@pytest.mark.parametrize("content", ["folder", "text"])
def test_unwritable_path_raises_before_training(tmp_path: Path, content: str) -> None:
    run_small(tmp_path, checkpoint_dir=tmp_path / "run")
    if content == "folder":
        (tmp_path / "it").mkdir()
    else:
        (tmp_path / "it").write_text("a letter")
    with pytest.raises(ConfigError, match=r"^capture_samples: expected a .*file.*/it") as error:
        run_small(
            tmp_path,
            "capture_samples=it",
            "total_timesteps=100000000",
            checkpoint_dir=tmp_path / "run",
        )
    assert "\n" not in str(error.value)
    if content == "text":
        assert (tmp_path / "it").read_text() == "a letter"


@pytest.mark.slow
def test_a_resumed_run_does_not_mix_different_recordings(tmp_path: Path) -> None:
    run_small(tmp_path, *CAPTURE, checkpoint_dir=tmp_path / "run")
    with pytest.raises(ConfigError, match=r"capture_samples: .*another num_envs"):
        run_small(tmp_path, "rollout.num_envs=8", checkpoint_dir=tmp_path / "run")
    with pytest.raises(ConfigError, match=r"capture_samples: .*another subsample"):
        run_small(tmp_path, "capture_samples_subsample=2", checkpoint_dir=tmp_path / "run")
    other = f"capture_samples={tmp_path / 'other.rec'}"
    run_small(tmp_path, other, "total_timesteps=24")
    with pytest.raises(ConfigError, match=r"capture_samples: .*another run"):
        run_small(
            tmp_path,
            other,
            "capture_logits=false",
            checkpoint_dir=tmp_path / "run",
        )


class OtherActions(Meadow):
    """Its actions are in another order."""

    def action_space(self) -> dict[str, Any]:
        return dict(reversed(super().action_space().items()))


class OtherLabels(Meadow):
    """The labels of an action are in another order."""

    def action_space(self) -> dict[str, Any]:
        walk = CategoricalActionSpace(["right", "stay", "left"])
        return {**super().action_space(), "walk": walk}


@pytest.mark.slow
def test_recording_continues_with_another_order_of_actions(tmp_path: Path) -> None:
    folder = {"checkpoint_dir": tmp_path / "run"}
    run_small(tmp_path, "total_timesteps=48", *CAPTURE, *CAPTURE_EVAL, **folder)
    run_small(tmp_path, "total_timesteps=96", env=OtherActions, **folder)
    assert run_steps(tmp_path / "rollouts.rec") == list(range(0, 96, FRAMES))


@pytest.mark.slow
def test_recording_with_another_order_of_labels_is_not_continued(tmp_path: Path) -> None:
    folder = {"checkpoint_dir": tmp_path / "run"}
    run_small(tmp_path, "total_timesteps=48", *CAPTURE, **folder)
    before = (tmp_path / "rollouts.rec").read_bytes()
    with pytest.raises(ConfigError, match=r"labels of walk in another order.* another file"):
        run_small(tmp_path, "total_timesteps=96", env=OtherLabels, **folder)
    assert (tmp_path / "rollouts.rec").read_bytes() == before
    run_small(tmp_path, "total_timesteps=96", "capture_samples=b.rec", env=OtherLabels, **folder)
    assert run_steps(tmp_path / "b.rec") == list(range(48, 96, FRAMES))


def meadow_of(config: Any, num_envs: int, processes: int, first: int) -> EnvList:
    return EnvList(OtherLabels if config.id == "other" else Meadow, num_envs, first)


@pytest.mark.slow
def test_recording_of_evaluations_with_another_order_of_labels_continues(tmp_path: Path) -> None:
    folder: dict[str, Any] = {"checkpoint_dir": tmp_path / "run", "env": meadow_of}
    run_small(tmp_path, "total_timesteps=48", *CAPTURE_EVAL, 'eval.env.id="other"', **folder)
    first = run_steps(tmp_path / "evals.rec")
    run_small(tmp_path, "total_timesteps=96", **folder)
    assert run_steps(tmp_path / "evals.rec")[: len(first)] == first
    assert len(run_steps(tmp_path / "evals.rec")) > len(first)
    with pytest.raises(ConfigError, match=r"^eval.capture_samples: .*labels of walk in another"):
        run_small(tmp_path, "total_timesteps=120", 'eval.env.id="same"', **folder)


@pytest.mark.slow
def test_run_from_another_save_needs_another_file(tmp_path: Path) -> None:
    """It has the file's name in its configuration, but the other run may go on as well."""
    run_small(tmp_path, "total_timesteps=48", *CAPTURE, checkpoint_dir=tmp_path / "run")
    before = (tmp_path / "rollouts.rec").read_bytes()
    fork = {"init_path": tmp_path / "run", "checkpoint_dir": tmp_path / "fork"}
    for where in (fork, {"init_path": tmp_path / "run"}):
        with pytest.raises(ConfigError, match=r"a new file .*rollouts.rec is there already"):
            run_small(tmp_path, **where)
    assert (tmp_path / "rollouts.rec").read_bytes() == before
    run_small(tmp_path, "capture_samples=fork.rec", **fork)
    run_small(tmp_path, "total_timesteps=96", **fork)
    assert run_steps(tmp_path / "fork.rec") == list(range(48, 96, FRAMES))
    assert (tmp_path / "rollouts.rec").read_bytes() == before


@pytest.mark.slow
def test_capture_enabled_at_resume_starts_there(tmp_path: Path) -> None:
    run_small(tmp_path, "total_timesteps=48", checkpoint_dir=tmp_path / "run")
    run_small(tmp_path, *CAPTURE, checkpoint_dir=tmp_path / "run")
    assert run_steps(tmp_path / "rollouts.rec") == list(range(48, 72, FRAMES))


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (["capture_logits=true"], "^capture_logits: expected capture_samples"),
        (["capture_samples_subsample=2"], "^capture_samples_subsample: expected capture_samples"),
        ([*EVAL, "eval.capture_samples_subsample=2"], "capture_samples_subsample: expected"),
        ([*CAPTURE, *EVAL, "eval.capture_samples=./rollouts.rec"], "another file"),
    ],
)
def test_unused_capture_settings_raise(overrides: list[str], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        _ = StateManager(overrides=overrides).config
