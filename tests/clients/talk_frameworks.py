"""Libraries on top of the openai client, in an environment of their own: URL MODEL."""

import json
import sys
from collections.abc import Callable

import instructor
from agents import (
    Agent,
    ModelSettings,
    OpenAIChatCompletionsModel,
    OpenAIResponsesModel,
    Runner,
    function_tool,
    set_tracing_disabled,
)
from langchain_core.tools import tool
from langchain_openai import ChatOpenAI, OpenAIEmbeddings
from openai import AsyncOpenAI, OpenAI
from pydantic import BaseModel
from pydantic_ai import Agent as TypedAgent
from pydantic_ai.models.openai import OpenAIChatModel
from pydantic_ai.providers.openai import OpenAIProvider

url, model = sys.argv[1:]
AT = {"base_url": f"{url}/v1", "api_key": "none"}
MOST_TOKENS = 80
QUESTION = "Will it be sunny, and for how long?"


class Verdict(BaseModel):
    """What the weather will be."""

    sunny: bool
    days: int


def langchain() -> None:
    chat = ChatOpenAI(model=model, max_tokens=8, max_retries=0, **AT)
    whole = chat.invoke(QUESTION)
    assert whole.content
    assert whole.usage_metadata["output_tokens"] == 8
    assert "".join(part.content for part in chat.stream(QUESTION)) == whole.content
    wide = ChatOpenAI(model=model, max_tokens=MOST_TOKENS, max_retries=0, **AT)
    for method in ("json_schema", "function_calling"):
        assert isinstance(wide.with_structured_output(Verdict, method=method).invoke(QUESTION), Verdict)

    @tool
    def look_up(days: int) -> str:
        """The weather of so many days."""
        return f"sun for {days} days"

    called = wide.bind_tools([look_up], tool_choice="required").invoke(QUESTION)
    (call,) = called.tool_calls
    assert call["name"] == "look_up"
    told = look_up.invoke(call)
    assert wide.invoke([("user", QUESTION), called, told]).content
    responding = ChatOpenAI(model=model, max_tokens=8, max_retries=0, use_responses_api=True, **AT)
    assert responding.invoke(QUESTION).text
    assert "".join(part.text for part in responding.stream(QUESTION))
    vectors = OpenAIEmbeddings(model=model, check_embedding_ctx_length=False, **AT)
    assert len(vectors.embed_documents(["Why?", "How?"])) == 2


def with_instructor() -> None:
    for mode in (instructor.Mode.TOOLS, instructor.Mode.JSON_SCHEMA):
        asking = instructor.from_openai(OpenAI(max_retries=0, **AT), mode=mode)
        verdict = asking.chat.completions.create(
            model=model,
            response_model=Verdict,
            max_retries=1,
            max_tokens=MOST_TOKENS,
            messages=[{"role": "user", "content": QUESTION}],
        )
        assert isinstance(verdict, Verdict)


def pydantic_ai() -> None:
    over = OpenAIChatModel(model, provider=OpenAIProvider(**AT))
    verdict = TypedAgent(over, output_type=Verdict, model_settings={"max_tokens": MOST_TOKENS})
    assert isinstance(verdict.run_sync(QUESTION).output, Verdict)


def openai_agents() -> None:
    """A loop of call, tool and formed answer, over chats and over responses."""
    set_tracing_disabled(True)
    asked: list[int] = []

    @function_tool
    def look_up(days: int) -> str:
        """The weather of so many days."""
        asked.append(days)
        return f"sun for {days} days"

    client = AsyncOpenAI(max_retries=0, **AT)
    settings = ModelSettings(max_tokens=MOST_TOKENS)
    for kind in (OpenAIChatCompletionsModel, OpenAIResponsesModel):
        over = kind(model=model, openai_client=client)
        agent = Agent(
            name="Weather", model=over, model_settings=settings, tools=[look_up], output_type=Verdict
        )
        assert isinstance(Runner.run_sync(agent, QUESTION).final_output, Verdict)
    assert len(asked) == 2


ALL: tuple[Callable[[], None], ...] = (langchain, with_instructor, pydantic_ai, openai_agents)

for each in ALL:
    each()
sys.stdout.write(json.dumps([each.__name__ for each in ALL]) + "\n")
