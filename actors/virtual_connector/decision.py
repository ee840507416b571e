"""A scaling decision as outside systems see it, its JSON form, and the errors of the virtual connector.

ScalingError(Exception)
├── BadProposal              targets that name no pool, or an impossible count
├── BadReport                a report that names no pool, or impossible counts
├── UnknownDecision          an id that was never issued
├── TooManyWaiters           the coordinator holds as many waiting calls as it can
├── UnreadableLedger         the stored ledger cannot be read; ids might go back, so nothing starts
└── CoordinatorUnreachable   the coordinator does not answer, or there is none
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, Self

from headway.planning import Role

Status = Literal["pending", "completed", "failed"]


class ScalingError(Exception):
    """Base of the virtual connector's errors; the text is one line for people."""


class BadProposal(ScalingError):
    """Targets that name no pool, or an impossible count."""


class BadReport(ScalingError):
    """A report of replica counts that names no pool, or impossible counts."""


class UnknownDecision(ScalingError):
    """An id that was never issued."""


class TooManyWaiters(ScalingError):
    """The coordinator holds as many waiting calls as it can."""


class UnreadableLedger(ScalingError):
    """The stored ledger cannot be read."""


class CoordinatorUnreachable(ScalingError):
    """The coordinator does not answer, or there is none."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ScalingDecision:
    """Replica counts that an outside system is asked for.

    `targets` has every pool, also those that the decision leaves as they are. `created_at` is Unix seconds;
    `status` is as of the coordinator's reply.
    """

    decision_id: int
    targets: Mapping[Role, int]
    created_at: float
    reasons: Mapping[str, Any] = field(default_factory=dict)
    status: Status = "pending"

    @property
    def num_prefill(self) -> int | None:
        """Prefill replicas; None where the deployment has no prefill pool."""
        return self.targets.get(Role.PREFILL)

    @property
    def num_decode(self) -> int | None:
        """Decode replicas; None where the deployment has no decode pool."""
        return self.targets.get(Role.DECODE)

    def document(self) -> dict[str, Any]:
        """The decision as JSON-able data."""
        return {
            "decision_id": self.decision_id,
            "num_prefill": self.num_prefill,
            "num_decode": self.num_decode,
            "targets": counts(self.targets),
            "created_at": self.created_at,
            "reasons": dict(self.reasons),
            "status": self.status,
        }

    @classmethod
    def of(cls, document: Mapping[str, Any]) -> Self:
        """The decision that `document` describes."""
        return cls(
            decision_id=document["decision_id"],
            targets=roles(document["targets"]),
            created_at=document["created_at"],
            reasons=document["reasons"],
            status=document["status"],
        )


def counts(targets: Mapping[Role, int]) -> dict[str, int]:
    """Replica counts under plain names."""
    return {role.value: count for role, count in targets.items()}


def roles(targets: Mapping[str, int]) -> dict[Role, int]:
    """Replica counts under roles."""
    return {Role(name): count for name, count in targets.items()}


def plain(value: object) -> Any:  # noqa: ANN401 - JSON
    """The value as strict JSON: null for numbers that are not finite, text for other types."""
    match value:
        case None | bool() | int():
            return value
        case float():
            return value if math.isfinite(value) else None
        case str():
            return str(value)
        case Mapping():
            return {str(key): plain(item) for key, item in value.items()}
        case list() | tuple() | set() | frozenset():
            return [plain(item) for item in value]
    return str(value)
