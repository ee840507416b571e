"""AIBrix's queue simulator: patterns arrive, consumers serve within a capacity, policies compared.

    results = run_experiment(
        Experiment(setup=SETUPS["multi"], policies=all_policies(), seeds=20, amount=RequestCount(4_000))
    )

`model` has patterns, consumers, Little's law and the document's set-ups, `load` the requests and how much
they ask for, `waiting` the policies and queues, `dispatch` the consumers, push and pull, `experiment` runs,
their figures and comparisons. Pure: generators are arguments, or made from a seed that is one.
"""

from headway_studies.queue_simulator.experiment import (
    Estimate,
    Experiment,
    Figures,
    PolicyResult,
    QueueRun,
    RankedPolicy,
    RunFigures,
    estimate,
    measure,
    order_by,
    run_experiment,
    simulate,
)
from headway_studies.queue_simulator.load import (
    Amount,
    QueueArrivals,
    RequestCount,
    RunDuration,
    Service,
    draw_arrivals,
    fluid_load,
)
from headway_studies.queue_simulator.model import (
    SETUPS,
    Consumer,
    Pattern,
    Profile,
    QueueingError,
    Setup,
    documented,
)
from headway_studies.queue_simulator.waiting import (
    DispatchPolicy,
    DispatchRouting,
    Passing,
    QueuePolicy,
    all_policies,
)

__all__ = [
    "SETUPS",
    "Amount",
    "Consumer",
    "DispatchPolicy",
    "DispatchRouting",
    "Estimate",
    "Experiment",
    "Figures",
    "Passing",
    "Pattern",
    "PolicyResult",
    "Profile",
    "QueueArrivals",
    "QueuePolicy",
    "QueueRun",
    "QueueingError",
    "RankedPolicy",
    "RequestCount",
    "RunDuration",
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
