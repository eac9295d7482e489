"""Small runs of several ranks, with their settings and outcomes."""

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from enn_trainer import ConfigError, RankError, StateManager, Trainer
from enn_trainer.base.group import Group
from enn_trainer.curriculum.rounds import ROUNDS
from enn_trainer.runtime.exchange import digest_of
from entity_env.examples import Minefield
from tests.enn_trainer.run.thread_group import in_ranks
from tests.enn_trainer.selfplay.joust import SETTINGS

SMALL = [
    *("rollout.num_envs=7", "rollout.steps=8", "rollout.processes=1", "optim.bs=16"),
    *("net.d_model=16", "net.n_layer=1", "net.n_head=2", "optim.update_epochs=2"),
    *("scale.shards=4", "total_timesteps=168", "seed=3", "checkpoint.every_seconds=inf"),
]
LEAGUE = [
    *(setting for setting in SETTINGS if not setting.startswith("checkpoint")),
    *("rollout.num_envs=18", "selfplay.share=0.6", "selfplay.snapshot_every=40"),
    *("selfplay.in_play=3", "selfplay.result=win", "scale.shards=4", "total_timesteps=156"),
    *("selfplay.opponents=[random]", "checkpoint.every_seconds=inf"),
]
"""Nine matches, five of them against the pool: 13 frames of the agent in each of 4 steps."""
OPTIONS = {
    "minibatches without frames of some ranks": ["optim.bs=2"],
    "pieces": ["optim.micro_bs=4", "optim.max_entities=40"],
    "early end": ["ppo.target_kl=1e-7"],
    "value network": ["vf_net=(d_model: 16, n_layer: 1, n_head: 2)"],
    "value bins": [
        "ppo.value_loss=hl_gauss",
        "ppo.clip_vloss=false",
        "ppo.value_bins=(low: -1, high: 1, num_bins: 11)",
    ],
    "scaled rewards": ["ppo.reward_scaling=true"],
    "normalised values": ["ppo.value_norm=true", "ppo.norm_adv_floor=0.3"],
    "entropy target": ["ppo.ent_targets={move: 0.9}", "ppo.weight_by=frame", "ppo.ratio=frame"],
    "magnet": ["ppo.magnet=(every: 60)"],
    "evaluations": ["eval.interval=60", "eval.steps=5", "eval.num_envs=3", "eval.processes=1"],
    "memory": ["net.memory=(of: frame)", "ppo.seq_len=4", "optim.bs=16"],
    "lessons": [
        "env.vary.max_steps=9",
        'env.vary.width="uniform 150 250"',
        'curricula={"mines": (lessons: ['
        '(name: "few", vary: {"max_mines": "int 0 2"}, '
        'until: ["episodic_reward.mean >= -9"], episodes: 4), '
        '(name: "some", vary: {"max_mines": "int 1 4"}, until: ["lesson_step >= 50"]), '
        '(name: "all", vary: {"max_mines": "int 0 9"})], review: 0.3)}',
    ],
}
OF_TIME = ("charts/SPS", "throughput", "fps", "eps", "system/", "trace/", "checkpoint/")


class Ran(NamedTuple):
    """Outcome of a run in one rank."""

    digest: int
    metrics: dict[str, float]
    notices: Any
    step: int
    rounds: str


def ran(trainer: Trainer) -> Ran:
    """Return the outcome of a run so far, without what depends on time."""
    metrics = {
        tag: "nan" if math.isnan(x) else x
        for tag, x in trainer.metrics.items()
        if not tag.startswith(OF_TIME)
    }
    state = trainer.state
    rounds = repr(state.parts[ROUNDS].state_dict())
    return Ran(digest_of(state.agent), metrics, state.memory["notices"], state.step, rounds)


def run(
    size: int, env: Any, settings: Sequence[str], folder: Path | None = None, one: bool = False
) -> list[Ran]:
    """Train in several ranks, or take `one` update and save; return the outcome of each rank."""

    def work(group: Group | None = None) -> Ran:
        manager = StateManager(overrides=[*SMALL, *settings], checkpoint_dir=folder)
        manager.say = lambda line: None
        with Trainer(manager, env) as trainer:
            trainer.step() if one else trainer.run()
            if one:
                trainer.save()
            return ran(trainer)

    return [work()] if size == 1 else in_ranks(size, work)


def failure(
    settings: list[str], env: Any = Minefield, size: int = 2, of_rank: Any = lambda rank: []
) -> str:
    """Return the message with which all ranks fail to begin."""
    messages = []

    def work(group: Group) -> None:
        manager = StateManager(overrides=[*SMALL, *settings, *of_rank(group.rank)])
        try:
            Trainer(manager, env).close()
        except (ConfigError, RankError) as error:
            messages.append(str(error).removeprefix("rank 0: "))

    in_ranks(size, work)
    assert len(messages) == size
    assert len({*messages}) == 1
    return messages[0]


def run_digest(folder: Path | None, *settings: str) -> int:
    """Return the digest of the agent of a run, or of that of the same settings in one process."""
    overrides = None if folder else [*SMALL, *settings]
    manager = StateManager(overrides=overrides, checkpoint_dir=folder)
    with Trainer(manager, Minefield) as trainer:
        if folder is None:
            trainer.run()
        return digest_of(trainer.state.agent)
