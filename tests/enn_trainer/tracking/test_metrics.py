"""Statistics of actions, against loops over actors."""

import math
from collections import Counter

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from enn_trainer.algorithms.ppo.returns import advantages
from enn_trainer.config import OptimizerConfig
from enn_trainer.config.ppo_config import PPOConfig
from enn_trainer.experience.collector import Rollout
from enn_trainer.tracking.metrics import action_statistics, metric_scalars, num_legal
from entity_env import Metric
from entity_env.spaces import GLOBAL, SelectEntityActionSpace
from rogue_net.ragged import ActionBatch, RaggedTensor
from tests.enn_trainer.algorithms.ppo.builders import optimize
from tests.enn_trainer.tracking.rollouts import SPACE, collected


def by_loops(rollout: Rollout) -> dict[str, float]:
    """The same numbers, actor by actor."""
    scalars: dict[str, float] = {}
    types = [name for name in rollout.batch.features if name != GLOBAL]
    for name, space in SPACE.items():
        action, chosen = rollout.batch.actions[name], rollout.actions[name]
        shares, entropies, forbidden, possible = [], [], 0, 0
        picked: Counter[str] = Counter()
        actees_of_frames = []
        row = flat = actee = 0
        for frame in range(rollout.num_frames):
            actors = int(action.actors.lengths[frame])
            actees = 0 if action.actees is None else int(action.actees.lengths[frame])
            if actors and action.actees is not None:
                actees_of_frames.append(actees)
            for _ in range(actors):
                choice = int(chosen.values[row])
                if isinstance(space, SelectEntityActionSpace):
                    n = actees
                    mask = [True] * n
                    if action.mask is not None:
                        mask = action.mask.values[flat : flat + n].tolist()
                    flat += n
                    assert action.actees is not None
                    position = int(action.actees.values[actee + choice])
                    for entity in types:
                        count = int(rollout.batch.features[entity].lengths[frame])
                        if position < count:
                            picked[f"policy/{name}/selected/{entity}"] += 1
                            break
                        position -= count
                else:
                    n = len(space)  # type: ignore[arg-type]
                    mask = [True] * n
                    if action.mask is not None:
                        mask = action.mask.values[row].tolist()
                    picked[f"actions/{name}/{space.index_to_label[choice]}"] += 1  # type: ignore[attr-defined]
                entropy = float(rollout.entropies[name].values[row])
                entropies.append(entropy)
                legal = sum(mask)
                if legal > 1:
                    shares.append(entropy / math.log(legal))
                forbidden += n - legal
                possible += n
                row += 1
            actee += actees
        scalars[f"policy/{name}/actors_per_frame"] = row / rollout.num_frames
        if row:
            scalars[f"policy/{name}/entropy"] = sum(entropies) / row
            scalars[f"policy/{name}/mask_rate"] = forbidden / possible
            scalars |= {tag: count / row for tag, count in picked.items()}
        if shares:
            scalars[f"policy/{name}/normalised_entropy"] = sum(shares) / len(shares)
        if actees_of_frames:
            scalars[f"policy/{name}/actees_per_frame"] = float(np.mean(actees_of_frames))
    return scalars


@pytest.mark.slow
@settings(max_examples=10)
@given(st.integers(0, 10**6))
def test_action_statistics_match_a_loop_over_actors(seed: int) -> None:
    _, rollout = collected(seed)
    got = action_statistics(rollout, SPACE)  # type: ignore[arg-type]
    expected = by_loops(rollout)
    assert {tag for tag, value in got.items() if value} == {t for t, v in expected.items() if v}
    for tag, value in expected.items():
        assert got[tag] == pytest.approx(value, rel=1e-5), tag


def test_frequencies_of_labels_add_up_to_one() -> None:
    _, rollout = collected(3)
    got = action_statistics(rollout, SPACE)  # type: ignore[arg-type]
    for prefix in ("actions/walk/", "actions/call/", "policy/watch/selected/"):
        assert sum(v for tag, v in got.items() if tag.startswith(prefix)) == pytest.approx(1)
    assert {"actions/walk/left", "actions/walk/stay", "actions/walk/right"} <= set(got)


def test_action_without_actors_has_only_a_count() -> None:
    _, rollout = collected(0)
    for action in ("walk", "watch", "call"):
        empty = RaggedTensor(torch.zeros(0, dtype=torch.int64), np.zeros(30, dtype=np.int64))
        rollout.actions[action] = empty  # type: ignore[index]
    got = action_statistics(rollout, SPACE)  # type: ignore[arg-type]
    assert got == {f"policy/{name}/actors_per_frame": 0.0 for name in SPACE}


def test_legal_choices_of_a_flat_mask_are_counted_actor_by_actor() -> None:
    mask = torch.tensor([True, False, True, True, True, False])
    lengths = np.array([2, 1])
    batch = ActionBatch(
        RaggedTensor(torch.zeros(3, dtype=torch.int64), lengths),
        RaggedTensor(mask, np.array([4, 2])),
        RaggedTensor(torch.zeros(4, dtype=torch.int64), np.array([2, 2])),
    )
    assert num_legal(batch, torch.tensor([2, 2, 2])).tolist() == [1, 2, 1]


def test_kl_of_actions_is_a_mean_over_their_actors_and_adds_up() -> None:
    net, rollout = collected(1)
    num_actors = {name: len(rows.values) for name, rows in rollout.actions.items()}
    optimizer = torch.optim.SGD(net.parameters(), lr=0.5)
    output = optimize(
        *(net, optimizer, rollout, advantages(rollout, PPOConfig())),
        ppo=PPOConfig(),
        optim=OptimizerConfig(bs=10, update_epochs=2),
        ent_coef=0.0,
        seed=0,
    )
    kls = {name: output[f"policy/{name}/kl"] for name in num_actors}
    assert len(set(kls.values())) == 3
    assert all(kl > 0 for kl in kls.values())
    mean = sum(kls[name] * n for name, n in num_actors.items()) / sum(num_actors.values())
    assert output["losses/approx_kl"] == pytest.approx(mean, rel=1e-4)


def test_metric_scalars_have_mean_min_max_and_count() -> None:
    metrics = {"reward": Metric.of(np.array([1.0, 2.0, 6.0]))}
    assert metric_scalars(metrics) == {
        "reward.mean": 3.0,
        "reward.min": 1.0,
        "reward.max": 6.0,
        "reward.count": 3.0,
    }


def test_metric_without_values_has_only_a_count() -> None:
    """Its range is infinite and its mean undefined; a chart is better off without them."""
    assert metric_scalars({"reward": Metric()}) == {"reward.count": 0.0}
