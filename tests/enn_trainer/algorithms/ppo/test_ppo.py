"""One optimizer step is what it says, however it is cut."""

import copy
from collections.abc import Callable
from unittest.mock import patch

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from enn_trainer import OptimizerConfig, PPOConfig
from enn_trainer.algorithms import minibatches as minibatches_module
from enn_trainer.algorithms.ppo.returns import advantages
from enn_trainer.experience.collector import Rollout
from enn_trainer.runtime.execution import SINGLE_THREAD, ExecutionContext, ThreadPool
from rogue_net.ragged import EntityBatch
from rogue_net.rogue_net import RogueNet
from tests.enn_trainer.algorithms.ppo.builders import a_rollout, double, optimize


def gradients_of_one_step(
    net: RogueNet,
    rollout: Rollout,
    bs: int,
    micro_bs: int | None,
    max_entities: int | None = None,
    shuffle: bool = True,
    threads: ThreadPool = SINGLE_THREAD,
) -> list[torch.Tensor]:
    """The gradient of the last minibatch, in float64."""
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
        optim=OptimizerConfig(
            bs=bs,
            micro_bs=micro_bs,
            max_entities=max_entities,
            shuffle=shuffle,
            update_epochs=1,
            max_grad_norm=1e9,
        ),
        ent_coef=0.1,
        seed=3,
        context=ExecutionContext(threads),
    )
    return seen[-1]


@pytest.mark.slow
@settings(max_examples=15)
@given(
    bs=st.integers(2, 24),
    micro_bs=st.none() | st.integers(1, 30),
    max_entities=st.none() | st.integers(1, 40),
    seed=st.integers(0, 3),
    pdrop=st.sampled_from([0.0, 0.3]),
)
def test_microbatches_have_the_gradient_of_the_minibatch(
    bs: int, micro_bs: int | None, max_entities: int | None, seed: int, pdrop: float
) -> None:
    """Whatever is dropped: it is the same however the minibatch is cut."""
    net, rollout = a_rollout(seed=seed, pdrop=pdrop)
    whole = gradients_of_one_step(net, rollout, bs, None)
    cut = gradients_of_one_step(net, rollout, bs, micro_bs, max_entities)
    largest = max(g.abs().max() for g in whole)
    for a, b in zip(whole, cut, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-6, atol=1e-9 * float(largest))


@pytest.mark.slow
@settings(max_examples=10)
@given(
    least=st.integers(1, 9),
    most=st.integers(2, 20),
    max_entities=st.none() | st.integers(1, 40),
    pdrop=st.sampled_from([0.0, 0.3]),
)
def test_threads_have_the_gradient_of_the_minibatch(
    least: int, most: int, max_entities: int | None, pdrop: float
) -> None:
    """And the same to the bit, however many threads there are."""
    net, rollout = a_rollout(pdrop=pdrop)
    whole = gradients_of_one_step(net, rollout, 24, None)
    with patch.multiple(minibatches_module, LEAST_COST=256 * least, MICROBATCH_ENTITIES=most):
        cut = []
        for count in (1, 2, 3):
            # Torch has one thread wherever there are threads, and where there is one, one core.
            with ThreadPool(count) as threads, ThreadPool(2).at_work():
                cut.append(
                    gradients_of_one_step(net, rollout, 24, None, max_entities, threads=threads)
                )
    largest = max(g.abs().max() for g in whole)
    for of_whole, first, *others in zip(whole, *cut, strict=True):
        torch.testing.assert_close(of_whole, first, rtol=1e-6, atol=1e-9 * float(largest))
        for other in others:
            assert torch.equal(first, other)


def test_budget_counts_the_entities_of_a_frame() -> None:
    """Of all types; the forward passes are what must not be too large."""
    net, rollout = a_rollout()
    sizes: list[int] = []
    net.register_forward_pre_hook(lambda _, args: sizes.append(args[0].num_entities()))
    gradients_of_one_step(net, rollout, 24, None, max_entities=9)
    assert max(sizes) <= 9  # no frame of the meadow has more than 6
    assert sum(sizes) == rollout.batch.num_entities()
    assert len(sizes) < 24


