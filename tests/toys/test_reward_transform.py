"""A reward transform of one's own: returns so far are clipped at a running level."""

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from enn_trainer import (
    Callback,
    CheckpointError,
    State,
    StateManager,
    Trainer,
    init_train_state,
    train,
)
from enn_trainer.algorithms.algorithm import RewardTransform
from enn_trainer.base.state_part import StateDict
from enn_trainer.checkpoints.migrate.evolve import evolve
from enn_trainer.experience.collector import Rollout
from enn_trainer.testing import check_state_part
from tests.enn_trainer.worlds import Clockwork
from tests.toys.world import (
    Lane,
    assert_failed_updates_change_nothing,
    assert_resumes_to_the_bit,
    assert_same,
    everything,
    manager_of,
    newest,
    run,
)


class Clipping(RewardTransform):
    """Rewards clipped at a level that follows their size; all tensors are changed in place.

    Attributes:
        level: () float64, infinite before the first rollout.
        paid: (B,) float64, sum of the clipped rewards of each running episode.
        begun: number of restarts of all episodes.
    """

    def __init__(self, num_envs: int) -> None:
        self.level = torch.tensor(float("inf"), dtype=torch.float64)
        self.paid = torch.zeros(num_envs, dtype=torch.float64)
        self.begun = 0

    def begin_episodes(self, num_envs: int) -> None:
        """Forget what running episodes paid."""
        self.paid = self.paid.new_zeros(num_envs)
        self.begun += 1

    def transform(self, rewards: Tensor, rollout: Rollout, gamma: float) -> Tensor:
        """Clip, then lower or raise the level."""
        clipped = rewards.clamp(-self.level, self.level).to(rewards.dtype)
        for reward, ended in zip(clipped, rollout.terminated | rollout.truncated, strict=True):
            self.paid += reward
            self.paid[ended] = 0
        size = rewards.abs().mean()
        if self.level.isinf():
            self.level.fill_(size)
        else:
            self.level.mul_(0.9).add_(0.1 * size)
        return clipped

    def metrics(self) -> dict[str, float]:
        """Return the level."""
        return {"charts/clipping_level": self.level.item()}

    def state_dict(self) -> StateDict:
        """Return level, payments and count."""
        return {"level": self.level, "paid": self.paid, "begun": self.begun}

    def load_state_dict(self, state: StateDict) -> None:
        """Take over the tensors."""
        self.level = state.get("level", self.level)
        self.paid = state.get("paid", self.paid)
        self.begun = state.get("begun", self.begun)


def with_clipping(config: Any, ctx: dict[str, Any]) -> State:
    """Return the state of a new run with clipped rewards."""
    state = init_train_state(config, ctx)
    state.algorithm.reward_transforms["clipping"] = Clipping(config.rollout.num_envs)
    return state


def clipping_of(manager: StateManager) -> Clipping:
    clipping: Clipping = manager.state.algorithm.reward_transforms["clipping"]
    return clipping


class Keeps(Callback):
    """Keeps the rewards of the last rollout."""

    rewards: Tensor

    def on_rollout_end(self, trainer: Any, rollout: Rollout) -> None:
        """Keep them."""
        self.rollout, self.rewards = rollout, rollout.rewards.clone()


def test_reward_transform_passes_the_conformance_test() -> None:
    clipping = Clipping(2)
    clipping.begin_episodes(3)
    clipping.level.fill_(2.0)
    check_state_part(clipping, Clipping(2))


def test_reward_transform_changes_training_and_is_logged(tmp_path: Path) -> None:
    """It comes after reward scaling, and the rollout keeps the rewards of the environments."""
    manager = manager_of(
        tmp_path,
        *("total_timesteps=48", "ppo.reward_scaling=true"),
        initial_state=with_clipping,
    )
    callback = Keeps()
    train(manager, Lane, callbacks=[callback])
    assert list(manager.state.algorithm.reward_transforms) == ["reward_scaling", "clipping"]
    assert torch.equal(callback.rewards, callback.rollout.rewards)
    assert callback.rewards.abs().max() > 1
    level = clipping_of(manager).level.item()
    assert manager.state.metrics["charts/clipping_level"] == level
    assert manager.state.metrics["charts/reward_deviation"] > 1
    assert level < 2  # of rewards that were scaled before

    clipped, others = everything(manager.state), run(tmp_path, 48, "ppo.reward_scaling=true")
    same = everything(others.state)
    assert any(not torch.equal(clipped[n], x) for n, x in same.items() if n.startswith("agent/"))


