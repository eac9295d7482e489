"""Memory in training: sequences, resumed runs, pools, lost workers, and settings."""

import contextlib
import os
import signal
from copy import copy
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from enn_trainer import CheckpointError, ConfigError, StateManager, Trainer, check_agent, load_agent
from enn_trainer.algorithms.minibatches import sequence_microbatches, sequence_minibatches
from enn_trainer.base.errors import AgentError
from enn_trainer.cli.work.side_agents import SideAgents
from enn_trainer.evaluation.load_agent import RogueNetAgent
from enn_trainer.experience.collector import Collector, Rollout, collect
from enn_trainer.experience.frame_limits import MAX_PAIRS
from enn_trainer.experience.memories import StateTable, sequences
from enn_trainer.experience.players import AgentPlayer
from entity_env import EntityEnvError, EnvList, ParallelEnvList, Ragged
from entity_env.examples import Duel, Minefield
from entity_env.serialization.messages import pack, unpack
from rogue_net import RogueNet, RogueNetConfig
from rogue_net.config import MemoryConfig
from rogue_net.memory import MemorySpec
from rogue_net.past import RowKeys
from tests.enn_trainer.experience.fog import FRAMES, MEMORY, SETTINGS, copy_until, run
from tests.enn_trainer.experience.fog_world import Fog, Mist
from tests.enn_trainer.resuming import assert_same, assert_same_clocks

POOL = [
    *("selfplay.share=0.5", "selfplay.snapshot_every=24", "selfplay.in_play=2"),
    *("selfplay.result=win", "optim.bs=6"),
]
OF_VALUES = 'vf_net=(d_model: 8, n_layer: 1, memory: (of: "both"))'


@pytest.fixture(autouse=True)
def _elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


@contextlib.contextmanager
def trainer_of(*settings: str, env: Any = Fog) -> Any:
    overrides = [*SETTINGS, f"total_timesteps={4 * FRAMES}", *settings]
    with Trainer(StateManager(overrides=overrides), env) as trainer:
        yield trainer


def rollout_of(trainer: Trainer) -> Rollout:
    """The next rollout, with memory from before."""
    trainer.step()
    ppo, steps = trainer.config.ppo, trainer.config.rollout.steps
    collector = trainer.episodes.running_collector()
    return collect(collector, steps=steps, first_frame=trainer.state.step, seq_len=ppo.seq_len)


@pytest.mark.slow
@pytest.mark.parametrize(
    "settings",
    [
        [MEMORY],
        [MEMORY, OF_VALUES],
        [OF_VALUES],
        ['net.memory=(of: "frame")'],
        [MEMORY, "ppo.seq_len=3", "optim.bs=9"],
        [MEMORY, "rollout.num_envs=8", *POOL],
    ],
    ids=["both", "values too", "values alone", "frame", "a short last one", "pool"],
)
def test_logprobs_of_a_rollout_are_reproduced_in_training(settings: list[str]) -> None:
    """Before the first optimizer step, the sequences of a rollout give the same answers."""
    with trainer_of(*settings) as trainer:
        rollout = rollout_of(trainer)
        agent = trainer.state.agent.eval()
        with torch.no_grad():
            chosen = {name: rows.values for name, rows in rollout.actions.items()}
            out = agent(rollout.batch, actions=chosen)
        for name, rows in rollout.logprobs.items():
            assert (out.logprobs[name] - rows.values).abs().max() < 1e-5
        values = out.values["value"].flatten()
        torch.testing.assert_close(values, rollout.values.flatten(), rtol=1e-5, atol=1e-5)
        past = rollout.batch.past
        assert past is not None
        pasts = [one for one in (past, past.value_past) if one is not None]
        assert any(len(one.carried) for one in pasts)


