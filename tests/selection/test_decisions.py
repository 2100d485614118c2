"""The table of decisions, driven through the rules by hand."""

from __future__ import annotations

import pytest
from decision_cases import BY_PROMPT, TABLE, ByPrompt, Case, HandDriven


@pytest.mark.parametrize("case", TABLE.values(), ids=TABLE.keys())
def test_rules_decide_as_the_table_says(case: Case) -> None:
    states = HandDriven(case).play().states
    stop = case.stop if case.reason else -1
    assert (states["stop"].stopped_step, states["stop"].stopped_by) == (stop, case.reason)
    assert set(states["best"].kept) == case.best
    assert set(states["front"].kept) == case.front


@pytest.mark.parametrize("case", BY_PROMPT.values(), ids=BY_PROMPT.keys())
def test_rules_decide_by_prompt_as_the_table_says(case: ByPrompt) -> None:
    run = HandDriven(case).play()
    stop, best, alarm = (run.states[name] for name in ("stop", "best", "alarm"))
    assert (stop.stopped_step, stop.stopped_by) == (case.stop if case.cause else -1, case.cause)
    assert run.rules["best"].best(best) == case.selected
    assert alarm.alarm_step == case.alarm


@pytest.mark.parametrize("name", TABLE | BY_PROMPT)
def test_resuming_at_any_step_equals_the_uninterrupted_run(name: str) -> None:
    case = (TABLE | BY_PROMPT)[name]
    whole = HandDriven(case).play()
    for step in range(1, case.stop + 1):
        assert repr(HandDriven(case).play(step).states) == repr(whole.states)  # NaN equals NaN here
