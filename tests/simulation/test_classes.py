"""SLO classes: who belongs to which, and that each request is judged by its own."""

import numpy as np
import pytest

from headway.config import load_config
from headway.engine import EngineRules
from headway.engine.kernel.layout import Routing
from headway.planning import PlanningError
from headway.planning.types import Role, Slo
from headway.simulation.demand import IdleEngine, reach
from headway.simulation.router_driver import session_of
from headway.simulation.scenario import ClassMix, RequestClass, ScenarioRouter, request_classes
from tests.simulation.routers import Scripted, place, shed
from tests.simulation.worlds import (
    ArrayTrace,
    constant_profile,
    poisson_trace,
    roofline_profile,
    run,
    scenario,
)

DEPLOYMENT = Slo(ttft_s=0.5, itl_s=0.03)
CHAT = RequestClass(name="chat", slo=Slo(ttft_s=0.3, itl_s=0.015), critical=True, share=3.0)
BATCH = RequestClass(name="batch", slo=Slo(ttft_s=2.0, itl_s=0.05), share=1.0, tenant="nightly")
CLASSES = (CHAT, BATCH)


def test_classes_have_their_shares_and_do_not_depend_on_how_they_are_asked_for():
    mix, numbers = ClassMix(CLASSES, DEPLOYMENT, 7), np.arange(40_000)
    places = mix.draw(numbers)
    assert np.bincount(places) / 40_000 == pytest.approx([0.75, 0.25], abs=0.01)
    assert np.array_equal(np.concatenate([mix.draw(part) for part in np.array_split(numbers, 7)]), places)
    neighbours = np.mean(places[1:] == places[:-1])
    assert neighbours == pytest.approx(0.75**2 + 0.25**2, abs=0.01)
    other = ClassMix(CLASSES, DEPLOYMENT, 8).draw(numbers)
    assert np.mean(other == places) == pytest.approx(0.75**2 + 0.25**2, abs=0.01)


def test_without_classes_all_requests_are_of_one():
    mix = ClassMix((), DEPLOYMENT, 7)
    assert not mix.named
    assert not mix.draw(np.arange(100)).any()
    assert mix.limits_s.tolist() == [[0.5], [0.03]]


def test_a_class_without_share_has_no_requests():
    mix = ClassMix((RequestClass(name="rare", slo=DEPLOYMENT, share=0.0), CHAT), DEPLOYMENT, 3)
    assert (mix.draw(np.arange(10_000)) == 1).all()


def test_settings_name_the_classes():
    classes = {
        "chat": {"ttft_ms": 300, "critical": True, "share": 3},
        "batch": {"tpot_ms": 50, "tenant": "nightly"},
    }
    config = load_config(None, {"slo": {"ttft_ms": 500, "itl_ms": 30, "classes": classes}})
    chat, batch = request_classes(config)
    assert (chat.name, chat.slo, chat.critical, chat.share) == (
        "chat",
        Slo(ttft_s=0.3, itl_s=0.03),
        True,
        3.0,
    )
    assert (batch.name, batch.slo, batch.critical, batch.share, batch.tenant) == (
        *("batch", Slo(ttft_s=0.5, itl_s=0.05), False, 1.0, "nightly"),
    )
    none = load_config(None, {"slo.classes": {"chat": {"share": 0}}})
    with pytest.raises(PlanningError, match=r"slo\.classes: no class has a share"):
        request_classes(none)


def split_trace(count: int, *, seed: int = 0) -> tuple[ArrayTrace, np.ndarray]:
    """A trace of requests far apart, and the class of each."""
    trace = ArrayTrace(np.arange(count) * 10.0, np.full(count, 1000), np.full(count, 11))
    return trace, ClassMix(CLASSES, DEPLOYMENT, seed).draw(np.arange(count))


