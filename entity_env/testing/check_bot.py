"""Check of a bot, by playing episodes of a valid environment."""

from collections.abc import Callable, Sequence

from entity_env.bot import Bot, bot_choices, bot_observations, bot_state, restore_bot
from entity_env.environment import Observation
from entity_env.errors import InvalidAction
from entity_env.match import Match
from entity_env.plain_state import non_plain_part
from entity_env.seeding import derive_seed
from entity_env.spaces import Spaces
from entity_env.testing.random_play import Player, Report, Stop, call
from entity_env.vec.batching import batch_obs
from entity_env.vec.vec_obs import Choices, VecObs


def check_bot(
    create_bot: Callable[[], Bot],
    match: Match,
    spaces: Spaces,
    report: Report,
    seed: int,
    episodes: int,
    max_steps: int,
) -> None:
    """Play a bot on all sides, and report illegal choices, exceptions and irreproducible state.

    Args:
        create_bot: the class of the bot.
        match: a valid environment.
        spaces: of the environment.
        report: collects problems.
        seed: of actions and episodes.
        episodes: number of episodes.
        max_steps: maximum number of steps per episode.
    """
    first = _BotGame(create_bot, match, spaces, report, seed, max_steps)
    played = first.play(episodes), first.choices
    if not report.ok:
        return

    # Other instances must make the same choices, also if restored before each step.
    for is_restored in (False, True):
        replay = Report("")
        game = _BotGame(create_bot, match, spaces, replay, seed, max_steps, is_restored)
        if (game.play(episodes), game.choices) == played and replay.ok:
            continue
        if replay.problems:
            report.problems += replay.problems
        elif is_restored:
            text = "expected the choices of the saved bot, got others"
            fix = "save copies of all state that affects choices, as class MyBot(PlainState, Bot)"
            report.problem("bot.set_state", text, fix)
        else:
            text = "expected choices that are a function of the seed, got others in a new instance"
            report.problem("bot.seed", text, "draw from self.rng, and reset all state in seed()")
        return


class _BotGame(Player):
    """Player that lets one bot per side choose."""

    def __init__(
        self,
        create_bot: Callable[[], Bot],
        match: Match,
        spaces: Spaces,
        report: Report,
        seed: int,
        max_steps: int,
        is_restored: bool = False,
    ) -> None:
        super().__init__(match, spaces, report, seed, max_steps)
        self.create_bot, self.is_restored = create_bot, is_restored
        self.bots = self._create()
        self.choices: list[dict[str, list[int]]] = []

    def begin(self, episode: int, where: str) -> None:
        """Seed the bots."""
        for side, bot in enumerate(self.bots):
            seed = derive_seed(self.seed, "bot", episode, side)
            call(self.report, "bot.seed", where, bot.seed, seed)

    def choose(self, frames: Sequence[Observation], batch: VecObs, where: str) -> Choices:
        """Return the choices of the bots.

        Raises:
            Stop: a choice is illegal, or a bot raised an exception.
        """
        if self.is_restored:
            self._restore(where)
        full = batch_obs(frames, *self.spaces)
        views = bot_observations(full, self.obs_space, self.spaces)

        def ask() -> Choices | InvalidAction:
            try:
                return bot_choices(self.bots, views, full, self.spaces, where="side {}".format)
            except InvalidAction as error:
                return error

        choices: Choices | InvalidAction = call(self.report, "bot.act", where, ask)
        if isinstance(choices, InvalidAction):
            fix = "return a legal choice for each actor of observation.actions"
            self.report.problem("bot.act", str(choices), fix, where)
            raise Stop
        self.choices.append({name: rows.values.tolist() for name, rows in choices.items()})
        return choices

    def _create(self) -> list[Bot]:
        num_sides = range(self.match.num_sides)
        return [call(self.report, "bot", "", self.create_bot) for _ in num_sides]

    def _restore(self, where: str) -> None:
        """Replace the bots by new instances with their states."""
        states = [call(self.report, "bot.get_state", where, bot_state, bot) for bot in self.bots]
        if culprit := non_plain_part(states, "state"):
            text, fix = f"expected plain data, got {culprit}", "return lists and numbers"
            self.report.problem("bot.get_state", text, fix, where)
            raise Stop
        self.bots = self._create()
        for bot, state in zip(self.bots, states, strict=True):
            call(self.report, "bot.set_state", where, restore_bot, bot, state)
