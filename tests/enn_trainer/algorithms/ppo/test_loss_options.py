"""The options of the PPO loss, in whole optimizer steps and whole runs."""

import copy
import dataclasses
import math
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from enn_trainer import (
    AgentError,
    CheckpointError,
    ConfigError,
    OptimizerConfig,
    PPOConfig,
    StateManager,
    ValueBinsConfig,
    load_agent,
    load_checkpoint,
)
from enn_trainer.algorithms.ppo.entropy_targets import initial_tuning
from enn_trainer.algorithms.ppo.losses import normalize, normalize_acting
from enn_trainer.algorithms.ppo.returns import Estimate, advantages
from enn_trainer.experience.collector import Rollout
from entity_env import Observation
from rogue_net import RogueNet
from rogue_net.value_head import TargetNorm
from tests.enn_trainer.algorithms.ppo.builders import OPTIONS, a_rollout, moved_rollout, optimize
from tests.enn_trainer.builders import run_small, weights
from tests.enn_trainer.worlds import Meadow

ON_THE_COMMAND_LINE = {
    "ratio": ["ppo.ratio=frame"],
    "weight_by": ["ppo.weight_by=frame"],
    "dual_clip": ["ppo.dual_clip=1.0001"],
    "huber": ["ppo.value_loss=huber", "ppo.huber_delta=0.01"],
    "clip_vloss": ["ppo.clip_vloss=true", "ppo.vf_clip_coef=0.0001"],
    "hl_gauss": [
        "ppo.value_loss=hl_gauss",
        "ppo.value_bins.low=-2",
        "ppo.value_bins.high=4",
    ],
    "reward_scaling": ["ppo.reward_scaling=true"],
    "ent_targets": ['ppo.ent_targets={"walk": 0.3, "call": 0.6}'],
    "magnet": ["ppo.magnet.coef=1"],
}
LEARNT = [*ON_THE_COMMAND_LINE["reward_scaling"], *ON_THE_COMMAND_LINE["ent_targets"]]


def step(
    net: RogueNet,
    rollout: Rollout,
    ppo: PPOConfig,
    micro_bs: int | None = None,
    bs: int | None = None,
    estimate: Estimate | None = None,
    lr: float = 0.0,
    epochs: int = 1,
) -> tuple[list[torch.Tensor], dict[str, float]]:
    """The gradients of the last minibatch, and what is reported."""
    net = copy.deepcopy(net) if lr == 0 else net
    seen: list[torch.Tensor] = []

    class Recorder(torch.optim.Adam):
        def step(self, closure: Callable[[], float] | None = None) -> None:  # type: ignore[override]
            seen[:] = [
                torch.zeros_like(p) if p.grad is None else p.grad.clone() for p in net.parameters()
            ]
            super().step()

    told = optimize(
        net,
        Recorder(net.parameters(), lr=lr),
        rollout,
        advantages(rollout, ppo) if estimate is None else estimate,
        ppo=ppo,
        optim=OptimizerConfig(
            bs=bs or rollout.num_frames, micro_bs=micro_bs, update_epochs=epochs, max_grad_norm=1e9
        ),
        ent_coef=0.1,
        seed=3,
        ent_tunings={name: initial_tuning(0.3) for name in ppo.ent_targets},
    )
    return seen, told


