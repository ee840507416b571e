from hypothesis import given
from hypothesis import strategies as st

from headway.profiling.sweep import Measured, Phase, SweepPoint
from headway.profiling.sweep.doubts import LOOKS, doubtful


def prefill(tokens: int) -> SweepPoint:
    return SweepPoint(phase=Phase.PREFILL, tokens=tokens)


def decode(batch: int, tokens: int) -> SweepPoint:
    return SweepPoint(phase=Phase.DECODE, tokens=tokens, batch=batch)


def test_both_sides_of_a_fall_are_doubted_and_no_others():
    latencies_s = {100: 0.010, 200: 0.012, 400: 0.020, 800: 0.015, 1600: 0.040}
    measured = {prefill(tokens): Measured(runs_s=(value,)) for tokens, value in latencies_s.items()}
    assert doubtful(measured) == [prefill(400), prefill(800)]


def test_a_batch_is_compared_on_its_own_context_alone():
    slow, fast = Measured(runs_s=(0.02,)), Measured(runs_s=(0.01,))
    assert doubtful({decode(1, 100): slow, decode(2, 200): fast, prefill(300): fast}) == []
    assert doubtful({decode(1, 100): slow, decode(2, 100): fast}) == [decode(1, 100), decode(2, 100)]


def test_a_few_per_cent_are_no_contradiction_and_gaps_are_bridged():
    few = {prefill(1): Measured(runs_s=(1.0,)), prefill(2): Measured(runs_s=(0.96,))}
    assert doubtful(few) == []
    gap = {prefill(2): Measured(unmeasurable="no"), prefill(3): Measured(runs_s=(0.5,))}
    assert doubtful(few | gap) == [prefill(1), prefill(3)]


def test_the_least_looked_at_come_first_and_a_third_look_is_the_last():
    looked = {
        prefill(1): Measured(runs_s=(3.0,), looks=2),
        prefill(2): Measured(runs_s=(2.0,), looks=LOOKS),
        prefill(3): Measured(runs_s=(1.0,), looks=1),
    }
    assert doubtful(looked) == [prefill(3), prefill(1)]


@given(st.lists(st.floats(1e-4, 10.0), min_size=1, max_size=9))
def test_what_rises_is_never_doubted(latencies_s: list[float]):
    rising = enumerate(sorted(latencies_s), start=1)
    assert doubtful({prefill(tokens): Measured(runs_s=(value,)) for tokens, value in rising}) == []
