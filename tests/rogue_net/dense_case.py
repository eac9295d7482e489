"""Outputs of a network for padded arrays, and of `RogueNet` for the same frames."""

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor

from rogue_net import EntityBatch, RogueNet, RogueNetWithValueNet
from rogue_net.actions.gaussian_numbers import SquashedGaussian
from rogue_net.dense import DenseNet
from rogue_net.dense_arrays import padded_batch


def draws_of(batch: EntityBatch, seed: int = 0) -> dict[str, Tensor]:
    """Random numbers of all actors, multiples of 2**-23."""
    generator = torch.Generator().manual_seed(seed)
    draws = {}
    for name, action in batch.actions.items():
        shape = (len(action.actors.values), action.num_draws)
        bits = torch.randint(2**23, shape, generator=generator)
        draws[name] = (bits if action.num_draws > 1 else bits[:, 0]).float() * 2.0**-23
    return draws


def ragged_outputs(
    agent: RogueNet | RogueNetWithValueNet, batch: EntityBatch, seed: int = 0
) -> dict[str, Tensor]:
    """Outputs of `RogueNet` by the names of the dense outputs, for the actors of all frames."""
    outputs = {}
    with torch.no_grad():
        best, sampled = agent(batch), agent(batch, uniforms=draws_of(batch, seed))
    for name, action in batch.actions.items():
        distribution: Any = sampled.distribution(name)
        inner = getattr(distribution, "inner", distribution)
        outputs[f"best/{name}"] = best.distribution(name).to_env(best.actions[name])
        outputs[f"sampled/{name}"] = distribution.to_env(sampled.actions[name])
        active = getattr(distribution, "active", torch.ones(len(action.actors.values)).bool())
        if isinstance(inner, SquashedGaussian):
            outputs[f"mean/{name}"] = inner.mean.masked_fill(~active[:, None], torch.nan)
            outputs[f"deviation/{name}"] = inner.std.masked_fill(~active[:, None], torch.nan)
        else:
            log_probs = inner.log_probs
            outputs[f"log_probs/{name}"] = log_probs.masked_fill(~active[:, None], -torch.inf)
    if "value" in sampled.values:
        outputs["value"] = sampled.values["value"].squeeze(1)
    return outputs


def dense_outputs(
    net: DenseNet,
    batch: EntityBatch,
    seed: int = 0,
    more: Mapping[str, Tensor] | None = None,
    padding: int = 0,
) -> dict[str, Tensor]:
    """Outputs for padded arrays, for the actors of all frames."""
    inputs = {**padded_batch(net.agent, batch, draws_of(batch, seed)), **(more or {})}
    if padding:
        inputs = {name: _with_padding(name, x, padding, net) for name, x in inputs.items()}
    with torch.no_grad():
        return of_actors(net(inputs), batch)


def of_actors(outputs: Mapping[str, Tensor], batch: EntityBatch) -> dict[str, Tensor]:
    """Remove the padding of actors; a global actor without a legal choice is omitted."""
    flat = {}
    for name, x in outputs.items():
        action = batch.actions.get(name.partition("/")[2])
        if action is not None:
            lengths = torch.from_numpy(action.actors.lengths)
            x = x[torch.arange(x.shape[1]) < lengths[:, None]]
        flat[name] = x
    return flat


def _with_padding(name: str, x: Tensor, padding: int, net: DenseNet) -> Tensor:
    """Append rows of padding, with content that must not matter."""
    dims = net.inputs[name].dims
    fill = {"actors": -1, "actees": -1, "visible": True, "kinds": 0}.get(name.split("/")[0], 1)
    for axis, dim in enumerate(dims):
        if isinstance(dim, str) and axis > 0:
            shape = [*x.shape]
            shape[axis] = padding
            x = torch.cat([x, x.new_full(shape, fill)], dim=axis)
    return x


def assert_equal_outputs(
    got: Mapping[str, Tensor], expected: Mapping[str, Tensor], tolerance: float = 1e-9
) -> None:
    """Compare outputs, without the padding of actees."""
    assert {*expected} <= {*got}
    for name, x in expected.items():
        ours = got[name]
        if name.startswith("log_probs/"):
            assert ours[:, x.shape[1] :].eq(-torch.inf).all()
            ours = ours[:, : x.shape[1]]
            x = x[:, : ours.shape[1]]
        torch.testing.assert_close(
            ours.to(x.dtype),
            x,
            rtol=tolerance,
            atol=tolerance,
            equal_nan=True,
            msg=name,
        )


def recalled(
    net: DenseNet, batch: EntityBatch, states: Mapping[Any, Tensor], reward: Tensor
) -> dict[str, Tensor]:
    """Recurrent states of the rows of frames, as a game looks them up by id.

    Args:
        net: the network.
        batch: B frames with identity.
        states: by input, environment and number of the entity; the number of a frame is 0.
        reward: (B,) rewards.
    """
    inputs: dict[str, Tensor] = {"reward": reward.double()} if "reward" in net.inputs else {}
    for name, spec in net.inputs.items():
        if "memory" in name:
            width = spec.dims[-1]
            assert isinstance(width, int)
            rows = [
                [states.get((name, i, number)) for number in numbers] or [None]
                for i, numbers in enumerate(numbers_of(batch, name))
            ]
            n = max(map(len, rows))
            padded = torch.zeros(len(rows), n, width, dtype=torch.float64)
            known = torch.zeros(len(rows), n, dtype=torch.bool)
            for i, row in enumerate(rows):
                for k, state in enumerate(row):
                    if state is not None:
                        padded[i, k], known[i, k] = state, True
            is_frame = "/" not in name
            inputs[name] = padded[:, 0] if is_frame else padded
            inputs[name.replace("memory", "known", 1)] = known[:, 0] if is_frame else known
    return inputs


def numbers_of(batch: EntityBatch, name: str) -> list[list[int]]:
    """Numbers of the entities of each frame with states in an input."""
    if "/" not in name:
        return [[0]] * batch.num_frames
    numbers = batch.identity[name.partition("/")[2]]
    return [part.tolist() for part in np.split(numbers.values, numbers.starts[1:])]


def next_states(
    outputs: Mapping[str, Tensor], batch: EntityBatch
) -> dict[tuple[str, int, int], Tensor]:
    """Recurrent states after a frame, by input, environment and number."""
    states = {}
    for name, x in outputs.items():
        if name.startswith("next_") and "memory" in name:
            known = outputs[name.replace("memory", "known", 1)]
            for i, numbers in enumerate(numbers_of(batch, name)):
                for k, number in enumerate(numbers):
                    place = i if "/" not in name else (i, k)
                    if known[place]:
                        states[name.removeprefix("next_"), i, number] = x[place]
    return states
