"""An engine kind from an installed package: its options, its engine, and its declaration."""

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from headway.config import ConfigError, HeadwayConfig, Role, load_config
from headway.engine.kinds import EngineResources, engine_kind
from serve_apps.arguments import read_arguments
from serve_apps.engines import make_engine
from serve_apps.engines.protocol import AuxiliaryCall, ClientCall, EngineFailed, EngineRequest, Refused
from serve_apps.gateway.prompts import make_prompts
from tests.engines.engine_cases import collect, request
from tests.engines.virtual_loop import on_virtual_time
from tests.installed_package import installed_package

KIND = """
from headway.config import PositiveInt, Settings
from headway.engine.kinds import EngineKind, EngineResources, engine_options


class EchoOptions(Settings):
    words: PositiveInt = 2
    model: str | None = None


class EchoEngine:
    def __init__(self, words):
        self.words = words

    async def decode(self, request, kv):
        from serve_apps.engines.protocol import TokenChunk

        for _ in range(self.words):
            yield TokenChunk(" echo", 1)
        yield TokenChunk("", 0, "stop")


ECHO = EngineKind(
    make=lambda config, role, engine_id: EchoEngine(engine_options(config, ECHO).words),
    options=EchoOptions,
    file_settings=("engine.options.model",),
    resources=lambda config, role: EngineResources(gpus=2),
)


def fail(config, role, engine_id):
    raise ValueError("no such card")


FAILING = EngineKind(make=fail)
"""


ENTRY_POINTS = """[headway.engines]
echo = echo_engine:ECHO
wrong = echo_engine:EchoEngine
failing = echo_engine:FAILING
"""


@pytest.fixture(autouse=True)
def package(tmp_path: Path) -> Iterator[Path]:
    """A package that is installed beside headway, with a kind and one that is no declaration."""
    with installed_package(tmp_path, "echo_engine", KIND, ENTRY_POINTS) as info:
        yield info


USER = {"role": "user", "content": "Hi"}


def asked(body: dict[str, Any]) -> EngineRequest:
    call = ClientCall("/v1/chat/completions", json.dumps(body).encode(), False, True)
    return replace(request(max_tokens=3), call=call)


def settings(**engine) -> HeadwayConfig:
    return load_config(None, {f"engine.{key}": value for key, value in engine.items()})


@on_virtual_time
async def test_its_text_is_an_answer_and_more_than_text_is_refused():
    engine = make_engine(settings(kind="echo"), Role.MIXED, "e")
    (*_, last) = await collect(engine.decode(asked({"messages": [USER]}), None))
    assert json.loads(last.text)["choices"][0]["message"]["content"] == " echo echo"
    with pytest.raises(Refused, match="this engine makes only text"):
        await collect(engine.decode(asked({"messages": [USER], "logprobs": True}), None))
    status, body = await engine.auxiliary(AuxiliaryCall("POST", "/tokenize", b"{}"))
    assert (status, "of kind 'echo' makes only text" in body.decode()) == (404, True)


def test_its_declaration_answers_gateway_and_builders(tmp_path):
    (tmp_path / "weights").mkdir()
    file = tmp_path / "headway.yaml"
    file.write_text("engine: {kind: echo, options: {model: weights}}\n")
    config = read_arguments({"config": str(file)}, "disaggregated")
    assert config.engine.options["model"] == str(tmp_path / "weights")
    kind = engine_kind(config)
    assert (kind.simulated, kind.resources(config, Role.DECODE)) == (False, EngineResources(gpus=2))
    assert make_prompts(config).accuracy == "estimated"


@pytest.mark.parametrize(
    ("engine", "complaint"),
    [
        ({"kind": "echo", "options": {"word": 1}}, "engine.options.word: unknown key; did you mean 'words'?"),
        ({"kind": "echo", "options": {"words": 0}}, "engine.options.words: "),
        ({"kind": "simulated", "options": {"words": 1}}, "engine.options.words: unknown key"),
        ({"kind": "wrong"}, "engine.kind: 'wrong' is declared by type, not by an EngineKind"),
    ],
)
def test_what_is_wrong_is_one_line_with_its_key(engine, complaint):
    with pytest.raises(ConfigError) as caught:
        make_engine(settings(**engine), Role.MIXED, "e")
    assert str(caught.value).startswith(complaint)
    assert "\n" not in str(caught.value)


def test_an_unknown_kind_is_refused_with_the_known_ones():
    known = "'echo', 'external', 'failing', 'simulated', 'vllm' or 'wrong'"
    with pytest.raises(ConfigError, match=f"engine.kind: should be {known}, not 'quantum'"):
        settings(kind="quantum")


def test_an_engine_that_cannot_be_made_names_its_kind():
    said = "engine.kind 'failing': the engine does not start: ValueError: no such card"
    with pytest.raises(EngineFailed, match=f"^{said}$"):
        make_engine(settings(kind="failing"), Role.MIXED, "e")
