"""Which requests are others tried again, and how many of these a key may send.

    repeat     a request of whose bytes an earlier attempt of the same key failed at most FAILED_S ago
    failed     it was counted as an arrival, and ended as FAILURES say. A stream whose client left after its
               first token was served (`generation` ends it as "ok"): or a client that reads a little of many
               equal ones would hide that work
    answered   each failure explains one repeat

Equal requests that went well, or that run beside each other, are demand, each of them. A repeat that fails is
a failure like any other: of a chain of attempts the first is demand, the others are repeats.

A client may close and come again before the gateway sees that the first connection is closed. So where a
request breaks off, an equal one that came after it, at most LATE_S ago, becomes its repeat then.

OpenAI's clients say it themselves (CLAIM), also where the first attempt failed at another gateway, which has
its own books. A claim is believed while a failure of the same key is unanswered, of whatever request. So a
key never has more repeats than failures, and each chain has an attempt that was counted: a client that forges
repeats has to fail first, and hides no other key's demand.

Requests are kept as digests under a secret of the process. The oldest of more than MOST failures, some 40 MB,
are forgotten, and those that explain nothing any more; every step takes constant time in the mean.

A key's budget (`gateway.retry_budget`) is a bucket of so many repeats for each of its first attempts, these
weighed by exp(-age/MINUTE_S), and of FREE at the least. It counts while the gateway is overloaded: it has
turned a request away, but for its budget, or kept one for longer than its client waited, at most OVERLOAD_S
ago. Of those refused since the last that was let in, the n-th is told to wait until n of them have had room.
"""

import secrets
from collections import OrderedDict, deque
from collections.abc import Callable
from dataclasses import dataclass
from hashlib import blake2b
from math import exp, inf

from serve_apps.faults import Outcome, Shed
from serve_apps.gateway.admission import MINUTE_S, Bucket
from serve_apps.gateway.responses import HeaderList

FAILURES: frozenset[Outcome] = frozenset({"shed", "not_ready", "timeout", "aborted", "failed"})
FAILED_S = 600.0
"""Clients back off for seconds, queues of jobs for minutes. What comes later is a new wish."""
LATE_S = 1.0
MOST = 100_000
CLAIM = b"x-stainless-retry-count"
OVERLOAD_S, FREE = 10.0, 10


@dataclass(slots=True, eq=False)
class Attempt:
    """A request that was counted; `on_repeat` is called where it becomes a repeat later on."""

    key: str
    digest: bytes
    at_s: float
    repeat: bool
    on_repeat: Callable[[], None]
    refused: bool = False


def claimed(headers: HeaderList) -> bool:
    """Whether the client calls its request a repeat."""
    return any(name == CLAIM and value.strip(b"0").isdigit() for name, value in headers)


