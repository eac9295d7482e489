"""Invariances of the network, and frames with missing types, entities or actors."""

import math
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from entity_env import (
    ActionSpace,
    CategoricalActionMask,
    CategoricalActionSpace,
    Entity,
    GlobalCategoricalActionMask,
    GlobalCategoricalActionSpace,
    Observation,
    ObsSpace,
    SelectEntityActionMask,
    SelectEntityActionSpace,
)
from rogue_net import EntityBatch, RaggedTensor, RogueNet, RogueNetConfig, attention, layout
from rogue_net.actions.heads import CategoricalHead, SelectEntityHead
from rogue_net.embedding import module_key
from tests.rogue_net.nets import (
    ACTIONS,
    SPACE,
    assert_same_answers,
    batch_of,
    by_frame,
    frame,
    net_of,
    nets_and_batches,
    policy_loss,
    positions_by_type,
    rearranged,
    rows_of,
    types_of,
)

NetAndBatch = tuple[RogueNet, EntityBatch]
LARGEST_UNIFORM = 1 - 2**-23


# What does not matter.


@pytest.mark.slow
@given(nets_and_batches(), st.randoms(use_true_random=False))
def test_output_is_invariant_to_entity_order_within_a_type(
    net_and_batch: NetAndBatch, random: Any
) -> None:
    net, batch = net_and_batch
    shuffled = []
    for i in range(batch.num_frames):
        by_type = positions_by_type(batch, types_of(net), i).values()
        shuffled.append([p for ps in by_type for p in random.sample(ps, len(ps))])
    other = rearranged(batch, types_of(net), shuffled)
    assert_same_answers(by_frame(net(other), other), by_frame(net(batch), batch))


def test_permuting_entities_permutes_their_actions() -> None:
    net = net_of(ObsSpace(entities={"A": Entity(["x"])}), {"move": ACTIONS["move"]})
    x, order = torch.linspace(-2, 2, 5).unsqueeze(1), torch.tensor([3, 0, 4, 1, 2])
    everyone = {"move": CategoricalActionMask()}
    out, permuted = (
        net(batch_of([Observation(features={"A": rows.numpy()}, actions=everyone)], *spaces(net)))
        for rows in (x, x[order])
    )
    assert len(out.log_probs["move"].unique(dim=0)) == 5
    torch.testing.assert_close(permuted.log_probs["move"], out.log_probs["move"][order])
    torch.testing.assert_close(permuted.values, out.values)


def spaces(net: RogueNet) -> tuple[ObsSpace, Mapping[str, ActionSpace]]:
    return net.obs_space, net.action_space


@pytest.mark.slow
@given(nets_and_batches())
def test_single_frame_gives_the_output_of_the_batch(net_and_batch: NetAndBatch) -> None:
    net, batch = net_and_batch
    alone = []
    for i in range(batch.num_frames):
        one = batch.take(np.array([i]))
        alone += by_frame(net(one), one)
    assert_same_answers(by_frame(net(batch), batch), alone)
    torch.testing.assert_close(net.values(batch), net(batch).values)


@pytest.mark.slow
@given(nets_and_batches(), st.data())
def test_frames_of_a_batch_are_independent(net_and_batch: NetAndBatch, data: st.DataObject) -> None:
    net, batch = net_and_batch
    i = data.draw(st.integers(0, batch.num_frames - 1))
    other = with_noise(batch, lambda rows, name: torch.from_numpy(rows.frame_of_row() != i))
    assert_same_answers([by_frame(net(other), other)[i]], [by_frame(net(batch), batch)[i]])


def with_noise(
    batch: EntityBatch, where: Callable[[RaggedTensor, str], Tensor], *, scale: float = 10.0
) -> EntityBatch:
    """The same batch with other features in the rows where `where` is True."""
    generator = torch.Generator().manual_seed(0)
    features = {}
    for name, rows in batch.features.items():
        noise = scale * torch.randn(rows.values.shape, generator=generator, dtype=torch.float64)
        values = rows.values + noise * where(rows, name).unsqueeze(1)
        features[name] = RaggedTensor(values, rows.lengths)
    return replace(batch, features=features)


