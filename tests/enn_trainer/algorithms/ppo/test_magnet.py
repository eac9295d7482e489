"""The magnet: its loss by hand and by differences, and what is frozen, resumed and evolved."""

import copy
import dataclasses
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from enn_trainer import (
    CheckpointError,
    ConfigError,
    MagnetConfig,
    OptimizerConfig,
    PPOConfig,
    State,
    TrainConfig,
    Trainer,
    init_train_state,
    train,
)
from enn_trainer.algorithms.algorithm import AuxiliaryLoss, Clock
from enn_trainer.algorithms.ppo.magnet import Magnet
from enn_trainer.algorithms.ppo.ppo import PPO
from enn_trainer.algorithms.ppo.returns import advantages
from enn_trainer.checkpoints.migrate.evolve import evolve
from enn_trainer.checkpoints.run_dir import RunDir
from enn_trainer.checkpoints.state_files import to_files
from enn_trainer.checkpoints.writer import save
from enn_trainer.config.load import load_config
from enn_trainer.experience.collector import Rollout
from enn_trainer.runtime.execution import ExecutionContext, ThreadPool
from enn_trainer.testing import check_state_part
from entity_env import Environment, EnvList
from rogue_net import RogueNet
from rogue_net.answer import NetOutput, answer
from rogue_net.ragged import EntityBatch
from tests.enn_trainer.algorithms.ppo.builders import a_rollout, double, moved_rollout
from tests.toys.world import (
    Lane,
    assert_failed_updates_change_nothing,
    assert_same,
    everything,
    manager_of,
    newest,
    run,
)

MAGNET = ("ppo.magnet.coef=0.5", "ppo.magnet.every=32")
"""With updates of 16 frames: the magnet changes in every second one."""


def config_of(**settings: Any) -> TrainConfig:
    ppo = PPOConfig(magnet=MagnetConfig(coef=0.5, every=100))
    return dataclasses.replace(
        load_config(TrainConfig, None), ppo=dataclasses.replace(ppo, **settings)
    )


def magnet_of(state: State) -> Magnet:
    magnet: Magnet = state.algorithm.auxiliary_losses["magnet"]
    return magnet


class Says(nn.Module):
    """Network of fixed probabilities."""

    def __init__(self, probabilities: list[list[float]]) -> None:
        super().__init__()
        self.log_probs = nn.Parameter(torch.tensor(probabilities).log())

    def forward(self, batch: Any, actions: Any = None, uniforms: Any = None) -> NetOutput:
        return answer({"a": self.log_probs}, {}, actions)


def test_kl_by_hand() -> None:
    policy, before = (
        Says([[0.5, 0.5, 0.0], [0.2, 0.2, 0.6]]),
        Says([[0.25, 0.75, 0.0], [0.2, 0.2, 0.6]]),
    )
    magnet = Magnet(config_of(), before)
    assert magnet.begin_update(Clock(0, 0.0))
    batch: Any = None
    coef, losses = magnet.actor_losses(batch, policy(None, {"a": torch.tensor([0, 2])}))
    # 1/2 log(.5 / .25) + 1/2 log(.5 / .75), where 0 log 0 = 0; and nothing between equals
    assert coef == 0.5
    assert losses["a"].tolist() == pytest.approx([0.5 * math.log(2) + 0.5 * math.log(2 / 3), 0])
    losses["a"].sum().backward()  # type: ignore[no-untyped-call]
    assert policy.log_probs.grad is not None
    assert policy.log_probs.grad.isfinite().all()
    assert before.log_probs.grad is None


def moved_with_magnet(**settings: Any) -> tuple[RogueNet, Rollout, TrainConfig, Magnet]:
    """A network, a rollout, and a magnet that is further away, all in double precision."""
    config = config_of(**settings)
    net, rollout = moved_rollout(config.ppo)
    other = copy.deepcopy(net)
    generator = torch.Generator().manual_seed(2)
    with torch.no_grad():
        for p in other.parameters():
            p += 0.3 * torch.randn(p.shape, generator=generator, dtype=p.dtype)
    magnet = Magnet(config, other)
    magnet.begin_update(Clock(0, 0.0))
    return net, rollout, config, magnet


