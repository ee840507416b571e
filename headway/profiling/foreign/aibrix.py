"""AIBrix's JSON profile → prefill and decode tables.

That profile has, by [output tokens][input tokens], the highest rate r (requests/s) under its SLO, and mean
TTFT and TPOT of whole engines at that rate. What follows for our tables:

    prefill   ttft(isl) = the least TTFT over the output lengths at that ISL: the one with the least queueing
              in it
    decode    context   = isl + osl / 2
              n         = r · (osl - 1) · TPOT            requests that decode together, by Little's law; at
                        least 1
              kv usage  = n · context / max_kv_tokens     at most 1
              itl       = TPOT,   throughput per GPU = n / itl / gpus

TTFT has some queueing in it, so a profile from there is on the slow side. Where `tpot` is missing it is
(e2e - ttft) / (osl - 1). Points with a rate of 0, and outputs of one token in decode, say nothing. Pure but
for reading the file.
"""

from collections.abc import Iterator
from pathlib import Path

import numpy as np

from headway.profiling.errors import ForeignProfileError
from headway.profiling.foreign.values import ForeignProfile
from headway.routing.aibrix import AibrixTables, load_aibrix_tables
from headway.routing.types import RoutingError
from interp import DecodeSamples, PrefillSamples, ProfileError


def import_aibrix(path: Path, *, max_kv_tokens: int, gpus: int) -> ForeignProfile:
    """The profile in a file, of an engine on `gpus` GPUs with a KV cache of `max_kv_tokens`.

    Raises ForeignProfileError, one line: file, key and fault.
    """
    try:
        tables = load_aibrix_tables(path)
        return ForeignProfile(
            tp=gpus,
            prefill=_prefill(tables, gpus, path),
            decode=_decode(tables, gpus, max_kv_tokens, path),
            meta={
                "source": f"AIBrix profile {path.name} of {tables.gpu or 'a GPU'}, at its SLO's rates",
                "slos": dict(tables.slos),
                "tp": gpus,
            },
        )
    except RoutingError as error:
        raise ForeignProfileError(str(error)) from error
    except ProfileError as error:
        raise ForeignProfileError(f"{path}: {error}") from error


def _prefill(tables: AibrixTables, gpus: int, path: Path) -> PrefillSamples:
    if tables.ttft_s is None:
        raise ForeignProfileError(f"{path}: ttft: missing, and nothing else says how long a prefill takes")
    least: dict[float, float] = {}
    for row, column in _served(tables):
        isl, ttft_s = tables.input_tokens[column], tables.ttft_s[row][column]
        least[isl] = min(ttft_s, least.get(isl, ttft_s))
    if len(least) < 2:
        raise ForeignProfileError(
            f"{path}: tputs: above 0 at {len(least)} input lengths, at least 2 are needed"
        )
    isl_tokens, seconds = np.array(sorted(least)), np.array([least[isl] for isl in sorted(least)])
    if not (seconds > 0.0).all():
        raise ForeignProfileError(f"{path}: ttft: must be positive where tputs is")
    return PrefillSamples(
        isl_tokens=isl_tokens, ttft_s=seconds, throughput_per_gpu=isl_tokens / seconds / gpus
    )


def _decode(tables: AibrixTables, gpus: int, max_kv_tokens: int, path: Path) -> DecodeSamples:
    rows = list(_decode_rows(tables, path))
    if not rows:
        raise ForeignProfileError(f"{path}: tputs: 0 at every output of more than one token")
    context, batch, itl_s = np.array(rows).T
    return DecodeSamples(
        max_kv_tokens=max_kv_tokens,
        kv_usage=np.minimum(batch * context / max_kv_tokens, 1.0),
        context_tokens=context,
        itl_s=itl_s,
        throughput_per_gpu=batch / itl_s / gpus,
    )


def _decode_rows(tables: AibrixTables, path: Path) -> Iterator[tuple[float, float, float]]:
    """Context, batch and ITL of each point."""
    for row, column in _served(tables):
        osl = tables.output_tokens[row]
        if osl > 1.0:
            itl_s = _tpot_s(tables, row, column, path)
            batch = max(1.0, tables.rates_rps[row][column] * (osl - 1.0) * itl_s)
            yield tables.input_tokens[column] + osl / 2.0, batch, itl_s


def _tpot_s(tables: AibrixTables, row: int, column: int, path: Path) -> float:
    if tables.tpot_s is not None:
        tpot_s = tables.tpot_s[row][column]
    elif tables.e2e_s is not None and tables.ttft_s is not None:
        stay_s = tables.e2e_s[row][column] - tables.ttft_s[row][column]
        tpot_s = stay_s / (tables.output_tokens[row] - 1.0)
    else:
        raise ForeignProfileError(f"{path}: tpot: missing, and no e2e to tell it from")
    if tpot_s <= 0.0:
        raise ForeignProfileError(f"{path}: tpot[{row}][{column}]: must be positive, is {tpot_s:g}")
    return tpot_s


def _served(tables: AibrixTables) -> Iterator[tuple[int, int]]:
    """The places at which the SLO can be kept."""
    for row, rates in enumerate(tables.rates_rps):
        for column, rate in enumerate(rates):
            if rate > 0.0:
                yield row, column
