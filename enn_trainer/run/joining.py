"""Start of a run of several ranks: the same settings, code and weights in all of them."""

import hashlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch

from enn_trainer.algorithms.cloning.cloning_loss import MEMORY as DEMONSTRATIONS
from enn_trainer.base.errors import ConfigError, RankError
from enn_trainer.base.group import Group
from enn_trainer.checkpoints import format as saves
from enn_trainer.checkpoints.manifest import MANIFEST
from enn_trainer.checkpoints.state import State
from enn_trainer.checkpoints.state_manager import StateManager
from enn_trainer.config.load import PREFIX, Sources, dump_config, load_with_sources
from enn_trainer.runtime.exchange import digest_of
from enn_trainer.runtime.process import choose_device
from enn_trainer.runtime.torch_group import current_group
from enn_trainer.runtime.versions import package_version, versions
from entity_env.errors import short_repr
from entity_env.serialization.messages import pack
from entity_env.vec.vec_env import VecEnv


def join(manager: StateManager) -> StateManager:
    """Return a state manager, which does what that of rank 0 does if the run has several ranks.

    Rank 0 finds the save to resume and reads the configuration; the others get both from it.

    Raises:
        ConfigError: the configuration cannot be used, here or in rank 0.
        CheckpointError: there is no valid save to resume.
        RankError: a rank was given other settings, or has other versions.
    """
    group = current_group()
    if manager.group is group:
        return manager
    file = manager.init_path
    text = file.read_bytes() if file is not None and file.is_file() else b""
    given = {name: x for name, x in (manager.environment or {}).items() if name.startswith(PREFIX)}
    about = {
        "settings": list(manager.overrides or []),
        "configuration file": hashlib.sha256(text).hexdigest(),
        "environment variables": given,
        "parts of --init-from": [] if manager.init_from is None else [*manager.init_from.parts],
        "versions": versions(),
        "numpy": package_version("numpy"),
    }
    check_same(group, about)

    # Rank 0 reads; the others take what it read.
    manager.group = group

    def read() -> list[Any]:
        saved, config, of_save = manager.resumed_from, manager.config, None
        if saved is None:
            config.scale.shards = config.scale.shards or group.size
        elif type(saved) is not saves.Checkpoint:
            raise ConfigError(
                "torchrun: expected a save of this version to resume with several ranks, got one "
                "of enn_trainer 0.1.16; resume it in one process first"
            )
        else:
            files = {name: saved.read(name) for name in saved.manifest["files"]}
            files[MANIFEST] = (saved.path / MANIFEST).read_bytes()
            of_save = [saved.step, files]
        sources, text = [*manager.sources.items()], dump_config(config)
        load_with_sources(manager.config_cls, None, [], text)  # raises if there are too many shards
        return [text, sources, of_save, manager.is_resumed_in_place]

    text_of_0, known, of_save, is_in_place = group.lead(read, "start")
    if not group.leads:
        config, _ = load_with_sources(manager.config_cls, None, [], text_of_0)
        sources = Sources({tuple(path): source for path, source in known})
        with TemporaryDirectory(prefix="rank-") as folder:  # its files are held open
            saved = None if of_save is None else _written(Path(folder), of_save[0], of_save[1])
        manager.follow(config, sources, saved, is_in_place)
    config = manager.config
    count = config.scale.shards or 1
    if group.size > count:
        raise ConfigError(
            f"scale.shards: expected at least the {group.size} ranks, got {count}; another number "
            "changes results by rounding"
        )
    device = choose_device(config.cuda).type
    check_same(group, {"device": device})
    group.begin(config.scale.timeout_s, device == "cuda")
    return manager


def share_start(state: State, envs: VecEnv, group: Group) -> None:
    """Give all ranks the weights of rank 0, after a check that their worlds are the same.

    Raises:
        RankError: a rank has another world or other demonstrations, or other weights afterwards.
    """
    if group.size == 1:
        return
    world = [envs.obs_space(), dict(envs.action_space())]
    spaces, shown = hashlib.sha256(pack(world)).hexdigest(), state.memory.get(DEMONSTRATIONS)
    about = {"spaces": spaces, "world's code": envs.world_code(), "demonstrations": shown}
    check_same(group, about)
    agent, learns = state.agent.state_dict(), state.algorithm.state_dict()
    named = {name: x for name, x in learns.items() if isinstance(x, torch.Tensor)}
    of_0 = group.share([_plain(agent), _plain(named)], "start")
    device = next(state.agent.parameters()).device
    weights, moments = (
        {name: torch.from_numpy(x).to(device) for name, x in one.items()} for one in of_0
    )
    if not group.leads:
        state.agent.load_state_dict(weights)
        state.algorithm.load_state_dict({**learns, **moments})
    check_same(group, {"weights": digest_of(state.agent)})


def check_same(group: Group, about: Mapping[str, Any]) -> None:
    """Raise if plain data of some rank is not that of rank 0.

    Raises:
        RankError: with the ranks that differ, in all ranks.
    """
    check_equal(group.gather(dict(about), "start"))


def check_equal(found: Sequence[Mapping[str, Any]]) -> None:
    """Raise if plain data of some rank is not that of rank 0, by that of all.

    Raises:
        RankError: with the ranks that differ.
    """
    for name, expected in found[0].items():
        others = [rank for rank, one in enumerate(found) if one[name] != expected]
        if others:
            got = found[others[0]][name]
            if isinstance(expected, list):
                more = [one for one in got if one not in expected]
                expected, got = [one for one in expected if one not in got], more
            raise RankError(
                f"rank {', '.join(map(str, others))}: {name}: expected that of rank 0, "
                f"{short_repr(expected)}, got {short_repr(got)}"
            )


def _plain(tensors: Mapping[str, torch.Tensor]) -> dict[str, Any]:
    return {name: x.detach().cpu().numpy() for name, x in tensors.items()}


def _written(folder: Path, step: int, files: Mapping[str, bytes]) -> saves.Checkpoint:
    """Return the save of rank 0, written to a folder of this rank."""
    path = folder / saves.save_name(step)
    path.mkdir()
    for name, data in files.items():
        (path / name).write_bytes(data)
    return saves.verify(path)
