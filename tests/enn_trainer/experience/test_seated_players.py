"""Every player acts in the environments of its seats, which a lineup names game after game."""

from collections.abc import Sequence

import numpy as np
import pytest
import torch

from enn_trainer.evaluation.opponents import RandomAgent
from enn_trainer.experience.bot_player import BotPlayer
from enn_trainer.experience.collector import Collector
from enn_trainer.experience.players import AgentPlayer, Decisions, draw_uniforms
from enn_trainer.experience.seated_players import AGENT, SeatedPlayers, against
from enn_trainer.selfplay.league_players import JointPlayers
from entity_env import EnvList
from entity_env.examples import Duel
from entity_env.spaces import Spaces
from rogue_net import EntityBatch
from tests.enn_trainer.experience.decided import assert_same, frames_of, network
from tests.entity_env.duel_bots import Greedy


@torch.no_grad()
@pytest.mark.parametrize("kind", [SeatedPlayers, JointPlayers])
def test_seated_players_choose_as_they_do_alone(kind: type[SeatedPlayers]) -> None:
    nets, (obs, batch) = [network(seed) for seed in range(3)], frames_of(10)
    seats = {AGENT: [0, 3, 7], "second": [], "third": [1, 2, 4, 5, 6, 8, 9]}
    names = ["" if i in seats[AGENT] else "third" for i in range(10)]
    agents = {name: AgentPlayer(net, seed=1) for name, net in zip(seats, nets, strict=True)}
    players = kind(agents, lambda match, game: [names[match]], 1)
    players.begin(obs, is_resumed=False)
    together = players.act(obs, batch, 4)
    assert together.players == names
    for net, theirs in zip(nets, seats.values(), strict=True):
        if theirs:
            alone = batch.take(np.array(theirs))
            draws = draw_uniforms(alone.actions, 1, np.array(theirs), 4)
            expected = Decisions.of(net(alone, uniforms=draws), alone)
            got = together.take(np.array(theirs))
            if kind is JointPlayers:  # which rounds otherwise
                for name, rows in expected.chosen.items():
                    assert torch.equal(got.chosen[name].values, rows.values), name
            else:
                assert_same(got, expected)
    own = batch.take(np.array(seats[AGENT]))
    learner = nets[0].values(own)["value"].flatten()
    assert torch.equal(players.values(own, np.array(seats[AGENT])), learner)
    players.seat(["third"] * 10)  # as games begin after the step
    frames, decisions = players.select_learnt(batch, together)
    assert frames.num_frames == len(decisions.values) == 3
    assert torch.equal(decisions.values, together.values[seats[AGENT]])


@torch.no_grad()
def test_lineup_has_the_players_of_each_game() -> None:
    asked: list[tuple[int, int]] = []

    def lineup(match: int, game: int) -> Sequence[str]:
        asked.append((match, game))
        return [AGENT, "bot"] if game % 2 else ["bot", AGENT]

    envs = EnvList(Duel, 8)
    spaces = Spaces.of(envs)
    bots = BotPlayer(Greedy, 3, spaces.obs_space, spaces, sides=2, first=16)
    agent = AgentPlayer(RandomAgent(envs.action_space()), 1)
    players = SeatedPlayers({AGENT: agent, "bot": bots}, lineup, 2, first=16)
    collector = Collector(envs, players)
    collector.seed(2)
    collector.reset(spaces[0])
    games = np.zeros(4, np.int64)
    for t in range(60):
        own = 2 * np.arange(4) + (games + 1) % 2
        assert players.groups[AGENT].tolist() == own.tolist()
        assert players.learnt is not None
        assert players.learnt.tolist() == own.tolist()
        _, decisions, obs = collector.step(t, None)
        assert [name == AGENT for name in decisions.players] == np.isin(np.arange(8), own).tolist()
        games += obs.done[::2]
        assert players.games.tolist() == games.tolist()
    assert games.min() > 1
    assert sorted(asked) == [(8 + i, game) for i in range(4) for game in range(games[i] + 1)]


def test_opponent_plays_in_environments_of_odd_index() -> None:
    of_three = against("other", 3)
    assert of_three(0, 5) == [AGENT, "other", AGENT]
    assert of_three(1, 0) == ["other", AGENT, "other"]
    alone = against("other", 1)
    assert [alone(match, 0) for match in range(2)] == [[AGENT], ["other"]]


def test_bot_seeds_depend_on_environment_and_game() -> None:
    envs = EnvList(Duel, 4)
    spaces = Spaces.of(envs)
    seated, alone = (BotPlayer(Greedy, 3, spaces.obs_space, spaces, sides=2) for _ in range(2))
    envs.seed(1)
    obs = envs.reset(spaces[0])
    players = SeatedPlayers({AGENT: seated}, lambda match, game: [AGENT] * 2, 2)
    players.begin(obs, is_resumed=False)
    alone.begin(obs, is_resumed=False)
    for t in range(30):
        batch = EntityBatch.of(obs)
        made = players.act(obs, batch, t)
        alone.act(obs, batch, t)
        obs = envs.act(made.chosen_on_host(), spaces[0])
        players.after_step(obs)
        alone.after_step(obs)
        assert seated.get_state()["seeds"] == alone.get_state()["seeds"]