@pytest.mark.slow
@given(nets_and_batches(), st.sampled_from([1, 5, 12]), st.booleans())
def test_microbatch_size_does_not_affect_the_output(
    net_and_batch: NetAndBatch, rows: int, trained: bool
) -> None:
    net, batch = net_and_batch
    batch = replace(batch, keys=np.arange(batch.num_frames))
    net.train(trained)
    whole = net(batch)
    expected = torch.autograd.grad(policy_loss(whole), [*net.parameters()], allow_unused=True)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(layout, "PIECE_ROWS", rows)
        patch.setattr(attention, "PIECE_ROWS", rows)
        pieces = net(batch)
        got = torch.autograd.grad(policy_loss(pieces), [*net.parameters()], allow_unused=True)
    assert_same_answers(by_frame(pieces, batch), by_frame(whole, batch))
    for a, b, (name, p) in zip(got, expected, net.named_parameters(), strict=True):
        zero = torch.zeros_like(p)
        torch.testing.assert_close(zero if a is None else a, zero if b is None else b, msg=name)


@pytest.mark.parametrize("types_hidden", [[], ["Goal"], ["Rock", "Goal"]])
def test_frames_of_very_different_lengths_share_a_batch(types_hidden: list[str]) -> None:
    """Lengths that need several buckets, some with padding."""
    net = net_of()
    sizes = [(2, 1, 3), (0, 0, 0), (400, 0, 1), (1, 0, 0), (350, 9, 9), (2, 0, 3)]
    batch = batch_of([half_hidden(types_hidden, *size, seed=i) for i, size in enumerate(sizes)])
    _, plan = net.embed(batch)
    assert len(plan.buckets) > 1
    assert any(bucket.is_entity is not None for bucket in plan.buckets)
    alone = []
    for i in range(len(sizes)):
        one = batch.take(np.array([i]))
        alone += by_frame(net(one), one)
    assert_same_answers(by_frame(net(batch), batch), alone)


def half_hidden(types: list[str], units: int, rocks: int, goals: int, *, seed: int) -> Observation:
    """A frame in which every second entity of some types is hidden."""
    visible = {
        "Rock": [i % 2 == 1 for i in range(rocks)],
        "Goal": [i % 2 == 0 for i in range(goals)],
    }
    masks = {
        "move": CategoricalActionMask(actor_types=["Unit"]),
        "pick": SelectEntityActionMask(actor_types=["Unit"], actee_types=["Unit"]),
        "plan": GlobalCategoricalActionMask(),
    }
    shown = {name: visible[name] for name in types}
    return frame(units, rocks, goals, seed=seed, visible=shown, actions=masks)


# Visibility.


@pytest.mark.slow
@given(nets_and_batches())
def test_policy_does_not_depend_on_invisible_entities(net_and_batch: NetAndBatch) -> None:
    assert_hidden_is_hidden(*net_and_batch)


@pytest.mark.parametrize("types", [["Rock"], ["Goal"], ["Rock", "Goal"]])
def test_several_types_can_be_invisible(types: list[str]) -> None:
    frames = [half_hidden(types, 2, 3, 2, seed=0), half_hidden(types, 1, 0, 3, seed=1)]
    assert_hidden_is_hidden(net_of(), batch_of(frames))


def assert_hidden_is_hidden(net: RogueNet, batch: EntityBatch) -> None:
    """Neither the features of hidden entities matter to the policy, nor that there are any."""
    expected = by_frame(net(batch), batch)
    other = with_noise(batch, lambda rows, name: ~batch.visibility(name).values)
    assert_same_answers(by_frame(net(other), other), expected, with_values=False)
    shown = [
        [
            p
            for name, positions in positions_by_type(batch, types_of(net), i).items()
            for p, seen in zip(positions, rows_of(batch.visibility(name), i), strict=True)
            if seen
        ]
        for i in range(batch.num_frames)
    ]
    without = rearranged(batch, types_of(net), shown)
    assert_same_answers(by_frame(net(without), without), expected, with_values=False)
    assert all(flags.values.all() for flags in without.visible.values())


