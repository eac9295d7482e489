"""Export of an agent to a folder: ONNX file, weights, interface, a program that plays, an example.

out/
  model.onnx         the network, for any number of entities
  model.safetensors  the weights, with configuration and spaces, for `load_agent`
  interface.json     names, types and shapes of inputs and outputs, spaces, origin
  play.py            plays with onnxruntime and numpy
  example.npz        inputs and outputs of some frames
"""

import hashlib
import io
import json
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch

from enn_trainer.algorithms.ppo.reward_scaling import RewardScaling
from enn_trainer.base.errors import ConfigError
from enn_trainer.base.policy import rogue_nets
from enn_trainer.base.state_part import StateDict
from enn_trainer.checkpoints import disk
from enn_trainer.checkpoints.model_file import ModelFile
from enn_trainer.config.load import dump_config
from enn_trainer.export import OPSET
from enn_trainer.export.check import check_onnx, run_onnx
from enn_trainer.export.frames import (
    frames_of_env,
    random_draws,
    random_frames,
    with_random_states,
)
from enn_trainer.export.onnx_file import check_exporter, onnx_bytes
from enn_trainer.runtime.trust import is_passed_from_python
from entity_env.spaces import ActionSpace, Entity
from entity_env.vec.vec_env import VecEnv
from rogue_net.dense import DenseNet
from rogue_net.dense_arrays import Arrays, ArraySpec, padded_batch
from rogue_net.ragged import EntityBatch

FORMAT = "enn-trainer export"
INTERFACE, GRAPH, WEIGHTS = "interface.json", "model.onnx", "model.safetensors"
_EXAMPLE_FRAMES = 2


class Exported(NamedTuple):
    """Result of an export.

    Attributes:
        folder: the folder.
        files: sizes in bytes, by name.
        difference: largest difference between onnxruntime and PyTorch; None without an ONNX file.
    """

    folder: Path
    files: Mapping[str, int]
    difference: float | None


def export_model(
    model: ModelFile,
    agent: Any,
    folder: Path,
    create_envs: Callable[[int], VecEnv] | None = None,
    opset: int = OPSET,
) -> Exported:
    """Export an agent to a folder, which replaces an earlier export as a whole.

    Args:
        model: the weights, configuration and spaces.
        agent: the network with these weights; None for a custom network, of which only the weights
            are exported.
        folder: the folder; its parent must exist.
        create_envs: creates a number of environments for the frames to check with; None to use
            random frames.
        opset: version of the operators.

    Raises:
        ConfigError: the folder is no export, a package is missing, an option of the network cannot
            be exported, or outputs differ. Nothing is written.
        CheckpointError: a file cannot be written.
    """
    check_folder(folder)
    files, difference = {WEIGHTS: model.content()}, None
    if agent is None:
        files[INTERFACE] = _json_bytes(about(model))
    else:
        check_exporter()
        more, difference = _graph_files(model, agent, create_envs, opset)
        files |= more
    write_folder(folder, files)
    return Exported(folder, {name: len(data) for name, data in files.items()}, difference)


def _graph_files(
    model: ModelFile,
    agent: Any,
    create_envs: Callable[[int], VecEnv] | None,
    opset: int,
) -> tuple[dict[str, bytes], float]:
    """Return the files of a network except its weights, and its largest difference."""
    # Frames; types of entities without ids have no recurrent states.
    types = sorted({name for net in rogue_nets(agent) if net.memory for name in net.memory.types})
    random = random_frames(model.spaces)
    frames, without_ids = random, list[str]()
    if create_envs is not None:
        frames = frames_of_env(create_envs, types)
        numbers = frames.identity
        without_ids = [n for n in types if n not in numbers or not len(numbers[n].values)]
    try:
        net = DenseNet(agent, without_ids, _scale_of(model.reward_scaling)).eval()
        example = _example(net, random)
        interface = about(model) | about_arrays(net, opset)
        content = onnx_bytes(net, example, {"interface": json.dumps(interface)}, opset)
    except NotImplementedError as error:
        raise ConfigError(
            f"export: expected actions with ActionHead.dense, got one without: {error}"
        ) from None
    except ValueError as error:
        raise ConfigError(f"export: {error}") from None

    # The check, and the answer to some frames.
    difference = check_onnx(content, net, agent, frames)
    few = frames.take(np.arange(min(_EXAMPLE_FRAMES, frames.num_frames)))
    inputs = _inputs(net, few)
    outputs = run_onnx(content, inputs)
    archive = io.BytesIO()
    named = {**inputs, **{f"output/{name}": x for name, x in outputs.items()}}
    np.savez(archive, **{name: x.numpy() for name, x in named.items()})
    program = Path(__file__).with_name("play.txt").read_bytes()
    return {
        GRAPH: content,
        INTERFACE: _json_bytes(interface),
        "play.py": program,
        "example.npz": archive.getvalue(),
    }, difference


