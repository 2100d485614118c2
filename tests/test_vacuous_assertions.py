from __future__ import annotations

import pytest
from vacuous_assertions import find_vacuous, main


@pytest.mark.parametrize(
    "line",
    [
        'assert "text of an error"',
        'assert f"{error}"',
        "assert 1 == 1",
        "assert x == x",
        "assert a.b[0] <= a.b[0]",
        'assert (x == 1, "a message")',
        "assert [x]",
        'assert {"a": x}',
        "assert x or True",
        "assert lambda: x",
        "assert not None",
        "with pytest.raises(ValueError): pass",
        "with pytest.warns(UserWarning), raises(ValueError): ...",
    ],
)
def test_an_assertion_that_can_not_fail_is_found(line: str) -> None:
    assert [number for number, _ in find_vacuous(f"x = f()\n{line}")] == [2]


@pytest.mark.parametrize(
    "line",
    [
        'assert "text" in error',
        "assert x == y",
        "assert f() == f()",
        "assert x",
        "assert [*x]",
        "assert x or y",
        "assert x is not None",
        "assert not x",
        "with pytest.raises(ValueError): f()",
        "with pytest.raises(ValueError), opened(x): pass",
        "with opened(x): pass",
    ],
)
def test_others_are_not(line: str) -> None:
    assert list(find_vacuous(line)) == []


def test_a_file_and_its_line_are_named(tmp_path, capsys) -> None:
    (tmp_path / "test_a.py").write_text("def test_a():\n    assert 'b'\n")
    assert main([str(tmp_path)]) == 1
    assert capsys.readouterr().out == f"{tmp_path}/test_a.py:2: can't fail: assert 'b'\n"
