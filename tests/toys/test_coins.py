"""A kind of action of one's own: each actor throws three coins, and how many fall heads counts.

The policy says how probable heads is. A choice takes three random numbers, and its distribution,
the binomial one, is no table of log-probabilities.
"""

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Self

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import logsigmoid

from enn_trainer import (
    CloneRunConfig,
    StateManager,
    check_agent,
    clone,
    init_train_state,
    load_agent,
    train,
)
from enn_trainer.checkpoints.format import verify
from enn_trainer.checkpoints.migrate.evolve import evolve
from enn_trainer.experience.bot_player import BotPlayer
from enn_trainer.experience.collector import Collector
from enn_trainer.experience.players import draw_uniforms
from entity_env import (
    Action,
    ActionSpace,
    Bot,
    EnvList,
    Observation,
    ParallelEnvList,
    Ragged,
    VecObs,
)
from entity_env.play.game import play_by_hand
from entity_env.recording.read_recording import Recording
from entity_env.spaces import Spaces
from entity_env.testing import conformance
from rogue_net.actions.distributions import ActionDistribution
from rogue_net.actions.heads import HEADS, ActionHead
from rogue_net.layout import Layout
from rogue_net.ragged import ActionBatch, ActionSubset, EntityBatch, RaggedTensor
from tests.toys.coins import (
    NUM_COINS,
    CoinsAction,
    CoinsMask,
    CoinsSpace,
    Tossing,
    VecCoinsMask,
)


class Binomial(ActionDistribution):
    """The number of heads of coins.

    Args:
        logits: (A,) float, of heads.
    """

    def __init__(self, logits: Tensor) -> None:
        self.logits = logits

    def _table(self) -> Tensor:
        numbers = torch.arange(NUM_COINS + 1).expand(len(self.logits), -1)
        return torch.stack([self.log_prob(column) for column in numbers.unbind(1)], dim=1)

    def sample(self, draws: Tensor) -> Tensor:
        """Throw each coin."""
        return (draws < self.logits.sigmoid().unsqueeze(1)).sum(dim=1)

    def mode(self) -> Tensor:
        """Return the most probable numbers of heads."""
        return self._table().argmax(dim=1)

    def log_prob(self, chosen: Tensor) -> Tensor:
        """Compute log(n over k) + k log p + (n - k) log(1 - p)."""
        ways = torch.tensor([math.log(math.comb(NUM_COINS, k)) for k in range(NUM_COINS + 1)])
        heads, tails = logsigmoid(self.logits), logsigmoid(-self.logits)
        return ways[chosen] + chosen * heads + (NUM_COINS - chosen) * tails

    def entropy(self) -> Tensor:
        """Compute -sum p log p."""
        table = self._table()
        return -(table.exp() * table).sum(dim=1)

    def normalised_entropy(self, entropies: Tensor) -> Tensor:
        """Compute entropy / log 4."""
        share = entropies / math.log(NUM_COINS + 1)
        return torch.stack([share.sum(), share.new_tensor(float(len(share)))])

    def kl(self, other: Self) -> Tensor:
        """Compute KL(self, other)."""
        own = self._table()
        return (own.exp() * (own - other._table())).sum(dim=1)

    def tempered(self, temperature: float) -> Self:
        """Divide the logits."""
        return type(self)(self.logits / temperature)

    def to_rows(self, action: ActionBatch) -> RaggedTensor:
        """Return the logits."""
        return RaggedTensor(self.logits.unsqueeze(1), action.actors.lengths)

    def from_rows(self, rows: Tensor, action: ActionBatch) -> Self:
        """Return the distribution of recorded logits."""
        return type(self)(rows)

    @classmethod
    def cat(cls, pieces: Sequence[Self]) -> Self:
        """Concatenate the actors."""
        return cls(torch.cat([piece.logits for piece in pieces]))

    def take(self, actors: Tensor) -> Self:
        """Return the distribution of some actors."""
        return type(self)(self.logits[actors])

    def widened(self, part: ActionSubset) -> Self:
        """Return the distribution of all actors; the others have fair coins."""
        wide = self.logits.new_zeros(len(part.actors))
        wide[torch.from_numpy(part.actors)] = self.logits
        return type(self)(wide)


