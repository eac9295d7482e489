"""`League`: the pool of opponents of a run, results of games against them, and ratings."""

import re
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import Any, Literal, NamedTuple, TypeAlias, get_args

import numpy as np

from enn_trainer.base.state_part import (
    SavedNetwork,
    SpaceChange,
    StateDict,
    StatePart,
    check_plain,
    full_state,
)
from enn_trainer.config.selfplay_config import RANDOM, SelfplayConfig
from enn_trainer.curriculum.rounds import Rounds
from enn_trainer.selfplay.elo import FIRST_ELO, age_factor, expected_score, rate_agent
from enn_trainer.selfplay.matchmaking import (
    NAMED,
    member_weights,
    snapshot_to_evict,
    validated_weights,
)
from entity_env.arrays import FloatArray, IntArray
from entity_env.errors import short_repr
from entity_env.named_world import is_bot_name

SNAPSHOT = "snapshot"
"""Origin of members that are copies of the agent."""
POOL = "pool"
"""Opponent name in evaluations for all members of the run's pool."""
POOL_SUFFIX = "@opponents"
"""Suffix of a path that refers to the pool of a run."""
LEAGUE, PLAYERS = "league", "players"
"""Names of the parts of a state: the pool, and the lineups of the matches."""
_GAMES = "games"
"""Name of the tally of games with results in a round."""
NO_RESULTS: FloatArray = np.zeros((0, 3))
Kind = Literal["network", "random", "bot", "custom"]


@dataclass(frozen=True)
class Member:
    """Opponent in the pool of a run, with a network that never changes.

    Attributes:
        name: unique in the league; a part of the file name.
        step: frames of the run at the time of a snapshot; `NAMED` for other members.
        origin: `SNAPSHOT`, or its entry in `selfplay.opponents`.
        kind: "network"; "random", which chooses uniformly; "bot", a scripted player; or "custom",
            created by the training program.
        config: configuration of the network, as RON; "" without a network.
        spaces: spaces of the network, as RON; "" without a network.
        weights: safetensors file with the policy and its statistics; empty without a network.
        elo: rating.
        ci95: half the width of the 95% confidence interval; 0 for the first member.
        is_rated: True for a fixed rating, as of snapshots, which keep the agent's rating at their
            time; False if the rating is fitted to results.
        is_in_pool: False once it has left the pool; it remains a member until its last game ends.
        results: (S, 3) float64, discounted wins, draws and losses of the agent, by its seat.
        games: number of games against it, not discounted.
    """

    name: str
    step: int
    origin: str
    kind: Kind
    config: str = field(default="", repr=False)
    spaces: str = field(default="", repr=False)
    weights: bytes = field(default=b"", repr=False)
    elo: float = FIRST_ELO
    ci95: float = 0.0
    is_rated: bool = False
    is_in_pool: bool = True
    results: FloatArray = field(default_factory=lambda: NO_RESULTS, compare=False)
    games: int = 0

    @property
    def score(self) -> float:
        """Expected score of the agent against it, between 0 and 1."""
        wins, draws, _ = self.results.sum(axis=0)
        return float(expected_score(wins, draws, self.results.sum()))

    @property
    def file(self) -> str:
        """Name of the weights file in saves."""
        return f"opponent-{self.name}.safetensors"


Matchmaker: TypeAlias = Callable[[Sequence[Member], int], FloatArray]
"""(members, step) -> (M,) float, sampling weights of the members for an update."""


class GameResult(NamedTuple):
    """Result of the agent against one member in a game.

    Attributes:
        member: name of the member.
        seat: seat of the agent.
        score: 1 for a win of the agent, 1/2 for a draw, 0 for a loss.
    """

    member: str
    seat: int
    score: float


_PLAIN = [f.name for f in fields(Member) if f.name not in ("weights", "results")]


_NUMBERS = {"next_snapshot": int, "opponent_frames": int, "elo": float, "ci95": float}


