"""Format of replays: one HTML page that plays them, and that programs read back.

A page is `page.html` (see `page.py`) with one line per block in it, a script element that browsers
do not run: its number, the CRC-32 of its bytes, and these in base64. Block "header" is JSON, the
others are the chunks 0, 1, ...; all are deflated with zlib. No text of a world is outside blocks.

The header has the version of the format; title, facts, spaces, view, moments and the names of
entities; for each episode its steps, their numbers if there are gaps, the columns that it has, and
[CRC-32, packed bytes, unpacked bytes] of each chunk; the rung of the ladder with the columns that
are rounded: [column, bits, low, high], and the largest error of each by name; under "unseen", for
"agent" and "beside", [type, null or columns] of what the agent of a smaller world does not see.
Where names would be keys there are lists of pairs.

A chunk has 64 steps of one episode, and nothing of it depends on another chunk. It is a sequence of
columns, each the number of its bytes (uint32) and the bytes, in the order of `replay_chunks.py`:
rewards and values; for each type the number of rows by frame, their identities, features, kinds and
visibility; for each action actors, actees, choices, masks and probabilities, of numbers their
bounds, and mean, deviation and 90% range in place of probabilities, of dependent actions who takes
them; attention, influence and pictures of some frames. All numbers are little-endian. A column is
packed in three steps:

1. Rounded columns become codes: low + code * (high - low) / (2**bits - 4); the last three codes
   are nan, inf and -inf.
2. The bits of each number as an unsigned integer, less those of the previous row of the same entity
   in the chunk (same side; without identities, the same place of the type), modulo 2**width, in
   zigzag order: 0, -1, 1, -2, ... An actor's choices continue its last row of that many; lists of
   positions and identities the same place of an earlier list; numbers of a frame those of its side.
3. The first bytes of all numbers, then the second bytes, ...; of booleans 8 a byte, highest first.

A replay that is larger than it may be takes the first of these rungs that fits: everything whole
(float32 to the bit); attention at the moments alone, the 4 strongest weights of each row; features,
probabilities and influence in 16 bits of their range; probabilities in 8; fewer episodes.
"""

import json
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from enn_trainer.base.errors import ReplayError
from enn_trainer.viewer.page import Block, fill_page, is_page, page_blocks
from enn_trainer.viewer.replay import Episode, Moment, Replay
from enn_trainer.viewer.replay_chunks import (
    STRONGEST,
    Columns,
    Json,
    Rounding,
    decoded_chunk,
    encoded_chunk,
)
from enn_trainer.viewer.replay_columns import attention_columns, encode_episode, episode_of
from entity_env.errors import short_repr
from entity_env.kinds import Kind
from entity_env.observation import Entity, ObsSpace
from entity_env.serialization.bounds import Allowance
from entity_env.serialization.messages import rebuilt
from entity_env.serialization.plain_open import read_plain, replace_file
from entity_env.spaces import ACTION_SPACES, ActionName, ActionSpace

VERSION = 1
VERSION_WITH_NUMBERS = 2
"""Format of replays with numbers or dependent actions; earlier releases read the others."""
CHUNK_STEPS = 64
_BOUNDS = "low", "high"
_MAX_HEADER, _MAX_CHUNK, _MAX_SIDES = 1 << 28, 1 << 30, 1 << 16


class _Rung(NamedTuple):
    """A rung of the ladder: attention that is kept, and bits of features and probabilities."""

    attention: str
    feature_bits: int
    prob_bits: int


_LADDER = (
    _Rung("whole", 32, 32),
    _Rung("strongest", 32, 32),
    _Rung("strongest", 16, 16),
    _Rung("strongest", 16, 8),
)


class WrittenReplay(NamedTuple):
    """A replay on the disk.

    Attributes:
        path: of the page.
        num_bytes: its size.
        num_episodes: those in it.
        notes: a sentence for each loss that kept it small; none if everything is whole.
        errors: the largest error of each rounded column, by its name.
    """

    path: Path
    num_bytes: int
    num_episodes: int
    notes: list[str]
    errors: dict[str, float]


