"""`SuiteReplay`: the first episodes of an evaluation, as a replay or a page."""

from dataclasses import replace
from functools import partial
from typing import Any

from enn_trainer.config import TrainConfig
from enn_trainer.evaluation.results import EXPLAINING, EpisodeReplay, Watch
from enn_trainer.evaluation.video import cannot_write, film_of_suite
from enn_trainer.experience.collector import Watcher
from enn_trainer.experience.players import Environments
from enn_trainer.viewer.annotate import explain_replay
from enn_trainer.viewer.played import EpisodeKeeper, ReplaySettings
from enn_trainer.viewer.replay import Replay
from enn_trainer.viewer.replay_format import write_replay
from entity_env.vec.variation import RunningArguments
from entity_env.vec.vec_env import VecEnv


class SuiteReplay(EpisodeReplay):
    """Replay of the first episodes of a suite, returned or written as a page.

    Args:
        settings: of the replay.
    """

    processes = 1

    def __init__(self, settings: ReplaySettings) -> None:
        self._settings = settings

    def of_suite(self, name: str) -> "SuiteReplay":
        """Return the replay of a suite; a page appends its name."""
        path = self._settings.path
        if path is None:
            return SuiteReplay(self._settings)
        return SuiteReplay(replace(self._settings, path=film_of_suite(path, name)))

    def watchers(self, envs: VecEnv, own: Environments, running: RunningArguments) -> list[Watcher]:
        """Return the watcher that keeps episodes."""
        self._keeper = EpisodeKeeper(envs, own, self._settings, running)
        return [self._keeper]

    def progress(self, share: float, is_done: bool) -> tuple[float, bool]:
        """Return that of the replay, if nothing else is to be played."""
        if self._settings.path is not None:
            return share, is_done
        return self._keeper.share_ended(), self._keeper.is_done()

    def results(
        self, network: Any, title: str, about: dict[str, str], config: TrainConfig, watch: Watch
    ) -> dict[str, Any]:
        """Return the replay; or the page, or the reason why it is missing.

        Raises:
            InvalidView: the view of the world, or the given positions, do not fit its space, and
                no page was to be written.
        """

        def replay() -> Replay:
            played = self._keeper.replay(title, about, config.ppo.gamma, config.net)
            keeper, share_of = self._keeper, partial(watch, EXPLAINING)
            explain_replay(played, network, keeper.beside, keeper.is_own, share_of)
            return played

        path = self._settings.path
        if path is None:
            return {"replay": replay()}
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            write_replay(replay(), path)
        except Exception as error:  # `view` is code of the world; metrics do not depend on it
            return {"page_problem": cannot_write(path, error, "eval.capture_replays")}
        return {"page": path}
