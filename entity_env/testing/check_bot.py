"""Check of a bot, by playing it in a world in which nothing is wrong."""

from collections.abc import Callable, Sequence

from entity_env.bot import Bot, ask_bots, bot_state, restore_bot, shown_frames
from entity_env.environment import Observation
from entity_env.errors import InvalidAction
from entity_env.match import Match
from entity_env.plain_state import impure
from entity_env.seeding import derive_seed
from entity_env.spaces import Spaces
from entity_env.testing.random_play import Player, Report, Stop, answer
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
    """Play a bot on all sides, and report everything that is wrong with it.

    Args:
        create_bot: the class of the bot.
        match: the world.
        spaces: of the world.
        report: takes the problems.
        seed: of actions and episodes.
        episodes: the number of episodes to play.
        max_steps: the number of steps after which an episode is broken off.
    """
    first = _BotGame(create_bot, match, spaces, report, seed, max_steps)
    played = first.play(episodes), first.choices
    if not report.ok:
        return

    # Other instances choose the same, also ones that are restored before each step.
    for is_restored in (False, True):
        own = Report("")
        again = _BotGame(create_bot, match, spaces, own, seed, max_steps, is_restored)
        if (again.play(episodes), again.choices) == played and own.ok:
            continue
        if own.problems:
            report.problems += own.problems
        elif is_restored:
            text = "expected a bot that goes on as the saved one, got other choices"
            fix = "save all that choices depend on, as copies; class MyBot(PlainState, Bot) does"
            report.problem("bot.set_state", text, fix)
        else:
            text = "expected choices that are a function of the seed, got others in a new instance"
            report.problem("bot.seed", text, "draw from self.rng, and forget old games in seed()")
        return


class _BotGame(Player):
    """Player of one environment whose choices are those of bots, one for each side."""

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
            answer(self.report, "bot.seed", where, bot.seed, seed)

    def choose(self, frames: Sequence[Observation], batch: VecObs, where: str) -> Choices:
        """Let the bots choose.

        Raises:
            Stop: a choice is not legal, or a bot raised.
        """
        if self.is_restored:
            self._restore(where)
        full = batch_obs(frames, *self.spaces)
        shown = shown_frames(full, self.obs_space, self.spaces)

        def ask() -> Choices | InvalidAction:
            try:
                return ask_bots(self.bots, shown, full, self.spaces, where="side {}".format)
            except InvalidAction as error:
                return error

        choices: Choices | InvalidAction = answer(self.report, "bot.act", where, ask)
        if isinstance(choices, InvalidAction):
            fix = "choose for each actor of observation.actions what its mask allows"
            self.report.problem("bot.act", str(choices), fix, where)
            raise Stop
        self.choices.append({name: rows.values.tolist() for name, rows in choices.items()})
        return choices

    def _create(self) -> list[Bot]:
        num_sides = range(self.match.num_sides)
        return [answer(self.report, "bot", "", self.create_bot) for _ in num_sides]

    def _restore(self, where: str) -> None:
        """Replace the bots by new ones with their states."""
        states = [answer(self.report, "bot.get_state", where, bot_state, bot) for bot in self.bots]
        if wrong := impure(states, "state"):
            text, fix = f"expected plain data, got {wrong}", "return lists and numbers"
            self.report.problem("bot.get_state", text, fix, where)
            raise Stop
        self.bots = self._create()
        for bot, state in zip(self.bots, states, strict=True):
            answer(self.report, "bot.set_state", where, restore_bot, bot, state)
