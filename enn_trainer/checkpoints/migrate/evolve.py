"""Upgrade of saved runs and weights to a changed environment, matched by name."""

import copy
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

from torch import Tensor

from enn_trainer.base.errors import CheckpointError, ConfigError
from enn_trainer.base.policy import PPOAgent
from enn_trainer.base.state_part import (
    SavedNetwork,
    SpaceChange,
    StateDict,
    UnusedPart,
    copied_state,
    full_state,
    with_prefix,
)
from enn_trainer.base.tables import aligned
from enn_trainer.checkpoints.format import WEIGHTS, Checkpoint
from enn_trainer.checkpoints.lookup import find
from enn_trainer.checkpoints.migrate.config_diff import (
    check_groups,
    check_same_network,
    keep_precision,
    renamed_config,
)
from enn_trainer.checkpoints.migrate.evolve_rules import PARTS, Rules, read_renames
from enn_trainer.checkpoints.migrate.evolve_tensors import (
    Network,
    TensorMove,
    TensorUpgrade,
    function_changes,
    upgrade_moment,
    upgrade_tensors,
)
from enn_trainer.checkpoints.model_file import read_model_file
from enn_trainer.checkpoints.run_dir import RunDir
from enn_trainer.checkpoints.saved_run import read_saved_run, run_of_member
from enn_trainer.checkpoints.saved_state import loading, read_config, read_state
from enn_trainer.checkpoints.state import (
    STATE_PARTS,
    InitialState,
    State,
    init_train_state,
    make_network,
    make_policy,
    with_common_parts,
)
from enn_trainer.checkpoints.state_files import (
    LOSS_STATE,
    read_reward_scaling,
    read_tensors,
    restore,
    saved_network,
    to_files,
)
from enn_trainer.checkpoints.weights import load_weights
from enn_trainer.checkpoints.writer import save
from enn_trainer.config import TrainConfig
from enn_trainer.config.schedules import follow_schedules
from enn_trainer.selfplay.league import LEAGUE, SNAPSHOT, League, Member
from enn_trainer.selfplay.matchmaking import NAMED
from entity_env.spaces import ActionSpace, ObsSpace, Spaces
from rogue_net.space_diff import SpaceDiff, diff_spaces


class EvolutionReport(NamedTuple):
    """Report of an upgrade.

    Attributes:
        diff: differences between the spaces, after renaming.
        tensors: change of every tensor.
        function_changes: unavoidable changes to the outputs of the network, with reasons.
        moments_dropped: parameters that are kept without their optimizer moments.
        opponents: result of the upgrade of each league member, by name.
    """

    diff: SpaceDiff
    tensors: Sequence[TensorMove]
    function_changes: Sequence[str] = ()
    moments_dropped: Sequence[str] = ()
    opponents: Mapping[str, str] = MappingProxyType({})

    def __str__(self) -> str:
        return self._text(self.tensors)

    @property
    def fates(self) -> str:
        """Number of tensors by fate, as text."""
        counts = Counter(one.fate for one in self.tensors)
        return ", ".join(f"{count} {fate}" for fate, count in counts.items())

    def summary(self) -> str:
        """Return the report without unchanged tensors."""
        return self._text([one for one in self.tensors if one.fate != "kept"])

    def _text(self, changes: Sequence[TensorMove]) -> str:
        rows: list[tuple[str, ...]] = [("tensor", "became", "before", "now")]
        for t in changes:
            shapes = (t.before, t.now)
            sizes = ["-" if s is None else "x".join(map(str, s)) or "()" for s in shapes]
            rows.append((t.key, f"{t.fate} ({t.why})" if t.why else t.fate, *sizes))
        lines = [
            str(self.diff),
            *(f"output changes: {change}" for change in self.function_changes),
            *(f"optimizer starts fresh: {key}" for key in self.moments_dropped),
            *(f"opponent {name}: {change}" for name, change in self.opponents.items()),
            f"tensors: {self.fates}",
        ]
        return "\n".join([*lines, *(aligned(rows) if changes else [])])


class EvolvedRun(NamedTuple):
    """Saved run, upgraded to other spaces.

    Attributes:
        config: configuration to continue with.
        state: upgraded state, at the step of the checkpoint.
        report: changes of the upgrade.
    """

    config: TrainConfig
    state: State
    report: EvolutionReport

    def save(self, run_dir: Path) -> Checkpoint:
        """Save as the first checkpoint of a new run, which can be resumed.

        Raises:
            CheckpointError: the folder has a run already, or cannot be written to.
        """
        files = to_files(self.config, self.state)
        with RunDir(run_dir).begin():
            return save(run_dir, self.state.step, files, "evolved", if_exists="raise")


