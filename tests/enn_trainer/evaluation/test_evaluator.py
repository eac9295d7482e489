"""Evaluation measures the agent's side alone and leaves no trace."""

import random
from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest
import torch
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from enn_trainer import (
    CheckpointError,
    ConfigError,
    EnvConfig,
    StateManager,
    load_checkpoint,
    train,
)
from enn_trainer.evaluation.opponents import RandomAgent, create_opponent
from enn_trainer.experience.collector import Collector, play
from enn_trainer.experience.players import AgentPlayer
from enn_trainer.experience.seated_players import AGENT, SeatedPlayers, against
from entity_env import (
    ActionSpace,
    AddMetricsWrapper,
    CategoricalActionMask,
    CategoricalActionSpace,
    Entity,
    EnvList,
    GlobalCategoricalActionMask,
    GlobalCategoricalActionSpace,
    Match,
    Observation,
    ObsSpace,
    PlainState,
)
from entity_env.examples import Duel, Xor
from rogue_net import EntityBatch
from tests.enn_trainer.builders import weights
from tests.enn_trainer.evaluation.builders import DUEL, run_duel
from tests.enn_trainer.worlds import Meadow

EVAL = ["eval.steps=20", "eval.interval=64", "eval.num_envs=8"]


@pytest.mark.slow
@pytest.mark.parametrize("opponent", [[], ["eval.opponent=random"]])
def test_evaluation_does_not_change_training(tmp_path: Path, opponent: list[str]) -> None:
    without, _ = run_duel(tmp_path)
    with_it, result = run_duel(tmp_path, *EVAL, *opponent)
    assert torch.equal(weights(without), weights(with_it))
    assert result.eval["eval/episodic_reward.count"] > 0


def test_evaluation_preserves_global_random_states(tmp_path: Path) -> None:
    """In-process environments may draw from them while an evaluation seeds its own."""
    from entity_env.seeding import preserve_global_rng

    random.seed(1)
    expected = random.getstate()
    with preserve_global_rng():
        random.seed(2)
    assert random.getstate() == expected


@pytest.mark.slow
def test_results_do_not_depend_on_the_number_of_processes(tmp_path: Path) -> None:
    _, one = run_duel(tmp_path, *EVAL, "eval.opponent=random", "eval.processes=1")
    _, again = run_duel(tmp_path, *EVAL, "eval.opponent=random", "eval.processes=1")
    _, three = run_duel(tmp_path, *EVAL, "eval.opponent=random", "eval.processes=3")
    assert one.eval == again.eval
    assert one.eval.keys() == three.eval.keys()
    for name, value in one.eval.items():
        assert three.eval[name] == pytest.approx(value, rel=1e-12), name


def test_only_environments_of_the_agent_count() -> None:
    """Of every match one side wins what the other loses: both sides together have mean 0."""
    player, space = AgentPlayer(RandomAgent(Duel().action_space()), seed=1), Duel().obs_space()
    everyone = np.arange(16)
    both = play(Collector(AddMetricsWrapper(EnvList(Duel, 16)), player), space, 60, seed=1)
    seats = SeatedPlayers({AGENT: player, "other": player}, against("other", 2), 2)
    counted = AddMetricsWrapper(EnvList(Duel, 16), everyone % 2 == 0)
    even = play(Collector(counted, seats), space, 60, seed=1)
    assert both["episodic_reward"].mean == 0
    assert both["episodic_reward"].count == 2 * even["episodic_reward"].count > 0
    assert both["win"].count == 2 * even["win"].count
    lost = 1 - even["win"].mean - even["draw"].mean
    assert even["win"].mean - lost == pytest.approx(even["episodic_reward"].mean)


def test_agent_and_opponent_play_separate_environments() -> None:
    class Always(RandomAgent):
        def __init__(self, choice: int) -> None:
            super().__init__(Meadow().action_space())  # type: ignore[arg-type]
            self.choice = choice

        def forward(
            self, batch: EntityBatch, actions: Any = None, uniforms: Mapping[str, Any] | None = None
        ) -> Any:
            lengths = {name: len(a.actors.values) for name, a in batch.actions.items()}
            return (
                super()
                .forward(batch, {name: torch.full((n,), 0) for name, n in lengths.items()})
                ._replace(
                    actions={name: torch.full((n,), self.choice) for name, n in lengths.items()}
                )
            )

    envs = EnvList(Meadow, 7)
    envs.seed(3)
    obs = envs.reset(envs.obs_space())
    even, odd = AgentPlayer(Always(0), seed=0), AgentPlayer(Always(1), seed=0)
    players = SeatedPlayers({AGENT: even, "odd": odd}, against("odd", 1))
    players.begin(obs, is_resumed=False)
    chosen = players.act(obs, EntityBatch.of(obs), t=0).chosen
    for name, rows in chosen.items():
        frame = np.repeat(np.arange(7), obs.action_masks[name].actors.lengths)
        assert np.array_equal(rows.values.numpy(), frame % 2), name


