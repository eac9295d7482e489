"""ONNX files of networks: outputs of onnxruntime, for any number of entities."""

import math
from dataclasses import replace
from typing import Any

import numpy as np
import onnx
import pytest
import torch

from enn_trainer.base.errors import ConfigError
from enn_trainer.export import OPSET, check
from enn_trainer.export.check import TOLERANCE, check_onnx, run_onnx
from enn_trainer.export.frames import random_draws, random_frames, with_random_states
from enn_trainer.export.onnx_file import check_operators, onnx_bytes
from entity_env import (
    ActionSpace,
    CategoricalActionSpace,
    ContinuousActionSpace,
    Entity,
    GlobalCategoricalActionSpace,
    Kind,
    ObsSpace,
    SelectEntityActionSpace,
)
from entity_env.ragged import Ragged
from entity_env.spaces import Spaces
from rogue_net import (
    EntityBatch,
    RelposEncodingConfig,
    RogueNet,
    RogueNetConfig,
    RogueNetWithValueNet,
    TranslationConfig,
    ValueBinsConfig,
)
from rogue_net.config import MemoryConfig
from rogue_net.dense import DenseNet
from rogue_net.dense_arrays import padded_batch
from tests.rogue_net.dense_case import draws_of, of_actors
from tests.rogue_net.nets import SPACE as NETS_SPACE
from tests.rogue_net.nets import batch_of, frame
from tests.rogue_net.published_case import NAMES, load_case

SPACES = Spaces(
    ObsSpace(
        ["clock", Kind("season", ["dry", "wet"])],
        {
            "Unit": Entity(["x", "y", "angle", Kind("color", ["red", "green", "blue"])]),
            "Rock": Entity(["x", "y"]),
            "Air": Entity([]),
        },
    ),
    {
        "move": CategoricalActionSpace(["left", "right", "stay"]),
        "whom": SelectEntityActionSpace(after="move", when=["left", "right"]),
        "push": ContinuousActionSpace({"p": (-1.0, 2.0), "q": (-math.inf, math.inf)}, after="move"),
        "pick": SelectEntityActionSpace(),
        "plan": GlobalCategoricalActionSpace(["wait", "go"]),
    },
)
POLICY = RogueNetConfig(
    d_model=8,
    n_layer=1,
    relpos_encoding=RelposEncodingConfig(
        extent=[6, 4],
        position_features=["x", "y"],
        rotation_angle_feature="angle",
        radial=True,
        distance=True,
        per_entity_values=True,
        value_gate="gelu",
        key_relpos_projection=True,
    ),
    translation=TranslationConfig(
        "Unit", ["x", "y"], rotation_vec_features=["x", "y"], add_dist_feature=True
    ),
)
MEMORY = MemoryConfig(of="both", types=["Unit", "Air"], keep_absent=0, inputs=["reward"])
SIZES = [(1, 0, 0), (0, 0, 0), (0, 3, 1), (2, 7, 0), (17, 1, 5)]
"""Numbers of entities of each type that the graph was not made from."""


def everything(memory: MemoryConfig | None = None) -> Any:
    """A network with all kinds of features and actions, and most options."""
    torch.manual_seed(0)
    bins = {"value": ValueBinsConfig(-3.0, 3.0, 7)}
    agent: Any = RogueNet(replace(POLICY, memory=memory), *SPACES, bins, normalized_heads=["value"])
    for parameter in agent.parameters():
        torch.nn.init.normal_(parameter, std=0.4)
    agent.update_input_stats(random_frames(SPACES, 50))
    agent.value_norm.add(torch.tensor([1.0, 2.0, 4.0]))
    return agent.eval()


def exported(agent: Any, frames: EntityBatch, **options: Any) -> tuple[DenseNet, bytes]:
    net = DenseNet(agent, **options).eval()
    frames, states = with_random_states(net, frames)
    example = {**padded_batch(net.agent, frames, random_draws(frames)), **states}
    return net, onnx_bytes(net, example, {"about": "a test"})


@pytest.fixture(scope="module")
def case() -> tuple[Any, DenseNet, bytes]:
    agent = everything()
    net, content = exported(agent, random_frames(SPACES, 8), value_scale=2.0)
    return agent, net, content


