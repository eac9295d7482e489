"""Check of an ONNX file: outputs of onnxruntime against those of PyTorch."""

import math
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from enn_trainer.base.errors import ConfigError
from enn_trainer.export.frames import random_draws, with_random_states
from rogue_net.actions.parts import ConditionalDistribution, parent_rows, parents_first
from rogue_net.answer import NetOutput
from rogue_net.dense import DenseNet
from rogue_net.dense_arrays import Arrays, networks, padded_batch
from rogue_net.ragged import EntityBatch

TOLERANCE = 1e-5
"""Largest difference of a value, or of the numbers of an actor or state, relative to the largest of
them above 1: rounding moves all log-probabilities of an actor by that of its largest score."""


def run_onnx(content: bytes, inputs: Mapping[str, Any]) -> Arrays:
    """Return the outputs of an ONNX file in onnxruntime, by name."""
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    session = onnxruntime.InferenceSession(content, options, ["CPUExecutionProvider"])
    arrays = {name: np.asarray(x) for name, x in inputs.items()}
    names = [output.name for output in session.get_outputs()]
    return dict(zip(names, map(torch.from_numpy, session.run(None, arrays)), strict=True))


def check_onnx(content: bytes, net: DenseNet, agent: Any, batch: EntityBatch) -> float:
    """Compare an ONNX file with the network that it was made from.

    Args:
        content: the file.
        net: the network over padded arrays.
        agent: the network.
        batch: frames to compare.

    Returns:
        The largest difference.

    Raises:
        ConfigError: a difference exceeds `TOLERANCE`; names the output.
    """
    draws = random_draws(batch)
    batch, states = with_random_states(net, batch)
    outputs = run_onnx(content, {**padded_batch(net.agent, batch, draws), **states})
    worst = {"": 0.0}
    with torch.no_grad(), in_float32(agent):
        expected = agent(batch, uniforms=draws)
    for name, difference in _differences(outputs, expected, net, batch):
        worst[name] = max(worst.get(name, 0.0), difference)
    name = max(worst, key=lambda n: worst[n])
    if not worst[name] <= TOLERANCE:
        raise ConfigError(
            f"export: expected {name} of onnxruntime within {TOLERANCE:g} of PyTorch, got a "
            f"difference of {worst[name]:.2g}; nothing was written"
        )
    return worst[name]


@contextmanager
def in_float32(agent: Any) -> Iterator[None]:
    """Return a context in which a network computes in float32, as its graph does."""
    nets = [*networks(agent).values()]
    configs = [net.config for net in nets]
    for net in nets:
        net.config = replace(net.config, precision="float32")
    try:
        yield
    finally:
        for net, config in zip(nets, configs, strict=True):
            net.config = config


def _differences(
    outputs: Arrays, expected: NetOutput, net: DenseNet, batch: EntityBatch
) -> Iterator[tuple[str, float]]:
    """Yield the name and the largest difference of each output."""
    # Actions; after different choices of a parent action, distributions are not comparable.
    same: Arrays = {}
    for name in parents_first(batch.actions):
        action, distribution = batch.actions[name], expected.distribution(name)
        lengths = torch.from_numpy(action.actors.lengths)
        longest = outputs[f"sampled/{name}"].shape[1]
        is_actor = torch.arange(longest) < lengths.unsqueeze(1)
        active = torch.ones(int(lengths.sum()), dtype=torch.bool)
        if action.after is not None:
            assert isinstance(distribution, ConditionalDistribution)
            rows = parent_rows(action, batch.actions)
            active = distribution.active & same[action.after.action].index_select(0, rows)
            distribution = distribution.inner
        table: Any = distribution
        parts = {f"log_probs/{name}": distribution.all_log_probs}
        if net.agent.action_space[name].components:
            parts = {f"mean/{name}": table.mean, f"deviation/{name}": table.std}
        else:
            sampled = outputs[f"sampled/{name}"][is_actor]
            same[name] = active & (sampled == expected.actions[name])
        for part, values in parts.items():
            assert values is not None
            ours = outputs[part][is_actor][active]
            yield part, _difference(ours[:, : values.shape[1]], values[active][:, : ours.shape[1]])

    # Values and recurrent states.
    if "value" in outputs:
        value = expected.values["value"].squeeze(1) * net.value_scale
        yield "value", _difference(outputs["value"], value)
    of_values = expected.memory_of_values
    for prefix, states, past in (
        ("", expected.memory, batch.past),
        ("value_", of_values, None if batch.past is None else batch.past.value_past),
    ):
        if states is None or past is None:
            continue
        memory = networks(net.agent)[prefix].memory
        assert memory is not None
        frames = np.repeat(np.arange(batch.num_frames), past.kind.lengths)
        for kind, key in enumerate(["", *(f"/{name}" for name in memory.types)]):
            of_kind = np.flatnonzero(past.kind.values == kind)
            if len(of_kind):
                table = outputs[f"next_{prefix}memory{key}"]
                table = table if key else table.unsqueeze(1)
                ours = table[frames[of_kind], past.rank.values[of_kind]]
                yield f"next_{prefix}memory{key}", _difference(ours, states[of_kind])


def _difference(ours: Tensor, expected: Tensor) -> float:
    """Return the largest difference, see `TOLERANCE`; infinity if an infinite value differs."""
    finite = expected.isfinite()
    if ours.shape != expected.shape or not torch.equal(ours.isfinite(), finite):
        return math.inf
    if not ours.numel():
        return 0.0
    # One row per actor or state, without infinite values.
    ours, expected = (x.where(finite, 0.0).reshape(len(x), -1) for x in (ours, expected))
    scales = expected.abs().amax(dim=1).clamp(min=1)
    return float(((ours - expected).abs().amax(dim=1) / scales).max())