def plain_loss(net: RogueNet, rollout: Rollout, ppo: PPOConfig) -> torch.Tensor:
    """The loss of a whole rollout by loops over frames and actors, from the definitions."""
    estimate = advantages(rollout, ppo)
    advantage = estimate.advantages.flatten()
    out = net(rollout.batch, actions={n: rows.values for n, rows in rollout.actions.items()})
    actors: list[list[tuple[torch.Tensor, torch.Tensor]]] = [[] for _ in advantage]
    for name, rows in rollout.actions.items():
        logratios = out.logprobs[name] - rollout.logprobs[name].values
        for i, frame in enumerate(rows.frame_of_row()):
            actors[frame].append((logratios[i], out.entropies[name][i]))
    num_actors = sum(len(of_frame) for of_frame in actors)
    num_acting = sum(bool(of_frame) for of_frame in actors)
    counted = [ppo.norm_adv_over == "all" or bool(of_frame) for of_frame in actors]
    judged = advantage[torch.tensor(counted)]
    advantage = (advantage - judged.mean()) / (judged.std() + 1e-8)
    total = torch.zeros((), dtype=torch.float64)
    for of_frame, adv in zip(actors, advantage, strict=True):
        joint = sum(logratio for logratio, _ in of_frame)
        for logratio, entropy in of_frame:
            ratio = torch.exp(logratio if ppo.ratio == "actor" else joint)
            gain = min(ratio * adv, ratio.clamp(0.8, 1.2) * adv)
            weight = 1 / num_actors
            if ppo.weight_by == "frame":
                weight = 1 / len(of_frame) / num_acting
            total = total - weight * (gain + 0.1 * entropy)
    values, old = out.values["value"].flatten(), rollout.values.flatten()
    returns = estimate.returns.flatten()
    moved = old + (values - old).clamp(-0.2, 0.2)
    squares = torch.maximum((values - returns) ** 2, (moved - returns) ** 2)
    return total + ppo.vf_coef * 0.5 * squares.mean()


@pytest.mark.slow
@pytest.mark.parametrize(
    "name",
    ["as published", "joint ratio", "equal frames", "joint ratio of equal frames"],
)
def test_gradient_equals_the_definition(name: str) -> None:
    """Of the published settings as well: nothing of the options is in their way."""
    ppo = PPOConfig(**{**OPTIONS["as published"], **OPTIONS[name]})
    net, rollout = moved_rollout(ppo)
    plain_loss(net, rollout, ppo).backward()  # type: ignore[no-untyped-call]
    expected = [torch.zeros_like(p) if p.grad is None else p.grad for p in net.parameters()]
    got, _ = step(net, rollout, ppo)
    largest = float(max(g.abs().max() for g in expected))
    for ours, theirs in zip(got, expected, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-6, atol=1e-9 * largest)


@pytest.mark.slow
@pytest.mark.parametrize("name", [name for name in OPTIONS if name != "as published"])
def test_option_changes_the_gradient(name: str) -> None:
    ppo = PPOConfig(**OPTIONS[name])
    net, rollout = moved_rollout(ppo)
    plain, _ = step(net, rollout, PPOConfig(clip_vloss=ppo.clip_vloss))
    changed, _ = step(net, rollout, ppo)
    assert any(not torch.equal(a, b) for a, b in zip(plain, changed, strict=True))


@pytest.mark.slow
@settings(max_examples=20)
@given(name=st.sampled_from(sorted(OPTIONS)), bs=st.integers(2, 12), micro_bs=st.integers(1, 14))
def test_micro_bs_changes_nothing_under_any_option(name: str, bs: int, micro_bs: int) -> None:
    """Neither the gradient nor what is reported, which is a mean over all of the update."""
    ppo = PPOConfig(**OPTIONS[name])
    net, rollout = moved_rollout(ppo, num_envs=2)
    whole, told_whole = step(net, rollout, ppo, bs=bs)
    cut, told_cut = step(net, rollout, ppo, bs=bs, micro_bs=micro_bs)
    largest = float(max(g.abs().max() for g in whole))
    for a, b in zip(whole, cut, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-6, atol=1e-6 * largest)
    assert told_cut == pytest.approx(told_whole, rel=1e-5, nan_ok=True)


def test_neutral_options_equal_the_defaults_bitwise() -> None:
    clipped = PPOConfig(clip_vloss=True, value_loss="mse")
    net, rollout = moved_rollout(clipped)
    plain, told = step(net, rollout, clipped)
    neutral = dataclasses.replace(
        clipped, dual_clip=1e30, vf_clip_coef=0.2, value_loss="huber", huber_delta=1e30
    )
    for ppo in (neutral, dataclasses.replace(neutral, value_loss="mse", huber_delta=1.0)):
        same, told_same = step(net, rollout, ppo)
        assert all(torch.equal(a, b) for a, b in zip(plain, same, strict=True))
        assert told_same == pytest.approx(told, rel=0, abs=0, nan_ok=True)


