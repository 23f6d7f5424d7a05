"""A call in a script gets other keywords, or the script stays as it is."""

from __future__ import annotations

import pytest

from stepscope.analyses.script_call import NotSureError, code_change, with_keywords

HEAD = "from torch.utils.data import DataLoader\n"
WORKERS = {"num_workers": 7, "persistent_workers": True}


def changed(call: str, raised: frozenset[str] = frozenset(), **keywords: object) -> str:
    made = with_keywords(f"{HEAD}{call}\n", 2, "DataLoader", keywords or WORKERS, raised)
    assert made.startswith(HEAD)
    return made.removeprefix(HEAD).removesuffix("\n")


def test_keywords_are_set_and_added() -> None:
    assert changed("x = DataLoader(data, batch_size=64, num_workers=2)  # slow") == (
        "x = DataLoader(data, batch_size=64, num_workers=7, persistent_workers=True)  # slow"
    )
    assert changed("x = f(DataLoader(data, ))") == (
        "x = f(DataLoader(data, num_workers=7, persistent_workers=True, ))"
    )


def test_a_call_over_several_lines_keeps_its_lines() -> None:
    call = "loader = DataLoader(\n    data,  # a\n    batch_size=8,\n)"
    assert changed(call) == (
        "loader = DataLoader(\n    data,  # a\n    batch_size=8,\n    num_workers=7,\n"
        "    persistent_workers=True,\n)"
    )
    crlf = with_keywords(call.replace("\n", "\r\n"), 1, "DataLoader", WORKERS)
    assert crlf.count("\r\n") == crlf.count("\n") == 5


def test_names_that_an_import_changed_and_wide_letters_are_read() -> None:
    text = "from torch.utils.data import DataLoader as Läder\nx = 'ü'; y = Läder(ä, pin_memory=0)\n"
    made = with_keywords(text, 2, "DataLoader", {"pin_memory": True})
    assert made.endswith("x = 'ü'; y = Läder(ä, pin_memory=True)\n")


def test_a_number_that_is_only_raised_is_not_taken_down() -> None:
    raised = frozenset({"num_workers"})
    assert "num_workers=9, persistent_workers=True" in changed(
        "DataLoader(data, num_workers=9)", raised
    )
    assert "num_workers=7" in changed("DataLoader(data, num_workers=9)")


@pytest.mark.parametrize(
    "call",
    [
        "DataLoader(data, num_workers=args.workers)",
        "DataLoader(data, **options)",
        "DataLoader(*both)",
        "DataLoader(data, 8, True, None, None, 2)",
        "DataLoader(data, num_workers=7, persistent_workers=True)",
        "DataLoader(data); DataLoader(data)",
        "loader_of(data)",
        "DataLoader((data))",
        "DataLoader(",
    ],
)
def test_what_is_not_sure_stays_as_it_is(call: str) -> None:
    with pytest.raises(NotSureError):
        changed(call)


def test_the_lines_that_differ_are_told_with_the_one_before_what_is_added() -> None:
    change = code_change("a.py", "a\nb\nc\n", "a\nB\nc\n")
    assert (change.line, change.before, change.after) == (2, ("b",), ("B",))
    change = code_change("a.py", "a\nb\n", "a\nx\nb\n")
    assert (change.line, change.before, change.after) == (1, ("a",), ("a", "x"))
