"""Each module has a file of tests that is found by its name or in one table."""

from fnmatch import fnmatch
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PACKAGES = ("entity_env", "rogue_net", "enn_trainer")
TESTED_IN = {
    "enn_trainer/algorithms/algorithm.py": "toys/test_idle_algorithm.py",
    "enn_trainer/algorithms/cloning/cloning.py": "enn_trainer/run/test_clone.py",
    "enn_trainer/base/errors.py": "enn_trainer/cli/test_every_command.py",
    "enn_trainer/base/policy.py": "enn_trainer/evaluation/test_suite_envs.py",
    "enn_trainer/base/state_part.py": "toys/test_state_part.py",
    "enn_trainer/callbacks/callback.py": "enn_trainer/callbacks/test_callback_list.py",
    "enn_trainer/callbacks/run_metrics.py": "enn_trainer/tracking/test_metrics.py",
    "enn_trainer/checkpoints/disk.py": "enn_trainer/checkpoints/test_writer.py",
    "enn_trainer/checkpoints/run_captures.py": "enn_trainer/experience/test_recording.py",
    "enn_trainer/checkpoints/saved_run.py": "enn_trainer/selfplay/test_league_in_saves.py",
    "enn_trainer/checkpoints/saved_state.py": "enn_trainer/checkpoints/test_damaged_saves.py",
    "enn_trainer/checkpoints/state.py": "enn_trainer/test_resumed_runs.py",
    "enn_trainer/checkpoints/state_files.py": "enn_trainer/checkpoints/test_damaged_saves.py",
    "enn_trainer/checkpoints/state_manager.py": "enn_trainer/test_run_control.py",
    "enn_trainer/cli/arguments.py": "enn_trainer/cli/test_every_command.py",
    "enn_trainer/cli/by_value.py": "enn_trainer/evaluation/test_varied_evals.py",
    "enn_trainer/cli/clone_command.py": "enn_trainer/run/test_clone.py",
    "enn_trainer/cli/known_worlds.py": "enn_trainer/cli/test_envs_command.py",
    "enn_trainer/cli/league_command.py": "enn_trainer/run/test_tournament.py",
    "enn_trainer/cli/load_world.py": "enn_trainer/test_env_id.py",
    "enn_trainer/cli/playing_options.py": "enn_trainer/cli/test_eval_command.py",
    "enn_trainer/cli/resume_command.py": "enn_trainer/test_run_control.py",
    "enn_trainer/cli/work/evaluate.py": "enn_trainer/cli/test_eval_command.py",
    "enn_trainer/cli/work/export.py": "enn_trainer/cli/test_export_command.py",
    "enn_trainer/cli/work/profile.py": "enn_trainer/cli/test_profile_command.py",
    "enn_trainer/cli/work/serve.py": "enn_trainer/cli/test_serve_command.py",
    "enn_trainer/cli/work/side_agents.py": "enn_trainer/experience/test_memories.py",
    "enn_trainer/cli/work/tensor_tables.py": "enn_trainer/cli/test_show_save.py",
    "enn_trainer/cli/work/train.py": "enn_trainer/cli/test_train_command.py",
    "enn_trainer/cli/work/upgrades.py": "enn_trainer/cli/test_checkpoints_command.py",
    "enn_trainer/cli/work/watch.py": "enn_trainer/cli/test_watch_command.py",
    "enn_trainer/cli/starters/*.py": "enn_trainer/cli/test_init_command.py",
    "enn_trainer/cli/guesses/*.py": "enn_trainer/cli/guesses/test_correction.py",
    "enn_trainer/config/build.py": "enn_trainer/config/test_load.py",
    "enn_trainer/config/help.py": "enn_trainer/config/test_field_types.py",
    "enn_trainer/config/other_libraries.py": "enn_trainer/cli/guesses/test_correction.py",
    "enn_trainer/config/rewrite_rules.py": "enn_trainer/config/test_load.py",
    "enn_trainer/config/schema.py": "enn_trainer/config/test_released_schemas.py",
    "enn_trainer/config/upgrade_files.py": "enn_trainer/cli/test_config_command.py",
    "enn_trainer/config/versioned.py": "enn_trainer/config/test_load.py",
    "enn_trainer/config/yaml_format.py": "enn_trainer/config/test_formats.py",
    "enn_trainer/config/*_config.py": "enn_trainer/config/test_train_config.py",
    "enn_trainer/evaluation/load_agent.py": "enn_trainer/evaluation/test_evaluation.py",
    "enn_trainer/evaluation/members.py": "enn_trainer/selfplay/test_league_in_saves.py",
    "enn_trainer/experience/demonstrations.py": "enn_trainer/run/test_clone.py",
    "enn_trainer/experience/env_states.py": "enn_trainer/test_resumed_runs.py",
    "enn_trainer/experience/episodes.py": "enn_trainer/curriculum/test_rounds.py",
    "enn_trainer/experience/person.py": "enn_trainer/viewer/test_live.py",
    "enn_trainer/experience/recall.py": "enn_trainer/experience/test_memories.py",
    "enn_trainer/experience/run_memories.py": "enn_trainer/experience/test_memories.py",
    "enn_trainer/run/checkpointing.py": "enn_trainer/test_resumed_runs.py",
    "enn_trainer/run/joining.py": "enn_trainer/run/test_ranks.py",
    "enn_trainer/run/open_run.py": "enn_trainer/test_run_control.py",
    "enn_trainer/run/running_episodes.py": "enn_trainer/test_resumed_runs.py",
    "enn_trainer/run/session.py": "enn_trainer/run/test_trainer.py",
    "enn_trainer/run/stopping.py": "enn_trainer/run/test_trainer.py",
    "enn_trainer/runtime/trust.py": "enn_trainer/cli/test_trust.py",
    "enn_trainer/runtime/versions.py": "enn_trainer/cli/test_doctor_command.py",
    "enn_trainer/selfplay/league_players.py": "enn_trainer/experience/test_seated_players.py",
    "enn_trainer/selfplay/play_games.py": "enn_trainer/selfplay/test_mirrored_deals.py",
    "enn_trainer/selfplay/seating.py": "enn_trainer/selfplay/test_league_in_saves.py",
    "enn_trainer/checkpoints/model_file.py": "enn_trainer/cli/test_export_command.py",
    "enn_trainer/export/check.py": "enn_trainer/export/test_onnx_file.py",
    "enn_trainer/export/export.py": "enn_trainer/cli/test_export_command.py",
    "enn_trainer/export/frames.py": "enn_trainer/export/test_onnx_file.py",
    "rogue_net/dense_arrays.py": "rogue_net/test_dense.py",
    "rogue_net/actions/dense_action.py": "rogue_net/test_dense.py",
    "enn_trainer/testing.py": "enn_trainer/selfplay/test_league_in_saves.py",
    "enn_trainer/viewer/replay.py": "enn_trainer/viewer/test_replay_format.py",
    "enn_trainer/viewer/replay_chunks.py": "enn_trainer/viewer/test_replay_format.py",
    "enn_trainer/viewer/what_if.py": "enn_trainer/viewer/test_live.py",
    "entity_env/actions/action_space.py": "entity_env/vec/test_batching.py",
    "entity_env/adapters/action_translators.py": "entity_env/adapters/test_agent_translator.py",
    "entity_env/adapters/gymnasium_*.py": "entity_env/adapters/test_from_gymnasium.py",
    "entity_env/adapters/known_mappings.py": "entity_env/adapters/test_real_worlds.py",
    "entity_env/adapters/mapping.py": "entity_env/adapters/test_identity_of_rows.py",
    "entity_env/adapters/padded_layout.py": "entity_env/adapters/test_to_gymnasium.py",
    "entity_env/adapters/row_readers.py": "entity_env/adapters/test_observation_reader.py",
    "entity_env/adapters/space_fields.py": "entity_env/adapters/test_observation_reader.py",
    "entity_env/environment.py": "entity_env/test_observation.py",
    "entity_env/examples/*.py": "entity_env/examples/test_examples.py",
    "entity_env/match.py": "entity_env/examples/test_examples.py",
    "entity_env/names.py": "entity_env/vec/test_samplers.py",
    "entity_env/play/bots.py": "entity_env/play/test_play_numbers.py",
    "entity_env/play/menus.py": "entity_env/play/test_game.py",
    "entity_env/arrays.py": "entity_env/adapters/test_number_translator.py",
    "entity_env/recording/entity_gym_samples.py": "entity_env/recording/test_recording_format.py",
    "entity_env/serialization/*.py": "entity_env/serialization/test_messages.py",
    "entity_env/strict_fields.py": "enn_trainer/run/test_start.py",
    "entity_env/testing/random_play.py": "entity_env/testing/test_check_env.py",
    "entity_env/vec/parallel.py": "entity_env/vec/test_vec_env.py",
    "entity_env/vec/row_checks.py": "entity_env/vec/test_batching.py",
    "entity_env/vec/serial.py": "entity_env/vec/test_vec_env.py",
    "entity_env/vec/worker.py": "entity_env/test_world_errors.py",
    "rogue_net/attention.py": "rogue_net/test_transformer.py",
    "rogue_net/config.py": "enn_trainer/config/test_train_config.py",
    "rogue_net/native/compiled.py": "rogue_net/native/test_native.py",
    "rogue_net/native/memory.py": "rogue_net/test_memory.py",
    "rogue_net/native/pairs.py": "rogue_net/native/test_network.py",
    "rogue_net/past.py": "rogue_net/test_memory.py",
    "rogue_net/relpos/cells.py": "rogue_net/relpos/test_encoding.py",
    "rogue_net/relpos/config.py": "enn_trainer/config/test_train_config.py",
}
"""Files of tests below `tests/` of modules without one of their own name, by pattern."""


def modules_without_own_tests() -> list[str]:
    """Return modules without a `tests/FOLDER/test_MODULE.py`."""
    files = (file for package in PACKAGES for file in (ROOT / package).rglob("*.py"))
    return sorted(
        str(file.relative_to(ROOT))
        for file in files
        if not file.stem.startswith("__")
        and not (ROOT / "tests" / file.relative_to(ROOT).with_name(f"test_{file.stem}.py")).exists()
    )


def test_modules_without_tests_of_the_same_name_are_in_the_table() -> None:
    missing = [
        module
        for module in modules_without_own_tests()
        if not any(fnmatch(module, pattern) for pattern in TESTED_IN)
    ]
    assert not missing, f"add tests/FOLDER/test_MODULE.py, or say where these are tested: {missing}"


@pytest.mark.parametrize("pattern", TESTED_IN)
def test_table_entries_exist(pattern: str) -> None:
    assert (ROOT / "tests" / TESTED_IN[pattern]).exists()
    assert any(fnmatch(module, pattern) for module in modules_without_own_tests()), pattern
