"""Verbs of studies that most readers do not need: recommend, queue-sim, share, gpu-plan and estimate."""
