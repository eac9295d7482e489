"""A small match, versions of it, and runs with a pool in them."""

from pathlib import Path
from typing import Any

from enn_trainer import State, StateManager, train
from enn_trainer.checkpoints.run_dir import RunDir
from enn_trainer.selfplay.league import League, Member
from entity_env import (
    CategoricalActionMask,
    CategoricalActionSpace,
    Entity,
    Match,
    Observation,
    ObsSpace,
    PlainState,
)

SETTINGS = [
    *("rollout.num_envs=8", "rollout.steps=4", "rollout.processes=1", "optim.bs=12"),
    *("net.d_model=8", "net.n_layer=1", "optim.update_epochs=1", "cuda=false"),
    *("optim.anneal_lr=false", "ppo.anneal_entropy=false"),
    *("checkpoint.every_seconds=0", "checkpoint.keep=20"),
]
POOL = ["selfplay.share=0.5", "selfplay.snapshot_every=24", "selfplay.in_play=2"]
FRAMES = 24
"""Of the agent in an update, after each of which a snapshot joins: 4 steps of 4 + 2 sides."""


class Joust(PlainState, Match):
    """Two knights draw near; who is faster after three turns wins."""

    num_sides = 2
    knight = "Knight"
    paces = ("walk", "trot", "charge")
    features: tuple[str, ...] = ("speed", "lance")

    def obs_space(self) -> ObsSpace:
        return ObsSpace(["turn"], {self.knight: Entity([*self.features])})

    def action_space(self) -> dict[str, Any]:
        return {"ride": CategoricalActionSpace([*self.paces])}

    def reset(self) -> list[Observation]:
        self.turn, self.speed = 0, [self.rng.randint(0, 2), self.rng.randint(0, 2)]
        return self._observe()

    def act(self, actions: Any) -> list[Observation]:
        self.turn += 1
        for side, of_side in enumerate(actions):
            self.speed[side] += ("walk", "trot", "charge").index(of_side["ride"].labels[0])
        return self._observe()

    def _observe(self) -> list[Observation]:
        done = self.turn == 3
        shown = [{"speed": float(speed), "lance": 1.0, "crest": 2.0} for speed in self.speed]
        won = [float(self.speed[side] > self.speed[1 - side]) for side in (0, 1)]
        return [
            Observation(
                global_features=[self.turn],
                entities={self.knight: [[shown[side][name] for name in self.features]]},
                actions={"ride": CategoricalActionMask(actor_types=[self.knight])},
                reward=won[side] - won[1 - side] if done else 0.0,
                done=done,
                metrics={"win": won[side]} if done else {},
            )
            for side in (0, 1)
        ]


class Tourney(Joust):
    """Riders in place of knights, with a crest."""

    knight = "Rider"
    features = ("crest", "speed", "lance")


class Tilt(Joust):
    """The same with the paces in another order."""

    paces = ("charge", "walk", "trot")


def run(folder: Path, updates: int, *settings: str, env: Any = Joust, **more: Any) -> StateManager:
    """Train for so many updates in all, which are all saved, with a pool unless `pool=False`."""
    pool = POOL if more.pop("pool", True) else []
    total = f"total_timesteps={updates * FRAMES}"
    options = {"checkpoint_dir": folder, **more}
    manager = StateManager(overrides=[*SETTINGS, *pool, total, *settings], **options)
    train(manager, env)
    return manager


def league_of(state: State) -> League:
    """Return the league of a run."""
    league = state.parts["league"]
    assert isinstance(league, League)
    return league


def members(state: State) -> dict[str, Member]:
    """Return the members of a run by name."""
    return {member.name: member for member in league_of(state).members}


def saves_of(folder: Path) -> list[Path]:
    """Return the saves of a run, oldest first."""
    return RunDir(folder).saved_paths()[::-1]
