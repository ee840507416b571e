"""Run on a host: a control plane with an address that no other host reaches, and why it does not start."""

import sys

from actors import control_plane
from headway.config import HeadwayConfig
from tests.hosts.ray_hosts import join


def main() -> None:
    join()
    config = HeadwayConfig.model_validate(
        {"metrics": {"source": "prometheus", "url": "http://127.0.0.1:9090"}}
    )
    try:
        control_plane.start(config, "another")
    except control_plane.ControlPlaneError as error:
        sys.stdout.write(str(error))


if __name__ == "__main__":
    main()
