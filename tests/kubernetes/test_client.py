"""The official client is imported as it is needed, by threads that may be several."""

import subprocess
import sys

from tests.patience import PATIENCE_S

PROGRAM = """
import sys, threading
from actors.connectors.kube_api import official_client

def loaded(name):
    module = sys.modules.get(name)
    return module is not None and not module.__spec__._initializing

def second():
    # Where the import of the whole still runs, and that of its part has ended: here two imports deadlocked.
    while not loaded("kubernetes.client"):
        pass
    official_client().CustomObjectsApi

sys.setswitchinterval(1e-6)
failed = []
threading.excepthook = lambda told: failed.append(told.exc_value)
threads = [threading.Thread(target=second), threading.Thread(target=lambda: official_client().ApiException)]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
assert not failed, failed
"""


def test_threads_that_need_the_client_at_once_wait_for_one_another() -> None:
    subprocess.run([sys.executable, "-c", PROGRAM], check=True, timeout=PATIENCE_S)
