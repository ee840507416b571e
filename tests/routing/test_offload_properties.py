"""What holds for every offload decision."""

from dataclasses import replace
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from headway.config.routing import OffloadSettings
from headway.routing import RouteClass
from headway.routing.decide.offload import decide, sides
from headway.routing.offload import OFFLOADING, OffloadQuestion, Site

MODES = st.sampled_from(["always", "heuristic", "cost"])


def moves(question: OffloadQuestion, settings: OffloadSettings) -> bool:
    return decide(question, settings).reason in OFFLOADING


def numbers(most: float) -> st.SearchStrategy[float]:
    """Thousandths, so that no product underflows and doubling is exact."""
    return st.integers(0, round(most * 1000)).map(lambda thousandths: thousandths / 1000)


SECONDS = numbers(100.0)
TOKENS = numbers(1e6)
SETTINGS = st.builds(OffloadSettings, mode=MODES, warm_tokens=st.just(1024))
SITES = st.builds(
    Site,
    uncached_tokens=st.integers(0, 100_000),
    queue_s=SECONDS,
    prefill_s=SECONDS,
    running=st.integers(0, 200),
    waiting=st.integers(0, 50),
    remaining_tokens=numbers(2000.0),
    iteration_s=numbers(0.2),
    arrival_rps=numbers(10.0),
    reuse=numbers(2.0),
    outstanding_tokens=TOKENS,
    decode_tokens=TOKENS,
)
QUESTIONS = st.builds(
    OffloadQuestion,
    now_s=SECONDS,
    d=SITES,
    p=SITES,
    transfer_s=numbers(5.0),
    chunk_tokens=st.sampled_from([0, 512, 2048]),
    mean_outstanding_tokens=TOKENS,
)


@given(QUESTIONS, SETTINGS)
def test_class_and_deadline_say_whether_it_is_offloaded(
    question: OffloadQuestion, settings: OffloadSettings
) -> None:
    decision = decide(question, settings)
    assert (decision.route_class is RouteClass.HEAVY_P2P) is (decision.reason in OFFLOADING)
    assert (decision.deadline_s is not None) is (decision.reason in OFFLOADING)
    if decision.deadline_s is not None:
        assert decision.deadline_s >= question.now_s + settings.deadline_slack_s


@given(QUESTIONS, SETTINGS, SECONDS, TOKENS)
def test_more_load_on_p_never_turns_colocate_into_offload(
    question: OffloadQuestion, settings: OffloadSettings, more_s: float, more_tokens: float
) -> None:
    assert question.p is not None
    longer = replace(
        question.p,
        queue_s=question.p.queue_s + more_s,
        outstanding_tokens=question.p.outstanding_tokens + more_tokens,
    )
    if not moves(question, settings):
        assert not moves(replace(question, p=longer), settings)


@given(QUESTIONS, SETTINGS, numbers(5.0))
def test_a_dearer_transfer_never_turns_colocate_into_offload(
    question: OffloadQuestion, settings: OffloadSettings, more_s: float
) -> None:
    if not moves(question, settings):
        dearer = replace(question, transfer_s=question.transfer_s + more_s)
        assert not moves(dearer, settings)


@given(QUESTIONS, SETTINGS.filter(lambda settings: settings.mode in ("heuristic", "cost")))
def test_an_idle_d_never_offloads(question: OffloadQuestion, settings: OffloadSettings) -> None:
    idle: dict[str, Any] = {"queue_s": 0.0, "running": 0, "waiting": 0, "decode_tokens": 0.0}
    assert not moves(replace(question, d=replace(question.d, **idle)), settings)


@given(QUESTIONS)
def test_two_equal_replicas_keep_the_prompt(question: OffloadQuestion) -> None:
    same = replace(question, p=question.d)
    assert not moves(same, OffloadSettings(mode="cost"))


@given(QUESTIONS)
def test_the_unit_of_time_does_not_matter(question: OffloadQuestion) -> None:
    """Everything in half seconds: cost and benefit double, the decision stays."""
    settings = OffloadSettings(mode="cost")
    assert question.p is not None
    scaled = replace(
        question, d=_doubled(question.d), p=_doubled(question.p), transfer_s=2 * question.transfer_s
    )
    assert moves(question, settings) is moves(scaled, settings)
    assert scaled.p is not None
    assert sides(scaled, scaled.p) == tuple(2 * each for each in sides(question, question.p))


def _doubled(site: Site) -> Site:
    return replace(
        site,
        queue_s=2 * site.queue_s,
        prefill_s=2 * site.prefill_s,
        iteration_s=2 * site.iteration_s,
        arrival_rps=site.arrival_rps / 2,
    )
