"""File format of replays: an HTML page that plays them, and that programs can read.

A page is `page.html` (see `page.py`) with one line per data block, a script element that browsers
do not execute: block name, CRC-32, and the bytes in base64. Block "header" is JSON, the others are
the chunks 0, 1, ...; all are compressed with zlib. No text of an environment is outside blocks.

The header has the format version; title, facts, spaces, view, highlights ("moments") and names of
entities; per episode its number of steps, their indices if there are gaps, its columns, and
[CRC-32, packed bytes, unpacked bytes] of each chunk; the compression level with the rounded
columns: [column, bits, low, high], and the largest error of each by name; under "unseen", for
"agent" and "beside", [type, null or columns] hidden from the agent of a smaller environment. Lists
of pairs replace dictionaries with names as keys.

A chunk has 64 steps of one episode and is independent of other chunks. It is a sequence of columns,
each with its number of bytes (uint32) and its bytes, in the order of `replay_chunks.py`: rewards
and values; for each type the number of rows per frame, identities, features, kinds and visibility;
for each action actors, actees, choices, masks and probabilities; for continuous actions their
bounds, and mean, deviation and 90% interval in place of probabilities; for dependent actions the
active actors; attention, influence and pictures of some frames. All numbers are little-endian. A
column is packed in three steps:

1. Rounded columns become codes: low + code * (high - low) / (2**bits - 4); the last three codes
   are nan, inf and -inf.
2. The bits of each number as an unsigned integer, minus those of the previous row of the same
   entity in the chunk (same side; without identities, the same index of the type), modulo
   2**width, in zigzag order: 0, -1, 1, -2, ... The previous row of an actor's choices is its last
   row of equal length; of lists of positions and identities, the same index of the previous list;
   of values per frame, that of the same side.
3. The first bytes of all numbers, then the second bytes, ...; booleans are packed 8 per byte,
   highest bit first.

If a replay exceeds its maximal size, the first of these levels that fits is used: everything
unchanged (float32 to the bit); attention only at highlights, with the 4 strongest weights of each
row; features, probabilities and influence in 16 bits of their range; probabilities in 8 bits; fewer
episodes.
"""

