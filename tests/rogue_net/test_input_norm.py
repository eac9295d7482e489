"""State of a network: parameters and input statistics, and nothing else."""

import copy
import io
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn

from entity_env import Entity, ObsSpace
from rogue_net import EntityBatch, NetOutput, RelposEncodingConfig, RogueNet, TranslationConfig
from rogue_net.embedding import module_key
from rogue_net.input_norm import InputNorm, Moments
from rogue_net.published import from_published, renamed
from tests.rogue_net.nets import ACTIONS, batch_of, frame, net_of, policy_loss

UNIFORMS = {"move": torch.full((5,), 0.5), "pick": torch.full((5,), 0.5), "plan": torch.zeros(3)}


OPTIONS: list[dict[str, Any]] = [
    {},
    {"pooling": "meanmax"},
    {"translation": TranslationConfig("Unit", ["x"], add_dist_feature=True)},
    {
        "relpos_encoding": RelposEncodingConfig(
            extent=[5, 3],
            position_features=["x", "y"],
            radial=True,
            distance=True,
            rotation_angle_feature="x",
            interpolate=True,
            per_entity_values=True,
            per_entity_projections=True,
            key_relpos_projection=True,
            value_relpos_projection=True,
        )
    },
    {"relpos_encoding": RelposEncodingConfig([2], ["x"], value_gate=None)},
]


def some_batch() -> EntityBatch:
    return batch_of([frame(2, 1, 3), frame(0, 2, 0), frame(3, 0, 1, visible={"Goal": [True]})])


def known_net(seed: int = 0) -> RogueNet:
    """A network that has seen some frames."""
    net = net_of(seed=seed)
    net.update_input_stats(some_batch())
    return net


def answers(net: RogueNet) -> list[Tensor]:
    return flat(net(some_batch(), uniforms=UNIFORMS))


def flat(out: NetOutput) -> list[Tensor]:
    return [tensor for by_name in out[:5] for tensor in by_name.values()]


def assert_equal(got: list[Tensor], expected: list[Tensor]) -> None:
    """To the last bit."""
    assert all(torch.equal(a, b) for a, b in zip(got, expected, strict=True))


# Copies and files.


def test_deep_copy_has_equal_outputs_and_separate_statistics() -> None:
    net = known_net()
    expected = answers(net)
    other = copy.deepcopy(net)
    assert_equal(answers(other), expected)
    train_a_little(other)
    other.update_input_stats(batch_of([frame(4, 0, 4, seed=9)]))
    assert not torch.equal(answers(other)[-1], expected[-1])
    assert_equal(answers(net), expected)


def train_a_little(net: RogueNet) -> None:
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    policy_loss(net(some_batch())).backward()
    optimizer.step()
    optimizer.zero_grad()


def test_parameters_and_statistics_survive_a_file() -> None:
    net = known_net()
    file = io.BytesIO()
    torch.save(net.state_dict(), file)
    file.seek(0)
    other = net_of(seed=1)
    other.load_state_dict(torch.load(file, weights_only=True))
    assert_equal(answers(other), answers(net))
    for name, tensor in net.state_dict().items():
        assert other.state_dict()[name].dtype == tensor.dtype


def test_networks_do_not_share_state() -> None:
    alone = known_net()
    expected = answers(alone)
    first, second = known_net(), known_net(seed=1)
    for _ in range(2):
        assert_equal(answers(first), expected)
        train_a_little(second)
        second.update_input_stats(some_batch())


# A forward pass leaves nothing behind.


def test_forward_changes_neither_network_nor_batch_nor_randomness() -> None:
    net, batch = known_net(), some_batch()
    state_before = {name: tensor.clone() for name, tensor in net.state_dict().items()}
    versions = {name: tensor._version for name, tensor in net.state_dict(keep_vars=True).items()}
    batch_before, kept_before = copy.deepcopy(batch), module_state_ids(net)
    randomness = torch.get_rng_state()
    net(batch, uniforms=UNIFORMS)
    net(batch)
    net.values(batch)
    assert torch.equal(torch.get_rng_state(), randomness)
    assert module_state_ids(net) == kept_before
    assert [*net.state_dict()] == [*state_before]
    for name, tensor in net.state_dict(keep_vars=True).items():
        assert torch.equal(tensor, state_before[name])
        assert tensor._version == versions[name]
    assert_same_batch(batch, batch_before)


