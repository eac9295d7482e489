"""Conversion between `State` and the files of a checkpoint."""

from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import fields
from types import SimpleNamespace
from typing import Any, NamedTuple, TypeAlias, TypeVar

import torch
from safetensors.torch import save as save_tensors
from torch import Tensor

from enn_trainer.algorithms.ppo.ppo import SCALING, TUNINGS
from enn_trainer.base.errors import CheckpointError, ConfigError
from enn_trainer.base.policy import PPOAgent
from enn_trainer.base.state_part import (
    FILES,
    SavedNetwork,
    StateDict,
    StatePart,
    UnusedPart,
    check_plain,
    without_prefix,
)
from enn_trainer.checkpoints.format import WEIGHTS, Checkpoint
from enn_trainer.checkpoints.manifest import (
    SECONDS_FIELD,
    FieldCheck,
    field_problems,
    is_count,
    is_file_name,
)
from enn_trainer.checkpoints.migrate.config_diff import changes, fixed_changes
from enn_trainer.checkpoints.state import (
    STATE_PARTS,
    InitialState,
    State,
    init_train_state,
    with_common_parts,
)
from enn_trainer.checkpoints.weights import fitting_network, load_weights, tensors_of
from enn_trainer.config import TrainConfig, ron
from enn_trainer.config.build import as_data
from enn_trainer.config.load import dump_config, load_config
from enn_trainer.config.schedules import follow_schedules
from enn_trainer.curriculum.lessons import CURRICULUM, Lessons
from enn_trainer.curriculum.rounds import ROUNDS, RunRounds
from enn_trainer.experience.memories import memory_specs
from enn_trainer.selfplay.league import LEAGUE, League, Member, member_from_plain
from entity_env.observation import OMIT_EMPTY
from entity_env.serialization.bounds import Allowance
from entity_env.serialization.messages import pack, rebuilt, unpack
from entity_env.spaces import ACTION_SPACES, ActionSpace, Entity, Kind, ObsSpace, Spaces
from rogue_net.rogue_net import RogueNet

STATE_VERSION = 1


def read_config(saved: Checkpoint) -> TrainConfig:
    """Return the configuration of a checkpoint.

    Raises:
        CheckpointError: the file cannot be read or has invalid settings.
    """
    text = saved.text("config.ron")
    try:
        return load_config(TrainConfig, None, text=text)
    except ConfigError as error:
        raise CheckpointError(f"{saved.path}: config.ron cannot be read: {error}") from None


def read_state(saved: Checkpoint) -> dict[str, Any]:
    """Return the fields of `State` in `state.ron`, by name.

    Raises:
        CheckpointError: a field is missing, unknown or invalid; the message names it.
    """
    text = saved.text("state.ron")
    try:
        plain = ron.loads(text)
        if not isinstance(plain, dict):
            raise ValueError(f"expected State(...), got {type(plain).__name__}")
        version = plain.pop("version", None)
        if not is_count(version):
            raise ValueError(f"version: expected a number from 1 to {STATE_VERSION}")
        if version > STATE_VERSION:
            raise ValueError(
                f"written by a newer version, {version}, this one reads up to {STATE_VERSION}; "
                "upgrade enn-trainer"
            )
        problems = [f"{name}: no such field" for name in plain if name not in _FIELDS]
        problems += field_problems(plain, _FIELDS, [n for n in _FIELDS if n not in _OPTIONAL])
        if problems:
            raise ValueError("; ".join(problems[:10]))
        if plain["step"] != saved.step:
            raise ValueError(f"step: expected {saved.step} as in the manifest")
        plain |= read_spaces(plain)._asdict()
    except ValueError as error:
        raise CheckpointError(f"{saved.path}: state.ron cannot be read: {error}") from None
    return plain


def dump_spaces(spaces: Spaces) -> dict[str, Any]:
    """Return the spaces of an agent as data for `ron.dumps`, under the field names of `State`."""
    actions = {
        name: ron.Struct("ActionSpace", {"kind": type(space).__name__, **space.plain()})
        for name, space in spaces.action_space.items()
    }
    return {"obs_space": as_data(spaces.obs_space), "action_space": actions}


