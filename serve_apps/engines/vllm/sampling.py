"""A request -> vLLM's sampling parameters, as keyword arguments: what the model suggests, then the client.

The phases of a split request (the names are vLLM's):

    prefill   one token, thrown away; `do_remote_decode` keeps the KV for whoever comes with the answer
    decode    all tokens; `kv_transfer_params` is that answer, as it came
"""

from collections.abc import Mapping
from typing import Any

from serve_apps.engines.protocol import EngineRequest, KvHandle

LEAST_TOP_P = 1e-9
"""Stands for 0, which OpenAI allows and vLLM refuses: either way the likeliest token alone is left."""

SEND: Mapping[str, Any] = {
    "do_remote_decode": True,
    "do_remote_prefill": False,
    "remote_engine_id": None,
    "remote_block_ids": None,
    "remote_host": None,
    "remote_port": None,
}


def prefill_parameters(default: Mapping[str, Any]) -> dict[str, Any]:
    """For the prompt alone. What is sampled is thrown away, so nothing of the client's matters."""
    return {
        **default,
        "max_tokens": 1,
        "detokenize": False,
        "extra_args": {"kv_transfer_params": dict(SEND)},
    }


def decode_parameters(
    request: EngineRequest, kv: KvHandle | None, default: Mapping[str, Any]
) -> dict[str, Any]:
    """For the output."""
    said = {**default, **request.sampling, "max_tokens": request.max_tokens, "stop": list(request.stop)}
    if "top_p" in said:
        said["top_p"] = max(LEAST_TOP_P, said["top_p"])
    if kv is not None and kv.transfer:
        said["extra_args"] = {"kv_transfer_params": dict(kv.transfer)}
    return said
