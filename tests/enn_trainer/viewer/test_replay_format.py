"""Replays come back from their pages as they were, or as far from it as the page says."""

import json
import re
import resource
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings

from enn_trainer.base.errors import ReplayError
from enn_trainer.viewer.page import PAGE, PageBlock, fill_page, page_blocks
from enn_trainer.viewer.replay import Highlight, Replay
from enn_trainer.viewer.replay_chunks import decode_chunk
from enn_trainer.viewer.replay_format import read_replay, write_replay
from entity_env import (
    Entity,
    GlobalCategoricalActionSpace,
    Observation,
    ObsSpace,
)
from entity_env.ragged import Ragged
from tests.enn_trainer.viewer.replays import (
    NAMES,
    differences,
    megabytes,
    random_episode,
    replays,
    small_replay,
    smooth,
)
from tests.strategies import World

ANY_PATH = settings(suppress_health_check=list(HealthCheck))


@pytest.mark.slow
@ANY_PATH
@given(replay=replays())
def test_replay_round_trips_exactly(tmp_path_factory: Any, replay: Replay) -> None:
    path = tmp_path_factory.mktemp("replay") / "replay.html"
    written = write_replay(replay, path, max_mb=1000)
    assert (written.notes, written.errors) == ([], {})
    assert written.num_bytes == path.stat().st_size
    assert list(differences(replay, read_replay(path))) == []
    before = path.read_bytes()
    write_replay(replay, path, max_mb=1000)
    assert path.read_bytes() == before


@pytest.mark.slow
def test_each_compression_level_keeps_its_size_and_errors(tmp_path: Path) -> None:
    replay, path = smooth(small_replay()), tmp_path / "replay.html"
    whole = megabytes(replay, path)
    sizes, rungs = [], {}
    for share in np.linspace(1.0, 0.02, 50):
        try:
            written = write_replay(replay, path, max_mb=whole * share)
        except ReplayError as error:
            assert "MB for one episode" in str(error)  # noqa: PT017 (the smallest is unknown)
            break
        assert written.num_bytes <= whole * share * 1e6
        sizes.append(written.num_bytes)
        rungs[tuple(written.notes)] = written, read_replay(path)
    assert sizes == sorted(sizes, reverse=True)
    assert [len(notes) for notes in rungs] == [0, 1, 2, 2, 3]

    # No number is further from the truth than the page says.
    for written, back in rungs.values():
        assert len(back.episodes) == written.num_episodes
        found: dict[str, float] = {}
        for one, other in zip(replay.episodes, back.episodes, strict=False):
            assert not list(differences(one.answers.values, other.answers.values))
            for type_, entity in replay.obs_space.entities.items():
                gap = one.obs.features[type_].values - other.obs.features[type_].values
                for name, error in zip(entity.features, np.abs(gap).max(axis=0), strict=True):
                    found[f"{type_}.{name}"] = max(found.get(f"{type_}.{name}", 0.0), error)
            for action, probs in one.answers.probs.items():
                gap = np.abs(probs.values - other.answers.probs[action].values).max()
                name = f"probabilities of {action}"
                found[name] = max(found.get(name, 0.0), gap)
        for name, error in found.items():
            assert error <= written.errors.get(name, 0.0) * 1.001
    errors = rungs[max(rungs, key=len)][0].errors
    of_probs = [error for name, error in errors.items() if name.startswith("probabilities")]
    assert 0.001 < max(of_probs) < 0.003  # of 252 steps, half a step


def test_strongest_attention_weights_are_kept_at_highlights(tmp_path: Path) -> None:
    replay, path = small_replay(episodes=1), tmp_path / "replay.html"
    weights = np.random.default_rng(0).random((1, 1, 6, 6)).astype(np.float32)
    replay.episodes[0].attention = dict.fromkeys(range(150), weights)
    write_replay(replay, path, max_mb=megabytes(replay, path) - 1e-6)
    [[frame, kept]] = read_replay(path).episodes[0].attention.items()
    assert frame == replay.moments[0].step
    strongest = weights >= np.sort(weights)[..., -4][..., None]
    np.testing.assert_array_equal(kept, np.where(strongest, weights, 0))


