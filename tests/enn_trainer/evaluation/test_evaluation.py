"""`evaluate` plays the episodes that count, and lets captures follow them."""

from collections.abc import Sequence
from contextlib import ExitStack

import numpy as np
import numpy.typing as npt
import pytest

from enn_trainer.evaluation.eval_metrics import EpisodeStatistics, quotas
from enn_trainer.evaluation.evaluation import EpisodeCapture, EpisodePlan, evaluate
from enn_trainer.evaluation.opponents import RandomAgent
from enn_trainer.experience.collector import Watcher
from enn_trainer.experience.players import AgentPlayer
from enn_trainer.experience.seated_players import AGENT, SeatedPlayers, against, against_pool
from entity_env import EnvList, VecEnv
from entity_env.examples import Duel


class Notes(EpisodeCapture):
    """Notes what an evaluation asks for, and needs a number of calls to be done."""

    def __init__(self, calls: int = 0) -> None:
        self.calls, self.notes = calls, list[str]()

    def wrap(self, envs: VecEnv, counted: npt.NDArray[np.bool_], stack: ExitStack) -> VecEnv:
        self.notes.append(f"counted {np.flatnonzero(counted).tolist()}")
        stack.callback(self.notes.append, "closed")
        return envs

    def watchers(
        self, envs: EpisodeStatistics, agent: npt.NDArray[np.int64], stack: ExitStack
    ) -> Sequence[Watcher]:
        self.notes.append(f"agent {agent.tolist()}")
        return []

    def progress(self, share: float, is_done: bool) -> tuple[float, bool]:
        self.calls -= 1
        return share, is_done and self.calls < 0


def duels(episodes: int | None, steps: int = 500, by_episode: bool = False) -> EpisodePlan:
    counted = np.arange(6) % 2 == 0
    return EpisodePlan(
        obs_space=Duel().obs_space(),
        seed=3,
        steps=steps,
        quota=quotas(episodes, counted),
        agent=np.flatnonzero(counted),
        by_episode=by_episode,
    )


def players() -> SeatedPlayers:
    both = {name: AgentPlayer(RandomAgent(Duel().action_space()), 1) for name in (AGENT, "other")}
    return SeatedPlayers(both, against("other", 2), 2)


def test_evaluate_counts_complete_episodes_and_runs_captures() -> None:
    notes, shares = Notes(), list[float]()
    plan = duels(2, by_episode=True)
    counts = evaluate(players(), EnvList(Duel, 6), plan, [notes], watch=shares.append)
    assert (counts.num_episodes(), counts.num_missing()) == (2, 0)
    assert [one.environment in (0, 2) for one in counts.played or ()] == [True, True]
    assert counts.measured()["episodic_reward"].count == 2
    assert notes.notes == ["counted [0, 2]", "agent [0, 2, 4]", "closed"]
    assert shares[0] == 0
    assert shares[-1] == 1
    again = evaluate(players(), EnvList(Duel, 6), plan)
    assert again.measured() == counts.measured()


def test_evaluate_ends_at_the_step_limit_or_on_stop() -> None:
    shares: list[float] = []
    counts = evaluate(players(), EnvList(Duel, 6), duels(None, 12), watch=shares.append)
    assert counts.measured()["step"].count == 3 * 12
    np.testing.assert_allclose(shares, np.arange(12) / 12)
    stopped = evaluate(players(), EnvList(Duel, 6), duels(None, 12), stop=lambda: True)
    assert not stopped.measured()


def test_capture_can_request_more_steps() -> None:
    few, many = Notes(), Notes(calls=200)
    ended = [
        evaluate(players(), EnvList(Duel, 6), duels(2), [notes]).num_ended.sum()
        for notes in (few, many)
    ]
    assert ended[1] > ended[0]
    assert many.calls < 0


@pytest.mark.parametrize("sides", [2, 3])
def test_agent_plays_all_seats_equally_often_against_each_pool_member(sides: int) -> None:
    lineup = against_pool(["a", "b"], sides)
    seats = {
        (next(name for name in names if name != AGENT), names.index(AGENT))
        for names in (list(lineup(match, 0)) for match in range(2 * sides))
    }
    assert seats == {(member, seat) for member in "ab" for seat in range(sides)}
    assert all(list(lineup(match, 0)).count(AGENT) == 1 for match in range(9))
