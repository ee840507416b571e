"""What clients may send, and who takes it: the cases behind the table of docs/reference/clients.md.

A case is a request. Its outcome is `yes` (200), `ignored` (200, but one of its fields is none that the
server reads) or `no` (refused with a reason). Each column of the table is held against engines of its kind,
simulated ones in tests/gateway, vLLM's own in tests/vllm. The same tests write their columns:

    HEADWAY_WRITE_TABLE=1 pytest -k the_page_says tests/gateway/test_compatibility.py tests/vllm
"""

import json
import os
import re
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import httpx

from tests.gateway.serving import post

PAGE = Path(__file__).parents[1] / "docs/reference/clients.md"
TABLE = re.compile(r"^\| what is sent \|.*\n(?:\|.*\n)+", re.MULTILINE)
Fields = Mapping[str, Collection[str]]
"""The fields of bodies that a server reads, by path."""

REFUSALS = (400, 404, 422, 501)
SLOW_S = 300.0
"""An engine's first answers compile."""


class Case(NamedTuple):
    """A body posted to `path`; without fields a GET. `{model}` in a path is the model's name."""

    path: str
    fields: Mapping[str, Any] | None = None


USER = {"role": "user", "content": "Why?"}
SCHEMA = {"type": "object", "properties": {"sunny": {"type": "boolean"}}, "required": ["sunny"]}
TOOL = {"type": "function", "function": {"name": "look", "parameters": SCHEMA}}
CALLED = {"id": "c1", "type": "function", "function": {"name": "look", "arguments": "{}"}}
FOUND = [
    USER,
    {"role": "assistant", "content": None, "tool_calls": [CALLED]},
    {"role": "tool", "tool_call_id": "c1", "content": "5"},
]
SOUND = {"type": "input_audio", "input_audio": {"data": "AAAA", "format": "wav"}}
IMAGE = {"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA"}}


def chat(**fields: Any) -> Case:
    return Case("/v1/chat/completions", {"messages": [USER], "max_tokens": 4} | fields)


def text(**fields: Any) -> Case:
    return Case("/v1/completions", {"prompt": "Why?", "max_tokens": 4} | fields)


def embedding(**fields: Any) -> Case:
    return Case("/v1/embeddings", {"input": "Why?"} | fields)


def response(**fields: Any) -> Case:
    return Case("/v1/responses", {"input": "Why?", "max_output_tokens": 4} | fields)


