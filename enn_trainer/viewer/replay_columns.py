"""Conversion of episodes to the flat columns of `replay_chunks.py`, and back."""

from collections.abc import Mapping
from typing import Any

import numpy as np

from enn_trainer.base.errors import ReplayError
from enn_trainer.evaluation.explain import Influence, split_influence
from enn_trainer.viewer.replay import Answers, Replay, ReplayEpisode, types_of
from enn_trainer.viewer.replay_chunks import (
    ATTENTION_SHAPE,
    NUMBERS_SHOWN,
    STRONGEST,
    Array,
    Columns,
    Json,
)
from entity_env.actions.chains import has_choice, inactive_choice, masks_given_choices
from entity_env.arrays import BoolArray, IntArray
from entity_env.observation import GLOBAL, ObsSpace
from entity_env.ragged import Ragged
from entity_env.serialization.bounds import Allowance
from entity_env.spaces import ActionName, ActionSpaces
from entity_env.vec.vec_obs import VecObs


def encode_episode(replay: Replay, episode: ReplayEpisode) -> tuple[Json, Columns]:
    """Return the schema of an episode, without chunks, and its columns."""
    flat = _columns_of(replay, episode)
    steps, rest = divmod(frames := len(episode.obs), replay.sides)
    if rest or not steps:
        raise ReplayError(f"episodes: expected frames of {replay.sides} sides, got {frames}")

    def indices(column: str) -> list[int]:
        """Return the indices of types or actions with a column; at most the number of columns."""
        return [i for i in range(len(flat)) if f"{column} {i}" in flat]

    kinds = [i for i in range(len(flat)) if f"kind {i} 0" in flat]
    return {
        "steps": steps,
        "terminated": bool(episode.terminated),
        "truncated": bool(episode.truncated),
        "global": GLOBAL in episode.obs.features,
        "identity": indices("identity"),
        "kinds": [[i, flat[f"kind {i} 0"].dtype.itemsize] for i in kinds],
        "visible": indices("visible"),
        "masks": indices("mask"),
        "probs": indices("probs"),
        "beside": None if episode.beside is None else indices("beside"),
        "by_hand": None if episode.by_hand is None else indices("by hand"),
        "attention": bool(episode.attention),
        "influence": indices("influence") if episode.influence else None,
        "pictures": bool(episode.pictures),
        "names": [
            [[type_, [*map(int, names)], [*names.values()]] for type_, names in side_names.items()]
            for side_names in episode.names
        ],
        **({} if episode.steps is None else {"numbers": episode.steps.tolist()}),
        "chunks": [],
    }, flat