def test_kl_is_per_actor_and_the_loss_is_weighted() -> None:
    net, rollout = moved_rollout(PPOConfig())
    _, plain = step(net, rollout, PPOConfig())
    for name in ("joint ratio", "equal frames"):
        _, told = step(net, rollout, PPOConfig(**OPTIONS[name]))
        assert told["losses/approx_kl"] == plain["losses/approx_kl"], name
        assert told["losses/policy_loss"] != plain["losses/policy_loss"], name
    _, told = step(net, rollout, PPOConfig(weight_by="frame"))
    out = net(rollout.batch, actions={n: rows.values for n, rows in rollout.actions.items()})
    by_frame: list[list[float]] = [[] for _ in range(rollout.num_frames)]
    for action, rows in rollout.actions.items():
        for i, frame in enumerate(rows.frame_of_row()):
            by_frame[frame].append(out.entropies[action][i].item())
    expected = np.mean([np.mean(of_frame) for of_frame in by_frame if of_frame])
    assert told["losses/entropy"] == pytest.approx(expected)


def test_value_clipping_is_independent_of_policy_clipping() -> None:
    """Rewards in another unit need another range; the policy's stays what it is."""
    ppo = PPOConfig(clip_vloss=True, ent_coef=0.0, clip_coef=1e9)
    net, rollout = moved_rollout(ppo)
    plain, _ = step(net, rollout, dataclasses.replace(ppo, vf_clip_coef=0.02))
    policy, _ = step(net, rollout, ppo)
    head = [name for name, _ in net.named_parameters()].index("regression_heads./value.weight")
    both, _ = step(net, rollout, dataclasses.replace(ppo, clip_coef=0.02))
    assert torch.equal(plain[head], both[head])  # the value head knows of the value's loss alone
    assert not torch.equal(policy[head], both[head])


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "updates"),
    [("as published", 12), ("huber", 20), ("hl_gauss", 12), ("range of its own", 12)],
)
def test_values_of_any_loss_are_learnt(name: str, updates: int) -> None:
    """Each frame is worth half of the hour that it shows."""
    ppo = PPOConfig(**{**OPTIONS[name], "vf_coef": 10.0})
    net, rollout = a_rollout(num_envs=8, ppo=ppo)
    hour = rollout.batch.features["__global__"].values.view_as(rollout.values)
    returns = 0.5 * hour
    estimate = Estimate(returns, torch.zeros_like(returns))
    for i in range(updates):
        with torch.no_grad():
            now = net.values(rollout.batch)["value"].view_as(returns)
        step(
            net,
            dataclasses.replace(rollout, values=now),
            ppo,
            estimate=estimate,
            lr=0.02 * (1 - i / updates),
            bs=24,
            epochs=2,
        )
    with torch.no_grad():
        values = net.values(rollout.batch)["value"].view_as(returns)
    assert (values - returns).square().mean() < 0.05 * returns.var()


def test_returns_beyond_the_bins_are_counted() -> None:
    """As nothing else would say that the bins are too few."""
    ppo = PPOConfig(**OPTIONS["hl_gauss"])
    net, rollout = moved_rollout(ppo)
    returns = torch.zeros_like(rollout.values)
    returns.view(-1)[:3] = torch.tensor([-1.5, 3.5, 2.5], dtype=torch.float64)
    _, told = step(net, rollout, ppo, estimate=Estimate(returns, returns))
    assert told["losses/returns_beyond_bins"] == pytest.approx(2 / 24)


