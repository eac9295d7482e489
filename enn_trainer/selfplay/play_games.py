"""Games between players in duplicate deals: each deal is played with several lineups."""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence

import numpy as np
import torch

from enn_trainer.experience.collector import Collector
from enn_trainer.experience.episodes import Episodes
from enn_trainer.experience.players import Decisions, SeatPlayer
from enn_trainer.selfplay.league_players import JointPlayers
from entity_env.arrays import FloatArray, IntArray
from entity_env.errors import InvalidObservation
from entity_env.seeding import derive_seed, mix
from entity_env.vec.vec_env import AddMetricsWrapper, VecEnv, VecObs
from rogue_net.ragged import EntityBatch


class ScheduledPlayers(JointPlayers):
    """Players of a list of games: match m of M plays the games m, m + M, m + 2 M and so on.

    A match without further games repeats its last one, which is not counted, so that lineups depend
    on the list and M only. Random numbers of networks and bots are functions of a seed, the game,
    the seat, and for networks the step of the game; they do not depend on the player in the seat.

    Args:
        players: players by name.
        lineups: (G, S), names of the players of each game by seat.
        num_matches: M, at most G.
    """

    def __init__(
        self,
        players: Mapping[str, SeatPlayer],
        lineups: Sequence[Sequence[str]],
        num_matches: int,
    ) -> None:
        def lineup(match: int, game: int) -> Sequence[str]:
            last = (len(lineups) - 1 - match) // num_matches
            return lineups[match + min(game, last) * num_matches]

        super().__init__(players, lineup, len(lineups[0]))
        self._steps = np.zeros(num_matches, np.int64)  # of the running game of each match

    def game_of_match(self) -> IntArray:
        """Return the running game of each match, (M,) int64; at least G if there are no more."""
        return np.arange(len(self.games)) + self.games * len(self.games)

    def act(self, obs: VecObs, batch: EntityBatch, t: int) -> Decisions:
        """Choose the actions of each player, with random numbers that depend on the game."""
        sides = np.arange(self.sides)
        keys = mix(self.game_of_match()[:, None], self._steps[:, None], sides) >> np.uint64(1)
        for player in self.players.values():
            player.draw_keys = keys.flatten().view(np.int64)
        return super().act(obs, batch, 0)

    def after_step(self, obs: VecObs) -> None:
        """Begin the next game in matches where one has ended."""
        self._steps += 1
        self._steps[obs.done[:: self.sides]] = 0
        super().after_step(obs)


@torch.no_grad()
def play_games(
    envs: VecEnv,
    players: Mapping[str, SeatPlayer],
    deals: Sequence[Sequence[Sequence[str]]],
    metric: str,
    seed: int,
    *,
    device: torch.device | str = "cpu",
    max_steps: int = 100_000,
    watch: Callable[[int], None] = lambda num_ended: None,
) -> FloatArray:
    """Play each deal to its end with all its lineups, and return the results of all sides.

    The games of a deal have the same match seed, and the same random numbers of the players by
    seat, so that swapping the seats also swaps the luck, and deals are independent. This does not
    hold for a match with random numbers that do not depend on its seed.

    Args:
        envs: M matches of S sides; M is at most the number of deals.
        players: players by name.
        deals: (D, L, S), names of the players by seat, in the L lineups of each deal.
        metric: "episodic_reward", or a metric of the last observation of each side.
        seed: seed of the matches.
        device: device of the frames.
        max_steps: maximal number of steps of all games of a match.
        watch: called with the number of finished games.

    Returns:
        (D, L, S) float64.

    Raises:
        InvalidObservation: the metric of a side is missing or not finite at the end of a game, or
            games do not end.
    """
    results = np.full(np.shape(deals), math.nan)
    num_deals, num_lineups, sides = results.shape
    collector: Collector | None = None
    steps = iter(range(max_steps))
    for k in range(num_lineups):
        # Match m plays the same deals in each pass, as its seeds count its episodes from a reset.
        lineups = [lineups_of_deal[k] for lineups_of_deal in deals]
        scheduled = ScheduledPlayers(players, lineups, len(envs) // sides)
        if collector is None:
            collector = Collector(AddMetricsWrapper(envs), scheduled, device)
        collector.players = scheduled
        collector.seed(derive_seed(seed, "league"))
        collector.reset(envs.obs_space())
        for num_ended in _play_each(collector, scheduled, results[:, k], metric, steps):
            watch(k * num_deals + num_ended)
        if np.isnan(results[:, k]).any():
            num_missing = int(np.isnan(results).any(axis=-1).sum())
            raise InvalidObservation(
                f"expected games that end, {num_missing} of {num_deals * num_lineups} did not "
                f"within {max_steps} steps; raise --max-steps"
            )
    return results


def _play_each(
    collector: Collector,
    scheduled: ScheduledPlayers,
    results: FloatArray,
    metric: str,
    steps: Iterator[int],
) -> Iterator[int]:
    """Play each game of a list once.

    Args:
        collector: the matches, in their first games.
        scheduled: the players of the games.
        results: (G, S) float64, receives the result of each side; unfinished games are not set.
        metric: see `play_games`.
        steps: numbers of the remaining steps.

    Yields:
        The number of finished games, whenever it increases.
    """
    num_games, sides = results.shape
    is_over = np.zeros(num_games, np.bool_)
    for t in steps:
        games = scheduled.game_of_match()
        _, _, obs = collector.step(t, None)
        if not obs.done.any():
            continue
        episodes = Episodes.of(obs)
        match, side = np.divmod(episodes.environment, sides)
        counts = games[match] < num_games
        values = episodes.results(metric, sides, f"step {t}, ", counts)
        results[games[match[counts]], side[counts]] = values[counts]
        is_over[games[match[counts]]] = True
        yield int(is_over.sum())
        if is_over.all():
            return
