"""The PPO terms, against the published numbers and by hand."""

import json
from pathlib import Path

import numpy as np
import pytest
import torch

from enn_trainer import losses

GOLDEN = Path(__file__).parent.parent / "golden"


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


def test_a_frame_alone_is_normalised_to_zero() -> None:
    assert losses.normalize(torch.tensor([3.0])).tolist() == [0.0]


def test_explained_variance_by_hand() -> None:
    returns = torch.tensor([1.0, 3.0])
    # Var(returns) = 1; errors 0.5 and -0.5 have variance 0.25
    assert losses.explained_variance(torch.tensor([0.5, 3.5]), returns).item() == 0.75
    assert losses.explained_variance(returns, torch.ones(2)).isnan()
