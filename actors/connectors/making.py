"""Settings → the connector that they name. Each kind is imported when it is asked for."""

from actors.connectors.protocol import Connector
from headway.config import HeadwayConfig


def make_connector(config: HeadwayConfig, application: str) -> Connector:
    """The connector for `connector.kind`. Making it does no I/O."""
    match config.connector.kind:
        case "ray_serve":
            from actors.connectors.ray_serve import RayServeConnector

            return RayServeConnector(config, application)
        case "virtual":
            from actors.virtual_connector.connector import VirtualConnector

            return VirtualConnector(config)
        case "kubernetes":
            from actors.connectors.kubernetes import KubernetesConnector

            return KubernetesConnector(config, application)