def saved_network(network: RogueNet, spaces: Spaces) -> SavedNetwork:
    """Return the serialised policy of a network, with its configuration and spaces."""
    weights = {k: v.detach().cpu().contiguous() for k, v in network.state_dict().items()}
    policy = {name: w for name, w in weights.items() if not name.startswith("regression_heads.")}
    config = TrainConfig(net=network.config, name="opponent")
    text = ron.dumps(ron.Struct("Spaces", dump_spaces(spaces)))
    return SavedNetwork(dump_config(config), text, save_tensors(policy))


def read_spaces(plain: Mapping[str, Any]) -> Spaces:
    """Return the spaces from the data of `dump_spaces`.

    Raises:
        ValueError: the data is invalid.
    """
    return Spaces(_obs_space_of(plain["obs_space"]), _action_space_of(plain["action_space"]))


def _obs_space_of(plain: Mapping[str, Any]) -> ObsSpace:
    """Return the observation space from plain data.

    Raises:
        ValueError: the data is invalid.
    """
    fields = _fields("obs_space", plain, {"global_features", "entities"}, {"global_kinds"})
    if not _has_text_keys(fields["entities"]):
        raise ValueError("obs_space.entities: expected a mapping of names in quotes")
    entities = {}
    for name, entity in fields["entities"].items():
        at = f"obs_space.entities[{name!r}]"
        content = _fields(at, entity, {"features"}, {"kinds"})
        features = _texts(f"{at}.features", content["features"])
        entities[name] = Entity(features, _kinds(f"{at}.kinds", content.get("kinds", [])))
    shared = _texts("obs_space.global_features", fields["global_features"])
    kinds = _kinds("obs_space.global_kinds", fields.get("global_kinds", []))
    return ObsSpace(shared, entities, kinds)


def _kinds(path: str, value: Any) -> list[Kind]:
    if not isinstance(value, list):
        raise ValueError(f"{path}: expected a list of kinds")
    kinds = []
    for i, content in enumerate(value):
        kind = _fields(f"{path}[{i}]", content, {"name", "labels"})
        [name] = _texts(f"{path}[{i}].name", [kind["name"]])
        kinds.append(Kind(name, _texts(f"{path}[{i}].labels", kind["labels"])))
    return kinds


def _action_space_of(plain: Mapping[str, Any]) -> dict[str, ActionSpace]:
    """Return the action spaces from plain data, in which `kind` names the class of each.

    Raises:
        ValueError: the data is invalid.
    """
    actions: dict[str, ActionSpace] = {}
    for name, space in plain.items():
        at = f"action_space[{name!r}]"
        kind = space.get("kind") if isinstance(space, dict) else None
        cls = ACTION_SPACES.get(kind) if isinstance(kind, str) else None
        if cls is None:
            raise ValueError(f"{at}: expected one of the kinds {', '.join(ACTION_SPACES)}")
        optional = {field.name for field in fields(cls) if OMIT_EMPTY in field.metadata}
        required = {"kind", *(field.name for field in fields(cls))} - optional
        values = _fields(at, space, required, optional)
        del values["kind"]
        if "index_to_label" in values:
            _texts(f"{at}.index_to_label", values["index_to_label"])
            if not values["index_to_label"]:
                raise ValueError(f"{at}.index_to_label: expected choices, got none")
        actions[name] = rebuilt(cls, values, Allowance(0))
    return actions


def _is_folder(value: object) -> bool:
    """Return True for "" or a plain folder name, without a path."""
    return (
        isinstance(value, str)
        and len(value) < 256
        and value.isprintable()
        and not {*value} & {"/", "\\"}
        and value not in (".", "..")
    )


def _has_text_keys(value: object) -> bool:
    return isinstance(value, dict) and all(isinstance(key, str) for key in value)