@pytest.mark.slow
@pytest.mark.parametrize("cut", ["optim.micro_bs=2", "optim.max_entities=6"])
def test_gradients_do_not_depend_on_microbatches(cut: str) -> None:
    found = []
    for settings in ([], [cut]):
        with trainer_of(MEMORY, OF_VALUES, "optim.bs=16", *settings) as trainer:
            trainer.step()
            found.append({n: p.clone() for n, p in trainer.state.agent.named_parameters()})
    for name, parameter in found[0].items():
        torch.testing.assert_close(found[1][name], parameter, rtol=1e-4, atol=1e-5, msg=name)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("settings", "processes"),
    [([MEMORY], 2), ([MEMORY, OF_VALUES], 1), ([MEMORY, *POOL], 2)],
    ids=["alone", "values", "pool"],
)
def test_recurrent_run_resumes_bitwise(tmp_path: Path, settings: list[str], processes: int) -> None:
    """In the middle of episodes, with entities that are out of sight, and of opponents."""
    frames = 24 if "optim.bs=6" in settings else FRAMES
    straight = run(tmp_path / "straight", 3, *settings, frames=frames)
    copy_until(tmp_path / "straight", 2 * frames, tmp_path / "parts")
    more = [*settings, f"rollout.processes={processes}"]
    parts = run(tmp_path / "parts", 3, *more, frames=frames)
    assert_same(straight.state, parts.state)
    assert_same_clocks(straight.state, parts.state)
    states = [m.state.parts["players"].state_dict() for m in (straight, parts)]
    assert repr(sorted(states[0].items())) == repr(sorted(states[1].items()))
    assert any(name.endswith("policy/states") for name in states[0])


@pytest.mark.slow
def test_opponents_have_separate_recurrent_states(tmp_path: Path) -> None:
    narrow = ["net.d_model=4", 'net.memory=(of: "both", d_memory: 4)']
    run(tmp_path / "rival", 2, *narrow)
    settings = [MEMORY, *POOL, f'selfplay.opponents=["{tmp_path}/rival"]']
    settings.append("selfplay.snapshot_every=0")
    straight = run(tmp_path / "straight", 3, *settings, frames=24)
    copy_until(tmp_path / "straight", 48, tmp_path / "parts")
    parts = run(tmp_path / "parts", 3, *settings, frames=24)
    assert_same(straight.state, parts.state)
    states = straight.state.parts["players"].state_dict()
    widths = {x.shape[1] for name, x in states.items() if name.endswith("policy/states")}
    assert widths == {4, 12}


@pytest.mark.slow
def test_agent_without_memory_plays_against_a_recurrent_one(tmp_path: Path) -> None:
    run(tmp_path / "rival", 2, MEMORY)
    settings = [*POOL, f'selfplay.opponents=["{tmp_path}/rival"]', "ppo.seq_len=None"]
    settings.append("selfplay.snapshot_every=0")
    manager = run(tmp_path / "own", 3, *settings, frames=24)
    states = manager.state.parts["players"].state_dict()
    remembered = [name for name in states if name.endswith("policy/states")]
    assert remembered == ["memory/rival-64/policy/states"]


@pytest.mark.slow
def test_memory_is_reset_with_new_episodes(tmp_path: Path) -> None:
    run(tmp_path, 2, MEMORY)
    manager = StateManager(
        overrides=[*SETTINGS, MEMORY, "total_timesteps=96", "rollout.num_envs=16", "optim.bs=8"],
        checkpoint_dir=tmp_path,
    )
    with Trainer(manager, Fog) as trainer:
        memory = trainer.episodes.players.memory
        assert memory is not None
        assert memory.begun.all()
        assert memory.policy is not None
        assert memory.policy.states is None
        trainer.step()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("settings", "player"),
    [([MEMORY], ""), ([MEMORY, *POOL], ""), ([MEMORY, *POOL], "step-0")],
    ids=["alone", "pool", "opponent"],
)
def test_saved_states_of_another_width_are_one_line_errors(
    tmp_path: Path, settings: list[str], player: str
) -> None:
    frames = 24 if "optim.bs=6" in settings else FRAMES
    run(tmp_path, 2, *settings, frames=frames)
    overrides = [*SETTINGS, *settings, f"total_timesteps={3 * frames}"]
    manager = StateManager(overrides=overrides, checkpoint_dir=tmp_path)
    part: Any = manager.state.parts["players"]
    saved = getattr(part, "recurrent_states", part).saved
    name = f"{player}/policy/states"
    saved[name] = saved[name][:, :-1]
    expected = "saved episodes cannot be read: .*states: expected a width of 12, got 11"
    with pytest.raises(CheckpointError, match=expected), Trainer(manager, Fog):
        pass


