"""What recompilation and graph-breaks advise from recordings of the compiler, and when they keep
silent."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from stepscope.core.recordings.auxiliary import Auxiliary
from stepscope.core.recordings.compiler import Break, Compile, Counted
from stepscope.readers.format import Source
from stepscope.recordings.compiler import graph_breaks, recompilation, torch_logs
from stepscope.recordings.compiler.guards import guard_of
from stepscope.rules.advice import joined
from tests.recording_texts import compiler_report
from tests.scenarios import FINDINGS
from tests.shared_data import SAMPLES
from tests.wording import mentions


def again(*guards: str, number: int = 1, **told: object) -> Compile:
    found = tuple(guard_of(guard) for guard in guards)
    return Compile(id=f"0/{number}", function="f", location="m.py:3", guards=found, **told)  # type: ignore[arg-type]


def beside(
    *compiles: Compile, breaks: tuple[Break, ...] = (), counted: tuple[Counted, ...] = ()
) -> Auxiliary:
    return Auxiliary(compiler=compiler_report(compiles=compiles, breaks=breaks, counted=counted))


def size(number: int) -> Compile:
    return again(
        f"0/0: tensor 'x' size mismatch at index 1. expected {number + 7}, actual {number + 8}",
        number=number,
    )


def test_the_real_log_names_function_guard_dimension_and_limit() -> None:
    path = SAMPLES / "formats" / "torch_logs.txt"
    given = Auxiliary(compiler=torch_logs.read([Source(path=path, label="torch_logs.txt")]))
    (advice,) = recompilation.advise(given)
    assert mentions(advice.summary, "f (train/artifacts.py:59)", "21 times", "14 of them")
    assert "torch._dynamo.mark_dynamic(x, 0)" in advice.action
    assert advice.evidence[0].startswith(
        "f (train/artifacts.py:59) hit torch._dynamo's recompile_limit (8): calls"
    )
    assert mentions(advice.evidence[1], "tensor x", "dimension 0", "8, 16, 24")
    assert (advice.weight, advice.bound) == (None, "host")
    item, printed = graph_breaks.advise(given)
    assert mentions(item.summary, "torch.compile", "train/artifacts.py:61")
    assert mentions(item.evidence[0], "train/artifacts.py:61 (if y.sum().item() > 0:)", "8 times")
    assert "torch.where" in item.action
    assert "capture_scalar_outputs = True" in item.action
    assert 'train/artifacts.py:63 (print("break"))' in printed.evidence[0]
    assert all("train/artifacts.py:6" in line for one in (item, printed) for line in one.evidence)


def test_one_recompilation_is_how_a_size_becomes_dynamic() -> None:
    assert recompilation.advise(beside(size(1))) == ()
    assert len(recompilation.advise(beside(size(1), size(2)))) == 1


def test_ranks_side_by_side_are_not_several_recompilations() -> None:
    told = [
        Compile(rank=rank, id="0/1", function="f", location="m.py:3", guards=(guard_of("n == 1"),))
        for rank in range(8)
    ]
    assert recompilation.advise(beside(*told)) == ()


def test_nothing_recorded_is_nothing_advised() -> None:
    for given in (Auxiliary(), beside()):
        assert recompilation.advise(given) == ()
        assert graph_breaks.advise(given) == ()


def test_the_weight_is_the_share_of_compiling_that_was_done_again() -> None:
    first = Compile(id="0/0", function="f", location="m.py:3", seconds=6.0)
    more = [again("0/0: n == 1", number=n, seconds=1.0, backward_s=0.5) for n in (1, 2)]
    (advice,) = recompilation.advise(beside(first, *more))
    assert advice.weight == pytest.approx(3.0 / 9.0)
    assert mentions(advice.weight_of, "time", "compiling")
    assert mentions(advice.summary, "3.0 s")


@pytest.mark.parametrize(
    ("guard", "words"),
    [
        (
            "0/0: tensor 'L['x']' size mismatch at index 2. expected 8, actual 9",
            "mark_dynamic(x, 2)",
        ),
        (
            "0/0: tensor 'batch['ids']' size mismatch at index 0. expected 8, actual 9",
            "dimension 0 of batch['ids']",
        ),
        ("0/0: L['self'].k == 3", "keep self.k out"),
        ("0/0: ___stack0 == -0.97   # if y.item():  # m.py:9 in f", "graph break at m.py:9"),
        ("0/0: tensor 'x' stride mismatch at index 0. expected 1, actual 2", "x.contiguous()"),
        (
            "0/0: tensor 'x' requires_grad mismatch. expected requires_grad=0",
            "training and evaluation",
        ),
        ("0/0: GLOBAL_STATE changed: grad_mode ", "grad_mode changed between calls"),
        ("0/0: len(xs) == 3", "xs over with one length"),
        ("0/0: what no version printed", "TORCH_LOGS=recompiles"),
        ("0/0: {evil} == 1", "keep {evil} out"),
    ],
)
def test_each_kind_of_guard_has_its_own_action(guard: str, words: str) -> None:
    (advice,) = recompilation.advise(beside(again(guard, number=1), again(guard, number=2)))
    assert words in advice.action


def test_pieces_after_a_break_belong_to_the_function_they_are_of() -> None:
    def piece(name: str, location: str, frame: int, number: int = 1) -> Compile:
        return Compile(
            id=f"{frame}/{number}", function=name, location=location, guards=(guard_of("y == 1"),)
        )

    told = [
        Compile(id="0/0", function="forward", location="m.py:3"),
        Compile(id="1/0", function="forward", location="m.py:30"),
        piece("torch_dynamo_resume_in_forward_at_34", "m.py:34", 2),
        piece("torch_dynamo_resume_in_forward_at_36", "m.py:36", 3),
    ]
    assert recompilation.advise(beside(*told)) == (), "each piece learned once that y changes"
    told.append(piece("torch_dynamo_resume_in_forward_at_36", "m.py:36", 3, number=2))
    (advice,) = recompilation.advise(beside(*told))
    assert mentions(advice.summary, "forward (m.py:30)", "3 times", "3 of them")


def test_logs_without_ids_count_by_name() -> None:
    told = [
        Compile(id=f"?{n}/0", function="f", location="m.py:3", guards=(guard_of("y == 1"),))
        for n in (1, 2)
    ]
    assert len(recompilation.advise(beside(*told))) == 1
    assert recompilation.advise(beside(told[0])) == ()


def test_a_limit_that_counters_alone_tell_is_said_without_a_name() -> None:
    counted = (Counted(path="c.json", limit_hits=2),)
    (advice,) = recompilation.advise(beside(counted=counted))
    assert "hit 2 times" in advice.summary
    assert recompilation.advise(beside(counted=(Counted(path="c.json", limit_hits=0),))) == ()
    (named,) = recompilation.advise(
        beside(again("n == 1", limit="recompile_limit (8)"), counted=counted)
    )
    assert "given up at recompile_limit (8)" in named.summary


def test_many_breaks_are_named_and_not_all_spelled_out() -> None:
    breaks = tuple(
        Break(id="0/0", location=f"m.py:{n}", reason="No", hints=("Do it.",)) for n in range(10, 25)
    )
    advice = graph_breaks.advise(beside(breaks=breaks))
    assert len(advice) == graph_breaks.MAX_ADVICE
    assert mentions(advice[-1].evidence[-1], "11 more places", "m.py:14, m.py:15")
    assert all(one.action == "torch says: Do it." for one in advice)


@pytest.mark.parametrize(
    ("reason", "code"),
    [
        ("Tensor.item", ""),
        ("call_method TensorVariable() item [] {}", ""),
        ("no reason told", "if x.sum().item() > 0:"),
    ],
)
def test_items_of_older_versions_have_the_same_fix(reason: str, code: str) -> None:
    (advice,) = graph_breaks.advise(
        beside(breaks=(Break(id="0/0", location="m.py:1", reason=reason, code=code),))
    )
    assert mentions(advice.action, "keep", "on the device")
    (other,) = graph_breaks.advise(
        beside(breaks=(Break(id="0/0", location="m.py:1", reason="No", code=code),))
    )
    assert other.action.startswith("remove it")


def test_a_counted_break_says_that_its_place_was_not_told() -> None:
    counted = Counted(path="c.json", breaks=((Break(id="", reason="No"), 4),))
    (advice,) = graph_breaks.advise(beside(counted=(counted,)))
    assert mentions(advice.summary, "line", "not recorded")
    assert "4 times" in advice.evidence[0]
    placed = Break(id="0/0", location="m.py:3", reason="No")
    (known,) = graph_breaks.advise(beside(breaks=(placed,), counted=(counted,)))
    assert "m.py:3" in known.summary


def test_beside_a_finding_the_logs_own_fix_is_evidence() -> None:
    compiles = [size(1), size(2), size(3)]
    advice = recompilation.advise(beside(*compiles))
    finding = replace(FINDINGS[0], code=recompilation.CODE, evidence=("seen",))
    (told,), rest = joined([finding], advice)
    assert rest == ()
    assert told.evidence[0] == "seen"
    assert told.evidence[-1] == f"by that log: {advice[-1].action}"
    assert "mark_dynamic" in advice[-1].action
