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
from headway.routing.books import Entry, enter, leave, move, withdraw
from headway.routing.fleet import Fleet, least_key
from headway.routing.record import Phase, Record
from headway.routing.replica import Replica


class Ledger:
    """Writes the fleet's table."""

    def __init__(self, fleet: Fleet) -> None:
        self._fleet = fleet

    def placed(self, record: Record, now_s: float, stay_s: float) -> None:
        """Enter a request in `record.prefill` and `record.decode`; a decode usually stays `stay_s`."""
        prefill, decode = _replicas(record)
        table, entry, slack_s, guard_s = self._fleet.table, record.entry, record.ttft_slack_s, record.guard_s
        record.phase, record.placed_s = Phase.PREFILL, now_s
        enter(table, _slot(prefill), _slot(decode), entry, now_s, stay_s, slack_s, guard_s)
        if prefill.alive:
            prefill.waiting.push(slack_s, record.number, record)
        if decode.alive:
            decode.running.push(guard_s, record.number, record)

    def prefilled(self, record: Record, now_s: float) -> None:
        """The prompt is computed: the prefill replica's estimate starts anew from what is left."""
        prefill, decode = _replicas(record)
        prefill.waiting.discard(record.number)
        slack_s = least_key(prefill.waiting)
        move(self._fleet.table, _slot(prefill), _slot(decode), record.entry, now_s, slack_s)
        record.phase = Phase.DECODE

    def released(self, record: Record) -> None:
        """Take the request off its replicas, whatever its phase."""
        prefill, decode = _replicas(record)
        table, entry = self._fleet.table, record.entry
        decode.running.discard(record.number)
        guard_s = least_key(decode.running)
        if record.phase is Phase.DECODE:
            leave(table, _slot(prefill), _slot(decode), entry, guard_s)
        else:
            prefill.waiting.discard(record.number)
            withdraw(table, _slot(prefill), _slot(decode), entry, least_key(prefill.waiting), guard_s)
        record.prefill = record.decode = None
        record.phase = Phase.QUEUED


def entry_of(record: Record, busy_s: float, work_s: float, prefill_load: float, load: float) -> Entry:
    """What the books say of a request at its two replicas."""
    tokens, output = float(record.request.input_tokens), float(record.expected_output)
    prefill, decode = _replicas(record)
    split = prefill is not decode
    return (
        tokens - record.cached_tokens,
        busy_s,
        work_s,
        tokens if split and prefill.role is Role.MIXED else 0.0,
        prefill_load if split else 0.0,
        tokens + output,
        tokens + 0.5 * output,
        output,
        load,
    )


def _slot(replica: Replica) -> int:
    return replica.slot if replica.alive else -1


def _replicas(record: Record) -> tuple[Replica, Replica]:
    assert record.prefill is not None
    assert record.decode is not None
    return record.prefill, record.decode
