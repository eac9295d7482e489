import math
import random
import time
from io import StringIO

import pytest
from rich.console import Console

from enn_trainer.experience.episodes import Measured
from enn_trainer.tracking.progress import (
    MOST_BARS,
    MOST_MEANS,
    Progress,
    ProgressLine,
    ReturnHistory,
    format_duration,
)

ESCAPE = "\x1b"

METRICS = {
    "episodic_reward.mean": 0.5,
    "episode_length.mean": 32.0,
    "episodic_reward.count": 4.0,
    "losses/entropy": 1.41,
    "losses/approx_kl": 0.0042,
    "losses/explained_variance": 0.71,
    "charts/learning_rate": 2.5e-4,
    "fps": 15231.0,
    "eps": 30462.0,
    "system/rss_mb": 812.4,
}
LINE = ProgressLine(0, METRICS)


def with_return(mean_return: float | None, step: int = 0) -> ProgressLine:
    """Return the numbers of an update with a mean return, None if no episode ended."""
    metrics = {tag: v for tag, v in METRICS.items() if not tag.endswith(".mean")}
    if mean_return is not None:
        metrics |= {"episodic_reward.mean": mean_return, "episode_length.mean": 32.0}
    return ProgressLine(step, metrics)


class Clock:
    """A clock that a test moves."""

    def __init__(self) -> None:
        self.now_s = 100.0

    def __call__(self) -> float:
        return self.now_s


def plain_console() -> Console:
    return Console(file=StringIO(), width=80)


def terminal(width: int = 100) -> Console:
    return Console(file=StringIO(), force_terminal=True, width=width, height=30, color_system=None)


def output(console: Console) -> str:
    assert isinstance(console.file, StringIO)
    return console.file.getvalue()