@pytest.mark.parametrize("n_layer", [0, 2])
def test_value_depends_on_invisible_entities(n_layer: int) -> None:
    net = net_of(n_layer=n_layer)
    masks = {"move": CategoricalActionMask(actor_types=["Unit"])}
    batch = batch_of([frame(2, 1, 2, visible={"Goal": [True, False]}, actions=masks)])
    before = net(batch)
    goals = batch.features["Goal"]
    moved = RaggedTensor(goals.values + torch.tensor([[0.0], [1.0]]), goals.lengths)
    after = net(replace(batch, features={**batch.features, "Goal": moved}))
    torch.testing.assert_close(after.log_probs, before.log_probs)
    assert (after.values["value"] - before.values["value"]).abs() > 1e-3


@pytest.mark.parametrize("types", [["Goal"], ["Goal", "Rock"], ["Unit", "Goal", "Rock"]])
def test_all_entities_of_a_frame_may_be_invisible(types: list[str]) -> None:
    net = net_of()
    counts = {"Unit": 2, "Rock": 1, "Goal": 3}
    hidden = frame(2, 1, 3, visible={name: [False] * counts[name] for name in types}, actions={})
    batch = batch_of([hidden, frame(2, 1, 3)])
    out = net(batch)
    assert_no_nan(net, batch)
    alone = batch.take(np.array([1]))
    assert_same_answers(by_frame(out, batch)[1:], by_frame(net(alone), alone))


# Frames in which something is missing.


@pytest.mark.slow
@given(nets_and_batches())
def test_outputs_are_never_nan(net_and_batch: NetAndBatch) -> None:
    net, batch = net_and_batch
    assert_no_nan(net, batch)
    single = RogueNet(net.config, net.obs_space, net.action_space, {"value": 1})
    single.load_state_dict(net.state_dict())
    features = {n: RaggedTensor(r.values.float(), r.lengths) for n, r in batch.features.items()}
    assert_no_nan(single, replace(batch, features=features))


def assert_no_nan(net: RogueNet, batch: EntityBatch) -> None:
    """Neither in what the network says nor in its gradients."""
    out = net(batch)
    for tensors in out[:5]:
        assert not any(tensor.isnan().any() for tensor in tensors.values())
    for name in net.action_space:
        assert out.entropies[name].isfinite().all()
        assert out.logprobs[name].isfinite().all()
        if name in out.log_probs and out.log_probs[name].numel():
            assert (out.entropies[name] >= -1e-6).all()
            total = out.log_probs[name].exp().sum(dim=1)
            torch.testing.assert_close(total, torch.ones_like(total))
    net.zero_grad()
    loss = policy_loss(out)
    if loss.requires_grad:
        loss.backward()
    for parameter in net.parameters():
        assert parameter.grad is None or parameter.grad.isfinite().all()


@pytest.mark.parametrize("sizes", [[0], [0, 0], [0, 3, 0]])
def test_value_of_an_empty_frame_is_the_bias(sizes: list[int]) -> None:
    no_plan = {name: space for name, space in ACTIONS.items() if name != "plan"}
    net = net_of(action_space=no_plan, heads={"value": 1, "other": 3})
    masks = {"move": CategoricalActionMask(), "pick": SelectEntityActionMask()}
    batch = batch_of([frame(n, actions=masks) for n in sizes], SPACE, no_plan)
    assert_no_nan(net, batch)
    for name, values in net(batch).values.items():
        bias = net.regression_heads[module_key(name)].bias
        for n, value in zip(sizes, values, strict=True):
            assert torch.equal(value, bias) == (n == 0)


def test_frame_without_entities_has_a_global_action() -> None:
    net = net_of()
    batch = batch_of([frame(0), frame(2), frame(0, seed=5, actions={})])
    out = net(batch)
    assert_no_nan(net, batch)
    assert [len(out.actions[name]) for name in ACTIONS] == [2, 2, 2]
    assert not torch.equal(out.values["value"][0], out.values["value"][2])  # the clock differs