def _example(net: DenseNet, frames: EntityBatch) -> Arrays:
    """Return inputs with sizes of at least 2, as the exporter fixes sizes of 0 and 1."""
    inputs = _inputs(net, frames.take(np.arange(16)))
    for name, spec in net.inputs.items():
        for axis, dim in enumerate(spec.dims):
            if isinstance(dim, str) and inputs[name].shape[axis] < 2:
                inputs[name] = torch.cat([inputs[name], inputs[name]], dim=axis)
    return inputs


def _inputs(net: DenseNet, frames: EntityBatch) -> Arrays:
    frames, states = with_random_states(net, frames)
    return {**padded_batch(net.agent, frames, random_draws(frames)), **states}


def _scale_of(reward_scaling: StateDict) -> float:
    """Return the divisor of rewards, 1 without reward scaling."""
    scaling = RewardScaling.fresh(1)
    scaling.load_state_dict(reward_scaling)
    return float(scaling.deviation())


def about(model: ModelFile) -> dict[str, Any]:
    """Return the origin and the spaces of an agent as plain data."""
    spaces, env = model.spaces, model.config.env
    is_nameable = not is_passed_from_python(env.id)
    return {
        "format": FORMAT,
        "version": 1,
        "run": model.run,
        "step": model.step,
        "config_sha256": hashlib.sha256(dump_config(model.config).encode()).hexdigest(),
        "environment": {"id": env.id, "kwargs": json.loads(env.kwargs)} if is_nameable else None,
        "entities": {name: _columns(one) for name, one in spaces.obs_space.entities.items()},
        "global": _columns(spaces.obs_space.global_entity),
        "actions": {name: _action(one) for name, one in spaces.action_space.items()},
    }


def about_arrays(net: DenseNet, opset: int) -> dict[str, Any]:
    """Return the inputs and outputs of a network as plain data."""

    def plain(specs: Mapping[str, ArraySpec]) -> dict[str, Any]:
        return {
            name: {"dtype": str(spec.dtype).removeprefix("torch."), "shape": [*spec.dims]}
            for name, spec in specs.items()
        }

    memory = [name for name in net.inputs if f"next_{name}" in net.outputs]
    arrays = {"inputs": plain(net.inputs), "outputs": plain(net.outputs)}
    return {"opset": opset, **arrays, "memory": memory}


def _columns(entity: Entity) -> dict[str, Any]:
    kinds = {kind.name: [*kind.labels] for kind in entity.kinds}
    return {"features": [*entity.features], "kinds": kinds}


def _action(space: ActionSpace) -> dict[str, Any]:
    """Return an action space as plain data."""
    bounds = {n: [_bound(x) for x in pair] for n, pair in space.bounds_by_name().items()}
    return {
        "kind": type(space).__name__.removesuffix("ActionSpace"),
        "labels": [*space.labels],
        "components": bounds,
        "after": space.after,
        "when": [*space.when],
    }


def _bound(value: float) -> float | None:
    return value if np.isfinite(value) else None


def _json_bytes(content: Mapping[str, Any]) -> bytes:
    return (json.dumps(content, indent=1, allow_nan=False) + "\n").encode()


def check_folder(folder: Path) -> None:
    """Raise ConfigError if a folder exists and is no export, or its parent does not exist."""
    if not folder.exists() and folder.parent.is_dir():
        return
    try:
        content = json.loads((folder / INTERFACE).read_text("utf-8"))
        is_export = isinstance(content, dict) and content.get("format") == FORMAT
    except (OSError, ValueError):
        is_export = False
    if not is_export:
        raise ConfigError(f"--to: expected a new folder or an export to replace, got {folder}")


def write_folder(folder: Path, files: Mapping[str, bytes]) -> None:
    """Write a folder as a whole, in place of an earlier one.

    Raises:
        CheckpointError: it cannot be written; an earlier one is unchanged.
    """
    temporary = folder.with_name(f".writing-{folder.name}-{os.getpid()}")
    disk.remove(temporary)
    try:
        disk.make_dir(temporary)
        for name, data in files.items():
            disk.write_file(temporary / name, data)
        disk.sync_dir(temporary)
        if not folder.exists():
            disk.rename(temporary, folder)
        elif not disk.exchange(folder, temporary):
            disk.remove(folder)
            disk.rename(temporary, folder)
        disk.sync_dir(folder.parent)
    finally:
        disk.remove(temporary)