@pytest.fixture(autouse=True)
def _capable_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    """The display must not depend on the terminal of the tests."""
    for name in ("FORCE_COLOR", "NO_COLOR", "TTY_COMPATIBLE", "TTY_INTERACTIVE", "COLUMNS"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("TERM", "xterm-256color")


def test_plain_line_shows_every_number() -> None:
    console, clock = plain_console(), Clock()
    with Progress(1_000_000, 0, console, clock) as progress:
        clock.now_s += 2
        progress.update(LINE._replace(step=20_480))
    # left: (1000000 - 20480) frames at 10240 frames/s = 95.66 s
    assert output(console) == (
        "step 20480/1000000 (2%)  left 1m36s  return 0.500 of 4 episodes  length 32.0  "
        "entropy 1.41  kl 0.0042  explained 0.71  frames/s 15,231  entities/s 30,462\n"
    )


@pytest.mark.parametrize(
    ("ages", "text"),
    [
        ((640.0, 640.0, 640.0), "return 0.500 of 4 episodes; 32 running, 640 steps  length"),
        ((33.0, 1.0, 1200.0), "return 0.500 of 4 episodes; 32 running, 1 to 1,200 steps  length"),
        ((32.0, 1.0, 1200.0), "return 0.500 of 4 episodes  length"),
    ],
)
def test_running_episodes_longer_than_finished_ones_are_displayed(
    ages: tuple[float, float, float], text: str
) -> None:
    """As the return is that of the short ones alone."""
    running = dict(zip(("mean", "min", "max"), ages, strict=True))
    metrics = {**LINE.metrics, "running_length.count": 32.0}
    metrics |= {f"running_length.{which}": age for which, age in running.items()}
    console = plain_console()
    with Progress(100, 0, console, Clock()) as progress:
        progress.update(LINE._replace(metrics=metrics))
    assert text in output(console)


def test_plain_output_has_no_escape_codes() -> None:
    console, clock = plain_console(), Clock()
    with Progress(1000, 0, console, clock) as progress:
        for step in range(0, 1001, 100):
            clock.now_s += 1
            progress.update(LINE._replace(step=step))
            progress.say("[eval] [red]not markup[/red] :smile:")
    assert ESCAPE not in output(console)
    assert "\r" not in output(console)
    assert "[eval] [red]not markup[/red] :smile:\n" in output(console)


def test_a_dumb_terminal_gets_plain_lines(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "dumb")
    console = Console(file=StringIO(), force_terminal=True, width=100)
    with Progress(1000, 0, console) as progress:
        progress.update(LINE._replace(step=10))
    assert output(console).startswith("step 10/1000 (1%)")
    assert ESCAPE not in output(console)


def test_plain_lines_are_the_first_the_last_and_one_a_second() -> None:
    console, clock = plain_console(), Clock()
    with Progress(25, 0, console, clock) as progress:
        for step in range(1, 26):
            progress.update(LINE._replace(step=step))
            clock.now_s += 0.125
    printed = [int(line.split()[1].split("/")[0]) for line in output(console).splitlines()]
    assert printed == [1, 9, 17, 25]


def test_the_last_line_is_shown_even_when_the_run_fails() -> None:
    console, clock = plain_console(), Clock()

    def crash() -> None:
        with Progress(100, 0, console, clock) as progress:
            progress.update(LINE._replace(step=1))
            progress.update(LINE._replace(step=2))
            raise RuntimeError("crash")

    with pytest.raises(RuntimeError, match="crash"):
        crash()
    assert [line.split()[1] for line in output(console).splitlines()] == ["1/100", "2/100"]


@pytest.mark.parametrize("start_step", [0, 5000])
def test_time_left_is_right_for_a_constant_speed(start_step: int) -> None:
    """What an earlier process did must not count as speed of this one."""
    console, clock = plain_console(), Clock()
    with Progress(start_step + 10_000, start_step, console, clock) as progress:
        for second in range(1, 101):
            clock.now_s += 1
            progress.update(LINE._replace(step=start_step + 100 * second))
    lines = output(console).splitlines()
    assert "left 1m39s" in lines[0]
    assert "left 50s" in lines[49]
    assert "left 0s" in lines[99]
    assert "(100%)" in lines[99]


def test_time_left_follows_a_change_of_speed() -> None:
    console, clock = plain_console(), Clock()
    step = 0
    with Progress(100_000, 0, console, clock) as progress:
        for frames_per_s in [1] * 60 + [100] * 60:
            clock.now_s += 1
            step += frames_per_s
            progress.update(LINE._replace(step=step))
    # 60 * 1 + 60 * 100 = 6060 done; (100000 - 6060) / 100 = 939.4 s
    assert "left 15m39s" in output(console).splitlines()[-1]


def test_time_left_is_unknown_until_a_step_is_taken() -> None:
    console, clock = plain_console(), Clock()
    with Progress(1000, 0, console, clock) as progress:
        progress.update(LINE._replace(step=10))
    assert "left ?" in output(console)


@pytest.mark.parametrize("console", [plain_console(), terminal()], ids=["plain", "panel"])
def test_updates_without_a_finished_episode_are_shown(console: Console) -> None:
    with Progress(1000, 0, console, Clock()) as progress:
        metrics = {**with_return(None).metrics, "losses/explained_variance": math.nan}
        metrics["episodic_reward.count"] = 0.0
        progress.update(ProgressLine(10, metrics))
    assert "nan" in output(console)


def test_return_stays_while_no_episode_ends() -> None:
    console, clock = plain_console(), Clock()
    with Progress(1000, 0, console, clock) as progress:
        for mean_return in [0.25, None, None]:
            clock.now_s += 1
            progress.update(with_return(mean_return))
    assert all("return 0.250" in line for line in output(console).splitlines())


def test_nan_return_is_displayed_and_excluded_from_the_trend() -> None:
    console, clock = plain_console(), Clock()
    with Progress(1000, 0, console, clock) as progress:
        for mean_return in [0.25, math.nan, 0.75]:
            clock.now_s += 1
            progress.update(with_return(mean_return))
    lines = output(console).splitlines()
    assert "return nan" in lines[1]
    assert "return 0.750 (+0.500)" in lines[2]


def test_trend_compares_the_newer_half_of_the_last_updates_with_the_older() -> None:
    console, clock = plain_console(), Clock()
    with Progress(1000, 0, console, clock) as progress:
        for mean_return in [1.0, 2.0, 9.0, 4.0, 6.0]:  # (4 + 6) / 2 - (1 + 2) / 2 = 3.5
            progress.update(with_return(mean_return))
    assert "return 6.000 (+3.500)" in output(console).splitlines()[-1]


@pytest.mark.parametrize("width", [80, 100, 120])
def test_panel_shows_return_and_time_left(width: int) -> None:
    console, clock = terminal(width), Clock()
    with Progress(1000, 0, console, clock) as progress:
        for step in range(100, 401, 100):
            clock.now_s += 20
            progress.update(with_return(step / 1000 - 0.4, step))
    panel = output(console).rpartition("╭")[2]
    for printed in ("40.0%", "elapsed", "1m20s", "left", "2m00s", "step 400 of 1,000"):
        assert printed in panel
    for printed in ("0.000", "↗ +0.200", "best", "▁▃▆█", "16", "32.0", "15,231", "30,462"):
        assert printed in panel
    for printed in ("1.41", "0.0042", "0.71", "2.5e-04"):
        assert printed in panel
    assert "…" not in panel


def test_a_narrow_panel_keeps_the_latest_returns() -> None:
    console, clock = terminal(80), Clock()
    with Progress(1000, 0, console, clock) as progress:
        for i in range(30):
            progress.update(with_return(1e9 + 1e7 * i))
    panel = output(console).rpartition("╭")[2]
    assert "█  │" in panel
    assert "…" not in panel


@pytest.mark.parametrize(
    ("returns", "arrow"), [([1.0, 0.0], "↘"), ([0.0, 1.0], "↗"), ([1.0, 1.0], "→")]
)
def test_arrow_follows_the_trend(returns: list[float], arrow: str) -> None:
    console, clock = terminal(), Clock()
    with Progress(1000, 0, console, clock) as progress:
        for mean_return in returns:
            clock.now_s += 1
            progress.update(with_return(mean_return))
    assert arrow in output(console)


def test_panel_is_redrawn_at_most_eight_times_a_second() -> None:
    console, clock = terminal(), Clock()
    with Progress(1_000_000, 0, console, clock) as progress:
        for step in range(1000):
            clock.now_s += 0.01
            progress.update(LINE._replace(step=step))
    assert 10 <= output(console).count("frames/s") <= 10 * 8


def test_a_message_stays_above_the_panel() -> None:
    console, clock = terminal(), Clock()
    with Progress(1000, 0, console, clock) as progress:
        progress.update(LINE)
        progress.say("[eval] return 0.9")
    assert "[eval] return 0.9" in output(console)
    assert output(console).rindex("frames/s") > output(console).index("[eval]")


def test_leaving_without_an_update_is_fine() -> None:
    for console in (plain_console(), terminal()):
        with Progress(1000, 1000, console):
            pass


@pytest.mark.alone
def test_an_update_that_is_not_due_costs_little() -> None:
    """A run may make thousands of tiny updates a second."""
    with Progress(1_000_000, 0, terminal(), Clock()) as progress:
        progress.update(LINE)
        seconds = []
        for _ in range(5):  # the fastest of several, as the machine may be busy
            start = time.perf_counter()
            for step in range(1000):
                progress.update(with_return(None, step))
            seconds.append(time.perf_counter() - start)
    assert min(seconds) / 1000 < 100e-6


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0, "0s"),
        (0.4, "0s"),
        (59.4, "59s"),
        (59.6, "1m00s"),
        (65, "1m05s"),
        (3599.6, "1h00m"),
        (2 * 3600 + 3 * 60 + 59, "2h03m"),
        (3 * 86400 + 4 * 3600 + 3599, "3d04h"),
    ],
)
def test_format_duration(seconds: float, text: str) -> None:
    assert format_duration(seconds) == text


