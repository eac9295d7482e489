"""Sums of learning diagnostics: against loops, and of parts of a run."""

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from enn_trainer.callbacks import learning_sums
from enn_trainer.callbacks.learning_sums import (
    Sums,
    choice_sums,
    forget_late,
    late_part,
    run_sums,
    updated_constants,
)
from entity_env import (
    ContinuousActionMask,
    ContinuousActionSpace,
    Entity,
    Flag,
    Kind,
    Observation,
    ObsSpace,
    batch_obs,
)
from entity_env.kinds import label_dtype
from rogue_net.ragged import EntityBatch, RaggedTensor
from tests.enn_trainer.tracking.rollouts import SPACE, collected


def choices_by_loops(rollout: Any) -> Sums:
    """The sums of `choice_sums`, actor by actor."""
    idle = sum(
        all(action.actors.lengths[frame] == 0 for action in rollout.batch.actions.values())
        for frame in range(rollout.num_frames)
    )
    sums: Sums = {"run": {"examined": rollout.num_frames, "idle": idle}}
    for name, space in SPACE.items():
        labels = getattr(space, "labels", [])
        chosen, mask = rollout.actions[name].values, rollout.batch.actions[name].mask
        if not labels or not len(chosen):
            continue
        policy = sums[f"policy/{name}"] = {"choosing": 0.0, "entropy": 0.0}
        chance, selected = (
            sums.setdefault(f"{kind}/{name}", dict.fromkeys(labels, 0.0))
            for kind in ("chance", "taken")
        )
        for actor, choice in enumerate(chosen.tolist()):
            row = [True] * len(labels) if mask is None else mask.values[actor].tolist()
            legal = [label for label, allowed in zip(labels, row, strict=True) if allowed]
            if len(legal) < 2:
                continue
            policy["choosing"] += 1
            policy["entropy"] += float(rollout.entropies[name].values[actor])
            for label in legal:
                chance[label] += 1 / len(legal)
            selected[labels[choice]] += 1
    return sums


def assert_close(got: Sums, expected: Sums) -> None:
    assert got.keys() == expected.keys()
    for kind, numbers in expected.items():
        assert got[kind] == pytest.approx(numbers, rel=1e-5), kind


@pytest.mark.slow
@settings(max_examples=15)
@given(st.integers(0, 99))
def test_choice_sums_match_a_loop(seed: int) -> None:
    _, rollout = collected(seed)
    assert_close(choice_sums(rollout, SPACE), choices_by_loops(rollout))  # type: ignore[arg-type]


def test_numbers_are_summed_relative_to_their_initial_means() -> None:
    space = ContinuousActionSpace({"x": (0, 4), "y": (-np.inf, np.inf)}, start={"x": 1, "y": 5})
    mask = ContinuousActionMask(actor_types=["Ship"], high=[[4, np.inf], [0, np.inf]])
    obs = Observation(entities={"Ship": [[0.0], [0.0]]}, actions={"fly": mask})
    obs_space = ObsSpace(entities={"Ship": Entity(["f"])})
    batch = EntityBatch.of(batch_obs([obs], obs_space, {"fly": space}))
    chosen = RaggedTensor(torch.tensor([[0.5, 4.0], [9.0, 7.0]]), np.array([2]))
    entropies = RaggedTensor(torch.zeros(2), np.array([2]))
    rollout: Any = SimpleNamespace(
        batch=batch, actions={"fly": chosen}, entropies={"fly": entropies}, num_frames=1
    )
    sums = choice_sums(rollout, {"fly": space})
    assert sums["numbers/fly"] == {"x": 1, "y": 2}  # x of the second ship is fixed
    x = 0.5 - np.log(1 / 3)  # the initial mean of x is a quarter of the range
    assert sums["shift/fly"] == pytest.approx({"x": x, "y": 1.0})
    assert sums["square/fly"] == pytest.approx({"x": x**2, "y": 5.0})


def test_actions_with_many_labels_are_not_examined(monkeypatch: pytest.MonkeyPatch) -> None:
    """As saves would have numbers of each of them, and be too large to be read."""
    _, rollout = collected(0)
    assert {"taken/walk", "taken/call"} <= choice_sums(rollout, SPACE).keys()  # type: ignore[arg-type]
    monkeypatch.setattr(learning_sums, "MOST_LABELS", 2)
    result = choice_sums(rollout, SPACE)  # type: ignore[arg-type]
    assert "taken/walk" not in result
    assert "taken/call" in result


def test_run_sums_match_the_metrics() -> None:
    _, rollout = collected(0)
    assert "reward.min" not in run_sums(rollout)["run"]  # without `AddMetricsWrapper`
    assert run_sums(rollout)["run"]["frames"] == rollout.num_frames
    actors = {name: len(rows.values) for name, rows in rollout.actions.items()}
    assert run_sums(rollout)["actors"] == actors


NUMBER, FLAG = st.sampled_from([0.0, 0.5]), st.integers(0, 1)
ROWS: dict[str, Any] = {
    "A": st.tuples(NUMBER, NUMBER, FLAG),
    "B": st.tuples(),
    "C": st.tuples(FLAG, st.sampled_from([0, 299])),
    "__global__": st.tuples(NUMBER, FLAG),
}


@pytest.mark.slow
@given(st.data())
def test_constant_features_have_a_single_value(data: st.DataObject) -> None:
    many = Kind("word", [*map(str, range(300))])
    space = ObsSpace(
        ["hour", Flag("wet")],
        {"A": Entity(["x", "y", Flag("open")]), "B": Entity([]), "C": Entity([Flag("on"), many])},
    )
    types = {**space.entities, "__global__": space.global_entity}
    constants: Sums = {}
    seen: dict[str, list[Any]] = {name: [] for name in types}
    for _ in range(data.draw(st.integers(1, 4))):
        features, kinds = {}, {}
        for name, entity in types.items():
            lengths = data.draw(st.lists(st.integers(0, 2), min_size=3, max_size=3))
            rows = [data.draw(ROWS[name]) for _ in range(sum(lengths))]
            values = np.array(rows, np.float32).reshape(len(rows), len(entity.columns))
            numbers, labels = np.split(values, [len(entity.features)], axis=1)
            features[name] = RaggedTensor(torch.from_numpy(numbers), np.array(lengths))
            if entity.kinds:
                indices = torch.from_numpy(labels.astype(label_dtype(entity.kinds)))
                kinds[name] = RaggedTensor(indices, np.array(lengths))
            seen[name] += values.tolist()
        constants = updated_constants(
            constants, EntityBatch(features, {}, {}, 3, kinds=kinds), space
        )
    expected = {
        name: {
            column: rows[0][i]
            for i, column in enumerate(types[name].columns)
            if len({row[i] for row in rows}) == 1
        }
        for name, rows in seen.items()
        if rows
    }
    assert constants == expected


@pytest.mark.parametrize(
    ("step", "num_frames", "total", "late"),
    [
        (16_384, 1024, 20_480, 0),
        (16_896, 1024, 20_480, 512),
        (17_408, 1024, 20_480, 1024),
        (14_000, 1024, 14_000, 0),  # a fifth of it is too short
    ],
)
def test_late_part_counts_frames_of_the_last_fifth(
    step: int, num_frames: int, total: int, late: int
) -> None:
    assert late_part(step, num_frames, total) == late


def test_extended_run_resets_its_last_fifth() -> None:
    whole: Sums = {"run": {}, "late/do": {"share.sum": 1.0, "frames": 1.0}}
    forget_late(whole)
    assert whole == {"run": {}}
