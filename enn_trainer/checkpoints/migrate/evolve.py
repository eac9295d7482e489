"""Upgrade of a saved run, or of its weights for a new run, to another world, by name."""

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
    KeptPart,
    SavedNetwork,
    SpaceChange,
    StateDict,
    copied_state,
    full_state,
    with_prefix,
)
from enn_trainer.base.tables import aligned
from enn_trainer.checkpoints.format import WEIGHTS, Checkpoint
from enn_trainer.checkpoints.lookup import find, read_saved_run, run_of_member
from enn_trainer.checkpoints.migrate.config_diff import (
    check_groups,
    check_same_network,
    renamed_config,
)
from enn_trainer.checkpoints.migrate.evolve_rules import Rules, read_renames
from enn_trainer.checkpoints.migrate.evolve_tensors import (
    PARTS,
    Moved,
    Network,
    Upgrade,
    function_changes,
    upgrade_moment,
    upgrade_tensors,
)
from enn_trainer.checkpoints.run_dir import RunDir
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
    loading,
    read_config,
    read_reward_scaling,
    read_state,
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


class Report(NamedTuple):
    """Report of an upgrade.

    Attributes:
        diff: the differences between the spaces, after renaming.
        tensors: the change of every tensor.
        function_changes: unavoidable changes to the outputs of the network, with their reasons.
        moments_dropped: parameters that are kept but whose optimizer moments could not be.
        opponents: what became of each member of the league, by name.
    """

    diff: SpaceDiff
    tensors: Sequence[Moved]
    function_changes: Sequence[str] = ()
    moments_dropped: Sequence[str] = ()
    opponents: Mapping[str, str] = MappingProxyType({})

    def __str__(self) -> str:
        return self._text(self.tensors)

    @property
    def fates(self) -> str:
        """Numbers of tensors by what became of them."""
        counts = Counter(one.fate for one in self.tensors)
        return ", ".join(f"{count} {fate}" for fate, count in counts.items())

    def summary(self) -> str:
        """Return the report without the tensors that are simply kept."""
        return self._text([one for one in self.tensors if one.fate != "kept"])

    def _text(self, shown: Sequence[Moved]) -> str:
        rows: list[tuple[str, ...]] = [("tensor", "became", "before", "now")]
        for one in shown:
            shapes = (one.before, one.now)
            sizes = ["-" if s is None else "x".join(map(str, s)) or "()" for s in shapes]
            rows.append((one.key, f"{one.fate} ({one.why})" if one.why else one.fate, *sizes))
        lines = [
            str(self.diff),
            *(f"output changes: {change}" for change in self.function_changes),
            *(f"optimizer starts fresh: {key}" for key in self.moments_dropped),
            *(f"opponent {name}: {change}" for name, change in self.opponents.items()),
            f"tensors: {self.fates}",
        ]
        return "\n".join([*lines, *(aligned(rows) if shown else [])])


