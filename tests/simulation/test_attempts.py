"""Split placements and second thoughts, by hand: ITL is 10 ms, a prompt takes 0.1 ms a token."""

import numpy as np
import pytest

from headway.engine.kernel import layout
from headway.planning.types import Role
from headway.simulation.scenario import EngineRules, PlannedCrash, ScenarioRouter, StartUp
from tests.simulation.routers import Scripted, place
from tests.simulation.worlds import ArrayTrace, Schedule, constant_profile, run, scenario

ITL_S, TOKEN_S = 0.01, 1e-4
LATENCY_S, MOVE_S = 0.005, 1e-6
"""A transfer takes the latency and 1 µs a token."""

PROFILE = constant_profile(ITL_S, TOKEN_S)
FIRST, SECOND, THIRD = "mixed-0", "mixed-1", "mixed-2"


def rules(**changes) -> EngineRules:
    moving = {"kv_bytes_per_token": 25e3, "transfer_bytes_per_s": 25e9, "transfer_latency_s": LATENCY_S}
    return EngineRules(**{**moving, **changes})


def trace_of(*rows, prompts=()) -> ArrayTrace:
    """Rows of arrival, input, output."""
    arrival, isl, osl = zip(*rows, strict=True)
    return ArrayTrace(np.array(arrival, float), np.array(isl), np.array(osl), prompts=list(prompts))


def simulated(script, trace, *, shape=3, due_s=(), profile=PROFILE, policy=None, **changes):
    """The records of a run in which `script` names each event's placements: {(event, name): [placement]}."""

    def answer(router, event, now_s, name):
        return script.get((event, name))

    fleet = {Role.MIXED: shape} if isinstance(shape, int) else shape
    router = Scripted(answer, due_s=due_s)
    routing = ScenarioRouter(name="scripted", make=lambda generator: router)
    setting = scenario(profile, fleet, **{"engine": rules(), "routing": routing, **changes})
    result, records = run(setting, trace, policy)
    return result, records, router


def test_a_prompt_is_computed_here_and_decoded_there():
    trace = trace_of((1.0, 1000, 5))
    result, records, router = simulated({("submit", "0"): [place("0", FIRST, SECOND)]}, trace)
    (record,) = records
    computed_s = 1.0 + 1000 * TOKEN_S
    arrived_s = computed_s + LATENCY_S + 1000 * MOVE_S
    assert record["prefill_finished_s"] == pytest.approx(computed_s)
    assert record["decode_ready_s"] == record["decode_started_s"] == pytest.approx(arrived_s)
    assert record["first_token_s"] == pytest.approx(arrived_s + ITL_S)
    assert record["finished_s"] == pytest.approx(arrived_s + 5 * ITL_S)
    assert (record["prefill_replica"], record["decode_replica"]) == (0, 1)
    assert [event for event, _, name in router.heard if name == "0"] == [
        *("submit", "prefilled", "first_token", "complete")
    ]
    assert result.tally.latencies["itl_s"].count == 4


def test_disaggregated_pools_decode_where_the_placement_said():
    script = {("submit", str(n)): [place(str(n), "prefill-0", f"decode-{2 - n}")] for n in range(2)}
    trace = trace_of((1.0, 1000, 5), (1.0, 1000, 5))
    _, records, _ = simulated(script, trace, shape={Role.PREFILL: 1, Role.DECODE: 2})
    arrived_s = 1.0 + np.array([0.1, 0.2]) + LATENCY_S + 1000 * MOVE_S
    assert records["first_token_s"] == pytest.approx(arrived_s + ITL_S)
    assert records["decode_replica"].tolist() == [2, 1]


