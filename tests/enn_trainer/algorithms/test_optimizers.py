"""Which parameters an optimizer trains, how fast and when."""

import re
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from enn_trainer import CheckpointError, ConfigError, OptimizerConfig, ParamGroupConfig, State
from enn_trainer.algorithms.optimizers import (
    begin_update,
    clipped_step,
    decayed_parameters,
    make_optimizers,
)
from enn_trainer.config.torch_optimizers import usable_optimizers
from entity_env import Entity, Kind, Observation, ObsSpace, batch_obs
from rogue_net import (
    EntityBatch,
    RelposEncodingConfig,
    RogueNet,
    RogueNetConfig,
    RogueNetWithValueNet,
)
from rogue_net.relpos.translate import TranslationConfig
from tests.enn_trainer.builders import run_small
from tests.enn_trainer.resuming import assert_same, straight_and_resumed
from tests.enn_trainer.worlds import Clockwork, Meadow
from tests.rogue_net.nets import ACTIONS, SPACE

NEVER_DECAYED = (
    r"bias|norm_[12]\.weight|layer_norm\.weight|vector|labels|relpos\.keys|relpos\.values"
)


LABELS = ObsSpace(entities={"Key": Entity(["x", Kind("color", ["red", "blue"])])})


def nets_with_every_option() -> list[nn.Module]:
    relpos = RelposEncodingConfig(
        extent=[2, 2],
        position_features=["x", "y"],
        per_entity_values=True,
        key_relpos_projection=True,
        value_relpos_projection=True,
        per_entity_projections=True,
        interpolate=True,
        value_gate="relu",
    )
    translation = TranslationConfig(reference_entity="Goal", position_features=["x"])
    heads = {"value": 1, "risk": 3}
    plain = ObsSpace(entities=SPACE.entities)  # what is global would be a feature of every type
    full = RogueNetConfig(d_model=8, relpos_encoding=relpos, translation=translation)
    return [
        RogueNet(full, SPACE, ACTIONS, heads),
        RogueNet(RogueNetConfig(d_model=8, pooling="meanmax"), plain, ACTIONS, heads),
        RogueNetWithValueNet(full, RogueNetConfig(d_model=12), SPACE, ACTIONS),
        RogueNet(RogueNetConfig(d_model=8), LABELS, {}, heads),
    ]


def gradients(network: nn.Module) -> None:
    for parameter in network.parameters():
        parameter.grad = torch.ones_like(parameter)


def snapshot(network: nn.Module) -> dict[str, torch.Tensor]:
    return {name: p.detach().clone() for name, p in network.named_parameters()}


def changed(before: dict[str, torch.Tensor], network: nn.Module) -> set[str]:
    now = dict(network.named_parameters())
    return {name for name, old in before.items() if not torch.equal(old, now[name])}


# Weight decay.


@pytest.mark.parametrize("i", range(4))
def test_only_matrices_have_weight_decay(i: int) -> None:
    """Every parameter of networks that have all there is; without gradients to follow, Adam moves
    what decays and leaves the rest."""
    network = nets_with_every_option()[i]
    matrices = {
        name
        for name, _ in network.named_parameters()
        if not re.search(rf"(^|[._])({NEVER_DECAYED})$", name)
    }
    assert all(name.endswith(".weight") for name in matrices)
    assert decayed_parameters(network) == matrices
    with torch.no_grad():
        for parameter in network.parameters():
            parameter.fill_(1.0)
    before = snapshot(network)
    for optimizer in make_optimizers(network, OptimizerConfig(weight_decay=0.1)):
        if optimizer is not None:
            for group in optimizer.param_groups:
                for parameter in group["params"]:
                    parameter.grad = torch.zeros_like(parameter)
            clipped_step(optimizer, 1.0)
    assert changed(before, network) == matrices


def test_every_table_and_norm_is_excluded_from_weight_decay() -> None:
    """So that the test above does not pass for want of them."""
    names = [name for network in nets_with_every_option() for name, _ in network.named_parameters()]
    for part in NEVER_DECAYED.split("|"):
        assert any(re.search(rf"(^|[._])({part})$", name) for name in names), part


