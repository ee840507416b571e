"""The OpenAI-compatible gateway: an ASGI app without Ray. What runs the requests is behind `Backend`.

`app` has `make_app`, `generation` is the path of a request, `backend` the interface to whatever runs it,
`faults` all the ways in which a request can fail. Nothing is imported here: replicas need `backend` alone.
"""