@pytest.mark.slow
def test_evaluation_does_not_change_recurrent_states() -> None:
    found = []
    for evaluates in (False, True):
        with trainer_of(MEMORY, "eval.steps=5", "eval.interval=100000") as trainer:
            trainer.step()
            if evaluates:
                trainer.evaluate()
            trainer.step()
            found.append(trainer.state.agent.state_dict())
    assert all(torch.equal(found[0][name], found[1][name]) for name in found[0])


@pytest.mark.slow
def test_order_of_entity_types_does_not_change_memory(tmp_path: Path) -> None:
    run(tmp_path, 3, MEMORY, OF_VALUES)
    values = []
    for world in (Fog, Mist):
        network = load_agent(tmp_path, env=world()).agent
        collector = Collector(EnvList(world, 8), AgentPlayer(network, None))
        collector.seed(3)
        collector.reset(world().obs_space())
        with torch.no_grad():
            steps = [collector.step(t, None)[1] for t in range(12)]
        values.append(torch.stack([decisions.values for decisions in steps]))
    torch.testing.assert_close(values[0], values[1], rtol=1e-4, atol=1e-5)


@pytest.mark.slow
def test_loaded_agent_is_recurrent_across_calls(tmp_path: Path) -> None:
    """As the players of a run do, for each position of a batch."""
    run(tmp_path, 3, MEMORY, OF_VALUES)
    agent, other = (load_agent(tmp_path, deterministic=True) for _ in range(2))
    fresh = load_agent(tmp_path)
    envs = EnvList(Fog, 2)
    envs.seed(5)
    player = AgentPlayer(agent.agent, None)
    collector = Collector(envs, player)
    collector.reset(Fog().obs_space())
    differs = 0
    for t in range(15):
        assert envs._last is not None
        frames = [copy(frame) for frame in envs._last[0]]
        rewards, done = collector.obs.reward.tolist(), collector.obs.done.tolist()
        for frame, reward in zip(frames, rewards, strict=True):
            frame.reward = reward
        if any(done):
            agent.reset()
        explained = agent.explain(frames[0])
        state = agent.get_state()
        found = [act.value for act in agent.act_batch(frames)]
        with torch.no_grad():
            _, decisions, _ = collector.step(t, None)
        assert found == pytest.approx(decisions.values.tolist(), rel=1e-4, abs=1e-5)
        assert explained.value == pytest.approx(found[0], rel=1e-4, abs=1e-5)
        differs += fresh.act(frames[0], first=True).value != pytest.approx(found[0], rel=1e-5)
        other.set_state(unpack(pack(state, exact=True)))
        assert other.explain(frames[0]).influence.value.tolist() == pytest.approx(
            explained.influence.value.tolist(), rel=1e-3, abs=1e-4
        )
        assert [act.value for act in other.act_batch(frames)] == found
    assert differs > 5


@pytest.mark.alone
@pytest.mark.slow
def test_entities_of_a_lost_worker_have_no_memory() -> None:
    workers = ParallelEnvList(Fog, 8, 2, recover="truncate")
    with trainer_of(MEMORY) as trainer, contextlib.closing(workers) as envs:
        player = AgentPlayer(trainer.state.agent, 1)
        collector = Collector(envs, player)
        collector.seed(1)
        collector.reset(trainer.state.obs_space)
        with torch.no_grad():
            for t in range(3):
                collector.step(t, None)
            os.kill(envs._workers[1].process.pid, signal.SIGKILL)
            collector.step(3, None)
            assert player.memory is not None
            assert player.memory.begun[4:].all()
            collector.step(4, None)
        memory = player.memory.policy
        assert memory is not None
        lost_rows = memory.keys.sequence >= 4
        assert (memory.keys.age[lost_rows] == 0).all()