class CoinsHead(ActionHead):
    """One logit for each actor."""

    def __init__(self, space: ActionSpace, d_model: int, d_qk: int) -> None:
        super().__init__(space, d_model, d_qk)
        self.logit = nn.Linear(d_model, 1)

    def distribution(self, x: Tensor, layout: Layout, action: ActionBatch) -> Binomial:
        """Project each actor to its logit."""
        rows = layout.rows(action.actors.values, action.actors.frame_of_row())
        return Binomial(self.logit(x.index_select(0, rows)).squeeze(1))

    @classmethod
    def uniform(cls, space: ActionSpace, action: ActionBatch) -> Binomial:
        """Return fair coins."""
        return Binomial(torch.zeros(len(action.actors.values)))


HEADS[CoinsSpace] = CoinsHead


SMALL = [
    *("rollout.num_envs=16", "rollout.steps=8", "rollout.processes=1", "optim.bs=64"),
    *("net.d_model=16", "net.n_layer=1", "optim.lr=0.01", "optim.update_epochs=2"),
    *("optim.anneal_lr=false", "ppo.anneal_entropy=false"),
]


def run(folder: Path, *overrides: str, env: Any = Tossing, **kwargs: Any) -> Any:
    manager = StateManager(overrides=[*SMALL, f"data_dir={folder}", *overrides], **kwargs)
    return manager, train(manager, env)


def weights(manager: Any) -> dict[str, Tensor]:
    return {name: tensor.clone() for name, tensor in manager.state.agent.state_dict().items()}


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, float]:
    """A recorded run against random opponents."""
    folder = tmp_path_factory.mktemp("coins")
    _, result = run(
        folder,
        "total_timesteps=5120",
        "capture_samples=frames.rec",
        "capture_logits=true",
        'ppo.ent_targets={"toss": 0.2}',
        *("eval.interval=5120", "eval.num_envs=8", "eval.steps=12", "eval.opponent=random"),
        checkpoint_dir=folder / "run",
    )
    return folder, result.eval["eval/episodic_reward.mean"]


def test_environments_with_coins_conform() -> None:
    conformance(Tossing)


def test_networks_with_coins_pass_check_agent() -> None:
    world = Tossing()
    spaces = {"obs_space": world.obs_space(), "action_space": world.action_space()}
    config = StateManager(overrides=SMALL).config
    check_agent(init_train_state(config, spaces).agent, *spaces.values())


@pytest.mark.slow
def test_coins_are_trained_and_evaluated_against_an_opponent(trained: tuple[Path, float]) -> None:
    assert trained[1] > 3 * 0.8  # of 3 at best, 1.5 with fair coins


@pytest.mark.slow
def test_recordings_keep_choices_and_logits(trained: tuple[Path, float]) -> None:
    recording = Recording.open(trained[0] / "frames.rec")
    assert recording.action_space == {"toss": CoinsSpace()}
    episodes = list(recording.episodes())
    for decisions in (episode.decisions for episode in episodes):
        heads, logits = decisions.actions["toss"].values, decisions.logits["toss"].values
        assert logits.shape == (len(heads), 1)
        expected = Binomial(torch.from_numpy(logits[:, 0])).log_prob(torch.from_numpy(heads))
        np.testing.assert_allclose(decisions.logprobs["toss"].values, expected, atol=1e-5)
    assert {int(n) for e in episodes for n in e.decisions.actions["toss"].values} == {0, 1, 2, 3}


FEW_EPOCHS = ("clone.epochs=3", "clone.bs=128", "clone.lr=0.01", "clone.max_frames=2500")


@pytest.mark.slow
@pytest.mark.parametrize("loss", ["cross_entropy", "kl"])
def test_coins_are_cloned(trained: tuple[Path, float], loss: str, tmp_path: Path) -> None:
    config = StateManager(
        CloneRunConfig, overrides=[*SMALL, *FEW_EPOCHS, f"clone.loss={loss}"]
    ).config
    cloned = clone(trained[0] / "frames.rec", config, tmp_path / "cloned", say=lambda line: None)
    assert cloned.test is not None
    agent = load_agent(tmp_path / "cloned", deterministic=True)
    world = Tossing()
    world.seed(1)
    frame = world.reset()[0]
    heads: Any = agent.act(frame).actions["toss"]
    expected = [NUM_COINS if w > 0 else 0 for (w,) in frame.features["Thrower"]]
    assert heads.heads.tolist() == expected


