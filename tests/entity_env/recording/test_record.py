"""Recordings of continuous and dependent actions round-trip to the bit."""

import re
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from entity_env import (
    ActionSpace,
    CategoricalActionSpace,
    ContinuousActionMask,
    ContinuousActionSpace,
    EnvList,
    Observation,
    Ragged,
    SelectEntityActionSpace,
    VecObs,
)
from entity_env.recording.read_recording import Recording
from entity_env.recording.record import RecordingVecEnv, recording_header
from entity_env.recording.recording_format import (
    PREFIX,
    RecordedFrames,
    RecordingError,
    framed,
    prefix_of,
)
from entity_env.testing.random_play import random_choices
from entity_env.vec.vec_env import VecEnvWrapper
from tests.enn_trainer.chains_world import Camp
from tests.enn_trainer.numbers_world import Targets
from tests.entity_env.builders import assert_same
from tests.entity_env.worlds import Walk


class Heard(VecEnvWrapper):
    """Keeps what its environments were given. Only for tests."""

    def __init__(self, env: Any) -> None:
        super().__init__(env)
        self.heard: list[dict[str, Ragged]] = []

    def reset(self, obs_config: Any) -> VecObs:
        return self.env.reset(obs_config)

    def act_async(self, actions: Mapping[str, Ragged], obs_filter: Any) -> None:
        self.heard.append({n: Ragged(r.values.copy(), r.lengths) for n, r in actions.items()})
        self.env.act_async(actions, obs_filter)


def record(path: Path, world: Any, steps: int = 13, **options: Any) -> list[dict[str, Ragged]]:
    """Record random play; what the environments were given in each step."""
    heard = Heard(EnvList(world, 4))
    envs = RecordingVecEnv(heard, path, **options)
    envs.seed(0)
    obs, rng = envs.reset(envs.obs_space()), np.random.default_rng(0)
    for _ in range(steps):
        obs = envs.act(random_choices(obs, envs.action_space(), rng), envs.obs_space())
    envs.close()
    return heard.heard


@pytest.mark.parametrize("world", [Camp, Targets])
def test_recorded_actions_equal_those_of_the_environment(tmp_path: Path, world: Any) -> None:
    heard = record(tmp_path / "file", world)
    recording = Recording.open(tmp_path / "file")
    assert_same(recording.action_space, world().action_space())
    for step, got in zip(recording.steps(), heard, strict=True):
        assert_same(step.decisions.actions, got)
    rows: dict[str, list[bytes]] = {name: [] for name in heard[0]}
    for part in recording.split(0.5, seed=1):
        for episode in part.episodes():
            for k, number in enumerate(episode.steps.tolist()):
                at = episode.number // 4 * 10 + number
                for name, chosen in episode.decisions.actions.items():
                    expected = heard[at][name][episode.env].values
                    assert chosen[k].values.tobytes() == expected.tobytes()
                    rows[name].append(expected.tobytes())
    assert all(len(ragged) == 4 * 13 for ragged in rows.values())
    record(tmp_path / "some", world, subsample=3)
    some = [step.decisions for step in Recording.open(tmp_path / "some").steps()]
    steps = [*Recording.open(tmp_path / "some").steps()]
    for step, got in zip(steps, heard, strict=True):
        assert_same(step.decisions.actions, {n: r.take(step.kept) for n, r in got.items()})
    assert 0 < len(RecordedFrames.cat(some)) < 4 * 13


def test_files_without_continuous_actions_keep_their_version(tmp_path: Path) -> None:
    record(tmp_path / "old", Walk, steps=2)
    assert (tmp_path / "old").read_bytes().startswith(PREFIX)
    for world in (Camp, Targets):
        path = tmp_path / world.__name__
        record(path, world, steps=2)
        assert path.read_bytes()[8:12] == b"\2\0\0\0"
        record(path, world, steps=2)  # goes on
        assert len([*Recording.open(path).steps()]) == 4
        path.write_bytes(PREFIX + path.read_bytes()[len(PREFIX) :])
        with pytest.raises(RecordingError, match=r"action_space: expected format version 2 .* got"):
            Recording.open(path)


def test_drawn_samples_may_be_missing_in_some_frames(tmp_path: Path) -> None:
    envs = RecordingVecEnv(EnvList(Targets, 2), tmp_path / "file")
    obs, rng = envs.reset(envs.obs_space()), np.random.default_rng(0)
    for k in range(4):
        choices = random_choices(obs, envs.action_space(), rng)
        drawn = {"aim": choices["aim"]} if k % 2 else None
        obs = envs.act(choices, envs.obs_space(), drawn=drawn)
    envs.close()
    for episode in Recording.open(tmp_path / "file").episodes():
        aim, drawn_aim = (d["aim"] for d in (episode.decisions.actions, episode.decisions.drawn))
        assert drawn_aim.lengths.tolist() == [0, aim.lengths[1], 0, aim.lengths[3]]
        np.testing.assert_array_equal(drawn_aim[1].values, aim[1].values)


