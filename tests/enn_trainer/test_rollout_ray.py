"""Training with environments on a Ray cluster."""

from pathlib import Path

import pytest

from enn_trainer.errors import ConfigError
from entity_env.examples import Minefield
from entity_env.examples.minefield_vec import VecMinefield
from tests.enn_trainer.builders import run_small
from tests.enn_trainer.resuming import assert_same
from tests.ray_marks import NEEDS_RAY

pytestmark = NEEDS_RAY
RAY = ("rollout.ray=auto", "rollout.ray_resources={CPU: 0.5}", "rollout.processes=2")


def test_a_run_on_a_cluster_learns_the_bits_of_one_process(tmp_path: Path) -> None:
    elsewhere = run_small(tmp_path / "ray", *RAY, env=Minefield)
    here = run_small(tmp_path / "here", env=Minefield)
    assert_same(elsewhere.state, here.state)


def test_bad_settings_are_errors_that_name_them(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"rollout\.ray: .*VecMinefield, which steps where it is"):
        run_small(tmp_path, *RAY, env=VecMinefield)
    with pytest.raises(ConfigError, match=r"rollout\.ray: expected a cluster with arm 2, for 2"):
        run_small(tmp_path, *RAY[::2], "rollout.ray_resources={arm: 1}", env=Minefield)