def write_replay(replay: Replay, path: str | Path, max_mb: float = 20.0) -> WrittenReplay:
    """Write a replay as a page, completely or not at all. The same replay gives the same bytes.

    Args:
        replay: to write.
        path: of the page, in a folder that exists.
        max_mb: the most megabytes (10**6 bytes) of the page.

    Raises:
        ReplayError: there is a file that is no replay; one episode alone is larger than `max_mb`;
            the replay contradicts itself; or the file cannot be written.
    """
    path = Path(path)
    check_replaceable(path)
    page, header = page_of(replay, max_mb)
    with _system_errors(path, "written"):
        replace_file(path, page, path.with_name(f".{path.name}-{os.getpid()}"))
    count, errors = len(header["episodes"]), dict(header["errors"])
    return WrittenReplay(path, len(page), count, header["notes"], errors)


def check_replaceable(path: Path) -> None:
    """Raise if there is a file that is no replay.

    Raises:
        ReplayError: there is one, or it cannot be read.
    """
    with _system_errors(path, "written"):
        if os.path.lexists(path):
            with read_plain(path) as file:
                if not is_page(file.read(256)):
                    raise ReplayError(f"{path}: exists and is no replay; choose another name")


def read_replay(path: str | Path) -> Replay:
    """Read a replay back from its page. Nothing of the page is executed.

    Rewards, choices and values are as they were; features and probabilities too, where no rung of
    the ladder has rounded them. `VecObs.done` and `truncated` are True in the last step alone.

    Raises:
        ReplayError: this is no replay, or it is damaged; names the chunks.
    """
    with _system_errors(path, "read"), read_plain(Path(path)) as file:
        page = file.read()
    try:
        return _replay_of(page_blocks(page))
    except ReplayError as error:
        raise ReplayError(f"{path}: {error}") from None
    except Exception as error:  # whatever damaged or hostile bytes lead to
        raise ReplayError(f"{path}: damaged: {short_repr(error)}") from None


@contextmanager
def _system_errors(path: str | Path, doing: str) -> Iterator[None]:
    """Raise the errors of the operating system as those of the replay at a path."""
    try:
        yield
    except OSError as error:
        raise ReplayError(f"{path}: cannot be {doing}: {error.strerror or error}") from None


def page_of(replay: Replay, max_mb: float) -> tuple[bytes, Json]:
    """Return the page of the first rung that fits, and its header.

    Arguments and errors are those of `write_replay`.
    """
    if not replay.episodes:
        raise ReplayError("episodes: expected at least one, got none")
    for header, chunks in _rungs(replay):
        try:
            data = json.dumps(header, allow_nan=False, separators=(",", ":")).encode()
        except (TypeError, ValueError) as error:
            raise ReplayError(f"replay: expected plain and finite data, {error}") from None
        page = fill_page(Block.of(data), [chunk for episode in chunks for chunk in episode])
        if len(page) <= max_mb * 1e6:
            return page, header
    got = f"one episode takes {len(page) / 1e6:.2f} MB with all that can be rounded"
    fix = "or play fewer steps" + (", or no pictures" if replay.episodes[0].pictures else "")
    raise ReplayError(f"max_mb: expected more than {max_mb:g}, {got}; {fix}")


def _rungs(replay: Replay) -> Iterator[tuple[Json, list[list[Block]]]]:
    """Yield the header and, for each episode, its chunks: whole, rounded, of fewer episodes."""
    encoded = [encode_episode(replay, episode) for episode in replay.episodes]
    rungs = _LADDER if any(e.attention for e in replay.episodes) else (_LADDER[0], *_LADDER[2:])
    for rung in rungs:
        header, chunks = _packed(replay, encoded, rung)
        yield header, chunks
    for count in reversed(range(1, len(chunks))):
        header["episodes"].pop()
        header["moments"] = [m for m in header["moments"] if m[1] < count]
        fewer = f"The first {count} of {len(encoded)} episodes are kept."
        yield {**header, "notes": [*header["notes"], fewer]}, chunks[:count]


