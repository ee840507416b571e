"""Where observations come from: a gateway, a Prometheus, or the engines themselves."""

import re
from collections.abc import Mapping
from typing import Literal

from pydantic import Field, field_validator, model_validator

from headway.config.base import PositiveFloat, PositiveInt, RoleName, Settings

ENGINE_PRESETS = ("vllm", "sglang", "ray-serve-llm")
"""Presets whose metrics engines show themselves."""

LABEL_NAME = re.compile(r"[a-zA-Z_][a-zA-Z0-9_]*")

MOST_ENGINES = 4096


class EngineAddresses(Settings):
    """The engines of one role, found in one or several ways."""

    addresses: tuple[str, ...] = Field(default=(), max_length=MOST_ENGINES)
    """One an engine: `host:port`, or a URL; its `/metrics` is read."""
    dns: str | None = None
    """`host:port`: every address that the name has is an engine, as with a headless Service."""
    selector: str | None = None
    """Kubernetes: a label selector; every running pod that it matches is an engine."""
    port: PositiveInt | None = Field(default=None, le=65_535)
    """Kubernetes: the pods' port with `/metrics`."""
    namespace: str | None = None
    """Kubernetes: of the pods; null: as `connector.kubernetes.namespace`."""

    @field_validator("dns")
    @classmethod
    def _has_a_port(cls, dns: str | None) -> str | None:
        host, _, port = (dns or "x:1").rpartition(":")
        if not host or not port.isdecimal() or "/" in host:
            raise ValueError(f"should be host:port, not {dns!r}")
        return dns

    @field_validator("addresses")
    @classmethod
    def _are_addresses(cls, addresses: tuple[str, ...]) -> tuple[str, ...]:
        for address in addresses:
            scheme, found, _ = address.rpartition("://")
            if not address or (found and scheme not in ("http", "https")):
                raise ValueError(f"should be host:port or a URL, not {address!r}")
        if len(set(addresses)) < len(addresses):
            raise ValueError("an address is there twice")
        return addresses

    @model_validator(mode="after")
    def _are_somewhere(self) -> "EngineAddresses":
        if not (self.addresses or self.dns or self.selector):
            raise ValueError("needs addresses, dns or selector")
        if self.selector and self.port is None:
            raise ValueError("selector needs the pods' port")
        return self


class MetricsSettings(Settings):
    """Where observations come from."""

    source: Literal["gateway", "prometheus", "engines"] = "gateway"
    """What is read (docs/reference/measurements.md): a gateway, a Prometheus, or the engines themselves."""
    url: str | None = None
    """Address of Prometheus (needed with `source: prometheus`), or of the gateway; null: our own gateway."""
    preset: Literal["headway", "dynamo", "vllm", "sglang", "llm-d", "ray-serve-llm"] = "headway"
    """Whose metric names; source engines takes vllm, sglang and ray-serve-llm."""
    labels: Mapping[str, str] = {}
    """Prometheus: labels that all series carry; a value that begins with ~ is a regular expression."""
    role_labels: Mapping[RoleName, Mapping[str, str]] = {}
    """Prometheus: by role, labels of the series of its engines; all pools or none."""
    engines: Mapping[RoleName, EngineAddresses] = {}
    """Source engines: by role, where its engines are."""
    ca_file: str | None = None
    """HTTPS: a PEM file of authorities to trust; null: the system's."""
    token_file: str | None = None
    """A file with the key to send (`Authorization: Bearer KEY`); read for each question. A user and a
    password stand in the address: `https://user:password@host`."""
    scrape_interval_s: PositiveFloat = 1.0
    """Seconds between two reads of metrics, of a gateway or of engines."""
    timeout_s: PositiveFloat = 5.0
    """Seconds that one query or scrape may take."""
    stale_after_s: PositiveFloat = 30.0
    """Age in seconds from which the newest sample no longer counts."""

    @model_validator(mode="after")
    def _prometheus_has_an_address(self) -> "MetricsSettings":
        if self.source == "prometheus" and not self.url:
            raise ValueError("source 'prometheus' needs a url")
        return self

    @model_validator(mode="after")
    def _fits_the_source(self) -> "MetricsSettings":
        if self.source == "engines":
            if not self.engines:
                raise ValueError("source 'engines' needs engines, by role")
            if self.preset not in ENGINE_PRESETS:
                *others, last = ENGINE_PRESETS
                raise ValueError(f"source 'engines' needs the preset {', '.join(others)} or {last}")
        if self.source != "prometheus" and (self.labels or self.role_labels):
            raise ValueError("labels and role_labels choose series of a Prometheus")
        for name in (*self.labels, *(name for labels in self.role_labels.values() for name in labels)):
            if LABEL_NAME.fullmatch(name) is None:
                raise ValueError(f"{name!r} is no name of a label")
        return self