class Turned(Targets):
    """The same with its components in another order."""

    def action_space(self) -> dict[str, ActionSpace]:
        spaces = super().action_space()
        bounds = {"free": (-np.inf, np.inf), "x": (-1.0, 1.0)}
        return spaces | {"aim": ContinuousActionSpace(bounds)}

    def observe(self, reward: float) -> Observation:
        obs = super().observe(reward)
        aim = ContinuousActionMask(actor_types=["Archer"])
        obs.actions = {**obs.actions, "aim": aim}
        return obs


class Wider(Targets):
    """The same with other bounds."""

    def action_space(self) -> dict[str, ActionSpace]:
        spaces = super().action_space()
        bounds = {"x": (-2.0, 1.0), "free": (-np.inf, np.inf)}
        return spaces | {"aim": ContinuousActionSpace(bounds)}


class Silent(Camp):
    """The same, but shouts after other choices."""

    def action_space(self) -> dict[str, ActionSpace]:
        return super().action_space() | {
            "shout": CategoricalActionSpace(["hey", "ho", "ha"], after="do", when=["heal"])
        }


@pytest.mark.parametrize(
    ("first", "then", "message"),
    [
        (Targets, Turned, "with the components of aim in another order"),
        (Targets, Wider, "with another action_space$"),
        (Camp, Silent, "with another action_space$"),
    ],
)
def test_files_with_other_continuous_or_dependent_actions_are_not_continued(
    tmp_path: Path, first: Any, then: Any, message: str
) -> None:
    record(tmp_path / "file", first, steps=1)
    with pytest.raises(RecordingError, match=message):
        record(tmp_path / "file", then, steps=1)


# -- Files of strangers ------------------------------------------------------------------------


def payload_of(path: Path, world: Any) -> dict[str, Any]:
    """The payload of a step that is right."""
    record(path, world, steps=1)
    (step,) = Recording.open(path).steps()
    fields = {name: value for name, value in vars(step).items() if name != "decisions"}
    return {**fields, **step.decisions.payload()}


def error_of(path: Path, world: Any, payload: dict[str, Any], **header: Any) -> str:
    spaces = world().obs_space(), world().action_space()
    begin = {**recording_header(*spaces, 4), **header}
    path.write_bytes(prefix_of(spaces[1]) + framed(begin) + framed(payload))
    try:
        [*Recording.open(path).episodes()]
    except RecordingError as error:
        return str(error)
    return ""


def with_mask(payload: dict[str, Any], name: str, **changes: Any) -> dict[str, Any]:
    obs: VecObs = payload["obs"]
    masks = dict(obs.action_masks)
    masks[name] = replace(masks[name], **changes)  # type: ignore[type-var]
    return {**payload, "obs": replace(obs, action_masks=masks)}


def test_continuous_actions_of_another_dtype_or_shape_are_rejected(tmp_path: Path) -> None:
    good = payload_of(tmp_path / "good", Targets)
    assert not error_of(tmp_path / "file", Targets, good)
    aim = good["actions"]["aim"]
    whole, wide = aim.values.astype(np.int64), np.repeat(aim.values, 2, axis=1)
    first = Ragged(aim.values[:1], np.array([1, 0, 0, 0]))
    low = good["obs"].action_masks["aim"].low
    for changes, message in (
        ({"actions": {"aim": replace(aim, values=whole)}}, r"actions\['aim'\]: expected numbers"),
        ({"actions": {"aim": replace(aim, values=wide)}}, "expected 2 numbers for each actor"),
        ({"actions": {"aim": replace(aim, values=aim.values[:, 0])}}, "expected 2 numbers"),
        ({"actions": {"call": aim}}, r"actions\['call'\]: expected numbers like int64"),
        ({"drawn": {"aim": replace(aim, values=wide)}}, r"drawn\['aim'\]: expected 2 numbers"),
        ({"drawn": {"call": aim}}, r"drawn\['call'\]: expected actions of numbers"),
        ({"drawn": {"no": aim}}, r"drawn\['no'\]: expected actions among"),
        ({"drawn": {"aim": aim}, "actions": {}}, "one for each choice of a frame, or none"),
        ({"drawn": {"aim": aim.take(np.arange(3))}}, r"drawn\['aim'\]: expected 4 frames"),
        ({"drawn": 1}, "drawn"),
        (with_mask(good, "aim", low=first), r"low: expected .* rows|low.*expected"),
        (with_mask(good, "aim", low=replace(low, values=low.values - 9)), "x: -1 <= low"),
        (with_mask(good, "aim", low=replace(low, values=low.values * np.nan)), "x: -1 <= low"),
    ):
        error = error_of(tmp_path / "file", Targets, {**good, **changes})
        assert error.startswith(f"{tmp_path / 'file'}: record at byte"), (changes, error)
        assert re.search(message, error), (message, error)


