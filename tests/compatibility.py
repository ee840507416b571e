"""What clients may send, and who takes it: the cases behind the table of docs/reference/clients.md.

A case is a body, and its outcome `yes` (200) or `no` (refused with a reason). Each column of the table is
held against engines of its kind: simulated ones in tests/gateway, vLLM's own in tests/vllm.
"""

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from tests.gateway.serving import post

PAGE = Path(__file__).parents[1] / "docs/reference/clients.md"
COLUMNS = ("vLLM's server", "simulated", "vLLM, mixed", "vLLM, split")


class Case(NamedTuple):
    path: str
    fields: Mapping[str, Any]


USER = {"role": "user", "content": "Why?"}
SCHEMA = {"type": "object", "properties": {"sunny": {"type": "boolean"}}, "required": ["sunny"]}
TOOL = {"type": "function", "function": {"name": "look", "parameters": SCHEMA}}
CALLED = {"id": "c1", "type": "function", "function": {"name": "look", "arguments": "{}"}}
FOUND = [
    USER,
    {"role": "assistant", "content": None, "tool_calls": [CALLED]},
    {"role": "tool", "tool_call_id": "c1", "content": "5"},
]
IMAGE = {"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA"}}


def chat(**fields: Any) -> Case:
    return Case("/v1/chat/completions", {"messages": [USER], "max_tokens": 4} | fields)


def text(**fields: Any) -> Case:
    return Case("/v1/completions", {"prompt": "Why?", "max_tokens": 4} | fields)


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
    "chat: `tools`, `tool_choice: none`": chat(tools=[TOOL], tool_choice="none"),
    "chat: `tool_choice: auto` (vLLM: with `tool_call_parser`)": chat(tools=[TOOL]),
    "chat: `tool_choice: required`": chat(tools=[TOOL], tool_choice="required", max_tokens=40),
    "chat: `tool_choice` of a name": chat(
        tools=[TOOL], tool_choice={"type": "function", "function": {"name": "look"}}, max_tokens=40
    ),
    "chat: tool messages": chat(messages=FOUND),
    "chat: `response_format: json_object`": chat(response_format={"type": "json_object"}),
    "chat: `response_format: json_schema`": chat(
        response_format={"type": "json_schema", "json_schema": {"name": "s", "schema": SCHEMA}}, max_tokens=40
    ),
    "chat: `logprobs`, `top_logprobs`": chat(logprobs=True, top_logprobs=2),
    "chat: `n`": chat(n=2),
    "chat: `logit_bias`": chat(logit_bias={"5": 1}),
    "chat: `stop`": chat(stop=["x", "y"]),
    "chat: `seed`, `temperature`, `top_p`, penalties": chat(
        seed=1, temperature=0.5, top_p=0.9, presence_penalty=0.1, frequency_penalty=0.1
    ),
    "chat: `reasoning_effort`": chat(reasoning_effort="low"),
    "chat: `max_completion_tokens`": chat(max_completion_tokens=4),
    "chat: `user`, `metadata`": chat(user="u", metadata={"k": "v"}),
    "chat: image parts (a model without images)": chat(messages=[{"role": "user", "content": [IMAGE]}]),
    "vLLM: `top_k`, `min_p`, `repetition_penalty`": chat(top_k=5, min_p=0.1, repetition_penalty=1.1),
    "vLLM: `ignore_eos`, `min_tokens`": chat(ignore_eos=True, min_tokens=2),
    "vLLM: `stop_token_ids`, `include_stop_str_in_output`": chat(
        stop_token_ids=[7], stop="x", include_stop_str_in_output=True
    ),
    "vLLM: `structured_outputs.choice`": chat(structured_outputs={"choice": ["yes", "no"]}),
    "vLLM: `structured_outputs.regex`": chat(structured_outputs={"regex": "[ab]{2}"}),
    "vLLM: `structured_outputs.json`": chat(structured_outputs={"json": SCHEMA}, max_tokens=40),
    "vLLM: `structured_outputs.grammar`": chat(structured_outputs={"grammar": 'root ::= "a" | "b"'}),
    "vLLM: `chat_template_kwargs`": chat(chat_template_kwargs={"enable_thinking": False}),
    "vLLM: `priority`": chat(priority=0),
    "vLLM: `cache_salt`": chat(cache_salt="x"),
    "vLLM: `vllm_xargs`": chat(vllm_xargs={"k": "v"}),
    "vLLM: `prompt_logprobs`": chat(prompt_logprobs=1),
    "vLLM: `use_beam_search`": text(use_beam_search=True, n=2, temperature=0),
    "a field that nobody knows": chat(unheard_of=1),
    "completions": text(),
    "completions: token ids": text(prompt=[5, 6, 7]),
    "completions: several prompts": text(prompt=["Why?", "How?"]),
    "completions: `n`": text(n=2),
    "completions: `logprobs`": text(logprobs=2),
    "completions: `echo`": text(echo=True),
    "completions: `echo` with `logprobs`": text(echo=True, logprobs=1),
    "completions: `suffix`": text(suffix="x"),
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
    "responses: `previous_response_id`": response(previous_response_id="resp_1"),
    "`/tokenize`": Case("/tokenize", {"prompt": "Why?"}),
    "`/detokenize`": Case("/detokenize", {"tokens": [5, 6]}),
}


def outcomes(url: str, model: str) -> Mapping[str, str]:
    """The outcome of every case there; a status of its own where it is neither."""
    found = {}
    for label, case in CASES.items():
        answer = post(f"{url}{case.path}", json={"model": model, **case.fields}, timeout=300.0)
        refused = answer.status_code in (400, 404, 422) and "error" in answer.json()
        found[label] = "yes" if answer.status_code == 200 else "no" if refused else str(answer.status_code)
        if answer.status_code == 200 and case.fields.get("stream"):
            assert 'data: {"error"' not in answer.text, (label, answer.text)
    return found


def documented(column: str) -> Mapping[str, str]:
    """The outcomes of that column of the page."""
    at = 1 + COLUMNS.index(column)
    rows = [
        re.split(r"(?<!\\)\|", line.strip().strip("|"))
        for line in PAGE.read_text().splitlines()
        if "|" in line
    ]
    cells = {row[0].strip(): row[at].strip() for row in rows if len(row) == 1 + len(COLUMNS)}
    return {label: cells.get(label, "not in the table") for label in CASES}