def test_panel_shows_entropies_phases_memory_and_evaluations() -> None:
    console, clock = terminal(), Clock()
    line = LINE._replace(
        step=500,
        normalised_entropies={"walk": 0.5, "watch": 1.0},
        phases_ms={"rollout": 60.0, "optimize": 30.0, "track": 10.0},
    )
    with Progress(1000, 0, console, clock) as progress:
        progress.evaluating(0.25)
        clock.now_s += 1
        progress.evaluating(0.5)
        assert "evaluating 50%" in output(console)
        progress.evaluated(0, "episodic_reward 0.9")
        clock.now_s += 1
        progress.update(line)
        clock.now_s += 1
        progress.evaluating(0.37)
    panel = output(console).rpartition("╭")[2]
    assert "evaluation  37%  step 0  episodic_reward 0.9" in panel
    assert "812 MB" in panel
    for printed in (
        "policy entropy, % of maximum",
        "walk",
        "50%",
        "watch",
        "100%",
        "█ rollout 60%",
        "▓ optimize 30%",
        "▒ track 10%",
    ):
        assert printed in panel
    (bar,) = [row for row in panel.splitlines() if "█▓" in row]
    # 98 columns minus 6 of border and padding: 92 * 0.6, 92 * 0.3, 92 * 0.1
    assert [bar.count(glyph) for glyph in "█▓▒"] == [55, 28, 9]