def _columns_of(replay: Replay, episode: ReplayEpisode) -> Columns:
    """Return the columns of an episode."""
    obs, frames = episode.obs, len(episode.obs)
    flat: Columns = {"reward": obs.reward, "value": episode.answers.values}
    for i, name in enumerate(types_of(replay.obs_space)):
        if (rows := obs.features.get(name)) is None:
            continue
        flat[f"rows {i}"] = rows.lengths
        if (identity := obs.identity.get(name)) is not None:
            flat[f"identified {i}"] = (identity.lengths > 0) | (rows.lengths == 0)
            flat[f"identity {i}"] = identity.values
        flat |= {f"feature {i} {j}": column for j, column in enumerate(rows.values.T)}
        if (kinds := obs.kinds.get(name)) is not None:
            flat |= {f"kind {i} {k}": column for k, column in enumerate(kinds.values.T)}
        if name in obs.visible:
            flat[f"visible {i}"] = obs.visible[name].values

    # Actions.
    other_probs = {} if episode.beside is None else episode.beside.probs
    influences = [episode.influence[f] for f in sorted(episode.influence)]
    masks = masks_given_choices(obs.action_masks, episode.chosen)
    for a, (name, space) in enumerate(replay.action_space.items()):
        mask, chosen = masks[name], episode.chosen[name].values
        flat |= {f"actors {a}": mask.actors.lengths, f"actor {a}": mask.actors.values}
        if mask.actees is not None:
            flat |= {f"actees {a}": mask.actees.lengths, f"actee {a}": mask.actees.values}
        if mask.bounds is not None:
            bounds = mask.bounds.values.swapaxes(0, 1)
            flat |= {f"low {a}": bounds[0].reshape(-1), f"high {a}": bounds[1].reshape(-1)}
        if space.after is not None:
            flat[f"taken {a}"] = is_active = has_choice(chosen)
            chosen = chosen.copy()
            chosen[~is_active] = 0
        flat[f"chosen {a}"] = chosen.reshape(-1)
        if episode.by_hand is not None and name in episode.by_hand:
            flat[f"by hand {a}"] = episode.by_hand[name]
        pairs = {"mask": mask.mask, "probs": episode.answers.probs.get(name)}
        for column_name, rows_of_pairs in {**pairs, "beside": other_probs.get(name)}.items():
            if rows_of_pairs is not None:
                flat[f"{column_name} {a}"] = rows_of_pairs.values.reshape(-1)
        if influences and name in influences[0].choice:
            flat[f"influence {a}"] = _flat([i.choice[name] for i in influences])

    # Values, attention, influence and pictures.
    if episode.beside is not None:
        flat["beside value"] = episode.beside.values
    pictures = [episode.pictures[step] for step in sorted(episode.pictures)]
    return {
        **flat,
        **attention_columns(episode.attention, frames, strongest=False),
        "influence": _is_in(episode.influence, frames),
        "influence size": np.array([len(i.entities) for i in influences]),
        "influence entity": _flat([i.entities for i in influences]),
        "influence value": _flat([i.value for i in influences]),
        "picture": _is_in(episode.pictures, frames // replay.sides),
        "picture size": np.array([len(picture) for picture in pictures]),
        "picture byte": np.frombuffer(b"".join(pictures), np.uint8),
    }


def attention_columns(attention: Mapping[int, Array], frames: int, strongest: bool) -> Columns:
    """Return the columns of attention: all weights, or the strongest of each row."""
    weights = [attention[frame] for frame in sorted(attention)]
    flat = {"attention": _is_in(attention, frames)}
    for axis, name in enumerate(ATTENTION_SHAPE):
        flat[name] = np.array([w.shape[axis] for w in weights])
    if strongest:
        order = [np.argsort(-w, axis=-1, kind="stable")[..., :STRONGEST] for w in weights]
        flat["attention column"] = _flat(order)
        weights = [np.take_along_axis(w, o, -1) for w, o in zip(weights, order, strict=True)]
    flat["attention weight"] = _flat(weights)
    return flat


def _is_in(frames: Mapping[int, Any], count: int) -> BoolArray:
    return np.isin(np.arange(count), list(frames))


def _flat(arrays: list[Array]) -> Array:
    return np.concatenate([np.zeros(0, np.float32), *(array.reshape(-1) for array in arrays)])


def episode_of(
    header: Json, schema: Json, flat: Columns, obs_space: ObsSpace, action_space: ActionSpaces
) -> ReplayEpisode:
    """Convert columns to an episode; the inverse of `encode_episode`."""

    def ragged(column: str, lengths: IntArray, *columns: int) -> dict[str, Ragged]:
        """Return a column as ragged rows by the name of its type or action, if it exists."""
        values = flat.get(column)
        shape = int(lengths.sum()), *columns
        return {} if values is None else {name: Ragged(values.reshape(shape), lengths)}

    def table(column: str, count: int, lengths: IntArray, dtype: Any) -> Ragged:
        """Stack columns to (rows, columns) per frame."""
        columns = [flat[f"{column} {j}"] for j in range(count)]
        rows = np.array(columns, dtype).reshape(count, int(lengths.sum())).T
        return Ragged(np.ascontiguousarray(rows), lengths)

    sides, frames = header["sides"], len(flat["reward"])
    last = np.arange(frames) >= frames - sides
    ended, cut = schema["terminated"] or schema["truncated"], schema["truncated"]
    obs = VecObs({}, {}, {}, flat["reward"], last & ended, {}, last & cut)
    kind_bytes = dict(schema["kinds"])
    for i, (name, entity) in enumerate(types_of(obs_space).items()):
        if (lengths := flat.get(f"rows {i}")) is None:
            continue
        obs.features[name] = table(f"feature {i}", len(entity.features), lengths, np.float32)
        if i in kind_bytes:
            dtype = np.uint8 if kind_bytes[i] == 1 else np.int16
            obs.kinds[name] = table(f"kind {i}", len(entity.kinds), lengths, dtype)
        obs.visible |= ragged(f"visible {i}", lengths)
        with_id = np.where(flat.get(f"identified {i}", True), lengths, 0)
        obs.identity |= ragged(f"identity {i}", with_id)

    # Actions.
    chosen: dict[ActionName, Ragged] = {}
    probs: dict[ActionName, Ragged] = {}
    other_probs: dict[ActionName, Ragged] = {}
    by_hand = {}
    for a, (name, space) in enumerate(action_space.items()):
        actors: IntArray = flat[f"actors {a}"]
        mask: dict[str, Any] = {"actors": Ragged(flat[f"actor {a}"], actors)}
        chosen |= ragged(f"chosen {a}", actors, *space.choice_columns)
        if f"taken {a}" in flat:
            chosen[name].values[~flat[f"taken {a}"]] = inactive_choice(space)
        if f"by hand {a}" in flat:
            by_hand[name] = flat[f"by hand {a}"]
        columns, pairs = space.mask_columns, actors
        if space.components:
            for bound in ("low", "high"):
                mask[bound] = ragged(f"{bound} {a}", actors, *columns)[name]
            columns = (NUMBERS_SHOWN * len(space.components),)
        else:
            if not columns:
                mask["actees"] = Ragged(flat[f"actee {a}"], flat[f"actees {a}"])
                pairs = actors * flat[f"actees {a}"]
            mask["mask"] = ragged(f"mask {a}", pairs, *columns).get(name)
        obs.action_masks[name] = space.batch_mask_type(**mask)
        probs |= ragged(f"probs {a}", pairs, *columns)
        other_probs |= ragged(f"beside {a}", pairs, *columns)
    return ReplayEpisode(
        obs=obs,
        names=[
            {type_: dict(zip(ids, texts, strict=True)) for type_, ids, texts in side_names}
            for side_names in schema["names"]
        ],
        chosen=chosen,
        answers=Answers(probs, flat["value"]),
        terminated=schema["terminated"],
        truncated=cut,
        by_hand=None if schema["by_hand"] is None else by_hand,
        beside=Answers(other_probs, flat["beside value"]) if "beside value" in flat else None,
        attention=_attention(header, flat) if schema["attention"] else {},
        influence=_influence(schema, flat, list(action_space)),
        pictures=_pictures(flat) if schema["pictures"] else {},
        steps=np.array(schema["numbers"], np.int64) if "numbers" in schema else None,
    )


def _attention(header: Json, flat: Columns) -> dict[int, Array]:
    attention, start = {}, 0
    layers, heads, sizes = (flat[name].tolist() for name in ATTENTION_SHAPE)
    allowance = Allowance(flat["attention weight"].nbytes)
    frames = np.flatnonzero(flat["attention"]).tolist()
    for frame, num_layers, num_heads, n in zip(frames, layers, heads, sizes, strict=True):
        rows = num_layers * num_heads * n
        columns = n if header["attention"] == "whole" else min(n, STRONGEST)
        end = start + rows * columns
        weights = flat["attention weight"][start:end].reshape(num_layers, num_heads, n, columns)
        if columns != n:
            allowance.take(rows * n, "weights of attention")
            places = flat["attention column"][start:end].reshape(weights.shape)
            strongest, weights = weights, np.zeros((num_layers, num_heads, n, n), np.float32)
            np.put_along_axis(weights, places, strongest, -1)
        attention[frame], start = weights, end
    return attention


def _influence(schema: Json, flat: Columns, actions: list[ActionName]) -> dict[int, Influence]:
    if schema["influence"] is None:
        return {}
    frames, sizes = np.flatnonzero(flat["influence"]), flat["influence size"]
    choice = {
        actions[a]: (flat[f"influence {a}"], flat[f"actors {a}"][frames])
        for a in schema["influence"]
    }
    entities, values = flat["influence entity"], flat["influence value"]
    influences = split_influence(sizes, entities, choice, values)
    return dict(zip(frames.tolist(), influences, strict=True))


def _pictures(flat: Columns) -> dict[int, bytes]:
    pieces = np.split(flat["picture byte"], np.cumsum(flat["picture size"])[:-1])
    steps = np.flatnonzero(flat["picture"]).tolist()
    return {step: piece.tobytes() for step, piece in zip(steps, pieces, strict=True)}