class Repeats:
    """The failures of late, and the attempts of the last second."""

    def __init__(self, clock: Callable[[], float], most: int = MOST) -> None:
        self._clock, self._most, self._secret = clock, most, secrets.token_bytes(16)
        self._of_requests: OrderedDict[bytes, list[float]] = OrderedDict()
        self._kept = 0
        self._of_keys: dict[str, deque[float]] = {}
        self._recent: deque[Attempt] = deque()
        self._alike: dict[bytes, deque[Attempt]] = {}

    def digest(self, key: str, path: str, body: bytes) -> bytes:
        """What equal requests of a key have in common."""
        state = blake2b(f"{key}\0{path}\0".encode(), digest_size=16, key=self._secret)
        state.update(body)
        return state.digest()

    def begin(
        self, key: str, digest: bytes, on_repeat: Callable[[], None] = lambda: None, *, claimed: bool = False
    ) -> Attempt:
        """A request is counted; `claimed` if its client calls it a repeat."""
        now_s = self._clock()
        attempt = Attempt(key, digest, now_s, self._answers(key, digest, now_s, claimed=claimed), on_repeat)
        self._forget(now_s)
        if not attempt.repeat:
            self._recent.append(attempt)
            self._alike.setdefault(digest, deque()).append(attempt)
        return attempt

    def end(self, attempt: Attempt, outcome: Outcome) -> None:
        """It is over."""
        now_s = self._clock()
        self._forget(now_s)
        alike = self._alike.get(attempt.digest)
        if outcome == "aborted" and alike and alike[-1] is not attempt and alike[-1].at_s >= attempt.at_s:
            later = alike.pop()
            later.repeat = True
            later.on_repeat()
        elif outcome in FAILURES:
            since_s = now_s - FAILED_S
            of_key = self._of_keys.setdefault(attempt.key, deque(maxlen=self._most))
            of_key.append(now_s)
            while of_key[0] < since_s:
                of_key.popleft()
            requests = self._of_requests
            requests.setdefault(attempt.digest, []).append(now_s)
            requests.move_to_end(attempt.digest)
            self._kept += 1
            while requests and (self._kept > self._most or next(iter(requests.values()))[-1] < since_s):
                self._kept -= len(requests.popitem(last=False)[1])

    def _answers(self, key: str, digest: bytes, now_s: float, *, claimed: bool) -> bool:
        """Whether there is a failure to answer, the newest, which is answered now."""
        of_key, of_request = self._of_keys.get(key), self._of_requests.get(digest)
        if not of_key or of_key[-1] < now_s - FAILED_S:
            return False
        if of_request and of_request[-1] >= now_s - FAILED_S:
            of_request.pop()
            self._kept -= 1
            if not of_request:
                del self._of_requests[digest]
        elif not claimed:
            return False
        of_key.pop()
        return True

    def _forget(self, now_s: float) -> None:
        """The attempts that cannot become repeats any more."""
        while self._recent and (self._recent[0].at_s < now_s - LATE_S or len(self._recent) > self._most):
            attempt = self._recent.popleft()
            alike = self._alike.get(attempt.digest)
            if alike and alike[0] is attempt:
                alike.popleft()
            if not alike:
                self._alike.pop(attempt.digest, None)


@dataclass(slots=True)
class Budget:
    """The books of one key."""

    of_repeats: Bucket
    at_s: float
    firsts: float = 0.0
    refused: int = 0


class RetryBudgets:
    """The budgets of all keys; a `share` of None lets all repeats in."""

    def __init__(self, share: float | None, clock: Callable[[], float]) -> None:
        self._share, self._clock = share, clock
        self._budgets: dict[str, Budget] = {}
        self._overloaded_s = -inf

    def check(self, attempt: Attempt) -> None:
        """Count an attempt. Shed: a repeat beyond the budget."""
        if self._share is None:
            return
        now_s = self._clock()
        key = self._budgets.setdefault(attempt.key, Budget(Bucket(now_s), now_s))
        key.firsts = key.firsts * exp((key.at_s - now_s) / MINUTE_S) + (not attempt.repeat)
        key.at_s = now_s
        if not attempt.repeat:
            return
        most = round(max(FREE, self._share * key.firsts))
        wait_s = key.of_repeats.wait_s(most, now_s)
        if wait_s <= 0.0:
            key.of_repeats.take(1.0)
            key.refused = 0
        elif now_s - self._overloaded_s <= OVERLOAD_S:
            key.refused, attempt.refused = key.refused + 1, True
            text = f"While too much is in flight this key may try {most} requests again in a minute"
            raise Shed(f"{text} (gateway.retry_budget)", retry_after_s=min(MINUTE_S, key.refused * wait_s))

    def ended(self, outcome: Outcome, attempt: Attempt | None, *, begun: bool) -> None:
        """A request is over; `begun` if it had a first token."""
        if outcome in ("shed", "not_ready", "timeout") or (outcome == "aborted" and not begun):
            self._overloaded_s = self._overloaded_s if attempt and attempt.refused else self._clock()