def test_evaluations_are_plain_lines_without_a_terminal() -> None:
    console = plain_console()
    with Progress(1000, 0, console, Clock()) as progress:
        progress.evaluating(0.5)
        progress.evaluated(10, "episodic_reward 0.9")
    assert output(console) == "[eval] step 10  episodic_reward 0.9\n"


@pytest.mark.parametrize("width", [40, 50, 60, 80, 120])
def test_every_number_is_whole_at_any_width(width: int) -> None:
    console = Console(
        file=StringIO(), force_terminal=True, width=width, height=40, color_system=None
    )
    with Progress(1000, 0, console, Clock()) as progress:
        progress.update(LINE._replace(step=400, normalised_entropies={"a": 0.25}))
    panel = output(console).rpartition("╭")[2]
    for printed in ("40.0%", "left", "0.500", "32.0", "15,231", "30,462", "2.0", "25%"):
        assert printed in panel
    for text in ("1.41", "0.0042", "0.71", "2.5e-04", "812 MB", "entities/frame", "learning rate"):
        assert text in panel


@pytest.mark.parametrize("height", [8, 10, 14, 18, 24, 60])
@pytest.mark.parametrize("width", [40, 100])
def test_a_panel_is_never_higher_than_the_terminal(width: int, height: int) -> None:
    console = Console(
        file=StringIO(), force_terminal=True, width=width, height=height, color_system=None
    )
    line = LINE._replace(
        normalised_entropies={f"action {i}": 0.5 for i in range(30)},
        phases_ms={"rollout": 60.0, "optimize": 30.0, "track": 10.0},
    )
    with Progress(1000, 0, console, Clock()) as progress:
        progress.evaluated(0, "episodic_reward 0.9")
        progress.update(line)
    rows = ("╭" + output(console).rpartition("╭")[2]).rstrip("\n").splitlines()
    assert 5 <= sum("│" in row or "╰" in row or "╭" in row for row in rows) < height
    assert any("return  0.500" in row for row in rows)
    assert any("╰" in row for row in rows)
    assert ("and 24 more" in str(rows)) == (height == 60)


@pytest.mark.parametrize(("max_seconds", "left"), [(30.0, "28s"), (3600.0, "1m36s"), (1.0, "0s")])
def test_remaining_time_respects_the_time_limit(max_seconds: float, left: str) -> None:
    console, clock = plain_console(), Clock()
    with Progress(1_000_000, 0, console, clock, max_seconds) as progress:
        clock.now_s += 2
        progress.update(LINE._replace(step=20_480))
    assert f"left {left}  " in output(console)


HEADER = [
    "Xor  entities: Input  actions: output",
    "25,795 parameters on cpu  seed 1  folder runs/x",
]
PLAYED = Measured(mean=0.125, ci95=0.0625, min=0.0, max=1.0, count=32)


def history_of(values: list[float]) -> ReturnHistory:
    history = ReturnHistory()
    for value in values:
        history.add(value)
    return history


def test_header_and_random_return_are_printed_first_without_a_terminal() -> None:
    console = plain_console()
    with Progress(1000, 0, console, Clock(), header=HEADER, random=PLAYED) as progress:
        progress.update(LINE)
    *first, _ = output(console).splitlines()
    assert first == [*HEADER, "random play: return 0.125 ± 0.0625"]


def test_panel_starts_with_the_header_and_shows_the_random_return() -> None:
    console, clock = terminal(), Clock()
    with Progress(1000, 0, console, clock, header=HEADER, random=PLAYED) as progress:
        assert HEADER[1] in output(console)
        progress.evaluating(0.5)
        assert HEADER[1] in output(console).rpartition("╭")[2]
        clock.now_s += 1
        progress.update(LINE)
    rows = output(console).rpartition("╭")[2].splitlines()
    assert [row.strip("│ ") for row in rows[2:4]] == HEADER
    (row,) = [row for row in rows if "return  0.500" in row]
    assert "best  0.500   random  0.125   ▁" in row


def test_control_characters_of_names_are_escaped() -> None:
    for console in (plain_console(), terminal()):
        with Progress(1000, 0, console, Clock(), header=["an\x07 \x1b[31mentity"]) as progress:
            progress.update(LINE)
        assert "an\\x07 \\x1b[31mentity" in output(console)


