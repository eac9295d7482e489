"""Checkpoints as enn_trainer 0.1.16 wrote them."""

import json
from pathlib import Path
from typing import Any

import msgpack
import numpy as np
import torch

from enn_trainer import StateManager
from enn_trainer.config import ron
from tests.rogue_net.published_case import GOLDEN as CASES

GOLDEN = Path(__file__).parents[2] / "golden" / "checkpoint_enn_trainer_0.1.16"
NAMES = [path.stem.removeprefix("roguenet_") for path in sorted(CASES.glob("roguenet_*.npz"))]


class Trap:
    """Whoever unpickles it makes a file."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> Any:
        return Path.touch, (self.path,)


def moments_of(manager: StateManager) -> dict[str, torch.Tensor]:
    """Of the optimizer of a restored state, by name."""
    agent = manager.state.agent
    names = {parameter: name for name, parameter in agent.named_parameters()}
    return {
        f"{names[parameter]}/{key}": value
        for parameter, entry in manager.state.optimizer.state.items()
        for key, value in entry.items()
    }


def packed(array: Any) -> dict[bytes, Any]:
    array = np.asarray(array)
    return {
        b"__tensor__": "torch",
        b"dtype": array.dtype.str,
        b"shape": list(array.shape),
        b"data": array.tobytes(),
    }


def published(path: Path, name: str) -> Path:
    """A checkpoint as enn_trainer 0.1.16 writes it, of a network of rogue-net 0.1.9.

    Its moments are the gradients that this network had, and their squares.
    """
    with np.load(CASES / f"roguenet_{name}.npz", allow_pickle=False) as file:
        data = {key: file[key] for key in file.files}
    meta = json.loads(str(data["meta"]))
    weights = {key.removeprefix("param/"): v for key, v in data.items() if key[:6] == "param/"}
    shared = "backbone.relpos_encoding."
    trained = [
        key
        for key in weights
        if key.endswith(("weight", "bias", "embedding")) and ".attn.relpos_encoding." not in key
    ]
    assert shared in "".join(trained) or "relpos" not in name
    entries = {
        i: {
            "step": packed(np.float32(3)),
            "exp_avg": packed(data[f"grad/{key}"]),
            "exp_avg_sq": packed(data[f"grad/{key}"] ** 2),
        }
        for i, key in enumerate(trained)
        if f"grad/{key}" in data
    }
    groups = [{"lr": 0.001, "params": list(range(len(trained)))}]
    spaces = {
        key: ron.Struct(kind, {"index_to_label": labels} if labels else {})
        for key, (kind, *labels) in meta["action_space"].items()
    }
    state = {
        "step": 512,
        "restart": 2,
        "next_eval_step": 1000,
        "agent": "<blob:msgpack>",
        "value_function": None,
        "optimizer": "<blob:msgpack>",
        "vf_optimizer": None,
        "obs_space": {
            "global_features": meta["global_features"],
            "entities": {key: {"features": f} for key, f in meta["entities"].items()},
        },
        "action_space": spaces,
    }
    path.mkdir(parents=True)
    config = {"version": 4, "net": meta["config"]}
    (path / "config.ron").write_text(ron.dumps(ron.Struct("TrainConfig", config)))
    (path / "state.ron").write_text(ron.dumps(ron.Struct("State", state)))
    packed_weights = {key: packed(value) for key, value in weights.items()}
    (path / "state.agent.msgpack").write_bytes(msgpack.packb(packed_weights))
    optimizer = {"state": entries, "param_groups": groups}
    (path / "state.optimizer.msgpack").write_bytes(msgpack.packb(optimizer))
    return path
