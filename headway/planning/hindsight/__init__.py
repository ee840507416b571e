"""The policy `headway`: planning by hindsight. See `policy` for the theory."""

from headway.planning.hindsight.policy import HeadwayPolicy, make_headway

__all__ = ["HeadwayPolicy", "make_headway"]
