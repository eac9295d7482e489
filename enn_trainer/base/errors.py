"""The exceptions of this package: `except EnnTrainerError` catches all of them.

    Exception
    └── EnnTrainerError
        ├── ConfigError (ValueError)        a configuration that cannot be used
        ├── RonError (ValueError)           text that is not RON, or a value that RON cannot carry
        ├── CheckpointError (ValueError)    a checkpoint that cannot be used
        ├── AgentError (ValueError)         a network of the user's own that cannot be trained
        ├── ReplayError (ValueError)        a replay that cannot be written or read
        ├── RankError (RuntimeError)        another process of the run is lost or differs
        ├── ServerError (RuntimeError)      a server of a live game that does not listen any more
    └── NotFiniteError (ArithmeticError)   a loss, gradient or weight that is NaN or infinite

Mistakes in environments raise `entity_env.errors.EntityEnvError`.
"""


class EnnTrainerError(Exception):
    """The root of every exception that this package defines."""


class ConfigError(EnnTrainerError, ValueError):
    """A configuration that cannot be used: every problem found, as one line.

    Args:
        *problems: One sentence for each problem; each begins with the path of its field.
    """

    def __init__(self, *problems: str) -> None:
        super().__init__(*problems)
        self.problems = problems

    def __str__(self) -> str:
        return "; ".join(" ".join(problem.splitlines()) for problem in self.problems)


class RonError(EnnTrainerError, ValueError):
    """Text that is not RON, or a value that RON cannot carry.

    Args:
        problem: What was expected and what came.
        line: The line where it came, from 1; 0 while writing.
        column: The character of that line, from 1; 0 while writing.
    """

    def __init__(self, problem: str, line: int = 0, column: int = 0) -> None:
        super().__init__(problem, line, column)
        self.problem = problem
        self.line = line
        self.column = column

    def __str__(self) -> str:
        place = f"line {self.line}, column {self.column}: " if self.line else ""
        return place + self.problem


class AgentError(EnnTrainerError, ValueError):
    """A network that is not what `train(agent=...)` needs: every problem found, one a line.

    Args:
        *problems: One sentence for each problem; each begins with what it is about.
    """

    def __init__(self, *problems: str) -> None:
        super().__init__(*problems)
        self.problems = problems

    def __str__(self) -> str:
        return "\n".join(self.problems)


class CheckpointError(EnnTrainerError, ValueError):
    """A checkpoint that cannot be used: incomplete, damaged, or of another program."""

    def __str__(self) -> str:
        return "; ".join(line.strip() for line in super().__str__().splitlines())


class ReplayError(EnnTrainerError, ValueError):
    """A replay that cannot be written or read: damaged, too large, or another file."""


class NotFiniteError(EnnTrainerError, ArithmeticError):
    """A loss, gradient or weight that is NaN or infinite; the message has place and parameters."""


class RankError(EnnTrainerError, RuntimeError):
    """A process of a run of several that is lost, or differs from the others."""


class ServerError(EnnTrainerError, RuntimeError):
    """A server of a live game that does not listen any more."""
