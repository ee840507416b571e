"""`headway advise`: what a dry run's plan would have saved and kept, or acting has, as a table and a page."""

from json import dumps
from pathlib import Path
from typing import Annotated
from urllib.parse import quote

from headway.planning.advice_text import head, headline, notes, rows, sentences, shown_part
from headway.planning.documents import AdviceDocument
from headway_cli.control import KEY_VARIABLE, KeyVariable, UrlOption, client, parse
from headway_cli.errors import CliError
from headway_cli.flags import option, switch
from headway_cli.output import check_outputs, write_text
from headway_cli.terminal import bold, console, print_facts, print_notes, table

PATH = "/v1/control/advice"


def advise(
    *,
    url: UrlOption = None,
    api_key_env: KeyVariable = KEY_VARIABLE,
    since: Annotated[
        str | None, option("TIME", "The last TIME of the dry run, such as 24h, 90m or 7d; else all of it.")
    ] = None,
    page: Annotated[str | None, option("FILE", "Also write it as one self-contained HTML page.")] = None,
    json: Annotated[bool, switch("--json", "Print the document as the server sends it.")] = False,
) -> None:
    """Show what a dry run's plan would have saved and kept, or acting has, beside the fleet before."""
    check_outputs({"--page": page})
    server = client(url, api_key_env)
    document = server.get(f"{PATH}?since={quote(since)}" if since else PATH)
    if json:
        print(dumps(document, indent=1))
        if page is None:
            return
    found = worth(parse(AdviceDocument, document, server, PATH))
    if page is not None:
        # Here: a table does without it.
        from headway_cli.page.advice import render

        write_text(Path(page), render(found))
    if not json:
        print_advice(found)


def worth(found: AdviceDocument) -> AdviceDocument:
    """The same; CliError where there is nothing to tell."""
    if shown_part(found).window is not None:
        return found
    if found.acting:
        raise CliError(
            "no advice: the planner acts, and there was no dry run before; "
            "planner.advice.against names a fleet to compare with"
        )
    raise CliError("no advice yet: the planner has not watched a whole interval in a dry run")


def print_advice(found: AdviceDocument) -> None:
    """The table, the sentences and the notes."""
    out = console()
    out.print(bold(headline(found)))
    # Ranges and fleets stand below what they are of, so that the table fits; nothing in it is folded.
    names = [name.replace(": ", ":\n") for name in head(found)]
    lines = [[cell.replace(" (", "\n(") for cell in line] for line in rows(found)]
    out.print(table(names, lines, whole=range(len(names))))
    print_facts(sentences(found), out)
    print_notes(list(notes(found)), out)
