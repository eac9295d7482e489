"""Numbers and chains learnt from recordings: what counts, what is played back, what is refused."""

import math
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from enn_trainer import ConfigError, StateManager, clone, load_agent, train
from enn_trainer.algorithms.cloning.cloning import imitation_losses, loss_of
from enn_trainer.config.ppo_config import PPOConfig
from enn_trainer.experience.collector import Collector, play
from enn_trainer.experience.demonstrations import Demonstrations, open_recordings
from enn_trainer.experience.players import AgentPlayer
from enn_trainer.experience.read_demonstrations import RecordingReader
from enn_trainer.experience.recording import Recorder
from entity_env import (
    Action,
    ActionSpace,
    CategoricalActionMask,
    CategoricalActionSpace,
    Entity,
    Environment,
    EnvList,
    Observation,
    ObsSpace,
    Ragged,
    SelectEntityActionMask,
    SelectEntityActionSpace,
)
from entity_env.recording.read_recording import Recording
from entity_env.recording.record import RecordingVecEnv
from entity_env.recording.recording_format import RecordedFrames, RecordingError
from entity_env.seeding import derive_seed
from rogue_net import RogueNet, RogueNetConfig
from rogue_net.actions.parts import joint
from rogue_net.config import MemoryConfig
from tests.enn_trainer.chains_world import Camp
from tests.enn_trainer.demonstrated import config, rewrite
from tests.enn_trainer.numbers_world import Targets
from tests.enn_trainer.resuming import assert_same, go

CPU = torch.device("cpu")


def quiet(message: str) -> None:
    """Say nothing."""


def network(world: Any, **settings: Any) -> RogueNet:
    torch.manual_seed(0)
    spaces = world().obs_space(), world().action_space()
    net = RogueNet(RogueNetConfig(d_model=8, n_layer=1, **settings), *spaces, {"value": 1})
    with torch.no_grad():
        for parameter in net.action_heads.parameters():
            parameter.normal_(0, 0.1)
    return net.eval()


def record_net(path: Path, world: Any, net: Any, steps: int = 24, envs: int = 8) -> Path:
    """Let a network play, and record what it did and how probable that was."""
    recorder = Recorder(path, world().action_space())
    collector = Collector(EnvList(world, envs), AgentPlayer(net, seed=3), watchers=[recorder])
    with torch.no_grad():
        play(collector, world().obs_space(), steps, seed=1)
    recorder.close()
    return path


def read(path: Path, world: Any, net: Any = None, **options: Any) -> Demonstrations:
    reading = RecordingReader(world().obs_space(), 1.0, CPU, agent=net, **options)
    shown = reading.read(open_recordings([path]))
    assert shown is not None
    return shown


def judged(net: Any, shown: Demonstrations) -> Any:
    with torch.no_grad():
        return net(shown.batch, actions={name: x.values for name, x in shown.actions.items()})


MEMORY = MemoryConfig(of="frame", inputs=["action", "reward"])


@pytest.mark.slow
@pytest.mark.parametrize("memory", [None, MEMORY], ids=["", "memory"])
@pytest.mark.parametrize("world", [Camp, Targets])
def test_logprobs_of_recorded_samples_are_reproduced(
    tmp_path: Path, world: Any, memory: MemoryConfig | None
) -> None:
    net = network(world, memory=memory)
    path = record_net(tmp_path / "file", world, net)
    shown = read(path, world, net, teacher_for="kl")
    recorded = RecordedFrames.cat([e.decisions for e in Recording.open(path).episodes()])
    out = judged(net, shown)
    for name, logprobs in recorded.logprobs.items():
        assert logprobs.values.any(), name
        found = out.logprobs[name].numpy()
        np.testing.assert_allclose(found, logprobs.values, rtol=1e-4, atol=1e-5)
        numbers = shown.actions[name].values.numpy()
        if name in recorded.drawn:
            assert numbers.tobytes() == recorded.drawn[name].values.tobytes()
            again = out.distribution(name).to_env(shown.actions[name].values).numpy()
            assert again.tobytes() == recorded.actions[name].values.tobytes()
    # What was recorded is the teacher itself.
    for losses in imitation_losses(out, shown, "kl").values():
        torch.testing.assert_close(losses, torch.zeros_like(losses), rtol=0, atol=1e-5)