@pytest.mark.slow
def test_failed_updates_change_nothing(tmp_path: Path) -> None:
    assert_failed_updates_change_nothing(
        tmp_path, with_clipping, changed_by_new_episodes=("/paid", "/begun")
    )


@pytest.mark.slow
def test_reward_transform_resumes_bit_for_bit(tmp_path: Path) -> None:
    assert_resumes_to_the_bit(tmp_path, with_clipping)


@pytest.mark.slow
def test_reward_transform_is_notified_when_all_episodes_restart(tmp_path: Path) -> None:
    """As a run begins, after an update that failed, and where episodes cannot be continued."""
    manager = run(tmp_path, 32, initial_state=with_clipping, checkpoint_dir=tmp_path / "lane")
    assert clipping_of(manager).begun == 1
    manager = run(tmp_path, 48, initial_state=with_clipping, checkpoint_dir=tmp_path / "lane")
    assert clipping_of(manager).begun == 1
    assert clipping_of(manager).paid.any()

    for frames, begun in ((32, 1), (64, 2)):
        manager = manager_of(
            tmp_path,
            f"total_timesteps={frames}",
            initial_state=with_clipping,
            checkpoint_dir=tmp_path / "clockwork",
        )
        train(manager, Clockwork)
        assert clipping_of(manager).begun == begun

    manager = manager_of(tmp_path, "total_timesteps=800", initial_state=with_clipping)
    with Trainer(manager, Lane) as trainer:
        trainer.step()
        Lane.fails_at = 5
        with pytest.raises(OSError, match="closed"):
            trainer.step()
        assert clipping_of(manager).begun == 1
        trainer.step()
        assert clipping_of(manager).begun == 2


def test_state_of_a_reward_transform_needs_the_transform_to_resume(tmp_path: Path) -> None:
    run(tmp_path, 16, initial_state=with_clipping, checkpoint_dir=tmp_path / "run")
    with pytest.raises(CheckpointError, match=r"has clipping/.* initial_state that makes it"):
        run(tmp_path, 32, checkpoint_dir=tmp_path / "run")


def test_reward_transform_state_with_infinity_resumes(tmp_path: Path) -> None:
    """A level before the first rollout is no sign of damage, as it would be in a moment."""
    manager = manager_of(
        tmp_path,
        "total_timesteps=16",
        initial_state=with_clipping,
        checkpoint_dir=tmp_path / "run",
    )
    with Trainer(manager, Lane):
        pass
    resumed = run(tmp_path, 16, initial_state=with_clipping, checkpoint_dir=tmp_path / "run")
    assert resumed.state.restart == 1
    assert resumed.state.step == 16


@pytest.mark.slow
def test_reward_transform_upgrades_with_the_environment(tmp_path: Path) -> None:
    manager = run(tmp_path, 48, initial_state=with_clipping, checkpoint_dir=tmp_path / "run")
    windy = Lane(wind=True)
    spaces = windy.obs_space(), windy.action_space()
    evolved = evolve(newest(tmp_path / "run"), *spaces, initial_state=with_clipping)
    new = evolved.state.algorithm.reward_transforms["clipping"]
    assert_same(
        {n: repr(x) for n, x in clipping_of(manager).state_dict().items()},
        {n: repr(x) for n, x in new.state_dict().items()},
    )


def test_rewards_of_another_shape_raise(tmp_path: Path) -> None:
    class Sums(Clipping):
        def transform(self, rewards: Tensor, rollout: Rollout, gamma: float) -> Tensor:
            return rewards.sum(dim=0)

    def initial(config: Any, ctx: dict[str, Any]) -> State:
        state = init_train_state(config, ctx)
        state.algorithm.reward_transforms["sums"] = Sums(config.rollout.num_envs)
        return state

    with pytest.raises(ValueError, match=r"Sums.transform: .* shape \[4, 4\], got \[4\]"):
        run(tmp_path, 16, initial_state=initial)


def test_names_of_losses_raise(tmp_path: Path) -> None:
    def initial(config: Any, ctx: dict[str, Any]) -> State:
        state = with_clipping(config, ctx)
        state.algorithm.auxiliary_losses["clipping"] = Clipping(4)
        return state

    with pytest.raises(ValueError, match=r"unique names .* that no parameter has, got 'clipping'"):
        run(tmp_path, 16, initial_state=initial)
