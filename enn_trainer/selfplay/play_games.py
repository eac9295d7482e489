"""Games of players against each other, each in given seats, with the results of all sides."""

import math
from collections.abc import Callable, Mapping, Sequence

import numpy as np
import torch
from torch import Tensor

from enn_trainer.experience.collector import Collector
from enn_trainer.experience.episodes import Episodes
from enn_trainer.experience.players import AgentPlayer, Environments
from enn_trainer.selfplay.elo import FloatArray
from enn_trainer.selfplay.league_players import MemberPlayer, NamedPlayers
from enn_trainer.selfplay.matchmaking import IntArray
from entity_env.errors import InvalidObservation
from entity_env.seeding import derive_seed
from entity_env.spaces import ObsSpace
from entity_env.vec.vec_env import AddMetricsWrapper, VecEnv, VecObs
from rogue_net.ragged import EntityBatch


class ScheduledPlayers(NamedPlayers):
    """Players of a list of games: match m of M plays the games m, m + M, m + 2 M and so on.

    A match without further games plays its last one again, which does not count. So who plays where
    is a function of the list and of M alone.

    Args:
        players: by name.
        lineups: (G, S), the names of the players of each game by seat.
        num_matches: M, at most G.
        seed: seed of the games of bots.

    Attributes:
        game: (M,) int64, the running game of each match; beyond G where there are no more.
    """

    def __init__(
        self,
        players: Mapping[str, MemberPlayer],
        lineups: Sequence[Sequence[str]],
        num_matches: int,
        seed: int,
    ) -> None:
        super().__init__()
        self._players, self._lineups, self._seed = players, lineups, seed
        self.game: IntArray = np.arange(num_matches)
        self._begin_games(self.game)

    @property
    def identifies(self) -> bool:
        """True if a player remembers entities."""
        return any(player.identifies for player in self._players.values())

    def begin(self, obs: VecObs, is_resumed: bool) -> None:
        """Let agents remember nothing."""
        for player in self._players.values():
            if isinstance(player, AgentPlayer):  # games of bots begin by their numbers
                player.begin(obs, is_resumed)

    def values(self, batch: EntityBatch, environments: Environments) -> Tensor:
        """Return NaN for each frame, as nobody learns."""
        return torch.full((batch.num_frames,), math.nan)

    def after_step(self, obs: VecObs) -> None:
        """Begin the next game where one has ended."""
        for player in self._players.values():
            if isinstance(player, AgentPlayer):
                player.after_step(obs)
        sides = len(self._lineups[0])
        ended = np.flatnonzero(obs.done[::sides])
        if len(ended):
            self.game[ended] += len(self.game)
            self._begin_games(ended)

    def _player(self, name: str) -> MemberPlayer:
        return self._players[name]

    def _begin_games(self, matches: IntArray) -> None:
        """Seat the players of the games that begin in some matches."""
        num_games, num_matches = len(self._lineups), len(self.game)
        # A game after the last one of a match stands for the last one.
        beyond = np.maximum(self.game - num_games, -num_matches) // num_matches + 1
        shown = self.game - beyond * num_matches
        self._seat([name for game in shown.tolist() for name in self._lineups[game]])
        self._seed_bots(matches, self.game, len(self._lineups[0]), self._seed)


@torch.no_grad()
def play_games(
    envs: VecEnv,
    obs_space: ObsSpace,
    players: Mapping[str, MemberPlayer],
    lineups: Sequence[Sequence[str]],
    metric: str,
    seed: int,
    *,
    device: torch.device | str = "cpu",
    max_steps: int = 100_000,
    watch: Callable[[int], None] = lambda num_ended: None,
) -> FloatArray:
    """Play games to their end and return the results of all sides.

    Args:
        envs: M matches of S sides; at most as many matches as games.
        obs_space: the features that frames show.
        players: by name.
        lineups: (G, S), the names of the players of each game by seat.
        metric: "episodic_reward", or a metric of the last observation of each side.
        seed: seed of the matches and of bots.
        device: device of the frames.
        max_steps: limit of the steps of all games of a match.
        watch: called with the number of games that have ended.

    Returns:
        (G, S) float64.

    Raises:
        InvalidObservation: a side gave no such metric at the end of a game, or one that is not
            finite; or games do not end.
    """
    sides, num_games = envs.sides, len(lineups)
    num_matches = len(envs) // sides
    results = np.full((num_games, sides), math.nan)
    is_over = np.zeros(num_games, np.bool_)
    seating = ScheduledPlayers(players, lineups, num_matches, derive_seed(seed, "games"))
    collector = Collector(AddMetricsWrapper(envs), seating, device)
    collector.seed(derive_seed(seed, "league"))
    collector.reset(obs_space)
    for t in range(max_steps):
        games = seating.game.copy()
        _, _, obs = collector.step(t, None)
        if not obs.done.any():
            continue
        episodes = Episodes.of(obs)
        match, side = np.divmod(episodes.environment, sides)
        counts = games[match] < num_games
        values = episodes.results(metric, sides, f"step {t}, ", counts)
        results[games[match[counts]], side[counts]] = values[counts]
        is_over[games[match[counts]]] = True
        watch(int(is_over.sum()))
        if is_over.all():
            return results
    raise InvalidObservation(
        f"expected games that end, {num_games - is_over.sum()} of {num_games} did not within "
        f"{max_steps} steps; raise --max-steps"
    )
