"""`BotPlayer` lets one bot choose in each environment, game after game."""

from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import torch

from enn_trainer.experience.bot_player import BotPlayer
from enn_trainer.experience.collector import Collector
from enn_trainer.experience.players import AgentPlayer, Decisions
from enn_trainer.experience.seated_players import AGENT, SeatedPlayers, against
from entity_env import (
    Action,
    Bot,
    CategoricalAction,
    EntityEnvError,
    EnvList,
    GlobalCategoricalAction,
    InvalidAction,
    Observation,
    ParallelEnvList,
    VecEnv,
    VecObs,
)
from entity_env.adapters.any_vec_env import AnyVecEnv
from entity_env.seeding import derive_seed
from entity_env.serialization.messages import pack, unpack
from entity_env.spaces import Spaces
from rogue_net import EntityBatch, RogueNet, RogueNetConfig
from tests.enn_trainer.experience.meadow_bots import Grazes, Remembers
from tests.enn_trainer.worlds import Meadow
from tests.entity_env.clocks import Clocks


def player_in(envs: VecEnv, bot: type[Bot] = Grazes, seed: int = 4, sides: int = 1) -> BotPlayer:
    spaces = Spaces.of(envs)
    return BotPlayer(bot, seed, envs.obs_space(), spaces, sides)


def flat(decisions: Decisions) -> dict[str, list[Any]]:
    return {
        name: [rows.values.tolist(), rows.lengths.tolist()]
        for name, rows in decisions.chosen.items()
    }


def played(envs: VecEnv, player: Any, steps: int) -> list[Any]:
    """The choices and rewards of some steps."""
    collector = Collector(envs, player)
    collector.seed(1)
    collector.reset(envs.obs_space())
    found = []
    for t in range(steps):
        _, decisions, obs = collector.step(t, None)
        found.append((flat(decisions), obs.reward.tolist()))
    return found


@pytest.mark.slow
@pytest.mark.parametrize("bot", [Grazes, Remembers])
def test_choices_depend_on_the_seed_and_not_on_processes(bot: type[Bot]) -> None:
    envs = EnvList(Meadow, 6)
    here = played(envs, player_in(envs, bot), 12)
    workers = ParallelEnvList(Meadow, 6, num_processes=2)
    try:
        assert played(workers, player_in(workers, bot), 12) == here
    finally:
        workers.close()
    assert played(EnvList(Meadow, 6), player_in(envs, bot, seed=5), 12) != here


def test_decisions_have_probability_1_and_no_values() -> None:
    envs = EnvList(Meadow, 8)
    envs.seed(2)
    obs = envs.reset(envs.obs_space())
    player, batch = player_in(envs), EntityBatch.of(obs)
    player.begin(obs, False)
    decisions = player.act(obs, batch, 0)
    assert decisions.values.isnan().all()
    assert sum(len(rows.values) for rows in decisions.chosen.values()) > 8
    for name, rows in decisions.chosen.items():
        np.testing.assert_array_equal(rows.lengths, batch.actions[name].actors.lengths)
        for zero in (decisions.logprobs[name].values, decisions.entropies[name].values):
            assert zero.dtype == torch.float32
            assert not zero.any()
        distribution = decisions.distributions[name]
        assert torch.equal(distribution.mode(), rows.values)
        assert not distribution.log_prob(rows.values).any()
        assert not distribution.entropy().any()


class Notes(Bot):
    """Note seeds and observations of all instances."""

    made: list["Notes"]

    def __init__(self) -> None:
        self.log: list[Any] = []
        Notes.made.append(self)

    def seed(self, seed: int) -> None:
        super().seed(seed)
        self.log.append(seed)

    def act(self, observation: Observation) -> Mapping[str, Action]:
        self.log.append("act")
        return Grazes.act(self, observation)  # type: ignore[arg-type]


def test_each_environment_has_a_bot_seeded_at_each_game() -> None:
    Notes.made = []
    envs = EnvList(Meadow, 4)
    player = player_in(envs, Notes)
    collector = Collector(envs, player)
    collector.seed(1)
    collector.reset(envs.obs_space())
    games, expected = np.zeros(4, int), [[derive_seed(4, "bot", i, 0)] for i in range(4)]
    for t in range(15):
        _, _, obs = collector.step(t, None)
        for i in range(4):
            expected[i].append("act")  # type: ignore[arg-type]
            if obs.done[i] and t < 14:
                games[i] += 1
                expected[i].append(derive_seed(4, "bot", i, int(games[i])))
    assert games.min() >= 2
    assert [bot.log for bot in Notes.made] == expected


class Ticks(Notes):
    """Note the times in the observations as well."""

    def act(self, observation: Observation) -> Mapping[str, Action]:
        self.log.append(float(np.asarray(observation.features["Hand"])[0, 0]))
        mask: Any = observation.actions["go"]
        return {"go": CategoricalAction(mask.actor_ids, np.array([1]), ["on", "fast"])}