@pytest.mark.parametrize("routing", [Routing.LEAST_LOAD, Routing.RANDOM])
def test_each_request_is_judged_by_its_class(routing):
    """TTFT is 1 s and TPOT 20 ms: within what batch is promised, beyond what chat is."""
    trace, places = split_trace(40)
    setting = scenario(
        constant_profile(0.02, 1e-3), {Role.MIXED: 1}, slo=DEPLOYMENT, classes=CLASSES, routing=routing
    )
    result, records = run(setting, trace)
    assert np.array_equal(records["slo_class"], places)
    summary = result.report().document()
    of_batch = int(places.sum())
    assert 0 < of_batch < 40
    assert summary["attainment"] == of_batch / 40
    chat, batch = summary["classes"]["chat"], summary["classes"]["batch"]
    assert (chat["requests"], chat["attainment"]) == (40 - of_batch, 0.0)
    assert (batch["requests"], batch["attainment"]) == (of_batch, 1.0)
    assert batch["goodput_rps"] == summary["goodput_rps"] == of_batch / result.simulated_s
    assert batch["ttft_s"]["p90"] == pytest.approx(1.0, rel=0.003)
    assert chat["tpot_s"]["mean"] == pytest.approx(0.02)
    assert chat["slo"] == {"ttft_s": 0.3, "tpot_s": 0.015}
    assert (chat["critical"], batch["critical"]) == (True, False)


def test_shed_and_unfinished_requests_are_missed_by_their_class():
    trace, places = split_trace(40)

    def answer(router, event, now_s, name):
        if event != "submit" or int(name) >= 38:
            return None
        critical = router.requests[name].critical
        return [place(name, "mixed-0") if critical else shed(name)]

    router = Scripted(answer)
    setting = scenario(
        constant_profile(0.01, 1e-4),
        {Role.MIXED: 1},
        classes=CLASSES,
        routing=ScenarioRouter(name="picky", make=lambda generator: router),
        drain_limit_s=5.0,
    )
    summary = run(setting, trace)[0].report().document()
    chat, batch = summary["classes"]["chat"], summary["classes"]["batch"]
    held = np.bincount(places[38:], minlength=2)
    assert (chat["failed"], batch["failed"]) == tuple(held)
    assert batch["shed"] == int(places[:38].sum()) == summary["shed"]
    assert chat["completed"] == summary["completed"]
    assert batch["attainment"] == 0.0
    assert chat["attainment"] == chat["completed"] / chat["requests"]
    tenants = {(request.slo.ttft_s, request.tenant) for request in router.requests.values()}
    assert tenants == {(CLASSES[0].slo.ttft_s, ""), (CLASSES[1].slo.ttft_s, "nightly")}
    assert router.requests["0"].slo.ttft_s == CLASSES[places[0]].slo.ttft_s


def test_classes_do_not_change_what_happens():
    trace, fleet = poisson_trace(3, 800, 40.0), {Role.PREFILL: 2, Role.DECODE: 2}
    plain, without = run(scenario(roofline_profile(), fleet), trace)
    classed, records = run(scenario(roofline_profile(), fleet, classes=CLASSES), trace)
    assert np.array_equal(records["finished_s"], without["finished_s"])
    assert set(classed.report().document()) - set(plain.report().document()) == {"classes"}
    totals = classed.report().document()["classes"].values()
    assert sum(row["requests"] for row in totals) == 800
    assert sum(row["goodput_rps"] for row in totals) == pytest.approx(
        classed.report().document()["goodput_rps"]
    )


def test_what_is_attainable_goes_by_class():
    """An idle replica needs 1 s for each prompt, which only batch allows."""
    trace, places = split_trace(40)
    idle = IdleEngine(profile=constant_profile(0.01, 1e-3), rules=EngineRules(), mixed=True)
    known = reach(trace, ClassMix(CLASSES, DEPLOYMENT, 0), idle)
    assert known.attainable == places.sum()
    assert known.ttft_missed == 40 - places.sum()


def test_sessions_come_from_the_first_block_that_tells_conversations_apart():
    assert session_of((0, 46, 47)) == session_of((0, 46, 47, 48)) != session_of((0, 50))
    assert session_of((0,)) is session_of(()) is None