CASES: Mapping[str, Case] = {
    "chat": chat(),
    "chat: `stream`, `stream_options.include_usage`": chat(
        stream=True, stream_options={"include_usage": True}
    ),
    "chat: `continuous_usage_stats`": chat(
        stream=True, stream_options={"include_usage": True, "continuous_usage_stats": True}
    ),
    "chat: `stream_options` without `stream`": chat(stream_options={"include_usage": True}),
    "chat: `tools`, `tool_choice: none`": chat(tools=[TOOL], tool_choice="none"),
    "chat: `tool_choice: auto` (vLLM: with `tool_call_parser`)": chat(tools=[TOOL]),
    "chat: `tool_choice: required`": chat(tools=[TOOL], tool_choice="required", max_tokens=40),
    "chat: `tool_choice` of a name": chat(
        tools=[TOOL], tool_choice={"type": "function", "function": {"name": "look"}}, max_tokens=40
    ),
    "chat: tool messages": chat(messages=FOUND),
    "chat: `parallel_tool_calls: false`": chat(tools=[TOOL], tool_choice="none", parallel_tool_calls=False),
    "chat: `functions`, `function_call` (before `tools`)": chat(
        functions=[TOOL["function"]], function_call="auto"
    ),
    "chat: `response_format: json_object`": chat(response_format={"type": "json_object"}),
    "chat: `response_format: json_schema`": chat(
        response_format={"type": "json_schema", "json_schema": {"name": "s", "schema": SCHEMA}}, max_tokens=40
    ),
    "chat: `logprobs`, `top_logprobs`": chat(logprobs=True, top_logprobs=2),
    "chat: `top_logprobs` without `logprobs`": chat(top_logprobs=2),
    "chat: `n`": chat(n=2),
    "chat: `n`, `stream`": chat(n=2, stream=True),
    "chat: `logit_bias`": chat(logit_bias={"5": 1}),
    "chat: `stop`": chat(stop=["x", "y"]),
    "chat: `seed`, `temperature`, `top_p`, penalties": chat(
        seed=1, temperature=0.5, top_p=0.9, presence_penalty=0.1, frequency_penalty=0.1
    ),
    "chat: `reasoning_effort`": chat(reasoning_effort="low"),
    "chat: `max_completion_tokens`": chat(max_completion_tokens=4),
    "chat: `user`": chat(user="u"),
    "chat: `metadata`": chat(metadata={"k": "v"}),
    "chat: `service_tier`": chat(service_tier="auto"),
    "chat: `store`": chat(store=True),
    "chat: `prompt_cache_key`": chat(prompt_cache_key="k"),
    "chat: `safety_identifier`, `verbosity`": chat(safety_identifier="s", verbosity="low"),
    "chat: `prediction`": chat(prediction={"type": "content", "content": "Because"}),
    "chat: `developer` messages, `name`": chat(
        messages=[{"role": "developer", "content": "Be terse."}, USER | {"name": "Ann"}]
    ),
    "chat: text parts": chat(messages=[{"role": "user", "content": [{"type": "text", "text": "Why?"}]}]),
    "chat: `modalities: audio`, `audio`": chat(
        modalities=["text", "audio"], audio={"voice": "alloy", "format": "wav"}
    ),
    "chat: `web_search_options`": chat(web_search_options={}),
    "chat: image parts (a model without images)": chat(messages=[{"role": "user", "content": [IMAGE]}]),
    "chat: audio parts (a model without sound)": chat(messages=[{"role": "user", "content": [SOUND]}]),
    "vLLM: `top_k`, `min_p`, `repetition_penalty`": chat(top_k=5, min_p=0.1, repetition_penalty=1.1),
    "vLLM: `ignore_eos`, `min_tokens`": chat(ignore_eos=True, min_tokens=2),
    "vLLM: `stop_token_ids`, `include_stop_str_in_output`": chat(
        stop_token_ids=[7], stop="x", include_stop_str_in_output=True
    ),
    "vLLM: `bad_words`, `allowed_token_ids`": chat(bad_words=["x"], allowed_token_ids=[70, 71]),
    "vLLM: `skip_special_tokens`, `spaces_between_special_tokens`": chat(
        skip_special_tokens=False, spaces_between_special_tokens=False
    ),
    "vLLM: `truncate_prompt_tokens`": chat(truncate_prompt_tokens=8),
    "vLLM: `return_token_ids`": chat(return_token_ids=True),
    "vLLM: `return_tokens_as_token_ids`": chat(logprobs=True, return_tokens_as_token_ids=True),
    "vLLM: `request_id`": chat(request_id="mine"),
    "vLLM: chat `echo`": chat(echo=True),
    "vLLM: `add_generation_prompt: false`, `continue_final_message`": chat(
        messages=[USER, {"role": "assistant", "content": "Because"}],
        add_generation_prompt=False,
        continue_final_message=True,
    ),
    "vLLM: `chat_template` of a request": chat(chat_template="{{ messages[0]['content'] }}"),
    "vLLM: `include_reasoning: false`": chat(include_reasoning=False),
    "vLLM: `structured_outputs.choice`": chat(structured_outputs={"choice": ["yes", "no"]}),
    "vLLM: `structured_outputs.regex`": chat(structured_outputs={"regex": "[ab]{2}"}),
    "vLLM: `structured_outputs.json`": chat(structured_outputs={"json": SCHEMA}, max_tokens=40),
    "vLLM: `structured_outputs.grammar`": chat(structured_outputs={"grammar": 'root ::= "a" | "b"'}),
    "vLLM: `structured_outputs.structural_tag`": chat(
        structured_outputs={
            "structural_tag": json.dumps(
                {
                    "type": "structural_tag",
                    "format": {"type": "tag", "begin": "<a>", "content": {"type": "any_text"}, "end": "</a>"},
                }
            )
        }
    ),
    "vLLM: `chat_template_kwargs`": chat(chat_template_kwargs={"enable_thinking": False}),
    "vLLM: `priority`": chat(priority=0),
    "vLLM: `cache_salt`": chat(cache_salt="x"),
    "vLLM: `vllm_xargs`": chat(vllm_xargs={"k": "v"}),
    "vLLM: `prompt_logprobs`": chat(prompt_logprobs=1),
    "vLLM: `use_beam_search`": text(use_beam_search=True, n=2, temperature=0),
    "an unknown field": chat(unheard_of=1),
    "completions": text(),
    "completions: `stream`, `stream_options`": text(stream=True, stream_options={"include_usage": True}),
    "completions: token ids": text(prompt=[5, 6, 7]),
    "completions: several prompts": text(prompt=["Why?", "How?"]),
    "completions: several prompts of token ids": text(prompt=[[5, 6], [7, 8]]),
    "completions: `n`": text(n=2),
    "completions: `best_of`": text(best_of=2),
    "completions: `logprobs`": text(logprobs=2),
    "completions: `echo`": text(echo=True),
    "completions: `echo` with `logprobs`": text(echo=True, logprobs=1),
    "completions: `suffix`": text(suffix="x"),
    "completions: `response_format: json_schema`": text(
        response_format={"type": "json_schema", "json_schema": {"name": "s", "schema": SCHEMA}}, max_tokens=40
    ),
    "responses": response(),
    "responses: `stream`": response(stream=True),
    "responses: `instructions`": response(instructions="Be terse."),
    "responses: items": response(input=[USER]),
    "responses: `text.format` of a schema": response(
        text={"format": {"type": "json_schema", "name": "s", "schema": SCHEMA}}, max_output_tokens=40
    ),
    "responses: `tools`": response(
        tools=[{"type": "function", "name": "look", "parameters": SCHEMA}], tool_choice="none"
    ),
    "responses: `tool_choice: required`": response(
        tools=[{"type": "function", "name": "look", "parameters": SCHEMA}],
        tool_choice="required",
        max_output_tokens=60,
    ),
    "responses: `parallel_tool_calls: false`": response(parallel_tool_calls=False),
    "responses: `web_search` as a tool": response(tools=[{"type": "web_search"}]),
    "responses: `reasoning`": response(reasoning={"effort": "low"}),
    "responses: `store: false`": response(store=False),
    "responses: `store: true`": response(store=True),
    "responses: `metadata`, `user`, `service_tier`": response(
        metadata={"k": "v"}, user="u", service_tier="auto"
    ),
    "responses: `truncation: auto`": response(truncation="auto"),
    "responses: `include`": response(include=["message.output_text.logprobs"], top_logprobs=1),
    "responses: `background`": response(background=True),
    "responses: `conversation`": response(conversation="conv_1"),
    "responses: a stored one by its id": Case("/v1/responses/resp_1"),
    "responses: `previous_response_id`": response(previous_response_id="resp_1"),
    "embeddings (a model that makes text)": embedding(),
    "embeddings: several texts": embedding(input=["Why?", "How?"]),
    "embeddings: token ids": embedding(input=[5, 6]),
    "embeddings: `encoding_format: base64`": embedding(encoding_format="base64"),
    "embeddings: `dimensions`": embedding(dimensions=16),
    "`/v1/models`": Case("/v1/models"),
    "`/v1/models/{model}`": Case("/v1/models/{model}"),
    "`/health`": Case("/health"),
    "`/version`": Case("/version"),
    "`/metrics`": Case("/metrics"),
    "`/tokenize` of a prompt": Case("/tokenize", {"prompt": "Why?", "return_token_strs": True}),
    "`/tokenize` of messages": Case("/tokenize", {"messages": [USER]}),
    "`/detokenize`": Case("/detokenize", {"tokens": [5, 6]}),
    "`/v1/messages` (Anthropic's)": Case("/v1/messages", {"messages": [USER], "max_tokens": 4}),
    "`/score`": Case("/score", {"text_1": "Why?", "text_2": "How?"}),
    "`/rerank`": Case("/rerank", {"query": "Why?", "documents": ["How?"]}),
    "`/classify`": Case("/classify", {"input": "Why?"}),
    "`/pooling`": Case("/pooling", {"input": "Why?"}),
    "`/v1/moderations`": Case("/v1/moderations", {"input": "Why?"}),
    "`/v1/audio/speech`": Case("/v1/audio/speech", {"input": "Why?", "voice": "alloy"}),
    "`/v1/images/generations`": Case("/v1/images/generations", {"prompt": "The sky"}),
    "`/v1/files`": Case("/v1/files"),
    "`/v1/batches`": Case("/v1/batches"),
}


