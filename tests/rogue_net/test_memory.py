"""Memory of networks: links between rows, the recurrent cell, and sequences."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from entity_env import Ragged
from rogue_net import RogueNet, RogueNetConfig, RogueNetWithValueNet
from rogue_net.config import MemoryConfig
from rogue_net.memory import MemoryRows, _GRUSequence, memory_rows, update_states
from rogue_net.native import library
from rogue_net.native.memory import starts_of_parts
from rogue_net.native.network import threads_at_work
from rogue_net.past import FRAME, NEW, NO_KEYS, Past, RowKeys, link_rows, link_single_frames
from rogue_net.ragged import EntityBatch, RaggedTensor
from tests.rogue_net.memory_case import (
    ACTIONS,
    SPACE,
    Episodes,
    chosen_in,
    episodes,
    linked,
    network,
    step_by_step,
)

KINDS: Any = st.fixed_dictionaries(
    {
        "of": st.sampled_from(["frame", "entity", "both"]),
        "inputs": st.lists(st.sampled_from(["action", "reward"]), unique=True),
    }
)


# -- Links -------------------------------------------------------------------------------------


@st.composite
def shown(draw: st.DrawFn) -> tuple[list[list[set[int]]], list[list[bool]], int]:
    """Strategy: ids observed per step and environment, episode starts, and `keep_absent`."""
    steps, envs = draw(st.integers(1, 7)), draw(st.integers(1, 3))
    who = st.sets(st.integers(0, 3))
    frames = [[draw(who) for _ in range(envs)] for _ in range(steps)]
    begun = [[draw(st.booleans()) and draw(st.booleans()) for _ in range(envs)] for _ in frames]
    return frames, begun, draw(st.integers(0, 4))


@settings(max_examples=100)
@given(shown(), st.integers(1, 7))
def test_links_equal_a_dictionary_of_last_rows(
    case: tuple[list[list[set[int]]], list[list[bool]], int], cut: int
) -> None:
    """Includes sequences that are split: final rows are carried over."""
    frames, begun, keep = case
    envs = len(frames[0])
    numbered = [(t, e, n) for t, ids_by_env in enumerate(frames) for e in range(envs)
                for n in sorted(ids_by_env[e])]  # fmt: skip
    expected: dict[Any, Any] = {}
    absent: dict[Any, set[Any]] = {}
    for e in range(envs):
        last: dict[int, int] = {}
        for t, ids_by_env in enumerate(frames):
            if begun[t][e]:
                last = {}
            last = {n: s for n, s in last.items() if t - s - 1 <= keep}
            expected |= {(t, e, n): last.get(n) for n in ids_by_env[e]}
            gone = {n: s for n, s in last.items() if n not in ids_by_env[e] and t - s <= keep}
            absent[t, e] = {(s, e, n) for n, s in gone.items()}
            last |= dict.fromkeys(ids_by_env[e], t)
    pool: list[Any] = []  # what each row of `known` is
    keys = NO_KEYS
    for start in range(0, len(frames), cut):
        rows = [row for row in numbered if start <= row[0] < start + cut]
        steps = frames[start : start + cut]
        time, column = (x.reshape(-1) for x in np.mgrid[: len(steps), :envs])
        lengths = np.array([len(one) for ids_by_env in steps for one in ids_by_env])
        number = np.array([n for _, _, n in rows], np.int64)
        of_rows = MemoryRows(lengths, 0 * number, 0 * number + 1, number)
        starts = np.array(begun[start : start + cut]).reshape(-1)
        links = link_rows(of_rows, column, time, starts, keys, keep)
        names = [*rows, *pool]
        for row, source in zip(rows, links.source.tolist(), strict=True):
            found = None if source == NEW else names[source][0]
            assert found == expected[row], row
        for i, (t, e) in enumerate(zip(time.tolist(), column.tolist(), strict=True)):
            assert {names[k] for k in links.absent[i].values.tolist()} == absent[start + t, e]
        pool, keys = [names[k] for k in links.final.tolist()], links.final_keys
        ages = {one: start + len(steps) - 1 - one[0] for one in pool}
        assert keys.age.tolist() == [*ages.values()]


@settings(max_examples=100)
@given(st.data())
def test_links_of_single_frames_equal_links_of_sequences(data: st.DataObject) -> None:
    frames, keep = data.draw(st.integers(1, 4), "frames"), data.draw(st.integers(0, 3), "keep")
    kinds_and_numbers = st.sets(st.tuples(st.integers(0, 2), st.integers(0, 3)))
    keys = NO_KEYS
    for _ in range(4):
        observed = [sorted(data.draw(kinds_and_numbers)) for _ in range(frames)]
        kind, number = np.array([x for one in observed for x in one], np.int64).reshape(-1, 2).T
        rows = MemoryRows(np.array([*map(len, observed)]), 0 * kind, kind, number)
        begun = np.array(data.draw(st.lists(st.booleans(), min_size=frames, max_size=frames)))
        links = link_single_frames(rows, begun, keys, keep)
        expected = link_rows(rows, np.arange(frames), np.zeros(frames, int), begun, keys, keep)
        np.testing.assert_array_equal(links.source, expected.source)
        np.testing.assert_array_equal(links.absent.values, expected.absent.values)
        np.testing.assert_array_equal(links.absent.lengths, expected.absent.lengths)
        np.testing.assert_array_equal(links.final, expected.final)
        np.testing.assert_array_equal(links.final_keys, expected.final_keys)
        keys = links.final_keys


def test_frame_state_is_linked_to_the_previous_frame() -> None:
    ones, zeros = np.ones(4, np.int64), np.zeros(4, np.int64)
    rows = MemoryRows(ones, zeros, zeros + FRAME, zeros)
    begun = np.array([False, False, True, False])
    keys = RowKeys(*(np.array([x]) for x in (0, FRAME, 0, 0)))
    links = link_rows(rows, zeros, np.arange(4), begun, keys, 5)
    assert links.source.tolist() == [4, 0, NEW, 2]
    assert links.final.tolist() == [3]


# -- The cell ----------------------------------------------------------------------------------


def plainly(net: RogueNet, x: torch.Tensor, added: torch.Tensor | None, past: Past) -> Any:
    """States by `torch.nn.GRUCell`, row by row in dictionaries."""
    assert net.memory is not None
    first, states, pool = net.memory.first_states(), {}, {}
    for rows in past.levels:
        for i in rows.tolist():
            source = int(past.source.values[i])
            last = first[past.kind.values[i]] if source == NEW else pool[source]
            states[i] = net.memory.cell(x[i : i + 1], last[None])[0]
            pool[i] = states[i] if added is None else states[i] + added[i]
    return torch.stack([states[i] for i in range(len(x))])


@pytest.mark.parametrize("adds", [False, True])
def test_cell_and_gradients_equal_torch_gru_cell(adds: bool) -> None:
    net = network(of="both", keep_absent=2, d_memory=7)
    assert net.memory is not None
    past = linked(net, episodes(3)).past
    assert past is not None
    generator = torch.Generator().manual_seed(0)
    num_rows = len(past.source.values)
    leaves = [
        torch.randn(num_rows, width, generator=generator, dtype=torch.float64, requires_grad=True)
        for width in (16, 7)
    ]
    weights = torch.randn(num_rows, 7, generator=generator, dtype=torch.float64)
    parameters = [*net.memory.cell.parameters(), *net.memory.first.parameters()]
    parameters.append(net.memory.first_of_frame)
    found = []
    for compute in (lambda *args: update_states(net.memory, *args[1:]).states, plainly):
        states = compute(net, leaves[0], leaves[1] if adds else None, past)
        wanted = [leaves[0], *leaves[1 : 1 + adds], *parameters]
        found.append([states, *torch.autograd.grad((states * weights).sum(), wanted)])
    for one, other in zip(*found, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-10, atol=1e-10)


def test_sequence_gradients_pass_gradcheck() -> None:
    past = linked(network(of="entity", keep_absent=1, d_memory=3), episodes(5, 3, 2)).past
    assert past is not None
    num_rows, before = len(past.source.values), 2
    source = np.where(past.source.values == NEW, 0, past.source.values + before)
    shapes = [(num_rows, 9), (num_rows, 3), (before, 3), (9, 3), (9,)]
    inputs = [torch.randn(shape, dtype=torch.float64, requires_grad=True) for shape in shapes]
    levels = [torch.from_numpy(rows) for rows in past.levels]
    assert torch.autograd.gradcheck(
        lambda *x: _GRUSequence.apply(*x, torch.from_numpy(source), levels), inputs
    )


def test_states_before_a_sequence_get_no_gradient() -> None:
    net = network(of="both", keep_absent=2)
    batch = linked(net, episodes(1))
    assert batch.past is not None
    carried = torch.randn(5, 16, dtype=torch.float64, requires_grad=True)
    source = batch.past.source.values.copy()
    source[: len(source) // 3] = len(source) + 1
    past = replace(batch.past, carried=carried, source=Ragged(source, batch.past.source.lengths))
    net(replace(batch, past=past)).values["value"].sum().backward()
    assert carried.grad is not None  # it takes part, but training gives states without gradient
    first = net.memory.first["/A"].grad  # type: ignore[union-attr]
    assert first is not None


# -- Sequences ---------------------------------------------------------------------------------


@pytest.mark.slow
@given(KINDS, st.integers(0, 10**6), st.integers(0, 4), st.booleans())
def test_batched_sequence_equals_single_steps(
    kind: dict[str, Any], seed: int, keep: int, hides: bool
) -> None:
    more = {} if kind["of"] == "frame" else {"keep_absent": keep}
    net, played = network(**kind, **more), episodes(seed, hides=hides)
    outs = step_by_step(net, played)
    batch, chosen = linked(net, played), chosen_in(outs)
    with torch.no_grad():
        out = net(batch, actions=chosen)
    for name in ACTIONS:
        expected = torch.cat([one.logprobs[name] for one in outs])
        torch.testing.assert_close(out.logprobs[name], expected, rtol=1e-9, atol=1e-9)
    expected = torch.cat([one.values["value"] for one in outs])
    torch.testing.assert_close(out.values["value"], expected, rtol=1e-9, atol=1e-9)

    # Whole sequences in another order, and in pieces.
    steps, envs = played.begun.shape
    order = np.random.default_rng(seed).permutation(envs)
    frames = np.concatenate([np.arange(steps) * envs + env for env in order])
    selected = {
        name: RaggedTensor(rows, batch.actions[name].actors.lengths).take(frames).values
        for name, rows in chosen.items()
    }
    pieces = [batch.take(frames[: 2 * steps]), batch.take(frames[2 * steps :])]
    for some in (batch.take(frames), EntityBatch.cat(pieces)):
        with torch.no_grad():
            values = net(some, actions=selected).values["value"]
        torch.testing.assert_close(values, out.values["value"][frames], rtol=1e-9, atol=1e-9)


def test_selecting_part_of_a_sequence_is_refused() -> None:
    batch = linked(network(of="frame"), episodes(0))
    with pytest.raises(ValueError, match="expected whole sequences"):
        batch.take(np.arange(3, 9))


def test_selected_frames_keep_only_their_carried_states() -> None:
    rows = MemoryRows(np.full(3, 2), *np.tile([[0, 1], [1, 1], [4, 9]], 3))
    keys = RowKeys(np.array([0, 0, 2, 2]), np.full(4, 1), np.array([4, 7, 9, 8]), np.zeros(4, int))
    nowhen, begun = np.zeros(3, np.int64), np.zeros(3, np.bool_)
    links = link_rows(rows, np.arange(3), nowhen, begun, keys, keep_absent=1)
    states = torch.arange(8.0).view(4, 2)
    past = Past.of(rows, links, nowhen, np.zeros(3, np.float32), states)
    assert past.source.values.tolist() == [6, -1, -1, -1, -1, 8]
    assert (past.absent.values.tolist(), [*past.absent.lengths]) == ([7, 9], [1, 0, 1])
    last = past.take(np.array([1, 2]))
    assert torch.equal(last.carried, states[2:])
    assert (last.source.values.tolist(), last.absent.values.tolist()) == ([-1, -1, -1, 4], [5])


def test_compiled_and_padded_blocks_agree() -> None:
    net, played = network(of="both", inputs=["action"], d_model=32), episodes(4)
    outs = step_by_step(net, played)  # in float64, which is not compiled
    batch = linked(net, played)
    features = {
        name: RaggedTensor(rows.values.float(), rows.lengths)
        for name, rows in batch.features.items()
    }
    with torch.no_grad():
        out = net.float()(replace(batch, features=features), actions=chosen_in(outs))
    expected = torch.cat([one.values["value"] for one in outs]).float()
    torch.testing.assert_close(out.values["value"], expected, rtol=1e-4, atol=1e-4)


# -- Who is who --------------------------------------------------------------------------------


def permuted(played: Episodes, seed: int) -> tuple[Episodes, list[Any]]:
    """Entities of A in another order in each frame; and the orders, over all rows of a step."""
    rng, frames, orders = np.random.default_rng(seed), [], []
    for batch in played.frames:
        lengths = batch.features["A"].lengths
        starts = np.cumsum(lengths) - lengths
        order = [s + rng.permutation(n) for s, n in zip(starts, lengths, strict=True)]
        flat = np.concatenate(order).astype(np.int64)
        orders.append(flat)
        rows = RaggedTensor(batch.features["A"].values[torch.from_numpy(flat)], lengths)
        keys = Ragged(batch.identity["A"].values[flat], lengths)
        frames.append(
            replace(
                batch,
                features={**batch.features, "A": rows},
                identity={**batch.identity, "A": keys},
            )
        )
    return played._replace(frames=frames), orders


def test_memory_is_invariant_to_the_order_of_entities() -> None:
    net, played = network(of="both", keep_absent=3), episodes(8)
    other, orders = permuted(played, 1)
    with torch.no_grad():
        one, two = (net(linked(net, each)) for each in (played, other))
    torch.testing.assert_close(one.values, two.values, rtol=1e-9, atol=1e-9)
    first, rows = 0, []
    for order in orders:
        rows.append(first + order)
        first += len(order)
    selected = torch.from_numpy(np.concatenate(rows))
    table = one.log_probs["go"][selected]
    torch.testing.assert_close(table, two.log_probs["go"], rtol=1e-9, atol=1e-9)


def test_memory_is_invariant_to_renumbered_ids() -> None:
    net, played = network(of="both", keep_absent=3), episodes(9)
    renamed = [
        replace(
            frames,
            identity={n: Ragged(97 - 3 * x.values, x.lengths) for n, x in frames.identity.items()},
        )
        for frames in played.frames
    ]
    with torch.no_grad():
        one = net(linked(net, played))
        other = net(linked(net, played._replace(frames=renamed)))
    torch.testing.assert_close(one.values, other.values, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("of", ["frame", "entity", "both"])
def test_invisible_entities_do_not_enter_the_policy_memory(of: Any) -> None:
    net, played = network(of=of, inputs=["action", "reward"]), episodes(10)
    changed = []
    for frames in played.frames:
        rows, seen = frames.features["B"], frames.visible["B"].values
        values = torch.where(seen[:, None], rows.values, rows.values + 5)
        features = {**frames.features, "B": RaggedTensor(values, rows.lengths)}
        changed.append(replace(frames, features=features))
    one, other = (step_by_step(net, played._replace(frames=f)) for f in (played.frames, changed))
    for before, after in zip(one, other, strict=True):
        for name in ACTIONS:
            assert torch.equal(before.log_probs[name], after.log_probs[name])
        assert before.memory is not None
        assert after.memory is not None
        assert torch.equal(before.memory, after.memory)


def test_separate_value_network_remembers_invisible_entities() -> None:
    memory = MemoryConfig()
    config = RogueNetConfig(d_model=8, n_layer=1, memory=memory)
    net = RogueNetWithValueNet(config, config, SPACE, ACTIONS)
    frames = episodes(2).frames[0]
    policy_spec, value_spec = net.remembering, net.remembering_of_values
    assert policy_spec is not None
    assert value_spec is not None
    hidden = int((~frames.visible["B"].values).sum())
    counts = [len(memory_rows(frames, one).kind) for one in (policy_spec, value_spec)]
    assert counts[1] - counts[0] == hidden > 0


def test_memory_is_separate_per_environment_and_episode() -> None:
    net, played = network(of="both", inputs=["action"], keep_absent=9), episodes(11, 8, 4)
    begun = played.begun.copy()
    begun[4] = True
    whole = played._replace(begun=begun)
    late = Episodes(played.frames[4:], begun[4:], played.reward[4:])
    with torch.no_grad():
        everything = net(linked(net, whole)).values["value"][16:]
        alone = net(linked(net, late)).values["value"]
    torch.testing.assert_close(everything, alone, rtol=1e-9, atol=1e-9)
    some = np.array([2])
    one = Episodes([f.take(some) for f in late.frames], late.begun[:, some], late.reward[:, some])
    with torch.no_grad():
        single = net(linked(net, one)).values["value"]
    torch.testing.assert_close(single, alone[2::4], rtol=1e-9, atol=1e-9)


# -- Settings ----------------------------------------------------------------------------------


def test_new_memory_does_not_change_the_output() -> None:
    torch.manual_seed(0)
    plain = RogueNet(RogueNetConfig(d_model=16), SPACE, ACTIONS, {"value": 1}).double().eval()
    config = RogueNetConfig(d_model=16, memory=MemoryConfig(inputs=["action", "reward"]))
    net = RogueNet(config, SPACE, ACTIONS, {"value": 1}).double().eval()
    net.load_state_dict(plain.state_dict(), strict=False)
    batch = linked(net, episodes(12))
    with torch.no_grad():
        one, other = plain(batch), net(batch)
    for name in ACTIONS:
        torch.testing.assert_close(one.log_probs[name], other.log_probs[name])
    torch.testing.assert_close(one.values, other.values)


def test_memory_gets_gradients_from_the_start() -> None:
    """Weights that are zero at first get gradients."""
    torch.manual_seed(0)
    config = RogueNetConfig(d_model=16, memory=MemoryConfig())
    net = RogueNet(config, SPACE, ACTIONS, {"value": 1}).double()
    out = net(linked(net, episodes(13)))
    sum(one.square().sum() for one in out.log_probs.values() if one.isfinite().all())
    (out.logprobs["go"].sum() + out.logprobs["call"].sum()).backward()
    assert net.memory is not None
    assert net.memory.to_entities.weight.grad is not None
    assert net.memory.to_entities.weight.grad.any()
    assert net.memory.transformer.blocks[0].attention.project.weight.grad.any()  # type: ignore[union-attr]


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({"of": "all"}, "of: expected"),
        ({"n_layer": 0}, "n_layer: expected at least 1"),
        ({"keep_absent": -1}, "keep_absent: expected at least 0"),
        ({"inputs": ["score"]}, r"inputs: expected some of action, reward, got \['score'\]"),
        ({"of": "frame", "types": ["A"]}, "types: expected of="),
        ({"of": "frame", "keep_absent": 3}, "keep_absent: expected of="),
        ({"d_memory": 0}, "d_memory: expected at least 1"),
    ],
)
def test_invalid_memory_settings_are_refused(fields: Any, expected: str) -> None:
    with pytest.raises(ValueError, match=expected):
        MemoryConfig(**fields)


def test_unknown_memory_type_is_refused() -> None:
    config = RogueNetConfig(memory=MemoryConfig(types=["A", "C"]))
    with pytest.raises(ValueError, match=r"memory.types: expected entity types, .* got \['C'\]"):
        RogueNet(config, SPACE, ACTIONS)


# -- Compiled ----------------------------------------------------------------------------------


SIZES: Any = st.fixed_dictionaries(
    {
        "d_model": st.sampled_from([16, 32, 80]),
        "d_memory": st.sampled_from([None, 24]),
        "n_layer": st.sampled_from([1, 2]),
        "keep_absent": st.integers(0, 3),
        "has_relpos": st.booleans(),
    }
)


def outputs_and_gradients(net: RogueNet, batch: EntityBatch, choices: Any) -> list[torch.Tensor]:
    """Probabilities, values and states of frames, and the gradients of a function of them."""
    out = net(batch, actions=choices)
    assert out.memory is not None
    outputs = [*(out.logprobs[name] for name in ACTIONS), out.values["value"], out.memory]
    outputs += [out.entropies[name] for name in ACTIONS]
    weight = torch.linspace(-1, 1, 97, dtype=torch.float64)
    # Numbers of several signs, which are the same for both precisions.
    loss = sum((x.flatten() * weight[torch.arange(x.numel()) % 97].to(x)).sum() for x in outputs)
    gradients = torch.autograd.grad(loss, [*net.parameters()], allow_unused=True)
    return [*outputs, *(torch.zeros(()) if g is None else g for g in gradients)]


def in_floats(batch: EntityBatch) -> EntityBatch:
    features = {
        name: RaggedTensor(rows.values.float(), rows.lengths)
        for name, rows in batch.features.items()
    }
    assert batch.past is not None
    past = replace(batch.past, carried=batch.past.carried.float())
    return replace(batch, features=features, past=past)


def late_frames(net: RogueNet, played: Episodes, is_in_order: bool) -> EntityBatch:
    """The frames after the first two steps, that remember these; perhaps by sequence."""
    batch, (steps, envs) = linked(net, played), played.begun.shape
    assert batch.past is not None
    width, early = net.memory.width, int(batch.past.source.lengths[: 2 * envs].sum())  # type: ignore[union-attr]
    generator = torch.Generator().manual_seed(3)
    states = torch.randn(early, width, generator=generator, dtype=torch.float64)
    frames = slice(2 * envs, None)
    num_rows = len(batch.past.source.values) - early

    def later(sources: Ragged) -> Ragged:
        lengths = sources.lengths[frames]
        values = sources.values[int(sources.lengths[: 2 * envs].sum()) :]
        moved = np.where(values < early, values + num_rows, values - early)
        return Ragged(np.where(values == NEW, NEW, moved), lengths)

    late = np.arange(2 * envs, steps * envs)
    past = Past(
        batch.past.rank.take(late),
        batch.past.kind.take(late),
        later(batch.past.source),
        later(batch.past.absent),
        batch.past.level[frames] - 2,
        batch.past.reward[frames],
        states,
    )
    batch = replace(replace(batch, past=None).take(late), past=past)
    order = np.arange(len(late)).reshape(-1, envs)
    return batch.take(order.T.flatten() if is_in_order else order.flatten())


@pytest.mark.slow
@pytest.mark.skipif(not library.AVAILABLE, reason="nothing is compiled")
@given(KINDS, SIZES, st.integers(0, 10**6), st.booleans(), st.booleans())
def test_compiled_memory_and_gradients_equal_torch(
    kind: dict[str, Any], sizes: dict[str, Any], seed: int, hides: bool, is_in_order: bool
) -> None:
    if kind["of"] == "frame":
        sizes = {**sizes, "keep_absent": MemoryConfig.keep_absent}
    net = network(seed, **kind, **sizes)
    batch = late_frames(net, episodes(seed, 6, 20, hides), is_in_order)
    with torch.no_grad():
        choices = net(batch).actions
    exact = outputs_and_gradients(net, batch, choices)  # in float64, which is not compiled
    single = net.float()
    found = outputs_and_gradients(single, in_floats(batch), choices)
    for right, compiled in zip(exact, found, strict=True):
        scale = max(1.0, float(right.detach().abs().max()))
        torch.testing.assert_close(
            compiled.double() / scale, right.double() / scale, rtol=0, atol=1e-4
        )


@pytest.mark.skipif(not library.AVAILABLE, reason="nothing is compiled")
@pytest.mark.parametrize("is_in_order", [False, True])
def test_memory_does_not_depend_on_threads_and_parts(is_in_order: bool) -> None:
    net = network(of="both", keep_absent=2, inputs=["action", "reward"], d_model=32).float()
    played = episodes(1, 5, 120)
    batch = in_floats(late_frames(network(of="both", keep_absent=2), played, is_in_order))
    assert batch.past is not None
    batch = replace(
        batch, past=replace(batch.past, carried=torch.randn(len(batch.past.carried), 32))
    )
    assert len(starts_of_parts(batch.past, 4)) == (5 if is_in_order else 2)
    with torch.no_grad():
        choices = net(batch).actions
    found = []
    for threads in (1, 2, 3):
        with threads_at_work(threads):
            found.append(outputs_and_gradients(net, batch, choices))
    for others in found[1:]:
        assert all(torch.equal(one, other) for one, other in zip(found[0], others, strict=True))


@pytest.mark.skipif(not library.AVAILABLE, reason="nothing is compiled")
def test_memory_of_unsupported_width_falls_back_to_torch() -> None:
    net, played = network(of="both", d_memory=12, d_model=32, keep_absent=2), episodes(2)
    batch = linked(net, played)
    with torch.no_grad():
        expected = net(batch)
        found = net.float()(in_floats(batch), actions=expected.actions)
    torch.testing.assert_close(
        found.values["value"], expected.values["value"].float(), rtol=1e-4, atol=1e-4
    )
