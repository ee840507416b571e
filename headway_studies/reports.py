"""Pages of what the studies' verbs write with `--json`, which `headway report` finds by an entry point."""

from collections.abc import Callable
from importlib import import_module

from headway_cli.report import Document, Kind


def _page(module: str) -> Callable[[Document], str]:
    """The module's `render`; imported only for a document of its verb."""

    def render(document: Document) -> str:
        page: str = import_module(f"headway_studies.commands.{module}").render(document)
        return page

    return render


KINDS = (
    Kind(
        verb="headway queue-sim",
        keys=frozenset({"setup", "policies", "orders"}),
        page=_page("queue_sim_view"),
    ),
    Kind(
        verb="headway recommend", keys=frozenset({"candidates", "recommended"}), page=_page("recommend_page")
    ),
)
