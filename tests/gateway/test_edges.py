"""What is read once at the start: where to listen, the tokenizer, the layers."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import Whitespace

from headway.config import ConfigError, HeadwayConfig
from serve_apps.gateway.app import make_app
from serve_apps.gateway.prompts import estimated_tokens, plain_prompts
from tests.gateway.doubles import ScriptedBackend


def test_the_gateway_does_not_start_open_to_others():
    config = HeadwayConfig.model_validate({"gateway": {"host": "0.0.0.0"}})
    with pytest.raises(ConfigError, match=r"gateway\.host"):
        make_app(config, ScriptedBackend())


def test_keys_of_the_environment_count(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("HEADWAY_API_KEYS", "k")
    make_app(HeadwayConfig.model_validate({"gateway": {"host": "0.0.0.0"}}), ScriptedBackend())


@given(st.text())
def test_an_estimate_is_a_quarter_of_the_bytes_rounded_up(text):
    size = len(text.encode())
    count = estimated_tokens(text)
    assert count >= 1
    assert 4 * (count - 1) < max(1, size) <= 4 * count


def tokenizer_file(folder: Path) -> Path:
    tokenizer = Tokenizer(WordLevel({"why": 0, "blue": 1, "?": 2, "[UNK]": 3}, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = Whitespace()
    tokenizer.enable_truncation(2)
    tokenizer.enable_padding(length=7)
    file = folder / "tokenizer.json"
    tokenizer.save(str(file))
    return file


def test_tokens_are_counted_with_a_tokenizer(tmp_path: Path):
    file = tokenizer_file(tmp_path)
    for path in (file, tmp_path):
        prompts = plain_prompts(str(path))
        assert prompts.accuracy == "exact"
        assert prompts.count("why blue ? why not") == 5
        assert prompts.count("") == 1


def test_a_gateway_with_a_tokenizer_says_so(tmp_path: Path):
    config = HeadwayConfig.model_validate({"gateway": {"tokenizer": str(tokenizer_file(tmp_path))}})
    identity = make_app(config, ScriptedBackend()).state.identity
    assert identity.entry(identity.model)["token_count"] == "exact"


def test_what_is_no_tokenizer_is_said_in_one_line(tmp_path: Path):
    broken = tmp_path / "broken.json"
    broken.write_text("{}")
    (tmp_path / "binary").write_bytes(b"\xff\xfe")
    for path in (broken, tmp_path / "missing.json", tmp_path, tmp_path / "binary"):
        with pytest.raises(ConfigError, match=r"gateway\.tokenizer") as raised:
            plain_prompts(str(path))
        assert "\n" not in str(raised.value)