class Evolved(NamedTuple):
    """Saved run that was upgraded to other spaces.

    Attributes:
        config: configuration to continue with.
        state: upgraded state, at the step of the save.
        report: the changes that were made.
    """

    config: TrainConfig
    state: State
    report: Report

    def save(self, run_dir: Path) -> Checkpoint:
        """Write it as the first save of a new run, which can be resumed.

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
) -> Evolved:
    """Upgrade a saved run to other spaces.

    For every observation that the old world could produce, the values, and the probabilities of
    the old choices relative to each other, equal those of the save to rounding, except for the
    `function_changes` of the report. Optimizer moments move with their parameters. The step count
    continues; trackers start a new run.

    Args:
        saved: the save.
        obs_space: the new observation space.
        action_space: the new action space.
        config: configuration to continue with; by default that of the save, with the new names.
        rules: renames, and the probability of new choices.
        initial_state: makes the state of a new run, as for `StateManager`.

    Raises:
        CheckpointError: the save cannot be used, or `config` has another network architecture.
        ConfigError: `config` or the rules use names that the new world does not have, or two names
            become one, or a feature in a setting would get different names in different types.
    """
    rules = rules or Rules()
    old_config = read_config(saved)
    old = restore(saved, old_config, initial_state=initial_state)
    spaces = Spaces(obs_space, action_space)
    if config is None:
        config = renamed_config(old_config, rules, old.obs_space, spaces)
    state, report = evolved_state(old, old_config, config, spaces, rules, initial_state)
    begins = replace(state, run_name="", tracker_ids={}, metrics={}, envs=None)
    return Evolved(config, begins, report)


def evolved_state(
    old: State,
    old_config: TrainConfig,
    config: TrainConfig,
    spaces: Spaces,
    rules: Rules,
    initial_state: InitialState = init_train_state,
) -> tuple[State, Report]:
    """Upgrade a state to other spaces as `evolve` does, but keep the name of the run.

    Args:
        old: the state, which is not changed.
        old_config: its configuration.
        config: the configuration of the run that continues.
        spaces: the new spaces.
        rules: renames, and the probability of new choices.
        initial_state: makes the state of a new run, whose parts take over those of the old one.
    """
    # Only the moments of the same optimizer can be kept.
    rules.check_known(spaces)
    used, wanted = old_config.optim, config.optim
    if (used.name, used.kwargs) != (wanted.name, wanted.kwargs):
        raise CheckpointError(
            f"optim.name, optim.kwargs: expected {used.name} and {used.kwargs} as in the save, "
            f"got {wanted.name} and {wanted.kwargs}; the moments cannot be converted"
        )

    # Network.
    follow_schedules(config, old)
    obs_space, action_space = spaces.obs_space, dict(spaces.action_space)
    fresh = make_network(config, obs_space, action_space)
    upgrade, report = upgrade_network((old_config, old.agent), (config, fresh), rules, PARTS)
    check_groups(config.optim, [name for name, _ in fresh.named_parameters()])

    # Parts: by the names of parameters and actions. Those without saved state start fresh.
    context = {"obs_space": obs_space, "action_space": action_space, "agent": fresh}
    made = with_common_parts(initial_state(config, context))
    state = replace(
        old, agent=made.agent, parts=made.parts, obs_space=obs_space, action_space=action_space
    )
    is_same_world = not (report.diff.changed or rules.renamed)
    change = NetworkChange(rules, upgrade, old.agent, fresh, is_same_world)
    for name, before in old.parts.items():
        if name in STATE_PARTS:
            state.parts.setdefault(name, KeptPart())
        if (part := state.parts.get(name)) is not None:
            upgrades = League() if name == LEAGUE else part
            part.load_state_dict(upgrades.evolve(copied_state(full_state(before)), change))
    return state, report._replace(moments_dropped=change.dropped, opponents=change.opponents)


class NetworkChange(SpaceChange):
    """Change of the spaces of a run, as an upgrade of its network.

    Args:
        rules: renames, and the probability of new choices.
        upgrade: upgrade of the network.
        old: the network of the save.
        fresh: the new network, with the upgraded tensors.
        is_same_world: see below.

    Attributes:
        is_same_world: True if nothing but orders or settings change.
        dropped: names of the parameters that lost their moments.
        opponents: what became of other networks, by name.
    """

    def __init__(
        self, rules: Rules, upgrade: Upgrade, old: Network, fresh: Network, is_same_world: bool
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
        """Return the new name of an argument of the environment."""
        return self._rules.new("parameter", name)

    def moments(self, state: StateDict) -> dict[str, Any]:
        """Return the entries PARAMETER/what, rearranged like the parameters; plain data as is."""
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
        """Return the entries that belong to no parameter of the old agent."""
        return {n: x for n, x in state.items() if n.rpartition("/")[0] not in self._before}

    def copy_of_agent(self, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Return the tensors of a copy of the old agent, upgraded by the agent's rules."""
        old = copy.deepcopy(self._old)
        old.load_state_dict(tensors)
        return upgrade_tensors(old, self._fresh, self._rules, PARTS).tensors

    def network(self, name: str, saved: SavedNetwork) -> SavedNetwork | None:
        """Return another network, upgraded by the rules of the agent; None if it cannot be."""
        member = Member(name, NAMED, SNAPSHOT, "network", **saved._asdict())
        spaces = Spaces(self._fresh.obs_space, self._fresh.action_space)
        try:
            run = run_of_member(member, Path(name))
            config = renamed_config(run.config, self._rules, run.obs_space, spaces)
            fresh = make_policy(config, spaces.obs_space, dict(spaces.action_space))
            before, now = (run.config, run.agent), (config, fresh)
            _, report = upgrade_network(before, now, self._rules, PARTS)
        except (CheckpointError, ConfigError) as error:
            self.opponents[name] = f"left out, it cannot be upgraded: {error}"
            return None
        self.opponents[name] = "; ".join([report.fates, *report.function_changes])
        return saved_network(fresh, spaces)