def sized_frames(sizes: list[tuple[int, int, int]], hides: bool = False) -> EntityBatch:
    """Frames of the policy's spaces in which all units act, and some rocks are invisible."""
    from entity_env import CategoricalActionMask, Observation, SelectEntityActionMask, batch_obs

    rng = np.random.default_rng(0)
    frames = []
    for units, rocks, air in sizes:
        counts = {"Unit": units, "Rock": rocks, "Air": air}
        kinds = rng.integers(3, size=(units, 1))
        frames.append(
            Observation(
                features={
                    "Unit": np.concatenate([rng.normal(size=(units, 3)), kinds], axis=1),
                    "Rock": rng.normal(size=(rocks, 2)),
                    "Air": np.zeros((air, 0)),
                },
                ids={name: [(name, i) for i in range(n)] for name, n in counts.items()},
                visible={"Rock": rng.random(rocks) < 0.5} if hides else {},
                global_features=[0.5, 1],
                actions={
                    "move": CategoricalActionMask(actor_types=["Unit"]),
                    "pick": SelectEntityActionMask(actor_types=["Unit"], actee_types=["Unit"]),
                },
            )
        )
    batch = EntityBatch.of(batch_obs(frames, *SPACES))
    lengths = {name: batch.features[name].lengths for name in SPACES.obs_space.entities}
    numbers = {n: Ragged(np.concatenate([*map(np.arange, x)]), x) for n, x in lengths.items()}
    return EntityBatch(**{**vars(batch), "identity": numbers})


@pytest.mark.slow
def test_outputs_equal_those_of_the_network_for_unseen_numbers_of_entities(
    case: tuple[Any, DenseNet, bytes],
) -> None:
    agent, net, content = case
    assert check_onnx(content, net, agent, random_frames(SPACES)) <= TOLERANCE
    for size in SIZES:
        check_onnx(content, net, agent, sized_frames([size], hides=True))
    check_onnx(content, net, agent, sized_frames(SIZES))
    check_onnx(content, net, agent, sized_frames([(500, 2, 1)]))


@pytest.mark.slow
def test_other_weights_fail_the_check(case: tuple[Any, DenseNet, bytes]) -> None:
    _, net, content = case
    agent = everything()
    with torch.no_grad():
        agent.action_heads["/pick"].query.bias += 1e-3
    expected = "expected log_probs/pick of onnxruntime within 1e-05 of PyTorch"
    with pytest.raises(ConfigError, match=expected):
        check_onnx(content, net, agent, random_frames(SPACES))


@pytest.mark.slow
def test_sampled_choices_are_those_of_the_agent(case: tuple[Any, DenseNet, bytes]) -> None:
    """Except for draws within 1e-6 of the boundary between two choices."""
    agent, net, content = case
    frames, states = with_random_states(net, random_frames(SPACES))
    count = 0
    for seed in range(20):
        draws = draws_of(frames, seed)
        outputs = run_onnx(content, {**padded_batch(net.agent, frames, draws), **states})
        with torch.no_grad():
            expected = agent(frames, uniforms=draws)
        got = of_actors(outputs, frames)
        for name in ("move", "pick", "plan"):
            table = expected.log_probs[name].double().exp()
            choices = expected.actions[name]
            differ = got[f"sampled/{name}"] != choices
            boundaries = table.cumsum(dim=1)
            distance = (boundaries - draws[name].double()[:, None]).abs().amin(dim=1)
            assert (distance[differ] < 1e-6).all()
            count += len(choices)
    assert count > 10_000


@pytest.mark.slow
def test_a_file_names_its_arrays_and_has_no_paths(case: tuple[Any, DenseNet, bytes]) -> None:
    _, net, content = case
    model = onnx.load_from_string(content)
    for values, specs in (model.graph.input, net.inputs), (model.graph.output, net.outputs):
        shapes = {
            value.name: tuple(d.dim_param or d.dim_value for d in value.type.tensor_type.shape.dim)
            for value in values
        }
        assert shapes == {name: spec.dims for name, spec in specs.items()}
    assert {p.key: p.value for p in model.metadata_props} == {"about": "a test"}
    assert b".py" not in content
    assert [entry.version for entry in model.opset_import if not entry.domain] == [OPSET]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("opset", "problem"),
    [(9, "expected a version with CumSum, got 9"), (17, "expected 18 or newer, as in ")],
)
def test_an_operator_that_a_version_lacks_is_an_error(
    case: tuple[Any, DenseNet, bytes], opset: int, problem: str
) -> None:
    with pytest.raises(ConfigError, match=f"--opset: {problem}"):
        check_operators(onnx.load_from_string(case[2]), opset)


