"""Decisions for an outside orchestrator: what may happen to them (`ledger`), how it is kept (`book`)."""
