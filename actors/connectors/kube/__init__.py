"""Parts of the KubernetesConnector: where the object is, how it is reached, how its counts are read."""