def gradients(
    net: RogueNet,
    rollout: Rollout,
    config: TrainConfig,
    auxiliary: dict[str, AuxiliaryLoss],
    micro_bs: int | None = None,
    bs: int | None = None,
    context: ExecutionContext | None = None,
) -> tuple[list[Tensor], dict[str, float]]:
    """Return the gradients of the last minibatch, and the metrics."""
    net = copy.deepcopy(net)
    optim = OptimizerConfig(
        lr=0.0, bs=bs or rollout.num_frames, micro_bs=micro_bs, update_epochs=1, max_grad_norm=1e9
    )
    algorithm = PPO(dataclasses.replace(config, optim=optim), net, {})
    estimate = advantages(rollout, config.ppo)
    metrics = algorithm.optimize(
        rollout, estimate, 0.1, 3, auxiliary, context or ExecutionContext()
    )
    grads = [torch.zeros_like(p) if p.grad is None else p.grad for p in net.parameters()]
    return grads, metrics


def mean_kl(net: Any, magnet: Any, rollout: Rollout, weight_by: str) -> float:
    """Return KL(policy || magnet) by loops over actors and choices, from the definition."""
    chosen = {name: rows.values for name, rows in rollout.actions.items()}
    with torch.no_grad():
        ours, theirs = net(rollout.batch, chosen), magnet(rollout.batch, chosen)
    of_frames: list[list[float]] = [[] for _ in range(rollout.num_frames)]
    for name, rows in rollout.actions.items():
        for i, frame in enumerate(rows.frame_of_row()):
            pairs = zip(
                ours.log_probs[name][i].tolist(), theirs.log_probs[name][i].tolist(), strict=True
            )
            of_frames[frame].append(sum(math.exp(p) * (p - q) for p, q in pairs if p > -math.inf))
    acting = [kls for kls in of_frames if kls]
    if weight_by == "frame":
        return sum(sum(kls) / len(kls) for kls in acting) / len(acting)
    return sum(map(sum, acting)) / sum(map(len, acting))


@pytest.mark.parametrize("weight_by", ["actor", "frame"])
def test_gradient_equals_finite_differences_of_the_mean_kl(weight_by: str) -> None:
    net, rollout, config, magnet = moved_with_magnet(weight_by=weight_by)
    with_it, metrics = gradients(net, rollout, config, {"magnet": magnet})
    without, plain = gradients(net, rollout, config, {})
    expected = mean_kl(net, magnet.network, rollout, weight_by)
    assert expected > 0.01
    assert metrics["losses/magnet"] == pytest.approx(expected)
    assert "losses/magnet" not in plain
    assert {
        k: v for k, v in metrics.items() if k in plain and "gradnorm" not in k
    } == pytest.approx({k: v for k, v in plain.items() if "gradnorm" not in k}, nan_ok=True)
    for seed in range(3):
        generator, h = torch.Generator().manual_seed(seed), 1e-5
        direction = [
            torch.randn(p.shape, generator=generator, dtype=p.dtype) for p in net.parameters()
        ]
        slope = sum(
            ((a - b) * d).sum().item() for a, b, d in zip(with_it, without, direction, strict=True)
        )
        moved = []
        for sign in (1, -1):
            there = copy.deepcopy(net)
            with torch.no_grad():
                for p, d in zip(there.parameters(), direction, strict=True):
                    p += sign * h * d
            moved.append(mean_kl(there, magnet.network, rollout, weight_by))
        # coef * (KL(theta + h d) - KL(theta - h d)) / 2h
        assert slope == pytest.approx(0.5 * (moved[0] - moved[1]) / (2 * h), rel=1e-5)


