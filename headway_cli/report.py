"""`headway report`: the page of what another verb wrote with `--json`, found out by the document's keys."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from json import loads
from math import isfinite
from pathlib import Path
from typing import Annotated, Any

from pydantic import TypeAdapter, ValidationError

from headway.extensions import ExtensionPoint
from headway.simulation.report import ReportError, first_fault, parse_report
from headway_cli.errors import CliError
from headway_cli.flags import argument, option
from headway_cli.output import check_outputs, write_text

Document = Mapping[str, Any]

LARGEST = 1e40
"""No figure of a result is larger, and sums and products of such are finite."""


def report(
    result: Annotated[
        str, argument("RESULT", "What another verb wrote with --json, or a profile directory.")
    ],
    output: Annotated[str, option("FILE", "Where the HTML page goes.")] = "report.html",
) -> None:
    """Render a result as one self-contained HTML page."""
    check_outputs({"--output": output}, (result,))
    write_text(Path(output), render_result(result))
    print(f"wrote {output}")


def render_result(place: str) -> str:
    """The page of the result in a file; CliError names the file, the verb and what is wrong or missing."""
    if Path(place).is_dir():
        return _profiled(place)
    document = _read(place)
    keys = document.keys() if isinstance(document, dict) else frozenset[str]()
    known = kinds()
    fitting = [kind for kind in known if kind.keys <= keys]
    if not fitting:
        verbs = ", ".join(dict.fromkeys(kind.verb.split()[1] for kind in known))
        raise CliError(f"{place}: is no result of any verb; --json of these writes one: {verbs}")
    kind = max(fitting, key=lambda each: len(each.keys))
    try:
        _refuse_odd_figures(document)
        return kind.page(document)
    except ValidationError as error:
        raise CliError(f"{place}: is no result of {kind.verb}: {first_fault(error)}") from error
    except ReportError as error:
        raise CliError(f"{place}: is no result of {kind.verb}: {error}") from error
    except KeyError as error:
        raise CliError(f"{place}: is no result of {kind.verb}: {error.args[0]} is missing") from error
    except (TypeError, AttributeError, IndexError, ArithmeticError, ValueError) as error:
        raise CliError(f"{place}: is no result of {kind.verb}: its values do not fit together") from error


def _refuse_odd_figures(document: Document) -> None:
    """ReportError names the first figure that is not finite, or so large that a sum of such may not be."""
    left: list[tuple[tuple[Any, ...], Any]] = [((), document)]
    while left:
        way, node = left.pop()
        if isinstance(node, dict | list):
            inside = node.items() if isinstance(node, dict) else enumerate(node)
            left.extend(((*way, key), value) for key, value in reversed(list(inside)))
        elif isinstance(node, int | float) and not abs(node) <= LARGEST:
            wrong = (
                f"is beyond {LARGEST:g}"
                if isinstance(node, int) or isfinite(node)
                else "is not a finite number"
            )
            raise ReportError(f"{'.'.join(map(str, way))}: {wrong}")


def _read(place: str) -> Any:  # noqa: ANN401 - whatever the file holds
    try:
        return loads(Path(place).read_text(encoding="utf-8"))
    except OSError as error:
        raise CliError(f"{place}: cannot be read: {error.strerror or error}") from error
    except RecursionError as error:
        raise CliError(f"{place}: is not JSON that can be read: nested too deeply") from error
    except ValueError as error:
        raise CliError(f"{place}: is not JSON: {error}") from error


# Each page's module is imported when it is asked for: some bring their verb.
def _simulated(document: Document) -> str:
    from headway_cli.compare_document import parse_price
    from headway_cli.page.result import render

    found = parse_report(document)
    return render(found, *parse_price(document))


def _compared(document: Document) -> str:
    from headway_cli.compare_document import parse_comparison
    from headway_cli.page.compare import render

    return render(parse_comparison(document))


def _routed(document: Document) -> str:
    from headway_cli.compare_routings import RoutingsReport
    from headway_cli.routings_view import render_routings

    # Rate scale and number of requests differ between the rows, and are null for the trace.
    trace = document["trace"]
    if isinstance(trace, dict):
        trace = {**trace, "rate_scale": 1.0, "requests": 0}
    return render_routings(TypeAdapter(RoutingsReport).validate_python({**document, "trace": trace}))


def _fleet(document: Document) -> str:
    from headway_cli.fleet import parse_fleet
    from headway_cli.fleet_view import render

    return render(parse_fleet(document))


def _loaded(document: Document) -> str:
    from headway_cli.page.load import render_load

    return render_load(document)


def _advised(document: Document) -> str:
    from headway.planning.documents import AdviceDocument
    from headway_cli.advise import worth
    from headway_cli.page.advice import render

    return render(worth(AdviceDocument.model_validate(document)))


def _profiled(directory: str) -> str:
    from headway_cli.profile import is_profile, profile_page

    if not is_profile(directory):
        raise CliError(f"{directory}: is no profile directory")
    return profile_page(directory)


@dataclass(frozen=True, slots=True, kw_only=True)
class Kind:
    """A verb's documents: the keys by which they are known, and their page."""

    verb: str
    keys: frozenset[str]
    page: Callable[[Document], str]


OWN = (
    Kind(verb="headway simulate", keys=frozenset({"policy", "gpu_hours"}), page=_simulated),
    Kind(verb="headway simulate --fleet", keys=frozenset({"gpus", "deployments"}), page=_fleet),
    Kind(verb="headway compare", keys=frozenset({"policies"}), page=_compared),
    Kind(verb="headway compare --routings", keys=frozenset({"rows", "fleet"}), page=_routed),
    Kind(verb="headway load", keys=frozenset({"url", "outcomes"}), page=_loaded),
    Kind(verb="headway advise", keys=frozenset({"window", "points"}), page=_advised),
)


def kinds() -> Sequence[Kind]:
    """The kinds of this package and of others: an entry point of `headway.reports` is a tuple of Kind."""
    point = ExtensionPoint("headway.reports", "package with reports", {})
    return (*OWN, *(kind for package in point.names() for kind in point.load(package)))
