"""One trace of a request, from the gateway to the engine's last token. No Ray in here.

    spans           the place of a request in a trace (W3C's headers), spans, and their export
    gateway_spans   the spans of a gateway, made of a request's record once it has ended
    engine_spans    those of a replica, made of the times that its engine reports

Only `spans` imports OpenTelemetry (the extra `otel`), and only where `tracing.endpoint` is set.
"""