def test_random_opponent_samples_only_legal_actions() -> None:
    envs = EnvList(Meadow, 200)
    envs.seed(0)
    batch = EntityBatch.of(envs.reset(envs.obs_space()))
    out = RandomAgent(envs.action_space())(batch)
    walk = out.log_probs["walk"].exp()
    mask = batch.actions["walk"].mask
    assert mask is not None
    torch.testing.assert_close(
        walk, mask.values / mask.values.sum(1, keepdim=True), rtol=1e-5, atol=0
    )
    assert torch.isfinite(out.logprobs["watch"]).all()


@pytest.mark.slow
def test_checkpoint_can_be_an_opponent(tmp_path: Path) -> None:
    run_duel(tmp_path, checkpoint_dir=tmp_path / "earlier")
    _, result = run_duel(tmp_path, *EVAL, f"eval.opponent={tmp_path / 'earlier'}")
    assert -1 <= result.eval["eval/episodic_reward.mean"] <= 1


@pytest.mark.slow
def test_agent_against_itself_wins_half(tmp_path: Path) -> None:
    run_duel(tmp_path, checkpoint_dir=tmp_path / "earlier")
    _, result = run_duel(
        tmp_path,
        *EVAL,
        "eval.num_envs=64",
        "eval.steps=100",
        f"eval.opponent={tmp_path / 'earlier'}",
        "total_timesteps=64",
        "optim.lr=0",
    )
    assert abs(result.eval["eval/episodic_reward.mean"]) < 0.3


class Bidding(PlainState, Match):
    """The higher choice wins a point from the lower one in each of four steps."""

    num_sides = 2
    labels: ClassVar = ["low", "middle", "high"]

    def obs_space(self) -> ObsSpace:
        return ObsSpace(["t"])

    def action_space(self) -> Mapping[str, ActionSpace]:
        return {"bid": GlobalCategoricalActionSpace([*self.labels])}

    def reset(self) -> list[Observation]:
        self.t = 0
        return [self._observe(0.0), self._observe(0.0)]

    def act(self, actions: Any) -> list[Observation]:
        self.t += 1
        one, other = (["low", "middle", "high"].index(a["bid"].label) for a in actions)
        return [self._observe(float(np.sign(x))) for x in (one - other, other - one)]

    def _observe(self, reward: float) -> Observation:
        return Observation(
            global_features=[1.0],
            actions={"bid": GlobalCategoricalActionMask()},
            reward=reward,
            done=self.t >= 4,
        )


class BiddingFromTheTop(Bidding):
    """The same game with labels in a different order."""

    labels: ClassVar = ["high", "middle", "low"]


@pytest.mark.slow
def test_opponent_labels_are_matched_by_name(tmp_path: Path) -> None:
    """An agent draws against itself, whichever of the two worlds they meet in."""

    def worlds(config: EnvConfig, num_envs: int, processes: int, first: int) -> EnvList:
        return EnvList({"A": Bidding, "B": BiddingFromTheTop}[config.id], num_envs, first)

    run_duel(tmp_path, "env.id=A", env=worlds, checkpoint_dir=tmp_path / "earlier")
    greedy = ["eval.deterministic=true", f"eval.opponent={tmp_path / 'earlier'}"]
    suite = ["env.id=A", "eval.env.id=A", "eval.suites.turned.env.id=B"]
    same = ["optim.lr=0", "total_timesteps=64"]
    overrides = [*DUEL, *EVAL, *greedy, *suite, *same, f"data_dir={tmp_path}"]
    manager = StateManager(overrides=overrides, init_from=tmp_path / "earlier")
    result = train(manager, worlds)
    assert result.eval["eval/episodic_reward.mean"] == 0
    assert result.eval["eval/turned/episodic_reward.count"] > 0
    assert result.eval["eval/turned/episodic_reward.mean"] == 0
    assert result.eval["eval/turned/episodic_reward.max"] == 0


def test_opponent_needs_a_second_environment(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"eval\.num_envs: expected at least 2 .* got 1"):
        run_duel(tmp_path, *EVAL, "eval.opponent=random", "eval.num_envs=1")


