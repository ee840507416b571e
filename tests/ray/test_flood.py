"""`headway demo --flood`, shortened: what the small tenant keeps while the other one asks for far too much.

SLOs are generous beside what engines take, so that a busy machine decides nothing.
"""

from headway_cli.demo_flood import FLOOD, PHASES, SMALL, flood_plan, play
from tests.ray.routed_system import serving

PATIENT = {"slo.ttft_ms": 20_000.0, "slo.itl_ms": 4000.0}
SECONDS = 20.0


def test_a_flood_costs_the_other_tenant_nothing(ray_cluster: str) -> None:
    with flood_plan(SECONDS, PATIENT) as plan, serving(plan.config) as gateway:
        said: list[str] = []
        tally = play(plan, gateway.url, said.append)
    for phase in PHASES:
        small = tally.cells[SMALL, phase]
        assert small.requests > 5, said
        assert small.met == small.requests, (phase, small.outcomes, small.details)
    during = tally.cells[FLOOD, "during"]
    assert during.requests > 500
