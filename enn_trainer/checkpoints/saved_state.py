"""Settings, spaces and plain data of a checkpoint, read and written without PyTorch."""

from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import fields
from typing import Any, NamedTuple, TypeVar

from safetensors import SafetensorError, deserialize

from enn_trainer.base.errors import CheckpointError, ConfigError
from enn_trainer.base.state_part import FILES, StatePart, check_plain
from enn_trainer.checkpoints.format import Checkpoint
from enn_trainer.checkpoints.manifest import SECONDS_FIELD, FieldCheck, field_problems, is_count
from enn_trainer.config import TrainConfig, ron
from enn_trainer.config.build import as_data
from enn_trainer.config.load import load_config
from enn_trainer.curriculum.lessons import CURRICULUM, Lessons
from enn_trainer.curriculum.rounds import ROUNDS, RunRounds
from enn_trainer.selfplay.league import LEAGUE, League, Member, member_from_plain
from entity_env.observation import OMIT_EMPTY
from entity_env.serialization.bounds import Allowance
from entity_env.serialization.messages import rebuilt, unpack
from entity_env.spaces import ACTION_SPACES, ActionSpace, Entity, Kind, ObsSpace, Spaces

STATE_VERSION = 1
MAX_HEADER_BYTES = 1 << 22
"""Size limit of the header of a safetensors file, about 100 bytes per tensor."""


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
        problems = [f"{name}: no such field" for name in plain if name not in STATE_FIELDS]
        problems += field_problems(
            plain, STATE_FIELDS, [n for n in STATE_FIELDS if n not in _OPTIONAL]
        )
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


STATE_FIELDS: Mapping[str, FieldCheck] = {
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

REST = "state.rest.msgpack"
"""Binary state without tensors: metrics, states of environments, plain data of parts."""

Part = TypeVar("Part", bound=StatePart)


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


def read_rest(saved: Checkpoint) -> tuple[dict[str, Any], dict[str, dict[str, Any]]]:
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


def read_league(saved: Checkpoint) -> League:
    """Return the league of a checkpoint; an empty one if it has none.

    Raises:
        CheckpointError: a file is damaged.
    """
    where = f"{saved.path}: {REST}: {LEAGUE}"
    return _load_part(League(), LEAGUE, read_rest(saved)[1], where)


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


def check_tensor_header(data: bytes) -> None:
    """Raise if the header of a safetensors file exceeds `MAX_HEADER_BYTES`.

    Even an empty tensor takes about 100 bytes of the header.

    Args:
        data: the first eight bytes of the file, or more.

    Raises:
        SafetensorError: the header is too large.
    """
    size = int.from_bytes(data[:8], "little")
    if size > MAX_HEADER_BYTES:
        raise SafetensorError(f"expected a header of at most {MAX_HEADER_BYTES} bytes, got {size}")


def read_shapes(saved: Checkpoint, name: str) -> dict[str, tuple[int, ...]]:
    """Return the shapes of the tensors of a file of a checkpoint.

    Raises:
        CheckpointError: the file is damaged.
    """
    data = saved.read(name)
    try:
        check_tensor_header(data)
        read = deserialize(data)  # type: ignore[no-untyped-call] # has no annotations
        return {tensor: tuple(content["shape"]) for tensor, content in read}
    except (SafetensorError, KeyError, ValueError, TypeError) as error:
        raise CheckpointError(f"{saved.path}: {name} cannot be read: {error}") from None