def test_a_prefilled_request_joins_while_prompts_queue():
    """On the second replica a prompt of 100 chunks is under way and another waits behind it."""
    script = {
        ("submit", "0"): [place("0", SECOND)],
        ("submit", "1"): [place("1", SECOND)],
        ("submit", "2"): [place("2", FIRST, SECOND)],
    }
    trace = trace_of((0.0, 10_000, 2), (0.0, 100, 2), (0.0, 300, 4))
    _, records, _ = simulated(script, trace, engine=rules(chunk_tokens=100))
    third = records[2]
    boundary_s = np.ceil(third["decode_ready_s"] / ITL_S) * ITL_S
    assert third["decode_started_s"] == pytest.approx(boundary_s)
    assert third["first_token_s"] == pytest.approx(boundary_s + ITL_S + 100 * TOKEN_S)
    assert third["finished_s"] == pytest.approx(boundary_s + 4 * (ITL_S + 100 * TOKEN_S))
    assert records["prefill_started_s"][1] > third["finished_s"]


def test_a_prefilled_request_waits_for_room_and_new_prompts_wait_behind_it():
    """One place in the batch: 0 has it until 1.1 s, then 1 with its KV, then the prompt of 2."""
    script = {
        ("submit", "0"): [place("0", SECOND)],
        ("submit", "1"): [place("1", FIRST, SECOND)],
        ("submit", "2"): [place("2", SECOND)],
    }
    trace = trace_of((0.0, 1000, 101), (0.0, 1000, 50), (0.5, 1000, 2))
    _, records, _ = simulated(script, trace, engine=rules(max_batch_size=1))
    free_s = 0.1 + 100 * ITL_S
    assert records["finished_s"][0] == pytest.approx(free_s)
    assert records["decode_started_s"][1] == pytest.approx(free_s)
    assert records["finished_s"][1] == pytest.approx(free_s + 50 * ITL_S)
    assert records["prefill_started_s"][2] == pytest.approx(free_s + 50 * ITL_S)


def test_both_replicas_remember_the_prompt_and_only_the_rest_travels():
    """Three turns of a conversation decode on the second replica; each computes its prompt elsewhere."""
    prompts = [list(range(count)) for count in (4, 6, 6)]
    trace = trace_of((0.0, 2048, 2), (5.0, 3072, 2), (9.0, 3072, 2), prompts=prompts)
    script = {
        ("submit", "0"): [place("0", FIRST, SECOND)],
        ("submit", "1"): [place("1", FIRST, SECOND)],
        ("submit", "2"): [place("2", SECOND)],
    }
    result, records, _ = simulated(script, trace, engine=rules(prefix_cache_tokens=8192))
    assert records["cached_tokens"].tolist() == [0, 2048, 3071]
    assert records["external_tokens"].tolist() == [2048, 1024, 0]
    travelled_s = records["decode_ready_s"] - records["prefill_finished_s"]
    assert travelled_s[:2] == pytest.approx(LATENCY_S + np.array([2048, 1024]) * MOVE_S)
    hits, looked_up = result.tally.hits(), 2 * (2048 + 3072) + 3072
    assert hits["local"] == pytest.approx((2048 + 3071 + 2048) / looked_up)
    assert hits["external"] == pytest.approx(3072 / looked_up)
    assert hits["combined"] == hits["local"] + hits["external"]


def test_a_queued_request_is_taken_elsewhere():
    script = {
        ("submit", "0"): [place("0", FIRST)],
        ("submit", "1"): [place("1", FIRST)],
        ("submit", "2"): [place("2", FIRST)],
        ("expire", ""): [place("1", SECOND)],
    }
    trace = trace_of((0.0, 1000, 2), (0.0, 1000, 2), (0.0, 1000, 2))
    _, records, _ = simulated(script, trace, due_s=[0.03], engine=rules(chunk_tokens=1000))
    assert records["prefill_started_s"] == pytest.approx([0.0, 0.03, 0.1])
    assert records["decode_replica"].tolist() == [0, 1, 0]
    assert records["retries"].tolist() == [0, 0, 0]


