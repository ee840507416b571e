"""Headway: a control plane that keeps LLM inference inside its latency promises on few GPUs."""
