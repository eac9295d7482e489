"""Films of evaluations."""

import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image, ImageSequence

from enn_trainer import ConfigError
from enn_trainer.evaluation.video import RecordVideo, path_of_suite, require_writer, tile_images
from entity_env import Entity, Environment, EnvList, Observation, ObsSpace
from entity_env.examples import Duel
from entity_env.match import Match
from tests.enn_trainer.evaluation.builders import EPISODES, run_duel
from tests.entity_env.builders import play

imageio_ffmpeg = pytest.importorskip("imageio_ffmpeg", reason="the extra video")


class Numbered(Environment):
    """Its pictures are all of one grey: how many steps the episode has; it ends after some."""

    ends_after = 3

    def obs_space(self) -> ObsSpace:
        return ObsSpace(entities={"Thing": Entity(["x"])})

    def action_space(self) -> dict[str, Any]:
        return {}

    def reset(self) -> Observation:
        self.t = 0
        return self.observe()

    def act(self, actions: Any) -> Observation:
        self.t += 1
        return self.observe()

    def observe(self) -> Observation:
        return Observation(entities={"Thing": [[0.0]]}, done=self.t == self.ends_after)

    def render(self, **kwargs: Any) -> Any:
        assert kwargs == {"mode": "rgb_array"}
        return np.full((16, 16, 3), 20 * self.t, dtype=np.uint8)


class Longer(Numbered):
    ends_after = 5


