"""The control API as the command uses it: JSON over HTTP, every fault one line.

Headway's control API listens beside its OpenAI API: `/v1/control/...`, see docs/reference/http.md.
"""

import json
import os
import ssl
from collections.abc import Mapping
from dataclasses import dataclass, field
from http import HTTPStatus
from http.client import HTTPException
from typing import Annotated, Any, TypeVar
from urllib.error import HTTPError, URLError
from urllib.request import HTTPSHandler, ProxyHandler, Request, build_opener

from pydantic import BaseModel, ValidationError

from headway.loadgen.client import error_text
from headway.loadgen.plan import authorisation, base_url
from headway_cli.errors import CliError
from headway_cli.flags import option
from headway_cli.ownership import running_url

URL_VARIABLE = "HEADWAY_URL"
Document = TypeVar("Document", bound=BaseModel)

DEFAULT_URL = "http://127.0.0.1:8000"
KEY_VARIABLE = "HEADWAY_API_KEY"
"""The environment variable that holds the key, unless --api-key-env names another."""

TIMEOUT_S = 10.0
LONGEST_ANSWER = 64 << 20

UrlOption = Annotated[
    str | None,
    option(
        "URL",
        f"The server; default: {URL_VARIABLE}, or what headway up runs here, or {DEFAULT_URL}.",
        "--url",
    ),
]
KeyVariable = Annotated[str, option("NAME", "Environment variable that holds the API key.", "--api-key-env")]


@dataclass(frozen=True, slots=True, kw_only=True)
class ControlClient:
    """One server's control API. Proxies of the environment are not used.

    Certificates are checked against the system's authorities, or those in the file that SSL_CERT_FILE names;
    `unverified`: not at all, for questions that hold no secret.
    """

    url: str
    unverified: bool = False
    api_key: str | None = field(default=None, repr=False)

    def get(self, path: str) -> Any:  # noqa: ANN401 - any JSON
        """The document at a path; CliError names address and fault."""
        return self._ask(Request(self._address(path)))

    def find(self, path: str) -> Any:  # noqa: ANN401 - any JSON
        """The same; None where the server has no such document."""
        try:
            return self.get(path)
        except CliError as error:
            if getattr(error.__cause__, "code", None) != HTTPStatus.NOT_FOUND:
                raise
            return None

    def patch(self, path: str, body: Mapping[str, Any]) -> Any:  # noqa: ANN401 - any JSON
        """The answer to a change."""
        request = Request(self._address(path), data=json.dumps(body).encode(), method="PATCH")
        request.add_header("Content-Type", "application/json")
        return self._ask(request)

    def _address(self, path: str) -> str:
        return base_url(self.url) + path

    def _https(self) -> HTTPSHandler:
        context = ssl.create_default_context()
        if self.unverified:
            context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
        return HTTPSHandler(context=context)

    def _ask(self, request: Request) -> Any:  # noqa: ANN401 - any JSON
        for name, value in authorisation(self.api_key).items():
            request.add_header(name, value)
        address = request.full_url
        try:
            with build_opener(ProxyHandler({}), self._https()).open(request, timeout=TIMEOUT_S) as response:
                text = response.read(LONGEST_ANSWER)
        except HTTPError as error:
            raise CliError(f"{address}: {_refusal(error)}") from error
        except (URLError, HTTPException, OSError) as error:
            reason = getattr(error, "reason", error)
            fault = getattr(reason, "strerror", None) or reason or type(error).__name__
            raise CliError(f"{address}: cannot be reached: {fault}") from error
        try:
            return json.loads(text)
        except ValueError:
            raise CliError(f"{address}: the answer is not JSON; is that a Headway gateway?") from None


def parse(model: type[Document], document: object, server: ControlClient, path: str) -> Document:
    """An answer as values; CliError names address and key where it is something else."""
    try:
        return model.model_validate(document)
    except ValidationError as error:
        fault = error.errors()[0]
        key = ".".join(map(str, fault["loc"]))
        raise CliError(
            f"{server.url}{path}: the answer is not as documented: {key}: {fault['msg']}"
        ) from error


def client(url: str | None, key_variable: str = KEY_VARIABLE) -> ControlClient:
    """The client for `--url`, or else for HEADWAY_URL, for what this user's `headway up` runs, or for the
    default address.
    """
    found = url or os.environ.get(URL_VARIABLE) or running_url() or DEFAULT_URL
    return ControlClient(url=found, api_key=os.environ.get(key_variable))


def _refusal(error: HTTPError) -> str:
    text = error.read(4096).decode(errors="replace")
    try:
        detail = error_text(json.loads(text))
    except ValueError:
        detail = ""
    return f"answered with status {error.code}" + (f": {detail}" if detail else "")