def test_non_finite_values_survive_rounding(tmp_path: Path) -> None:
    replay, path = small_replay(episodes=1), tmp_path / "replay.html"
    replay.episodes[0].attention.clear()
    write_replay(replay, path, max_mb=megabytes(replay, path) - 1e-6)
    before, after = (r.episodes[0].obs.features["A"].values for r in (replay, read_replay(path)))
    for test in (np.isnan, np.isposinf, np.isneginf):
        assert test(before).any()
        np.testing.assert_array_equal(test(before), test(after))


def test_text_of_an_environment_is_only_inside_blocks(tmp_path: Path) -> None:
    path = tmp_path / "replay.html"
    hostile = "".join(NAMES)
    world = World(
        ObsSpace([], {hostile: Entity([hostile])}),
        {hostile: GlobalCategoricalActionSpace(NAMES)},
        [Observation(features={hostile: [[1.0]]}, actions={})],
    )
    episode = random_episode(world, world.obs_space, np.random.default_rng(0), 3, 1)
    episode.names = [{hostile: dict(enumerate(NAMES))}]
    spaces = world.obs_space, world.action_space
    moments = [Highlight(hostile, 0, 0, 0, None, hostile)]
    facts = {hostile: hostile}
    replay = Replay(hostile, facts, *spaces, 1, 1.0, [episode], moments, facts)
    write_replay(replay, path)
    assert list(differences(replay, read_replay(path))) == []
    blocks = re.sub(rb">[A-Za-z0-9+/=]*</script>\n", b"", path.read_bytes())
    assert len(blocks) < len(PAGE.read_bytes()) + 500
    assert b"onerror" not in path.read_bytes()


def test_damaged_chunks_are_reported_and_the_rest_is_read(tmp_path: Path) -> None:
    path = tmp_path / "replay.html"
    write_replay(small_replay(), path)
    page = path.read_bytes()
    places = [m.start(1) for m in re.finditer(rb'data-block="\d+" data-crc="\w+">(\w)', page)]
    assert len(places) == 6
    for number, place in enumerate(places):
        other = b"B" if page[place : place + 1] == b"A" else b"A"
        path.write_bytes(page[:place] + other + page[place + 1 :])
        with pytest.raises(ReplayError, match=f"replay.html: damaged: chunk {number}; a browser"):
            read_replay(path)

    # Cut off in the middle.
    path.write_bytes(page[: places[4] + 10])
    with pytest.raises(ReplayError, match="damaged: chunk 4, chunk 5; a browser"):
        read_replay(path)


@pytest.mark.slow
def test_any_damage_raises_replay_error(tmp_path: Path) -> None:
    path = tmp_path / "replay.html"
    write_replay(small_replay(steps=5), path)
    page, rng = path.read_bytes(), np.random.default_rng(0)
    start = page.index(b'data-block="header"')
    for _ in range(300):
        at = int(rng.integers(start, len(page)))
        path.write_bytes(page[:at] + rng.bytes(1) + page[at + 1 :])
        try:
            read_replay(path)
        except ReplayError as error:
            assert str(path) in str(error)  # noqa: PT017 (most changes are errors, not all)


