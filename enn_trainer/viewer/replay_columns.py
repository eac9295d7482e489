"""Episodes as the flat columns of `replay_chunks.py`, and back."""

import math
from collections.abc import Container, Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from enn_trainer.errors import ReplayError
from enn_trainer.viewer.explain import Influence, split_influence
from enn_trainer.viewer.replay import Answers, Episode, Replay
from enn_trainer.viewer.replay_chunks import STRONGEST, Array, Columns, Json
from entity_env.observation import GLOBAL, ObsSpace
from entity_env.ragged import Indices, Ragged
from entity_env.serialization.bounds import Allowance
from entity_env.spaces import ActionName, ActionSpace
from entity_env.vec.vec_obs import VecObs


def episode_schema(replay: Replay, episode: Episode) -> Json:
    """Return the entry of an episode in the header: its columns, names and, later, chunks."""
    obs, actions = episode.obs, list(replay.action_space)
    steps, rest = divmod(len(obs), replay.sides)
    if rest or not steps:
        raise ReplayError(f"episodes: expected frames of {replay.sides} sides, got {len(obs)}")
    types, given = [*replay.obs_space.entities, GLOBAL], obs.action_masks
    influence = next(iter(episode.influence.values()), None)
    dtypes = {types.index(name): rows.values.dtype for name, rows in obs.kinds.items()}
    return {
        "steps": steps,
        "terminated": bool(episode.terminated),
        "truncated": bool(episode.truncated),
        "global": GLOBAL in obs.features,
        "identity": _places(types, obs.identity),
        "kinds": [[i, dtypes[i].itemsize] for i in sorted(dtypes)],
        "visible": _places(types, obs.visible),
        "masks": _places(actions, {name for name in actions if given[name].mask is not None}),
        "probs": _places(actions, episode.answers.probs),
        "beside": episode.beside and _places(actions, episode.beside.probs),
        "by_hand": None if episode.by_hand is None else _places(actions, episode.by_hand),
        "attention": bool(episode.attention),
        "influence": None if influence is None else _places(actions, influence.choice),
        "pictures": bool(episode.pictures),
        "names": [
            [[type_, [*map(int, names)], [*names.values()]] for type_, names in of_side.items()]
            for of_side in episode.names
        ],
        **({} if episode.steps is None else {"numbers": episode.steps.tolist()}),
        "chunks": [],
    }


def _places(names: list[str], those: Container[str]) -> list[int]:
    """Return the places in a list of the names that are among those."""
    return [i for i, name in enumerate(names) if name in those]