def evolve(
    saved: Checkpoint,
    obs_space: ObsSpace,
    action_space: Mapping[str, ActionSpace],
    config: TrainConfig | None = None,
    rules: Rules | None = None,
    initial_state: InitialState = init_train_state,
) -> EvolvedRun:
    """Upgrade a saved run to other spaces.

    For every observation of the old environment, the values and the relative probabilities of old
    choices are preserved to rounding, except for the `function_changes` of the report. Optimizer
    moments move with their parameters. The step count continues; trackers start a new run.

    Args:
        saved: the checkpoint.
        obs_space: the new observation space.
        action_space: the new action space.
        config: configuration to continue with; by default the saved one with the new names. With
            `precision="auto"` a network keeps the choice of the checkpoint.
        rules: renames, and the probability of new choices.
        initial_state: makes the state of a new run, as for `StateManager`.

    Raises:
        CheckpointError: the checkpoint is invalid, or `config` has another network architecture.
        ConfigError: `config` or the rules use names that the new environment does not have, or two
            names become one, or a feature in a setting gets different names in different types.
    """
    rules = rules or Rules()
    old_config = read_config(saved)
    old = restore(saved, old_config, initial_state=initial_state)
    spaces = Spaces(obs_space, action_space)
    if config is None:
        config = renamed_config(old_config, rules, old.obs_space, spaces)
    config = copy.deepcopy(config)
    keep_precision(config, old_config)
    state, report = evolved_state(old, old_config, config, spaces, rules, initial_state)
    begins = replace(state, run_name="", tracker_ids={}, metrics={}, envs=None)
    return EvolvedRun(config, begins, report)


def evolved_state(
    old: State,
    old_config: TrainConfig,
    config: TrainConfig,
    spaces: Spaces,
    rules: Rules,
    initial_state: InitialState = init_train_state,
) -> tuple[State, EvolutionReport]:
    """Upgrade a state to other spaces as `evolve` does, but keep the name of the run.

    Args:
        old: the state, which is not modified.
        old_config: configuration of the state.
        config: configuration to continue with.
        spaces: the new spaces.
        rules: renames, and the probability of new choices.
        initial_state: makes the state of a new run, into whose parts the old ones are upgraded.
    """
    # Moments cannot move to another optimizer.
    rules.check_new_names(spaces)
    old_optim, new_optim = old_config.optim, config.optim
    if (old_optim.name, old_optim.kwargs) != (new_optim.name, new_optim.kwargs):
        raise CheckpointError(
            f"optim.name, optim.kwargs: expected {old_optim.name} and {old_optim.kwargs} as in the "
            f"checkpoint, got {new_optim.name} and {new_optim.kwargs}; optimizer moments cannot be "
            "converted"
        )

    # Network.
    follow_schedules(config, old)
    obs_space, action_space = spaces.obs_space, dict(spaces.action_space)
    fresh = make_network(config, obs_space, action_space)
    upgrade, report = upgrade_network((old_config, old.agent), (config, fresh), rules, PARTS)
    check_groups(config.optim, [name for name, _ in fresh.named_parameters()])

    # Parts: by the names of parameters and actions. Parts without a saved state start fresh.
    context = {"obs_space": obs_space, "action_space": action_space, "agent": fresh}
    init = with_common_parts(initial_state(config, context))
    state = replace(
        old, agent=init.agent, parts=init.parts, obs_space=obs_space, action_space=action_space
    )
    is_same_world = not (report.diff.changed or rules.renamed)
    change = NetworkChange(rules, upgrade, old.agent, fresh, is_same_world)
    for name, saved_part in old.parts.items():
        if name in STATE_PARTS:
            state.parts.setdefault(name, UnusedPart())
        if (part := state.parts.get(name)) is not None:
            upgrades = League() if name == LEAGUE else part
            part.load_state_dict(upgrades.evolve(copied_state(full_state(saved_part)), change))
    return state, report._replace(moments_dropped=change.dropped, opponents=change.opponents)