@pytest.mark.slow
def test_each_side_has_a_separate_recurrent_state(tmp_path: Path) -> None:
    run(tmp_path, 3, MEMORY)
    network = load_agent(tmp_path).agent
    sides, alone = SideAgents(network, 2, 3), RogueNetAgent(network)
    world, values = Fog(), []
    world.seed(4)
    frames = world.reset()
    for _ in range(3):
        found = [sides(frame) for frame in frames]
        expected = alone.act_batch(frames)
        values += [[one.value for one in acts] for acts in (found, expected)]
        # Choices differ, as do their random numbers, so only the first step is compared.
        frames = world.act([act.actions for act in found])
    assert values[0] == pytest.approx(values[1], rel=1e-4, abs=1e-5)
    sides.reset()
    again = [sides(frame).value for frame in frames]
    fresh = [RogueNetAgent(network).act(frame).value for frame in frames]
    assert again == pytest.approx(fresh, rel=1e-4, abs=1e-5)


def test_state_table_is_split_by_environment_and_joined_in_another_order() -> None:
    columns = [[2, 0, 2], [1, 1, 1], [5, 6, 7], [0, 0, 1]]
    keys, states = RowKeys._make(map(np.array, columns)), torch.arange(6.0).reshape(3, 2)
    table = StateTable(MemorySpec(["Scout"], False, 2, False, 2), keys, states)
    parts = table.split(3)
    joined = table.join([parts[2], parts[1], None, parts[0]], torch.device("cpu"))
    assert np.stack(joined.keys).tolist() == [[0, 0, 3], [1, 1, 1], [5, 7, 6], [0, 1, 0]]
    assert joined.states is not None
    assert joined.states.tolist() == [[0, 1], [4, 5], [2, 3]]
    assert table.join([None], torch.device("cpu")).states is None


class Forgetful(RogueNet):
    """It begins anew in the second step of a sequence, which acting does not."""

    def forward(self, batch: Any, actions: Any = None, *args: Any, **options: Any) -> Any:
        past = batch.past
        if past is not None and past.level.any():
            source = Ragged(np.full_like(past.source.values, -1), past.source.lengths)
            batch = replace(batch, past=replace(past, source=source))
        return super().forward(batch, actions, *args, **options)


class Leaking(RogueNet):
    """It keeps what it remembers where episodes begin."""

    last: Any = None

    def forward(self, batch: Any, actions: Any = None, *args: Any, **options: Any) -> Any:
        past = batch.past
        if past is not None and len(past.carried):
            source = np.where(past.source.values == -1, len(past.source.values), past.source.values)
            past = replace(past, source=Ragged(source, past.source.lengths))
            batch = replace(batch, past=past)
        return super().forward(batch, actions, *args, **options)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("network", "expected"),
    [
        (Forgetful, "memory: the output for a sequence of two steps differs"),
        (Leaking, "memory: the output for the first frame of an episode depends"),
    ],
)
def test_check_agent_detects_faulty_memory(network: Any, expected: str) -> None:
    torch.manual_seed(0)
    config = RogueNetConfig(d_model=8, memory=MemoryConfig(inputs=["action"]))
    spaces = Fog().obs_space(), Fog().action_space()
    nets = [cls(config, *spaces, {"value": 1}) for cls in (RogueNet, network)]
    for net in nets:
        for parameter in net.parameters():
            torch.nn.init.normal_(parameter, std=0.3)
    check_agent(nets[0], *spaces)
    with pytest.raises(AgentError, match=expected):
        check_agent(nets[1], *spaces)