@pytest.mark.slow
def test_dependent_actions_are_one_decision_with_summed_losses(tmp_path: Path) -> None:
    net = network(Camp)
    shown = read(record_net(tmp_path / "file", Camp, net), Camp)
    out = judged(net, shown)
    expected = joint({name: -rows for name, rows in out.logprobs.items()}, shown.batch.actions)
    losses = imitation_losses(out, shown, "cross_entropy")
    assert losses.keys() == {"do", "trade"}
    for name, rows in losses.items():
        torch.testing.assert_close(rows, expected[name])
    roots = [shown.batch.actions[name].actors.lengths for name in ("do", "trade")]
    np.testing.assert_array_equal(shown.num_actors(), sum(roots))
    with torch.no_grad():
        imitation, _, score = loss_of(net, shown, "cross_entropy", PPOConfig())
    assert score.decisions == shown.num_actors().sum()
    assert score.mean_loss(0.0) == pytest.approx(float(imitation) / score.decisions)
    do = shown.actions["do"].values
    assert score.actors["force"] == int((do == 2).sum()) > 0
    assert score.actors["whom"] == int((do > 0).sum())
    assert score.actors["do"] == len(do)
    halves = [shown.take_sequences(np.arange(k, len(shown), 2)) for k in (0, 1)]
    with torch.no_grad():
        parts = [loss_of(net, one, "cross_entropy", PPOConfig())[0] for one in halves]
    torch.testing.assert_close(torch.stack(parts).sum(), imitation)


@pytest.mark.slow
def test_choices_of_a_person_are_imitated_given_parent_actions_of_the_agent(tmp_path: Path) -> None:
    net = network(Camp)
    path = record_net(tmp_path / "file", Camp, net)

    def by_hand(decisions: RecordedFrames) -> None:
        for name, rows in decisions.actions.items():
            own = np.arange(len(rows.values)) % 3 == 0
            decisions.by_hand[name] = Ragged(own & (name in ("whom", "trade")), rows.lengths)

    rewrite(path, tmp_path / "hand", by_hand)
    shown, everything = read(tmp_path / "hand", Camp, who="hand"), read(path, Camp)
    out = judged(net, shown)
    losses = imitation_losses(out, shown, "cross_entropy")
    whole = judged(net, everything)
    for name, rows in out.logprobs.items():
        torch.testing.assert_close(rows, whole.logprobs[name])
    own = shown.learnt["whom"].values & (shown.actions["whom"].values >= 0)
    assert 0 < own.sum() < len(own)
    torch.testing.assert_close(losses["do"].sum(), -whole.logprobs["whom"][own].sum())
    assert len(losses["do"]) == own.sum()
    assert len(losses["trade"]) == shown.learnt["trade"].values.sum()
    assert shown.num_actors().sum() == sum(map(len, losses.values()))


def with_numbers_alone(path: Path, made: Path, rows: str = "drawn") -> Path:
    """A copy of a recording that does not say what was drawn."""
    return rewrite(made, path, lambda decisions: getattr(decisions, rows).clear())


@pytest.mark.slow
@pytest.mark.parametrize("world", [Camp, Targets])
def test_continuous_actions_are_inverted_without_recorded_samples(
    tmp_path: Path, world: Any
) -> None:
    net = network(world)
    path = record_net(tmp_path / "file", world, net)
    shown = read(path, world)
    inverted = read(with_numbers_alone(tmp_path / "alone", path), world)
    out, other = judged(net, shown), judged(net, inverted)
    names = [name for name, action in shown.batch.actions.items() if action.bounds is not None]
    for name in names:
        one, two = (x.actions[name].values for x in (shown, inverted))
        assert torch.equal(one.isnan(), two.isnan())
        bounds = shown.batch.actions[name].bounds
        assert bounds is not None
        free = bounds.values[:, 0] < bounds.values[:, 1]
        near = (one.abs() < 6) & free
        torch.testing.assert_close(one[near], two[near], rtol=1e-3, atol=1e-3)
        numbers = (x.distribution(name).to_env(y) for x, y in ((out, one), (other, two)))
        torch.testing.assert_close(*numbers, rtol=1e-5, atol=1e-5, equal_nan=True)


