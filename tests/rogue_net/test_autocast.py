"""Networks under `torch.autocast`: bfloat16 layers and float32 outputs."""

from typing import Any

import pytest
import torch

from entity_env import EnvList
from rogue_net import NetOutput, RelposEncodingConfig, RogueNet, RogueNetConfig
from rogue_net.actions.gaussian_numbers import SquashedGaussian
from rogue_net.actions.parts import ConditionalDistribution, has_choice
from rogue_net.embedding import module_key
from rogue_net.native import AVAILABLE, backend
from rogue_net.ragged import EntityBatch
from tests.enn_trainer.chains_world import Camp
from tests.rogue_net.nets import ACTIONS, SPACE, batch_obs, frame, policy_loss

POLAR = RelposEncodingConfig(
    extent=[8, 2], position_features=["x", "y"], radial=True, distance=True, interpolate=True
)
GRID = RelposEncodingConfig(extent=[10, 10], position_features=["x", "y"], scale=0.2)
PROJECTED = RelposEncodingConfig(
    extent=[3, 3],
    position_features=["x", "y"],
    value_gate=None,
    interpolate=True,
    key_relpos_projection=True,
    value_relpos_projection=True,
)


def decided_net(options: dict[str, Any]) -> RogueNet:
    """A network with peaked distributions, like a trained network."""
    torch.manual_seed(0)
    net = RogueNet(
        RogueNetConfig(d_model=128, init="published", **options), SPACE, ACTIONS, {"value": 1}
    )
    with torch.no_grad():
        for action in ("move", "plan"):
            net.action_heads[module_key(action)].project.weight *= 300
        for matrix in (p for p in net.transformer.parameters() if p.dim() == 2):
            matrix *= 3
        net.regression_heads[module_key("value")].weight.normal_()
    return net


def some_batch() -> EntityBatch:
    frames = [
        frame(int(n), 3, int(m), seed=int(n)) for n, m in zip(range(12), range(12), strict=True)
    ]
    batch = EntityBatch.of(batch_obs(frames, SPACE, ACTIONS))
    return batch


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"pooling": "meanmax"},
        {"relpos_encoding": POLAR},
        {"relpos_encoding": GRID},
        {"relpos_encoding": PROJECTED},
    ],
    ids=["plain", "pooling", "polar", "grid", "projected"],
)
def test_policy_under_autocast_is_close_to_float32(options: dict[str, Any]) -> None:
    """And what a loss is made of has full precision, as has every gradient."""
    net, batch = decided_net(options), some_batch()
    net.update_input_stats(batch)
    full = net(batch)
    with torch.autocast("cpu", torch.bfloat16):
        half = net(batch)
    assert max(float(p.detach().exp().max()) for p in full.log_probs.values()) > 0.95
    for name, expected in full.log_probs.items():
        got = half.log_probs[name]
        assert got.dtype == torch.float32
        assert (got.exp() - expected.exp()).detach().abs().max() < 0.02, name
    assert half.values["value"].dtype == torch.float32
    full_gradient, half_gradient = (
        torch.cat([g.flatten() for g in torch.autograd.grad(policy_loss(out), [*net.parameters()])])
        for out in (full, half)
    )
    assert half_gradient.dtype == torch.float32
    assert float(torch.cosine_similarity(half_gradient, full_gradient, dim=0)) > 0.98


def test_continuous_and_dependent_actions_under_autocast_are_close_to_float32() -> None:
    envs = EnvList(Camp, 128)
    envs.seed(0)
    batch = EntityBatch.of(envs.reset(envs.obs_space()))
    torch.manual_seed(0)
    spaces = envs.obs_space(), envs.action_space()
    net = RogueNet(RogueNetConfig(d_model=128), *spaces, {"value": 1})
    with torch.no_grad():
        for parameter in net.action_heads.parameters():
            parameter.normal_(0, 0.03)
    full = net(batch, generator=torch.Generator().manual_seed(0))
    with torch.autocast("cpu", torch.bfloat16):
        half = net(batch, full.actions)
    for name, chosen in full.actions.items():
        active = has_choice(chosen)
        assert active.any()
        for table in (full.log_probs.get(name), half.log_probs.get(name)):
            assert table is None or table.dtype == torch.float32
        if name in full.log_probs:
            pairs = [(half.log_probs[name].exp(), full.log_probs[name].exp())]
        else:
            one, other = (numbers_of(out, name) for out in (half, full))
            pairs = [(one.mean.sigmoid(), other.mean.sigmoid())]
            pairs += [(one.log_std.exp(), other.log_std.exp())]
        for got, expected in pairs:
            assert (got - expected)[active].abs().max() < 0.02, name


