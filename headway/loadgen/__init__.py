"""Open-loop load: a trace replayed against any OpenAI endpoint, and what came of it.

    with open_trace("azure.csv") as trace:
        tally = await replay(trace, LoadPlan(url="http://127.0.0.1:8000", model="llama-3.1-8b", slo=slo))
    tally.summary()

Requests leave at their trace times whatever the server does, and latency counts from the time at which a
request should have left, so that neither a slow server nor a slow sender hides waiting ("coordinated
omission"). How late the sender itself was is measured and reported beside the latencies.

`records` says what one request's times mean, `histogram`, `windows` and `tally` add requests up in bounded
memory, `sse` and `prompts` know the wire, `client` performs one request, `replay` drives the clock.
"""

from headway.loadgen.client import fetch_models
from headway.loadgen.errors import LoadError
from headway.loadgen.plan import LoadPlan, PromptForm
from headway.loadgen.records import Outcome, RequestRecord, StreamTimer
from headway.loadgen.replay import Progress, Watchers, replay
from headway.loadgen.tally import Tally

__all__ = [
    "LoadError",
    "LoadPlan",
    "Outcome",
    "Progress",
    "PromptForm",
    "RequestRecord",
    "StreamTimer",
    "Tally",
    "Watchers",
    "fetch_models",
    "replay",
]
