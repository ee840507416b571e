"""Double-entry bookkeeping of requests on replicas: what is put on a replica is taken off again, exactly.

    placed      its prompt waits at the prefill replica; it is coming to the decode replica, often the same
    prefilled   it leaves the prefill replica's queue and runs at the decode replica
    released    whatever it still held is given back

Counts and tokens are whole or half numbers, so sums return to 0 without error; seconds and loads are set to 0
when the last request leaves. A replica that is GONE has no cells any more: nothing is written for it.

Prefill duty is a moving average of work placed, w seconds a time, over a decode's usual stay τ:

    duty(t) = duty(t') e^{−(t − t') / τ},   and duty + w / τ when work w is placed
"""

from headway.config.roles import Role
from headway.routing.books import Entry, enter, leave, move
from headway.routing.columns import Column
from headway.routing.fleet import Fleet, least_key
from headway.routing.record import Phase, Record
from headway.routing.replica import Replica

TPOT_SLO_S, TTFT_SLACK_S = int(Column.TPOT_SLO_S), int(Column.TTFT_SLACK_S)


class Ledger:
    """Writes the fleet's table."""

    def __init__(self, fleet: Fleet) -> None:
        self._fleet = fleet

    def placed(self, record: Record, now_s: float, stay_s: float) -> None:
        """Enter a request in `record.prefill` and `record.decode`; a decode usually stays `stay_s`."""
        prefill, decode = _replicas(record)
        record.phase, record.placed_s = Phase.PREFILL, now_s
        enter(self._fleet.table, _entry(record, prefill, decode), now_s, stay_s)
        if prefill.alive:
            prefill.waiting.push(record.ttft_slack_s, record.number, record)
            self._fleet.table[TTFT_SLACK_S, prefill.slot] = least_key(prefill.waiting)
        if decode.alive:
            decode.running.push(record.guard_s, record.number, record)
            self._fleet.table[TPOT_SLO_S, decode.slot] = least_key(decode.running)

    def prefilled(self, record: Record, now_s: float) -> None:
        """The prompt is computed: the prefill replica's estimate starts anew from what is left."""
        prefill, decode = _replicas(record)
        self._leave_queue(record, prefill)
        move(self._fleet.table, _entry(record, prefill, decode), now_s)
        record.phase = Phase.DECODE

    def released(self, record: Record) -> None:
        """Take the request off its replicas, whatever its phase."""
        prefill, decode = _replicas(record)
        prefilled = record.phase is Phase.DECODE
        leave(self._fleet.table, _entry(record, prefill, decode), prefilled)
        if not prefilled:
            self._leave_queue(record, prefill)
        if decode.alive:
            decode.running.discard(record.number)
            self._fleet.table[TPOT_SLO_S, decode.slot] = least_key(decode.running)
        record.prefill = record.decode = None
        record.phase = Phase.QUEUED

    def _leave_queue(self, record: Record, prefill: Replica) -> None:
        if prefill.alive:
            prefill.waiting.discard(record.number)
            self._fleet.table[TTFT_SLACK_S, prefill.slot] = least_key(prefill.waiting)


def _replicas(record: Record) -> tuple[Replica, Replica]:
    assert record.prefill is not None
    assert record.decode is not None
    return record.prefill, record.decode


def _entry(record: Record, prefill: Replica, decode: Replica) -> Entry:
    tokens, output = float(record.request.input_tokens), float(record.expected_output)
    split = prefill is not decode
    return Entry(
        prefill.slot if prefill.alive else -1,
        decode.slot if decode.alive else -1,
        float(record.uncached_tokens),
        record.busy_s,
        record.work_s,
        tokens if split and prefill.role is Role.MIXED else 0.0,
        record.prefill_load if split else 0.0,
        tokens + output,
        tokens + 0.5 * output,
        output,
        record.load,
    )