def outcomes(url: str, model: str, read: Fields) -> dict[str, str]:
    """The outcome of every case there; a status of its own where it is none of them."""
    return {label: _outcome(url, model, label, case, read) for label, case in CASES.items()}


def _outcome(url: str, model: str, label: str, case: Case, read: Fields) -> str:
    at, fields = url + case.path.format(model=model), case.fields or {}
    if case.fields is None:
        answer = httpx.get(at, timeout=SLOW_S)
    else:
        answer = post(at, json={"model": model, **fields}, timeout=SLOW_S)
    if answer.status_code == 200:
        assert 'data: {"error"' not in answer.text, (label, answer.text)
        return "ignored" if fields.keys() - read.get(case.path, fields.keys()) else "yes"
    refused = answer.status_code in REFUSALS and answer.json().keys() & {"error", "detail"}
    return "no" if refused else str(answer.status_code)


def through_gateway(read: Fields) -> Fields:
    """What is read of a body on its way through the gateway to an engine that reads `read`."""
    return {path: {*names, "prompt_cache_key"} for path, names in read.items()}


def hold(column: str, found: Mapping[str, str]) -> None:
    """The page's column is what was found; with HEADWAY_WRITE_TABLE in the environment it becomes that."""
    text = PAGE.read_text()
    (table,) = TABLE.findall(text)
    head, _, *rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in table.splitlines()]
    at = head.index(column)
    if "HEADWAY_WRITE_TABLE" in os.environ:
        cells = {row[0]: row for row in rows}
        kept = [cells.get(label, [label] + [""] * (len(head) - 1)) for label in CASES]
        written = [[*row[:at], found[row[0]], *row[at + 1 :]] for row in kept]
        lines = [head, ["---"] * len(head), *written]
        made = "".join(f"| {' | '.join(line)} |\n" for line in lines)
        PAGE.write_text(text.replace(table, made))
    else:
        assert found == {row[0]: row[at] for row in rows}
