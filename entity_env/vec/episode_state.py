"""States of environments, as plain data that does not depend on the number of processes.

{"seed": seed of the run, from which seeds of episodes derive, or None
 "episodes": (B,) int64, number of episodes that each environment has begun
 "steps": (B,) int64, number of steps in the running episodes
 "frames": the last B frames, without their rewards
 "arguments": for each match, the arguments of its episode; only if arguments vary
 "matches": uint8 per match, bytes of its state, of the names in its frames, of all tracked ids}
"""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from entity_env.actions.chains import check_parent_links, choose_parts
from entity_env.environment import Observation
from entity_env.errors import EntityEnvError
from entity_env.match import Match, world_of
from entity_env.plain_state import from_plain, non_plain_part, to_plain
from entity_env.ragged import Ragged
from entity_env.serialization.bounds import check_hashes
from entity_env.spaces import GLOBAL, ActionName, ActionSpaces, ObsSpace
from entity_env.vec.identity import Tables
from entity_env.vec.row_checks import expect
from entity_env.vec.validate import check_features, check_finite_batch, check_masks
from entity_env.vec.vec_obs import Choices, VecActionMask, VecObs


def offers_state(match: Match) -> bool:
    """Return whether an environment has the methods `get_state` and `set_state`."""
    env = world_of(match)
    return all(callable(getattr(env, name, None)) for name in ("get_state", "set_state"))


def match_bytes(
    match: Match,
    frames: Sequence[Observation],
    action_space: ActionSpaces,
    tables: Sequence[Tables] = (),
) -> bytes:
    """Serialize the state of a match and the names in its last frames.

    Args:
        match: its environment has `get_state`.
        frames: the last observation of each side.
        action_space: its actions.
        tables: the numbers of the ids of each side, see `IdentityTracker`; empty if not tracked.

    Raises:
        EntityEnvError: the result of `get_state`, or an id, is not plain data.
    """
    from entity_env.serialization.messages import MessageError, pack  # imports msgpack

    env: Any = world_of(match)
    state = env.get_state()
    try:
        saved = {"world": state, "frames": [names_in(frame, action_space) for frame in frames]}
        if tables:
            what = "ids of this episode"
            saved["identity"] = [
                {name: to_plain([*ids], what) for name, ids in table.items()} for table in tables
            ]
    except TypeError as error:
        raise EntityEnvError(str(error)) from None
    try:
        return pack(saved, exact=True)
    except MessageError as error:
        what = non_plain_part(state, "state") or str(error)
        raise EntityEnvError(
            f"get_state: expected plain data (None, bool, int, float, str, bytes, NumPy arrays of "
            f"numbers, lists and dictionaries), got {what}"
        ) from None


def names_in(frame: Observation, action_space: ActionSpaces) -> dict[str, Any]:
    """Return all ids of a frame, and the entities that its masks name.

    Args:
        frame: the observation of one side.
        action_space: the actions by name.

    Raises:
        TypeError: a name is not plain data.
    """
    ids = {name: _plain_names(ids, f"ids of {name}") for name, ids in frame.ids.items()}
    actions = {}
    for name, mask in frame.actions.items():
        if fields := action_space[name].mask_type.entity_fields:
            fields_named = [(getattr(mask, field), f"{field} of {name}") for field in fields]
            actions[name] = [_plain_names(names, what) for names, what in fields_named]
    return {"ids": ids, "actions": actions}


def restore_match(
    match: Match,
    data: bytes,
    last: VecObs,
    first: int,
    tables: Sequence[Tables] = (),
) -> list[Observation]:
    """Restore the state of a match, and return its last frames.

    Args:
        match: its environment has `set_state`.
        data: result of `match_bytes`.
        last: the last frames of all matches.
        first: index of the frame of the match's first side.
        tables: as in `match_bytes`, filled in place; empty if entities are not tracked now.

    Returns:
        The last observation of each side, with the same names of all entities.
    """
    from entity_env.serialization.messages import unpack

    saved = unpack(data)
    action_space = match.action_space()
    env: Any = world_of(match)
    env.set_state(saved["world"])
    for i, table in enumerate(tables):
        side_ids = saved["identity"][i] if "identity" in saved else {}
        for name, numbers in table.items():
            ids = from_plain(side_ids.get(name, []))
            check_hashes(ids)
            numbers.update((entity_id, number) for number, entity_id in enumerate(ids))
    frames = []
    for i, named in enumerate(saved["frames"], first):
        # Masks that name the same entities, and allow everything.
        masks = {}
        for name, entities in named["actions"].items():
            mask_type = action_space[name].mask_type
            fields = zip(mask_type.entity_fields, map(from_plain, entities), strict=True)
            masks[name] = mask_type(**dict(fields))
        features = {name: rows[i].values for name, rows in last.features.items() if name != GLOBAL}
        ids = {name: from_plain(ids) for name, ids in named["ids"].items()}
        frames.append(Observation(features=features, ids=ids, actions=masks))
    return frames


