"""Pages of what the studies' verbs write with `--json`, which `headway report` finds by an entry point."""

from headway_cli.report import Document, Kind


def _shared(document: Document) -> str:
    from headway_studies.commands.share import render
    from headway_studies.commands.shared_budget import parse_shared

    return render(parse_shared(document))


def _queued(document: Document) -> str:
    from headway_studies.commands.documents import QueueSimDocument, checked
    from headway_studies.commands.queue_sim_view import render

    return render(checked(QueueSimDocument, document))


def _recommended(document: Document) -> str:
    from headway_studies.commands.documents import RecommendDocument, checked
    from headway_studies.commands.recommend_page import render

    return render(checked(RecommendDocument, document))


def _planned(document: Document) -> str:
    from headway_studies.commands.documents import GpuPlanDocument, checked
    from headway_studies.commands.gpu_plan_page import render

    return render(checked(GpuPlanDocument, document))


KINDS = (
    Kind(verb="headway queue-sim", keys=frozenset({"setup", "policies", "orders"}), page=_queued),
    Kind(verb="headway share", keys=frozenset({"gpus", "deployments"}), page=_shared),
    Kind(verb="headway recommend", keys=frozenset({"candidates", "recommended"}), page=_recommended),
    Kind(verb="headway gpu-plan", keys=frozenset({"alternatives"}), page=_planned),
)