def test_continuous_actions_at_bounds_have_finite_density(tmp_path: Path) -> None:
    """As a controller gives them; they are moved by a millionth of the range."""
    envs = RecordingVecEnv(EnvList(Targets, 4), tmp_path / "file")
    envs.seed(0)
    obs = envs.reset(envs.obs_space())
    for k in range(6):
        choices = {n: s.first_choices(obs.action_masks[n]) for n, s in envs.action_space().items()}
        if k % 2:
            mask: Any = obs.action_masks["aim"]
            high = np.where(np.isinf(mask.high.values), 1, mask.high.values)
            choices["aim"] = Ragged(high, mask.actors.lengths)
        obs = envs.act(choices, envs.obs_space())
    envs.close()
    shown = read(tmp_path / "file", Targets)
    out = judged(network(Targets), shown)
    for rows in out.logprobs.values():
        assert rows.isfinite().all()
    drawn = shown.actions["aim"].values[:, 0].abs().max().item()
    assert drawn == pytest.approx(math.log(1e6), rel=1e-3)


@pytest.mark.parametrize(
    ("world", "name", "change", "message"),
    [
        (Targets, "aim", lambda x: x + 3, r"expected a choice that is allowed, got \[.*\] in step"),
        (Targets, "aim", lambda x: x * np.nan, r"allowed, got \[nan, nan\] in step 0 of episode"),
        (Camp, "whom", lambda x: x * 0 + 1, "'whom': expected"),
        (Camp, "whom", lambda x: x * 0 - 1, "'whom': expected a choice that is allowed, got -1"),
        (Camp, "force", lambda x: np.full_like(x, 0.5), "'force': expected no choice .* inactive"),
    ],
)
def test_illegal_choices_raise(
    tmp_path: Path, world: Any, name: str, change: Any, message: str
) -> None:
    path = record_net(tmp_path / "file", world, network(world), steps=4)

    def changed(decisions: RecordedFrames) -> None:
        decisions.drawn.clear()
        rows = decisions.actions[name]
        decisions.actions[name] = Ragged(
            change(rows.values).astype(rows.values.dtype), rows.lengths
        )

    rewrite(path, tmp_path / "changed", changed)
    with pytest.raises(RecordingError, match=message):
        read(tmp_path / "changed", world)


def test_recorded_samples_must_match_the_executed_actions(tmp_path: Path) -> None:
    path = record_net(tmp_path / "file", Targets, network(Targets), steps=4)

    def changed(decisions: RecordedFrames) -> None:
        rows = decisions.drawn["aim"]
        decisions.drawn["aim"] = replace(rows, values=rows.values + 1)

    rewrite(path, tmp_path / "changed", changed)
    with pytest.raises(RecordingError, match=r"'aim': drawn: expected the sample of .*, got"):
        read(tmp_path / "changed", Targets)


class Wider(Targets):
    """The same with other bounds."""

    def action_space(self) -> dict[str, ActionSpace]:
        from entity_env import ContinuousActionSpace

        bounds = {"x": (-2.0, 1.0), "free": (-np.inf, np.inf)}
        return super().action_space() | {"aim": ContinuousActionSpace(bounds)}


class Silent(Camp):
    """The same, but shouts after other choices."""

    def action_space(self) -> dict[str, ActionSpace]:
        return super().action_space() | {
            "shout": CategoricalActionSpace(["hey", "ho", "ha"], after="do", when=["heal"])
        }


@pytest.mark.parametrize(
    ("world", "other", "message"),
    [
        (Targets, Wider, "bounds of aim: x changed from"),
        (Camp, Silent, "action shout: after changed from whom to do"),
    ],
)
def test_recordings_of_other_bounds_or_dependencies_raise(
    tmp_path: Path, world: Any, other: Any, message: str
) -> None:
    paths = []
    for k, one in enumerate((world, other)):
        envs = RecordingVecEnv(EnvList(one, 2), tmp_path / f"{k}")
        envs.reset(envs.obs_space())
        envs.close()
        paths.append(tmp_path / f"{k}")
    with pytest.raises(ConfigError, match=f"expected a recording of .*{message}"):
        open_recordings(paths)


