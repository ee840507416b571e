"""What routing raises.

RoutingError(ValueError)     settings that cannot be routed by, one line: where and what, with what is known
└── SloRequired              prediction-based routing was asked for without an SLO; the client's error
RequestFault(Exception)      the router's own fault, at the turn of a request that its caller did not name
"""


class RoutingError(ValueError):
    """Settings or values that cannot be routed by; one line."""


class SloRequired(RoutingError):
    """A request asks for prediction-based routing and names no SLO (document 002, "No SLO Provided")."""


class RequestFault(Exception):
    """The request `request_id`, held or late, could not be placed; the cause says why.

    The event itself is done. The request is still there: a held one is tried at each event, and those behind
    it are not, until it is `failed`.
    """

    def __init__(self, request_id: str) -> None:
        super().__init__(f"request {request_id} could not be placed")
        self.request_id = request_id