class NetworkChange(SpaceChange):
    """Change of spaces that upgrades parts of the state along with the network.

    Args:
        rules: renames, and the probability of new choices.
        upgrade: upgrade of the network.
        old: network of the checkpoint.
        fresh: the new network, with the upgraded tensors.
        is_same_world: see below.

    Attributes:
        is_same_world: True if only the order of names, or settings, change.
        dropped: names of the parameters that lost their moments.
        opponents: results of the upgrades of other networks, by name.
    """

    def __init__(
        self,
        rules: Rules,
        upgrade: TensorUpgrade,
        old: Network,
        fresh: Network,
        is_same_world: bool,
    ) -> None:
        self._rules, self._upgrade, self._old, self._fresh = rules, upgrade, old, fresh
        self._before: dict[str, Tensor] = dict(old.named_parameters())
        self.is_same_world = is_same_world
        self.dropped: list[str] = []
        self.opponents: dict[str, str] = {}

    def action(self, name: str) -> str:
        """Return the new name of an action."""
        return self._rules.new("action", name)

    def parameter(self, name: str) -> str:
        """Return the new name of an environment argument."""
        return self._rules.new("parameter", name)

    def moments(self, state: StateDict) -> dict[str, Any]:
        """Return the entries PARAMETER/key, rearranged like the parameters; plain data as is."""
        before: dict[str, dict[str, Any]] = {}
        for name, moment in state.items():
            parameter, _, key = name.rpartition("/")
            if parameter in self._before:
                before.setdefault(parameter, {})[key] = moment
        moments: dict[str, Any] = {}
        for key, source in self._upgrade.sources.items():
            if source.is_new:
                continue
            entries = before.get(source.key, {})
            moved = {
                name: upgrade_moment(name, moment, self._before[source.key], source)
                for name, moment in entries.items()
                if isinstance(moment, Tensor)
            }
            if not any(moment is None for moment in moved.values()):
                moments |= with_prefix(key, {**entries, **moved})
            elif key not in self.dropped:
                self.dropped.append(key)
        return moments

    def others(self, state: StateDict) -> dict[str, Any]:
        """Return the entries that do not belong to a parameter of the old agent."""
        return {n: x for n, x in state.items() if n.rpartition("/")[0] not in self._before}

    def copy_of_agent(self, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Upgrade the tensors of a copy of the old agent."""
        old = copy.deepcopy(self._old)
        old.load_state_dict(tensors)
        return upgrade_tensors(old, self._fresh, self._rules, PARTS).tensors

    def network(self, name: str, saved: SavedNetwork) -> SavedNetwork | None:
        """Upgrade another network; return None if it cannot be upgraded."""
        member = Member(name, NAMED, SNAPSHOT, "network", **saved._asdict())
        spaces = Spaces(self._fresh.obs_space, self._fresh.action_space)
        try:
            run = run_of_member(member, Path(name))
            config = renamed_config(run.config, self._rules, run.obs_space, spaces)
            fresh = make_policy(config, spaces.obs_space, dict(spaces.action_space))
            before, now = (run.config, run.agent), (config, fresh)
            _, report = upgrade_network(before, now, self._rules, PARTS)
        except (CheckpointError, ConfigError) as error:
            self.opponents[name] = f"removed, as it cannot be upgraded: {error}"
            return None
        self.opponents[name] = "; ".join([report.fates, *report.function_changes])
        return saved_network(fresh, spaces)


def upgrade_network(
    before: tuple[TrainConfig, Any],
    now: tuple[TrainConfig, Any],
    rules: Rules,
    parts: Collection[str],
) -> tuple[TensorUpgrade, EvolutionReport]:
    """Upgrade the weights of a saved network to other spaces, and load them into a new network.

    Args:
        before: configuration and network of the checkpoint.
        now: configuration and network of the new run; the network is modified in place.
        rules: renames, and the probability of new choices.
        parts: the `PARTS` to load.

    Raises:
        CheckpointError: the architectures differ, or a network is not a `RogueNet`.
        ConfigError: two names become one.
    """
    (old_config, old), (config, fresh) = before, now
    for network in (old, fresh):
        if not isinstance(network, Network):
            raise CheckpointError(
                f"expected a RogueNet to upgrade, got {type(network).__name__}; tensors of other "
                "networks cannot be matched by name"
            )
    renamed = rules.spaces(Spaces(old.obs_space, old.action_space))
    diff = diff_spaces(renamed, Spaces(fresh.obs_space, fresh.action_space))
    check_same_network(old_config, config, parts)
    upgrade = upgrade_tensors(old, fresh, rules, parts)
    changes = function_changes(old, fresh, rules)
    if left_out := [part for part in PARTS if part not in parts]:
        changes.append(f"{', '.join(left_out)}: not loaded, starts fresh")
    fresh.load_state_dict(upgrade.tensors)
    return upgrade, EvolutionReport(diff, upgrade.moved, changes)


def upgrade_checkpoint(
    path: str | Path, run_dir: str | Path, agent: PPOAgent | None = None
) -> Checkpoint:
    """Convert a checkpoint to the current format, as the first checkpoint of a new run.

    The new run has the whole state of the old one, and can be resumed. It has new logs and tracker
    runs; the old run is not modified.

    Args:
        path: a checkpoint, or the folder of a run, for its newest valid checkpoint.
        run_dir: the folder of the new run, created if missing.
        agent: the custom network, if the checkpoint has one.

    Returns:
        The new checkpoint.

    Raises:
        CheckpointError: there is no valid checkpoint, or `run_dir` has a run already.
    """
    run_dir = Path(run_dir)
    saved = find(Path(path), to_continue=True)
    config = read_config(saved)
    state = replace(restore(saved, config, agent), run_name="", tracker_ids={})
    files, why = to_files(config, state), f"upgraded from {saved.path.name}"
    with RunDir(run_dir).begin():
        return save(run_dir, saved.step, files, why, if_exists="raise")


@dataclass(frozen=True)
class InitFrom:
    """Source of the initial weights of a run.

    Attributes:
        path: a checkpoint, or the folder of a run, for its newest valid checkpoint.
        parts: the `PARTS` to load: the policy, the value function, the input statistics.
        renames: new names in the environment, in the form of `read_renames`.
    """

    path: Path
    parts: Sequence[str] = PARTS
    renames: Sequence[str] = ()

    def __post_init__(self) -> None:
        unknown = [part for part in self.parts if part not in PARTS]
        if unknown or not self.parts:
            raise ConfigError(
                f"--init-parts: expected some of {','.join(PARTS)}, got {','.join(self.parts)}"
            )


def state_from(
    source: InitFrom,
    config: TrainConfig,
    context: dict[str, Any],
    initial_state: InitialState,
    say: Callable[[str], None],
) -> State:
    """Return the initial state of a new run, with weights of a checkpoint.

    Args:
        source: the checkpoint, and the parts to load.
        config: configuration of the new run.
        context: context of `initial_state`: the spaces, and a custom network if there is one.
        initial_state: makes the state of a new run.
        say: prints a report of the loaded weights.

    Raises:
        CheckpointError: there is no valid checkpoint, or it does not match.
        ConfigError: the parts cannot be loaded, or a rename has an unknown name.
    """
    agent = context.get("agent")
    if agent is not None:
        if set(source.parts) != {*PARTS} or source.renames:
            raise ConfigError(
                "--init-parts, --rename: expected neither with a custom network, as only the "
                "tensors of a RogueNet are matched by name"
            )
        # Tensors of a custom network are not named after entities, so the spaces must be equal.
        checkpoint = find(source.path)
        plain = read_state(checkpoint)
        before = Spaces(plain["obs_space"], plain["action_space"])
        diff = diff_spaces(before, Spaces(context["obs_space"], context["action_space"]))
        if different := [*diff.changed, *diff.reordered, *diff.reordered_labels]:
            raise CheckpointError(
                f"--init-from: {checkpoint.path} is of another environment: "
                f"{'; '.join(different)}; a custom network needs the same names in order"
            )
        load_weights(str(checkpoint.path), agent, read_tensors(checkpoint, WEIGHTS))
        say(f"loaded all weights from {source.path}")
        state = initial_state(config, context)
        _take_reward_scale(checkpoint.path, read_reward_scaling(checkpoint), state, say)
        return state

    # Tensors of a RogueNet are matched by name.
    saved = read_saved_run(source.path)
    alone, takes_values = saved.config.vf_net is None, "value" in source.parts
    if alone and takes_values and "policy" not in source.parts:
        raise ConfigError(
            "--init-parts: expected policy along with value, as the value function of the "
            "checkpoint shares the layers of the policy"
        )
    rules = Rules(read_renames(source.renames, saved.spaces))
    state = initial_state(config, context)
    rules.check_new_names(state.spaces)
    _, report = upgrade_network(
        (saved.config, saved.agent), (config, state.agent), rules, source.parts
    )
    say(f"weights of {saved.path}, step {saved.step}:\n{report.summary()}")
    if takes_values:
        is_file = saved.path.is_file()
        scaling = read_model_file(saved.path).reward_scaling if is_file else None
        if scaling is None:
            scaling = read_reward_scaling(find(saved.path))
        _take_reward_scale(saved.path, scaling, state, say)
    return state


def _take_reward_scale(
    path: Path, saved: StateDict, state: State, say: Callable[[str], None]
) -> None:
    """Load the reward scale of a checkpoint, which its values depend on.

    Args:
        path: the checkpoint, for messages.
        saved: its state of `RewardScaling`.
        state: state of the new run, whose reward scaling is modified.
        say: prints a line if only one of the two runs scales rewards.

    Raises:
        CheckpointError: the statistics in the checkpoint are damaged.
    """
    scaling = state.reward_scaling
    if (scaling is not None) != bool(saved):
        now, then = ("unscaled", "scaled") if scaling is None else ("scaled", "unscaled")
        say(
            f"ppo.reward_scaling: values were learnt for {then} rewards and continue with {now} "
            f"ones; ppo.reward_scaling={str(bool(saved)).lower()} keeps their unit"
        )
    elif scaling is not None:
        with loading(f"{path}: {LOSS_STATE}", "algorithm"):
            scaling.load_state_dict(saved)
