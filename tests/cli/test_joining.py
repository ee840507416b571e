"""A Ray that asks for a token is told from one that does not by what its GCS says to who has none."""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

import grpc
import pytest

from headway_cli import cluster
from headway_cli.errors import CliError


class Gcs(grpc.GenericRpcHandler):
    """Answers every question with one status."""

    def __init__(self, status: grpc.StatusCode) -> None:
        self._status = status

    def service(self, handler_call_details: grpc.HandlerCallDetails) -> grpc.RpcMethodHandler:
        del handler_call_details

        def answer(_: bytes, context: grpc.ServicerContext) -> bytes:
            if self._status is not grpc.StatusCode.OK:
                context.abort(self._status, "no")
            return b""

        return grpc.unary_unary_rpc_method_handler(answer)


@contextmanager
def gcs(status: grpc.StatusCode) -> Iterator[str]:
    server = grpc.server(ThreadPoolExecutor(1), handlers=[Gcs(status)])
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    try:
        yield f"127.0.0.1:{port}"
    finally:
        server.stop(None)


@pytest.mark.parametrize(
    ("status", "said"),
    [
        (grpc.StatusCode.OK, "went on"),
        (grpc.StatusCode.UNAUTHENTICATED, "this Ray asks for its token: set RAY_AUTH_MODE=token"),
        (grpc.StatusCode.UNIMPLEMENTED, "went on"),
    ],
)
def test_who_joins_without_the_token_is_told_at_once(
    monkeypatch: pytest.MonkeyPatch, status: grpc.StatusCode, said: str
) -> None:
    def init(**_: Any) -> None:
        raise ConnectionError("went on")

    monkeypatch.delenv("RAY_AUTH_MODE", raising=False)
    monkeypatch.setattr("ray.init", init)
    with gcs(status) as address, pytest.raises(CliError, match=said), cluster.cluster(address):
        pass
