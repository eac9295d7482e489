"""Rollouts, and the step that rollouts and evaluations share."""

import numpy as np
import numpy.typing as npt
import torch

from enn_trainer.experience.collector import Collector, Rollout, collect
from enn_trainer.experience.players import AgentPlayer
from entity_env import CategoricalActionMask, EnvList, Observation
from entity_env.vec.batch import batch_obs
from rogue_net import RogueNet, RogueNetConfig
from rogue_net.ragged import EntityBatch
from tests.enn_trainer.worlds import Meadow


class Day(Meadow):
    """Three hours, of which the last is never acted in; cut off or over, as its start says."""

    def reset(self) -> Observation:
        self.hour, self.cut_off = 0, self.rng.random() < 0.5
        return self.look()

    def act(self, actions: object) -> Observation:
        self.hour += 1
        return self.look()

    def look(self) -> Observation:
        over = self.hour == 2
        return Observation(
            entities={"sheep": ([[self.hour, self.cut_off]], ["s0"])},
            global_features=[self.hour],
            actions={"walk": CategoricalActionMask(actor_ids=["s0"])},
            terminated=over and not self.cut_off,
            truncated=over and self.cut_off,
        )


def a_network(env: Day) -> RogueNet:
    torch.manual_seed(0)
    net = RogueNet(RogueNetConfig(d_model=8), env.obs_space(), env.action_space(), {"value": 1})
    torch.nn.init.normal_(net.regression_heads["/value"].weight)
    return net


def value_at_the_end(net: RogueNet, env: Day) -> float:
    """Of an episode that is cut off."""
    last = Day()
    last.hour, last.cut_off = 2, True
    frame = EntityBatch.of(batch_obs([last.look()], env.obs_space(), env.action_space()))
    return net.values(frame)["value"].item()


def days(net: RogueNet, steps: int) -> tuple[npt.NDArray[np.bool_], Rollout]:
    """Some steps in six environments, and which of their first episodes are cut off, (6,)."""
    envs = EnvList(Day, 6)
    envs.seed(1)
    collector = Collector(envs, AgentPlayer(net, seed=0))
    obs = collector.reset(envs.obs_space())
    cut_off = obs.features["sheep"].values[:, 1].astype(bool)
    return cut_off, collect(collector, steps=steps, first_frame=0)


def test_value_of_a_truncated_episode_is_that_of_its_own_last_observation() -> None:
    """And not of the frame that the environment shows next, the first of another episode."""
    env = Day()
    net = a_network(env)
    cut_off, rollout = days(net, steps=2)
    assert 0 < cut_off.sum() < 6
    assert rollout.truncated.tolist() == [[False] * 6, cut_off.tolist()]
    assert rollout.terminated.tolist() == [[False] * 6, (~cut_off).tolist()]
    expected = value_at_the_end(net, env)
    np.testing.assert_allclose(rollout.final_values, [expected] * int(cut_off.sum()), rtol=1e-5)
    assert not np.allclose(rollout.last_values, expected)


def test_every_truncated_episode_of_a_long_rollout_has_its_value() -> None:
    """Their last observations are not all kept until the end."""
    env = Day()
    net = a_network(env)
    _, rollout = days(net, steps=16)
    cut_off = int(rollout.truncated.sum())
    assert cut_off > 12
    expected = [value_at_the_end(net, env)] * cut_off
    np.testing.assert_allclose(rollout.final_values, expected, rtol=1e-5)
