"""An outside orchestrator that knows HTTP and nothing of ours: orchestrator.py URL JOURNAL WORK_SECONDS

It follows the decisions one by one, takes its time to carry each out, and writes down what it does.
"""

import json
import sys
import time
import urllib.error
import urllib.request


def ask(method: str, url: str):
    request = urllib.request.Request(url, method=method)
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    with opener.open(request, timeout=30.0) as answer:
        text = answer.read()
    return json.loads(text) if text else None


def main(url: str, journal: str, work_s: float) -> None:
    with open(journal, "a", encoding="utf-8", buffering=1) as book:
        while True:
            try:
                decision = ask("GET", f"{url}/v1/scaling/decisions/next?timeout_s=5")
                if decision is None:
                    continue
                number = decision["decision_id"]
                book.write(f"begin {number} {decision['num_prefill']} {decision['num_decode']}\n")
                time.sleep(work_s)
                ask("POST", f"{url}/v1/scaling/decisions/{number}/complete")
                book.write(f"done {number}\n")
            except (urllib.error.URLError, OSError):
                time.sleep(0.1)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], float(sys.argv[3]))
