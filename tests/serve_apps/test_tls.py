"""HTTPS with a real certificate: the official client, the command, the collector, and a renewal."""

import asyncio
import gc
import os
import shutil
import ssl
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx
import openai
import pytest
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from actors.collector.exposition import SourceDownError
from actors.collector.pages import TextReader
from actors.collector.presets import PRESETS
from actors.collector.prometheus_source import PrometheusSource
from headway.config import ConfigError, HeadwayConfig, MetricsSettings, TlsSettings
from headway_cli.app import run
from serve_apps import tls
from serve_apps.gateway.app import make_app
from serve_apps.http_server import HttpServer
from serve_apps.tls import Certificate
from tests.certificates import Pair, self_signed
from tests.cli.control_server import status
from tests.gateway.doubles import ScriptedBackend, chunks
from tests.patience import PATIENCE_S, eventually, until

KEYS = "- {name: all, key: secret, roles: [infer, observe]}\n"


async def _status(_: Request) -> Response:
    return JSONResponse(status())


@contextmanager
def gateway(pair: Pair) -> Iterator[HttpServer]:
    """A gateway on HTTPS, in a thread of its own."""
    keys = pair.cert.parent / "keys.yaml"
    keys.write_text(KEYS)
    keys.chmod(0o600)
    settings = {"tls": pair.settings, "keys_file": str(keys)}
    config = HeadwayConfig.model_validate({"model": "m", "gateway": settings})
    app = make_app(config, ScriptedBackend(chunks("a", "b")), [Route("/v1/control/status", _status)])
    server, ready, over = (
        HttpServer(app, "127.0.0.1", 0, tls=config.gateway.tls),
        threading.Event(),
        asyncio.Event(),
    )
    loop = asyncio.new_event_loop()

    async def serve() -> None:
        await server.start()
        ready.set()
        await over.wait()
        await server.stop()

    thread = threading.Thread(target=lambda: loop.run_until_complete(serve()))
    thread.start()
    try:
        assert ready.wait(PATIENCE_S)
        yield server
    finally:
        loop.call_soon_threadsafe(over.set)
        thread.join(PATIENCE_S)
        loop.close()


@pytest.fixture
def pair(tmp_path: Path) -> Iterator[Pair]:
    yield self_signed(tmp_path)
    gc.collect()  # a socket that was left open is this test's fault, not the next one's


def open_files() -> int:
    return len(os.listdir("/proc/self/fd"))


def shown(port: int) -> str:
    return ssl.get_server_certificate(("127.0.0.1", port))


def test_the_official_client_speaks_https(pair):
    with gateway(pair) as server:
        assert server.address == f"https://127.0.0.1:{server.port}"
        trusting = httpx.Client(verify=ssl.create_default_context(cafile=pair.cert))
        with openai.OpenAI(base_url=f"{server.address}/v1", api_key="secret", http_client=trusting) as api:
            events = list(api.completions.create(model="m", prompt="x", stream=True))
            assert "".join(event.choices[0].text for event in events) == "ab"
        with (
            openai.OpenAI(base_url=f"{server.address}/v1", api_key="secret", max_retries=0) as api,
            pytest.raises(openai.APIConnectionError),
        ):
            api.models.list()


def test_the_command_trusts_the_file_that_it_is_given(pair, capsys, monkeypatch):
    monkeypatch.setenv("HEADWAY_API_KEY", "secret")
    with gateway(pair) as server:
        command = ["status", "--url", server.address]
        assert run(command) == 2
        complaint = capsys.readouterr().err
        assert "certificate verify failed" in complaint
        assert complaint.count("\n") == 1
        monkeypatch.setenv("SSL_CERT_FILE", str(pair.cert))
        assert run(command) == 0
        assert "llama-3.1-8b" in capsys.readouterr().out


def test_the_collector_trusts_a_file_and_sends_a_token(pair, tmp_path):
    token = tmp_path / "token"
    token.write_text("secret\n")

    async def read(path: str, ca_file: Path | None, token_file: Path | None) -> str:
        before = open_files()
        ca, token = (None if file is None else str(file) for file in (ca_file, token_file))
        reader = TextReader(PATIENCE_S, MetricsSettings(ca_file=ca, token_file=token))
        try:
            return await reader.get(path)
        finally:
            await reader.close()
            # aiohttp closes the transports of HTTPS after its session.
            await eventually(lambda: open_files() <= before)

    with gateway(pair) as server:
        page = f"{server.address}/metrics/requests"
        assert "headway_requests_total" in asyncio.run(read(f"{server.address}/metrics", pair.cert, None))
        assert asyncio.run(read(page, pair.cert, token))
        with pytest.raises(SourceDownError, match="status 401"):
            asyncio.run(read(page, pair.cert, None))
        with pytest.raises(SourceDownError, match=r"ertificate"):
            asyncio.run(read(page, None, token))
        with pytest.raises(SourceDownError, match=r"metrics\.ca_file"):
            asyncio.run(read(page, tmp_path / "none", token))
        with pytest.raises(SourceDownError, match=r"metrics\.token_file"):
            asyncio.run(read(page, pair.cert, tmp_path / "none"))


def test_a_prometheus_behind_https_and_a_key_is_asked_with_both(pair, tmp_path):
    token = tmp_path / "token"
    token.write_text("secret\n")

    async def fault(server: str, **files: Path) -> str:
        given = MetricsSettings(**{name: str(file) for name, file in files.items()})
        source = PrometheusSource(
            server, PRESETS["vllm"], "m", timeout_s=PATIENCE_S, fresh_s=5.0, settings=given
        )
        before = open_files()
        try:
            return (await source.probe()).detail
        finally:
            await source.close()
            await eventually(lambda: open_files() <= before)

    with gateway(pair) as server:
        # A gateway is no Prometheus: with a key it has no such path.
        for files, said in (
            ({}, "certificate"),
            ({"ca_file": pair.cert}, "401"),
            ({"ca_file": pair.cert, "token_file": token}, "404"),
            ({"ca_file": tmp_path / "none"}, f"metrics.ca_file: {tmp_path / 'none'}: No such file"),
            ({"ca_file": pair.cert, "token_file": tmp_path / "none"}, "metrics.token_file"),
        ):
            assert said in asyncio.run(fault(server.address, **files))


def test_a_renewed_certificate_is_shown_without_a_restart(pair, tmp_path, monkeypatch, caplog):
    monkeypatch.setattr(tls, "LOOK_EVERY_S", 0.02)
    with gateway(pair) as server:
        before, renewed = shown(server.port), self_signed(tmp_path, "renewed")
        shutil.copy(renewed.cert, pair.cert)  # half a renewal: the key does not fit yet
        until(lambda: "the certificate stays as it was" in caplog.text)
        assert shown(server.port) == before
        shutil.copy(renewed.key, pair.key)
        until(lambda: shown(server.port) != before)
        assert shown(server.port).split() == renewed.cert.read_text().split()


@pytest.mark.parametrize("missing", ["cert", "key"])
def test_a_missing_file_is_one_line(pair, missing):
    getattr(pair, missing).unlink()
    with pytest.raises(ConfigError, match=rf"gateway\.tls\.{missing}: .*no such file"):
        Certificate(TlsSettings(**pair.settings))


def test_a_key_of_another_certificate_is_refused(pair, tmp_path):
    other = self_signed(tmp_path, "other")
    with pytest.raises(ConfigError, match=r"gateway\.tls: ") as raised:
        Certificate(TlsSettings(cert=str(pair.cert), key=str(other.key)))
    assert "\n" not in str(raised.value)
