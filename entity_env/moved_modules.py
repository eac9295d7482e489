"""Import modules that have moved under the paths that they had before, with a warning.

`MOVED` is the one table of all three packages. A folder needs a row of its own.
"""

import sys
import warnings
from collections.abc import Sequence
from importlib import import_module
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType

MOVED: dict[str, str] = {
    "enn_trainer.acting": "enn_trainer.experience.inference",
    "enn_trainer.algorithm": "enn_trainer.algorithms.algorithm",
    "enn_trainer.capture": "enn_trainer.experience.recording",
    "enn_trainer.checkpoint_config": "enn_trainer.config.train_config",
    "enn_trainer.checkpoints.checkpoint": "enn_trainer.checkpoints.format",
    "enn_trainer.checkpoints.contents": "enn_trainer.checkpoints.saved_run",
    "enn_trainer.checkpoints.evolve": "enn_trainer.checkpoints.migrate.evolve",
    "enn_trainer.checkpoints.evolve_config": "enn_trainer.checkpoints.migrate.config_diff",
    "enn_trainer.checkpoints.evolve_report": "enn_trainer.checkpoints.migrate.evolve_report",
    "enn_trainer.checkpoints.evolve_rules": "enn_trainer.checkpoints.migrate.evolve_rules",
    "enn_trainer.checkpoints.evolve_tensors": "enn_trainer.checkpoints.migrate.evolve_tensors",
    "enn_trainer.checkpoints.existing_run": "enn_trainer.checkpoints.run_dir",
    "enn_trainer.checkpoints.file_lock": "enn_trainer.checkpoints.run_lock",
    "enn_trainer.checkpoints.find_save": "enn_trainer.checkpoints.lookup",
    "enn_trainer.checkpoints.fitting_network": "enn_trainer.checkpoints.weights",
    "enn_trainer.checkpoints.folder_lock": "enn_trainer.checkpoints.run_lock",
    "enn_trainer.checkpoints.keep": "enn_trainer.checkpoints.retention",
    "enn_trainer.checkpoints.look_again": "enn_trainer.checkpoints.format",
    "enn_trainer.checkpoints.made_by": "enn_trainer.checkpoints.manifest",
    "enn_trainer.checkpoints.migrate.evolve_config": "enn_trainer.checkpoints.migrate.config_diff",
    "enn_trainer.checkpoints.migrate.resume_changes": "enn_trainer.checkpoints.migrate.config_diff",
    "enn_trainer.checkpoints.migrate.tensor_axes": "enn_trainer.checkpoints.migrate.evolve_tensors",
    "enn_trainer.checkpoints.pins": "enn_trainer.checkpoints.run_dir",
    "enn_trainer.checkpoints.plain_file": "enn_trainer.checkpoints.disk",
    "enn_trainer.checkpoints.published_checkpoint": "enn_trainer.checkpoints.legacy_0_1_16",
    "enn_trainer.checkpoints.published_tensors": "enn_trainer.checkpoints.legacy_0_1_16",
    "enn_trainer.checkpoints.resume_changes": "enn_trainer.checkpoints.migrate.config_diff",
    "enn_trainer.checkpoints.run_claim": "enn_trainer.checkpoints.run_lock",
    "enn_trainer.checkpoints.run_entries": "enn_trainer.checkpoints.run_dir",
    "enn_trainer.checkpoints.run_saver": "enn_trainer.checkpoints.writer",
    "enn_trainer.checkpoints.save_writer": "enn_trainer.checkpoints.writer",
    "enn_trainer.checkpoints.space_diff": "enn_trainer.checkpoints.migrate.space_diff",
    "enn_trainer.checkpoints.tensor_axes": "enn_trainer.checkpoints.migrate.evolve_tensors",
    "enn_trainer.checkpoints.upgrade_checkpoint": "enn_trainer.checkpoints.migrate.upgrade",
    "enn_trainer.checkpoints.weights_file": "enn_trainer.checkpoints.weights",
    "enn_trainer.clone_config": "enn_trainer.config.train_config",
    "enn_trainer.cloning": "enn_trainer.algorithms.cloning",
    "enn_trainer.cloning.bc_term": "enn_trainer.algorithms.cloning.cloning_loss",
    "enn_trainer.cloning.clone": "enn_trainer.algorithms.cloning.clone",
    "enn_trainer.cloning.clone_epochs": "enn_trainer.algorithms.cloning.clone",
    "enn_trainer.cloning.clone_score": "enn_trainer.algorithms.cloning.imitation",
    "enn_trainer.cloning.demonstrations": "enn_trainer.experience.demonstrations",
    "enn_trainer.cloning.imitation": "enn_trainer.algorithms.cloning.imitation",
    "enn_trainer.commands": "enn_trainer.cli",
    "enn_trainer.commands.check_command": "enn_trainer.cli.check_command",
    "enn_trainer.commands.checkpoints_command": "enn_trainer.cli.checkpoints_command",
    "enn_trainer.commands.clone_command": "enn_trainer.cli.clone_command",
    "enn_trainer.commands.config_command": "enn_trainer.cli.config_command",
    "enn_trainer.commands.curves": "enn_trainer.cli.plot_command",
    "enn_trainer.commands.diff_saves": "enn_trainer.cli.show_save",
    "enn_trainer.commands.eval_command": "enn_trainer.cli.eval_command",
    "enn_trainer.commands.eval_report": "enn_trainer.cli.eval_command",
    "enn_trainer.commands.evolve_command": "enn_trainer.cli.checkpoints_command",
    "enn_trainer.commands.load_world": "enn_trainer.cli.load_world",
    "enn_trainer.commands.next_steps": "enn_trainer.cli.trust",
    "enn_trainer.commands.play_command": "enn_trainer.cli.play_command",
    "enn_trainer.commands.plot_command": "enn_trainer.cli.plot_command",
    "enn_trainer.commands.profile_advice": "enn_trainer.cli.profile_command",
    "enn_trainer.commands.profile_command": "enn_trainer.cli.profile_command",
    "enn_trainer.commands.profile_run": "enn_trainer.cli.profile_command",
    "enn_trainer.commands.show_save": "enn_trainer.cli.show_save",
    "enn_trainer.commands.trust": "enn_trainer.cli.trust",
    "enn_trainer.config.imitation_config": "enn_trainer.config.train_config",
    "enn_trainer.config.schema_diff": "enn_trainer.config.schema",
    "enn_trainer.config.sources": "enn_trainer.config.load",
    "enn_trainer.config_checks": "enn_trainer.config.validation",
    "enn_trainer.cuda_settings": "enn_trainer.runtime.process",
    "enn_trainer.dry_run": "enn_trainer.command",
    "enn_trainer.envs": "enn_trainer.experience.envs",
    "enn_trainer.eval_config": "enn_trainer.config.eval_config",
    "enn_trainer.evaluation.eval_envs": "enn_trainer.evaluation.evaluator",
    "enn_trainer.evaluation.eval_film": "enn_trainer.evaluation.video",
    "enn_trainer.evaluation.evaluate": "enn_trainer.evaluation.evaluator",
    "enn_trainer.evaluation.play_episodes": "enn_trainer.experience.collector",
    "enn_trainer.evaluation.student_t": "enn_trainer.evaluation.eval_metrics",
    "enn_trainer.frame_memory": "enn_trainer.experience.frame_memory",
    "enn_trainer.garbage": "enn_trainer.runtime.process",
    "enn_trainer.imitation_config": "enn_trainer.config.train_config",
    "enn_trainer.loop": "enn_trainer.trainer",
    "enn_trainer.malloc": "enn_trainer.runtime.process",
    "enn_trainer.optimizer_config": "enn_trainer.config.ppo_config",
    "enn_trainer.ppo": "enn_trainer.algorithms.ppo",
    "enn_trainer.ppo.advantages": "enn_trainer.algorithms.ppo.returns",
    "enn_trainer.ppo.annealing": "enn_trainer.algorithms.optimizers",
    "enn_trainer.ppo.entropy_targets": "enn_trainer.algorithms.ppo.entropy_targets",
    "enn_trainer.ppo.gradients": "enn_trainer.algorithms.minibatches",
    "enn_trainer.ppo.loss_state": "enn_trainer.algorithms.ppo.ppo",
    "enn_trainer.ppo.loss_stats": "enn_trainer.algorithms.ppo.losses",
    "enn_trainer.ppo.losses": "enn_trainer.algorithms.ppo.losses",
    "enn_trainer.ppo.minibatch_loss": "enn_trainer.algorithms.ppo.losses",
    "enn_trainer.ppo.minibatches": "enn_trainer.algorithms.minibatches",
    "enn_trainer.ppo.not_finite": "enn_trainer.algorithms.optimizers",
    "enn_trainer.ppo.optimize": "enn_trainer.algorithms.ppo.ppo",
    "enn_trainer.ppo.optimizers": "enn_trainer.algorithms.optimizers",
    "enn_trainer.ppo.ppo": "enn_trainer.algorithms.ppo.ppo",
    "enn_trainer.ppo.returns": "enn_trainer.algorithms.ppo.returns",
    "enn_trainer.ppo.reward_scaling": "enn_trainer.algorithms.ppo.reward_scaling",
    "enn_trainer.ppo.rollout": "enn_trainer.experience.collector",
    "enn_trainer.ppo.snapshot": "enn_trainer.snapshot",
    "enn_trainer.ppo.storage": "enn_trainer.experience.storage",
    "enn_trainer.ppo.sums": "enn_trainer.algorithms.ppo.losses",
    "enn_trainer.ppo.torch_optimizers": "enn_trainer.algorithms.torch_optimizers",
    "enn_trainer.ppo.work": "enn_trainer.runtime.execution",
    "enn_trainer.ppo_config": "enn_trainer.config.ppo_config",
    "enn_trainer.run": "enn_trainer.session",
    "enn_trainer.schedules": "enn_trainer.config.schedules",
    "enn_trainer.settings": "enn_trainer.config",
    "enn_trainer.settings.config_build": "enn_trainer.config.build",
    "enn_trainer.settings.config_files": "enn_trainer.config.formats",
    "enn_trainer.settings.config_help": "enn_trainer.config.help",
    "enn_trainer.settings.config_io": "enn_trainer.config.load",
    "enn_trainer.settings.config_schema": "enn_trainer.config.schema",
    "enn_trainer.settings.config_sources": "enn_trainer.config.load",
    "enn_trainer.settings.config_upgrade": "enn_trainer.config.load",
    "enn_trainer.settings.hyperstate_schedules": "enn_trainer.config.schedules",
    "enn_trainer.settings.ron": "enn_trainer.config.ron",
    "enn_trainer.settings.schema_changes": "enn_trainer.config.schema",
    "enn_trainer.settings.upgrade_files": "enn_trainer.config.upgrade_files",
    "enn_trainer.settings.yaml_text": "enn_trainer.config.yaml_format",
    "enn_trainer.tracking.action_statistics": "enn_trainer.tracking.metrics",
    "enn_trainer.tracking.open_track": "enn_trainer.tracking.track",
    "enn_trainer.tracking.panel": "enn_trainer.tracking.progress",
    "enn_trainer.tracking.span_times": "enn_trainer.tracking.spans",
    "enn_trainer.tracking.system_numbers": "enn_trainer.tracking.metrics",
    "enn_trainer.tracking.track_mlflow": "enn_trainer.tracking.track_services",
    "enn_trainer.tracking.track_tensorboard": "enn_trainer.tracking.track_services",
    "enn_trainer.tracking.track_wandb": "enn_trainer.tracking.track_services",
    "entity_env.adapters.action_components": "entity_env.adapters.action_translators",
    "entity_env.adapters.action_parts": "entity_env.adapters.action_translators",
    "entity_env.adapters.bind": "entity_env.adapters.gymnasium_api",
    "entity_env.adapters.choose": "entity_env.adapters.action_translators",
    "entity_env.adapters.declared": "entity_env.adapters.known_envs",
    "entity_env.adapters.field_inference": "entity_env.adapters.observation_reader",
    "entity_env.adapters.gymnasium_agents": "entity_env.adapters.from_pettingzoo",
    "entity_env.adapters.infer": "entity_env.adapters.observation_reader",
    "entity_env.adapters.observation_fields": "entity_env.adapters.observation_reader",
    "entity_env.adapters.observe": "entity_env.adapters.observation_reader",
    "entity_env.adapters.padded": "entity_env.adapters.to_gymnasium",
    "entity_env.adapters.port": "entity_env.adapters.agent_translator",
    "entity_env.adapters.sides": "entity_env.adapters.side_translators",
    "entity_env.adapters.space_numbers": "entity_env.adapters.gymnasium_spaces",
    "entity_env.adapters.tables": "entity_env.adapters.observation_reader",
    "entity_env.adapters.teams": "entity_env.adapters.side_translators",
    "entity_env.adapters.tuple_to_parallel": "entity_env.adapters.from_pettingzoo",
    "entity_env.any_vec_env": "entity_env.adapters.any_vec_env",
    "entity_env.batch": "entity_env.vec.batching",
    "entity_env.bounds": "entity_env.serialization.bounds",
    "entity_env.channel": "entity_env.vec.transport",
    "entity_env.check_spaces": "entity_env.vec.validate",
    "entity_env.check_states": "entity_env.vec.episode_state",
    "entity_env.checks": "entity_env",
    "entity_env.checks.check_spaces": "entity_env.vec.validate",
    "entity_env.checks.random_play": "entity_env.random_play",
    "entity_env.checks.report": "entity_env.random_play",
    "entity_env.entity_gym_samples": "entity_env.recording.entity_gym_samples",
    "entity_env.env_list": "entity_env.vec.serial",
    "entity_env.env_states": "entity_env.vec.episode_state",
    "entity_env.features": "entity_env.vec.batching",
    "entity_env.flat_obs": "entity_env.vec.transport",
    "entity_env.forked_children": "entity_env.process",
    "entity_env.frame_in_words": "entity_env.play.game",
    "entity_env.frames": "entity_env.vec.frames",
    "entity_env.masks": "entity_env.spaces",
    "entity_env.messages": "entity_env.serialization.messages",
    "entity_env.metrics": "entity_env.vec.metrics",
    "entity_env.obs_space": "entity_env.observation",
    "entity_env.parallel_env_list": "entity_env.vec.parallel",
    "entity_env.plain_open": "entity_env.serialization.plain_open",
    "entity_env.play.menu": "entity_env.play.game",
    "entity_env.play_by_hand": "entity_env.play.game",
    "entity_env.read_recording": "entity_env.recording.read_recording",
    "entity_env.rebuild": "entity_env.serialization.messages",
    "entity_env.record": "entity_env.recording.record",
    "entity_env.recorded_steps": "entity_env.recording.recording_format",
    "entity_env.recording.recorded_steps": "entity_env.recording.recording_format",
    "entity_env.recording_format": "entity_env.recording.recording_format",
    "entity_env.report": "entity_env.random_play",
    "entity_env.serialization.rebuild": "entity_env.serialization.messages",
    "entity_env.shared_memory": "entity_env.vec.transport",
    "entity_env.standard_streams": "entity_env.process",
    "entity_env.typed_choices": "entity_env.play.game",
    "entity_env.unbatch": "entity_env.vec.batching",
    "entity_env.validate": "entity_env.vec.validate",
    "entity_env.vec.batch": "entity_env.vec.batching",
    "entity_env.vec.check_states": "entity_env.vec.episode_state",
    "entity_env.vec.env_list": "entity_env.vec.serial",
    "entity_env.vec.env_states": "entity_env.vec.episode_state",
    "entity_env.vec.features": "entity_env.vec.batching",
    "entity_env.vec.parallel_env_list": "entity_env.vec.parallel",
    "entity_env.vec.unbatch": "entity_env.vec.batching",
    "entity_env.vec.world_errors": "entity_env.errors",
    "entity_env.vec.world_times": "entity_env.process",
    "entity_env.vec_env": "entity_env.vec.vec_env",
    "entity_env.vec_obs": "entity_env.vec.vec_obs",
    "entity_env.worker": "entity_env.vec.worker",
    "entity_env.worker_process": "entity_env.vec.worker",
    "entity_env.workers": "entity_env.vec",
    "entity_env.workers.channel": "entity_env.vec.transport",
    "entity_env.workers.flat_obs": "entity_env.vec.transport",
    "entity_env.workers.forked_children": "entity_env.process",
    "entity_env.workers.shared_memory": "entity_env.vec.transport",
    "entity_env.workers.worker": "entity_env.vec.worker",
    "entity_env.workers.worker_process": "entity_env.vec.worker",
    "entity_env.world_errors": "entity_env.errors",
    "entity_env.world_times": "entity_env.process",
    "rogue_net.dropout": "rogue_net.attention",
    "rogue_net.narrow": "rogue_net.ragged",
    "rogue_net.native.packed": "rogue_net.native.functions",
    "rogue_net.native.threads": "rogue_net.native.network",
    "rogue_net.pair_rows": "rogue_net.relpos.attention",
    "rogue_net.pair_vectors": "rogue_net.relpos.attention",
    "rogue_net.pooling": "rogue_net.transformer",
    "rogue_net.relpos_attention": "rogue_net.relpos.attention",
    "rogue_net.relpos_cells": "rogue_net.relpos.cells",
    "rogue_net.relpos_encoding": "rogue_net.relpos.encoding",
    "rogue_net.value_net": "rogue_net.rogue_net",
}
"""The path of each moved module, by the path that it had."""
_IN_MOVED_FOLDERS = {
    f"{MOVED[folder]}.{name}": new
    for old, new in MOVED.items()
    for folder, _, name in [old.rpartition(".")]
    if folder in MOVED and f"{MOVED[folder]}.{name}" not in MOVED.values()
}
"""For `from OLD.FOLDER import old_module`, which asks the folder at its new path."""


