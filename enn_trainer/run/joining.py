"""Start of a run with one or more ranks: shared and checked settings, code and weights."""

import hashlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, cast

import torch

from enn_trainer.algorithms.cloning.cloning_loss import MEMORY as DEMONSTRATIONS
from enn_trainer.base.errors import ConfigError, RankError
from enn_trainer.base.group import ALONE, Group
from enn_trainer.checkpoints import format as saves
from enn_trainer.checkpoints.manifest import MANIFEST
from enn_trainer.checkpoints.migrate.config_diff import keep_precision
from enn_trainer.checkpoints.saved_state import read_config
from enn_trainer.checkpoints.state import State
from enn_trainer.checkpoints.state_manager import StateManager
from enn_trainer.config import TrainConfig
from enn_trainer.config.load import PREFIX, Sources, dump_config, load_with_sources
from enn_trainer.runtime.exchange import digest_of
from enn_trainer.runtime.process import choose_device
from enn_trainer.runtime.torch_group import current_group
from enn_trainer.runtime.versions import package_version, versions
from entity_env.errors import short_repr
from entity_env.serialization.messages import pack
from entity_env.vec.vec_env import VecEnv
from rogue_net.config import Precision
from rogue_net.precision import auto_precision


def join(manager: StateManager) -> StateManager:
    """Join the process group, let other ranks follow the manager of rank 0, and return the manager.

    Rank 0 finds the checkpoint to resume, reads the configuration, and broadcasts both.

    Raises:
        ConfigError: the configuration is invalid, in this rank or rank 0.
        CheckpointError: there is no valid checkpoint to resume.
        RankError: a rank has other settings or versions.
    """
    group = current_group()
    if manager.group is group:
        return manager
    file = manager.init_path
    text = file.read_bytes() if file is not None and file.is_file() else b""
    env = {name: x for name, x in (manager.environment or {}).items() if name.startswith(PREFIX)}
    facts = {
        "settings": list(manager.overrides or []),
        "configuration file": hashlib.sha256(text).hexdigest(),
        "environment variables": env,
        "parts of --init-from": [] if manager.init_from is None else [*manager.init_from.parts],
        "versions": versions(),
        "numpy": package_version("numpy"),
    }
    check_equal_to_rank_0(group, facts)

    # Rank 0 reads and broadcasts.
    manager.group = group

    def read() -> list[Any]:
        saved, config, content = manager.resumed_from, manager.config, None
        if saved is None:
            config.scale.shards = config.scale.shards or group.size
        elif type(saved) is not saves.Checkpoint:
            raise ConfigError(
                "torchrun: expected a checkpoint of this version to resume with several ranks, got "
                "one of enn_trainer 0.1.16; resume it in one process first"
            )
        else:
            files = {name: saved.read(name) for name in saved.manifest["files"]}
            files[MANIFEST] = (saved.path / MANIFEST).read_bytes()
            content = [saved.step, files]
        sources, text = [*manager.sources.items()], dump_config(config)
        load_with_sources(manager.config_cls, None, [], text)  # raises if there are too many shards
        return [text, sources, content, manager.is_resumed_in_place]

    config_text, source_items, content, is_in_place = group.lead(read, "start")
    if not group.leads:
        config, _ = load_with_sources(manager.config_cls, None, [], config_text)
        sources = Sources({tuple(path): source for path, source in source_items})
        with TemporaryDirectory(prefix="rank-") as folder:  # its files are held open
            saved = None if content is None else _write_save(Path(folder), content[0], content[1])
        manager.follow(config, sources, saved, is_in_place)
    config = manager.config
    count = config.scale.shards or 1
    if group.size > count:
        raise ConfigError(
            f"scale.shards: expected at least {group.size}, the number of ranks, got {count}; "
            "another number changes results by rounding"
        )
    device = choose_device(config.cuda).type
    check_equal_to_rank_0(group, {"device": device})
    group.begin(config.scale.timeout_s, device == "cuda")
    return manager