def columns_of(replay: Replay, episode: Episode) -> Columns:
    """Return the columns of an episode."""
    obs, frames = episode.obs, len(episode.obs)
    shown = [episode.influence[f] for f in sorted(episode.influence)]
    flat: Columns = {"reward": obs.reward, "value": episode.answers.values}
    for i, name in enumerate([*replay.obs_space.entities, GLOBAL]):
        if name not in obs.features:
            continue
        rows = obs.features[name]
        flat[f"rows {i}"] = rows.lengths
        flat |= {f"feature {i} {j}": rows.values[:, j] for j in range(rows.size2())}
        if name in obs.identity:
            flat[f"identified {i}"] = (obs.identity[name].lengths > 0) | (rows.lengths == 0)
            flat[f"identity {i}"] = obs.identity[name].values
        if name in obs.kinds:
            kinds = obs.kinds[name].values
            flat |= {f"kind {i} {k}": kinds[:, k] for k in range(kinds.shape[1])}
        if name in obs.visible:
            flat[f"visible {i}"] = obs.visible[name].values
    for a, name in enumerate(replay.action_space):
        mask = obs.action_masks[name]
        flat |= {f"actors {a}": mask.actors.lengths, f"actor {a}": mask.actors.values}
        if mask.actees is not None:
            flat |= {f"actees {a}": mask.actees.lengths, f"actee {a}": mask.actees.values}
        flat[f"chosen {a}"] = episode.chosen[name].values
        if episode.by_hand is not None and name in episode.by_hand:
            flat[f"by hand {a}"] = episode.by_hand[name]
        if mask.mask is not None:
            flat[f"mask {a}"] = mask.mask.values.reshape(-1)
        for answers, what in (episode.answers, "probs"), (episode.beside, "beside"):
            if answers is not None and name in answers.probs:
                flat[f"{what} {a}"] = answers.probs[name].values.reshape(-1)
        if shown and name in shown[0].choice:
            flat[f"influence {a}"] = _joined([i.choice[name] for i in shown])
    if episode.beside is not None:
        flat["beside value"] = episode.beside.values
    flat |= attention_columns(episode.attention, frames, strongest=False)
    pictures = [episode.pictures[step] for step in sorted(episode.pictures)]
    flat |= {
        "influence": _is_in(episode.influence, frames),
        "influence size": np.array([len(i.entities) for i in shown]),
        "influence entity": _joined([i.entities for i in shown]),
        "influence value": _joined([i.value for i in shown]),
        "picture": _is_in(episode.pictures, frames // replay.sides),
        "picture size": np.array([len(picture) for picture in pictures]),
        "picture byte": np.frombuffer(b"".join(pictures), np.uint8),
    }
    return flat


def attention_columns(kept: Mapping[int, Array], frames: int, strongest: bool) -> Columns:
    """Return the columns of attention: weights, or the strongest of each row and their places."""
    weights = [kept[frame] for frame in sorted(kept)]
    flat = {
        "attention": _is_in(kept, frames),
        "attention layers": np.array([w.shape[0] for w in weights]),
        "attention heads": np.array([w.shape[1] for w in weights]),
        "attention size": np.array([w.shape[2] for w in weights]),
    }
    if strongest:
        order = [np.argsort(-w, axis=-1, kind="stable")[..., :STRONGEST] for w in weights]
        flat["attention column"] = _joined(order)
        weights = [np.take_along_axis(w, o, -1) for w, o in zip(weights, order, strict=True)]
    flat["attention weight"] = _joined(weights)
    return flat


def _is_in(frames: Mapping[int, Any], count: int) -> npt.NDArray[np.bool_]:
    return np.isin(np.arange(count), list(frames))


def _joined(arrays: list[Array]) -> Array:
    return np.concatenate([np.zeros(0, np.float32), *(array.reshape(-1) for array in arrays)])


def episode_of(
    header: Json,
    schema: Json,
    flat: Columns,
    obs_space: ObsSpace,
    action_space: Mapping[ActionName, ActionSpace],
) -> Episode:
    """Return the episode of some columns; the reverse of `columns_of`."""
    sides, frames = header["sides"], schema["steps"] * header["sides"]
    names = [*obs_space.entities, *([GLOBAL] if schema["global"] else [])]
    features, visible, kinds, identity = {}, {}, {}, {}
    kind_bytes = dict(schema["kinds"])
    for i, name in enumerate(names):
        entity = obs_space.global_entity if name == GLOBAL else obs_space.entities[name]
        lengths: Indices = flat[f"rows {i}"]
        columns = [flat[f"feature {i} {j}"] for j in range(len(entity.features))]
        features[name] = _table(columns, lengths, np.float32)
        if i in schema["identity"]:
            given = np.where(flat[f"identified {i}"], lengths, 0)
            identity[name] = Ragged(flat[f"identity {i}"], given)
        if i in kind_bytes:
            columns = [flat[f"kind {i} {k}"] for k in range(len(entity.kinds))]
            kinds[name] = _table(columns, lengths, np.uint8 if kind_bytes[i] == 1 else np.int16)
        if i in schema["visible"]:
            visible[name] = Ragged(flat[f"visible {i}"], lengths)

    # Actions.
    masks, chosen, by_hand = {}, {}, {}
    probs: dict[str, dict[ActionName, Ragged]] = {"probs": {}, "beside": {}}
    for a, (name, space) in enumerate(action_space.items()):
        actors: Indices = flat[f"actors {a}"]
        mask: dict[str, Any] = {"actors": Ragged(flat[f"actor {a}"], actors)}
        columns_of, lengths = space.mask_columns, actors
        if not columns_of:
            actees: Indices = flat[f"actees {a}"]
            mask["actees"] = Ragged(flat[f"actee {a}"], actees)
            lengths = actors * actees
        shape = (int(lengths.sum()), *columns_of)
        has_mask = a in schema["masks"]
        mask["mask"] = Ragged(flat[f"mask {a}"].reshape(shape), lengths) if has_mask else None
        masks[name] = space.batch_mask_type(**mask)
        chosen[name] = Ragged(flat[f"chosen {a}"], actors)
        if a in (schema["by_hand"] or []):
            by_hand[name] = flat[f"by hand {a}"]
        for what, found in probs.items():
            if a in (schema[what] or []):
                found[name] = Ragged(flat[f"{what} {a}"].reshape(shape), lengths)

    last = np.arange(frames) >= frames - sides
    ended, cut = schema["terminated"] or schema["truncated"], schema["truncated"]
    obs = VecObs(features, visible, masks, flat["reward"], last & ended, {}, last & cut)
    obs.kinds, obs.identity = kinds, identity
    has_beside = schema["beside"] is not None
    return Episode(
        obs=obs,
        names=[
            {type_: dict(zip(ids, texts, strict=True)) for type_, ids, texts in of_side}
            for of_side in schema["names"]
        ],
        chosen=chosen,
        answers=Answers(probs["probs"], flat["value"]),
        terminated=schema["terminated"],
        truncated=cut,
        by_hand=None if schema["by_hand"] is None else by_hand,
        beside=Answers(probs["beside"], flat["beside value"]) if has_beside else None,
        attention=_attention(header, flat) if schema["attention"] else {},
        influence=_influence(schema, flat, list(action_space)),
        pictures=_pictures(flat) if schema["pictures"] else {},
        steps=np.array(schema["numbers"], np.int64) if "numbers" in schema else None,
    )


def _table(columns: list[Array], lengths: Indices, dtype: Any) -> Ragged:
    """Return columns side by side, (rows, columns) per frame."""
    table = np.array(columns, dtype).reshape(len(columns), int(lengths.sum())).T
    return Ragged(np.ascontiguousarray(table), lengths)


def _attention(header: Json, flat: Columns) -> dict[int, Array]:
    found, at = {}, 0
    shapes = [flat[f"attention {what}"].tolist() for what in ("layers", "heads", "size")]
    allowance = Allowance(flat["attention weight"].nbytes)
    for frame, *shape, n in zip(np.flatnonzero(flat["attention"]).tolist(), *shapes, strict=True):
        kept = n if header["attention"] == "whole" else min(n, STRONGEST)
        end = at + math.prod(shape) * n * kept
        weights = flat["attention weight"][at:end].reshape(*shape, n, kept)
        if kept != n:
            allowance.take(math.prod(shape) * n * n, "weights of attention")
            places = flat["attention column"][at:end].reshape(weights.shape)
            few, weights = weights, np.zeros((*shape, n, n), np.float32)
            np.put_along_axis(weights, places, few, -1)
        found[frame], at = weights, end
    return found


def _influence(schema: Json, flat: Columns, actions: list[ActionName]) -> dict[int, Influence]:
    if schema["influence"] is None:
        return {}
    frames, sizes = np.flatnonzero(flat["influence"]), flat["influence size"]
    choice = {
        actions[a]: (flat[f"influence {a}"], flat[f"actors {a}"][frames])
        for a in schema["influence"]
    }
    entities, values = flat["influence entity"], flat["influence value"]
    found = split_influence(sizes, entities, choice, values)
    return dict(zip(frames.tolist(), found, strict=True))


def _pictures(flat: Columns) -> dict[int, bytes]:
    pieces = np.split(flat["picture byte"], np.cumsum(flat["picture size"])[:-1])
    steps = np.flatnonzero(flat["picture"]).tolist()
    return {step: piece.tobytes() for step, piece in zip(steps, pieces, strict=True)}
