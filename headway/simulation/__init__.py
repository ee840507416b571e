"""Simulation: the planner's policies and the engine model, driven in virtual time over real traces."""
