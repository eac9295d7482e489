"""Evaluations of several ranks, which share the environments out: the same bits as in one."""

import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar, TypeVar

import pytest

from enn_trainer import ConfigError, RankError, StateManager, Trainer, TrainResult
from enn_trainer.base.group import Group
from enn_trainer.config import EvalConfig, TrainConfig
from enn_trainer.config.eval_config import EnvConfig, EvalEnvConfig, EvalSuiteConfig
from enn_trainer.evaluation.evaluation import SuiteResult
from enn_trainer.evaluation.run_evaluator import RunEvaluator
from entity_env.examples import Duel, Minefield
from tests.enn_trainer.evaluation.late_evaluations import LateEvaluation, LatePlayer
from tests.enn_trainer.run.forked_ranks import run_ranks
from tests.enn_trainer.run.small_runs import LEAGUE, SMALL
from tests.enn_trainer.run.thread_group import ThreadGroup, in_ranks
from tests.enn_trainer.selfplay.joust import Joust

T = TypeVar("T")
Scalars = Mapping[str, Mapping[str, float]]
SHORT = 'env.kwargs={"max_steps": 12}'
DICING = """
from entity_env import Bot, CategoricalAction


class Dicing(Bot):
    def act(self, observation):
        mask, paces = observation.actions["ride"], ["walk", "trot", "charge"]
        return {"ride": CategoricalAction(mask.actor_ids, [int(self.rng.integers(3))], paces)}
"""


@pytest.fixture(autouse=True)
def _in_a_folder_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def evaluated(
    size: int, env: Any, settings: Sequence[str], evaluations: Mapping[str, EvalConfig]
) -> list[Scalars]:
    """Take an update in several ranks, and return what each has of some evaluations."""

    def work(group: Group | None = None) -> Scalars:
        manager = StateManager(overrides=[*settings, "eval=()", "eval.steps=4"])
        with Trainer(manager, env) as trainer:
            trainer.step()
            found = {name: trainer.evaluate(one) for name, one in evaluations.items()}
            return {**found, "eval": trainer.evaluate()}

    return [work()] if size == 1 else in_ranks(size, work)


def assert_equal(
    env: Any, settings: Sequence[str], evaluations: Mapping[str, EvalConfig], sizes: Sequence[int]
) -> Scalars:
    """Evaluate with each number of ranks, and compare all of them with one process."""
    (expected,) = evaluated(1, env, settings, evaluations)
    for size in sizes:
        for of_rank in evaluated(size, env, settings, evaluations):
            assert of_rank == expected, size
    return expected


@pytest.mark.slow
def test_any_number_of_ranks_evaluates_to_the_same_bits() -> None:
    varied = EnvConfig("{}", "Minefield", vary={"max_mines": "int 0 6", "max_steps": "int 3 9"})
    suites = {
        "greedy": EvalSuiteConfig(deterministic=True, episodes=9),
        "one": EvalSuiteConfig(num_envs=1, steps=20),
        "calm": EvalSuiteConfig(env=EvalEnvConfig('{"max_mines": 0}'), num_envs=3, episodes=5),
    }
    expected = assert_equal(
        Minefield,
        [*SMALL, SHORT],
        {
            "episodes": EvalConfig(episodes=10, num_envs=6),
            "steps": EvalConfig(steps=30),
            "suites": EvalConfig(episodes=7, num_envs=9, suites=suites),
            "arguments that vary": EvalConfig(episodes=20, num_envs=6, env=varied),
            "opponent": EvalConfig(episodes=8, num_envs=7, opponent="random"),
            "unfinished": EvalConfig(episodes=8, max_steps=5),
        },
        sizes=(2, 3, 4),
    )
    assert expected["episodes"]["eval/episodic_reward.count"] == 10
    assert expected["suites"]["eval/greedy/episode_length.count"] == 9
    lengths = [
        expected["arguments that vary"][f"eval/episode_length.{of}"] for of in ("min", "max")
    ]
    assert lengths[0] < lengths[1] <= 9


@pytest.mark.slow
def test_whole_matches_are_distributed_with_bots_and_pools() -> None:
    Path("bots.py").write_text(DICING)
    evaluations = {
        "bot": EvalConfig(episodes=14, num_envs=10, opponent="bots.py:Dicing"),
        "bot alone": EvalConfig(steps=7, num_envs=6, opponent="bots.py:Dicing"),
        "pool": EvalConfig(episodes=24, num_envs=18, opponent="pool"),
        "itself": EvalConfig(steps=7, num_envs=10),
    }
    evaluations["bot alone"].opponent_only = True
    expected = assert_equal(Joust, LEAGUE, evaluations, sizes=(2, 3))
    assert expected["pool"]["eval/score.count"] == 24
    assert expected["bot alone"] != expected["itself"]


