"""Environments that note what they are told, and typed lines, for play by hand."""

from collections.abc import Callable, Iterator
from typing import Any

from entity_env import Action, CategoricalAction, Environment, GlobalCategoricalAction, Match


class Spied:
    """Makes an environment and notes what it is told to do, and what it earns."""

    def __init__(self, create_env: Callable[[], Environment | Match]) -> None:
        self.create_env = create_env
        self.told: list[Any] = []
        self.closed = 0

    def __call__(self) -> Any:
        env: Any = self.create_env()
        act, close = env.act, env.close

        def spied_act(actions: Any) -> Any:
            self.told.append(actions)
            return act(actions)

        def spied_close() -> None:
            self.closed += 1
            close()

        env.act, env.close = spied_act, spied_close
        return env

    def names(self) -> Iterator[str]:
        """What was chosen, in words, one actor after the other."""
        for step in self.told:
            for side in step if isinstance(step, list | tuple) else [step]:
                for action in side.values():
                    yield from names_of(action)


def names_of(action: Action) -> list[str]:
    if isinstance(action, GlobalCategoricalAction):
        return [action.label]
    if isinstance(action, CategoricalAction):
        return action.labels
    return [" ".join(map(str, a)) if isinstance(a, tuple) else str(a) for a in action.actees]


def typing(*lines: str | type[BaseException]) -> Callable[[str], str]:
    """Types the lines, then there are no more."""
    rest = iter(lines)

    def ask(prompt: str) -> str:
        line = next(rest, EOFError)
        if isinstance(line, str):
            return line
        raise line

    return ask