def _packed(
    replay: Replay, encoded: list[tuple[Json, Columns]], rung: _Rung
) -> tuple[Json, list[list[Block]]]:
    """Return the header and, for each episode, its chunks."""
    rounding, errors = _rounding(replay, [columns for _, columns in encoded], rung)
    header = _header(replay, rung, rounding, errors)
    chunks: list[list[Block]] = []
    for e, (entry, kept) in enumerate(encoded):
        schema = {**entry, "chunks": []}
        if rung.attention != "whole":
            episode, at = replay.episodes[e], replay.moment_frames(e)
            few = {f: weights for f, weights in episode.attention.items() if f in at}
            kept = {**kept, **attention_columns(few, len(episode.obs), strongest=True)}
            schema["attention"] = bool(few)
        header["episodes"].append(schema)
        cursors: dict[str, int] = {}
        chunks.append([])
        for first in range(0, schema["steps"], CHUNK_STEPS):
            steps = min(CHUNK_STEPS, schema["steps"] - first)
            raw = encoded_chunk(header, schema, steps, kept, cursors)
            chunks[-1].append(Block.of(raw))
            schema["chunks"].append([chunks[-1][-1].crc, len(chunks[-1][-1].packed), len(raw)])
        if left := [name for name in cursors if cursors[name] != len(kept[name])]:
            raise ReplayError(f"episodes[{e}]: more rows than expected in {', '.join(left)}")
    return header, chunks


def live_header(replay: Replay) -> Json:
    """Return the header of a replay whose episodes are still to come; nothing is rounded."""
    return _header(replay, _LADDER[0], {}, {})


def _header(
    replay: Replay, rung: _Rung, rounding: Mapping[str, Rounding], errors: dict[str, float]
) -> Json:
    notes = []
    if rung.attention != "whole" and any(e.attention for e in replay.episodes):
        notes.append(f"Attention is kept at the moments, the {STRONGEST} strongest of each row.")
    if rung.feature_bits != 32:
        notes.append(
            f"Features are rounded to {rung.feature_bits} bits of their range, probabilities and "
            f"influence to {rung.prob_bits}."
        )
    actions = replay.action_space.items()
    is_newer = any(space.components or space.after is not None for _, space in actions)
    return {
        "version": VERSION_WITH_NUMBERS if is_newer else VERSION,
        "title": replay.title,
        "about": [[str(name), str(fact)] for name, fact in replay.facts().items()],
        "sides": replay.sides,
        "discount": float(replay.discount),
        "view": replay.view,
        "types": [[name, *_features(e)] for name, e in replay.obs_space.entities.items()],
        "global": _features(replay.obs_space.global_entity),
        "actions": [[name, type(space).__name__, _plain(space)] for name, space in actions],
        "moments": [list(moment) for moment in replay.moments],
        "attention": rung.attention,
        "rounding": [[name, *how] for name, how in rounding.items()],
        "errors": [[name, error] for name, error in errors.items()],
        "notes": notes,
        **({"unseen": replay.unseen} if replay.unseen else {}),
        "episodes": [],
    }


def _plain(space: ActionSpace) -> Json:
    """Return the fields of a space that say anything; bounds as text, as JSON has no infinity."""
    return {n: [*map(str, value)] if n in _BOUNDS else value for n, value in space.plain().items()}


def _fields(plain: Json) -> Json:
    """Return the fields of a space; the inverse of `_plain`."""
    return {n: [*map(float, value)] if n in _BOUNDS else value for n, value in plain.items()}


def _features(entity: Entity) -> list[Any]:
    return [list(entity.features), [[kind.name, list(kind.labels)] for kind in entity.kinds]]


