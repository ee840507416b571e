"""Compile what tests run, once, before several processes each would.

    python -m tests.compiled

Two short simulations and the router's rehearsals enter what is compiled; numba keeps it on disk, beside the
sources, for every process of this checkout. What only a few tests enter they compile themselves.
"""

from itertools import product

from actors.performance_model import load_profiles
from actors.router import live_router
from actors.routing.rehearsal import rehearse
from headway.config import load_config
from headway.simulation.build import make_plan, make_scenario, run
from headway.workload import open_trace

TRACE = "steady:rate_rps=8,duration_s=90,input_tokens=900,output_tokens=60,seed=1"
POOLS = ({"mixed": {}}, {"prefill": {}, "decode": {}})


def main() -> None:
    """Run each pair of pools with the default policy and the router."""
    for pools, routing in product(POOLS, ("slo", "least_load")):
        config = load_config(
            None,
            {
                "pools": pools,
                "routing.profile": routing,
                "routing.offload.mode": "cost",
                "planner.adjustment_interval_s": 15.0,
                "simulation.start_up_delay_s": 5.0,
            },
        )
        rehearse(live_router(config, load_profiles(config)), config)
        plan = make_plan(config)
        with open_trace(TRACE) as trace:
            run(plan, make_scenario(plan, trace), trace)


if __name__ == "__main__":
    main()
