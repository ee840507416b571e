"""Libraries that others wrote around OpenAI's API, as their users call them."""

import json
from pathlib import Path

from tests.clients.measured import MODEL, counted, program, run
from tests.gateway.serving import Running

HERE = Path(__file__).parent


def said(gateway: Running, client: str, tmp_path: Path) -> str:
    """The last line that the client's program prints."""
    script = str(HERE / f"talk_{client}.py")
    printed = run(
        *(program(client, "python"), script, gateway.url, MODEL),
        cwd=tmp_path,
        # It would fetch the prices of models.
        LITELLM_LOCAL_MODEL_COST_MAP="True",
    )
    return printed.splitlines()[-1]


def test_litellm(gateway: Running, tmp_path: Path) -> None:
    theirs = json.loads(said(gateway, "litellm", tmp_path))
    ours = counted(gateway)
    assert theirs == {"answers": ours.requests, "output_tokens": ours.output_tokens}
    # A wrong temperature and another model.
    assert ours.failed == 2


def test_frameworks(gateway: Running, tmp_path: Path) -> None:
    ran = json.loads(said(gateway, "frameworks", tmp_path))
    assert ran == ["langchain", "with_instructor", "pydantic_ai", "openai_agents"]
    assert counted(gateway).failed == 0