@pytest.mark.slow
@pytest.mark.parametrize("env", [Minefield, Duel])
def test_an_agent_with_memory_is_evaluated_to_the_same_bits(env: Any) -> None:
    memory = [*SMALL, "net.memory=(of: frame)", "ppo.seq_len=4", "rollout.num_envs=10"]
    assert_equal(env, memory, {"episodes": EvalConfig(steps=20, num_envs=8)}, sizes=(3,))


@pytest.mark.parametrize("size", [1, 2])
def test_a_number_without_whole_matches_is_refused_for_any_number_of_ranks(
    size: int,
) -> None:
    settings = [*SMALL, "rollout.num_envs=10"]
    with pytest.raises(ConfigError, match=r"num_envs: expected multiples of 2, .* got 7"):
        evaluated(size, Joust, settings, {"odd": EvalConfig(episodes=4, num_envs=7)})


SAVED = [
    *(*SMALL, SHORT, "eval.interval=56", "eval.episodes=9", "eval.num_envs=5"),
    'checkpoint.best=["eval/episodic_reward.mean max"]',
]


@pytest.mark.slow
def test_best_saves_equal_those_of_one_process() -> None:
    def work(group: Group | None = None) -> TrainResult:
        folder = "one" if group is None else "ranks"
        with Trainer(StateManager(overrides=SAVED, checkpoint_dir=folder), Minefield) as trainer:
            return trainer.run()

    expected = work()
    assert expected.eval
    for result in in_ranks(3, work):
        assert result.eval == expected.eval
    kept = [sorted(p.name for p in Path(name).glob("step-*")) for name in ("one", "ranks")]
    assert kept[0] == kept[1]
    assert evals_of(Path("one")) == evals_of(Path("ranks"))


def play_late(evaluator: RunEvaluator, config: TrainConfig, *_: Any) -> None:
    """Let rank 0 play evaluations of `eval.ray` as other processes do, in this one."""
    if config.eval is not None and config.eval.ray is not None and evaluator.group.leads:
        evaluator.remote = LatePlayer()


