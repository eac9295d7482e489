"""Rollouts, and the step that rollouts and evaluations share."""

from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from enn_trainer.experience.collector import Collector, Rollout, Watcher, collect, play
from enn_trainer.experience.players import AgentPlayer, Decisions, draw_uniforms
from enn_trainer.experience.seated_players import AGENT, SeatedPlayers
from entity_env import (
    AddMetricsWrapper,
    CategoricalActionMask,
    EnvList,
    Observation,
    ObsSpace,
    Ragged,
    VecObs,
)
from entity_env.vec.batching import batch_obs
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


def test_truncated_episode_has_the_value_of_its_final_observation() -> None:
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


def test_every_truncated_episode_of_a_long_rollout_has_a_value() -> None:
    """Their last observations are not all kept until the end."""
    env = Day()
    net = a_network(env)
    _, rollout = days(net, steps=16)
    cut_off = int(rollout.truncated.sum())
    assert cut_off > 12
    expected = [value_at_the_end(net, env)] * cut_off
    np.testing.assert_allclose(rollout.final_values, expected, rtol=1e-5)


class Noting(Watcher):
    """Notes what it is told, and counts steps over a save."""

    def __init__(self) -> None:
        self.told: list[Any] = []
        self.steps = 0

    def begin(self, obs: VecObs, shown: ObsSpace, state: Mapping[str, Any] | None) -> None:
        self.told.append(("begin", obs))
        self.steps = 0 if state is None else state["noted"]

    def before_step(
        self, obs: VecObs, batch: EntityBatch, decisions: Decisions, run_step: int | None
    ) -> None:
        assert len(obs) == batch.num_frames == len(decisions.values)
        self.told.append(("before", obs, run_step))

    def after_step(self, obs: VecObs) -> None:
        self.told.append(("after", obs))
        self.steps += 1

    def get_state(self) -> dict[str, Any]:
        return {"noted": self.steps}


def meadows(num_envs: int = 5, **options: Any) -> Collector:
    envs = AddMetricsWrapper(EnvList(Meadow, num_envs))
    torch.manual_seed(0)
    space, actions = envs.obs_space(), envs.action_space()
    net = RogueNet(RogueNetConfig(d_model=8), space, actions, {"value": 1}).eval()
    torch.nn.init.normal_(net.regression_heads["/value"].weight)
    return Collector(envs, AgentPlayer(net, seed=3), **options)


def test_watchers_observe_each_step_and_change_nothing() -> None:
    noting, obs_space = Noting(), Meadow().obs_space()
    rollouts = []
    for watchers in ([], [noting]):
        collector = meadows(watchers=watchers)
        collector.seed(1)
        first = collector.reset(obs_space)
        rollouts.append(collect(collector, steps=3, first_frame=100))
    assert torch.equal(rollouts[0].values, rollouts[1].values)
    assert torch.equal(rollouts[0].rewards, rollouts[1].rewards)
    assert [one[0] for one in noting.told] == ["begin", *["before", "after"] * 3]
    assert [one[2] for one in noting.told if one[0] == "before"] == [100, 105, 110]
    assert noting.told[0][1] is noting.told[1][1] is first
    assert noting.told[-1][1] is rollouts[1].next_obs is collector.obs


def test_watchers_are_saved_with_running_episodes() -> None:
    noting, obs_space = Noting(), Meadow().obs_space()
    collector = meadows(watchers=[noting])
    play(collector, obs_space, 3, seed=0)
    state = collector.get_state()
    assert (state is None) == (collector.env.get_state() is None)
    if state is not None:
        assert state == {**(collector.env.get_state() or {}), "noted": 3}
        noting.steps = 0
        assert collector.set_state(state, obs_space) is collector.obs
        assert noting.steps == 3


@torch.no_grad()
def test_rollout_equals_a_loop_over_steps() -> None:
    """Differential: one forward pass a step, nothing stored or cut. To the bit."""
    collector, other = meadows(7), meadows(7)
    obs_space = Meadow().obs_space()
    collector.seed(2)
    collector.reset(obs_space)
    rollout = collect(collector, steps=9, first_frame=14)
    player, envs = other.players, other.env
    assert isinstance(player, AgentPlayer)
    net, env = player.agent, np.arange(7)
    envs.seed(2)
    obs = envs.reset(obs_space)
    finals, outs, batches, outcomes = [], [], [], []
    for t in range(9):
        batch = EntityBatch.of(obs)
        out = net(batch, uniforms=draw_uniforms(batch.actions, 3, env, 14 + 7 * t))
        lengths = {name: action.actors.lengths for name, action in batch.actions.items()}
        chosen = {name: Ragged(rows.numpy(), lengths[name]) for name, rows in out.actions.items()}
        obs = envs.act(chosen, obs_space)
        outs.append(out)
        batches.append(batch)
        outcomes.append((obs.reward, obs.terminated, obs.truncated))
        if obs.final is not None:
            finals.append(net.values(EntityBatch.of(obs.final))["value"].flatten())
    expected = EntityBatch.cat(batches)
    for name, rows in expected.features.items():
        assert torch.equal(rollout.batch.features[name].values, rows.values)
    for field in ("actions", "logprobs", "entropies"):
        for name in expected.actions:
            whole = torch.cat([getattr(out, field)[name] for out in outs])
            assert torch.equal(getattr(rollout, field)[name].values, whole), (field, name)
    assert torch.equal(rollout.values, torch.stack([out.values["value"][:, 0] for out in outs]))
    for i, field in enumerate(("rewards", "terminated", "truncated")):
        shown = np.stack([outcome[i] for outcome in outcomes])
        np.testing.assert_array_equal(getattr(rollout, field).numpy(), shown)
    assert finals
    torch.testing.assert_close(rollout.final_values, torch.cat(finals))
    last = net.values(EntityBatch.of(obs))["value"].flatten()
    going_on = torch.from_numpy(~obs.done)
    torch.testing.assert_close(rollout.last_values, torch.where(going_on, last, 0.0))


def test_frames_of_opponents_are_not_trained_on() -> None:
    """The rollout has the frames, actions, rewards, ends and values of the learner alone."""
    own = np.array([1, 2])
    alone, beside = meadows(4), meadows(4)
    player = beside.players
    assert isinstance(player, AgentPlayer)
    lineup = [["other"], [AGENT], [AGENT], ["other"]]
    both = {AGENT: player, "other": player}
    beside.players = SeatedPlayers(both, lambda match, game: lineup[match])
    for collector in (alone, beside):
        collector.seed(5)
        collector.reset(Meadow().obs_space())
    ended = set()
    for step in range(40):  # one by one, as draws depend on the number of frames before
        whole, part = (collect(c, steps=1, first_frame=4 * step) for c in (alone, beside))
        assert part.num_frames == 2
        for name, rows in part.batch.features.items():
            assert torch.equal(rows.values, whole.batch.features[name].take(own).values)
        for name, rows in part.actions.items():
            assert torch.equal(rows.values, whole.actions[name].take(own).values)
        for field in ("values", "rewards", "terminated", "truncated"):
            torch.testing.assert_close(getattr(part, field), getattr(whole, field)[:, own])
        torch.testing.assert_close(part.last_values, whole.last_values[own])
        is_own = np.isin(np.flatnonzero(whole.truncated[0]), own)
        torch.testing.assert_close(part.final_values, whole.final_values[is_own])
        np.testing.assert_array_equal(part.episodes.environment, np.flatnonzero(part.next_obs.done))
        ended |= {*part.episodes.environment.tolist()}
    assert ended == {0, 1, 2, 3}