def test_frames_without_actors_have_values() -> None:
    net = net_of()
    batch = batch_of([frame(2, 1, actions={}), frame(0, 1, actions={}), frame(3, actions={})])
    out = net(batch)
    assert_no_nan(net, batch)
    for name in ACTIONS:
        assert out.actions[name].shape == out.logprobs[name].shape == (0,)
        assert out.entropies[name].shape == (0,)
        assert out.actions[name].dtype == torch.int64
    assert out.values["value"].shape == (3, 1)
    chosen = net(batch, actions=out.actions)
    sampled = net(batch, uniforms={name: torch.zeros(0) for name in ACTIONS})
    assert chosen.actions["pick"].shape == sampled.actions["pick"].shape == (0,)


def test_actors_without_actees_do_not_act() -> None:
    """One frame has no actees, the next one a mask that forbids all of them."""
    net = net_of()
    pick = {"pick": SelectEntityActionMask(actor_types=["Unit"], actee_types=["Goal"])}
    nothing = SelectEntityActionMask(["u"], None, ["Goal"], None, [[False, False]])
    shy = Observation(
        features={"Unit": [[1.0, 2.0]], "Goal": [[1.0], [2.0]]},
        ids={"Unit": ["u"]},
        global_features=[0.5],
        actions={"pick": nothing},
    )
    batch = batch_of([frame(2, 1, 0, actions=pick), shy, frame(2, 0, 2, actions=pick)])
    assert batch.actions["pick"].actors.lengths.tolist() == [0, 0, 2]
    assert batch.actions["pick"].mask is not None
    assert batch.actions["pick"].mask.lengths.tolist() == [0, 0, 4]
    assert_no_nan(net, batch)
    alone = batch.take(np.array([2]))
    assert_same_answers(by_frame(net(batch), batch)[2:], by_frame(net(alone), alone))


@pytest.mark.parametrize("action_space", [{}, {"plan": ACTIONS["plan"]}])
def test_empty_observation_space_is_refused(action_space: dict[str, ActionSpace]) -> None:
    """Global features are seen by entities, or by a global choice; here there may be neither."""
    space = ObsSpace(global_features=["clock"])
    if action_space:
        net = net_of(space, action_space)
        obs = Observation(global_features=[1.0], actions={"plan": GlobalCategoricalActionMask()})
        assert net(batch_of([obs], space, action_space)).actions["plan"].shape == (1,)
    else:
        with pytest.raises(
            ValueError, match="obs_space: expected an entity type or a global action"
        ):
            net_of(space, action_space)


# Names, and what a space may lack.

ODD_NAMES = [
    *["train", "to", "keys", "forward", "type", "eval", "values", "pop", "weight", "0", "training"],
    *["a.b", "a%2Eb", "a%252Eb", "%2E", ".", "%", "/", "//", "", " ", "é", "name with spaces"],
]


@pytest.mark.parametrize(
    ("make_space", "mask"),
    [
        (lambda: CategoricalActionSpace(["x", "y"]), CategoricalActionMask()),
        (lambda: GlobalCategoricalActionSpace(["x", "y"]), GlobalCategoricalActionMask()),
        (SelectEntityActionSpace, SelectEntityActionMask()),
    ],
)
def test_any_name_may_be_used_for_types_actions_and_heads(
    make_space: Callable[[], ActionSpace], mask: Any
) -> None:
    obs_space = ObsSpace(entities={name: Entity(["x"]) for name in ODD_NAMES})
    action_space = {name: make_space() for name in ODD_NAMES}
    net = net_of(obs_space, action_space, dict.fromkeys(ODD_NAMES, 1))
    obs = Observation(
        features={name: [[float(i)]] for i, name in enumerate(ODD_NAMES)},
        actions=dict.fromkeys(ODD_NAMES, mask),
    )
    out = net(batch_of([obs, obs], obs_space, action_space))
    for by_name in out[:5]:
        assert list(by_name) == ODD_NAMES
    for answers in (out.log_probs, out.values):  # every name has parameters of its own
        assert len({tuple(p.flatten().tolist()) for p in answers.values()}) == len(ODD_NAMES)
    embedded = net.embedding(net.embedding.inputs(batch_of([obs], obs_space, action_space)))
    assert len(embedded[: len(ODD_NAMES)].unique(dim=0)) == len(ODD_NAMES)
    assert len(net.state_dict()) == len([*net.parameters(), *net.buffers()])
    again = net_of(obs_space, action_space, dict.fromkeys(ODD_NAMES, 1), seed=1)
    again.load_state_dict(net.state_dict())
    torch.testing.assert_close(
        again(batch_of([obs, obs], obs_space, action_space)).values, out.values
    )


