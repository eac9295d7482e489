"""Suites of evaluations, and what they leave as it was."""

from pathlib import Path
from typing import Any

import pytest
import torch

from enn_trainer import ConfigError, EvalConfig, EvalSuiteConfig, StateManager, TrainConfig
from enn_trainer.base.policy import PPOAgent
from enn_trainer.config.eval_config import all_suites
from enn_trainer.config.load import dump_config, load_config
from enn_trainer.evaluation.evaluator import Evaluator
from enn_trainer.evaluation.opponents import RandomAgent
from entity_env import Environment, EnvList, Observation, ObsSpace
from entity_env.examples import Duel, MineSweeper
from tests.enn_trainer.evaluation.builders import DUEL, EPISODES, config_of, run_duel

MINES = ["env.id=MineSweeper", 'env.kwargs={"nmines": 3, "nrobots": 1}']
CPU = torch.device("cpu")


def suites_of(*overrides: str) -> dict[str, Any]:
    config = config_of(*overrides)
    assert config.eval is not None
    return dict(all_suites(config.eval, config.env))


def optimizer_state(manager: StateManager) -> list[torch.Tensor]:
    state = manager.state.optimizer.state_dict()["state"]
    return [t for i in sorted(state) for _, t in sorted(state[i].items())]


@pytest.mark.slow
def test_evaluation_settings_do_not_change_training(tmp_path: Path) -> None:
    """Dropout shows whether an evaluation leaves the network switched to acting, or not."""
    dropout = ["net.resid_pdrop=0.1", "net.attn_pdrop=0.1", "total_timesteps=256"]
    without, _ = run_duel(tmp_path, *dropout)
    suites = ["eval.suites.greedy.deterministic=true", "eval.suites.random.opponent=random"]
    with_it, result = run_duel(tmp_path, *dropout, *EPISODES, *suites)
    assert result.eval["eval/greedy/episodic_reward.count"] == 10
    ours, theirs = without.state.agent.state_dict(), with_it.state.agent.state_dict()
    assert all(torch.equal(ours[name], theirs[name]) for name in ours)
    moments = optimizer_state(without)
    assert len(moments) > 10
    for one, other in zip(moments, optimizer_state(with_it), strict=True):
        assert torch.equal(one, other)


def test_suite_overrides_settings_of_eval() -> None:
    found = suites_of(
        *[*MINES, *EPISODES, "eval.opponent=random", "eval.deterministic=true"],
        'eval.suites.large.env.kwargs={"nmines": 9}',
        "eval.suites.alone.opponent=",
        "eval.suites.alone.steps=7",
        "eval.suites.other.env.id=Xor",
    )
    assert list(found) == ["", "large", "alone", "other"]
    assert found[""].env.kwargs == '{"nmines": 3, "nrobots": 1}'
    assert found["large"].env.kwargs == '{"nmines": 9, "nrobots": 1}'
    assert (found["large"].env.id, found["large"].episodes) == ("MineSweeper", 10)
    assert (found["large"].opponent, found["large"].deterministic) == ("random", True)
    assert (found["alone"].opponent, found["alone"].steps, found["alone"].episodes) == (
        None,
        7,
        None,
    )
    assert (found["other"].env.id, found["other"].env.kwargs) == ("Xor", "{}")


def test_suite_config_round_trips() -> None:
    config = config_of(*EPISODES, 'eval.suites.large.env.kwargs={"n": 9}', "eval.suites.b.steps=3")
    assert load_config(TrainConfig, None, text=dump_config(config)) == config


def test_older_configurations_keep_their_meaning() -> None:
    text = "(version: 4, eval: (steps: 20, interval: 64, opponent: Some('random')))"
    before = config_of(text=text.replace("'", '"')).eval
    assert before == EvalConfig(20, 64, opponent="random")
    assert before.episodes is None
    assert not before.deterministic


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (["eval.interval=3"], r"eval\.steps, episodes: expected exactly one of them, got neither"),
        (["eval.steps=3", "eval.episodes=3"], r"eval\.steps, episodes: .* got both"),
        ([*EPISODES, "eval.suites.a.steps=0"], r"eval\.suites\['a'\]\.steps: "),
        (
            [*EPISODES, "eval.suites.a.step=1"],
            r"eval\.suites\['a'\]\.?.*step=1: no such field|step",
        ),
        ([*EPISODES, "eval.suites.a.opponent_only=true"], r"eval\.suites\['a'\]\.opponent_only: "),
        (
            [*EPISODES, "eval.suites.a.opponent=random", "eval.suites.a.num_envs=1"],
            r"eval\.suites\['a'\]\.num_envs: expected at least 2",
        ),
        (
            [*EPISODES, 'eval.suites={"a/b": (steps: 3)}'],
            r"eval\.suites: expected printable names .*'a/b'",
        ),
        ([*EPISODES, "eval.max_steps=0"], r"eval\.max_steps: "),
        ([*EPISODES, "eval.seed=-1"], r"eval\.seed: "),
    ],
)
def test_invalid_suite_settings_are_rejected(overrides: list[str], message: str) -> None:
    with pytest.raises(ConfigError, match=message) as caught:
        config_of(*overrides)
    assert "\n" not in str(caught.value)


@pytest.mark.slow
def test_suite_metrics_are_tracked_by_name(tmp_path: Path) -> None:
    suites = ["eval.suites.many.episodes=12", 'eval.suites.large.env.kwargs={"nmines": 7}']
    small = 'env.kwargs={"nmines": 3, "nrobots": 1, "width": 3, "height": 3}'
    _, result = run_duel(tmp_path, *MINES, small, *EPISODES, *suites, env=MineSweeper)
    found = result.eval
    assert found["eval/episodic_reward.count"] == 10
    assert found["eval/many/episodic_reward.count"] == 12
    assert found["eval/large/episodic_reward.ci95"] >= 0
    assert found["eval/entity_count/Mine.max"] == 3
    assert found["eval/large/entity_count/Mine.max"] == 7