def test_short_last_minibatch_is_weighted_by_its_frames() -> None:
    """Means over its four frames and their actors, and not over the twenty of the others."""
    net, rollout = a_rollout(num_envs=4, steps=6)
    last = np.arange(20, 24)
    double_net, frames = copy.deepcopy(net).double(), double(rollout)
    estimate = advantages(frames, PPOConfig())
    advantage = estimate.advantages.flatten()[20:]
    advantage = (advantage - advantage.mean()) / advantage.std()
    chosen = {name: rows.take(last) for name, rows in rollout.actions.items()}
    out = double_net(
        frames.batch.take(last), actions={name: rows.values for name, rows in chosen.items()}
    )
    gains = [
        (out.logprobs[name] - rollout.logprobs[name].take(last).values).exp()
        * advantage[torch.from_numpy(rows.frame_of_row())]
        for name, rows in chosen.items()
    ]
    error = out.values["value"].flatten() - estimate.returns.flatten()[20:]
    loss = 0.5 * (0.5 * error.square()).mean() - torch.cat(gains).mean()
    loss = loss - 0.1 * torch.cat(list(out.entropies.values())).mean()
    expected = torch.autograd.grad(loss, list(double_net.parameters()))
    got = gradients_of_one_step(net, rollout, 20, None, shuffle=False)
    assert any((g != 0).any() for g in expected)
    for a, b in zip(expected, got, strict=True):
        torch.testing.assert_close(b, a, rtol=1e-6, atol=1e-9)


def losses_at_rest(net: RogueNet, rollout: Rollout, **sizes: int) -> dict[str, float]:
    """What an update reports that changes nothing."""
    return optimize(
        net,
        torch.optim.SGD(net.parameters(), lr=0.0),
        rollout,
        advantages(rollout, PPOConfig()),
        ppo=PPOConfig(norm_adv=False),
        optim=OptimizerConfig(update_epochs=2, **sizes),
        ent_coef=0.1,
        seed=0,
    )


@pytest.mark.parametrize("sizes", [{"bs": 7}, {"bs": 23}, {"bs": 10, "micro_bs": 3}])
def test_losses_are_means_over_all_minibatches(sizes: dict[str, int]) -> None:
    """Not those of the last piece; a short minibatch counts for the actors and frames it has."""
    net, rollout = a_rollout()
    with torch.no_grad():  # a policy that has moved, so that there is a divergence to report
        for parameter in net.parameters():
            parameter.add_(0.3 * torch.sin(torch.arange(parameter.numel()).view_as(parameter)))
    whole, cut = losses_at_rest(net, rollout, bs=24), losses_at_rest(net, rollout, **sizes)
    with torch.no_grad():
        out = net(rollout.batch, actions={n: rows.values for n, rows in rollout.actions.items()})
    ratios = [out.logprobs[name] - old.values for name, old in rollout.logprobs.items()]
    logratio, entropy = torch.cat(ratios), torch.cat(list(out.entropies.values()))
    assert len(logratio) != rollout.num_frames
    assert whole["losses/entropy"] == pytest.approx(entropy.mean().item(), rel=1e-4)
    divergence = (logratio.exp() - 1 - logratio).mean().item()
    assert whole["losses/approx_kl"] == pytest.approx(divergence, rel=1e-4)
    for name in ("policy_loss", "value_loss", "entropy", "approx_kl", "clipfrac"):
        assert whole[f"losses/{name}"] != 0, name
        assert cut[f"losses/{name}"] == pytest.approx(whole[f"losses/{name}"], rel=1e-4), name


def without_watchers(rollout: Rollout) -> Rollout:
    """The same frames, in which nobody takes one of the actions."""
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
    return Rollout(
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


def test_losses_are_finite_when_an_action_has_no_actors() -> None:
    net, rollout = a_rollout()
    rollout = without_watchers(rollout)
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


@pytest.mark.parametrize("silent", [False, True])
def test_target_kl_ends_the_update_after_the_minibatch_that_exceeds_it(silent: bool) -> None:
    """Also when an action has no actors: a divergence of NaN would never exceed anything."""
    net, rollout = a_rollout()
    if silent:
        rollout = without_watchers(rollout)
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