@pytest.mark.slow
@pytest.mark.parametrize("setting", ["capture_samples=e.rec", "capture_replays=true", "ray=auto"])
def test_recorded_or_remote_evaluations_run_on_rank_0_with_the_same_bits(
    setting: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("enn_trainer.run.trainer.use_remote_evaluator", play_late)
    settings = [*SMALL, SHORT, "eval.episodes=5", "eval.num_envs=4", "total_timesteps=56"]

    def work(group: Group | None = None) -> TrainResult:
        recorded = [f"eval.{setting}", f"data_dir={'one' if group is None else 'ranks'}"]
        with Trainer(StateManager(overrides=[*settings, *recorded]), Minefield) as trainer:
            return trainer.run()

    with Trainer(StateManager(overrides=settings), Minefield) as trainer:
        expected = trainer.run().eval
    assert expected["eval/episodic_reward.count"] == 5
    assert [result.eval for result in [work(), *in_ranks(2, work)]] == [expected] * 3


class WaitingPlayer(LatePlayer):
    """Late player whose evaluations ask to stop once, as they are waited for."""

    def __call__(self, message: bytes, names: Sequence[str]) -> "WaitingEvaluation":
        return WaitingEvaluation(self, message, names)


class WaitingEvaluation(LateEvaluation):
    """Keeps the number of exchanges of rank 0 meanwhile."""

    told: ClassVar[list[str]] = []
    waits: ClassVar[list[int]] = []

    def results(
        self, stop: Callable[[], bool], watch: Callable[[str, float], None]
    ) -> Mapping[str, SuiteResult] | None:
        before = len(self.told)
        assert not stop()
        self.waits.append(len(self.told) - before)
        return super().results(stop, watch)


def play_waiting(evaluator: RunEvaluator, *_: Any) -> None:
    """Let rank 0 play evaluations by a `WaitingPlayer`."""
    if evaluator.group.leads:
        evaluator.remote = WaitingPlayer()


@pytest.mark.slow
@pytest.mark.parametrize("lag", [0, 2])
def test_rank_0_sends_heartbeats_while_waiting_for_evaluations(
    lag: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where a save waits, so that they do not give rank 0 up."""
    exchange, told, waits = ThreadGroup.exchange, WaitingEvaluation.told, WaitingEvaluation.waits
    waits.clear()

    def exchanged(group: ThreadGroup, data: bytes, phase: str) -> list[bytes]:
        if group.leads:
            told.append(phase)
        return exchange(group, data, phase)

    monkeypatch.setattr("enn_trainer.base.group.ALIVE_S", 0.0)
    monkeypatch.setattr("enn_trainer.run.trainer.use_remote_evaluator", play_waiting)
    monkeypatch.setattr(ThreadGroup, "exchange", exchanged)
    settings = [*SMALL, SHORT, "eval.steps=2", "eval.interval=56", "eval.ray=auto"]
    settings += [f"eval.lag={lag}", "total_timesteps=112", "checkpoint.every_seconds=0"]

    def work(group: Group) -> TrainResult:
        with Trainer(StateManager(overrides=settings, checkpoint_dir="run"), Minefield) as trainer:
            return trainer.run()

    assert all(result.eval for result in in_ranks(2, work))
    assert waits == [1, 1, 1]


def in_third_step(
    act: Callable[[Any], object], steps: int, work: Callable[[Trainer, Group, list[float]], T]
) -> list[T]:
    """Return what `work` returns in each of three ranks.

    It gets a trainer, in whose evaluations of some steps rank 1 acts in its third step, the group,
    and a list with the steps that the rank has taken.
    """

    def of_rank(group: Group) -> T:
        manager = StateManager(overrides=[*SMALL, SHORT, f"eval.steps={steps}"])
        with Trainer(manager, Minefield) as trainer:
            taken: list[float] = []

            def watch(suite: str, share: float) -> None:
                taken.append(share)
                if group.rank == 1 and len(taken) == 3:
                    act(trainer)

            trainer.progress.evaluating = watch  # type: ignore[method-assign]
            return work(trainer, group, taken)

    return in_ranks(3, of_rank)


def signalled(trainer: Any) -> None:
    trainer.stopping.interrupts.take(15)


def test_a_signal_to_a_rank_ends_the_evaluation_of_all(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("enn_trainer.base.group.ALIVE_S", 0.0)

    def work(trainer: Trainer, group: Group, taken: list[float]) -> int:
        result = trainer.run()
        assert (result.step, result.interrupted, result.eval) == (0, True, {})
        return len(taken)

    assert max(in_third_step(signalled, 100_000, work)) < 10


def test_a_late_signal_reaches_all_ranks() -> None:
    """In the last step of rank 1, when others may have taken all of theirs."""

    def work(trainer: Trainer, group: Group, taken: list[float]) -> tuple[int, bool, Any]:
        result = trainer.run()
        return result.step, result.interrupted, result.eval

    assert in_third_step(signalled, 3, work) == [(0, True, {})] * 3


@pytest.mark.slow
def test_a_recoverable_error_of_a_rank_reaches_all() -> None:
    def fail(trainer: Any) -> None:
        raise ConfigError("of the world")

    def work(trainer: Trainer, group: Group, taken: list[float]) -> dict[str, float]:
        with pytest.raises(ConfigError, match="of the world") as raised:
            trainer.evaluate()
        assert str(raised.value).startswith("of" if group.rank == 1 else "rank 1: of")
        return trainer.evaluate()

    first, *others = in_third_step(fail, 20, work)
    assert others == [first] * 2
    assert first["eval/reward.count"] == 140


def test_other_errors_of_a_rank_end_all() -> None:
    def work(trainer: Trainer, group: Group, taken: list[float]) -> None:
        error = ZeroDivisionError if group.rank == 1 else RankError
        with pytest.raises(error):
            trainer.run()

    in_third_step(lambda trainer: 1 / 0, 20, work)


def evals_of(folder: Path) -> list[dict[str, float]]:
    """Return the evaluations that a run recorded."""
    lines = map(json.loads, (folder / "metrics.jsonl").read_text().splitlines())
    found = [{n: x for n, x in line.items() if n.startswith("eval/")} for line in lines]
    return [one for one in found if one]


@pytest.mark.slow
def test_ranks_of_torchrun_distribute_evaluations() -> None:
    done = run_ranks("torch_run", *SAVED, "--checkpoint-dir", "ranks")
    assert done.returncode == 0, done.stderr
    with Trainer(StateManager(overrides=SAVED, checkpoint_dir="one"), Minefield) as trainer:
        trainer.run()
    assert len(evals_of(Path("one"))) == 4
    assert evals_of(Path("ranks")) == evals_of(Path("one"))