_FIELDS: Mapping[str, FieldCheck] = {
    "step": (is_count, "a number of at least 0"),
    "restart": (is_count, "a number of at least 0"),
    "next_eval_step": (lambda v: v is None or is_count(v), "a number of at least 0, or None"),
    "time_used": SECONDS_FIELD,
    "run_name": (_is_folder, "the name of a folder"),
    "memory": (
        lambda v: _has_text_keys(v) and is_count(v.get("asked", 0)),
        "the state of stop conditions, by name",
    ),
    "tracker_ids": (
        lambda v: _has_text_keys(v) and all(isinstance(one, str) for one in v.values()),
        "texts by name",
    ),
    "obs_space": (lambda v: isinstance(v, dict), "ObsSpace(...)"),
    "action_space": (_has_text_keys, "actions by names in quotes"),
}
_OPTIONAL = {"time_used", "run_name", "memory", "tracker_ids"}
"""Fields that older checkpoints of this version lack; `State` has defaults for them."""


def _fields(
    path: str, value: Any, names: set[str], optional: Collection[str] = ()
) -> dict[str, Any]:
    if not isinstance(value, dict) or value.keys() - optional != names:
        raise ValueError(f"{path}: expected the fields {', '.join(sorted(names))}, no others")
    return value


def _texts(path: str, value: Any) -> list[str]:
    if not isinstance(value, list) or not all(isinstance(text, str) for text in value):
        raise ValueError(f"{path}: expected a list of names")
    return value


# The lowest version that can represent a state is written, for earlier programs: 4 with memory, 3
# with files of parts, 2 with parts or plug-ins, 1 otherwise.
REST_VERSION = 4
OPTIMIZER = "state.optimizer.safetensors"
"""Tensors of the algorithm that belong to a parameter of the agent."""
LOSS_STATE = "state.loss.safetensors"
"""Other tensors of the algorithm; written only if there are any."""
PARTS = "state.parts.safetensors"
"""Tensors of other parts of the state, as PART/name; written only if there are any."""
REST = "state.rest.msgpack"
"""Binary state without tensors: metrics, states of environments, plain data of parts."""

PPO_PREFIXES = {TUNINGS, SCALING}
"""Prefixes of names in `LOSS_STATE` that belong to PPO; other prefixes belong to plug-ins."""


class SharedFile(NamedTuple):
    """Content of an immutable file, which checkpoints share by hard links.

    Attributes:
        data: the content.
    """

    data: bytes


Part = TypeVar("Part", bound=StatePart)
FileContent: TypeAlias = bytes | SharedFile | dict[str, Tensor]
"""Content of a file: bytes, or tensors by name."""


def to_files(config: TrainConfig, state: State) -> dict[str, bytes]:
    """Return the files of a checkpoint, by name."""
    return as_bytes(copied(config, state))


def copied(config: TrainConfig, state: State) -> dict[str, FileContent]:
    """Return the contents of the files by name, as copies that training does not modify."""
    # Tensors of parts by file. The file of the optimizer always exists.
    parameters = {name for name, _ in state.agent.named_parameters()}
    tensors: dict[str, dict[str, Tensor]] = {OPTIMIZER: {}}
    plain: dict[str, dict[str, Any]] = {}
    shared: dict[str, Mapping[str, bytes]] = {}
    for part, content in state.parts.items():
        if files := content.files():
            shared[part] = files
            _check_files(part, files, [name for one in shared.values() for name in one])
        for name, value in content.state_dict().items():
            if not isinstance(value, Tensor):
                plain.setdefault(part, {})[name] = value
            elif part != "algorithm":
                tensors.setdefault(PARTS, {})[f"{part}/{name}"] = value
            elif name.rpartition("/")[0] in parameters:
                tensors[OPTIMIZER][name] = value
            else:
                tensors.setdefault(LOSS_STATE, {})[name] = value
    # Tensors and plain data that need version 2 of the file `REST`.
    plugins = {name.partition("/")[0] for name in tensors.get(LOSS_STATE, {})} - PPO_PREFIXES
    has_more = bool(plain or plugins) or PARTS in tensors
    names = {part: [*files] for part, files in shared.items()}
    return {
        **{name: SharedFile(data) for group in shared.values() for name, data in group.items()},
        "config.ron": dump_config(config).encode(),
        "state.ron": _dump_state(state).encode(),
        WEIGHTS: _copies(state.agent.state_dict()),
        REST: _dump_rest(state, plain if has_more or names else None, names),
        **{file: _copies(named) for file, named in tensors.items()},
    }