def test_norms_and_tables_of_a_custom_network_have_no_weight_decay() -> None:
    class Mine(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.table = nn.Embedding(3, 4)
            self.norm = nn.LayerNorm((2, 4))
            self.layers = nn.Sequential(nn.Conv1d(2, 2, 1), nn.BatchNorm1d(2), nn.Linear(4, 4))
            self.mixing = nn.Parameter(torch.ones(2, 2))
            self.scale = nn.Parameter(torch.ones(4))

    assert decayed_parameters(Mine()) == {"layers.0.weight", "layers.2.weight", "mixing"}


def test_weight_decay_of_a_group_applies_to_all_its_parameters() -> None:
    """What is said of a parameter by name holds: also the published decay of everything."""
    network = nets_with_every_option()[0]
    groups = [ParamGroupConfig("regression_heads.*"), ParamGroupConfig("*", weight_decay=0.1)]
    (optimizer, _) = make_optimizers(network, OptimizerConfig(weight_decay=0.3, groups=groups))
    decay = {
        id(parameter): group["weight_decay"]
        for group in optimizer.param_groups
        for parameter in group["params"]
    }
    for name, parameter in network.named_parameters():
        expected = 0.1
        if name.startswith("regression_heads"):
            expected = 0.3 if name.endswith("weight") else 0.0
        assert decay[id(parameter)] == expected, name


# Groups.


def test_equal_settings_share_a_group() -> None:
    """On a GPU each group is launched for itself."""
    (optimizer, _) = make_optimizers(nets_with_every_option()[0], OptimizerConfig())
    assert len(optimizer.param_groups) == 1


def test_every_parameter_is_in_exactly_one_group() -> None:
    for network in nets_with_every_option():
        groups = [ParamGroupConfig("*.bias", 0.5), ParamGroupConfig("*head*", freeze_from=3)]
        both = make_optimizers(network, OptimizerConfig(weight_decay=0.1, groups=groups))
        trained = [
            id(parameter)
            for optimizer in both
            if optimizer is not None
            for group in optimizer.param_groups
            for parameter in group["params"]
        ]
        assert sorted(trained) == sorted(id(parameter) for parameter in network.parameters())


def test_first_matching_group_applies() -> None:
    network = nets_with_every_option()[0]
    groups = [ParamGroupConfig("embedding.*.bias", 3.0), ParamGroupConfig("embedding.*", 0.0)]
    (optimizer, _) = make_optimizers(network, OptimizerConfig(groups=groups))
    begin_update(optimizer, 0.01, 0.0, step=0)
    rate = {id(p): group["lr"] for group in optimizer.param_groups for p in group["params"]}
    for name, parameter in network.named_parameters():
        expected = 0.01
        if name.startswith("embedding."):
            expected = 0.03 if name.endswith(".bias") else 0.0
        assert rate[id(parameter)] == pytest.approx(expected), name


@pytest.mark.parametrize(
    ("patterns", "message"),
    [
        (["embeding.*"], r"^optim.groups\[0\].pattern='embeding.\*': .* transformer.blocks.0.norm"),
        (["*", "embedding.*"], r"^optim.groups\[1\].pattern='embedding.\*': .*no earlier group"),
        (["A*", "*", "B*"], r"^optim.groups\[0\].*; optim.groups\[2\]"),
    ],
)
def test_group_without_parameters_raises_with_the_names(patterns: list[str], message: str) -> None:
    optim = OptimizerConfig(groups=[ParamGroupConfig(pattern) for pattern in patterns])
    with pytest.raises(ConfigError, match=message) as error:
        make_optimizers(nets_with_every_option()[0], optim)
    assert "\n" not in str(error.value)


def group(pattern: str, **settings: Any) -> str:
    fields = ", ".join(f"{name}: {value}" for name, value in settings.items())
    return f'optim.groups=[(pattern: "{pattern}", {fields})]'


def test_group_without_parameters_raises_before_training(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"optim.groups\[0\].pattern='nothing'"):
        run_small(tmp_path, group("nothing", lr_factor=2.0))


@pytest.mark.slow
def test_settings_of_a_group_have_an_effect(tmp_path: Path) -> None:
    def weights(*overrides: str) -> torch.Tensor:
        state = run_small(tmp_path, "total_timesteps=24", *overrides).state
        return torch.cat([p.detach().flatten() for p in state.agent.parameters()])

    plain = weights()
    assert torch.equal(plain, weights(group("transformer.*", lr_factor=1.0)))
    for settings in ({"lr_factor": 0.5}, {"weight_decay": 0.9}, {"freeze_from": 0}):
        assert not torch.equal(plain, weights(group("transformer.*", **settings))), settings


# Freezing.


@pytest.mark.parametrize(
    ("freeze_from", "freeze_until", "frozen"),
    [(None, None, []), (None, 48, [0, 24]), (48, None, [48, 72]), (24, 72, [24, 48])],
)
def test_freeze_settings_select_the_frozen_updates(
    freeze_from: int | None, freeze_until: int | None, frozen: list[int]
) -> None:
    """Neither weight decay nor momentum may move what is frozen, and its moments wait."""
    network = nets_with_every_option()[0]
    groups = [
        ParamGroupConfig(
            "embedding.*", 1.0, 0.1, freeze_from=freeze_from, freeze_until=freeze_until
        )
    ]
    (optimizer, _) = make_optimizers(network, OptimizerConfig(groups=groups))
    own = {n for n, _ in network.named_parameters() if n.startswith("embedding.")}
    everything = {name for name, _ in network.named_parameters()}
    for step in (0, 24, 48, 72):
        begin_update(optimizer, 0.01, 0.0, step)
        before = snapshot(network)
        moments = {
            name: {key: value.clone() for key, value in optimizer.state[parameter].items()}
            for name, parameter in network.named_parameters()
            if parameter in optimizer.state
        }
        gradients(network)
        clipped_step(optimizer, 1.0)
        assert changed(before, network) == everything - (own if step in frozen else set())
        for name in own & moments.keys() if step in frozen else set():
            now = optimizer.state[dict(network.named_parameters())[name]]
            assert all(torch.equal(now[key], value) for key, value in moments[name].items())


def test_frozen_parameters_do_not_count_in_the_gradient_norm() -> None:
    network = nn.Sequential(nn.Linear(2, 1, bias=False), nn.Linear(1, 4, bias=False))
    optim = OptimizerConfig(groups=[ParamGroupConfig("0.*", freeze_from=0)])
    (optimizer, _) = make_optimizers(network, optim)
    gradients(network)
    assert clipped_step(optimizer, 100.0) == 2.0  # of four ones
    gradients(network)
    (optimizer, _) = make_optimizers(network, OptimizerConfig())
    assert clipped_step(optimizer, 100.0) == pytest.approx(6**0.5)


def names_that_moved(one: State, other: State) -> set[str]:
    return changed(snapshot(one.agent), other.agent)


@pytest.mark.slow
def test_trunk_is_frozen_while_a_new_head_trains(tmp_path: Path) -> None:
    """And thaws with the update that begins at the stated step."""
    trunk = (
        '(pattern: "embedding.*", freeze_until: 48), (pattern: "transformer.*", freeze_until: 48)'
    )
    frozen = f"optim.groups=[{trunk}]"
    decay = "optim.weight_decay=0.5"
    begun = run_small(tmp_path, "max_train_time=0").state
    before = run_small(tmp_path, frozen, decay, "total_timesteps=48").state
    after = run_small(tmp_path, frozen, decay, "total_timesteps=72").state
    assert all("heads" in name for name in names_that_moved(begun, before))
    assert any("embedding" in name for name in names_that_moved(begun, after))


def test_value_function_can_be_trained_first(tmp_path: Path) -> None:
    policy = group("policy.*", freeze_until=72)
    begun = run_small(tmp_path, "max_train_time=0", "vf_net.d_model=8").state
    state = run_small(tmp_path, "vf_net.d_model=8", policy).state
    moved = names_that_moved(begun, state)
    assert moved
    assert all(name.startswith("value_function.") for name in moved)


def test_all_parameters_can_be_frozen(tmp_path: Path) -> None:
    begun = run_small(tmp_path, "max_train_time=0").state
    assert (
        names_that_moved(begun, run_small(tmp_path, group("*", freeze_until=1000)).state) == set()
    )


@pytest.mark.slow
@pytest.mark.parametrize(
    "schedule", [{"freeze_until": 72}, {"freeze_from": 24, "freeze_until": 72}, {"freeze_from": 48}]
)
def test_resumed_run_freezes_like_an_uninterrupted_one(
    tmp_path: Path, schedule: dict[str, int]
) -> None:
    """The moments of what was frozen when it was saved are still there when it thaws."""
    groups = group("embedding.*", weight_decay=0.1, lr_factor=2.0, **schedule)
    straight, resumed = straight_and_resumed(tmp_path, groups, "optim.weight_decay=0.3")
    assert_same(straight, resumed)


def test_groups_may_change_when_a_run_continues(tmp_path: Path) -> None:
    """Moments go by the name of the parameter, not by its place in the optimizer."""
    first = run_small(tmp_path, "total_timesteps=48", checkpoint_dir=tmp_path / "run").state
    moments = {n: first.optimizer.state[p] for n, p in first.agent.named_parameters()}
    again = run_small(
        tmp_path,
        "total_timesteps=48",
        'optim.groups=[(pattern: "*.bias", lr_factor: 0.5), (pattern: "*heads*")]',
        "optim.weight_decay=0.1",
        init_path=tmp_path / "run",
    ).state
    assert len(again.optimizer.param_groups) > 2
    for name, parameter in again.agent.named_parameters():
        now = again.optimizer.state[parameter]
        assert all(torch.equal(now[key], value) for key, value in moments[name].items()), name


def test_input_statistics_of_frozen_parameters_are_updated(tmp_path: Path) -> None:
    """They follow the frames; only parameters are frozen."""
    state = run_small(tmp_path, group("embedding.*", freeze_from=0), env=Meadow).state
    assert state.agent.embedding.by_type["/__global__"].norm.count.item() == 6 + 3 * 24


# Other optimizers of torch.


@pytest.fixture(scope="module")
def untrained(tmp_path_factory: pytest.TempPathFactory) -> State:
    """The state with which a run begins."""
    folder = tmp_path_factory.mktemp("untrained")
    return run_small(folder, "max_train_time=0", env=Clockwork).state


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "kwargs"),
    [
        ("AdamW", '{"amsgrad": true, "betas": [0.8, 0.95]}'),
        ("SGD", "{}"),
        ("SGD", '{"momentum": 0.9, "nesterov": true}'),
        ("RMSprop", '{"centered": true, "momentum": 0.5}'),
        ("NAdam", "{}"),
        ("RAdam", "{}"),
        ("Adagrad", "{}"),
        ("ASGD", "{}"),
        ("Adafactor", "{}"),
        ("Rprop", "{}"),
    ],
)
def test_any_optimizer_of_torch_trains_and_resumes(
    tmp_path: Path, untrained: State, name: str, kwargs: str
) -> None:
    """Scalars such as the momentum schedule of NAdam and the averages of ASGD included."""
    settings = [f"optim.name={name}", f"optim.kwargs={kwargs}", "optim.lr=0.01"]
    straight, resumed = straight_and_resumed(tmp_path, *settings)
    assert type(straight.optimizer) is type(resumed.optimizer)
    assert isinstance(straight.optimizer, getattr(torch.optim, name))
    assert_same(straight, resumed)
    assert names_that_moved(untrained, straight)