@pytest.mark.slow
def test_coins_are_played_by_a_person_and_an_agent(trained: tuple[Path, float]) -> None:
    agent = load_agent(trained[0] / "run", deterministic=True)
    shown: list[str] = []
    played = play_by_hand(
        Tossing, lambda prompt: "* 4", shown.append, agent=agent.act, side=0, episodes=1
    )
    assert played[0].steps == 3
    assert played[0].returns[1] > 2.5
    assert any("4) 3" in text for text in shown)


@pytest.mark.slow
def test_coins_resume_bit_for_bit_with_workers(trained: tuple[Path, float], tmp_path: Path) -> None:
    straight, _ = run(tmp_path, "total_timesteps=768")
    run(tmp_path, "total_timesteps=384", checkpoint_dir=tmp_path / "half")
    resumed, _ = run(
        tmp_path,
        *("total_timesteps=768", "rollout.processes=2"),
        checkpoint_dir=tmp_path / "half",
    )
    for name, tensor in weights(straight).items():
        assert torch.equal(weights(resumed)[name], tensor), name


@pytest.mark.slow
def test_workers_return_equal_observations() -> None:
    with_workers = ParallelEnvList(Tossing, 4, 2)
    alone = EnvList(Tossing, 4)
    frames: list[list[VecObs]] = []
    for envs in (alone, with_workers):
        envs.seed(3)
        shown = [envs.reset(envs.obs_space())]
        for n in range(4):
            lengths = shown[-1].action_masks["toss"].actors.lengths
            chosen = Ragged(np.full(int(lengths.sum()), n % 4), lengths)
            shown.append(envs.act({"toss": chosen}, envs.obs_space()))
        frames.append(shown)
        envs.close()
    for one, other in zip(*frames, strict=True):
        assert one.reward.tolist() == other.reward.tolist()
        masks = one.action_masks["toss"], other.action_masks["toss"]
        assert all(type(mask) is VecCoinsMask for mask in masks)


@pytest.mark.slow
def test_coins_upgrade_with_the_environment(trained: tuple[Path, float]) -> None:
    saved = verify(max((trained[0] / "run").glob("step-*")))
    world = Tossing(seen=True)
    state = evolve(saved, world.obs_space(), world.action_space()).state
    wants = torch.tensor([[0.5, -1.0], [0.5, 1.0]])
    actors = RaggedTensor(torch.tensor([0, 1]), np.array([2]))
    batch = EntityBatch(
        {"Thrower": RaggedTensor(wants, np.array([2]))}, {}, {"toss": ActionBatch(actors)}, 1
    )
    assert state.agent(batch).actions["toss"].tolist() == [0, NUM_COINS]


def test_later_draws_differ_from_the_first() -> None:
    actors = RaggedTensor(torch.zeros(64, dtype=torch.int64), np.array([1] * 64))
    env = np.arange(64)
    one = draw_uniforms({"toss": ActionBatch(actors)}, 7, env, 3)["toss"]
    three = draw_uniforms({"toss": ActionBatch(actors, num_draws=3)}, 7, env, 3)["toss"]
    assert torch.equal(three[:, 0], one)
    assert np.abs(np.corrcoef(three.T.numpy()) - np.eye(3)).max() < 0.4


class Throws(Bot):
    """Let as many coins fall heads as it draws."""

    def act(self, observation: Observation) -> Mapping[str, Action]:
        assert isinstance(observation.actions["toss"], CoinsMask)
        throwers = len(observation.features["Thrower"])
        return {"toss": CoinsAction(self.rng.integers(NUM_COINS + 1, size=throwers))}


def test_bots_choose_coins() -> None:
    envs = EnvList(Tossing, 4)
    spaces = Spaces.of(envs)
    player = BotPlayer(Throws, 3, envs.obs_space(), spaces)
    collector = Collector(envs, player)
    collector.seed(1)
    collector.reset(envs.obs_space())
    thrown = []
    for t in range(20):
        _, decisions, _ = collector.step(t, None)
        rows = decisions.chosen["toss"].values
        thrown += rows.tolist()
        assert not decisions.distributions
    assert set(thrown) == set(range(NUM_COINS + 1))
