"""`headway check` on the sections that only live operation reads."""

from pathlib import Path

import pytest
from cli_cases import headway


@pytest.fixture(autouse=True)
def _no_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("HEADWAY_API_KEYS", "DYN_PARENT_DGD_K8S_NAME"):
        monkeypatch.delenv(name, raising=False)


def written(folder: Path, text: str) -> Path:
    path = folder / "mine.yaml"
    path.write_text(text, encoding="utf-8")
    return path


@pytest.mark.parametrize(
    ("vllm", "fault"),
    [
        ("{model: /nowhere/model}", "engine.vllm.model: /nowhere/model: there is no such directory"),
        ("{model: model}", "model: holds no weights"),
        ("{args: {max_num_seqs: 3}}", "engine.vllm.args: max_num_seqs: is set by engine.max_batch_size"),
    ],
)
def test_a_model_that_vllm_could_not_load(
    vllm: str,
    fault: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("serve_apps.engines.vllm.loading.find_spec", lambda name: object())
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "config.json").write_text('{"architectures": ["X"]}')
    path = written(tmp_path, f"engine: {{kind: vllm, vllm: {vllm}}}")
    complaint = headway(capsys, "check", path).complaint()
    assert complaint.startswith(str(path))
    assert fault in complaint


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        ("gateway: {host: 0.0.0.0}", "gateway.host: 0.0.0.0 is open to other machines"),
        ("gateway: {tokenizer: nowhere.json}", "gateway.tokenizer"),
        ("connector: {kind: kubernetes}", "connector.kubernetes.name"),
        ("connector: {kind: kubernetes, kubernetes: {target: kuberay}}", "connector.kubernetes.name"),
        ("metrics: {source: prometheus}", "needs a url"),
        ("planner: {headway: {role_change_s: 15}}", "planner.headway.role_change_s"),
        ("pools: {decode: {min_replicas: 0}}", "pools.decode.min_replicas"),
    ],
)
def test_what_up_would_refuse(
    text: str, fault: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    complaint = headway(capsys, "check", written(tmp_path, text)).complaint()
    assert complaint.startswith(str(tmp_path / "mine.yaml"))
    assert fault in complaint


@pytest.mark.parametrize(
    "text",
    [
        "gateway: {host: 0.0.0.0, api_keys: [secret]}",
        "gateway: {host: 0.0.0.0, allow_anonymous: true}",
        "connector: {kind: kubernetes, kubernetes: {target: kuberay, name: mine}}",
        "connector: {kind: virtual}",
        "metrics: {source: prometheus, url: 'http://127.0.0.1:9090'}",
    ],
)
def test_what_up_takes(text: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    ended = headway(capsys, "check", written(tmp_path, text))
    assert ended.code == 0, ended.err
    assert "secret" not in ended.out + ended.err