@pytest.mark.parametrize("shape", [3, {Role.PREFILL: 2, Role.DECODE: 1}], ids=["mixed", "disaggregated"])
def test_a_prompt_under_way_elsewhere_delays_only_those_behind_it(shape):
    """0 leaves the first replica at 0.03 s; what that computes it computes to its end, at 0.1 s."""
    first, second, decode = (FIRST, SECOND, THIRD) if shape == 3 else ("prefill-0", "prefill-1", "decode-2")
    script = {
        ("submit", "0"): [place("0", first, decode)],
        ("submit", "1"): [place("1", first, decode)],
        ("expire", ""): [place("0", second, decode)],
    }
    trace = trace_of((0.0, 1000, 2), (0.0, 1000, 2))
    _, records, _ = simulated(script, trace, shape=shape, due_s=[0.03])
    assert records["prefill_started_s"] == pytest.approx([0.03, 0.1])
    assert records["prefill_finished_s"] == pytest.approx([0.13, 0.2])
    assert records["prefill_replica"].tolist() == [1, 0]


def test_an_abandoned_chunk_ends_with_its_iteration():
    """A prompt of ten chunks leaves in the third; the next prompt starts when that one ends."""
    script = {
        ("submit", "0"): [place("0", FIRST)],
        ("submit", "1"): [place("1", FIRST)],
        ("expire", ""): [place("0", SECOND)],
    }
    trace = trace_of((0.0, 10_000, 2), (0.0, 1000, 2))
    _, records, _ = simulated(script, trace, due_s=[0.25], engine=rules(chunk_tokens=1000))
    assert records["prefill_started_s"] == pytest.approx([0.25, 0.3])
    assert records["prefill_finished_s"] == pytest.approx([1.25, 0.4])


def test_what_travels_can_be_called_back():
    script = {("submit", "0"): [place("0", FIRST, SECOND)], ("expire", ""): [place("0", THIRD)]}
    _, records, _ = simulated(script, trace_of((0.0, 1000, 2)), due_s=[0.103])
    (record,) = records
    assert record["prefill_started_s"] == pytest.approx(0.103)
    assert record["first_token_s"] == pytest.approx(0.203)
    assert (record["prefill_replica"], record["decode_replica"]) == (2, 2)
    assert record["external_tokens"] == 0


def test_one_that_waits_for_room_to_decode_can_be_called_back():
    script = {
        ("submit", "0"): [place("0", SECOND)],
        ("submit", "1"): [place("1", FIRST, SECOND)],
        ("expire", ""): [place("1", FIRST)],
    }
    trace = trace_of((0.0, 1000, 101), (0.0, 1000, 2))
    _, records, _ = simulated(script, trace, due_s=[0.5], engine=rules(max_batch_size=1))
    assert records["first_token_s"][1] == pytest.approx(0.6)
    assert records["decode_replica"][1] == 0


def test_one_that_decodes_stays_where_it_is():
    script = {("submit", "0"): [place("0", FIRST, SECOND)], ("expire", ""): [place("0", THIRD)]}
    _, records, router = simulated(script, trace_of((0.0, 1000, 5)), due_s=[0.11])
    assert records["decode_started_s"][0] < 0.11 < records["first_token_s"][0]
    assert records["decode_replica"][0] == 1
    assert router.times("first_token")["0"] == pytest.approx(0.116)


@pytest.mark.parametrize("at_s", [0.05, 0.103], ids=["before it is prefilled", "while it travels"])
def test_the_one_that_should_decode_dies(at_s):
    """The first replica to be ready dies. The request is asked for again when its KV finds nobody."""
    script = {("submit", "0"): [place("0", SECOND, FIRST)], ("lost", "0"): [place("0", THIRD)]}
    crashes = [PlannedCrash(at_s=at_s, role=Role.MIXED)]
    _, records, router = simulated(script, trace_of((0.0, 1000, 2)), crashes=crashes)
    (record,) = records
    arrived_s = 0.1 + LATENCY_S + 1000 * MOVE_S
    assert router.times("gone") == {FIRST: at_s}
    assert router.times("lost")["0"] == pytest.approx(arrived_s)
    assert record["first_token_s"] == pytest.approx(arrived_s + 0.1)
    assert (record["outcome"], record["retries"]) == (layout.COMPLETED, 1)


