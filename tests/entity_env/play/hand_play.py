"""Environments that log their actions, and typed input, for tests of play by hand."""

from collections.abc import Callable, Iterator
from typing import Any

from entity_env import Action, CategoricalAction, Environment, GlobalCategoricalAction, Match


class Spied:
    """Factory of an environment that logs its actions."""

    def __init__(self, create_env: Callable[[], Environment | Match]) -> None:
        self.create_env = create_env
        self.action_log: list[Any] = []
        self.closed = 0

    def __call__(self) -> Any:
        env: Any = self.create_env()
        act, close = env.act, env.close

        def spied_act(actions: Any) -> Any:
            self.action_log.append(actions)
            return act(actions)

        def spied_close() -> None:
            self.closed += 1
            close()

        env.act, env.close = spied_act, spied_close
        return env

    def names(self) -> Iterator[str]:
        """Yield the label or id of each choice, actor by actor."""
        for step in self.action_log:
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
    """Return an `ask` function that types the lines, then ends the input."""
    rest = iter(lines)

    def ask(prompt: str) -> str:
        line = next(rest, EOFError)
        if isinstance(line, str):
            return line
        raise line

    return ask
