"""Elastic prefill offload between mixed replicas (document 004): pure decisions and their records.

    OffloadQuestion → decide(question, settings) → OffloadDecision
    deadline passed, or P lost → after_deadline(decision), after_loss(decision)

D is the replica that will decode the request and where its session lives; P is another replica that could
compute the prompt. The theory is in `estimate`, the rules in `decide`.
"""

from headway.routing.offload.choice import best_prefill
from headway.routing.offload.decide import after_deadline, after_loss, classify, decide
from headway.routing.offload.estimate import Delays, delays_at
from headway.routing.offload.samples import HitRates, UtilisationSample, UtilisationSamples
from headway.routing.offload.trace import OffloadTrace
from headway.routing.offload.transfer import TransferEstimate
from headway.routing.offload.types import OffloadDecision, OffloadQuestion, OffloadReason, Site

__all__ = [
    "Delays",
    "HitRates",
    "OffloadDecision",
    "OffloadQuestion",
    "OffloadReason",
    "OffloadTrace",
    "Site",
    "TransferEstimate",
    "UtilisationSample",
    "UtilisationSamples",
    "after_deadline",
    "after_loss",
    "best_prefill",
    "classify",
    "decide",
    "delays_at",
]