def test_the_one_that_computes_the_prompt_dies():
    script = {
        ("submit", "0"): [place("0", FIRST, SECOND)],
        ("submit", "1"): [place("1", FIRST, SECOND)],
        ("lost", "0"): [place("0", THIRD, SECOND)],
        ("lost", "1"): [place("1", SECOND)],
    }
    crashes = [PlannedCrash(at_s=0.05, role=Role.MIXED)]
    _, records, router = simulated(script, trace_of((0.0, 1000, 2), (0.0, 1000, 2)), crashes=crashes)
    assert router.times("lost") == {"0": 0.05, "1": 0.05}
    assert records["first_token_s"][1] == pytest.approx(0.15)
    assert records["first_token_s"][0] == pytest.approx(0.15 + LATENCY_S + 1000 * MOVE_S + ITL_S, abs=ITL_S)
    assert records["retries"].tolist() == [1, 1]
    assert [event for event, at_s, _ in router.heard if at_s == 0.05][:3] == ["gone", "lost", "lost"]


def test_streams_fail_with_their_replica_and_newcomers_begin_anew():
    """0 has tokens on the dying replica, 1 is in its first iteration there."""
    script = {
        ("submit", "0"): [place("0", FIRST)],
        ("submit", "1"): [place("1", SECOND, FIRST)],
        ("lost", "1"): [place("1", THIRD)],
    }
    crashes = [PlannedCrash(at_s=0.115, role=Role.MIXED)]
    trace = trace_of((0.0, 500, 50), (0.0, 1000, 5))
    _, records, router = simulated(script, trace, crashes=crashes)
    assert records["outcome"].tolist() == [layout.FAILED, layout.COMPLETED]
    assert router.times("failed") == {"0": 0.115}
    assert router.times("lost") == {"1": 0.115}
    assert records["first_token_s"][1] == pytest.approx(0.215)


def test_an_order_for_a_replica_that_is_gone_comes_back_as_lost():
    """The answer to the death names the dead; asked again, the router names another."""
    script = {
        ("submit", "0"): [place("0", FIRST)],
        ("gone", FIRST): [place("0", FIRST)],
        ("lost", "0"): [place("0", SECOND)],
    }
    crashes = [PlannedCrash(at_s=0.05, role=Role.MIXED)]
    _, records, _ = simulated(script, trace_of((0.0, 1000, 2)), crashes=crashes)
    assert records["first_token_s"] == pytest.approx([0.15])


def test_a_draining_replica_keeps_its_promise():
    """The newest, emptiest replica is stopped while a prompt that it shall decode is computed."""
    script = {("submit", "0"): [place("0", FIRST, THIRD)]}
    policy = Schedule([{Role.MIXED: 2}], interval_s=0.05)
    result, records, router = simulated(script, trace_of((0.0, 1000, 5)), policy=policy)
    assert records["outcome"].tolist() == [layout.COMPLETED]
    assert records["decode_replica"].tolist() == [2]
    assert router.times("draining") == {THIRD: 0.05}
    assert router.times("gone")[THIRD] == records["finished_s"][0]
    assert max(result.replicas[Role.MIXED].draining) == 1


def test_a_promise_that_is_taken_back_lets_a_draining_replica_go():
    script = {("submit", "0"): [place("0", FIRST, THIRD)], ("expire", ""): [place("0", FIRST)]}
    policy = Schedule([{Role.MIXED: 2}], interval_s=0.05)
    _, _, router = simulated(script, trace_of((0.0, 1000, 5)), policy=policy, due_s=[0.07])
    assert router.times("gone")[THIRD] == 0.07


def test_lost_requests_are_held_until_there_is_a_replica():
    script = {("submit", "0"): [place("0", FIRST)], ("ready", SECOND): [place("0", SECOND)]}
    crashes = [PlannedCrash(at_s=0.05, role=Role.MIXED)]
    _, records, _ = simulated(
        script, trace_of((0.0, 1000, 2)), shape=1, crashes=crashes, start_up=StartUp(delay_s=3.0)
    )
    assert records["prefill_started_s"] == pytest.approx([3.05])
    assert records["retries"].tolist() == [1]
