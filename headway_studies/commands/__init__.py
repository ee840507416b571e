"""Verbs of studies that most readers do not need: recommend, queue-sim and estimate."""