def choose_precision(config: TrainConfig, device: torch.device, group: Group = ALONE) -> list[str]:
    """Replace `precision="auto"` of the networks by the choice of rank 0.

    Args:
        config: configuration of the run, modified in place.
        device: device of the networks.
        group: processes of the run.

    Returns:
        A message for each choice.
    """
    sections = {"net": config.net, "vf_net": config.vf_net}
    nets = {name: net for name, net in sections.items() if net is not None}

    def choose() -> dict[str, list[str]]:
        return {
            name: [*auto_precision(net.d_model, device)]
            for name, net in nets.items()
            if net.precision == "auto"
        }

    choices = group.lead(choose, "start")
    for name, (precision, _) in choices.items():
        nets[name].precision = cast(Precision, precision)
    return [f"{name}.precision={precision}: {why}" for name, (precision, why) in choices.items()]


def settle_precision(manager: StateManager, device: torch.device) -> None:
    """Choose `precision="auto"` and print the choice; a resumed run keeps the saved choice."""
    saved = manager.resumed_from
    if saved is not None:  # a program may have changed the configuration after it was read
        keep_precision(manager.config, read_config(saved))
    for line in choose_precision(manager.config, device, manager.group):
        manager.say(line)


def share_start(state: State, envs: VecEnv, group: Group) -> None:
    """Check that all ranks have the same environment, and broadcast the weights of rank 0.

    Raises:
        RankError: the environment, the demonstrations or the resulting weights of a rank differ.
    """
    if group.size == 1:
        return
    spaces = [envs.obs_space(), dict(envs.action_space())]
    facts = {
        "spaces": hashlib.sha256(pack(spaces)).hexdigest(),
        "environment code": envs.world_code(),
        "demonstrations": state.memory.get(DEMONSTRATIONS),
    }
    check_equal_to_rank_0(group, facts)
    agent, algorithm = state.agent.state_dict(), state.algorithm.state_dict()
    named = {name: x for name, x in algorithm.items() if isinstance(x, torch.Tensor)}
    rank_0 = group.broadcast([_plain(agent), _plain(named)], "start")
    device = next(state.agent.parameters()).device
    weights, moments = (
        {name: torch.from_numpy(x).to(device) for name, x in one.items()} for one in rank_0
    )
    if not group.leads:
        state.agent.load_state_dict(weights)
        state.algorithm.load_state_dict({**algorithm, **moments})
    check_equal_to_rank_0(group, {"weights": digest_of(state.agent)})


def check_equal_to_rank_0(group: Group, facts: Mapping[str, Any]) -> None:
    """Raise in all ranks if plain data of a rank differs from rank 0.

    Raises:
        RankError: names the ranks that differ.
    """
    check_equal(group.gather(dict(facts), "start"))


def check_equal(facts: Sequence[Mapping[str, Any]]) -> None:
    """Raise if gathered plain data of a rank differs from rank 0.

    Args:
        facts: plain data by name, for each rank.

    Raises:
        RankError: names the ranks that differ.
    """
    for name, expected in facts[0].items():
        differing = [rank for rank, one in enumerate(facts) if one[name] != expected]
        if differing:
            got = facts[differing[0]][name]
            if isinstance(expected, list):
                more = [one for one in got if one not in expected]
                expected, got = [one for one in expected if one not in got], more
            raise RankError(
                f"rank {', '.join(map(str, differing))}: {name}: expected the value of rank 0, "
                f"{short_repr(expected)}, got {short_repr(got)}"
            )


def _plain(tensors: Mapping[str, torch.Tensor]) -> dict[str, Any]:
    return {name: x.detach().cpu().numpy() for name, x in tensors.items()}


def _write_save(folder: Path, step: int, files: Mapping[str, bytes]) -> saves.Checkpoint:
    """Write the checkpoint of rank 0 to a folder of this rank, and open it."""
    path = folder / saves.save_name(step)
    path.mkdir()
    for name, data in files.items():
        (path / name).write_bytes(data)
    return saves.verify(path)
