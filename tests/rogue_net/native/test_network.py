"""Choices and gradients of compiled narrow networks equal torch."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import Tensor

from rogue_net import EntityBatch, RogueNet
from rogue_net.ragged import RaggedTensor
from tests.rogue_net import kinds_case
from tests.rogue_net.builders import answers, large_case, needs_compiled, torch_only


def uniforms_for(batch: EntityBatch) -> dict[str, Tensor]:
    generator = torch.Generator().manual_seed(3)
    return {
        name: torch.rand(len(action.actors.values), generator=generator)
        for name, action in batch.actions.items()
    }


@needs_compiled
@pytest.mark.parametrize("drawn", [False, True])
def test_compiled_choices_equal_torch(drawn: bool) -> None:
    net, batch = large_case("grid", 16)
    uniforms = uniforms_for(batch) if drawn else None
    with torch.no_grad():
        got = net(batch, uniforms=uniforms)
        with torch_only():
            expected = net(batch, uniforms=uniforms)
    for name, chosen in expected.actions.items():
        same = (got.actions[name] == chosen).float().mean()
        assert same > 0.99, "rounding may move one of many across a border"


@needs_compiled
def test_compiled_sample_frequencies_match_the_probabilities() -> None:
    """Each frame as often in a batch as there are numbers to draw for it."""
    net, frames = large_case("plain", 16)
    trials = 4000
    numbers = (torch.arange(trials) + 0.5) / trials
    for i in (2, 6, 7):  # with 2, 15 and 16 actors
        batch = frames.take(np.full(trials, i))
        n = int(batch.actions["move"].actors.lengths[0])
        assert n == (0, 1, 2, 7, 8, 9, 15, 16)[i]
        draws = {
            name: numbers.repeat_interleave(torch.from_numpy(action.actors.lengths))
            for name, action in batch.actions.items()
        }
        with torch.no_grad():
            p = net(frames.take(np.array([i]))).log_probs["move"].exp()
            chosen = net(batch, uniforms=draws).actions["move"].view(trials, n)
        for actor, row in enumerate(p):
            counts = chosen[:, actor].bincount(minlength=len(row))
            torch.testing.assert_close(counts / trials, row, rtol=0, atol=2 / trials)


@needs_compiled
@pytest.mark.parametrize("temperature", [0.5, 3.0])
def test_temperature_and_generator_equal_torch(temperature: float) -> None:
    net, batch = large_case("polar", 16)

    def drawn() -> dict[str, Tensor]:
        generator = torch.Generator().manual_seed(1)
        with torch.no_grad():
            return net(batch, generator=generator, temperature=temperature).logprobs

    got = drawn()
    with torch_only():
        expected = drawn()
    for name in expected:
        torch.testing.assert_close(got[name], expected[name], rtol=1e-3, atol=1e-3)


@needs_compiled
def test_out_of_range_actors_and_choices_are_refused() -> None:
    net, batch = large_case("plain", 16)
    name = "move"
    action = batch.actions[name]
    given = {
        n: torch.zeros(len(a.actors.values), dtype=torch.int64) for n, a in batch.actions.items()
    }
    for bad in (-1, 1000):
        with pytest.raises(IndexError, match="out of range"):
            net(batch, actions={**given, name: torch.full_like(given[name], bad)})
    far = RaggedTensor(action.actors.values + 10**6, action.actors.lengths)
    with pytest.raises(IndexError, match="out of range"):
        net(replace(batch, actions={**batch.actions, name: replace(action, actors=far)}))
    with pytest.raises(ValueError, match=r"actions: expected shape \(\d+,\), got \(1,\)"):
        net(batch, actions={**given, name: given[name][:1]})
    with pytest.raises(ValueError, match="uniforms: expected shape"):
        net(batch, uniforms={**uniforms_for(batch), name: torch.zeros(0)})


@needs_compiled
@pytest.mark.parametrize("d_model", [16, 128])
def test_out_of_range_labels_are_refused(d_model: int) -> None:
    """In the network that is compiled whole, and in the one that is compiled in parts."""
    net, batch = kinds_case.large_labels_case(kinds_case.OWN_ONLY, d_model)
    rows = batch.kinds["Word"]
    for bad in (-1, 300, 2**15 - 1):
        values = rows.values.clone()
        values[-1] = bad
        kinds = {**batch.kinds, "Word": RaggedTensor(values, rows.lengths)}
        with pytest.raises(IndexError, match="out of range"):
            net(replace(batch, kinds=kinds))


@needs_compiled
def test_gradients_of_single_outputs_equal_torch() -> None:
    """Of values alone, and of the entities alone."""
    net, batch = large_case("grid", 16)

    def entities() -> Tensor:
        x, layout = net.embed(batch)
        return x.index_select(0, layout.row_of_entity).square().sum()

    for said in (lambda: net.values(batch)["value"].sum(), entities):
        parameters = dict(net.named_parameters())
        got = torch.autograd.grad(said(), [*parameters.values()], allow_unused=True)
        with torch_only():
            expected = torch.autograd.grad(said(), [*parameters.values()], allow_unused=True)
        for name, g, e in zip(parameters, got, expected, strict=True):
            zero = torch.zeros_like(parameters[name])
            g, e = zero if g is None else g, zero if e is None else e
            atol = 1e-3 * float(e.abs().max()) + 1e-4 if e.numel() else 0.0
            torch.testing.assert_close(g, e, rtol=0, atol=atol, msg=name)


@needs_compiled
def test_batch_without_frames_has_empty_outputs() -> None:
    net, batch = large_case("plain", 16)
    nothing = batch.take(np.zeros(0, dtype=np.int64))
    out, gradient = answers(net, nothing, compiled=True)
    assert all(len(p) == 0 for p in out.log_probs.values())
    assert all(not g.any() for g in gradient.values())


@needs_compiled
def test_copied_network_has_separate_parameters() -> None:
    """Nothing remembers where the parameters of another network are."""
    import copy

    net, batch = large_case("plain", 16)
    other: RogueNet = copy.deepcopy(net)
    with torch.no_grad():
        for parameter in other.parameters():
            parameter.zero_()
        assert not other.values(batch)["value"].any()
        assert net.values(batch)["value"].any()


@needs_compiled
def test_backward_detects_changed_and_freed_tensors() -> None:
    net, batch = large_case("plain", 16)
    loss = net(batch).values["value"].sum()
    loss.backward()  # type: ignore[no-untyped-call]
    with pytest.raises(RuntimeError, match="second time"):
        loss.backward()  # type: ignore[no-untyped-call]
    loss = net(batch).values["value"].sum()
    with torch.no_grad():
        next(net.transformer.parameters()).add_(1.0)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        loss.backward()  # type: ignore[no-untyped-call]