def test_errors_of_evaluation_environments_name_their_setting(
    tmp_path: Path,
) -> None:
    with pytest.raises(ConfigError, match=r"eval\.env\.kwargs"):
        run_duel(tmp_path, *EVAL, 'eval.env.kwargs={"no": 1}')


def test_opponent_only_evaluates_the_opponent(tmp_path: Path) -> None:
    _, result = run_duel(tmp_path, *EVAL, "eval.opponent=random", "eval.opponent_only=true")
    assert result.eval["eval/episodic_reward.mean"] == 0  # both sides count


def test_incompatible_opponent_is_rejected(tmp_path: Path) -> None:
    run_duel(tmp_path, checkpoint_dir=tmp_path / "duel")
    env = Meadow()
    with pytest.raises(CheckpointError, match=r"does not fit.*actions"):
        create_opponent(
            str(tmp_path / "duel"),
            env.obs_space(),
            env.action_space(),  # type: ignore[arg-type]
            torch.device("cpu"),
        )


def test_missing_opponent_is_rejected(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="nowhere"):
        run_duel(tmp_path, *EVAL, "eval.opponent=nowhere")


def test_odd_number_of_environments_is_rejected_for_matches(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"eval.num_envs: expected multiples of 2"):
        run_duel(tmp_path, *EVAL, "eval.num_envs=7")


class Three(Match):
    """Three sides, one gets the reward."""

    num_sides = 3

    def obs_space(self) -> ObsSpace:
        return ObsSpace(entities={"P": Entity(["x"])})

    def action_space(self) -> dict[str, ActionSpace]:
        return {"go": CategoricalActionSpace(["a", "b"])}

    def reset(self) -> list[Observation]:
        return self.observe(False)

    def act(self, actions: Any) -> list[Observation]:
        return self.observe(True)

    def observe(self, done: bool) -> list[Observation]:
        go, entities = {"go": CategoricalActionMask(actor_types=["P"])}, {"P": [[0.0]]}
        rewards = [float(done), 0.0, 0.0]
        return [Observation(entities=entities, actions=go, reward=r, done=done) for r in rewards]


@pytest.mark.parametrize("more", [[], ["selfplay.share=0.5"]], ids=["alone", "pool"])
def test_default_num_envs_is_rounded_up_to_whole_matches(tmp_path: Path, more: list[str]) -> None:
    """Of three sides: 32 environments, and as many in evaluations."""
    sizes = ["rollout.steps=2", "optim.bs=33", "net.d_model=8", "rollout.processes=1", *more]
    evaluation = ["eval.episodes=6", "eval.interval=66", "eval.opponent=random"]
    overrides = [*sizes, *evaluation, "total_timesteps=66"]
    manager = StateManager(checkpoint_dir=tmp_path / "run", overrides=overrides)
    result = train(manager, Three)
    assert load_checkpoint(tmp_path / "run").config.rollout.num_envs == 33
    assert result.eval["eval/episode_length.mean"] == 1
    again = StateManager(checkpoint_dir=tmp_path / "run", overrides=["total_timesteps=132"])
    assert train(again, Three).step >= 132


@pytest.mark.parametrize("field", ["rollout", "eval"])
def test_explicit_num_envs_must_be_whole_matches(tmp_path: Path, field: str) -> None:
    sizes = ["rollout.steps=2", "optim.bs=33", "rollout.processes=1", "eval.episodes=6"]
    manager = StateManager(overrides=[*sizes, f"{field}.num_envs=32", f"data_dir={tmp_path}"])
    words = rf"{field}.num_envs: expected multiples of 3, the sides of Three, got 32"
    with pytest.raises(ConfigError, match=words):
        train(manager, Three)


@pytest.mark.slow
def test_evaluation_clock_continues_after_resume(tmp_path: Path) -> None:
    """What was measured at the end is saved with it, and not measured again."""
    run_duel(tmp_path, *EVAL, checkpoint_dir=tmp_path / "run")
    assert load_checkpoint(tmp_path / "run").state.next_eval_step == 128 + 64
    manager, _ = run_duel(tmp_path, *EVAL, "total_timesteps=256", checkpoint_dir=tmp_path / "run")
    assert manager.state.next_eval_step == 256 + 64


def test_first_evaluation_can_be_delayed(tmp_path: Path) -> None:
    manager, _ = run_duel(tmp_path, *EVAL, "eval.run_on_first_step=false", "total_timesteps=64")
    assert evaluated_at(tmp_path) == [64]
    assert manager.state.next_eval_step == 64 + 64