def _check_files(part: str, files: Mapping[str, bytes], names: list[str]) -> None:
    """Raise if the files of a part cannot be saved.

    Args:
        part: name of the part.
        files: contents by name.
        names: names of the files of all parts so far.
    """
    for name, data in files.items():
        is_allowed = is_file_name(name) and not name.startswith(("config.", "state.", "manifest."))
        if not is_allowed or names.count(name) > 1 or type(data) is not bytes:
            raise ValueError(
                f"{part}: files: expected bytes by unique file names such as "
                f"opponent-1.safetensors, got {type(data).__name__} for {name!r}"
            )


def as_bytes(contents: Mapping[str, FileContent]) -> dict[str, bytes]:
    """Serialise the contents of files; thread-safe, as it only reads copies."""
    return {
        name: save_tensors(content)
        if isinstance(content, dict)
        else content.data
        if isinstance(content, SharedFile)
        else content
        for name, content in contents.items()
    }


def restore(
    saved: Checkpoint,
    config: TrainConfig,
    agent: PPOAgent | None = None,
    initial_state: InitialState = init_train_state,
) -> State:
    """Restore the state of a checkpoint.

    Args:
        saved: the checkpoint.
        config: configuration to continue with; its schedules are advanced to the saved step.
        agent: a custom network, which the weights are loaded into; None for a `RogueNet`.
        initial_state: makes the state of a new run, into whose parts the saved state is loaded.

    Raises:
        CheckpointError: a file is damaged, or does not match the configuration.
    """
    plain = read_state(saved)
    before = read_config(saved)

    # Settings of the network and the optimizer cannot change.
    changed = [
        f"{path}: expected {old!r} as in {saved.path}, got {new!r}"
        for path, old, new in fixed_changes(changes(before, config))
        if not (agent is not None and path.startswith(("net", "vf_net")))
    ]
    if changed:
        raise CheckpointError(
            f"{'; '.join(changed)}; a resumed run keeps its network and its optimizer"
        )

    # Schedules first: new parts start with the settings of the saved step.
    follow_schedules(config, SimpleNamespace(**plain))
    try:
        # A new run's state, with the saved weights and fields.
        weights = read_tensors(saved, WEIGHTS)
        spaces = Spaces(plain["obs_space"], plain["action_space"])
        if agent is None:
            agent = fitting_network(str(saved.path), config, spaces, weights)
        context = {**spaces._asdict(), "agent": agent}
        state = with_common_parts(initial_state(config, context))
        load_weights(str(saved.path), state.agent, weights)
        rest, parts = _read_rest(saved)
        for name, value in {**plain, **rest}.items():
            setattr(state, name, value)
        _load_parts(saved, state, parts)
    except ConfigError as error:
        if dump_config(before) != dump_config(config):
            raise  # the cause may be a changed setting
        raise CheckpointError(f"{saved.path}: config.ron does not fit: {error}") from None
    return state


def _load_parts(saved: Checkpoint, state: State, parts: dict[str, dict[str, Any]]) -> None:
    """Load the saved states into the parts of a state.

    Args:
        saved: the checkpoint.
        state: the state, whose parts are modified in place.
        parts: saved plain data and files by part; tensors are added.

    Raises:
        CheckpointError: a file is damaged, or the state has no such part.
        ConfigError: a setting does not match.
    """
    # Read the tensors of all parts.
    files: dict[str, list[str]] = {}
    for file in (OPTIMIZER, LOSS_STATE, PARTS):
        is_there = file == OPTIMIZER or file in saved.manifest["files"]
        for name, tensor in read_tensors(saved, file).items() if is_there else ():
            # Plug-ins and other parts may have infinite values, such as an initial minimum.
            is_of_ppo = file == OPTIMIZER or name.partition("/")[0] in PPO_PREFIXES
            if file != PARTS and is_of_ppo and not tensor.isfinite().all():
                raise CheckpointError(f"{saved.path}: {file}: {name}: expected finite numbers")
            part, _, key = name.partition("/") if file == PARTS else ("algorithm", "", name)
            parts.setdefault(part, {})[key] = tensor
            files.setdefault(part, []).append(file)
    unused = parts.keys() - state.parts.keys()
    state.parts |= {name: UnusedPart() for name in STATE_PARTS if name in unused}
    unknown = sorted(unused.difference(STATE_PARTS))
    if unknown:
        raise CheckpointError(
            f"{saved.path}: has a state of {', '.join(unknown)}, which this run does not have; "
            "pass StateManager, or evolve, the initial_state that makes it"
        )
    for name, content in parts.items():
        where = ", ".join(dict.fromkeys(files.get(name, [REST])))
        with loading(f"{saved.path}: {where}", name):
            state.parts[name].load_state_dict(content)


