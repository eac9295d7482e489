"""Schedules of a configuration as hyperstate keeps them, beside it by section; and back."""

from typing import Any

import hyperstate.schedule

from enn_trainer.config import TrainConfig
from enn_trainer.schedules import follow_schedules, read_scheduled, scheduled_fields


def schedule_as_ours(
    section: Any, schedules: dict[str, Any], fixed: dict[str, str], path: str = ""
) -> None:
    """Let what hyperstate loaded follow the schedules that it keeps beside it, by section."""
    for name, schedule in schedules.items():
        value = getattr(section, name)
        if isinstance(schedule, dict):
            schedule_as_ours(value, schedule, fixed, f"{path}{name}.")
        else:
            kind = int if isinstance(value, int) else float
            setattr(section, name, read_scheduled(schedule.unparsed, kind, path + name, fixed))


def schedules_as_theirs(config: TrainConfig) -> dict[str, Any]:
    """The schedules of a configuration as hyperstate keeps them, by section."""
    nested: dict[str, Any] = {}
    for path, value in scheduled_fields(config).items():
        *sections, name = path.split(".")
        within = nested
        for section in sections:
            within = within.setdefault(section, {})
        within[name] = hyperstate.schedule.Schedule(follow_schedules, value.schedule.text)
    return nested
