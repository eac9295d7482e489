"""The exceptions of this package: `except EnnTrainerError` catches all of them.

    Exception
    └── EnnTrainerError
        ├── ConfigError (ValueError)        invalid configuration
        ├── RonError (ValueError)           text that is not RON, or a value that RON cannot encode
        ├── CheckpointError (ValueError)    checkpoint that cannot be loaded
        ├── AgentError (ValueError)         custom network that cannot be trained
        ├── ReplayError (ValueError)        replay that cannot be written or read
        ├── RankError (RuntimeError)        another process of the run is lost or differs
        ├── ServerError (RuntimeError)      server of a live game that is no longer listening
    └── NotFiniteError (ArithmeticError)   loss, gradient or weight that is NaN or infinite

Mistakes in environments raise `entity_env.errors.EntityEnvError`.
"""


class EnnTrainerError(Exception):
    """Base class of all exceptions of this package."""


class ConfigError(EnnTrainerError, ValueError):
    """Invalid configuration, with all problems in one line.

    Args:
        *problems: One sentence for each problem, which begins with the path of its field.
    """

    def __init__(self, *problems: str) -> None:
        super().__init__(*problems)
        self.problems = problems

    def __str__(self) -> str:
        return "; ".join(" ".join(problem.splitlines()) for problem in self.problems)


class RonError(EnnTrainerError, ValueError):
    """Text that is not RON, or a value that RON cannot encode.

    Args:
        problem: Expected and actual input.
        line: Line number, from 1; 0 while writing.
        column: Character of that line, from 1; 0 while writing.
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
    """Custom network that does not fulfil the interface of `train(agent=...)`.

    Args:
        *problems: One sentence for each problem, which begins with its subject; one a line.
    """

    def __init__(self, *problems: str) -> None:
        super().__init__(*problems)
        self.problems = problems

    def __str__(self) -> str:
        return "\n".join(self.problems)


class CheckpointError(EnnTrainerError, ValueError):
    """Checkpoint that cannot be loaded: incomplete, damaged, or of another program."""

    def __str__(self) -> str:
        return "; ".join(line.strip() for line in super().__str__().splitlines())


class ReplayError(EnnTrainerError, ValueError):
    """Replay that cannot be written or read: damaged, too large, or not a replay."""


class NotFiniteError(EnnTrainerError, ArithmeticError):
    """Loss, gradient or weight that is NaN or infinite; the message has place and parameters."""


class RankError(EnnTrainerError, RuntimeError):
    """Another process of a run is lost, or differs from the others."""


class ServerError(EnnTrainerError, RuntimeError):
    """Server of a live game that is no longer listening."""