@contextmanager
def loading(where: str, part: str) -> Iterator[None]:
    """Convert errors of a part that cannot load its state to `CheckpointError`.

    Args:
        where: the checkpoint and the file, for messages.
        part: name of the part.
    """
    try:
        yield
    except ConfigError:
        raise
    except ValueError as error:
        raise CheckpointError(f"{where}: {error}") from None
    except (TypeError, LookupError, AttributeError, OverflowError) as error:
        raise CheckpointError(f"{where}: {part}: {type(error).__name__}: {error}") from error


def _load_part(part: Part, name: str, parts: Mapping[str, dict[str, Any]], where: str) -> Part:
    """Load the saved state into a part, {} if there is none, and return the part.

    Args:
        part: the part.
        name: name of the part.
        parts: plain data and files of all parts.
        where: the checkpoint and the file, for messages.

    Raises:
        CheckpointError: the state is invalid.
    """
    with loading(where, name):
        part.load_state_dict(parts.get(name, {}))
    return part


def _dump_state(state: State) -> str:
    spaces = dump_spaces(state.spaces)
    fields = {name: getattr(state, name) for name in _FIELDS if name not in spaces}
    return ron.dumps(ron.Struct("State", {"version": STATE_VERSION, **fields, **spaces}))


def _dump_rest(
    state: State, parts: dict[str, dict[str, Any]] | None, files: dict[str, list[str]]
) -> bytes:
    metrics = {tag: float(value) for tag, value in state.metrics.items()}
    rest = {"version": 1, "metrics": metrics, "envs": state.envs}
    if parts is not None:
        for part, content in parts.items():
            for name, value in content.items():
                check_plain(f"{part}: {name}", value)
        rest |= {"version": 2, "parts": parts}
    if files:
        rest |= {"version": 3, "files": files}
    if any(memory_specs(state.agent)):
        rest |= {"version": REST_VERSION, "parts": parts or {}, "files": files}
    return pack(rest)


def _read_rest(saved: Checkpoint) -> tuple[dict[str, Any], dict[str, dict[str, Any]]]:
    """Return fields of the state, and plain data and files by part; {} for old checkpoints.

    Raises:
        CheckpointError: a file is damaged, or of a newer version.
    """
    fields, parts, files = _read_plain(saved)
    for part, names in files.items():
        undamaged = [name for name in names if name not in saved.lost]
        parts.setdefault(part, {})[FILES] = {name: saved.read(name) for name in undamaged}
    return fields, parts


