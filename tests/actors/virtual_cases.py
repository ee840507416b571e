"""What tests of the virtual connector share: rules, a clock that is set, and a store that dies on demand."""

from actors.virtual_connector.coordinator import StoredLedger
from actors.virtual_connector.ledger import Rules
from headway.planning import Role
from tests.clocks import Clock
from tests.stores import MemoryStore

TIMEOUT_S = 1800.0
RULES = Rules(floor={Role.PREFILL: 1, Role.DECODE: 1}, scaling_timeout_s=TIMEOUT_S)


class Killed(BaseException):
    """The process ends here; nothing of ours catches it."""


class MortalStore(MemoryStore):
    """A store whose next put may be the last thing that the process does, or the thing it dies before."""

    def __init__(self) -> None:
        super().__init__()
        self.dies: str | None = None

    def put(self, key: str, value: bytes) -> None:
        dies, self.dies = self.dies, None
        if dies == "before":
            raise Killed
        super().put(key, value)
        if dies == "after":
            raise Killed


def new_ledger(
    store: MemoryStore | None = None, clock: Clock | None = None, rules: Rules = RULES
) -> StoredLedger:
    return StoredLedger(store or MemoryStore(), rules, clock or Clock())
