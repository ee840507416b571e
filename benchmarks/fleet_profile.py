"""The error of `headway profile --fleet` where the truth is known: simulated replicas under Poisson traffic.

Two mixed replicas run by the A100's 8B profile, the base is the H100's; virtual time, one seed. Printed are
the median relative errors of TTFT and ITL over the samples of the profile, of the base, of what traffic alone
showed and with probes; then the share of the profile seen, the error that is told, and late users.
"""

import pathlib

RATES_RPS = (0.3, 1.0, 2.0, 6.0)
BUDGET_S = 300.0


def main(data: pathlib.Path | None) -> int:
    """Print the table."""
    del data
    from tests.profiling.fleet_cases import errors, watched

    print(f"fleet_profile: {BUDGET_S / 60:g} minutes; errors are medians, TTFT and ITL")
    for rate_rps in RATES_RPS:
        for probes in (False, True):
            found = watched(rate_rps, probes=probes, budget_s=BUDGET_S)
            said = found.meta
            base, corrected = (
                " ".join(f"{each:6.1%}" for each in errors(one)) for one in (found.base, found.profile)
            )
            seen = " ".join(f"{share:4.0%}" for share in said["coverage"].values())
            told = " ".join("   -" if each is None else f"{each:4.0%}" for each in said["error"].values())
            how = "probes " if probes else "traffic"
            print(
                f"  {rate_rps:4g} requests/s  {how}  base {base}  found {corrected}  seen {seen}  "
                f"told {told}  {said['probes']:3} probes  late {found.late} of {found.served}"
            )
    return 0