@pytest.mark.parametrize("num_envs", [1, 5])
def test_bots_do_not_act_between_two_games(num_envs: int) -> None:
    logs = []
    for waits, steps in ((0, 20), (2, 40)):
        Notes.made = []
        envs = AnyVecEnv(Clocks(num_envs, waits=waits, filler=99.0))
        collector = Collector(envs, player_in(envs, Ticks))
        collector.reset(envs.obs_space())
        for t in range(steps):
            collector.step(t, None)
        logs.append([bot.log for bot in Notes.made])
    for one, other in zip(*logs, strict=True):
        length = min(len(one), len(other))
        assert length >= 20
        assert other[:length] == one[:length]


def test_games_that_begin_at_any_step_have_seeds_of_their_numbers() -> None:
    Notes.made = []
    envs = EnvList(Meadow, 5)
    envs.seed(0)
    obs = envs.reset(envs.obs_space())
    player, own = player_in(envs, Notes), np.array([4, 1])
    player.begin_games(own, np.array([0, 5]))
    player.act_in(obs, EntityBatch.of(obs).take(own), own, 0)
    player.begin_games(np.array([1]), np.array([6]))
    decisions = player.act_in(obs, EntityBatch.of(obs).take(own), own, 1)
    first, second, third = (derive_seed(player.seed, "bot", *at) for at in ((4, 0), (1, 5), (1, 6)))
    logs = [[first, "act", "act"], [second, "act", third, "act"]]
    assert [bot.log for bot in Notes.made] == logs
    for name, rows in decisions.chosen.items():
        np.testing.assert_array_equal(rows.lengths, obs.action_masks[name].actors.lengths[own])


@pytest.mark.parametrize("bot", [Grazes, Remembers])
def test_restored_games_continue_identically(bot: type[Bot]) -> None:
    envs = EnvList(Meadow, 6)
    player, others = player_in(envs, bot), player_in(envs, bot)
    collector = Collector(envs, player)
    collector.seed(1)
    collector.reset(envs.obs_space())
    for t in range(30):
        # A copy that is restored before each step chooses the same.
        state = unpack(pack(player.get_state(), exact=True))
        others.set_state(state)
        copied = others.act(collector.obs, EntityBatch.of(collector.obs), t)
        _, decisions, _ = collector.step(t, None)
        assert flat(copied) == flat(decisions)
    assert player.get_state()["num_games"].min() >= 3


def test_bot_state_that_is_not_plain_data_raises() -> None:
    class Impure(Grazes):
        def get_state(self) -> dict[str, object]:
            return {"self": self}

        def set_state(self, state: dict[str, object]) -> None: ...

    class Keeps(Remembers):
        def act(self, observation: Observation) -> Mapping[str, Action]:
            self.last = observation
            return super().act(observation)

    envs = EnvList(Meadow, 2)
    for bot, problem in ((Impure, "Impure"), (Keeps, "last: expected plain data")):
        player = player_in(envs, bot)
        played(envs, player, 1)
        with pytest.raises(EntityEnvError, match=rf"bot {bot.__name__}: get_state: .*{problem}"):
            player.get_state()


@torch.no_grad()
def test_bots_and_agents_share_environments() -> None:
    space = Meadow()
    torch.manual_seed(0)
    config = RogueNetConfig(d_model=8)
    net = RogueNet(config, space.obs_space(), space.action_space(), {"value": 1}).eval()  # type: ignore[arg-type]
    envs = EnvList(Meadow, 6)
    even: npt.NDArray[np.int64] = np.array([0, 2, 4])
    odd = even + 1
    agent = AgentPlayer(net, seed=3)
    players = SeatedPlayers({AGENT: agent, "bot": player_in(envs)}, against("bot", 1))
    envs.seed(1)
    obs: VecObs = envs.reset(envs.obs_space())
    players.begin(obs, False)
    alone = player_in(envs)
    alone.begin(obs, False)
    for t in range(10):
        batch = EntityBatch.of(obs)
        together = players.act(obs, batch, t)
        own = agent.choose(batch.take(even), even, t)
        theirs = alone.act_in(obs, batch.take(odd), odd, t)
        assert flat(together.take(even)) == flat(own)
        assert flat(together.take(odd)) == flat(theirs)
        for name, distribution in together.take(even).distributions.items():
            expected = own.distributions[name].entropy()
            torch.testing.assert_close(distribution.entropy(), expected)
        assert together.distributions.keys() == own.distributions.keys()
        obs = envs.act(together.chosen_on_host(), envs.obs_space())
        players.after_step(obs)
        alone.after_step(obs)


def test_illegal_action_names_bot_match_side_and_step() -> None:
    class Leaps(Remembers):
        def act(self, observation: Observation) -> Mapping[str, Action]:
            actions = dict(super().act(observation))
            if self.calls == 2 and isinstance(actions.get("call"), GlobalCategoricalAction):
                actions["call"] = GlobalCategoricalAction(0, "leap")
            return actions

    envs = EnvList(Meadow, 4)
    place = r"bot Leaps in match \d, side [01], step 1: actions\['call'\]: expected one of "
    with pytest.raises(InvalidAction, match=place + r"\['quiet', 'bleat'\], got 'leap'"):
        played(envs, player_in(envs, Leaps, sides=2), 20)
    with pytest.raises(InvalidAction, match=r"in environment \d, step 1: actions"):
        played(envs, player_in(envs, Leaps), 20)