def upgrade_network(
    before: tuple[TrainConfig, Any],
    now: tuple[TrainConfig, Any],
    rules: Rules,
    parts: Collection[str],
) -> tuple[Upgrade, Report]:
    """Load the weights of a saved network, upgraded to other spaces, into a new network.

    Args:
        before: configuration and network of the save.
        now: configuration and network of the new run; the network is modified in place.
        rules: renames, and the probability of new choices.
        parts: the `PARTS` to take over.

    Raises:
        CheckpointError: the networks have different architectures, or one is no `RogueNet`.
        ConfigError: two names become one.
    """
    (old_config, old), (config, fresh) = before, now
    for network in (old, fresh):
        if not isinstance(network, Network):
            raise CheckpointError(
                f"expected a RogueNet to upgrade, got {type(network).__name__}, whose tensors "
                "cannot be matched by the names of the world"
            )
    renamed = rules.spaces(Spaces(old.obs_space, old.action_space))
    diff = diff_spaces(renamed, Spaces(fresh.obs_space, fresh.action_space))
    check_same_network(old_config, config, parts)
    upgrade = upgrade_tensors(old, fresh, rules, parts)
    changes = function_changes(old, fresh, rules)
    if left_out := [part for part in PARTS if part not in parts]:
        changes.append(f"{', '.join(left_out)}: not taken over, starts fresh")
    fresh.load_state_dict(upgrade.tensors)
    return upgrade, Report(diff, upgrade.moved, changes)


def upgrade_checkpoint(
    path: str | Path, run_dir: str | Path, agent: PPOAgent | None = None
) -> Checkpoint:
    """Write a checkpoint in today's format; the old one stays as it is.

    The upgraded run has the whole state of the old one, so that it can be resumed, but new logs and
    new tracker runs, so that the old ones stay unchanged.

    Args:
        path: a checkpoint, or the folder of a run, whose newest valid checkpoint is taken.
        run_dir: the folder of the new run, created if missing.
        agent: the user's own network, if the checkpoint has one.

    Returns:
        The save.

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
    """Save that a run takes its initial weights from.

    Attributes:
        path: a checkpoint, or the folder of a run, of which the newest valid one is taken.
        parts: which of `PARTS` to take: the policy, the value function, the input statistics.
        renames: new names of the world, in the form of `read_renames`.
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
    """Return the state of a run at step 0, with the weights of another.

    Args:
        source: where they are, and which to take.
        config: of the run that begins.
        context: of `initial_state`: the spaces, and a network of the user's own if there is one.
        initial_state: makes the state of a run that begins.
        say: prints a line on what was taken.

    Raises:
        CheckpointError: there is no valid checkpoint, or it does not fit.
        ConfigError: the parts cannot be taken, or a rename is of nothing or to nothing.
    """
    own = context.get("agent")
    if own is not None:
        if set(source.parts) != {*PARTS} or source.renames:
            raise ConfigError(
                "--init-parts, --rename: expected neither with a network of your own, as only the "
                "tensors of a RogueNet are matched by name"
            )
        # Tensors of such a network have no names of the world, which has to be the same.
        found = find(source.path)
        plain = read_state(found)
        before = Spaces(plain["obs_space"], plain["action_space"])
        diff = diff_spaces(before, Spaces(context["obs_space"], context["action_space"]))
        if different := [*diff.changed, *diff.reordered, *diff.reordered_labels]:
            raise CheckpointError(
                f"--init-from: {found.path} is of another world: {'; '.join(different)}; a network "
                "of your own needs the same names in the same order"
            )
        load_weights(str(found.path), own, read_tensors(found, WEIGHTS))
        say(f"all weights are those of {source.path}")
        state = initial_state(config, context)
        _take_reward_scale(found, state, say)
        return state

    # Tensors of a RogueNet are matched by the names of the world.
    saved = read_saved_run(source.path)
    alone, takes_values = saved.config.vf_net is None, "value" in source.parts
    if alone and takes_values and "policy" not in source.parts:
        raise ConfigError(
            "--init-parts: expected policy beside value, as the value function of the save reads "
            "the policy's layers"
        )
    rules = Rules(read_renames(source.renames, saved.spaces))
    state = initial_state(config, context)
    rules.check_known(state.spaces)
    _, report = upgrade_network(
        (saved.config, saved.agent), (config, state.agent), rules, source.parts
    )
    say(f"weights of {saved.path}, step {saved.step}:\n{report.summary()}")
    if takes_values:
        _take_reward_scale(find(saved.path), state, say)
    return state


def _take_reward_scale(source: Checkpoint, state: State, say: Callable[[str], None]) -> None:
    """Continue with the scale of the rewards that the values of a save are for.

    Args:
        source: the save.
        state: of the run that begins; its reward scaling changes.
        say: prints a line if rewards are scaled in one of the two alone.

    Raises:
        CheckpointError: the statistics of the save are damaged.
    """
    scaling, saved = state.reward_scaling, read_reward_scaling(source)
    if (scaling is not None) != bool(saved):
        now, then = ("unscaled", "scaled") if scaling is None else ("scaled", "unscaled")
        say(
            f"ppo.reward_scaling: values were learnt for {then} rewards and go on with {now} ones; "
            f"ppo.reward_scaling={str(bool(saved)).lower()} keeps their unit"
        )
    elif scaling is not None:
        with loading(f"{source.path}: {LOSS_STATE}", "algorithm"):
            scaling.load_state_dict(saved)
