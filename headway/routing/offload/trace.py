"""The record of one request's way through offload: document 004, section 3, "per-request breakdown"."""

from collections.abc import Mapping
from dataclasses import dataclass

from headway.routing.offload.types import OffloadReason
from headway.routing.types import RouteClass


@dataclass(frozen=True, slots=True, kw_only=True)
class OffloadTrace:
    """Class, reason and time stamps in seconds on the driver's clock; None for what has not happened.

    `t_proxy_recv` arrival at the gateway; `t_prefill_sent` handed to the replica that computes the prompt;
    `t_prefill_done` prompt computed; `t_first_token` and `t_done` as the client sees them. After an offload
    that was given up, the stamps are those of the attempt that succeeded.
    """

    request_id: str
    route_class: RouteClass
    offload_decision_reason: OffloadReason
    t_proxy_recv: float
    t_prefill_sent: float | None = None
    t_prefill_done: float | None = None
    t_first_token: float | None = None
    t_done: float | None = None

    @property
    def queued_s(self) -> float | None:
        """Arrival → handed to the prefill replica."""
        return _span(self.t_proxy_recv, self.t_prefill_sent)

    @property
    def prefill_s(self) -> float | None:
        """Handed over → prompt computed; the replica's own queue included."""
        return _span(self.t_prefill_sent, self.t_prefill_done)

    @property
    def handover_s(self) -> float | None:
        """Prompt computed → first token: transfer and the wait at D where offloaded, about 0 otherwise."""
        return _span(self.t_prefill_done, self.t_first_token)

    @property
    def ttft_s(self) -> float | None:
        """Arrival → first token."""
        return _span(self.t_proxy_recv, self.t_first_token)

    @property
    def e2e_s(self) -> float | None:
        """Arrival → last token."""
        return _span(self.t_proxy_recv, self.t_done)

    def breakdown(self, shift_s: float = 0.0) -> Mapping[str, str | float | None]:
        """The document's fields by their names, as JSON-able data; times on a clock ahead by `shift_s`."""
        times_s = {
            "t_proxy_recv": self.t_proxy_recv,
            "t_prefill_sent": self.t_prefill_sent,
            "t_prefill_done": self.t_prefill_done,
            "t_first_token": self.t_first_token,
            "t_done": self.t_done,
        }
        return {
            "request_id": self.request_id,
            "route_class": self.route_class.value,
            "offload_decision_reason": self.offload_decision_reason.value,
            **{name: None if at_s is None else at_s + shift_s for name, at_s in times_s.items()},
        }


def _span(start_s: float | None, end_s: float | None) -> float | None:
    return None if start_s is None or end_s is None else end_s - start_s
