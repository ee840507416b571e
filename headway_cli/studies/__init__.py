"""Verbs of studies that most readers do not need: queue-sim, share, gpu-plan and estimate."""