def module_state_ids(net: nn.Module) -> dict[str, Any]:
    """Return the ids of all attributes of all modules, including contents of containers."""
    ids: dict[str, Any] = {}
    for path, module in net.named_modules():
        for name, value in vars(module).items():
            ids[f"{path}:{name}"] = id(value)
            if isinstance(value, dict):
                ids[f"{path}:{name} holds"] = [(key, id(one)) for key, one in value.items()]
            elif isinstance(value, list | set | tuple):
                ids[f"{path}:{name} holds"] = [id(one) for one in value]
    return ids


def assert_same_batch(got: Any, expected: Any) -> None:
    if isinstance(expected, Tensor):
        assert torch.equal(got, expected)
    elif isinstance(expected, np.ndarray):
        np.testing.assert_array_equal(got, expected)
    elif isinstance(expected, dict):
        assert got.keys() == expected.keys()
        for key in expected:
            assert_same_batch(got[key], expected[key])
    elif hasattr(expected, "__dict__"):
        for name in {**vars(expected), **vars(got)}:  # also what is worked out once and remembered
            assert_same_batch(getattr(got, name), getattr(expected, name))
    else:
        assert got == expected


def test_network_that_acted_in_inference_mode_can_be_trained() -> None:
    net = known_net()
    with torch.inference_mode():
        acted = answers(net)
        net.values(some_batch())
    assert not any(tensor.requires_grad for tensor in acted)
    assert_equal(answers(net), acted)
    train_a_little(net)
    assert not torch.equal(answers(net)[-1], acted[-1])


def test_training_mode_does_not_affect_the_output_without_dropout() -> None:
    net = known_net()
    assert_equal(answers(net.eval()), answers(net.train()))


# Gradients.


@pytest.mark.parametrize("n_layer", [0, 1, 2])
def test_gradient_reaches_every_parameter(n_layer: int) -> None:
    net = net_of(heads={"value": 1, "other": 2}, n_layer=n_layer)
    policy_loss(net(some_batch())).backward()
    # A key's bias shifts all scores of a query alike, so that it changes nothing.
    without_effect = f"action_heads.{module_key('pick')}.key.bias"
    for name, parameter in net.named_parameters():
        assert parameter.grad is not None, name
        assert parameter.grad.isfinite().all(), name
        if name == without_effect:
            assert parameter.grad.abs().max() < 1e-9
        else:
            assert parameter.grad.abs().max() > 1e-9, name


def test_unused_parameters_get_no_gradient() -> None:
    net = net_of()
    policy_loss(net(batch_of([frame(2, actions={})]))).backward()
    idle = ("embedding.by_type./Rock", "embedding.by_type./Goal", "action_heads")
    for name, parameter in net.named_parameters():
        if name.startswith(idle):
            assert parameter.grad is None or not parameter.grad.any(), name
    assert net.regression_heads[module_key("value")].weight.grad.any()


# Statistics of the input.