# -- Learning ----------------------------------------------------------------------------------


class Post(Environment):
    """One who heals a or attacks b, as often the one as the other, whatever it sees."""

    chained = True

    def obs_space(self) -> ObsSpace:
        return ObsSpace(entities={"Unit": Entity(["x"]), "Aim": Entity(["is_b"])})

    def action_space(self) -> dict[str, ActionSpace]:
        after: dict[str, Any] = {"after": "do", "when": ["heal", "attack"]} if self.chained else {}
        return {
            "do": CategoricalActionSpace(["heal", "attack"]),
            "whom": SelectEntityActionSpace(**after),
        }

    def reset(self) -> Observation:
        return self.observe(done=False)

    def act(self, actions: Mapping[str, Action]) -> Observation:
        return self.observe(done=True)

    def observe(self, done: bool) -> Observation:
        return Observation(
            features={"Unit": [[self.rng.random()]], "Aim": [[0.0], [1.0]]},
            actions={
                "do": CategoricalActionMask(actor_types=["Unit"]),
                "whom": SelectEntityActionMask(actor_types=["Unit"], actee_types=["Aim"]),
            },
            done=done,
        )


class Apart(Post):
    """The same with two independent actions."""

    chained = False


def record_post(path: Path, world: Any, steps: int = 16) -> Path:
    envs = RecordingVecEnv(EnvList(world, 64), path)
    envs.seed(1)
    envs.reset(envs.obs_space())
    rng = np.random.default_rng(0)
    for _ in range(steps):
        rows = Ragged(rng.integers(2, size=64), np.ones(64, np.int64))
        envs.act({"do": rows, "whom": rows}, envs.obs_space())
    envs.close()
    return path


@pytest.mark.slow
def test_bimodal_expert_is_cloned_by_dependent_actions_only(
    tmp_path: Path,
) -> None:
    """ln 2 = .693 a decision; two independent actions have 2 ln 2 = 1.386 at best."""
    small = ("clone.epochs=6", "clone.value_coef=0", "clone.lr=0.02", "clone.patience=None")
    results = {
        world: clone(record_post(tmp_path / world.__name__, world), config(*small), say=quiet)
        for world in (Post, Apart)
    }
    for result in results.values():
        assert result.test is not None
        assert result.train is not None
    loss = results[Post].test.mean_loss(0.0)  # type: ignore[union-attr]
    assert loss == pytest.approx(math.log(2), abs=0.02)
    score = results[Apart].test
    assert score is not None
    of_two = float(score.imitation) / (score.decisions / 2)
    assert of_two > 2 * math.log(2) - 0.02
    assert results[Post].test.decisions * 2 == score.decisions  # type: ignore[union-attr]


def record_archers(path: Path, steps: int = 40) -> Path:
    """Somebody who aims at the places, calls left and means their mean."""
    envs = RecordingVecEnv(EnvList(Targets, 16), path)
    envs.seed(1)
    obs = envs.reset(envs.obs_space())
    for _ in range(steps):
        mask: Any = obs.action_masks["aim"]
        places = obs.features["Archer"].values[:, 0]
        x = np.clip(places, mask.low.values[:, 0], mask.high.values[:, 0])
        lengths = mask.actors.lengths
        means = [place.mean() for place in Ragged(places, lengths).of_frames()]
        aim = np.stack([x, places], axis=1).astype(np.float32)
        mean = np.clip(5 + 5 * np.array(means, np.float32)[:, None], 0, 10)
        choices = {
            "aim": Ragged(aim, lengths),
            "call": Ragged(np.zeros(len(places), np.int64), lengths),
            "mean": Ragged(mean, np.ones(16, np.int64)),
        }
        obs = envs.act(choices, envs.obs_space())
    envs.close()
    return path


