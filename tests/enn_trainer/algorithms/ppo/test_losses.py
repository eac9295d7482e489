"""The PPO terms, against the published numbers and by hand."""

import json
from pathlib import Path

import numpy as np
import pytest
import torch

from enn_trainer.algorithms.ppo import losses

GOLDEN = Path(__file__).parents[3] / "golden"


@pytest.mark.parametrize("name", ["ppo_loss_raw", "ppo_loss_normalised"])
def test_losses_equal_published_ones(name: str) -> None:
    with np.load(GOLDEN / f"{name}.npz", allow_pickle=False) as file:
        meta = json.loads(str(file["meta"]))
        data = {key: torch.from_numpy(file[key]) for key in file.files if key != "meta"}
    advantages = data["advantages"]
    if meta["norm_adv"]:
        advantages = losses.normalize(advantages)
    new = {k: data[f"{k}/new_logprob"].clone().requires_grad_() for k in ("a", "b")}
    logratios = {k: new[k] - data[f"{k}/old_logprob"].flatten() for k in new}
    frame = {k: np.repeat(np.arange(6), data[f"{k}/lengths"].numpy()) for k in new}
    per_actor = losses.policy_loss(
        torch.cat(list(logratios.values())),
        torch.cat([advantages[frame[k]] for k in new]),
        meta["clip_coef"],
    )
    policy_loss = per_actor.mean()
    policy_loss.backward()
    clip = meta["clip_coef"] if meta["clip_vloss"] else None
    value_loss = losses.value_loss(data["new_value"], data["returns"], data["old_value"], clip)
    torch.testing.assert_close(policy_loss.detach(), data["policy_loss"])
    torch.testing.assert_close(value_loss.mean(), data["value_loss"])
    for k in new:
        torch.testing.assert_close(new[k].grad, data[f"{k}/grad_new_logprob"])
    # The published KL and clip fraction are means over actions of means over actors.
    kl = torch.stack([losses.approx_kl(r.detach()).mean() for r in logratios.values()])
    clipped = torch.stack(
        [
            losses.is_clipped(r.detach(), meta["clip_coef"]).float().mean()
            for r in logratios.values()
        ]
    )
    torch.testing.assert_close(kl.mean(), data["approx_kl"])
    torch.testing.assert_close(clipped.mean(), data["clipfrac"])


def test_single_frame_is_normalised_to_zero() -> None:
    assert losses.normalize(torch.tensor([3.0])).tolist() == [0.0]


def test_advantages_of_frames_with_decisions_have_deviation_1() -> None:
    advantages = torch.tensor([1.0, 0.0, 3.0, 0.0, 0.0, 8.0])
    normalised = losses.normalize_acting(advantages, np.array([2, 0, 1, 0, 0, 1]))
    acting = normalised[[0, 2, 5]]
    assert acting.mean().item() == pytest.approx(0.0, abs=1e-6)
    assert acting.std().item() == pytest.approx(1.0)
    assert torch.equal(acting, losses.normalize(advantages[[0, 2, 5]]))


def test_normalize_acting_equals_normalize_if_all_frames_act() -> None:
    advantages = torch.randn(1000, generator=torch.Generator().manual_seed(0))
    normalised = losses.normalize_acting(advantages, np.ones(1000, np.int64))
    assert torch.equal(normalised, losses.normalize(advantages))


@pytest.mark.parametrize("num_decisions", [[0, 0, 0], [0, 3, 0]])
def test_fewer_than_two_frames_with_actors_are_not_normalised(num_decisions: list[int]) -> None:
    """A minibatch with one decision has no deviation; with 0 for advantages it taught nothing."""
    advantages = torch.tensor([1.0, 2.0, 3.0])
    assert torch.equal(losses.normalize_acting(advantages, np.array(num_decisions)), advantages)


def test_explained_variance_by_hand() -> None:
    returns = torch.tensor([1.0, 3.0])
    # Var(returns) = 1; errors 0.5 and -0.5 have variance 0.25
    assert losses.explained_variance(torch.tensor([0.5, 3.5]), returns).item() == 0.75
    assert losses.explained_variance(returns, torch.ones(2)).isnan()


def test_dual_clip_bounds_the_loss_of_bad_actions_only() -> None:
    """However probable a bad choice became: a huge ratio must not decide the whole step."""
    logratio = torch.tensor([10.0, 2.0, 10.0, 0.5]).log().requires_grad_()
    advantages = torch.tensor([-2.0, -2.0, 1.0, -1.0])
    loss = losses.policy_loss(logratio, advantages, 0.2, dual_clip=3.0)
    # bad, ratio 10: 20 without, 2 * 3 with; bad, ratio 2: below the bound, 4; good, ratio 10:
    # -1.2 as ever; bad, ratio 0.5: 1 * max(0.5, 0.8)
    assert loss.tolist() == pytest.approx([6.0, 4.0, -1.2, 0.8])
    loss.sum().backward()
    # d loss / d logratio = -advantage * ratio where nothing is clipped
    assert logratio.grad is not None
    assert logratio.grad.tolist() == pytest.approx([0.0, 4.0, 0.0, 0.0])


def test_joint_ratio_is_of_all_choices_of_a_frame() -> None:
    logratio = torch.tensor([0.1, 0.2, -0.4, 0.8], dtype=torch.float64)
    # actors 0 and 2 are in frame 0, nobody in frame 1, actors 1 and 3 in frame 2
    joint = losses.joint_logratio(logratio, torch.tensor([0, 2, 0, 2]), num_frames=3)
    assert joint.tolist() == pytest.approx([-0.3, 1.0, -0.3, 1.0])


def test_joint_ratio_of_very_many_actors_has_a_finite_gradient() -> None:
    """0 * inf of a ratio that overflowed would be NaN in every parameter."""
    logratio = torch.full((1000,), 0.2, requires_grad=True)
    frame = torch.zeros(1000, dtype=torch.int64)
    joint = losses.joint_logratio(logratio, frame, num_frames=1)
    for advantage in (1.0, -1.0):
        loss = losses.policy_loss(joint, torch.full((1000,), advantage), 0.2)
        (gradient,) = torch.autograd.grad(loss.sum(), logratio, retain_graph=True)
        assert gradient.isfinite().all()


def test_weights_of_equal_frames_add_up_to_one_a_frame() -> None:
    weights = losses.equal_frames(torch.tensor([0, 2, 0, 0]), num_frames=3)
    assert weights.tolist() == pytest.approx([1 / 3, 1.0, 1 / 3, 1 / 3])


def test_huber_loss_by_hand() -> None:
    values, returns = torch.tensor([0.5, 3.0, -3.0]), torch.zeros(3)
    loss = losses.value_loss(values, returns, values, None, huber_delta=2.0)
    # 0.5 * 0.25 within delta; 2 * (3 - 1) beyond
    assert loss.tolist() == [0.125, 4.0, 4.0]


def test_clipped_huber_loss_by_hand() -> None:
    values, returns = torch.tensor([3.0]), torch.tensor([4.0])
    loss = losses.value_loss(values, returns, torch.zeros(1), clip_coef=1.0, huber_delta=2.0)
    # the value itself misses by 1: 0.5; the value that moved by 1 only, by 3: 2 * (3 - 1)
    assert loss.tolist() == [4.0]


def test_cross_entropy_by_hand() -> None:
    logits = torch.tensor([[0.25, 0.75]]).log() + 5.0
    loss = losses.cross_entropy(logits, torch.tensor([[0.5, 0.5]]))
    assert loss.item() == pytest.approx(-0.5 * np.log(0.25 * 0.75))