def _rounding(
    replay: Replay, tables: list[Columns], rung: _Rung
) -> tuple[dict[str, Rounding], dict[str, float]]:
    """Return the rounding of the columns that are rounded, and their largest errors by name."""
    types = [*replay.obs_space.entities.items(), ("global", replay.obs_space.global_entity)]
    bits = {
        f"feature {i} {j}": (rung.feature_bits, f"{name}.{feature}")
        for i, (name, entity) in enumerate(types)
        for j, feature in enumerate(entity.features)
    }
    for a, (action, space) in enumerate(replay.action_space.items()):
        if not space.components:
            bits[f"probs {a}"] = rung.prob_bits, f"probabilities of {action}"
            bits[f"beside {a}"] = rung.prob_bits, f"probabilities of {action}, beside"
        bits[f"influence {a}"] = rung.prob_bits, f"influence on {action}"
    rounding, errors = {}, {}
    for column, (width, name) in bits.items():
        given = [table[column] for table in tables if column in table]
        if width == 32 or not given:
            continue
        values = np.concatenate(given)
        finite = values[np.isfinite(values)].astype(np.float64)
        low, high = (float(finite.min()), float(finite.max())) if len(finite) else (0.0, 0.0)
        rounding[column] = Rounding(width, low, high)
        back = rounding[column].decode(rounding[column].encode(finite))
        errors[name] = float(np.abs(back - finite).max(initial=0.0))
    return rounding, errors


def _header_of(block: Block | None) -> Json:
    if block is None:
        raise ReplayError("expected a replay, got a file without one, or its first part is damaged")
    raw = block.unpacked(_MAX_HEADER)
    header = None if raw is None else json.loads(raw)
    if not isinstance(header, dict):
        raise ReplayError("the header is damaged")
    if header.get("version") not in (VERSION, VERSION_WITH_NUMBERS):
        got = f"{short_repr(header.get('version'))}; a newer release may read it"
        raise ReplayError(f"expected a replay of format {VERSION_WITH_NUMBERS}, got {got}")
    if not 0 < header["sides"] <= _MAX_SIDES:
        raise ReplayError(f"sides: expected 1 to {_MAX_SIDES}, got {header['sides']}")
    return header


def _replay_of(blocks: Mapping[str, Block]) -> Replay:
    """Return the replay of the blocks of a page."""
    header = _header_of(blocks.get("header"))
    types = {name: Entity(numbers, _kinds(kinds)) for name, numbers, kinds in header["types"]}
    obs_space = ObsSpace(header["global"][0], types, _kinds(header["global"][1]))
    action_space: dict[ActionName, ActionSpace] = {
        name: rebuilt(ACTION_SPACES[class_name], _fields(fields), Allowance(0))
        for name, class_name, fields in header["actions"]
    }

    # Episodes, of chunks that are not damaged.
    episodes: list[Episode] = []
    damaged: list[str] = []
    number = 0
    for schema in header["episodes"]:
        chunks = []
        for i, entry in enumerate(schema["chunks"]):
            (crc, size, raw_size), block = entry, blocks.get(str(number))
            raw = None
            if block is not None and (block.crc, len(block.packed)) == (crc, size):
                raw = block.unpacked(min(raw_size, _MAX_CHUNK))
            if raw is None or len(raw) != raw_size:
                damaged.append(f"chunk {number}")
            elif not damaged:
                steps = min(CHUNK_STEPS, schema["steps"] - i * CHUNK_STEPS)
                chunks.append(decoded_chunk(header, schema, steps, raw))
            number += 1
        if not damaged:
            columns = {name: np.concatenate([c[name] for c in chunks]) for name in chunks[0]}
            episodes.append(episode_of(header, schema, columns, obs_space, action_space))
    if damaged:
        raise ReplayError(f"damaged: {', '.join(damaged)}; a browser plays the rest")
    return Replay(
        title=header["title"],
        about=dict(header["about"]),
        obs_space=obs_space,
        action_space=action_space,
        sides=header["sides"],
        discount=header["discount"],
        episodes=episodes,
        moments=[Moment._make(moment) for moment in header["moments"]],
        view=header["view"],
        unseen={
            name: [(int(i), columns) for i, columns in types]
            for name, types in header.get("unseen", {}).items()
        },
    )


def _kinds(kinds: list[Any]) -> list[Kind]:
    return [Kind(name, labels) for name, labels in kinds]