# -- Minibatches -------------------------------------------------------------------------------


def test_minibatches_have_whole_sequences_and_each_frame_once() -> None:
    units = sequences(7, 5, 3)
    assert [len(unit) for unit in units] == [3] * 10 + [1] * 5
    assert units[6].tolist() == [16, 21, 26]
    first: list[Any] = []
    for seed in (1, 2):
        batches = [*sequence_minibatches(units, 9, 2, seed)]
        frames = np.concatenate([frame for batch in batches for frame in batch])
        for epoch in np.split(frames, 2):
            assert sorted(epoch) == [*range(35)]
        known = {tuple(unit) for unit in units}
        assert all(tuple(unit) in known for batch in batches for unit in batch)
        assert max(sum(map(len, batch)) for batch in batches) <= 9
        first.append(frames.tolist())
    assert first[0] != first[1]


def test_microbatches_have_whole_sequences() -> None:
    lengths, entities = np.array([3, 1, 3, 3]), np.arange(10)
    cuts = sequence_microbatches(lengths, entities, entities**2, 6, None, None)
    assert [cut.tolist() for cut in cuts] == [[0, 1, 2, 3], [4, 5, 6, 7, 8, 9]]
    many = np.full(10, MAX_PAIRS // 4)
    cuts = sequence_microbatches(lengths, entities, many, None, None, None)
    assert [cut.tolist() for cut in cuts] == [[0, 1, 2, 3], [4, 5, 6], [7, 8, 9]]


def test_microbatches_of_sequences_have_equal_costs() -> None:
    lengths, entities = np.full(8, 16), np.full(128, 20)
    cuts = sequence_microbatches(lengths, entities, entities**2, None, None, cost_of_entity=128**2)
    assert [len(cut) for cut in cuts] == [64, 64]


# -- Bad input ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        (["ppo.seq_len=2"], "ppo.seq_len: expected a network with memory"),
        ([MEMORY, "ppo.seq_len=5"], "ppo.seq_len: expected at most rollout.steps=4, got 5"),
        ([MEMORY, "optim.bs=7"], "optim.bs: expected a multiple of ppo.seq_len=2"),
        ([MEMORY, "optim.micro_bs=1"], "optim.micro_bs: expected at least ppo.seq_len=2"),
        (['net.memory=(of: "frame", types: ["Scout"])'], "types: expected of="),
        (['net.memory=(types: ["Scouts"])'], "memory.types: expected entity types"),
    ],
)
def test_invalid_settings_are_one_line_errors(settings: list[str], expected: str) -> None:
    with pytest.raises(ConfigError, match=expected), trainer_of(*settings):
        pass


def test_types_without_ids_are_reported_before_training(
    capsys: pytest.CaptureFixture[str],
) -> None:
    plain = ["ppo.seq_len=None", "optim.bs=32"]
    with (
        pytest.raises(ConfigError, match=r'net.memory.of="entity": expected entities with ids in'),
        trainer_of(*plain, 'net.memory=(of: "entity")', env=Minefield),
    ):
        pass
    named = 'net.memory=(types: ["Vehicle"])'
    with (
        pytest.raises(
            ConfigError, match=r"net.memory.types: expected types with ids in observations"
        ),
        trainer_of(*plain, named, env=Minefield),
    ):
        pass
    with trainer_of(*plain, "net.memory=()", env=Minefield):
        assert capsys.readouterr().out.count("Vehicle, Mine, Target get no memory") == 1


def test_environments_without_track_raise() -> None:
    class Untracked(EnvList):
        def track(self, types: Any = None) -> None:
            super(EnvList, self).track(types)

    def make(config: Any, num_envs: int, processes: int, first: int) -> Any:
        return Untracked(Duel, num_envs, first)

    expected = "track: Untracked does not number its entities"
    with pytest.raises(EntityEnvError, match=expected), trainer_of("net.memory=()", env=make):
        pass
