"""Ray Serve's default way to stream, which the gateway is compared with.

    HTTP proxy -> FastAPI ingress (StreamingResponse) -> handle -> worker

As Serve's documentation shows it, with its default settings but for how many requests a replica takes at
once. The worker runs the same engine as ours, and the ingress writes the same events; it counts no
tokens, measures nothing and checks only types.
"""

import json
from collections.abc import AsyncIterator

from fastapi import FastAPI
from pydantic import BaseModel
from ray import serve
from ray.serve.handle import DeploymentHandle
from starlette.responses import JSONResponse, Response, StreamingResponse

from benchmarks.free_engine import FreeEngine
from headway.config import HeadwayConfig
from headway.planning import Role
from serve_apps.engines.protocol import EngineRequest, TokenChunk


class Asked(BaseModel):
    model: str
    prompt: str
    max_tokens: int
    stream: bool


class Worker:
    """Both phases of an engine that costs nothing."""

    def __init__(self, config: HeadwayConfig) -> None:
        self._engine = FreeEngine(config, Role.MIXED, "worker")
        self._served = 0

    async def stream(self, asked: Asked) -> AsyncIterator[TokenChunk]:
        self._served += 1
        request = EngineRequest(
            request_id=f"default-{self._served}",
            model=asked.model,
            prompt=asked.prompt,
            input_tokens=max(1, len(asked.prompt) // 4),
            max_tokens=asked.max_tokens,
        )
        async for chunk in self._engine.decode(request, None):
            yield chunk


def default_path(config: HeadwayConfig) -> serve.Application:
    web = FastAPI()

    @serve.deployment(name="Ingress", ray_actor_options={"num_cpus": 0}, max_ongoing_requests=100)
    @serve.ingress(web)
    class Ingress:
        def __init__(self, worker: DeploymentHandle) -> None:
            self._worker = worker.options(stream=True)

        @web.post("/v1/completions")
        async def completions(self, asked: Asked) -> Response:
            if not asked.stream:
                texts = [str(chunk.text) async for chunk in self._worker.stream.remote(asked)]
                return JSONResponse({"choices": [{"index": 0, "text": "".join(texts)}]})
            return StreamingResponse(self._events(asked), media_type="text/event-stream")

        async def _events(self, asked: Asked) -> AsyncIterator[str]:
            head = {"id": "cmpl-1", "object": "text_completion", "created": 0, "model": asked.model}
            async for chunk in self._worker.stream.remote(asked):
                choice = {
                    "index": 0,
                    "text": chunk.text,
                    "logprobs": None,
                    "finish_reason": chunk.finish_reason,
                }
                yield f"data: {json.dumps(head | {'choices': [choice]})}\n\n"
            yield "data: [DONE]\n\n"

    worker = serve.deployment(
        Worker, name="Worker", ray_actor_options={"num_cpus": 0}, max_ongoing_requests=100
    )
    return Ingress.bind(worker.bind(config))
