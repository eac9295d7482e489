"""Shards: groups of environments, and learning that is cut by them."""

import copy
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from enn_trainer import OptimizerConfig, PPOConfig, State
from enn_trainer.algorithms.minibatches import FlatGradients
from enn_trainer.algorithms.ppo.returns import advantages
from enn_trainer.base.group import Group, tree_sum
from enn_trainer.experience.collector import Rollout
from enn_trainer.runtime import exchange
from enn_trainer.runtime.shards import UNCUT, Shards
from entity_env.examples import Minefield
from rogue_net.rogue_net import RogueNet
from tests.enn_trainer.algorithms.ppo.builders import OPTIONS, a_rollout, double, optimize
from tests.enn_trainer.builders import run_small
from tests.enn_trainer.run.thread_group import in_ranks
from tests.enn_trainer.worlds import Meadow, Pasture


def test_shards_are_whole_matches_and_ranks_have_consecutive_ones() -> None:
    shards = Shards.of(num_envs=22, sides=2, count=4)
    assert shards.bounds == (0, 4, 10, 16, 22)
    assert [shards.for_rank(rank, 3).local for rank in range(3)] == [
        range(1),
        range(1, 2),
        range(2, 4),
    ]
    assert tree_sum(["a", "b", "c", "d", "e"], "({}{})".format) == "(((ab)(cd))e)"


def test_single_shard_has_every_frame_in_place() -> None:
    frames = np.random.default_rng(0).permutation(1000)
    assert np.array_equal(UNCUT.rows(frames), frames)
    assert [at.tolist() for at in UNCUT.positions(frames)] == [list(range(1000))]
    assert UNCUT.runs(frames) == [slice(0, 1000)]
    assert (UNCUT.columns.start, UNCUT.count, UNCUT.place(7)) == (0, 1, 0)


@pytest.mark.slow
def test_four_shards_equal_one_up_to_rounding() -> None:
    net, rollout = a_rollout(num_envs=7)
    rollout, nets = double(rollout), [copy.deepcopy(net).double() for _ in range(2)]
    cut = replace(rollout, shards=Shards.of(7, 1, 4))
    for one, frames in zip(nets, (rollout, cut), strict=True):
        optimizer = torch.optim.SGD(one.parameters(), 0.1)
        ppo, optim = PPOConfig(), OptimizerConfig(bs=8, update_epochs=3)
        estimate = advantages(frames, ppo)
        optimize(one, optimizer, frames, estimate, ppo=ppo, optim=optim, ent_coef=0.1, seed=3)
    for a, b in zip(*(one.parameters() for one in nets), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-10, atol=1e-10)


@cache
def recorded(num_envs: int) -> tuple[RogueNet, Rollout]:
    """Return a network and its rollout, in float64."""
    net, rollout = a_rollout(num_envs=num_envs, steps=3)
    return net.double(), double(rollout)


def learnt(num_envs: int, count: int, bs: int, ppo: PPOConfig) -> list[torch.Tensor]:
    """Return the parameters after an epoch that is cut into shards."""
    net, rollout = recorded(num_envs)
    net, rollout = copy.deepcopy(net), replace(rollout, shards=Shards.of(num_envs, 1, count))
    optim = OptimizerConfig(bs=bs, update_epochs=1)
    steps = torch.optim.SGD(net.parameters(), 0.1)
    estimate = advantages(rollout, ppo)
    optimize(net, steps, rollout, estimate, ppo=ppo, optim=optim, ent_coef=0.1, seed=3)
    return [*net.parameters()]


@pytest.mark.slow
@settings(max_examples=20)
@given(
    num_envs=st.integers(2, 7),
    count=st.integers(2, 7),
    bs=st.integers(1, 9),
    options=st.sampled_from(sorted(OPTIONS.keys() - {"hl_gauss"})),
)
def test_shards_missing_in_minibatches_do_not_change_training(
    num_envs: int, count: int, bs: int, options: str
) -> None:
    """Small minibatches have no frame, or no actor, of most shards."""
    count, bs, ppo = min(count, num_envs), min(bs, 3 * num_envs), PPOConfig(**OPTIONS[options])
    ppo = replace(ppo, norm_adv=ppo.norm_adv and bs > 1)
    pairs = zip(learnt(num_envs, count, bs, ppo), learnt(num_envs, 1, bs, ppo), strict=True)
    for cut, whole in pairs:
        torch.testing.assert_close(cut, whole, rtol=1e-9, atol=1e-9)


def test_rollouts_of_the_tests_have_frames_without_actors() -> None:
    _, rollout = recorded(7)
    actors = sum(rows.lengths for rows in rollout.actions.values())
    assert (actors == 0).any()