@pytest.mark.slow
def test_evaluation_enabled_on_resume_runs(tmp_path: Path) -> None:
    run_duel(tmp_path, checkpoint_dir=tmp_path / "run")
    manager, _ = run_duel(tmp_path, *EVAL, "total_timesteps=256", checkpoint_dir=tmp_path / "run")
    assert manager.state.next_eval_step == 128 + 3 * 64


def test_run_is_saved_if_the_last_evaluation_fails(tmp_path: Path) -> None:
    def failing(*_: Any) -> RandomAgent:
        class Fails(RandomAgent):
            def forward(self, *_: Any, **__: Any) -> Any:
                raise ZeroDivisionError

        return Fails(Duel().action_space())

    manager = StateManager(
        overrides=[
            *[*DUEL, f"data_dir={tmp_path}", *EVAL, "eval.opponent=x"],
            *["eval.run_on_first_step=false", "eval.interval=1000"],
        ],
        checkpoint_dir=tmp_path / "run",
    )
    with pytest.raises(ZeroDivisionError):
        train(manager, Duel, create_opponent=failing)
    assert load_checkpoint(tmp_path / "run").state.step == 128


def test_opponent_is_loaded_before_training(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=r"^eval.opponent: nowhere"):
        run_duel(tmp_path, *EVAL, "eval.opponent=nowhere", "total_timesteps=100000000")


def test_stop_request_ends_evaluation() -> None:
    player = AgentPlayer(RandomAgent(Duel().action_space()), seed=0)
    collector = Collector(AddMetricsWrapper(EnvList(Duel, 4)), player)
    asked: list[int] = []
    metrics = play(
        *(collector, Duel().obs_space(), 10**9),
        seed=0,
        stop=lambda: bool(asked.append(1)) or len(asked) > 3,
    )
    assert metrics["step"].max == 3


def evaluated_at(folder: Path) -> list[int]:
    """The steps of a run at which evaluations were tracked."""
    has_saves = (folder / "run").exists()
    run_dir = folder / "run" if has_saves else next((folder / "runs").iterdir())
    events = EventAccumulator(str(run_dir)).Reload()
    return [event.step for event in events.Scalars("eval/step.count")]


def test_agent_is_evaluated_once_per_step(tmp_path: Path) -> None:
    """With an interval shorter than a rollout the clock would otherwise fall behind."""
    run_duel(tmp_path, *EVAL, "eval.interval=10")
    assert evaluated_at(tmp_path) == [0, 64, 128]


@pytest.mark.slow
def test_resumed_run_uses_its_evaluation_interval(tmp_path: Path) -> None:
    """Else a run that was set to be measured rarely would wait for that time to come."""
    folder = tmp_path / "run"
    run_duel(tmp_path, *EVAL, "eval.interval=100000", "total_timesteps=64", checkpoint_dir=folder)
    manager, _ = run_duel(
        tmp_path, "eval.interval=64", "total_timesteps=256", checkpoint_dir=folder
    )
    assert evaluated_at(tmp_path) == [0, 64, 128, 192, 256]
    assert manager.state.next_eval_step == 256 + 64


@pytest.mark.slow
def test_evaluation_enabled_on_resume_can_be_delayed(tmp_path: Path) -> None:
    run_duel(tmp_path, "total_timesteps=64", checkpoint_dir=tmp_path / "run")
    later = ["eval.run_on_first_step=false", "total_timesteps=192"]
    run_duel(tmp_path, *EVAL, *later, checkpoint_dir=tmp_path / "run")
    assert evaluated_at(tmp_path) == [128, 192]


def test_evaluation_environment_with_other_entities_is_rejected(tmp_path: Path) -> None:
    def worlds(config: EnvConfig, num_envs: int, processes: int, first: int) -> EnvList:
        return EnvList({"Duel": Duel, "Xor": Xor}[config.id], num_envs, first)

    here, elsewhere = "env.id=Duel", "eval.env.id=Xor"
    with pytest.raises(ConfigError, match=r"^eval.env: expected the spaces of env; .*entity types"):
        run_duel(tmp_path, *EVAL, here, elsewhere, env=worlds)
    run_duel(tmp_path, *EVAL, here, "eval.env.id=Duel", env=worlds)


@pytest.mark.slow
def test_agent_plays_the_odd_environment(tmp_path: Path) -> None:
    """Worlds without sides may have any number; those with an odd index are the opponent's."""
    _, three = run_duel(tmp_path, *EVAL, "eval.num_envs=3", "eval.opponent=random", env=Meadow)
    assert three.eval["eval/step.count"] == 2 * 20