@pytest.mark.slow
def test_two_entities_with_scores_of_0_and_1() -> None:
    spaces = ObsSpace(entities={"A": Entity([]), "B": Entity([])})
    actions: dict[str, ActionSpace] = {"pick": SelectEntityActionSpace()}
    agent = RogueNet(RogueNetConfig(d_model=2, n_head=1, n_layer=0, d_qk=1), spaces, actions)
    head: Any = agent.action_heads["/pick"]
    with torch.no_grad():
        # Rows (0, 1) and (1, 0), keys 0 and 1, and the query 1.
        for name, row in ("/A", [0.0, 1.0]), ("/B", [1.0, 0.0]):
            agent.embedding.by_type[name].vector.copy_(torch.tensor([row]))  # type: ignore[operator, union-attr]
        head.key.weight.copy_(torch.tensor([[1.0, 0.0]]))
        head.key.bias.zero_()
        head.query.weight.zero_()
        head.query.bias.fill_(1.0)
    content = exported(agent.eval(), random_frames(Spaces(spaces, actions), 8))[1]
    one = np.ones(1, np.int64)
    inputs = {
        **{f"count/{name}": one for name in "AB"},
        **{f"visible/{name}": np.ones((1, 1), np.bool_) for name in "AB"},
        "actors/pick": np.array([[0]]),
        "actees/pick": np.array([[0, 1]]),
        "mask/pick": np.ones((1, 1, 2), np.bool_),
        "uniforms/pick": np.array([[0.268]], np.float32),
    }
    outputs = run_onnx(content, inputs)
    # exp(0) / (exp(0) + exp(1)) = .2689, exp(1) / (exp(0) + exp(1)) = .7311
    expected = torch.tensor([[[0.26894142, 0.73105858]]])
    torch.testing.assert_close(outputs["log_probs/pick"].exp(), expected, rtol=0, atol=1e-6)
    assert outputs["best/pick"].tolist() == [[1]]
    assert outputs["sampled/pick"].tolist() == [[0]]
    inputs["uniforms/pick"] = np.array([[0.270]], np.float32)
    assert run_onnx(content, inputs)["sampled/pick"].tolist() == [[1]]


@pytest.mark.soak
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("name", NAMES)
def test_graphs_of_published_networks(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    if name == "relpos_visible_deep":  # PyTorch itself is 1.5e-5 from float64
        monkeypatch.setattr(check, "TOLERANCE", 3 * TOLERANCE)
    golden = load_case(name)
    spaces = Spaces(golden.net.obs_space, golden.net.action_space)
    net, content = exported(golden.net, random_frames(spaces, 8))
    assert check_onnx(content, net, golden.net, golden.batch) <= TOLERANCE
    check_onnx(content, net, golden.net, random_frames(spaces))


@pytest.mark.soak
@pytest.mark.timeout(1200)
def test_recurrent_states_with_relative_positions() -> None:
    agent = everything(MEMORY)
    net, content = exported(agent, random_frames(SPACES, 8))
    assert {"memory", "memory/Unit", "memory/Air", "reward"} <= {*net.inputs}
    for frames in (random_frames(SPACES), sized_frames(SIZES, hides=True)):
        assert check_onnx(content, net, agent, frames) <= TOLERANCE


@pytest.mark.soak
@pytest.mark.timeout(1200)
def test_values_of_a_separate_network_with_pooling_and_memory() -> None:
    configs = (
        RogueNetConfig(d_model=8, n_layer=1, precision="bfloat16"),
        RogueNetConfig(d_model=8, pooling="meanmax", memory=MemoryConfig(of="frame")),
    )
    torch.manual_seed(0)
    agent: Any = RogueNetWithValueNet(*configs, *SPACES)
    for parameter in agent.parameters():
        torch.nn.init.normal_(parameter, std=0.4)
    net, content = exported(agent.eval(), random_frames(SPACES, 8))
    assert {"value_memory", "value_known"} <= {*net.inputs}
    assert check_onnx(content, net, agent, random_frames(SPACES)) <= TOLERANCE


@pytest.mark.soak
def test_equal_networks_have_equal_bytes() -> None:
    agent = RogueNet(RogueNetConfig(d_model=8), NETS_SPACE, {}, {"value": 1})
    frames = batch_of([frame(3, 2, 2, actions={}), frame(2, 3, 3, actions={})], action_space={})
    first, second = (exported(agent.eval(), frames)[1] for _ in range(2))
    assert first == second