@given(num_envs=st.integers(1, 30), sides=st.integers(1, 3), data=st.data())
def test_shards_of_ranks_have_every_environment_once_in_whole_matches(
    num_envs: int, sides: int, data: st.DataObject
) -> None:
    count = data.draw(st.integers(1, num_envs))
    ranks = data.draw(st.integers(1, count))
    shards = Shards.of(num_envs * sides, sides, count)
    each = [shards.for_rank(rank, ranks) for rank in range(ranks)]
    assert [column for own in each for column in own.columns] == [*range(num_envs * sides)]
    sizes = [s.stop - s.start for own in each for s in own.slices]
    assert len(sizes) == count
    assert all(size > 0 and size % sides == 0 for size in sizes)
    assert max(sizes) - min(sizes) <= sides
    frames = np.array(data.draw(st.lists(st.integers(0, 3 * num_envs * sides - 1))), np.int64)
    places = np.concatenate(
        [own.positions(frames)[i] for own in each for i in range(len(own.local))]
    )
    assert sorted(places.tolist()) == [*range(len(frames))]


@given(
    sizes=st.lists(st.tuples(st.integers(0, 5), st.integers(1, 40)), min_size=1, max_size=4),
    shards=st.integers(1, 7),
    ranks=st.integers(1, 7),
    are_whole=st.booleans(),
    seed=st.integers(0, 99),
)
def test_sums_of_gradients_do_not_depend_on_ranks_and_messages(
    sizes: list[tuple[int, int]], shards: int, ranks: int, are_whole: bool, seed: int
) -> None:
    """Also where shards lack gradients of some parameters, or all of them lack it."""
    ranks, rng = min(ranks, shards), np.random.default_rng(seed)
    dtypes = [(torch.float32, torch.float64)[i] for i in rng.integers(0, 2, len(sizes))]
    of_shards = [
        [
            torch.from_numpy(rng.normal(size=size)).to(dtype) if rng.random() < 0.7 else None
            for size, dtype in zip(sizes, dtypes, strict=True)
        ]
        for _ in range(shards)
    ]
    owned = [Shards.of(shards, 1, shards).for_rank(rank, ranks).local for rank in range(ranks)]

    def summed(group: Group) -> tuple[list[torch.Tensor | None], list[int]]:
        learnt = [
            torch.nn.Parameter(torch.zeros(size, dtype=dtype))
            for size, dtype in zip(sizes, dtypes, strict=True)
        ]
        gradients = FlatGradients(learnt, len(owned[group.rank]))
        for shard in owned[group.rank]:
            gradients.add(shard - owned[group.rank].start, of_shards[shard])
        values = gradients.sum(group, [len(own) for own in owned], [*owned[group.rank]])
        return [parameter.grad for parameter in learnt], values

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(exchange, "_MAX_GATHERED_BYTES", 2**30 if are_whole else 0)
        patch.setattr(exchange, "_MESSAGE_BYTES", 2**30 if are_whole else 0)
        found = in_ranks(ranks, summed)
    for sums, values in found:
        assert values == [*range(shards)]
        for i, got in enumerate(sums):
            given = [one[i] for one in of_shards]
            if all(one is None for one in given):
                assert got is None
                continue
            zero = torch.zeros(sizes[i], dtype=dtypes[i])
            expected = tree_sum([zero if one is None else one for one in given], torch.add)
            assert got is not None
            assert got.numpy().tobytes() == expected.numpy().tobytes()


@pytest.mark.slow
@pytest.mark.parametrize(("env", "counts"), [(Meadow, (2, 4)), (Minefield, (3,))])
def test_runs_of_any_number_of_shards_are_equal_up_to_rounding(
    tmp_path: Path, env: Any, counts: tuple[int, ...]
) -> None:
    """After 20 updates, of which the actions are drawn from slightly other probabilities."""

    def run(count: int) -> State:
        options = (f"scale.shards={count}", "total_timesteps=480", f"env.id={env.__name__}")
        return run_small(tmp_path, *options, env=env).state

    whole = {name: p for name, p in run(1).agent.state_dict().items() if p.is_floating_point()}
    for count in counts:
        cut = run(count).agent.state_dict()
        norms = [(cut[n] - p).norm() / p.norm().clamp(min=1e-3) for n, p in whole.items()]
        assert max(norms) < 1e-5


def test_resumed_run_reports_changed_shards(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run_small(tmp_path, "total_timesteps=24", env=Pasture, checkpoint_dir=tmp_path / "run")
    capsys.readouterr()
    save = max((tmp_path / "run").glob("step-*"))
    run_small(tmp_path, "scale.shards=2", env=Pasture, init_path=save)
    shown = capsys.readouterr()
    assert "scale.shards None -> 2" in shown.out + shown.err