@pytest.mark.parametrize("globals_", [[], ["clock", "score"]])
@pytest.mark.parametrize("with_plan", [False, True])
@pytest.mark.parametrize("features", [[], ["x"]])
def test_global_features_and_choices_are_optional(
    globals_: list[str], with_plan: bool, features: list[str]
) -> None:
    obs_space = ObsSpace(globals_, {"A": Entity(features), "B": Entity([])})
    action_space = {"move": ACTIONS["move"], **({"plan": ACTIONS["plan"]} if with_plan else {})}
    net = net_of(obs_space, action_space)
    masks = {"move": CategoricalActionMask(), "plan": GlobalCategoricalActionMask()}

    def observe(clock: float) -> Observation:
        return Observation(
            features={"A": [[1.0] * len(features)] * 2, "B": [[]]},
            global_features=[clock, 0.0][: len(globals_)],
            actions={name: masks[name] for name in action_space},
        )

    batch = batch_of([observe(1.0), observe(2.0)], obs_space, action_space)
    assert_no_nan(net, batch)
    out = net(batch)
    assert out.log_probs["move"].shape == (6, 3)
    first, second = by_frame(out, batch)
    for name in first:  # what is global is seen by all
        assert torch.allclose(first[name], second[name]) == (not globals_)
    if with_plan:  # the global actor comes after the entities
        x, layout = net.embed(batch)
        head = net.action_heads[module_key("plan")].project
        expected = head(x[torch.from_numpy(layout.first_row) + 3]).log_softmax(dim=1)
        torch.testing.assert_close(out.log_probs["plan"], expected)


def test_regression_heads_may_differ_in_size() -> None:
    net = net_of(heads={"value": 1, "length": 4, "score": 2})
    out = net(batch_of([frame(2), frame(0), frame(3, 1)]))
    shapes = {name: tuple(values.shape) for name, values in out.values.items()}
    assert shapes == {"value": (3, 1), "length": (3, 4), "score": (3, 2)}
    assert net_of(heads={})(batch_of([frame(2)])).values == {}


def test_initial_regression_heads_return_zero() -> None:
    net = RogueNet(RogueNetConfig(), SPACE, ACTIONS, {"value": 2}).double()
    assert torch.equal(net(batch_of([frame(2)])).values["value"], torch.zeros(1, 2))


# Probabilities and choices.


@pytest.mark.slow
@given(nets_and_batches(numbers=False), st.integers(0, 2**32 - 1))
def test_choices_are_legal_and_their_logprobs_match_log_probs(
    net_and_batch: NetAndBatch, seed: int
) -> None:
    net, batch = net_and_batch
    random = np.random.default_rng(seed).integers(2**23, size=100) * 2.0**-23
    for draws in (None, np.zeros(100), np.full(100, LARGEST_UNIFORM), random):
        uniforms = None
        if draws is not None:
            uniforms = {
                name: torch.tensor(draws[: len(action.actors.values)], dtype=torch.float32)
                for name, action in batch.actions.items()
            }
        out = net(batch, uniforms=uniforms)
        for name, p in out.log_probs.items():
            for j, choice in enumerate(out.actions[name].tolist()):
                assert legal(net, batch, name)[j][choice]
                assert out.logprobs[name][j] == p[j, choice]
                if draws is None:
                    assert p[j, choice] == p[j].max()
        judged = net(batch, actions=out.actions)
        assert judged.actions == out.actions
        torch.testing.assert_close(judged.logprobs, out.logprobs, rtol=0, atol=0)