def test_masks_that_do_not_fit_dependent_actions_are_rejected(tmp_path: Path) -> None:
    good = payload_of(tmp_path / "good", Camp)
    assert not error_of(tmp_path / "file", Camp, good)
    masks = good["obs"].action_masks
    after, do = masks["whom"].after, masks["do"]
    elsewhere = replace(after.rows, values=after.rows.values + 7)
    everything = np.ones((do.actors.items(), 3), np.bool_)
    barred = masks["whom"].full_mask(())
    for changes, message in (
        (with_mask(good, "whom", after=None), r"\['whom'\].after: expected 'do' with labels"),
        (with_mask(good, "do", after=after), r"\['do'\].after: expected none, got 'do'"),
        (with_mask(good, "whom", after=replace(after, action="trade")), "got 'trade'"),
        (with_mask(good, "whom", after=replace(after, when=[1])), "with labels"),
        (
            with_mask(good, "whom", after=replace(after, rows=elsewhere)),
            "rows that match the parent action",
        ),
        (
            with_mask(good, "do", mask=Ragged(everything, do.actors.lengths)),
            "choices with a legal continuation",
        ),
        (
            with_mask(good, "whom", mask=replace(barred, values=barred.values & False)),
            "choices with a legal continuation",
        ),
    ):
        error = error_of(tmp_path / "file", Camp, changes)
        assert error.startswith(f"{tmp_path / 'file'}: record at byte"), error
        assert message in error or re.search(message, error), error


DO = CategoricalActionSpace(["x"])


@pytest.mark.parametrize(
    ("spaces", "message"),
    [
        ({"a": SelectEntityActionSpace(after="a")}, "after: expected one of"),
        (
            {"a": SelectEntityActionSpace(after="b"), "b": SelectEntityActionSpace(after="a")},
            "expected no cycle",
        ),
        (
            {
                "do": CategoricalActionSpace(["x"]),
                "b": SelectEntityActionSpace(after="do", when=["y"]),
            },
            "expected labels among",
        ),
    ],
)
def test_headers_with_impossible_dependent_actions_are_rejected(
    tmp_path: Path, spaces: Any, message: str
) -> None:
    path = tmp_path / "file"
    header = recording_header(Camp().obs_space(), spaces, 1)
    path.write_bytes(prefix_of(spaces) + framed(header))
    with pytest.raises(RecordingError, match=f"is not a header: action_space.*{message}"):
        Recording.open(path)


def test_masks_by_many_labels_take_memory_in_proportion_to_the_file(tmp_path: Path) -> None:
    """The mask has labels * actors rows, the file only labels + actors numbers."""
    labels = [f"l{k}" for k in range(8_000)]
    spaces: dict[str, ActionSpace] = {
        "do": CategoricalActionSpace(labels),
        "whom": SelectEntityActionSpace(after="do", when=labels),
    }
    good = payload_of(tmp_path / "good", Camp)
    obs: VecObs = good["obs"]
    many = Ragged(np.zeros(30_000, np.int8), np.array([30_000]))
    masks = {
        "do": replace(obs.action_masks["do"], actors=many, mask=None),  # type: ignore[type-var]
        "whom": replace(  # type: ignore[type-var]
            obs.action_masks["whom"],
            actors=many,
            actees=Ragged(np.zeros(0, np.int64), np.array([0])),
            mask=None,
            after=replace(obs.action_masks["whom"].after, rows=many, when=[*range(8_000)]),  # type: ignore[type-var]
        ),
    }
    types = ("Medic", "Ill", "Foe")
    features = {name: obs.features[name].take(np.array([0])) for name in types}
    small = replace(obs, features=features, visible={}, action_masks=masks, reward=obs.reward[:1])
    small = replace(small, done=obs.done[:1], truncated=obs.truncated[:1])
    first_env = {name: good[name][:1] for name in ("episode", "step", "reward", "terminated")}
    payload = {**good, **first_env, "truncated": good["truncated"][:1], "kept": np.array([0])}
    payload |= {"obs": small, "actions": {}, "values": good["values"][:1]}
    path = tmp_path / "file"
    header = recording_header(Camp().obs_space(), spaces, 1)
    path.write_bytes(prefix_of(spaces) + framed(header) + framed(payload))
    with pytest.raises(RecordingError, match="at most 512 choices a byte"):
        [*Recording.open(path).steps()]


def test_replaying_a_recording_reproduces_its_frames(tmp_path: Path) -> None:
    for world in (Camp, Targets):
        path = tmp_path / world.__name__
        record(path, world)
        envs = EnvList(world, 4)
        envs.seed(0)
        obs = envs.reset(envs.obs_space())
        for step in Recording.open(path).steps():
            for name, rows in step.decisions.obs.features.items():
                np.testing.assert_array_equal(obs.features[name].values, rows.values)
            obs = envs.act(step.decisions.actions, envs.obs_space())
            np.testing.assert_array_equal(obs.reward, step.reward)