def test_network_without_value_bins_raises() -> None:
    net, rollout = a_rollout()
    with pytest.raises(AgentError, match=r"values\['value_logits'\]: expected .*21.*got none"):
        step(net, rollout, PPOConfig(**OPTIONS["hl_gauss"]))


# Runs


QUICK = ["optim.lr=0.03", "total_timesteps=48"]


@pytest.fixture(scope="module")
def plain_policy(tmp_path_factory: pytest.TempPathFactory) -> torch.Tensor:
    """The weights of the policy after a run without options."""
    plain = run_small(tmp_path_factory.mktemp("plain"), *QUICK)
    return weights_of_policy(plain.state.agent)


@pytest.mark.parametrize("name", sorted(ON_THE_COMMAND_LINE))
def test_option_changes_the_run(tmp_path: Path, plain_policy: torch.Tensor, name: str) -> None:
    changed = run_small(tmp_path, *QUICK, *ON_THE_COMMAND_LINE[name])
    assert not torch.equal(weights_of_policy(changed.state.agent), plain_policy)


def weights_of_policy(net: RogueNet) -> torch.Tensor:
    return torch.cat(
        [p.detach().flatten() for n, p in net.named_parameters() if "regression" not in n]
    )


def test_state_of_loss_options_is_saved_bitwise(tmp_path: Path) -> None:
    state = run_small(tmp_path, *LEARNT, checkpoint_dir=tmp_path / "run").state
    saved = load_checkpoint(tmp_path / "run").state
    assert saved.ent_tunings.keys() == state.ent_tunings.keys() == {"walk", "call"}
    for name, tuning in state.ent_tunings.items():
        assert torch.equal(saved.ent_tunings[name], tuning), name
        assert not torch.equal(tuning, initial_tuning(0.1)), name
    assert saved.reward_scaling is not None
    assert state.reward_scaling is not None
    assert torch.equal(saved.reward_scaling.returns, state.reward_scaling.returns)
    assert state.reward_scaling.returns.dtype == torch.float64
    assert state.reward_scaling.returns.any()
    pairs = zip(saved.reward_scaling.moments, state.reward_scaling.moments, strict=True)
    assert all(torch.equal(a, b) and a.dtype == b.dtype for a, b in pairs)