def legal(net: RogueNet, batch: EntityBatch, name: str) -> list[list[bool]]:
    """What each actor of all frames may choose, one frame at a time."""
    action, space, rows = batch.actions[name], net.action_space[name], []
    for i, num_actors in enumerate(action.actors.lengths.tolist()):
        is_select = isinstance(space, SelectEntityActionSpace)
        num_choices = int(action.actees.lengths[i]) if is_select else len(space)  # type: ignore[union-attr,arg-type]
        if action.mask is None:
            rows += [[True] * num_choices] * num_actors
        else:
            rows += rows_of(action.mask, i).reshape(num_actors, num_choices).tolist()
    return rows


@pytest.mark.slow
@given(nets_and_batches(numbers=False))
def test_entropy_is_over_legal_choices(net_and_batch: NetAndBatch) -> None:
    net, batch = net_and_batch
    out = net(batch)
    for name, p in out.log_probs.items():
        for j, allowed in enumerate(legal(net, batch, name)):
            legal_probs = [p[j, k].item() for k, ok in enumerate(allowed) if ok]
            expected = -sum(math.exp(x) * x for x in legal_probs)
            assert out.entropies[name][j].item() == pytest.approx(expected, abs=1e-9)
            assert sum(map(math.exp, legal_probs)) == pytest.approx(1)


@pytest.mark.slow
@given(nets_and_batches(numbers=False))
def test_heads_equal_a_loop_over_actors(net_and_batch: NetAndBatch) -> None:
    net, batch = net_and_batch
    x, layout = net.embed(batch)
    out = net(batch)
    for name, action in batch.actions.items():
        head, allowed, rows = net.action_heads[module_key(name)], legal(net, batch, name), []
        for i, first in enumerate(layout.first_row.tolist()):
            for actor in rows_of(action.actors, i).tolist():
                if isinstance(head, SelectEntityHead):
                    query = head.query(x[first + actor])
                    assert action.actees is not None
                    keys = [head.key(x[first + p]) for p in rows_of(action.actees, i).tolist()]
                    scores = torch.stack([query @ key / math.sqrt(len(query)) for key in keys])
                else:
                    assert isinstance(head, CategoricalHead)
                    scores = head.project(x[first + actor])
                mask = torch.tensor(allowed[len(rows)])
                rows.append(scores.where(mask, -torch.inf).log_softmax(dim=0))
        for row, p in zip(rows, out.log_probs[name], strict=True):
            torch.testing.assert_close(p[: len(row)], row)
            assert p[len(row) :].eq(-torch.inf).all()
        if action.actees is not None:
            flat = out.distribution(name).to_rows(action)
            torch.testing.assert_close(flat.values, torch.cat([x.new_zeros(0), *rows]))
            assert flat.lengths.tolist() == [
                a * k for a, k in zip(action.actors.lengths, action.actees.lengths, strict=True)
            ]


def test_sample_frequencies_match_the_probabilities() -> None:
    """Pearson's statistic of 4000 draws stays below what one run in 1000 exceeds."""
    net = net_of(seed=2)
    mask = SelectEntityActionMask(
        [("Unit", 0)], None, None, [("Goal", k) for k in range(4)], [[True, False, True, True]]
    )
    one = frame(1, 0, 4, ids={n: [(n, k) for k in range(m)] for n, m in (("Unit", 1), ("Goal", 4))})
    one.actions = {**one.actions, "pick": mask}
    n = 4000
    batch = batch_of([one]).take(np.zeros(n, dtype=np.int64))
    generator = torch.Generator().manual_seed(0)
    uniforms = {name: torch.rand(n, generator=generator) for name in ACTIONS}
    out = net(batch, uniforms=uniforms)
    one_in_1000 = {1: 10.83, 2: 13.82}  # by degrees of freedom
    for name in ACTIONS:
        probs = out.log_probs[name][0].exp()
        counts = out.actions[name].bincount(minlength=len(probs))
        possible = probs > 0
        expected = n * probs[possible]
        assert expected.min() > 50
        assert counts[~possible].sum() == 0
        statistic = ((counts[possible] - expected).square() / expected).sum()
        assert statistic < one_in_1000[int(possible.sum()) - 1]