@pytest.mark.parametrize("content", [b"", b"<!doctype html>", b"\0" * 1000, PAGE.read_bytes()])
def test_other_files_are_rejected(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "replay.html"
    path.write_bytes(content)
    with pytest.raises(ReplayError, match=re.escape(f"{path}: expected a replay")):
        read_replay(path)
    if content != PAGE.read_bytes():
        with pytest.raises(ReplayError, match="exists and is no replay"):
            write_replay(small_replay(steps=1), path)
        assert path.read_bytes() == content


def test_false_sizes_do_not_allocate_memory(tmp_path: Path) -> None:
    """A header of a few bytes that says gigabytes, or a sum that does not fit, is refused."""
    path = tmp_path / "replay.html"
    write_replay(small_replay(steps=1, episodes=1), path)
    header = json.loads(page_blocks(path.read_bytes())["header"].unpacked(1 << 20) or b"")
    for change in (
        {"episodes": [{**header["episodes"][0], "chunks": [[0, 0, 1 << 40]]}]},
        {"episodes": [{**header["episodes"][0], "steps": 1 << 40}]},
        {"sides": 1 << 30},
        {"sides": -1},
        {"version": 3},
        {"actions": [["move", "system", {}]]},
        {"rounding": [["feature 0 0", 8, "a", 0]]},
    ):
        changed = PageBlock.of(json.dumps({**header, **change}).encode())
        chunks = [page_blocks(path.read_bytes())["0"]]
        other = tmp_path / "other.html"
        other.write_bytes(fill_page(changed, chunks))
        with pytest.raises(ReplayError, match=re.escape(str(other))):
            read_replay(other)


def test_chunk_rows_are_bounded_by_its_size() -> None:
    """Actors times actees would exhaust the memory, although both take few bytes."""
    types = [["A", [], []]]
    header = {"sides": 1, "types": types, "global": [[], []], "rounding": []}
    header["actions"] = [["hit", "SelectEntityActionSpace", {}]]
    none: list[int] = []
    names = ["identity", "kinds", "visible", "masks", "probs"]
    schema = {**dict.fromkeys(names, none), "beside": None, "by_hand": None, "global": False}

    def column(*numbers: int) -> bytes:
        zigzag = 2 * np.array(numbers, "<u4")
        planes = zigzag.view(np.uint8).reshape(len(numbers), 4).T.tobytes()
        return len(planes).to_bytes(4, "little") + planes

    count, everyone = column(60_000), column(*range(60_000))
    reward_value_rows = column(0) + column(0) + count
    start = reward_value_rows + count
    with pytest.raises(ReplayError, match="rows, got 60000001"):
        decode_chunk(header, schema, 1, reward_value_rows + column(60_000_001))
    with pytest.raises(ReplayError, match="rows, got 3600000000"):
        decode_chunk(header, schema, 1, start + everyone + count + everyone + column(*[0] * 60_000))


def test_full_disk_preserves_the_existing_page(tmp_path: Path) -> None:
    path = tmp_path / "replay.html"
    write_replay(small_replay(steps=2, episodes=1), path)
    before = path.read_bytes()
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (len(before) // 2, limits[1]))
    try:
        with pytest.raises(ReplayError, match=r"replay\.html: cannot be written: File too large"):
            write_replay(small_replay(steps=9, episodes=1), path)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert path.read_bytes() == before
    assert [one.name for one in tmp_path.iterdir()] == ["replay.html"]


def test_unwritable_replay_is_rejected_by_name(tmp_path: Path) -> None:
    replay = small_replay(steps=2, episodes=1)
    with pytest.raises(ReplayError, match=r"nowhere.*cannot be written"):
        write_replay(replay, tmp_path / "nowhere" / "replay.html")
    replay.discount = float("nan")
    with pytest.raises(ReplayError, match="finite"):
        write_replay(replay, tmp_path / "replay.html")
    replay.discount = 1.0
    replay.episodes[0].answers.probs = {
        "move": Ragged(np.zeros((1, 3), np.float32), np.array([1, 0]))
    }
    with pytest.raises(ReplayError, match=r"probs 0: expected .* rows"):
        write_replay(replay, tmp_path / "replay.html")
    replay.episodes = []
    with pytest.raises(ReplayError, match="episodes: expected at least one"):
        write_replay(replay, tmp_path / "replay.html")
    assert [*tmp_path.iterdir()] == []