def test_gradient_of_compiled_code_equals_double_precision() -> None:
    net, rollout = a_rollout(num_envs=4)
    other = copy.deepcopy(net)
    with torch.no_grad():
        for p in other.parameters():
            p += 0.2 * torch.randn(p.shape, generator=torch.Generator().manual_seed(4))
    config, found = config_of(), []
    for net_, other_, rollout_ in (
        (net, other, rollout),
        (copy.deepcopy(net).double(), copy.deepcopy(other).double(), double(rollout)),
    ):
        magnet = Magnet(config, other_)
        magnet.begin_update(Clock(0, 0.0))
        with_it, _ = gradients(net_, rollout_, config, {"magnet": magnet})
        without, _ = gradients(net_, rollout_, config, {})
        found.append(
            torch.cat([(a - b).double().flatten() for a, b in zip(with_it, without, strict=True)])
        )
    assert found[1].abs().max() > 1e-3
    torch.testing.assert_close(
        found[0], found[1], rtol=1e-2, atol=1e-4 * float(found[1].abs().max())
    )


@pytest.mark.slow
@pytest.mark.parametrize("weight_by", ["actor", "frame"])
@pytest.mark.parametrize(("bs", "micro_bs"), [(None, 1), (None, 7), (9, 4)])
def test_micro_bs_changes_nothing(weight_by: str, bs: int | None, micro_bs: int) -> None:
    net, rollout, config, magnet = moved_with_magnet(weight_by=weight_by)
    whole, metrics = gradients(net, rollout, config, {"magnet": magnet}, bs=bs)
    cut, metrics_cut = gradients(net, rollout, config, {"magnet": magnet}, micro_bs, bs)
    for a, b in zip(whole, cut, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-8, atol=1e-10)
    assert metrics_cut == pytest.approx(metrics, rel=1e-5, nan_ok=True)


def test_number_of_threads_does_not_change_bits() -> None:
    net, rollout, config, magnet = moved_with_magnet()
    auxiliary: dict[str, AuxiliaryLoss] = {"magnet": magnet}
    one, metrics = gradients(net, rollout, config, auxiliary, micro_bs=3)
    with ThreadPool(3) as threads:
        context = ExecutionContext(threads)
        three, metrics_3 = gradients(net, rollout, config, auxiliary, 3, context=context)
    assert all(torch.equal(a, b) for a, b in zip(one, three, strict=True))
    assert repr(metrics_3) == repr(metrics)


@pytest.mark.slow
def test_magnet_is_copied_at_multiples_of_every(tmp_path: Path) -> None:
    """With its input statistics of then; updates are of 16 frames, and 40 lies within one."""
    manager = manager_of(tmp_path, "total_timesteps=800", "ppo.magnet.every=40")
    with Trainer(manager, Lane) as trainer:
        agents = {}
        for _ in range(8):
            step = trainer.state.step
            agents[step] = copy.deepcopy(trainer.state.agent.state_dict())
            metrics = trainer.step()
            last = {0: 0, 16: 0, 32: 0, 48: 48, 64: 48, 80: 80, 96: 80, 112: 80}[step]
            magnet = magnet_of(trainer.state)
            assert magnet.step == last
            # The first rollout enters the statistics before it is learnt from, and the returns of
            # each rollout those of the values, of which the magnet uses none.
            changed = ".norm." if last == 0 else "regression_heads./value.norm."
            pulls = {n: x for n, x in agents[last].items() if changed not in n}
            found = magnet.network.state_dict()
            assert all(torch.equal(found[name], x) for name, x in pulls.items())
            assert metrics["losses/magnet"] >= 0
            assert not any(p.requires_grad for p in magnet.network.parameters())
            assert not magnet.network.training
    names = {name for name in agents[0] if ".norm." in name}
    assert names
    assert any(not torch.equal(agents[48][n], agents[80][n]) for n in names)


@pytest.mark.slow
def test_large_coefficient_keeps_the_policy(tmp_path: Path) -> None:
    kls = [
        run(tmp_path, 160, f"ppo.magnet.coef={coef}", "optim.lr=0.02").state.metrics[
            "losses/magnet"
        ]
        for coef in (0.001, 10)
    ]
    assert kls[1] < kls[0] / 4