class League(StatePart):
    """Pool of opponents, with results and ratings.

    Attributes:
        members: members of the pool in the order in which they joined, and former members that are
            still playing.
        next_snapshot: step at or past which the next snapshot is taken.
        elo: rating of the agent.
        ci95: half the width of its 95% confidence interval; 0 without results.
        opponent_frames: frames of the run with decisions of members.
        rounds: incomplete rounds of games, with results that are not counted yet.
        lost: names of members of the save with missing or damaged files.
        lost_entries: entries of these members in `selfplay.opponents`.
    """

    is_restored = False

    def __init__(self) -> None:
        self.members: list[Member] = []
        self.next_snapshot = 0
        self.elo, self.ci95 = FIRST_ELO, 0.0
        self.opponent_frames = 0
        self.rounds = Rounds()
        self.lost: list[str] = []
        self.lost_entries: set[str] = set()

    @property
    def pool(self) -> list[Member]:
        """Members that can be drawn for games, in the order in which they joined."""
        return [member for member in self.members if member.is_in_pool]

    def member(self, name: str) -> Member:
        """Return a member by name; raises KeyError if there is none."""
        return {member.name: member for member in self.members}[name]

    def add(self, member: Member) -> None:
        """Add a member; the first member of a league gets a fixed rating."""
        is_first = not self.members
        self.members.append(replace(member, is_rated=member.is_rated or is_first))

    def add_snapshot(self, snapshot: Member, capacity: int, every: int) -> None:
        """Add a copy of the agent with its rating, and evict a snapshot beyond the capacity.

        Args:
            snapshot: the copy.
            capacity: maximal number of snapshots.
            every: frames between two snapshots.
        """
        self.add(replace(snapshot, elo=self.elo, ci95=self.ci95, is_rated=True))
        self.next_snapshot = (snapshot.step // every + 1) * every
        while len(snapshots := [m for m in self.pool if m.origin == SNAPSHOT]) > capacity:
            steps = np.array([member.step for member in snapshots])
            first = 0 if len(snapshots) == 2 else snapshot_to_evict(steps)
            self.remove([snapshots[first].name])

    def remove(self, names: Collection[str]) -> None:
        """Remove members from the pool; they stay in the league while they are playing."""
        self.members = [
            replace(m, is_in_pool=m.is_in_pool and m.name not in names) for m in self.members
        ]

    def forget(self, playing: Collection[str]) -> None:
        """Delete the members that have left the pool and are no longer playing."""
        self.members = [m for m in self.members if m.is_in_pool or m.name in playing]

    def weights(
        self, settings: SelfplayConfig, matchmaker: Matchmaker | None, step: int
    ) -> FloatArray:
        """Return the sampling weights of the members of the pool, (M,) float64.

        Raises:
            ConfigError: the matchmaker returned invalid weights.
        """
        pool = self.pool
        if matchmaker is not None:
            return validated_weights(matchmaker(pool, step), [m.name for m in pool], step)
        scores, steps = np.array([m.score for m in pool]), np.array([m.step for m in pool])
        return member_weights(settings.choose, scores, steps)

    def count(
        self, results: Sequence[GameResult], num_games: int, num_sides: int, half_life: float
    ) -> None:
        """Discount the results so far, add the results of an update, and update all ratings.

        Args:
            results: results of the agent against members.
            num_games: number of games with these results.
            num_sides: S.
            half_life: number of games after which a result counts half.
        """
        factor = age_factor(num_games, half_life)
        counted = {m.name: np.zeros((num_sides, 3)) for m in self.members}
        for name, seat, score in results:
            if name in counted:  # else the member was lost
                counted[name][seat, round(2 - 2 * score)] += 1
        members = []
        for member in self.members:
            previous, new = member.results, counted[member.name]
            updated = new if previous.shape != new.shape else factor * previous + new
            games = member.games + int(new.sum())
            members.append(replace(member, results=updated, games=games))
        self.members = members
        self._rate()

    def _rate(self) -> None:
        """Fit the ratings of the agent and of members without a fixed rating."""
        totals = np.array([m.results.sum(axis=0) for m in self.members]).reshape(-1, 3)
        scores, games = totals @ [1.0, 0.5, 0.0], totals.sum(axis=1)
        if not games.any():
            return
        fitted = np.array([not m.is_rated for m in self.members])
        previous = np.array([m.elo for m in self.members])
        agent, ratings = rate_agent(scores, games, self.elo, previous, fitted)
        self.elo, self.ci95 = float(agent.elo[0]), float(agent.ci95[0])
        rated = zip(self.members, ratings.elo.tolist(), ratings.ci95.tolist(), strict=True)
        self.members = [m if m.is_rated else replace(m, elo=e, ci95=c) for m, e, c in rated]

    def state_dict(self) -> StateDict:
        """Return members without weights, the next snapshot, ratings and rounds."""
        members = [
            {name: getattr(m, name) for name in _PLAIN} | {"results": m.results.tolist()}
            for m in self.members
        ]
        numbers = {name: getattr(self, name) for name in _NUMBERS}
        return {"members": members, **numbers, "rounds": self.rounds.plain()}

    def files(self) -> Mapping[str, bytes]:
        """Return the weights of members by file name."""
        return {m.file: m.weights for m in self.members if m.kind == "network"}

    def load_state_dict(self, state: StateDict) -> None:
        """Restore the league; members with a missing file are left out, see `lost`.

        Raises:
            ValueError: an entry is missing or invalid; the message names it.
        """
        if not state:  # the run began without a league
            return
        numbers = {name: state.get(name) for name in _NUMBERS}
        for name, value in numbers.items():
            is_number = isinstance(value, int | float) and abs(value) < 2**62
            if type(value) is not _NUMBERS[name] or not is_number:
                raise ValueError(f"{name}: expected a number, got {short_repr(value)}")
        files: Mapping[str, bytes] = state.get("files", {})
        if not isinstance(files, dict) or not all(type(data) is bytes for data in files.values()):
            raise ValueError("files: expected contents by file name")
        if not isinstance(saved_members := state.get("members", []), list):
            raise ValueError(f"members: expected a list, got {short_repr(saved_members)}")
        members, lost = [], [*self.lost]  # kept when the state moves to another device
        for i, plain in enumerate(saved_members):
            member = member_from_plain(f"members[{i}]", plain)
            if member.kind == "network" and member.file not in files:
                lost.append(member.name)
                self.lost_entries.add(member.origin)
                continue
            members.append(replace(member, weights=files.get(member.file, b"")))
        if len({member.name for member in members}) < len(members):
            raise ValueError("members: expected different names")
        rounds = Rounds.from_plain(state.get("rounds"))
        vars(self).update(members=members, lost=lost, rounds=rounds, **numbers)

    def evolve(self, state: StateDict, change: SpaceChange) -> StateDict:
        """Upgrade all members like the agent; members that cannot be upgraded are dropped.

        If the environment changed, results and former members of the pool are dropped, and ratings
        become the starting points of fitted ratings.
        """
        league = League()
        league.load_state_dict(state)
        members = []
        for member in league.members:
            if not (change.is_same_world or member.is_in_pool):
                continue
            if not change.is_same_world:
                member = replace(member, results=NO_RESULTS, games=0, is_rated=False)
            if member.config:
                network = SavedNetwork(member.config, member.spaces, member.weights)
                upgraded = change.network(member.name, network)
                if upgraded is None:
                    continue
                member = replace(member, **upgraded._asdict())
            members.append(member)
        league.members = members
        if not change.is_same_world:  # running games are aborted
            league.rounds = Rounds()
        return full_state(league)


def member_from_plain(path: str, plain: object) -> Member:
    """Create a member from plain data, without its weights.

    Raises:
        ValueError: the data is invalid; the message has the path.
    """
    if not isinstance(plain, dict) or plain.keys() != {*_PLAIN, "results"}:
        raise ValueError(f"{path}: expected the fields {', '.join(_PLAIN)}, results")
    check_plain(path, plain)
    example = Member("", NAMED, "", "bot")
    for name in _PLAIN:
        expected_type = type(getattr(example, name))
        if type(plain[name]) is not expected_type:
            got = short_repr(plain[name])
            raise ValueError(f"{path}.{name}: expected {expected_type.__name__}, got {got}")
    if plain["kind"] not in get_args(Kind) or not is_member_name(plain["name"]):
        raise ValueError(f"{path}: expected a name and a kind, got {plain['name']!r:.80}")
    if not _is_valid_origin(plain["kind"], plain["origin"]):
        expected = f"an origin of the kind {plain['kind']}"
        raise ValueError(f"{path}.origin: expected {expected}, got {plain['origin']!r:.80}")
    for name, limit in ("elo", 1e6), ("ci95", np.inf):
        if not abs(plain[name]) < limit:
            problem = f"expected finite results and a rating, got {plain[name]}"
            raise ValueError(f"{path}.{name}: {problem}")
    return Member(**{**plain, "results": _results_from_plain(f"{path}.results", plain["results"])})


def _results_from_plain(path: str, plain: object) -> FloatArray:
    """Convert saved results to an array, (S, 3) float64.

    Raises:
        ValueError: the data is invalid; the message has the path.
    """
    rows: list[Any] = plain if isinstance(plain, list) else [plain]
    are_rows = all(isinstance(row, list) and len(row) == 3 for row in rows)
    if not are_rows or not all(
        type(x) in (int, float) and 0 <= x < np.inf for row in rows for x in row
    ):
        raise ValueError(
            f"{path}: expected wins, draws and losses by seat, finite and at least 0, got "
            f"{short_repr(plain)}"
        )
    return np.array(rows, dtype=np.float64).reshape(-1, 3)


def _is_valid_origin(kind: Kind, origin: str) -> bool:
    """Return True if members of a kind can have this origin."""
    if kind == "custom":  # programs may choose any name
        return True
    if kind == "random":
        return origin == RANDOM or origin.endswith(POOL_SUFFIX)
    return is_bot_name(origin) == (kind == "bot")


def add_games(
    rounds: Rounds,
    matches: IntArray,
    num_matches: int,
    results: Sequence[Sequence[GameResult] | None],
) -> tuple[list[GameResult], int]:
    """Add finished games, and pop the results of the rounds that they complete.

    A round has one game of each match against the pool. Members are rated over rounds, because
    short games, which may have other winners, are over-represented among the games finished by
    some time.

    Args:
        rounds: incomplete rounds, which are modified.
        matches: (G,) int64, indices among the matches against the pool, in the order of ends.
        num_matches: number of matches against the pool.
        results: results of each game; None without a result, after the loss of a worker process.

    Returns:
        The results of the complete rounds, and the number of games in them with a result.
    """
    # Count equal results of each game, and treat the counts as its metrics.
    counts: dict[str, FloatArray] = {}
    for i, game_results in enumerate(results):
        names = [] if game_results is None else [_GAMES, *map(_key, game_results)]
        for name in names:
            counts.setdefault(name, np.zeros(len(results)))[i] += 1
    metrics = {name: np.where(x > 0, x, np.nan) for name, x in counts.items()}
    complete = rounds.add(matches, num_matches, metrics)
    totals = {name: int(tally[:, 1].sum()) for name, tally in complete.items()}
    num_games = totals.pop(_GAMES, 0)
    return [one for name, total in totals.items() for one in [_parse_key(name)] * total], num_games


def members_in_open_rounds(rounds: Rounds) -> set[str]:
    """Return the names of members with results in incomplete rounds."""
    return {_parse_key(name).member for name in rounds.tallies if name != _GAMES}


def _key(result: GameResult) -> str:
    return f"{result.seat}/{result.score}/{result.member}"


def _parse_key(name: str) -> GameResult:
    seat, score, member = name.split("/", 2)
    return GameResult(member, int(seat), float(score))


_NAME = re.compile(r"\w[\w.-]{0,99}", re.ASCII)


def is_member_name(name: str) -> bool:
    """Return True for a valid file name: letters, digits, `_`, `-` and `.`."""
    return _NAME.fullmatch(name) is not None


def unique_name(name: str, used_names: Collection[str]) -> str:
    """Return a unique valid name for a member, similar to `name`."""
    plain = re.sub(r"[^\w.-]", "_", name, flags=re.ASCII).lstrip(".-")[:80] or "opponent"
    numbered = (f"{plain}-{i}" for i in range(2, len(used_names) + 3))
    return plain if plain not in used_names else next(n for n in numbered if n not in used_names)