@pytest.mark.slow
def test_continuous_expert_is_cloned(tmp_path: Path) -> None:
    path, said = record_archers(tmp_path / "file"), list[str]()
    few = config("clone.epochs=40", "clone.lr=0.01", "clone.value_coef=0")
    result = clone(path, few, tmp_path / "run", say=said.append)
    assert result.test is not None
    errors = result.test.accuracy
    assert errors["call"] == 1.0
    assert errors["aim"] < 0.1
    assert errors["mean"] < 0.1
    lines = [line for line in said if line.startswith("epoch")]
    assert "accuracy call 1.000  error aim 0." in lines[-1]
    agent, world, total = load_agent(tmp_path / "run", deterministic=True), Targets(), 0.0
    world.seed(7)
    for _ in range(5):
        obs = world.reset()
        while not obs.done:
            obs = world.act(agent.act(obs).actions)
            total += obs.reward
    assert total / 50 > 1.5  # of 2


def test_errors_of_continuous_actions_are_relative_to_the_range(tmp_path: Path) -> None:
    path = record_archers(tmp_path / "file", steps=3)
    net, shown = network(Targets), read(path, Targets)
    _, _, score = loss_of(net, shown, "cross_entropy", PPOConfig())
    recorded = RecordedFrames.cat([e.decisions for e in Recording.open(path).episodes()])
    out = judged(net, shown)
    found = out.distribution("mean").to_env(out.distribution("mean").mode()).numpy()
    error = np.abs(found - recorded.actions["mean"].values).mean() / 10
    assert score.accuracy["mean"] == pytest.approx(error, rel=1e-4)
    bounds = recorded.obs.action_masks["aim"].bounds
    assert bounds is not None
    low, high = bounds.values[:, 0], bounds.values[:, 1]
    size = np.where(np.isinf(low) | (low == high), 1, high - low)
    found = out.distribution("aim").to_env(out.distribution("aim").mode()).numpy()
    error = (np.abs(found - recorded.actions["aim"].values) / size).mean()
    assert score.accuracy["aim"] == pytest.approx(error, rel=1e-4)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("world", "memory"),
    [(Camp, '(of: "frame", inputs: ["action", "reward"])'), (Targets, "None")],
)
def test_cloning_loss_of_ppo_resumes_bitwise(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, world: Any, memory: str
) -> None:
    monkeypatch.setattr("enn_trainer.tracking.track._new_run_name", lambda runs, config: "it")
    path = record_net(tmp_path / "file", world, network(world))
    settings = [
        *("rollout.num_envs=4", "rollout.steps=3", "rollout.processes=1", "optim.bs=6"),
        *("net.d_model=8", "net.n_layer=1", "total_timesteps=36", f"net.memory={memory}"),
        *(f"bc.path={path}", "bc.coef=1.0", "bc.bs=16", "bc.loss=kl", "bc.seq_len=4"),
    ]
    if memory == "None":
        settings.remove("bc.seq_len=4")
    one = go(tmp_path / "one", world, *settings)
    go(tmp_path / "other", world, *settings, stops=24)
    other = go(tmp_path / "other", world, *settings)
    assert_same(one.state, other.state)
    assert all(np.isfinite(row["losses/bc_loss"]) for row in one.numbers)  # type: ignore[attr-defined]


@pytest.mark.slow
def test_run_continues_from_a_clone_of_its_rollouts(tmp_path: Path) -> None:
    """Recorded, split, cloned, and played by PPO."""
    small = ["rollout.num_envs=4", "rollout.steps=12", "rollout.processes=1", "optim.bs=12"]
    small += ["net.d_model=8", "net.n_layer=1", f"data_dir={tmp_path}"]
    for world in (Camp, Targets):
        name = f"{world.__name__}.rec"
        capture = [f"capture_samples={name}", "capture_logits=true", "total_timesteps=96"]
        train(StateManager(overrides=[*small, *capture]), world)
        settings = ["clone.epochs=2", "clone.loss=kl"]
        recording = Recording.open(tmp_path / name)
        seed = derive_seed(0, "clone split")
        parts = [sum(len(e.decisions) for e in p.episodes()) for p in recording.split(0.1, seed)]
        assert sum(parts) == 96
        folder = tmp_path / world.__name__
        result = clone(tmp_path / name, config(*settings), folder, say=quiet)
        assert result.train is not None
        assert np.isfinite(result.train.mean_loss(0.5))
        manager = StateManager(checkpoint_dir=folder, overrides=["total_timesteps=24"])
        assert train(manager, world).step == 24
