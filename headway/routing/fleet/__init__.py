"""What stands where: replicas, their load and capacity, cached prefixes, adapters."""