@given(
    st.lists(st.integers(0, 40), min_size=1, max_size=6),
    st.integers(0, 2**32 - 1),
    st.sampled_from([0.0, 1.0, 1e3]),
)
def test_statistics_do_not_depend_on_how_rows_were_split(
    sizes: list[int], seed: int, offset: float
) -> None:
    x = torch.from_numpy(np.random.default_rng(seed).normal(size=(sum(sizes), 3)) + offset)
    at_once, in_pieces = InputNorm(3), InputNorm(3)
    at_once.merge(Moments.of(x))
    for piece in x.split(sizes):
        in_pieces.merge(Moments.of(piece))
    assert in_pieces.count.tolist() == at_once.count.tolist() == [sum(sizes)] * 3
    torch.testing.assert_close(in_pieces.mean, at_once.mean, rtol=1e-12, atol=1e-12)
    # What subtracting the mean loses grows with the square of the offset.
    lost = 1e-12 * max(1.0, offset) ** 2
    torch.testing.assert_close(in_pieces.squares_sum, at_once.squares_sum, rtol=1e-12, atol=lost)
    if len(x) > 1:
        expected = ((x - x.mean(dim=0)) / x.std(dim=0)).clamp(-5, 5)
        torch.testing.assert_close(in_pieces(x), expected, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("count", [2**24, 2**31, 2**40, 2**53])
def test_counts_stay_exact(count: int) -> None:
    """A float32 count would stop at 2**24."""
    norm = InputNorm(1)
    norm.count.fill_(count)
    norm.squares_sum.fill_(float(count))
    for rows in (1, 3):
        norm.merge(Moments.of(torch.zeros(rows, 1)))
    assert norm.count.item() == count + 4
    assert norm(torch.ones(1, 1)).item() == pytest.approx(1)


def test_mean_of_many_rows_is_updated_exactly() -> None:
    norm = InputNorm(1)
    norm.count.fill_(2**30 - 1)
    norm.merge(Moments.of(torch.ones(1, 1)))
    assert norm.mean.item() == 2.0**-30
    assert norm.squares_sum.item() == 1 - 2.0**-30


@given(st.floats(width=32, allow_nan=False, allow_infinity=False), st.lists(st.integers(0, 9)))
def test_constant_feature_becomes_zero(value: float, sizes: list[int]) -> None:
    norm = InputNorm(1)
    for n in sizes:
        norm.merge(Moments.of(torch.full((n, 1), value)))
    expected = 0.0 if sum(sizes) > 1 else min(max(value, -5.0), 5.0)
    assert norm(torch.full((2, 1), value)).tolist() == [[expected]] * 2


def test_underflowing_variance_gives_no_nan() -> None:
    norm = InputNorm(1)
    x = torch.zeros(100, 1)
    x[0] = 1e-45  # the smallest float32; the deviation is a tenth of it
    norm.merge(Moments.of(x))
    assert norm(x).isfinite().all()


@pytest.mark.parametrize("num_rows", [0, 1])
def test_fewer_than_two_rows_do_not_normalise(num_rows: int) -> None:
    norm = InputNorm(2)
    norm.merge(Moments.of(torch.full((num_rows, 2), 3.0)))
    x = torch.tensor([[1.0, -2.0], [7.0, -1e30]])
    assert norm(x).tolist() == [[1.0, -2.0], [5.0, -5.0]]
    assert norm(x[:0]).shape == (0, 2)


def test_statistics_include_all_observed_entities() -> None:
    """With the global features of their frame, whether the policy sees them or not."""
    net = net_of(ObsSpace(["clock"], {"Unit": Entity(["x", "y"])}), {"move": ACTIONS["move"]})
    batch = some_batch()
    net.update_input_stats(batch)
    norm = net.embedding.by_type[module_key("Unit")].norm
    units, clock = batch.features["Unit"], batch.features["__global__"].values
    x = torch.cat([units.values, clock[units.frame_of_row()]], dim=1)
    assert norm.count.tolist() == [5, 5, 5]
    torch.testing.assert_close(norm.mean, x.mean(dim=0))
    torch.testing.assert_close((norm.squares_sum / 4).sqrt(), x.std(dim=0))


# Conversion, and processes that share what they saw.


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
def test_statistics_keep_their_precision_in_a_converted_network(dtype: torch.dtype) -> None:
    net = known_net()
    expected = {n: t for n, t in net.state_dict().items() if n.endswith(STATISTICS)}
    assert expected
    converted = copy.deepcopy(net).to(dtype)
    for name, tensor in expected.items():
        buffers = converted.state_dict()[name]
        assert buffers.dtype == tensor.dtype
        assert torch.equal(buffers, tensor)
    assert {p.dtype for p in converted.parameters()} == {dtype}


STATISTICS = ("norm.count", "norm.mean", "norm.squares_sum")


@pytest.mark.slow
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("options", OPTIONS)
def test_half_precision_network_is_close_to_float32(
    dtype: torch.dtype, options: dict[str, Any]
) -> None:
    net = net_of(**options)
    net.update_input_stats(some_batch())
    with torch.no_grad():
        for parameter in net.parameters():
            parameter.mul_(0.5)
    expected = net(some_batch())
    out = copy.deepcopy(net).to(dtype)(some_batch())
    for name in ACTIONS:
        assert out.logprobs[name].dtype == torch.float32
        torch.testing.assert_close(
            out.log_probs[name].exp(), expected.log_probs[name].exp().float(), atol=0.05, rtol=0
        )


@pytest.mark.parametrize("options", OPTIONS)
def test_copies_files_and_inference_mode_keep_every_option(options: dict[str, Any]) -> None:
    net = net_of(**options)
    expected = answers(net)
    with torch.inference_mode():
        torch.testing.assert_close(answers(net), expected)
    assert_equal(answers(copy.deepcopy(net)), expected)
    file = io.BytesIO()
    torch.save(net, file)
    file.seek(0)
    assert_equal(answers(torch.load(file, weights_only=False)), expected)
    buffers = module_state_ids(net)
    train_a_little(net)
    assert {k: v for k, v in module_state_ids(net).items() if "holds" not in k} == {
        k: v for k, v in buffers.items() if "holds" not in k
    }
    assert not torch.equal(answers(net)[-1], expected[-1])


@pytest.mark.parametrize("options", OPTIONS)
def test_merged_moments_of_processes_equal_a_single_process(options: dict[str, Any]) -> None:
    """Merged in equal order, moments are equal to the bit, as ranks require."""
    batch = some_batch()
    alone, *ranks = (net_of(**options) for _ in range(3))
    alone.update_input_stats(batch)
    parts = [net_of(**options).input_moments(batch.take(np.array(f))) for f in ([0], [1, 2])]
    for rank in ranks:
        for part in parts:
            rank.merge_input_moments(part)
    for name, tensor in alone.state_dict().items():
        merged = ranks[0].state_dict()[name]
        assert torch.equal(merged, ranks[1].state_dict()[name])
        torch.testing.assert_close(merged, tensor, rtol=1e-12, atol=1e-12)
        if name.endswith("norm.count"):
            assert torch.equal(merged, tensor)
            assert tensor.min() > 0


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
@pytest.mark.filterwarnings("ignore:Attempting to run cuBLAS")  # torch's own, by a new thread
@pytest.mark.parametrize("options", OPTIONS)
def test_gpu_outputs_equal_cpu_outputs(options: dict[str, Any]) -> None:
    net = net_of(**options)
    net.update_input_stats(some_batch())
    expected = net(some_batch())
    policy_loss(expected).backward()
    gradients = [p.grad for p in net.parameters()]
    net = net_of(**options).cuda()
    batch = on_gpu(some_batch())
    net.update_input_stats(batch)
    out = net(batch)
    policy_loss(NetOutput(*({n: t.cpu() for n, t in part.items()} for part in out[:5]))).backward()
    for got, want in zip(flat(out), flat(expected), strict=True):
        torch.testing.assert_close(got.cpu(), want, rtol=1e-8, atol=1e-8)
    for parameter, want in zip(net.parameters(), gradients, strict=True):
        got = parameter.grad
        assert (got is None) == (want is None)
        if got is not None and want is not None:
            torch.testing.assert_close(got.cpu(), want, rtol=1e-8, atol=1e-8)


def on_gpu(batch: EntityBatch) -> EntityBatch:
    def moved(rows: Any) -> Any:
        return None if rows is None else replace(rows, values=rows.values.cuda())

    return replace(
        batch,
        features={name: moved(rows) for name, rows in batch.features.items()},
        visible={name: moved(rows) for name, rows in batch.visible.items()},
        actions={
            name: replace(a, actors=moved(a.actors), mask=moved(a.mask), actees=moved(a.actees))
            for name, a in batch.actions.items()
        },
    )


# Published weights.


@pytest.mark.parametrize(
    "name",
    [
        "backbone.blocks.0.attn.relpos.weight",
        "backbone.blocks.0.ln3.weight",
        "backbone.blocks.0.mlp.1.weight",
        "backbone.norm.weight",
        "embedding.embeddings.Unit.2.weight",
        "embedding.translation.weight",
        "action_heads.move.other.weight",
        "auxiliary_heads.value.other",
        "unknown.weight",
        "",
    ],
)
def test_published_parameters_without_equivalent_are_refused(name: str) -> None:
    with pytest.raises(ValueError, match="not a parameter of a network that can be converted"):
        from_published({name: torch.zeros(1)})


@pytest.mark.parametrize("missing", ["key", "query", "value"])
def test_published_attention_with_a_missing_projection_is_refused(missing: str) -> None:
    parts = {f"backbone.blocks.0.attn.{part}.weight" for part in ("key", "query", "value")}
    state = dict.fromkeys(parts - {f"backbone.blocks.0.attn.{missing}.weight"}, torch.zeros(2, 2))
    with pytest.raises(ValueError, match=rf"blocks\.0\.attn\.{missing}\.weight: missing"):
        from_published(state)


def test_published_names_with_dots_are_renamed() -> None:
    published = {
        "embedding.embeddings.a.b.1.weight": torch.zeros(1),
        "action_heads.a.b.proj.bias": torch.zeros(2),
        "auxiliary_heads.a.b.bias": torch.zeros(3),
    }
    assert list(from_published(published)) == [
        f"embedding.by_type.{module_key('a.b')}.linear.weight",
        f"action_heads.{module_key('a.b')}.project.bias",
        f"regression_heads.{module_key('a.b')}.bias",
    ]


def test_published_per_entity_projections_give_equal_outputs() -> None:
    """Row B36: the first type had all of them, the others none."""
    shared = "backbone.relpos_encoding.kproj."
    types = ["b", "a.c", "a"]
    published = {f"{shared}{name}.bias": torch.tensor([2.0**k]) for k, name in enumerate(types)}
    ours = [f"relpos.key_projection.{module_key(name)}.bias" for name in types]
    converted = from_published(published)
    assert [(name, tensor.item()) for name, tensor in converted.items()] == [
        (ours[0], 7.0),
        (ours[1], 0.0),
        (ours[2], 0.0),
    ]
    assert [tensor.item() for tensor in renamed(published).values()] == [1.0, 2.0, 4.0]
    assert [tensor.item() for tensor in published.values()] == [1.0, 2.0, 4.0]


def test_published_relative_positions_are_renamed() -> None:
    """Blocks name the shared encoding again, and buffers that follow from the configuration."""
    shared = "backbone.relpos_encoding."
    published = {
        f"{shared}{name}": torch.zeros(1)
        for name in (
            *["keys.weight", "values.weight", "value_gate_proj.bias", "relpos_norm.count"],
            *["kproj.weight", "vproj.a.b.bias", "vproj.weight.weight"],
            *["strides", "extent_tensor", "distance_values.weight"],
        )
    }
    published["backbone.blocks.0.attn.relpos_encoding.keys.weight"] = torch.ones(1)
    ours = from_published(published)
    assert list(ours) == [
        *["relpos.keys", "relpos.values", "relpos.gate.bias", "relpos.norm.count"],
        "relpos.key_projection./.weight",
        f"relpos.value_projection.{module_key('a.b')}.bias",
        f"relpos.value_projection.{module_key('weight')}.weight",
    ]
    assert ours["relpos.norm.count"].dtype == torch.int64
