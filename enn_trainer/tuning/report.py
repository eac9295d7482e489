"""Report of a search: the table of its trials, the best configuration, and plots."""

import csv
import io
import math
import re
import shlex
import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from enn_trainer.base.tables import aligned
from enn_trainer.checkpoints.disk import replace_file
from enn_trainer.config import TrainConfig
from enn_trainer.config.load import dump_config, load_config
from enn_trainer.evaluation.eval_metrics import with_interval
from enn_trainer.experience.episodes import Measured
from enn_trainer.tuning.judge import Score, best_trials, is_better
from enn_trainer.tuning.study import Study
from entity_env.imports.extras import missing_package

BEST, REPORT, TABLE = "best.ron", "report.md", "trials.csv"
LEAST_TRIALS = 5
"""Smallest number of completed trials with parameters for importances."""
_FIELD = re.compile(r"( *)(\w+): ")


def table(study: Study) -> list[dict[str, Any]]:
    """Return a row for each trial, by column; the scores are values of the metric.

    The standard error is over seeds; columns of fresh seeds are of the confirmation.
    """
    confirmed, sign = confirmed_scores(study), study.plan.sign
    rows = []
    for trial in study.optuna.get_trials(deepcopy=False):
        runs, scores = study.runs(trial.number), study.scores(trial.number)
        fresh = confirmed.get(trial.number)
        score = Score.of(scores) if trial.state.name == "COMPLETE" else None
        reasons = [trial.user_attrs.get("refused", ""), *(run.error for run in runs.values())]
        values: dict[str, Any] = dict.fromkeys(study.plan.ranges)
        values |= {
            r.field: r.value(trial.params[r.field])
            for r in study.plan.all_ranges
            if r.field in trial.params
        }
        rows.append(
            {
                "trial": trial.number,
                "state": "refused" if reasons[0] else trial.state.name.lower(),
                "score": score and sign * score.mean,
                "standard error": score and score.error,
                "seeds": len(runs),
                "fresh score": fresh and sign * fresh.mean,
                "fresh standard error": fresh and fresh.error,
                "frames": sum(run.frames for run in runs.values()),
                "seconds": round(sum(run.seconds for run in runs.values()), 1),
                **values,
                "reason": "; ".join(filter(None, reasons)),
            }
        )
    return rows


def importances(study: Study) -> dict[str, float]:
    """Return the importance of each setting by PED-ANOVA, largest first; {} for few trials."""
    from optuna.importance import PedAnovaImportanceEvaluator, get_param_importances

    trials = [trial for trial in study.trials("COMPLETE") if trial.params]
    if len(trials) < LEAST_TRIALS:
        return {}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of experimental parts
        return get_param_importances(
            study.optuna, evaluator=PedAnovaImportanceEvaluator(), params=[*study.plan.ranges]
        )


def winner(study: Study) -> int | None:
    """Return the trial that is best on fresh seeds, or else in the search; None without one."""
    scores = _deciding_scores(study)
    return best_trials(scores, 1)[0] if scores else None


def _deciding_scores(study: Study) -> dict[int, Score]:
    """Return the scores on fresh seeds, or in the search if some of the best have none yet."""
    scores = study.completed_scores()
    is_confirmed = {*best_trials(scores)} <= study.confirmed().keys()
    return (is_confirmed and confirmed_scores(study)) or scores


def verdict(study: Study) -> str:
    """Return the result of the search in one line."""
    number = winner(study)
    if number is None:
        return "no trial has completed"
    name = "the configuration as it is" if number == 0 else f"trial {number}"
    in_search = _as_text(study, Score.of(study.scores(number)))
    confirmed, scores = confirmed_scores(study), _deciding_scores(study)
    if scores != confirmed:
        return f"best in the search: {name} with {in_search}, which fresh seeds may not give"
    score, reference = confirmed[number], confirmed.get(0)
    seeds = f"{score.seeds} fresh seed{'s' * (score.seeds > 1)}"
    text = f"best on {seeds}: {name} with {_as_text(study, score)} (in the search {in_search})"
    if number == 0:
        return f"{text}; nothing beats it"
    if reference is None:
        return f"{text}; the configuration as it is has not completed"
    words = "trial 0, the configuration as it is, has"
    text += f"; {words} {_as_text(study, reference)}"
    if is_better(score, reference):
        return text
    return f"{text}; nothing beats it with 95% confidence intervals apart"


def lines(study: Study) -> Iterator[str]:
    """Yield the lines of `enn tune DIR --show`."""
    rows = table(study)
    if rows:
        cells = [[_cell(value) for value in row.values()] for row in rows]
        yield from aligned([[*rows[0]], *cells])
        yield ""
    if shares := importances(study):
        yield "importance: " + ", ".join(f"{name} {share:.2f}" for name, share in shares.items())
    yield verdict(study)
    if winner(study) is not None:
        yield f"enn train --config {shlex.quote(str(study.folder / BEST))}"


