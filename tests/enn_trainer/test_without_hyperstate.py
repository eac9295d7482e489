"""Everything works the same where hyperstate cannot be imported."""

import subprocess
import sys
from pathlib import Path

import pytest

from tests.fork_server import run_program

ROOT = Path(__file__).parents[2]
BLOCKED = """
import sys
sys.modules["hyperstate"] = sys.modules["pyron"] = None
from enn_trainer.config.hyperstate_door import rewrite_rule
assert rewrite_rule is None
"""
READ = """
from pathlib import Path

from enn_trainer import StateManager, TrainConfig
from enn_trainer.config.load import dump_config, hps_info, load_config
from enn_trainer.config.schema import dump_schema, load_schema, report, schema_changes, schema_of

golden = Path("tests/golden")
for path in sorted(golden.glob("configs/*.ron")):
    print(dump_config(load_config(TrainConfig, path)))
for path in sorted(golden.glob("schemas/*.ron")):
    print(report(load_schema(path), TrainConfig, schema_changes(load_schema(path), TrainConfig)))
saves = golden.glob("*checkpoints/*/*/config.ron")
folders = sorted({path.parent for path in saves} | {golden / "checkpoint_enn_trainer_0.1.16"})
assert len(folders) > 6, folders
for folder in folders:
    manager = StateManager(init_path=folder)
    print(folder.name, dump_config(manager.config))
    state = manager.state
    print(state.step, state.obs_space, state.action_space)
    print({name: float(p.detach().double().sum()) for name, p in state.agent.named_parameters()})
print(dump_schema(schema_of(TrainConfig)), hps_info(TrainConfig))
print("END OF READING")
"""
TRAIN = """
from pathlib import Path

from enn_trainer import StateManager, TrainConfig, load_agent, train
from entity_env.examples import Xor

small = "rollout.num_envs=2 rollout.processes=1 rollout.steps=8 optim.bs=8 total_timesteps=32"
arguments = [*small.split(), "optim.lr=step: 0.1@0 lin 0.01@32", f"data_dir={FOLDER}"]
manager = StateManager(checkpoint_dir=Path(FOLDER, "run"), overrides=arguments)
manager.set_deserialize_ctx("mine", 1)
train(manager, Xor)
assert manager.config.optim.lr == 0.01
again = StateManager(init_path=Path(FOLDER, "run"))
assert (again.state.step, again.config.optim.lr) == (32, 0.01)
assert again.config_dict()["version"] == TrainConfig.version()
world = Xor()
world.seed(0)
assert load_agent(Path(FOLDER, "run")).act(world.reset()).actions
"""


def output_of(program: str) -> str:
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", program],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.slow
def test_config_files_of_every_release_load_alike_and_train(
    tmp_path: Path,
) -> None:
    """In one new interpreter, whose imports are the dearest part."""
    program = f"{BLOCKED}FOLDER = {str(tmp_path)!r}\n{READ}{TRAIN}"
    blocked, _, trained = output_of(program).partition("END OF READING\n")
    assert "step 32/32 (100%)" in trained
    pytest.importorskip("hyperstate")
    loaded = "import warnings, hyperstate\nwarnings.simplefilter('error')\n"
    found = run_program(["-c", loaded + READ], text=True, cwd=ROOT, check=True).stdout
    assert found == f"{blocked}END OF READING\n"
