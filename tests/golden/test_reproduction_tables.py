"""The tables of a reproduction study, recomputed from its scores.

Lorandi and Belz reproduce two studies of controlled generation: one attribute at a time (two
systems, 13 metrics) and several at once (three systems, 6 metrics).
"""

from __future__ import annotations

import json
import re
from pathlib import Path

from ctrlreward.recipes.papers.reproduction import tables as published_tables


def test_the_package_has_the_papers_figures(papers_dir: Path) -> None:
    """Scores with deviations, CV*, means, and what the original authors report: all of the data."""
    content = json.loads((papers_dir / "reproduction_tables.json").read_text("utf-8"))
    runs = ("original", "reproduction", "original_deviation", "reproduction_deviation")
    found = {
        (run, study, metric, system): value
        for run in (*runs, "cv_star", "authors")
        for study, table in published_tables.printed(run).items()
        for metric, column in table.items()
        for system, value in column.items()
    }
    names = {"single_attribute": "one attribute", "multiple_attributes": "several attributes"}
    expected = {}
    for key, study in names.items():
        metrics = content[key]["metrics"]
        systems = {s: v for s, v in content[key].items() if isinstance(v, dict) and "cv_star" in v}
        systems["mean"] = {"cv_star": content[key]["cv_star_average"]}
        expected["cv_star", study, "mean", "mean"] = content[key]["study_mean_cv_star"]
        for system, values in systems.items():
            for run, row in values.items():
                for metric, value in zip(metrics, row, strict=True):
                    if value is not None:
                        expected[run.replace("std", "deviation"), study, metric, system] = value
    for system, values in content["authors_own_ppl_and_distinct"].items():
        study = names["multiple_attributes" if "multi" in system else "single_attribute"]
        system = system.removeprefix("multi ")
        distinct = values.get("Dist-1/2/3") or [values["Dist"]]
        metrics = ["Distinct-n"] if len(distinct) == 1 else ["Dist-1", "Dist-2", "Dist-3"]
        for metric, value in zip(["PPL", *metrics], [values["PPL"], *distinct], strict=True):
            expected["authors", study, metric, system] = value
    assert found == expected
    assert len(published_tables.SCORES.read_text().splitlines()) == 1 + len(expected)


def test_the_report_has_tables_3_and_4_and_four_differences() -> None:
    printed = published_tables.report().partition("Table 3, one attribute")[2]
    # By hand: (2.2170 + 0.3048) / 2; 200 · (38.9 - 38.3) / (38.9 + 38.3), the mean with it.
    differing = re.findall(r"\d[.\d]* \([.\d]+\)", printed)
    assert differing == ["1.26 (1.27)", "1.55 (1.52)", "1.24 (1.23)", "1.404 (1.402)"]
    for line in (
        "study mean (type I): 1.154 %",
        "Pearson by metric (type II): Average 0.999, Sentiment 0.969, Topic 0.999, Detox 1.000, ",
        "mean 0.994\n",
        "findings upheld (type IV): 13 of 13\n",
        "findings upheld (type IV): 18 of 18\n",
    ):
        assert line in printed
    assert re.search(r"PriorCTG, one attribute +\| +PPL \| +61 \| +54.3", printed)