def write_report(study: Study) -> None:
    """Write `report.md`, `trials.csv` and `best.ron`; with matplotlib also plots.

    Raises:
        CheckpointError: a file cannot be written.
    """
    rows, folder, plan = table(study), study.folder, study.plan
    if not rows:
        return
    text = io.StringIO()
    writer = csv.DictWriter(text, [*rows[0]], lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    replace_file(folder / TABLE, text.getvalue().encode())

    # The page.
    shares = importances(study)
    parts = {name: f"{share:.2f}" for name, share in shares.items()}
    ranges = [[f"`{name}`", text, parts.get(name)] for name, text in plan.ranges.items()]
    page = [
        f"# Search for {plan.metric}",
        f"{verdict(study)}.",
        _markdown(["setting", "range", "importance"], ranges),
        _markdown([*rows[0]], [[*row.values()] for row in rows]),
    ]
    replace_file(folder / REPORT, ("\n\n".join(page) + "\n").encode())

    # The best configuration, and plots.
    number = winner(study)
    if number is not None:
        replace_file(folder / BEST, best_config(study, number, shares).encode())
    if not missing_package("matplotlib"):
        draw(study, rows)


def best_config(study: Study, number: int, shares: Mapping[str, float]) -> str:
    """Return the configuration of a trial as RON, with a comment at each searched field."""
    config = load_config(TrainConfig, None, study.overrides(number), text=study.plan.config)
    comments = {
        name: f"searched: {text}" + (f"; importance {shares[name]:.2f}" if shares else "")
        for name, text in study.plan.ranges.items()
    }
    text = with_comments(dump_config(config), comments)
    return f"// {study.plan.metric}: {verdict(study)}.\n{text}"


def with_comments(text: str, comments: Mapping[str, str]) -> str:
    """Insert comments above fields of a RON text as `dump_config` writes it.

    Args:
        text: the text.
        comments: comments by path of the field.
    """
    names: list[str] = []
    commented = []
    for line in text.splitlines():
        if match := _FIELD.match(line):
            names[len(match[1]) // 4 - 1 :] = [match[2]]
            if comment := comments.get(".".join(names)):
                commented.append(f"{match[1]}// {comment}")
        commented.append(line)
    return "\n".join(commented) + "\n"


def draw(study: Study, rows: list[dict[str, Any]]) -> None:
    """Draw the scores by trial to `history.png`, and by each setting to `slices.png`."""
    from matplotlib.figure import Figure

    done = [row for row in rows if row["score"] is not None and math.isfinite(row["score"])]
    for name, fields in (("history.png", ["trial"]), ("slices.png", [*study.plan.ranges])):
        figure = Figure(figsize=(1 + 3.2 * len(fields), 3.4), layout="constrained")
        for ax, field in zip(
            figure.subplots(1, len(fields), squeeze=False)[0], fields, strict=True
        ):
            points = [(row[field], row["score"]) for row in done if row[field] is not None]
            is_text = any(not isinstance(x, int | float) for x, _ in points)
            ax.scatter([str(x) if is_text else x for x, _ in points], [y for _, y in points], s=14)
            if "loguniform" in study.plan.ranges.get(field, "")[:10]:
                ax.set_xscale("log")
            ax.set_xlabel(field)
            ax.set_ylabel(study.plan.tag, parse_math=False)
        picture = io.BytesIO()
        figure.savefig(picture, dpi=150, format="png")
        replace_file(study.folder / name, picture.getvalue())


def confirmed_scores(study: Study) -> dict[int, Score]:
    """Return the scores of trials on fresh seeds, signed."""
    sign, scores = study.plan.sign, dict[int, Score]()
    for number, runs in study.confirmed().items():
        values = [sign * run.score for run in runs.values() if run.score is not None]
        if values:
            scores[number] = Score.of(values)
    return scores


def _as_text(study: Study, score: Score) -> str:
    """Format a score and its 95% confidence interval."""
    low, high = score.interval
    half = None if score.error is None else (high - low) / 2
    mean = study.plan.sign * score.mean
    return with_interval(Measured(mean, half, mean, mean, score.seeds))


def _cell(value: object) -> str:
    if value is None:
        return ""
    return f"{value:.4g}" if isinstance(value, float) else str(value).replace("|", "\\|")


def _markdown(columns: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    cells = [columns, ["---"] * len(columns), *(map(_cell, row) for row in rows)]
    return "\n".join(f"| {' | '.join(row)} |" for row in cells)
