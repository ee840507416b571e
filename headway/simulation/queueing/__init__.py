"""The queue simulator of document 003: patterns arrive, consumers serve within a capacity, policies compared.

    results = run_experiment(
        Experiment(setup=SETUPS["multi"], policies=all_policies(), seeds=20, amount=Requests(4_000))
    )

`model` has patterns, consumers and Little's law, `setups` those of the document, `policies` the names of what
is compared, `fluid` how much the arrivals ask for, `arrivals` the requests, `waiting` the queues, `fleet` the
consumers, `dispatch` push and pull, `loop` the events, `figures` one run in numbers, `experiment` many runs,
`estimate` their intervals, `compare` which policy is better. Pure: generators are arguments, or made
from a seed that is one.
"""

from headway.simulation.queueing.arrivals import Amount, Arrivals, Duration, Requests, Service, draw_arrivals
from headway.simulation.queueing.compare import Place, order_by
from headway.simulation.queueing.errors import QueueingError
from headway.simulation.queueing.estimate import Estimate, estimate
from headway.simulation.queueing.experiment import Experiment, PolicyResult, run_experiment
from headway.simulation.queueing.figures import Figures, RunFigures, measure
from headway.simulation.queueing.fluid import fluid_load
from headway.simulation.queueing.loop import Run, simulate
from headway.simulation.queueing.model import Consumer, Pattern, Profile, Setup
from headway.simulation.queueing.policies import Passing, Policy, QueuePolicy, Routing, all_policies
from headway.simulation.queueing.setups import SETUPS, documented

__all__ = [
    "SETUPS",
    "Amount",
    "Arrivals",
    "Consumer",
    "Duration",
    "Estimate",
    "Experiment",
    "Figures",
    "Passing",
    "Pattern",
    "Place",
    "Policy",
    "PolicyResult",
    "Profile",
    "QueuePolicy",
    "QueueingError",
    "Requests",
    "Routing",
    "Run",
    "RunFigures",
    "Service",
    "Setup",
    "all_policies",
    "documented",
    "draw_arrivals",
    "estimate",
    "fluid_load",
    "measure",
    "order_by",
    "run_experiment",
    "simulate",
]
