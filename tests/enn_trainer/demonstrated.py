"""A small world, somebody who knows what to do in it, and recordings of that."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from enn_trainer import CloneRunConfig
from enn_trainer.config.load import load_config
from entity_env import (
    Action,
    CategoricalActionMask,
    CategoricalActionSpace,
    Entity,
    Environment,
    EnvList,
    Observation,
    ObsSpace,
    SelectEntityActionMask,
    SelectEntityActionSpace,
)
from entity_env.examples import HiddenArm, Shells
from entity_env.ragged import Ragged
from entity_env.recording.read_recording import Recording
from entity_env.recording.record import RecordingVecEnv, recording_header
from entity_env.recording.recording_format import RecordedFrames, framed, prefix_of
from entity_env.spaces import ActionName
from entity_env.vec.vec_env import VecObs, VecSelectEntityActionMask

SMALL = (
    "net.d_model=16",
    "net.n_layer=1",
    "rollout.num_envs=6",
    "rollout.steps=4",
    "rollout.processes=1",
    "optim.bs=10",
    "ppo.gamma=1.0",
    "total_timesteps=48",
    "clone.bs=64",
    "clone.epochs=12",
    "clone.lr=0.01",
)


class Sorting(Environment):
    """Workers say on which side of 0 they stand, and pick the largest thing that they may.

    There are frames without workers, and actors and actees in changing numbers. The return from a
    frame, without discount, is how many steps are left, which it shows.
    """

    truncates = False

    def obs_space(self) -> ObsSpace:
        return ObsSpace(
            global_features=["left"],
            entities={"worker": Entity(["x", "noise"]), "thing": Entity(["size"])},
        )

    def action_space(self) -> dict[str, object]:  # type: ignore[override]
        return {
            "side": CategoricalActionSpace(["left", "right"]),
            "pick": SelectEntityActionSpace(),
        }

    def reset(self) -> Observation:
        self.left = self.rng.randint(1, 5)
        return self._observe(0.0)

    def act(self, actions: Mapping[str, Action]) -> Observation:
        self.left -= 1
        return self._observe(1.0)

    def _observe(self, reward: float) -> Observation:
        rng = self.rng
        workers, things = rng.choice([0, 1, 1, 2, 3]), rng.randint(1, 4)
        actions: dict[str, Any] = {"side": CategoricalActionMask(actor_types=["worker"])}
        if rng.random() < 0.8:
            mask = None
            if rng.random() < 0.5:
                mask = [[rng.random() < 0.6 for _ in range(things)] for _ in range(workers)]
                for row in mask:
                    row[rng.randrange(things)] = True
            actions["pick"] = SelectEntityActionMask(
                actor_types=["worker"], actee_types=["thing"], mask=mask
            )
        over = self.left == 0
        return Observation(
            global_features=[self.left],
            entities={
                "worker": [[rng.uniform(-1, 1), rng.gauss(0, 1)] for _ in range(workers)],
                "thing": [[rng.uniform(-1, 1)] for _ in range(things)],
            },
            actions=actions,
            reward=reward,
            terminated=over and not self.truncates,
            truncated=over and self.truncates,
        )


class CutOff(Sorting):
    """The same, but its episodes are cut off."""

    truncates = True


class Rearranged(Sorting):
    """The same in another order of types and features."""

    def obs_space(self) -> ObsSpace:
        return ObsSpace(
            global_features=["left"],
            entities={"thing": Entity(["size"]), "worker": Entity(["noise", "x"])},
        )

    def _observe(self, reward: float) -> Observation:
        obs = super()._observe(reward)
        obs.features = {
            name: [list(row)[::-1] for row in rows] for name, rows in obs.features.items()
        }
        return obs


def logits_of(obs: VecObs, x: int = 0) -> dict[ActionName, Ragged]:
    """How much the expert likes each choice; it does not look at masks.

    Args:
        obs: the frames.
        x: the column of this feature.
    """
    workers, things = obs.features["worker"], obs.features["thing"]
    sides = 8 * workers.values[:, x : x + 1] * np.array([[-1, 1]], dtype=np.float32)
    acting = obs.action_masks["pick"].actors.lengths > 0
    rows = [
        np.tile(12 * things[i].values[:, 0], int(n))
        for i, n in enumerate(np.where(acting, workers.lengths, 0))
    ]
    pick = Ragged(np.concatenate(rows).astype(np.float32), np.array([len(row) for row in rows]))
    return {"side": Ragged(sides, workers.lengths), "pick": pick}


def record(
    path: Path,
    steps: int = 60,
    world: type[Environment] = Sorting,
    at_random: bool = False,
    logits: bool = False,
    subsample: int = 1,
    num_envs: int = 16,
    x: int = 0,
    says_who: bool = False,
    players: Sequence[str] | None = None,
) -> Path:
    """Let the expert, or chance, play. The file holds what was done, and logits if asked for.

    With `says_who` a person is said to have made every second choice of each step. With `players`
    these are said to play by turns: another one in the next environment, and in the next step.
    """
    envs = RecordingVecEnv(EnvList(world, num_envs), path, subsample)
    envs.seed(1)
    rng = np.random.default_rng(0)
    obs = envs.reset(envs.obs_space())
    for t in range(steps):
        liked = logits_of(obs, x)
        actions = {
            name: chosen(obs, name, rng.random(rows.values.shape) if at_random else rows.values)
            for name, rows in liked.items()
        }
        who = {
            n: replace(rows, values=np.arange(len(rows.values)) % 2 == 0)
            for n, rows in actions.items()
        }
        more: dict[str, Any] = {"logits": liked if logits else None}
        more["by_hand"] = who if says_who else None
        if players is not None:
            more["player"] = [players[(t + env) % len(players)] for env in range(num_envs)]
        obs = envs.act(actions, envs.obs_space(), **more)
    envs.close()
    return path


def record_knowing(
    path: Path,
    world: Callable[[], Any],
    choose: Callable[[Any], int],
    steps: int,
    track: bool = True,
    num_envs: int = 64,
    **options: Any,
) -> Path:
    """Let somebody who knows all that a world hides choose for its actors, one in a frame at most.

    Args:
        path: the file.
        world: returns an environment with one action.
        choose: returns the choice in an environment.
        steps: of each environment.
        track: False to record no identity.
        num_envs: number of environments.
        options: of `RecordingVecEnv`.
    """
    worlds: list[Any] = []

    def create() -> Any:
        worlds.append(world())
        return worlds[-1]

    envs = RecordingVecEnv(EnvList(create, num_envs), path, **options)
    if track:
        envs.track()
    envs.seed(1)
    obs = envs.reset(envs.obs_space())
    for _ in range(steps):
        ((name, mask),) = obs.action_masks.items()
        acting = mask.actors.lengths
        choices = [choose(worlds[i]) for i in np.flatnonzero(acting)]
        actions = {name: Ragged(np.array(choices, np.int64), acting)}
        obs = envs.act(actions, envs.obs_space())
    envs.close()
    return path


def rewrite(made: Path, path: Path, change: Callable[[RecordedFrames], object]) -> Path:
    """A copy of a recording in which something about its decisions is changed."""
    recording = Recording.open(made)
    assert recording.num_envs is not None
    header = recording_header(recording.obs_space, recording.action_space, recording.num_envs)
    payloads = [header]
    for step in recording.steps():
        change(step.decisions)
        fields = {name: value for name, value in vars(step).items() if name != "decisions"}
        payloads.append({**fields, **step.decisions.payload()})
    path.write_bytes(prefix_of(recording.action_space) + b"".join(map(framed, payloads)))
    return path


def knows_the_ball(game: Shells) -> int:
    """The cup with the ball, by its place."""
    return game.cups.index(game.ball)


def tries_all_arms(game: HiddenArm) -> int:
    """One arm after the other, until one pays."""
    return game.arm if game.pulled == game.arm else (game.pulled + 1) % 5


def chosen(obs: VecObs, name: str, liked: np.ndarray[Any, Any]) -> Ragged:
    """Of each actor the choice that is liked most among those allowed."""
    mask = obs.action_masks[name]
    if not isinstance(mask, VecSelectEntityActionMask):
        return Ragged(liked.argmax(axis=1), mask.actors.lengths)
    allowed = np.ones(len(liked), dtype=np.bool_) if mask.mask is None else mask.mask.values
    liked = np.where(allowed, liked, -np.inf)
    ends = np.cumsum(np.repeat(mask.actees.lengths, mask.actors.lengths))
    rows = np.split(liked, ends[:-1]) if len(ends) else []
    return Ragged(np.array([row.argmax() for row in rows], dtype=np.int64), mask.actors.lengths)


def config(*overrides: str) -> CloneRunConfig:
    return load_config(CloneRunConfig, None, [*SMALL, *overrides])