@pytest.mark.slow
def test_coefficient_of_0_equals_no_section_bitwise(tmp_path: Path) -> None:
    def of_run(*overrides: str) -> tuple[dict[str, Any], dict[str, float]]:
        state = run(tmp_path, 64, *overrides).state
        found = everything(state)
        return {n: x for n, x in found.items() if "magnet" not in n}, state.metrics

    (without, metrics), (with_0, metrics_0) = of_run(), of_run("ppo.magnet.coef=0")
    assert_same(without, with_0)
    assert metrics.keys() == metrics_0.keys()
    assert "losses/magnet" not in metrics
    other, metrics_1 = of_run("ppo.magnet.coef=1")
    assert "losses/magnet" in metrics_1
    assert any(not torch.equal(other[n], x) for n, x in without.items() if n.startswith("agent/"))


def test_coefficient_follows_a_schedule(tmp_path: Path) -> None:
    """While it is 0 the magnet moves on."""
    manager = manager_of(
        tmp_path, "total_timesteps=64", "ppo.magnet.coef=step: 0@0 step 1@48", "ppo.magnet.every=16"
    )
    tracked = []
    with Trainer(manager, Lane) as trainer:
        for step in (0, 16, 32, 48):
            tracked.append("losses/magnet" in trainer.step())
            assert magnet_of(trainer.state).step == step
    assert tracked == [False, False, False, True]


@pytest.fixture(scope="module")
def straight(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """The state after a run of five updates that nothing stopped."""
    return everything(run(tmp_path_factory.mktemp("straight"), 80, *MAGNET).state)


@pytest.mark.slow
@pytest.mark.parametrize("stops", [16, 32, 48])
def test_runs_resume_bitwise(tmp_path: Path, straight: dict[str, Any], stops: int) -> None:
    """Stopped just after the magnet was changed, before it is, and in between."""
    for frames in (stops, 80):
        resumed = run(tmp_path, frames, *MAGNET, checkpoint_dir=tmp_path / "parts")
    assert resumed.state.restart == 1
    assert_same(straight, everything(resumed.state))
    assert any(name.startswith("algorithm/magnet/agent/") for name in straight)


def test_failed_updates_restore_the_magnet(tmp_path: Path) -> None:
    def with_magnet(config: TrainConfig, ctx: dict[str, Any]) -> State:
        config.ppo.magnet = MagnetConfig(coef=0.5, every=32)  # so that it moves in the third update
        return init_train_state(config, ctx)

    assert_failed_updates_change_nothing(tmp_path, with_magnet)


def test_magnet_is_a_state_part() -> None:
    agent = nn.Linear(2, 3)
    magnet = Magnet(config_of(), agent)
    magnet.begin_update(Clock(7, 0.0))
    check_state_part(magnet, Magnet(config_of(), nn.Linear(2, 3)))


@pytest.mark.slow
def test_magnet_can_be_switched_on_and_off_on_resume(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    run(tmp_path, 32, checkpoint_dir=folder)
    on = run(tmp_path, 64, *MAGNET, checkpoint_dir=folder).state
    assert magnet_of(on).step == 32
    off = run(tmp_path, 96, "ppo.magnet=None", checkpoint_dir=folder).state
    assert not any("magnet" in name for name in everything(off))
    assert magnet_of(run(tmp_path, 112, *MAGNET, checkpoint_dir=folder).state).step == 96


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        (lambda state: state.pop("agent/weight"), r"agent/weight: expected \[3, 2\]"),
        (lambda state: state.update({"agent/weight": torch.zeros(2, 2)}), r"got \[2, 2\]"),
        (
            lambda state: state.update({"agent/other": torch.zeros(1)}),
            "agent/other: the network has",
        ),
        (lambda state: state.update({"step": -1}), "step: expected a number of frames, got -1"),
        (lambda state: state.pop("step"), "step: expected a number of frames, got None"),
        (lambda state: state["agent/bias"].fill_(math.nan), "agent/bias: expected finite numbers"),
    ],
)
def test_invalid_states_raise(change: Callable[[dict[str, Any]], Any], problem: str) -> None:
    magnet = Magnet(config_of(), nn.Linear(2, 3))
    magnet.begin_update(Clock(0, 0.0))
    state = dict(magnet.state_dict())
    change(state)
    with pytest.raises(ValueError, match=problem):
        Magnet(config_of(), nn.Linear(2, 3)).load_state_dict(state)