import json
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from enn_trainer.base.errors import ReplayError
from enn_trainer.viewer.page import PageBlock, fill_page, is_page, page_blocks
from enn_trainer.viewer.replay import Highlight, Replay, ReplayEpisode
from enn_trainer.viewer.replay_chunks import (
    STRONGEST,
    Columns,
    Json,
    Rounding,
    decode_chunk,
    encode_chunk,
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
"""Version of replays with continuous or dependent actions; earlier releases read the others."""
CHUNK_STEPS = 64
_BOUNDS = "low", "high"
_MAX_HEADER, _MAX_CHUNK, _MAX_SIDES = 1 << 28, 1 << 30, 1 << 16


class _Level(NamedTuple):
    """Compression level: stored attention, and bits of features and probabilities."""

    attention: str
    feature_bits: int
    prob_bits: int


_LEVELS = (
    _Level("whole", 32, 32),
    _Level("strongest", 32, 32),
    _Level("strongest", 16, 16),
    _Level("strongest", 16, 8),
)


class WrittenReplay(NamedTuple):
    """Replay on disk.

    Attributes:
        path: file of the page.
        num_bytes: size of the file.
        num_episodes: number of stored episodes.
        notes: one sentence per lossy reduction; empty if nothing was reduced.
        errors: largest error of each rounded column, by name.
    """

    path: Path
    num_bytes: int
    num_episodes: int
    notes: list[str]
    errors: dict[str, float]


def write_replay(replay: Replay, path: str | Path, max_mb: float = 20.0) -> WrittenReplay:
    """Write a replay as a page, atomically. Equal replays give equal bytes.

    Args:
        replay: replay to write.
        path: file of the page, in an existing folder.
        max_mb: maximal size of the page in megabytes (10**6 bytes).

    Raises:
        ReplayError: the file exists and is not a replay; one episode alone is larger than `max_mb`;
            the replay is inconsistent; or the file cannot be written.
    """
    path = Path(path)
    check_replaceable(path)
    page, header = page_of(replay, max_mb)
    with _system_errors(path, "written"):
        replace_file(path, page, path.with_name(f".{path.name}-{os.getpid()}"))
    count, errors = len(header["episodes"]), dict(header["errors"])
    return WrittenReplay(path, len(page), count, header["notes"], errors)


def check_replaceable(path: Path) -> None:
    """Check that a file is missing or a replay.

    Raises:
        ReplayError: the file is something else, or cannot be read.
    """
    with _system_errors(path, "written"):
        if os.path.lexists(path):
            with read_plain(path) as file:
                if not is_page(file.read(256)):
                    raise ReplayError(f"{path}: exists and is no replay; choose another name")


def read_replay(path: str | Path) -> Replay:
    """Read a replay from its page. Nothing in the page is executed.

    Rewards, choices and values are exact; features and probabilities too, unless they were rounded.
    `VecObs.done` and `truncated` are True only in the last step.

    Raises:
        ReplayError: the file is not a replay, or damaged; the message names the chunks.
    """
    with _system_errors(path, "read"), read_plain(Path(path)) as file:
        page = file.read()
    try:
        return _replay_of(page_blocks(page))
    except ReplayError as error:
        raise ReplayError(f"{path}: {error}") from None
    except Exception as error:  # damaged or hostile bytes may raise anything
        raise ReplayError(f"{path}: damaged: {short_repr(error)}") from None


@contextmanager
def _system_errors(path: str | Path, doing: str) -> Iterator[None]:
    """Convert errors of the operating system to `ReplayError`."""
    try:
        yield
    except OSError as error:
        raise ReplayError(f"{path}: cannot be {doing}: {error.strerror or error}") from None


def page_of(replay: Replay, max_mb: float) -> tuple[bytes, Json]:
    """Return the page at the first level that fits, and its header.

    Arguments and errors as in `write_replay`.
    """
    if not replay.episodes:
        raise ReplayError("episodes: expected at least one, got none")
    for header, chunks in _pages_by_level(replay):
        try:
            data = json.dumps(header, allow_nan=False, separators=(",", ":")).encode()
        except (TypeError, ValueError) as error:
            raise ReplayError(f"replay: expected plain and finite data, {error}") from None
        page = fill_page(PageBlock.of(data), [chunk for episode in chunks for chunk in episode])
        if len(page) <= max_mb * 1e6:
            return page, header
    got = f"{len(page) / 1e6:.2f} MB for one episode at the strongest compression"
    fix = "or play fewer steps" + (", or no pictures" if replay.episodes[0].pictures else "")
    raise ReplayError(f"max_mb: expected more than {max_mb:g}, {got}; {fix}")


def _pages_by_level(replay: Replay) -> Iterator[tuple[Json, list[list[PageBlock]]]]:
    """Yield header and chunks per episode, by increasing compression, then of fewer episodes."""
    encoded = [encode_episode(replay, episode) for episode in replay.episodes]
    levels = _LEVELS if any(e.attention for e in replay.episodes) else (_LEVELS[0], *_LEVELS[2:])
    for level in levels:
        header, chunks = _packed(replay, encoded, level)
        yield header, chunks
    for count in reversed(range(1, len(chunks))):
        header["episodes"].pop()
        header["moments"] = [m for m in header["moments"] if m[1] < count]
        note = f"The first {count} of {len(encoded)} episodes are kept."
        yield {**header, "notes": [*header["notes"], note]}, chunks[:count]


def _packed(
    replay: Replay, encoded: list[tuple[Json, Columns]], level: _Level
) -> tuple[Json, list[list[PageBlock]]]:
    """Return the header, and the chunks of each episode."""
    rounding, errors = _rounding(replay, [columns for _, columns in encoded], level)
    header = _header(replay, level, rounding, errors)
    chunks: list[list[PageBlock]] = []
    for e, (entry, table) in enumerate(encoded):
        schema = {**entry, "chunks": []}
        if level.attention != "whole":
            episode, frames = replay.episodes[e], replay.highlight_frames(e)
            highlighted = {f: weights for f, weights in episode.attention.items() if f in frames}
            table = {**table, **attention_columns(highlighted, len(episode.obs), strongest=True)}
            schema["attention"] = bool(highlighted)
        header["episodes"].append(schema)
        cursors: dict[str, int] = {}
        chunks.append([])
        for first in range(0, schema["steps"], CHUNK_STEPS):
            steps = min(CHUNK_STEPS, schema["steps"] - first)
            raw = encode_chunk(header, schema, steps, table, cursors)
            chunks[-1].append(PageBlock.of(raw))
            schema["chunks"].append([chunks[-1][-1].crc, len(chunks[-1][-1].packed), len(raw)])
        if incomplete := [name for name in cursors if cursors[name] != len(table[name])]:
            raise ReplayError(f"episodes[{e}]: more rows than expected in {', '.join(incomplete)}")
    return header, chunks


def live_header(replay: Replay) -> Json:
    """Return the header of a replay without episodes and without rounding."""
    return _header(replay, _LEVELS[0], {}, {})


def _header(
    replay: Replay, level: _Level, rounding: Mapping[str, Rounding], errors: dict[str, float]
) -> Json:
    notes = []
    if level.attention != "whole" and any(e.attention for e in replay.episodes):
        notes.append(f"Attention is kept at the moments, the {STRONGEST} strongest of each row.")
    if level.feature_bits != 32:
        notes.append(
            f"Features are rounded to {level.feature_bits} bits of their range, probabilities and "
            f"influence to {level.prob_bits}."
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
        "attention": level.attention,
        "rounding": [[name, *rule] for name, rule in rounding.items()],
        "errors": [[name, error] for name, error in errors.items()],
        "notes": notes,
        **({"unseen": replay.unseen} if replay.unseen else {}),
        "episodes": [],
    }


def _plain(space: ActionSpace) -> Json:
    """Return the fields of a space except defaults; bounds as text, as JSON has no infinity."""
    return {n: [*map(str, value)] if n in _BOUNDS else value for n, value in space.plain().items()}


def _fields(plain: Json) -> Json:
    """Return the fields of a space; the inverse of `_plain`."""
    return {n: [*map(float, value)] if n in _BOUNDS else value for n, value in plain.items()}


def _features(entity: Entity) -> list[Any]:
    return [list(entity.features), [[kind.name, list(kind.labels)] for kind in entity.kinds]]


def _rounding(
    replay: Replay, tables: list[Columns], level: _Level
) -> tuple[dict[str, Rounding], dict[str, float]]:
    """Return the quantization of rounded columns, and their largest errors by name."""
    types = [*replay.obs_space.entities.items(), ("global", replay.obs_space.global_entity)]
    bits = {
        f"feature {i} {j}": (level.feature_bits, f"{name}.{feature}")
        for i, (name, entity) in enumerate(types)
        for j, feature in enumerate(entity.features)
    }
    for a, (action, space) in enumerate(replay.action_space.items()):
        if not space.components:
            bits[f"probs {a}"] = level.prob_bits, f"probabilities of {action}"
            bits[f"beside {a}"] = level.prob_bits, f"probabilities of {action}, beside"
        bits[f"influence {a}"] = level.prob_bits, f"influence on {action}"
    rounding, errors = {}, {}
    for column, (width, name) in bits.items():
        parts = [table[column] for table in tables if column in table]
        if width == 32 or not parts:
            continue
        values = np.concatenate(parts)
        finite = values[np.isfinite(values)].astype(np.float64)
        low, high = (float(finite.min()), float(finite.max())) if len(finite) else (0.0, 0.0)
        rounding[column] = Rounding(width, low, high)
        restored = rounding[column].decode(rounding[column].encode(finite))
        errors[name] = float(np.abs(restored - finite).max(initial=0.0))
    return rounding, errors


def _header_of(block: PageBlock | None) -> Json:
    if block is None:
        raise ReplayError("expected a replay, got a file without a valid header")
    raw = block.unpacked(_MAX_HEADER)
    header = None if raw is None else json.loads(raw)
    if not isinstance(header, dict):
        raise ReplayError("header: expected a JSON object, got damaged data")
    if header.get("version") not in (VERSION, VERSION_WITH_NUMBERS):
        got = f"{short_repr(header.get('version'))}; a newer release may read it"
        raise ReplayError(f"expected a replay of format {VERSION_WITH_NUMBERS}, got {got}")
    if not 0 < header["sides"] <= _MAX_SIDES:
        raise ReplayError(f"sides: expected 1 to {_MAX_SIDES}, got {header['sides']}")
    return header


def _replay_of(blocks: Mapping[str, PageBlock]) -> Replay:
    """Decode a replay from the blocks of its page."""
    header = _header_of(blocks.get("header"))
    types = {name: Entity(numbers, _kinds(kinds)) for name, numbers, kinds in header["types"]}
    obs_space = ObsSpace(header["global"][0], types, _kinds(header["global"][1]))
    action_space: dict[ActionName, ActionSpace] = {
        name: rebuilt(ACTION_SPACES[class_name], _fields(fields), Allowance(0))
        for name, class_name, fields in header["actions"]
    }

    # Decode episodes from undamaged chunks.
    episodes: list[ReplayEpisode] = []
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
                chunks.append(decode_chunk(header, schema, steps, raw))
            number += 1
        if not damaged:
            columns = {name: np.concatenate([c[name] for c in chunks]) for name in chunks[0]}
            episodes.append(episode_of(header, schema, columns, obs_space, action_space))
    if damaged:
        raise ReplayError(f"damaged: {', '.join(damaged)}; a browser can play the rest")
    return Replay(
        title=header["title"],
        about=dict(header["about"]),
        obs_space=obs_space,
        action_space=action_space,
        sides=header["sides"],
        discount=header["discount"],
        episodes=episodes,
        moments=[Highlight._make(moment) for moment in header["moments"]],
        view=header["view"],
        unseen={
            name: [(int(i), columns) for i, columns in types]
            for name, types in header.get("unseen", {}).items()
        },
    )


def _kinds(kinds: list[Any]) -> list[Kind]:
    return [Kind(name, labels) for name, labels in kinds]