def numbers_of(out: NetOutput, name: str) -> SquashedGaussian:
    distribution = out.distribution(name)
    inner = (
        distribution.inner if isinstance(distribution, ConditionalDistribution) else distribution
    )
    assert isinstance(inner, SquashedGaussian)
    return inner


def test_heads_run_in_float32(monkeypatch: pytest.MonkeyPatch) -> None:
    """Heads give equal results, to the bit, for the same entities."""
    net, batch = decided_net({}), some_batch()
    with torch.autocast("cpu", torch.bfloat16):
        x, layout = net.embed(batch)
        half = net(batch)
    assert x.dtype == torch.float32
    monkeypatch.setattr(backend, "run", lambda *_, **__: backend.RunOutput(x, layout))
    full: NetOutput = net(batch)
    for name, expected in full.log_probs.items():
        torch.testing.assert_close(half.log_probs[name], expected, rtol=0, atol=0)
    torch.testing.assert_close(half.values, full.values, rtol=0, atol=0)


def test_precision_setting_equals_autocast_of_the_layers() -> None:
    net, batch = decided_net({}), some_batch()
    with torch.autocast("cpu", torch.bfloat16):
        expected = net(batch)
    full = net(batch)
    net.config.precision = "bfloat16"
    got: NetOutput = net(batch)
    assert not torch.equal(got.values["value"], full.values["value"])
    torch.testing.assert_close(got.values, expected.values, rtol=0, atol=0)
    torch.testing.assert_close(got.log_probs, expected.log_probs, rtol=0, atol=0)


@pytest.mark.skipif(not AVAILABLE, reason="nothing was compiled")
@pytest.mark.parametrize("options", [{}, {"relpos_encoding": POLAR}], ids=["plain", "polar"])
@pytest.mark.parametrize("grain", [1, 1000])
def test_bfloat16_products_have_few_shapes_and_equal_results(
    monkeypatch: pytest.MonkeyPatch, options: dict[str, Any], grain: int
) -> None:
    """Torch compiles one for each number of rows; the gradient is not of rows that are added."""
    net, batch = decided_net({**options, "precision": "bfloat16"}), some_batch()
    net.update_input_stats(batch)
    num_rows, shapes = net.embed(batch)[1].num_rows, set()
    for block in net.transformer.blocks:
        up = block.mlp[0]  # type: ignore[union-attr, index]
        up.register_forward_hook(lambda _, args, out: shapes.add(len(out)))
    gradients = []
    for rows in (backend.ROWS_OF_SHAPE, grain):
        monkeypatch.setattr(backend, "ROWS_OF_SHAPE", rows)
        out = net(batch)
        gradients.append(torch.autograd.grad(policy_loss(out), [*net.parameters()]))
    assert shapes == {-(-num_rows // rows) * rows for rows in (64, grain)}
    for one, other in zip(*gradients, strict=True):
        torch.testing.assert_close(one, other, rtol=0.05, atol=0.05 * float(other.abs().max()))


@pytest.mark.skipif(not AVAILABLE, reason="nothing was compiled")
def test_compiled_code_stays_in_float32() -> None:
    net = RogueNet(RogueNetConfig(d_model=32), SPACE, ACTIONS, {"value": 1})
    batch = some_batch()
    full = net(batch)
    net.config.precision = "bfloat16"
    torch.testing.assert_close(net(batch).log_probs, full.log_probs, rtol=0, atol=0)


def test_unknown_precision_is_refused() -> None:
    with pytest.raises(
        ValueError, match='precision: expected "float32", "bfloat16" or "auto", got'
    ):
        RogueNetConfig(precision="float16")  # type: ignore[arg-type]
