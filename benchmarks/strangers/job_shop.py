"""Job-shop scheduling: operations that need one machine each are dispatched one by one."""

import numpy as np

from entity_env import Entity, Environment, Observation, ObsSpace
from entity_env import SelectEntityAction as Action
from entity_env import SelectEntityActionMask as Mask
from entity_env import SelectEntityActionSpace as Space

# Fisher and Thompson 1963: machine and duration of each operation; the shortest makespan is 55.
FT06 = """2 1 0 3 1 6 3 7 5 3 4 6   1 8 2 5 4 10 5 10 0 10 3 4   2 5 3 4 5 8 0 9 1 1 4 7
          1 5 0 5 2 5 3 3 4 8 5 9   2 9 1 3 4 5 5 4 0 3 3 1     1 3 3 3 5 9 0 10 4 4 2 1"""
OPERATION = ["job", "machine", "start", "duration", "tail"]
TYPES = {"job": OPERATION, "later": OPERATION, "machine": ["machine", "free", "work"], "shop": []}


class JobShop(Environment):
    """A shop where each job visits every machine once; the return is -makespan / 10."""

    def __init__(self, jobs: int = 6, machines: int = 6, ft06: bool = False) -> None:
        self.ft06, self.job, self.machine = ft06, np.arange(jobs), np.arange(machines)

    def obs_space(self) -> ObsSpace:  # a "job" is its next operation, "later" are the others
        return ObsSpace(entities={name: Entity(features) for name, features in TYPES.items()})

    def action_space(self) -> dict[str, Space]:
        return {"dispatch": Space()}

    def reset(self) -> Observation:
        rng, machine = np.random.default_rng(self.rng.getrandbits(64)), self.machine
        self.order, self.durations = np.moveaxis(np.array(FT06.split(), int).reshape(6, 6, 2), 2, 0)
        if not self.ft06:
            self.order = np.array([rng.permutation(machine) for _ in self.job])
            self.durations = rng.integers(1, 11, self.order.shape)
        self.next, self.ready = np.zeros_like(self.job), np.zeros(len(self.job))
        self.free, self.makespan = np.zeros(len(machine)), 0.0
        return self.observe()[0]

    def act(self, actions: dict[str, Action]) -> Observation:
        _, job = actions["dispatch"].actees[0]
        machine, duration = (of[job, self.next[job]] for of in (self.order, self.durations))
        self.ready[job] = self.free[machine] = max(self.ready[job], self.free[machine]) + duration
        self.next[job] += 1
        frame, makespan = self.observe()  # as it would be if no operation waited from now on
        frame.reward, self.makespan = (self.makespan - makespan) / 10, makespan
        return frame

    def observe(self) -> tuple[Observation, float]:
        job, ready, ahead = self.job, self.ready, self.machine - self.next[:, None]
        left, waits = np.where(ahead >= 0, self.durations, 0), self.next < len(self.machine)
        first = np.minimum(self.next, len(self.machine) - 1)
        begin = np.where(waits, np.maximum(ready, self.free[self.order[job, first]]), ready)
        end, now = begin[:, None] + left.cumsum(1), begin[waits].min(initial=begin.max())
        columns = np.indices(end.shape)[0], self.order, end - left - now, left, end[:, -1:] - end
        rows = np.stack(columns, axis=2) * [1, 1, 0.1, 0.1, 0.1]
        loads = np.maximum(self.free - now, 0), np.bincount(self.order.ravel(), left.ravel())
        machines = np.stack([self.machine, *loads], axis=1) * [1, 0.1, 0.1]
        actions = {"dispatch": Mask(actor_types=["shop"], actee_types=["job"], mask=[waits])}
        shown = dict(zip(TYPES, (rows[job, first], rows[ahead > 0], machines, [[]]), strict=True))
        return Observation(entities=shown, actions=actions, done=not waits.any()), end.max()