class _MovedModuleFinder(MetaPathFinder):
    """Finder of the modules of `MOVED`, before a folder that was renamed is searched."""

    def find_spec(
        self,
        fullname: str,
        path: Sequence[str] | None = None,
        target: ModuleType | None = None,
    ) -> ModuleSpec | None:
        """Return the spec of a moved module, None for any other."""
        new = MOVED.get(fullname) or _IN_MOVED_FOLDERS.get(fullname)
        return None if new is None else ModuleSpec(fullname, _MovedModuleLoader(fullname, new))


class _MovedModuleLoader(Loader):
    def __init__(self, old: str, new: str) -> None:
        self._old, self._new = old, new

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        """Return the module at its new path: one module, whichever path imports it."""
        warnings.warn(f"{self._old} is now {self._new}", DeprecationWarning, stacklevel=2)
        module = import_module(self._new)
        self._spec = module.__spec__
        return module

    def exec_module(self, module: ModuleType) -> None:
        """Restore the spec that the import system replaced: the module ran at its new path."""
        module.__spec__ = self._spec


def install() -> None:
    """Let `import` find moved modules; a second call changes nothing."""
    if not any(isinstance(finder, _MovedModuleFinder) for finder in sys.meta_path):
        sys.meta_path.insert(0, _MovedModuleFinder())
