"""Report of a check: problems and remarks, each listed once."""

import re
from dataclasses import dataclass, field

from entity_env.errors import EntityEnvError

_WIDEST = 400  # characters of a finding that are printed: masks can be large
_FIXES = (  # pattern of a message, and the remedy
    (r"finite numbers", "look for divisions by zero and for values that are never set"),
    (r"^\w*features.*expected", "give one row per entity and one number per feature of the space"),
    (r"^(entities|visible|ids): .*types", "name the type in obs_space(), or leave it out here"),
    (r"expected (a sequence of )?\d+ ids", "give one id per row of features, in the same order"),
    (r"unique ids", "ids must differ between all entities of a frame, also of different types"),
    (r"expected each (entity|type) once", "name every entity once"),
    (r"expected other ids", "entities of a type without ids are called (type, row)"),
    (r"hashable", "use numbers, strings or tuples as ids"),
    (r"expected ids among", "give these entities ids, or name them by type"),
    (r"(actors|actees): expected types", "name types of obs_space()"),
    (r"is invisible", "leave hidden entities out of actions, or show them"),
    (r"^actions: ", "name the action in action_space(), or leave it out here"),
    (r"expected an? \w+Mask", "use the mask that belongs to the action's space"),
    (
        r"mask: expected shape",
        "give one row per actor and one flag per choice or actee, in the order of the space",
    ),
    (r"expected booleans", "use True where something is allowed or visible, False elsewhere"),
    (r"expected \d+ flags", "give one flag per row of features"),
    (r"expected a number", "give one Python number"),
    (r"expected an Observation", "return an Observation from reset and act"),
    (r"got both|contradicts", "say it in one way only"),
    (r"expected (a dictionary|True or False)", "set it in the constructor of Observation"),
    (r"documentation", "see the docstring of Observation for what this field can be"),
)


@dataclass
class Finding:
    """A problem or remark.

    Attributes:
        field: a part of the observation, or a method.
        text: what was expected and what came.
        fix: the remedy.
        where: the episode and step where it occurred first.
        count: the number of times that it occurred.
    """

    field: str
    text: str
    fix: str
    where: str = ""
    count: int = 1

    @property
    def kind(self) -> tuple[str, str]:
        """Equal for findings that differ only in numbers and names."""
        expected = self.text.split(", got ")[0]
        return self.field, re.sub(r"among .*|\(.*\)|(?<!\w)-?\d[\d.e+-]*", "#", expected)

    def __str__(self) -> str:
        times = f", {self.count} times in all" if self.count > 1 else ""
        where = f" ({self.where}{times})" if self.where else ""
        text = self.text if len(self.text) <= _WIDEST else f"{self.text[:_WIDEST]}..."
        return f"  {self.field}{where}: {text}" + (f"\n    -> {self.fix}" if self.fix else "")


@dataclass
class Report:
    """The report of `check_env`.

    Attributes:
        name: of the environment.
        problems: errors of the environment.
        remarks: legal behaviour that may not be intended.
        episodes: the number of episodes that were begun.
        steps: the number of their steps.
    """

    name: str
    problems: list[Finding] = field(default_factory=list)
    remarks: list[Finding] = field(default_factory=list)
    episodes: int = 0
    steps: int = 0

    @property
    def ok(self) -> bool:
        """There are no problems."""
        return not self.problems

    def problem(self, field: str, text: str, fix: str, where: str = "") -> None:
        """Add a problem, or count one that is known."""
        _add(self.problems, Finding(field, text, fix, where))

    def remark(self, field: str, text: str, fix: str, where: str = "") -> None:
        """Add a remark, or count one that is known."""
        _add(self.remarks, Finding(field, text, fix, where))

    def problem_of(self, message: str, where: str) -> None:
        """Add the message of an `InvalidObservation` as a problem."""
        message = message.replace("features of '__global__'", "global_features")
        field, colon, text = message.partition(": ")
        if not colon:
            field, text = "Observation", message
        fix = next((fix for pattern, fix in _FIXES if re.search(pattern, message)), "")
        self.problem(field, text, fix, where)

    def raise_if_bad(self) -> None:
        """Raise if there are problems.

        Raises:
            EntityEnvError: with the whole report.
        """
        if not self.ok:
            raise EntityEnvError(str(self))

    def __str__(self) -> str:
        played = f"in {_count(self.episodes, 'episode')}, {_count(self.steps, 'step')}"
        found = [
            _count(len(findings), name)
            for findings, name in ((self.problems, "problem"), (self.remarks, "remark"))
            if findings
        ]
        lines = [f"{self.name}: {', '.join(found) or 'nothing found wrong'} {played}"]
        for title, findings in (("problems", self.problems), ("remarks", self.remarks)):
            if findings:
                lines += [f"{title}:", *map(str, findings)]
        return "\n".join(lines)


def _add(findings: list[Finding], new: Finding) -> None:
    known = next((finding for finding in findings if finding.kind == new.kind), None)
    if known is None:
        findings.append(new)
    else:
        known.count += 1


def _count(n: int, noun: str) -> str:
    return f"{n} {noun}" if n == 1 else f"{n} {noun}s"