def agent_of(tmp_path: Path) -> StateManager:
    manager, _ = run_duel(tmp_path, "total_timesteps=64")
    return manager  # type: ignore[no-any-return]


def duels(config: Any, num_envs: int, processes: int, first: int) -> EnvList:
    return EnvList(Duel, num_envs, first)


def evaluated(manager: StateManager, opponents: Any = None, **settings: Any) -> Any:
    manager.config.eval = EvalConfig(num_envs=8, **settings)
    return evaluator_of(manager, opponents or {}).measure()


def evaluator_of(manager: StateManager, opponents: Any) -> Evaluator:
    return Evaluator(manager.config, duels, lambda path, *_: opponents[path], manager.state, CPU)


@pytest.mark.slow
def test_suite_results_depend_only_on_the_seed(tmp_path: Path) -> None:
    manager = agent_of(tmp_path)
    once = evaluated(manager, episodes=24)
    manager.state.agent.train()
    torch.manual_seed(99)
    assert evaluated(manager, episodes=24) == once
    assert manager.state.agent.training
    assert evaluated(manager, episodes=24, seed=5) != once
    assert evaluated(manager, episodes=24, seed=manager.config.seed) == once


class Watched(RandomAgent):
    """Notes whether it was to draw its actions."""

    def __init__(self) -> None:
        super().__init__(Duel().action_space())
        self.drew: set[bool] = set()

    def forward(self, batch: Any, actions: Any = None, uniforms: Any = None) -> Any:
        self.drew.add(uniforms is not None)
        return super().forward(batch, actions, uniforms)


def test_greedy_evaluation_takes_the_most_probable_action_and_random_stays_random(
    tmp_path: Path,
) -> None:
    manager, opponent = agent_of(tmp_path), Watched()
    greedy = {"episodes": 8, "deterministic": True}
    manager.state.agent, agent = Watched(), manager.state.agent
    evaluated(manager, {"random": opponent}, opponent="random", **greedy)
    assert manager.state.agent.drew == {False}
    assert opponent.drew == {True}
    manager.state.agent = agent
    assert evaluated(manager, **greedy) != evaluated(manager, episodes=8)


@pytest.mark.slow
def test_every_suite_has_its_own_opponent(tmp_path: Path) -> None:
    named: list[str] = []

    def create(path: str, *_: Any) -> PPOAgent:
        named.append(path)
        return RandomAgent(Duel().action_space())

    from enn_trainer import train

    suites = [f"eval.suites.{name}.opponent={name}" for name in ("a", "b")]
    overrides = [*DUEL, f"data_dir={tmp_path}", *EPISODES, *suites, "eval.suites.c.opponent=a"]
    train(StateManager(overrides=overrides), Duel, create_opponent=create)
    assert named == ["a", "b"]


class Endless(Environment):
    """Only every other episode ends."""

    episodes = 0

    def obs_space(self) -> ObsSpace:
        return ObsSpace(["x"])

    def action_space(self) -> dict[str, Any]:
        from entity_env import GlobalCategoricalActionSpace

        return {"go": GlobalCategoricalActionSpace(["a", "b"])}

    def reset(self) -> Observation:
        self.episodes += 1
        return self.observe(False)

    def act(self, actions: Any) -> Observation:
        return self.observe(self.episodes % 2 == 1)

    def observe(self, done: bool) -> Observation:
        from entity_env import GlobalCategoricalActionMask

        return Observation(
            global_features=[1.0], actions={"go": GlobalCategoricalActionMask()}, done=done
        )


def test_endless_episodes_are_counted_as_missing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    limited = [*EPISODES, "eval.max_steps=30", "eval.run_on_first_step=false"]
    _, result = run_duel(tmp_path, *limited, "total_timesteps=64", env=Endless)
    assert result.eval["eval/episodic_reward.count"] == 4
    words = " ".join(capsys.readouterr().out.split())
    assert "WARNING: 6 of 10 episodes did not end within max_steps=30" in words
    assert "raise eval.max_steps" in words


def test_suite_with_different_spaces_is_rejected(tmp_path: Path) -> None:
    suites = 'eval.suites.odd.env.kwargs={"no": 1}'
    with pytest.raises(ConfigError, match=r"^eval\.suites\['odd'\]\.env\.kwargs: "):
        run_duel(tmp_path, *EPISODES, suites)


def test_suite_classes_are_exported_and_checked_in_python() -> None:
    with pytest.raises(ConfigError, match="steps, episodes: expected one of them, got both"):
        EvalSuiteConfig(steps=1, episodes=1)


def test_limit_of_a_suite_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    own = [*EPISODES, "eval.suites.short.max_steps=20", "total_timesteps=64"]
    run_duel(tmp_path, *own, "eval.max_steps=30", "eval.run_on_first_step=false", env=Endless)
    words = " ".join(capsys.readouterr().out.split())
    assert "max_steps=20 and are left out, which favours short episodes; raise eval.suites" in words
    assert "raise eval.suites['short'].max_steps" in words


def test_progress_advances_without_finished_episodes(tmp_path: Path) -> None:
    manager = agent_of(tmp_path)
    manager.config.eval = EvalConfig(num_envs=4, episodes=400, max_steps=10)
    shares: list[float] = []
    evaluator = evaluator_of(manager, {})
    found = evaluator.measure(watch=lambda suite, share: shares.append(share))
    assert found[""].missing > 0
    assert shares == [i / 10 for i in range(10)]
