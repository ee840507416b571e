"""Open-loop load: a trace replayed against any OpenAI endpoint, and the latencies that it saw.

    with open_trace("azure.csv") as trace:
        tally = await replay(trace, LoadPlan(url="http://127.0.0.1:8000", model="llama-3.1-8b", slo=slo))
    tally.summary()

Requests leave at their trace times whatever the server does, and latency counts from the time at which a
request should have left, so that neither a slow server nor a slow sender hides waiting ("coordinated
omission"). How late the sender itself was is measured and reported beside the latencies.

`plan` has the settings and writes the requests, `client` performs one over HTTP, `records` defines its times,
`tally` adds requests up in bounded memory, `replay` drives the clock.
"""

from headway.loadgen.client import fetch_models, fetch_slo
from headway.loadgen.plan import LoadError, LoadPlan, PromptForm
from headway.loadgen.records import RequestOutcome, RequestRecord, StreamTimer
from headway.loadgen.replay import ReplayCallbacks, ReplayProgress, replay
from headway.loadgen.tally import LoadTally

__all__ = [
    "LoadError",
    "LoadPlan",
    "LoadTally",
    "PromptForm",
    "ReplayCallbacks",
    "ReplayProgress",
    "RequestOutcome",
    "RequestRecord",
    "StreamTimer",
    "fetch_models",
    "fetch_slo",
    "replay",
]