def test_published_eps_applies_to_adamw_only() -> None:
    network = nets_with_every_option()[0]
    for name, kwargs, eps in (
        ("AdamW", "{}", 1e-5),
        ("AdamW", '{"eps": 0.01}', 0.01),
        ("Adam", "{}", 1e-8),
    ):
        (optimizer, _) = make_optimizers(network, OptimizerConfig(name=name, kwargs=kwargs))
        assert {group["eps"] for group in optimizer.param_groups} == {eps}


def test_every_optimizer_learns_labels_of_types_without_numbers() -> None:
    """Their weight has no elements."""
    space = ObsSpace(entities={"Key": Entity([Kind("color", ["red", "blue"])])})
    batch = EntityBatch.of(batch_obs([Observation(features={"Key": [["blue"]]})], space, {}))
    for name in usable_optimizers():
        torch.manual_seed(0)
        network = RogueNet(RogueNetConfig(d_model=8), space, {}, {"value": 1})
        nn.init.normal_(network.regression_heads["/value"].weight)  # their sum is always 0
        before = snapshot(network)
        (optimizer, _) = make_optimizers(network, OptimizerConfig(name=name))
        network.values(batch)["value"].sum().backward()  # type: ignore[no-untyped-call]
        clipped_step(optimizer, 1.0)
        assert "embedding.by_type./Key.labels" in changed(before, network), name


def test_torch_optimizers_have_no_default_weight_decay() -> None:
    """By torch's defaults some do."""
    network = nets_with_every_option()[0]
    for name in usable_optimizers():
        (optimizer, _) = make_optimizers(network, OptimizerConfig(name=name))
        assert {group["weight_decay"] for group in optimizer.param_groups} == {0.0}, name


@pytest.mark.slow
def test_optimizer_cannot_change_on_resume(tmp_path: Path) -> None:
    """Its moments would mean something else, or be missing."""
    first = run_small(tmp_path, checkpoint_dir=tmp_path / "run").state.agent
    for override, message in (
        ("optim.name=Adam", "optim.name: expected 'AdamW' .* got 'Adam'"),
        ('optim.kwargs={"amsgrad": true}', "optim.kwargs: expected '{}' .* got .*amsgrad"),
    ):
        for agent in (None, first):
            with pytest.raises(CheckpointError, match=message) as error:
                run_small(tmp_path, override, checkpoint_dir=tmp_path / "run", agent=agent)
            assert "\n" not in str(error.value)
    run_small(tmp_path, "optim.kwargs={ }", checkpoint_dir=tmp_path / "run")  # the same
