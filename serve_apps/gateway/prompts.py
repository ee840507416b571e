"""What a client asks with -> what the engine gets, and how many tokens that is.

    PlainPrompts   text as it is, chats as lines `role: content`; lengths counted or estimated (`tokens`)
    ModelPrompts   token ids by the model's own tokenizer and chat template: what counts is what is computed

Token ids pass as they are.
"""

from collections.abc import Sequence
from typing import Any, Protocol

from headway.config import ConfigError, HeadwayConfig
from serve_apps.gateway.chat import Message, prompt_of
from serve_apps.gateway.faults import InvalidRequest
from serve_apps.gateway.request import Wanted
from serve_apps.gateway.tokens import Accuracy, TokenCounter, make_counter

Read = tuple[str | Sequence[int], int]
"""The prompt of an engine, and its tokens."""


class Prompts(Protocol):
    """Reads prompts."""

    accuracy: Accuracy
    max_tokens: int | None

    def read(self, wanted: Wanted) -> Read:
        """The prompt of a request. InvalidRequest where the model can't read it."""


class PlainPrompts:
    """Text stays text."""

    max_tokens: int | None = None

    def __init__(self, counter: TokenCounter) -> None:
        self._counter = counter
        self.accuracy = counter.accuracy

    def read(self, wanted: Wanted) -> Read:
        """The prompt, and its tokens as counted or estimated."""
        prompt = prompt_of(wanted.messages) if wanted.messages else wanted.prompt
        return prompt, self._counter.count(prompt) if isinstance(prompt, str) else len(prompt)


class ModelPrompts:
    """As the model reads it. `max_tokens`: what it was made for, None where it doesn't say."""

    accuracy: Accuracy = "exact"

    def __init__(self, tokenizer: Any, max_tokens: int | None) -> None:  # noqa: ANN401 - transformers has no types
        self._tokenizer = tokenizer
        self._known_ids = len(tokenizer)
        self.max_tokens = max_tokens

    def read(self, wanted: Wanted) -> Read:
        """Token ids. InvalidRequest for a chat without a template, no tokens at all, or unknown ones."""
        if wanted.messages:
            ids = self._chat(wanted.messages)
        elif isinstance(wanted.prompt, str):
            ids = self._tokenizer.encode(wanted.prompt)
        else:
            ids = wanted.prompt
            if max(ids) >= self._known_ids:
                text = f"Invalid 'prompt': this model has token ids below {self._known_ids}"
                raise InvalidRequest(text, param="prompt")
        if not ids:
            raise InvalidRequest("Invalid 'prompt': for this model it has no tokens", param="prompt")
        return ids, len(ids)

    def _chat(self, messages: Sequence[Message]) -> Sequence[int]:
        said = [message.model_dump(exclude_none=True) for message in messages]
        try:
            text = self._tokenizer.apply_chat_template(said, add_generation_prompt=True, tokenize=False)
        except Exception as error:  # templates are programs of the model's authors
            reason = " ".join(str(error).split())
            text = f"The model's chat template does not take these messages: {reason}"
            raise InvalidRequest(text, param="messages") from error
        ids: Sequence[int] = self._tokenizer.encode(text, add_special_tokens=False)
        return ids


def make_prompts(config: HeadwayConfig) -> Prompts:
    """The reader of the model that is served. ConfigError, one line."""
    if config.engine.kind == "vllm":
        return _model_prompts(config.engine.vllm.model or config.model)
    return PlainPrompts(make_counter(config.gateway.tokenizer))


def _model_prompts(model: str) -> ModelPrompts:
    try:
        from transformers import AutoConfig, AutoTokenizer

        tokenizer = AutoTokenizer.from_pretrained(model)
        described = AutoConfig.from_pretrained(model).get_text_config()
    except (ImportError, OSError, ValueError) as error:
        reason = " ".join(str(error).split())
        raise ConfigError(f"engine.vllm.model: {model}: no tokenizer: {reason}") from error
    return ModelPrompts(tokenizer, getattr(described, "max_position_embeddings", None))