def _read_plain(
    saved: Checkpoint,
) -> tuple[dict[str, Any], dict[str, dict[str, Any]], dict[str, list[str]]]:
    """Return fields of the state, plain data by part, and file names by part.

    Raises:
        CheckpointError: the file is damaged, or of a newer version.
    """
    if REST not in saved.manifest["files"]:
        return {}, {}, {}
    try:
        rest = unpack(saved.read(REST))
        if type(rest) is not dict or type(rest["version"]) is not int:
            raise TypeError("version: expected a number")
        if rest["version"] > REST_VERSION:
            raise ValueError(f"it is of a newer version, this one reads up to {REST_VERSION}")
        metrics, envs = rest["metrics"], rest["envs"]
        parts = rest["parts"] if rest["version"] > 1 else {}
        files = rest["files"] if rest["version"] > 2 else {}
        if not all(type(tag) is str and type(v) is float for tag, v in metrics.items()):
            raise TypeError("metrics: expected numbers by tag")
        if not isinstance(envs, bytes | None):
            raise TypeError(f"envs: expected bytes, got {type(envs).__name__}")
        for part, content in parts.items():
            if type(part) is not str or any(type(name) is not str for name in {**content}):
                raise TypeError("parts: expected plain data by name")
            for name, value in content.items():
                check_plain(f"{part}: {name}", value)
        for part, names in files.items():
            if type(part) is not str or type(names) is not list or not {*map(type, names)} <= {str}:
                raise TypeError("files: expected names by part")
    except (KeyError, TypeError, AttributeError, ValueError, RecursionError) as error:
        raise CheckpointError(f"{saved.path}: {REST} cannot be read: {error}") from None
    return {"metrics": metrics, "envs": envs}, parts, files


def _copies(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return contiguous copies on the CPU."""
    return {
        name: t.detach().to("cpu", copy=True, memory_format=torch.contiguous_format)
        for name, t in tensors.items()
    }


def read_tensors(saved: Checkpoint, name: str) -> dict[str, Tensor]:
    """Return the tensors of a file of a checkpoint.

    Raises:
        CheckpointError: the file is damaged.
    """
    return tensors_of(f"{saved.path}: {name}", saved.read(name))


def read_reward_scaling(saved: Checkpoint) -> StateDict:
    """Return the saved state of `RewardScaling`; {} if the run scales no rewards.

    Raises:
        CheckpointError: the file is damaged.
    """
    has_file = LOSS_STATE in saved.manifest["files"]
    return without_prefix(SCALING, read_tensors(saved, LOSS_STATE)) if has_file else {}


def read_league(saved: Checkpoint) -> League:
    """Return the league of a checkpoint; an empty one if it has none.

    Raises:
        CheckpointError: a file is damaged.
    """
    where = f"{saved.path}: {REST}: {LEAGUE}"
    return _load_part(League(), LEAGUE, _read_rest(saved)[1], where)


def read_lessons(saved: Checkpoint) -> Lessons:
    """Return the curriculum progress and the changed arguments of a checkpoint.

    Raises:
        CheckpointError: the file is damaged.
    """
    return _load_part(Lessons(), CURRICULUM, _read_plain(saved)[1], f"{saved.path}: {REST}")


class PlainParts(NamedTuple):
    """Plain data of a saved state that may name code.

    Attributes:
        members: members of the league, without weights.
        parameters: samplers that `set_parameters` changed, by argument.
        episodes: unfinished episodes, see `running_episodes`; {} if there are none.
    """

    members: list[Member]
    parameters: dict[str, str]
    episodes: dict[str, Any]


def read_plain_parts(saved: Checkpoint) -> PlainParts:
    """Read the plain data of a state that may name code, and no other file.

    Raises:
        CheckpointError: the file is damaged.
    """
    fields, parts, _ = _read_plain(saved)
    where, plain = f"{saved.path}: {REST}", parts.get(LEAGUE, {}).get("members", [])
    with loading(f"{where}: {LEAGUE}", LEAGUE):
        members = [member_from_plain(f"members[{i}]", one) for i, one in enumerate(plain)]
    lessons = _load_part(Lessons(), CURRICULUM, parts, where)
    packed = fields.get("envs")
    with loading(f"{where}: the saved episodes cannot be read", "envs"):
        episodes = dict(unpack(packed)) if packed else {}
    return PlainParts(members, lessons.parameters, episodes)


def read_rounds(saved: Checkpoint) -> RunRounds:
    """Return the rounds of episodes of a checkpoint.

    Raises:
        CheckpointError: the file is damaged.
    """
    return _load_part(RunRounds(), ROUNDS, _read_plain(saved)[1], f"{saved.path}: {REST}")


def read_members(saved: Checkpoint) -> list[Member]:
    """Return the league members of a checkpoint; [] if it has no league.

    Raises:
        CheckpointError: a file is damaged.
    """
    return read_league(saved).members