@pytest.mark.parametrize("height", [5, 6, 8, 10, 14, 18, 24, 60])
@pytest.mark.parametrize("width", [40, 100])
def test_a_panel_with_a_header_is_never_higher_than_the_terminal(width: int, height: int) -> None:
    console = Console(
        file=StringIO(), force_terminal=True, width=width, height=height, color_system=None
    )

    def rows() -> list[str]:
        return ("╭" + output(console).rpartition("╭")[2]).rstrip("\n").splitlines()

    header = [f"line {i} " * 9 for i in (1, 2, 3)]
    with Progress(1000, 0, console, Clock(), header=header) as printed:
        assert len(rows()) < height
        printed.update(LINE)
    assert sum("│" in row or "╰" in row or "╭" in row for row in rows()) < height
    assert any("line 3" in row for row in rows()) == (height >= (18 if width == 40 else 14))


def test_sparkline_covers_the_whole_run() -> None:
    """The first updates stay visible however long the run is: here the return falls, then stays."""
    console, clock = terminal(), Clock()
    with Progress(10_000, 0, console, clock) as progress:
        for step in range(10_000):
            progress.update(with_return(1.0 if step < 1000 else 0.0, step))
        clock.now_s += 1
        progress.update(with_return(0.0, 10_000))
    (row,) = [r for r in output(console).rpartition("╭")[2].splitlines() if "return" in r]
    bars = row.strip("│ ").split()[-1]
    assert len(bars) == MOST_BARS
    assert bars.startswith("███")
    assert set(bars[4:]) == {"▁"}


@pytest.mark.parametrize("num", [0, 1, 5, 63, 64, 65, 1000, 4097])
def test_history_is_bounded_and_keeps_the_mean_of_all_returns(num: int) -> None:
    values = random.Random(num).choices(range(10), k=num)
    history = history_of([*map(float, values), math.nan, math.inf])
    assert len(history.means) < MOST_MEANS
    assert len(history.means) * history.each + history.count == num
    assert sum(history.means) * history.each + history.total == pytest.approx(sum(values))
    for most in (0, 1, 7, 30, 100):
        assert len(history.at_most(most)) == min(most, len(history.means) + bool(history.count))
    if num:
        assert min(values) <= min(history.at_most(7)) <= max(history.at_most(7)) <= max(values)


def test_few_returns_are_not_downsampled() -> None:
    assert history_of([1.0, 3.0, 2.0]).at_most(30) == [1.0, 3.0, 2.0]
    assert history_of([1.0, 3.0, 2.0, 4.0]).at_most(2) == [2.0, 3.0]


def test_a_history_continues_from_its_saved_fields() -> None:
    straight, half = (
        history_of([float(i) for i in range(300)]),
        history_of([float(i) for i in range(150)]),
    )
    resumed = ReturnHistory.restored(vars(half))
    for i in range(150, 300):
        resumed.add(float(i))
    assert resumed == straight


@pytest.mark.parametrize(
    "saved",
    [
        None,
        [],
        {"means": []},
        {"means": None, "each": 1, "total": 0.0, "count": 0},
        {"means": [math.nan], "each": 1, "total": 0.0, "count": 0},
        {"means": ["1"], "each": 1, "total": 0.0, "count": 0},
        {"means": [1.0] * 1000, "each": 1, "total": 0.0, "count": 0},
        {"means": [1.0], "each": 1, "total": 0.0, "count": 5},
        {"means": [1.0], "each": 0, "total": 0.0, "count": 0},
    ],
)
def test_damaged_history_is_reset(saved: object) -> None:
    assert ReturnHistory.restored(saved) == ReturnHistory()


def test_self_play_shows_the_score_instead_of_the_return() -> None:
    console = plain_console()
    with Progress(100, 0, console, random=Measured(0.25, 0.1, 0.0, 1.0, 3)) as progress:
        for step, score in ((50, 0.4), (100, 0.625)):
            league = {"selfplay/elo": 31.0, "selfplay/elo_ci95": 12.0, "selfplay/score": score}
            progress.update(ProgressLine(step, {**METRICS, "episodic_reward.mean": 0.0, **league}))
    assert "score 0.625 (+0.225) of 4 episodes" in console.file.getvalue()
    assert "Elo 31 ± 12" in console.file.getvalue()
    assert "return 0.000" not in console.file.getvalue()
    panel = terminal()
    with Progress(100, 0, panel) as progress:
        progress.update(ProgressLine(50, {**METRICS, **league}))
        del league["selfplay/score"]  # no game ended
        progress.update(ProgressLine(99, {**METRICS, **league}))
    assert panel.file.getvalue().count("score  0.625") >= 2
    assert "return" not in panel.file.getvalue()
