"""`headway decisions`: the planner's log, and one decision from its metrics to its replicas."""

from typing import Annotated

import typer

from headway_cli.control import UrlOption
from headway_cli.load_options import KEY_VARIABLE, KeyVariable

SHOWN = 20
POLL_S = 1.0


def register(app: typer.Typer) -> None:
    """Add the verb."""
    app.command("decisions")(decisions)


def decisions(
    *,
    url: UrlOption = None,
    api_key_env: KeyVariable = KEY_VARIABLE,
    follow: Annotated[bool, typer.Option("--follow", help="Go on with new ones until Ctrl-C.")] = False,
    decision_id: Annotated[
        int | None, typer.Option("--id", metavar="N", help="One decision, from its metrics to its replicas.")
    ] = None,
    limit: Annotated[int, typer.Option(metavar="N", help="The last N decisions.", min=1)] = SHOWN,
    json: Annotated[bool, typer.Option("--json", help="JSON, one decision a line.")] = False,
) -> None:
    """Show the planner's decisions: what was measured, decided and done."""
    from headway_cli.control import client
    from headway_cli.decision_log import DecisionLog, follow_log
    from headway_cli.decision_view import print_line, print_story

    log = DecisionLog(client(url, api_key_env))
    if decision_id is not None:
        print_story(log.one(decision_id), as_json=json)
        return
    last = -1
    for record in log.last(limit):
        print_line(record, as_json=json)
        last = record["id"]
    if follow:
        follow_log(log, last, lambda record: print_line(record, as_json=json), POLL_S)
