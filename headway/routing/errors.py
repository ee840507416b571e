"""What routing raises.

RoutingError(ValueError)     settings that cannot be routed by, one line: where and what, with what is known
└── SloRequired              prediction-based routing was asked for without an SLO; the client's error
"""


class RoutingError(ValueError):
    """Settings or values that cannot be routed by; one line."""


class SloRequired(RoutingError):
    """A request asks for prediction-based routing and names no SLO (document 002, "No SLO Provided")."""
