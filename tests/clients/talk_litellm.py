"""What litellm can ask of a server that speaks OpenAI's API; runs in litellm's own environment: URL MODEL.

It prints how many answers it got, each of several outputs one, and how many tokens litellm counted in them.
"""

import asyncio
import json
import sys
from contextlib import suppress

import litellm

url, model = sys.argv[1:]
USER = [{"role": "user", "content": "Why is the sky blue?"}]
SCHEMA = {"type": "object", "properties": {"days": {"type": "integer"}}, "required": ["days"]}
TOOL = {"type": "function", "function": {"name": "look_up", "parameters": SCHEMA}}
answers, tokens = 0, 0


def took(completion_tokens: int, outputs: int = 1) -> None:
    global answers, tokens
    answers, tokens = answers + outputs, tokens + completion_tokens


def chat(provider: str, **fields):
    said = {"messages": USER, "max_tokens": 8, "num_retries": 0} | fields
    return litellm.completion(model=f"{provider}/{model}", api_base=f"{url}/v1", api_key="none", **said)


for provider in ("openai", "hosted_vllm"):
    whole = chat(provider)
    assert whole.choices[0].message.content
    assert whole.usage.completion_tokens == 8
    took(whole.usage.completion_tokens)
    *events, last = chat(provider, stream=True, stream_options={"include_usage": True})
    assert (
        "".join(event.choices[0].delta.content or "" for event in events) == whole.choices[0].message.content
    )
    took(last.usage.completion_tokens)
    called = chat(provider, tools=[TOOL], tool_choice="required", max_tokens=60)
    (call,) = called.choices[0].message.tool_calls
    assert call.function.name == "look_up"
    assert isinstance(json.loads(call.function.arguments)["days"], int)
    took(called.usage.completion_tokens)
    form = {"type": "json_schema", "json_schema": {"name": "days", "schema": SCHEMA}}
    formed = chat(provider, response_format=form, max_tokens=60)
    assert isinstance(json.loads(formed.choices[0].message.content)["days"], int)
    took(formed.usage.completion_tokens)
    several = chat(provider, n=2, logprobs=True, top_logprobs=2)
    assert [choice.index for choice in several.choices] == [0, 1]
    assert len(several.choices[0].logprobs.content) == 8
    took(several.usage.completion_tokens, outputs=2)

text = litellm.text_completion(
    model=f"text-completion-openai/{model}", prompt="Why?", max_tokens=8, api_base=f"{url}/v1", api_key="none"
)
assert text.choices[0].text
took(text.usage.completion_tokens)

said = litellm.responses(
    model=f"openai/{model}", input="Why?", max_output_tokens=8, api_base=f"{url}/v1", api_key="none"
)
assert said.output[0].content[0].text
took(said.usage.output_tokens)

vectors = litellm.embedding(
    model=f"openai/{model}", input=["Why?", "How?"], api_base=f"{url}/v1", api_key="none"
)
assert len(vectors.data) == 2

router = litellm.Router(
    model_list=[
        {
            "model_name": "any",
            "litellm_params": {"model": f"openai/{model}", "api_base": f"{url}/v1", "api_key": "none"},
        }
    ]
)
routed = asyncio.run(router.acompletion("any", messages=USER, max_tokens=8))
took(routed.usage.completion_tokens)

with suppress(litellm.BadRequestError):
    chat("openai", temperature=-1)
    raise AssertionError("a temperature below 0 is no request")
with suppress(litellm.NotFoundError):
    litellm.completion(
        model="openai/other", messages=USER, api_base=f"{url}/v1", api_key="none", num_retries=0
    )
    raise AssertionError("another model is not here")

sys.stdout.write(json.dumps({"answers": answers, "output_tokens": tokens}) + "\n")