@pytest.mark.slow
def test_state_of_loss_options_resumes(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    before = run_small(tmp_path, *LEARNT, "total_timesteps=48", checkpoint_dir=folder).state
    runs = [run_small(tmp_path, "total_timesteps=72", init_path=folder).state for _ in range(2)]
    for name in before.ent_tunings:
        assert torch.equal(runs[0].ent_tunings[name], runs[1].ent_tunings[name])
        assert not torch.equal(runs[0].ent_tunings[name], before.ent_tunings[name])
    assert before.reward_scaling is not None
    assert runs[0].reward_scaling is not None
    assert before.reward_scaling.moments.num_rows == 48
    assert runs[0].reward_scaling.moments.num_rows == 72


@pytest.mark.slow
def test_options_can_be_switched_on_and_off_on_resume(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    run_small(tmp_path, "total_timesteps=48", checkpoint_dir=folder)
    on = run_small(tmp_path, *LEARNT, "rollout.num_envs=8", init_path=folder).state
    assert on.reward_scaling is not None
    assert len(on.reward_scaling.returns) == 8
    run_small(tmp_path, *LEARNT, "total_timesteps=48", checkpoint_dir=tmp_path / "other")
    off = ["ppo.reward_scaling=false", 'ppo.ent_targets={"call": 0.1}']
    state = run_small(tmp_path, *off, init_path=tmp_path / "other").state
    assert state.reward_scaling is None
    assert set(state.ent_tunings) == {"call"}


class Rich(Meadow):
    """In which everything is worth 1024 times as much."""

    def _observe(self, reward: float) -> Observation:
        return super()._observe(1024 * reward)


@pytest.mark.slow
def test_scaled_rewards_do_not_depend_on_their_unit(tmp_path: Path) -> None:
    scaled = ON_THE_COMMAND_LINE["reward_scaling"]
    poor, rich = run_small(tmp_path, *scaled), run_small(tmp_path, *scaled, env=Rich)
    assert torch.equal(weights(poor), weights(rich))
    assert not torch.equal(weights(run_small(tmp_path)), weights(run_small(tmp_path, env=Rich)))


@pytest.mark.slow
@pytest.mark.parametrize(
    "options",
    [[], [*ON_THE_COMMAND_LINE["hl_gauss"], "ppo.value_bins.low=-4"], ["vf_net.d_model=8"]],
)
def test_normalised_values_do_not_depend_on_the_unit_of_returns(
    tmp_path: Path, options: list[str]
) -> None:
    """What is learnt is the same, and values are in the unit of the rewards."""
    (poor, low), (rich, high) = (
        agent_and_value(tmp_path / env.__name__, env, *options) for env in (Meadow, Rich)
    )
    torch.testing.assert_close(weights(poor), weights(rich), rtol=1e-3, atol=1e-5)
    assert high == pytest.approx(1024 * low, rel=1e-3)
    assert low != 0


def agent_and_value(
    tmp_path: Path, env: type[Meadow], *settings: str
) -> tuple[StateManager, float]:
    """The run, and the value of the first frame by the agent that is loaded."""
    manager = run_small(tmp_path, *settings, env=env, checkpoint_dir=tmp_path / "run")
    world = env()
    world.seed(0)
    value = load_agent(tmp_path / "run").act(world.reset()).value
    assert value is not None
    return manager, value


def test_norm_adv_floor_keeps_small_advantages_small() -> None:
    """Where all returns are nearly equal, what is left is noise."""
    norm = TargetNorm()
    norm.add(torch.tensor([-10.0, 10.0]))
    noise = torch.tensor([0.001, -0.001, 0.002])
    floor = 0.1 * norm.std
    assert normalize(noise).std() == pytest.approx(1.0, rel=1e-4)
    expected = (noise - noise.mean()) / (0.1 * math.sqrt(200))
    torch.testing.assert_close(normalize(noise, floor), expected)
    torch.testing.assert_close(normalize_acting(noise, np.array([1, 2, 1]), floor), expected)
    assert torch.equal(normalize(1e5 * noise, floor), normalize(1e5 * noise))


@pytest.mark.slow
def test_run_with_value_bins_saves_resumes_and_acts(tmp_path: Path) -> None:
    folder, binned = tmp_path / "run", ON_THE_COMMAND_LINE["hl_gauss"]
    run_small(tmp_path, *binned, "total_timesteps=48", checkpoint_dir=folder)
    resumed = run_small(tmp_path, checkpoint_dir=folder)
    assert resumed.state.step == 72
    assert resumed.config.ppo.value_bins == ValueBinsConfig(-2.0, 4.0)
    assert torch.equal(weights(load_checkpoint(folder)), weights(resumed))
    env = Meadow()
    env.seed(0)
    assert -2 < load_agent(folder).act(env.reset()).value < 4


def test_value_bins_and_norm_cannot_change_on_resume(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    run_small(tmp_path, *ON_THE_COMMAND_LINE["hl_gauss"], checkpoint_dir=folder)
    for changes, message in (
        (["ppo.value_bins.high=5"], r"ppo.value_bins.high: expected 4.0 .* got 5.0"),
        (["ppo.value_norm=false"], r"ppo.value_norm: expected True .* got False"),
        (
            ["ppo.value_loss=mse", "ppo.value_bins=None"],
            r"ppo.value_bins: expected .*high=4.0.* got None",
        ),
    ):
        with pytest.raises(CheckpointError, match=message) as error:
            run_small(tmp_path, *changes, checkpoint_dir=folder)
        assert "\n" not in str(error.value)


def test_target_for_an_unknown_action_raises(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"ppo.ent_targets: .*'walk'.* got \['wakl'\]"):
        run_small(tmp_path, 'ppo.ent_targets={"wakl": 0.5}')