def without_outcomes(batch: VecObs) -> VecObs:
    """Return frames without rewards, ends of episodes and metrics."""
    return VecObs(
        batch.features,
        batch.visible,
        batch.action_masks,
        reward=np.zeros(len(batch), np.float32),
        done=np.zeros(len(batch), np.bool_),
        metrics={},
        kinds=batch.kinds,
    )


def cat_states(states: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Concatenate states along the environments."""
    optional = {}
    if "arguments" in states[0]:
        optional["arguments"] = [arguments for state in states for arguments in state["arguments"]]
    return {
        **optional,
        "seed": states[0]["seed"],
        "episodes": np.concatenate([state["episodes"] for state in states]),
        "steps": np.concatenate([state["steps"] for state in states]),
        "frames": VecObs.cat([state["frames"] for state in states]),
        "matches": Ragged.cat([state["matches"] for state in states]),
    }


def split_state(state: Mapping[str, Any], counts: Sequence[int]) -> list[dict[str, Any]]:
    """Split a state into states of consecutive environments, each of whole matches."""
    check_num_envs(state, sum(counts))
    sides = len(state["steps"]) // len(state["matches"])
    ends = np.cumsum(counts)
    return [
        {
            **(
                {"arguments": state["arguments"][start // sides : end // sides]}
                if "arguments" in state
                else {}
            ),
            "seed": state["seed"],
            "episodes": state["episodes"][start:end],
            "steps": state["steps"][start:end],
            "frames": state["frames"].take(np.arange(start, end)),
            "matches": state["matches"][start // sides : end // sides],
        }
        for start, end in zip(ends - counts, ends, strict=True)
    ]


def check_num_envs(state: Mapping[str, Any], num_envs: int) -> None:
    """Raise if a state is not of `num_envs` environments.

    Raises:
        InvalidObservation: with both numbers.
    """
    got = len(state["steps"])
    expected = f"the state of {num_envs} environments"
    expect(got == num_envs, "set_state", expected, f"that of {got}")


def _plain_names(names: Any, what: str) -> Any:
    is_sequence = names is None or type(names) in (list, tuple, np.ndarray)
    return to_plain(names if is_sequence else list(names), what)


def check_saved_state(
    state: Mapping[str, Any], num_matches: int, obs_space: ObsSpace, action_space: ActionSpaces
) -> None:
    """Raise if saved counters and frames do not match the environments, as in a damaged state.

    Args:
        state: of the right number of environments.
        num_matches: number of matches.
        obs_space: features of the frames.
        action_space: the actions.

    Raises:
        InvalidObservation: with the field and the expected value.
    """
    num_envs, frames, where = len(state["steps"]), state["frames"], "set_state: "
    expect(type(state["seed"]) in (int, type(None)), f"{where}seed", "an integer", state["seed"])
    for name in ("episodes", "steps"):
        counts, what = state[name], f"{where}{name}"
        expect(type(counts) is np.ndarray, what, "an array", counts)
        fits = counts.dtype == np.int64 and counts.shape == (num_envs,)
        expect(fits, what, f"int64 {(num_envs,)}", f"{counts.dtype} {counts.shape}")
        expect((counts >= 0).all(), what, "counts", counts)
    varied = state.get("arguments", [{}] * num_matches)
    fits = type(varied) is list and all(type(kw) is dict for kw in varied)
    fits = fits and len(varied) == num_matches and all(type(k) is str for kw in varied for k in kw)
    expect(fits, f"{where}arguments", f"{num_matches} dictionaries by name", varied)
    matches, what = state["matches"], f"{where}matches"
    fits = type(matches) is Ragged and matches.values.dtype == np.uint8 and matches.values.ndim == 1
    expect(fits and len(matches) == num_matches, what, f"bytes of {num_matches} matches", matches)
    expect(len(frames) == num_envs, f"{where}frames", f"{num_envs}", len(frames))
    num_entities = check_features(frames, obs_space, action_space, where, exact=True)
    check_finite_batch(frames, obs_space)
    check_masks(frames, action_space, num_entities, where, exact=True)
    check_parent_links(frames.action_masks, action_space, where)


def first_choices(masks: Mapping[ActionName, VecActionMask], action_space: ActionSpaces) -> Choices:
    """Return the first legal choice of each actor, of valid masks."""
    return choose_parts(
        masks, action_space, lambda name, mask: action_space[name].first_choices(mask)
    )
