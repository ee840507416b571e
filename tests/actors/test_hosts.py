"""What only one host of several can reach."""

import pytest

from actors.hosts import is_loopback, unreachable_gateway, unreachable_source
from headway.config import HeadwayConfig

HOSTS = ("10.0.0.1", "10.0.0.2")


def settings(**sections: object) -> HeadwayConfig:
    return HeadwayConfig.model_validate(sections)


@pytest.mark.parametrize("host", ["localhost", "127.0.0.1", "127.8.0.1", "::1", "[::1]"])
def test_loopback(host: str) -> None:
    assert is_loopback(host)


@pytest.mark.parametrize("host", ["10.0.0.1", "0.0.0.0", "prometheus", "prometheus.monitoring.svc", ""])
def test_no_loopback(host: str) -> None:
    assert not is_loopback(host)


def test_a_source_on_loopback_is_refused_on_several_hosts_only() -> None:
    config = settings(metrics={"source": "prometheus", "url": "http://me:secret@localhost:9090/x"})
    refusal = unreachable_source(config, HOSTS)
    assert refusal.startswith("metrics.url: localhost is another machine on each of")
    assert "secret" not in refusal
    assert unreachable_source(config, HOSTS[:1]) == ""
    elsewhere = settings(metrics={"source": "prometheus", "url": "http://prometheus:9090"})
    assert unreachable_source(elsewhere, HOSTS) == ""
    assert unreachable_source(settings(), HOSTS) == "", "our own gateway is read through Serve"


def test_a_gateway_on_loopback_is_refused_on_several_hosts_only() -> None:
    assert unreachable_gateway(settings(), HOSTS).startswith("gateway.host: 127.0.0.1 is another machine on")
    assert unreachable_gateway(settings(), HOSTS[:1]) == ""
    assert unreachable_gateway(settings(gateway={"host": "0.0.0.0"}), HOSTS) == ""