def test_video_has_each_frame_once(tmp_path: Path) -> None:
    lists: list[Any] = [Numbered, Longer]
    envs = EnvList(lambda: lists.pop(0)(), 2)
    filmed = RecordVideo(envs, tmp_path / "film.gif")
    play(filmed, 12)
    filmed.__exit__(None)
    with Image.open(tmp_path / "film.gif") as film:
        pictures = [np.array(p.convert("RGB")) for p in ImageSequence.Iterator(film)]
    assert {p.shape[:2] for p in pictures} == {(16, 32)}
    assert [p[8, 8, 0] // 20 for p in pictures] == [0, 1, 2, 3, 3, 3]
    assert [p[8, 24, 0] // 20 for p in pictures] == [0, 1, 2, 3, 4, 5]


def test_mp4_has_one_image_per_frame(tmp_path: Path) -> None:
    filmed = RecordVideo(EnvList(Numbered, 1), tmp_path / "film.mp4")
    play(filmed, 12)
    assert not (tmp_path / "film.mp4").exists()  # before it is complete
    filmed.__exit__(None)
    ffmpeg = [imageio_ffmpeg.get_ffmpeg_exe(), "-v", "error", "-i", str(tmp_path / "film.mp4")]
    raw = subprocess.run(
        [*ffmpeg, "-f", "rawvideo", "-pix_fmt", "rgb24", "-"], check=True, capture_output=True
    )
    pictures = np.frombuffer(raw.stdout, dtype=np.uint8).reshape(-1, 16, 16, 3)
    np.testing.assert_allclose(pictures.mean(axis=(1, 2, 3)), [0, 20, 40, 60], atol=6)


def test_tiled_accepts_images_of_different_sizes() -> None:
    white = [np.full((h, w, 3), 255, dtype=np.uint8) for h, w in ((3, 4), (2, 5), (3, 5))]
    sheet = tile_images(white)
    assert sheet.shape == (6, 10, 3)
    assert (sheet > 0).sum() == 3 * (12 + 10 + 15)
    assert tile_images(white[:1]).shape == (4, 4, 3)


@pytest.mark.slow
def test_capture_videos_does_not_change_results(tmp_path: Path) -> None:
    _, without = run_duel(tmp_path / "a", *EPISODES, "total_timesteps=64")
    films = ["eval.capture_videos=true", "eval.suites.greedy.deterministic=true"]
    manager, result = run_duel(tmp_path / "b", *EPISODES, *films, "total_timesteps=64")
    assert {n: v for n, v in result.eval.items() if "greedy" not in n} == without.eval
    folder = tmp_path / "b/runs" / manager.state.run_name / "videos"
    names = [f"step-{step:012d}{suite}.mp4" for step in (0, 64) for suite in ("", "-greedy")]
    assert sorted(p.name for p in folder.iterdir()) == sorted(names)
    assert all(p.stat().st_size > 1000 for p in folder.iterdir())


class Blind(Duel):
    def render(self, **kwargs: Any) -> Any:
        return Match.render(self, **kwargs)


class Telling(Duel):
    def render(self, **kwargs: Any) -> Any:
        return "text"


def test_missing_package_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "imageio_ffmpeg", None)
    expected = r"^--video: expected the package imageio_ffmpeg, .*; pip install .*\[video\]'$"
    with pytest.raises(ConfigError, match=expected):
        require_writer(Path("a.mp4"), "--video")
    with pytest.raises(ConfigError, match=r"--video: expected a file named \.mp4 or \.gif, got a"):
        require_writer(Path("a.avi"), "--video")
    with pytest.raises(ConfigError, match=r"--video: expected a file named \.mp4 or \.gif, got"):
        require_writer(Path(".gif"), "--video")


class Shapeless(Duel):
    def render(self, **kwargs: Any) -> Any:
        return np.zeros((0, 0, 3), dtype=np.uint8)


class Modeless(Duel):
    def render(self) -> Any:  # type: ignore[override]
        return np.zeros((4, 4, 3), dtype=np.uint8)


class Screenless(Duel):
    def render(self, **kwargs: Any) -> Any:
        raise RuntimeError("no\ndisplay")


@pytest.mark.parametrize(
    ("world", "message"),
    [
        (Blind, "expected an environment that renders, Blind does not"),
        (Telling, "uint8 of shape"),
        (Shapeless, "Shapeless.render.* at least 1 each"),
        (Modeless, "Modeless.render.* raised TypeError: .*mode"),
        (Screenless, "Screenless.render.* raised RuntimeError: no display; fix it"),
    ],
)
def test_environment_that_does_not_render_is_rejected_before_the_run(
    world: Any, message: str, tmp_path: Path
) -> None:
    long = ["total_timesteps=100000000", "eval.run_on_first_step=false"]
    with pytest.raises(ConfigError, match=rf"^eval\.capture_videos: .*{message}"):
        run_duel(tmp_path, *EPISODES, *long, "eval.capture_videos=true", env=world)


class Growing(Duel):
    pictures = 0

    def render(self, **kwargs: Any) -> Any:
        self.pictures += 1
        return np.zeros((8 * self.pictures, 8, 3), dtype=np.uint8)


@pytest.mark.slow
def test_changing_image_sizes_drop_only_the_video(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    episodes = [*EPISODES, "total_timesteps=64", "eval.run_on_first_step=false"]
    _, without = run_duel(tmp_path / "a", *episodes)
    capsys.readouterr()
    manager, result = run_duel(tmp_path / "b", *episodes, "eval.capture_videos=true", env=Growing)
    assert result.eval == without.eval
    said = " ".join(capsys.readouterr().out.split())
    assert "no video: eval.capture_videos: expected pictures of Growing of one size" in said
    assert not list(Path(tmp_path / "b/runs", manager.state.run_name, "videos").iterdir())


def test_only_counted_environments_are_recorded(tmp_path: Path) -> None:
    counted = np.array([False, True, False, False, True, False])
    lists: list[Any] = [Numbered, Longer] * 3
    with RecordVideo(EnvList(lambda: lists.pop(0)(), 6), tmp_path / "film.gif", counted) as filmed:
        play(filmed, 12)
    with Image.open(tmp_path / "film.gif") as film:
        pictures = [np.array(p.convert("RGB")) for p in ImageSequence.Iterator(film)]
    assert {p.shape[:2] for p in pictures} == {(16, 32)}  # two of six
    assert [p[8, 8, 0] // 20 for p in pictures] == [0, 1, 2, 3, 4, 5]
    assert [p[8, 24, 0] // 20 for p in pictures] == [0, 1, 2, 3, 3, 3]


def test_failed_video_is_removed_and_upper_case_suffix_is_accepted(tmp_path: Path) -> None:
    interrupted = RecordVideo(EnvList(Numbered, 1), tmp_path / "film.MP4")
    play(interrupted, 2)
    interrupted.__exit__(KeyboardInterrupt)
    assert not list(tmp_path.iterdir())
    with RecordVideo(EnvList(Numbered, 1), tmp_path / "film.MP4") as filmed:
        play(filmed, 12)
    assert filmed.problem is None
    assert (tmp_path / "film.MP4").stat().st_size > 500


def test_video_path_of_a_suite_is_a_valid_file_name() -> None:
    assert path_of_suite(Path("a/f.gif"), "n=0.5") == Path("a/f-n=0.5.gif")
    names = {path_of_suite(Path("f.gif"), "ü" * 300 + end).name for end in "ab"}
    assert len(names) == 2
    assert all(len(name.encode()) < 130 for name in names)