def frames_of(env: Callable[[], Environment]) -> EntityBatch:
    envs = EnvList(env, 3)
    envs.seed(5)
    return EntityBatch.of(envs.reset(envs.obs_space()))


@pytest.mark.slow
def test_magnet_evolves_like_the_agent(tmp_path: Path) -> None:
    """To a world with one more feature, the first one."""
    manager = run(tmp_path, 64, *MAGNET, checkpoint_dir=tmp_path / "run")
    windy = Lane(wind=True)
    evolved = evolve(newest(tmp_path / "run"), windy.obs_space(), windy.action_space())
    old, new = magnet_of(manager.state), magnet_of(evolved.state)
    assert new.step == old.step == 32
    before, after = frames_of(Lane), frames_of(lambda: Lane(wind=True))
    with torch.no_grad():
        said = old.network(before).log_probs["roll/all"]
        torch.testing.assert_close(new.network(after).log_probs["roll/all"], said)
        assert not torch.allclose(
            manager.state.agent(before).log_probs["roll/all"], said, atol=1e-4
        )

    # It is saved, and goes on.
    evolved.save(tmp_path / "evolved")
    continued = manager_of(tmp_path, "total_timesteps=80", checkpoint_dir=tmp_path / "evolved")
    train(continued, lambda: Lane(wind=True))
    assert magnet_of(continued.state).step == 64
    assert continued.state.metrics["losses/magnet"] > 0


class Own(nn.Module):
    """Network of a user's own around another one."""

    def __init__(self) -> None:
        super().__init__()
        lane = Lane()
        torch.manual_seed(0)
        heads = {"value": 1}
        self.inner = RogueNet(
            load_config(TrainConfig, None).net, lane.obs_space(), lane.action_space(), heads
        )

    def forward(self, batch: EntityBatch, actions: Any = None, uniforms: Any = None) -> NetOutput:
        out = self.inner(batch)
        return answer(out.log_probs, out.values, actions, uniforms)

    def values(self, batch: EntityBatch) -> dict[str, Tensor]:
        return self.inner.values(batch)

    def update_input_stats(self, batch: EntityBatch) -> None:
        self.inner.update_input_stats(batch)


@pytest.mark.slow
def test_custom_networks_can_have_a_magnet(tmp_path: Path) -> None:
    for frames in (32, 64):
        manager = manager_of(
            tmp_path, f"total_timesteps={frames}", *MAGNET, checkpoint_dir=tmp_path / "run"
        )
        train(manager, Lane, agent=Own())
    straight = manager_of(tmp_path, "total_timesteps=64", *MAGNET)
    train(straight, Lane, agent=Own())
    assert straight.state.metrics["losses/magnet"] > 0
    assert_same(everything(straight.state), everything(manager.state))


def test_networks_that_cannot_be_copied_raise_before_training(tmp_path: Path) -> None:
    class Uncopied(Own):
        def __deepcopy__(self, memo: Any) -> Any:
            raise TypeError("holds a socket")

    with pytest.raises(ConfigError, match=r"^ppo\.magnet: .*Uncopied: holds a socket"):
        Trainer(manager_of(tmp_path, *MAGNET), Lane, agent=Uncopied())
    train(manager_of(tmp_path, "total_timesteps=16"), Lane, agent=Uncopied())


def test_saved_magnets_with_nan_raise(tmp_path: Path) -> None:
    manager = run(tmp_path, 32, *MAGNET, checkpoint_dir=tmp_path / "run")
    with torch.no_grad():
        next(magnet_of(manager.state).network.parameters()).fill_(math.inf)
    files = to_files(manager.config, manager.state)
    with RunDir(tmp_path / "damaged").begin():
        save(tmp_path / "damaged", 32, files, "damaged", if_exists="raise")
    with pytest.raises(CheckpointError, match=r"magnet: agent/.* expected finite numbers"):
        run(tmp_path, 48, *MAGNET, checkpoint_dir=tmp_path / "damaged")
