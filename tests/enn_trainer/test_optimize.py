"""One optimizer step is what it says, however it is cut."""

import copy
from collections.abc import Callable

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from enn_trainer import OptimizerConfig, PPOConfig, RogueNetConfig, TrainConfig
from enn_trainer.loop import advantages
from enn_trainer.optimize import minibatches, optimize
from enn_trainer.rollout import Rollout, collect
from enn_trainer.state import make_network
from entity_env import AddMetricsWrapper, EnvList
from rogue_net.ragged import EntityBatch
from rogue_net.rogue_net import RogueNet
from tests.enn_trainer.worlds import Meadow


def a_rollout(
    num_envs: int = 4,
    steps: int = 6,
    seed: int = 0,
    pdrop: float = 0.0,
    ppo: PPOConfig | None = None,
) -> tuple[RogueNet, Rollout]:
    envs = AddMetricsWrapper(EnvList(Meadow, num_envs))
    envs.seed(seed)
    obs = envs.reset(envs.obs_space())
    config = TrainConfig.__new__(TrainConfig)  # only what make_network reads
    config.seed = seed
    config.ppo = ppo or PPOConfig()
    config.net = RogueNetConfig(d_model=16, embd_pdrop=pdrop, resid_pdrop=pdrop, attn_pdrop=pdrop)
    net = make_network(config, envs.obs_space(), envs.action_space())
    net.update_input_stats(EntityBatch.of(obs))
    rollout = collect(
        envs,
        net,
        obs,
        envs.obs_space(),
        steps=steps,
        seed=seed,
        first_frame=0,
        device=torch.device("cpu"),
    )
    return net, rollout


def gradients_of_one_step(
    net: RogueNet, rollout: Rollout, bs: int, micro_bs: int | None
) -> list[torch.Tensor]:
    """The gradient of the first minibatch, in float64."""
    net = copy.deepcopy(net).double()
    seen: list[list[torch.Tensor]] = []

    class Recorder(torch.optim.SGD):
        def step(self, closure: Callable[[], float] | None = None) -> None:  # type: ignore[override]
            seen.append([p.grad.clone() for p in net.parameters() if p.grad is not None])

    optimize(
        net,
        Recorder(net.parameters(), lr=0.0),
        double(rollout),
        advantages(double(rollout), PPOConfig()),
        ppo=PPOConfig(),
        optim=OptimizerConfig(bs=bs, micro_bs=micro_bs, update_epochs=1, max_grad_norm=1e9),
        ent_coef=0.1,
        seed=3,
    )
    return seen[-1]


def double(rollout: Rollout) -> Rollout:
    batch = rollout.batch
    features = {
        name: type(rows)(rows.values.double(), rows.lengths)
        for name, rows in batch.features.items()
    }
    return Rollout(
        **{
            **vars(rollout),
            "batch": EntityBatch(features, batch.visible, batch.actions, batch.num_frames),
            "values": rollout.values.double(),
            "rewards": rollout.rewards.double(),
            "last_values": rollout.last_values.double(),
            "final_values": rollout.final_values.double(),
        }
    )


@settings(max_examples=15, deadline=None)
@given(
    bs=st.integers(2, 24),
    micro_bs=st.integers(1, 30),
    seed=st.integers(0, 3),
    pdrop=st.sampled_from([0.0, 0.3]),
)
def test_any_micro_bs_gives_the_gradient_of_the_whole_minibatch(
    bs: int, micro_bs: int, seed: int, pdrop: float
) -> None:
    """Whatever is dropped: it is the same however the minibatch is cut."""
    net, rollout = a_rollout(seed=seed, pdrop=pdrop)
    whole = gradients_of_one_step(net, rollout, bs, None)
    cut = gradients_of_one_step(net, rollout, bs, micro_bs)
    largest = max(g.abs().max() for g in whole)
    for a, b in zip(whole, cut, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-6, atol=1e-9 * float(largest))


@given(frames=st.integers(1, 200), size=st.integers(1, 250), epochs=st.integers(1, 3))
def test_every_frame_is_used_once_per_epoch(frames: int, size: int, epochs: int) -> None:
    used = np.concatenate(list(minibatches(frames, size, epochs, seed=1)))
    assert np.array_equal(np.bincount(used, minlength=frames), np.full(frames, epochs))


def test_epochs_differ_in_their_order() -> None:
    first, second = minibatches(50, 50, 2, seed=1)
    assert not np.array_equal(first, second)


def test_losses_are_finite_when_an_action_has_no_actors() -> None:
    net, rollout = a_rollout()
    silent = {
        name: type(rows)(rows.values[:0], np.zeros_like(rows.lengths))
        for name, rows in {"watch": rollout.actions["watch"]}.items()
    }
    action = rollout.batch.actions["watch"]
    batch = EntityBatch(
        rollout.batch.features,
        rollout.batch.visible,
        {
            **rollout.batch.actions,
            "watch": type(action)(silent["watch"], None, action.actees),
        },
        rollout.num_frames,
    )
    rollout = Rollout(
        **{
            **vars(rollout),
            "batch": batch,
            "actions": {**rollout.actions, "watch": silent["watch"]},
            "logprobs": {
                **rollout.logprobs,
                "watch": type(silent["watch"])(torch.zeros(0), silent["watch"].lengths),
            },
        }
    )
    losses = optimize(
        net,
        torch.optim.AdamW(net.parameters(), lr=1e-3),
        rollout,
        advantages(rollout, PPOConfig()),
        ppo=PPOConfig(target_kl=0.5),
        optim=OptimizerConfig(bs=8),
        ent_coef=0.1,
        seed=0,
    )
    assert all(np.isfinite(value) for value in losses.values()), losses


def test_target_kl_ends_the_update_after_the_minibatch_that_exceeds_it() -> None:
    net, rollout = a_rollout()
    steps = []

    class Counter(torch.optim.AdamW):
        def step(self, closure: Callable[[], float] | None = None) -> None:  # type: ignore[override]
            steps.append(1)
            super().step()

    optimize(
        net,
        Counter(net.parameters(), lr=0.1),
        rollout,
        advantages(rollout, PPOConfig()),
        ppo=PPOConfig(target_kl=1e-3),
        optim=OptimizerConfig(bs=6, update_epochs=10),
        ent_coef=0.0,
        seed=0,
    )
    assert 1 < len(steps) < 10


def test_first_minibatch_has_no_kl() -> None:
    """Acting and learning see the same network: statistics do not change in between."""
    net, rollout = a_rollout()
    losses = optimize(
        net,
        torch.optim.SGD(net.parameters(), lr=0.0),
        rollout,
        advantages(rollout, PPOConfig()),
        ppo=PPOConfig(),
        optim=OptimizerConfig(bs=24, update_epochs=1),
        ent_coef=0.0,
        seed=0,
    )
    assert losses["losses/approx_kl"] == pytest.approx(0.0, abs=1e-7)
    assert losses["losses/clipfrac"] == 0.0
