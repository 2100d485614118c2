"""The table of decisions, driven through the rules by hand."""

from __future__ import annotations

import pytest
from decision_cases import (
    BY_PROMPT,
    CASES,
    TABLE,
    ByPrompt,
    Case,
    HandDriven,
    HandDrivenByPrompt,
)


@pytest.mark.parametrize("case", CASES.values(), ids=CASES.keys())
def test_rules_decide_as_the_table_says(case: Case) -> None:
    run = HandDriven(case)
    run.play()
    stop = case.stop if case.reason else -1
    assert (run.stop.stopped_step, run.stop.stopped_by) == (stop, case.reason)
    assert set(run.best.kept) == case.best
    assert set(run.front.kept) == case.front


@pytest.mark.parametrize("case", TABLE.values(), ids=TABLE.keys())
def test_resuming_at_any_step_equals_the_uninterrupted_run(case: Case) -> None:
    whole = HandDriven(case)
    whole.advance(0, case.steps)
    for step in range(1, case.stop + 1):
        run = HandDriven(case)
        run.advance(0, step)
        if not run.interrupt(step):
            run.advance(step, case.steps)
        assert repr(run.stop) == repr(whole.stop)  # NaN equals NaN here
        assert (run.best, run.front) == (whole.best, whole.front)


@pytest.mark.parametrize("case", BY_PROMPT.values(), ids=BY_PROMPT.keys())
def test_rules_decide_by_prompt_as_the_table_says(case: ByPrompt) -> None:
    run = HandDrivenByPrompt(case)
    run.play()
    stop, best, alarm = (run.states[name] for name in ("stop", "best", "alarm"))
    assert (stop.stopped_step, stop.stopped_by) == (case.stop if case.cause else -1, case.cause)
    assert run.rules["best"].best(best) == case.selected
    assert alarm.alarm_step == case.alarm
    for cut in range(1, case.stop):
        again = HandDrivenByPrompt(case)
        again.play(cut=cut)
        assert again.states == run.states
