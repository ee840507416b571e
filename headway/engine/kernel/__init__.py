"""The compiled engine: what replicas do at the boundaries of their iterations, on flat arrays.

The one law of batching, chunked prefill, KV and iteration times of everything that runs in virtual time.

    layout    the arrays: replicas, requests, the event queue; codes of roles, states and outcomes
    state     making and growing them, and records: ended requests, transitions, latency histograms
    batch     a replica's queue and decode batch
    prefill   its prompt work: chunks, prefix cache, transfers
    replica   the boundary of an iteration: retire, admit, start the next
    lifecycle replicas come and go, and so do a request's attempts under a router
    serving   requests come, each to the replica of the least load

Needs a compiler, so nothing that a live replica imports may import it; its rules are those of `engine.live`.
"""
