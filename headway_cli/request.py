"""`headway request`: one request by its id, from its arrival to its end."""

from collections.abc import Iterator, Mapping
from json import dumps
from typing import Annotated, Any
from urllib.parse import quote

from headway.words import clock, milliseconds, plural
from headway_cli.control import KEY_VARIABLE, KeyVariable, UrlOption, client
from headway_cli.flags import argument, switch
from headway_cli.terminal import bold, console, print_facts

PATH = "/v1/requests/"
Document = Mapping[str, Any]
Moment = tuple[float, str]
"""Seconds since the arrival, and what happened."""


def request(
    request_id: Annotated[str, argument("ID", "The header x-request-id of its answer.")],
    *,
    url: UrlOption = None,
    api_key_env: KeyVariable = KEY_VARIABLE,
    json: Annotated[bool, switch("--json", "The record as JSON.")] = False,
) -> None:
    """Show one request by its id: where it was placed and why, step by step, and how it ended."""
    found = client(url, api_key_env).get(PATH + quote(request_id, safe=""))["requests"]
    if json:
        print(dumps(found, indent=1))
        return
    for record in found:
        print_record(record)


def print_record(record: Document) -> None:
    """From its arrival to its end."""
    out = console()
    output = f", output {record['output']}" if record.get("output") else ""
    out.print(bold(f"{record['id']} at {clock(record['arrived_at'])}: {record['path']}{output}"))
    print_facts(_facts(record), out)
    for at_s, what in sorted(_moments(record), key=lambda moment: moment[0]):
        print(f"{at_s * 1e3:>12,.1f} ms  {what}")


def _facts(record: Document) -> dict[str, str]:
    error, slo, placement = record["error"], record["slo"], record["placement"]
    cached = "" if record["cached_tokens"] is None else f" ({record['cached_tokens']:,} cached)"
    facts = {
        "Ended": _ended(record) + ("" if error is None else f": {error['message']}"),
        "Tokens": f"{record['input_tokens'] or 0:,} of input{cached}, {record['output_tokens']:,} of output",
        "SLO": f"TTFT {_beside(record, 'ttft_s')}, TPOT {_beside(record, 'tpot_s')}: {_judged(slo)}",
    }
    if placement is not None:
        facts["Placed"] = _placed(placement)
    facts["Asked by"] = record["key"] + _tenant(record)
    if record["adapter"] is not None:
        facts["Adapter"] = record["adapter"]
    if record["trace"] is not None:
        facts["Trace"] = record["trace"]
    if "gateway" in record:
        facts["Gateway"] = record["gateway"]
    return facts


def _tenant(record: Document) -> str:
    """Where it is not the key, and there are keys at all."""
    return "" if record["tenant"] in ("", "anonymous", record["key"]) else f", tenant {record['tenant']}"


def _ended(record: Document) -> str:
    status = "" if record["status"] is None else f", status {record['status']}"
    return f"{record['outcome']}{status}"


def _beside(record: Document, name: str) -> str:
    """A latency beside its SLO."""
    limit_s = record["slo"][name]
    target = "" if limit_s is None else f" of {milliseconds(limit_s)}"
    return f"{milliseconds(record[name])}{target} ms"


def _judged(slo: Document) -> str:
    said = (slo["class"] and f"class {slo['class']}", slo["critical"] and "critical")
    named = f" ({', '.join(filter(None, said))})" if any(said) else ""
    return {True: "kept", False: "missed", None: "not judged"}[slo["met"]] + named


def _placed(placement: Document) -> str:
    reason = "" if placement["reason"] == placement["profile"] else f", {placement['reason']}"
    kind = "" if placement["route_class"] is None else f", {placement['route_class']}"
    predicted = [
        f"{name} {milliseconds(placement[key])} ms"
        for name, key in (("TTFT", "predicted_ttft_s"), ("TPOT", "predicted_tpot_s"))
        if placement[key] is not None
    ]
    expected = f"; predicted {', '.join(predicted)}" if predicted else ""
    held = f"; held {milliseconds(placement['queued_s'])} ms" if placement["queued_s"] else ""
    again = f"; {plural(placement['attempt'], 'placement')}" if placement["attempt"] > 1 else ""
    return f"by {placement['profile']}{reason}{kind}{expected}{held}{again}"


def _moments(record: Document) -> Iterator[Moment]:
    yield 0.0, "arrived"
    for step in record["steps"]:
        yield from _of_step(step)
    if record["ttft_s"] is not None:
        yield record["ttft_s"], "first token left"
    if record["e2e_s"] is not None:
        yield record["e2e_s"], f"ended: {record['outcome']}"


def _of_step(step: Document) -> Iterator[Moment]:
    name, began_s, took_s = step["name"], step["began_s"], step["took_s"]
    where = "" if step["replica"] is None else f" on {step['replica']}"
    if name == "route":
        if took_s is None:
            yield began_s, "waits for a place"
        else:
            how = "placed" if step["error"] is None else f"not placed: {step['error']}"
            yield began_s + took_s, f"{how}, {milliseconds(took_s)} ms after it asked for a place"
        return
    yield began_s, f"{name}{where}"
    for key, what in ENGINE[name]:
        if (at_s := (step["engine"] or {}).get(key)) is not None:
            yield began_s + at_s, f"  {what}"
    if step["error"] is not None:
        yield began_s + (took_s or 0.0), f"  {name} ended: {step['error']}"


ENGINE: Mapping[str, tuple[tuple[str, str], ...]] = {
    "prefill": (("begun_s", "the engine begins"), ("ended_s", "prompt computed")),
    "decode": (
        ("transferred_s", "KV transferred"),
        ("begun_s", "the engine begins"),
        ("first_token_s", "first token made"),
        ("ended_s", "last token made"),
    ),
}
"""What a replica says of itself, in order."""
