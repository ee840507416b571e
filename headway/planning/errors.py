"""The exception of `headway.planning`.

PlanningError (ValueError): a policy that cannot be made from its settings, or an observation that breaks
its contract. Missing measurements are no error; each policy states what it does then.
"""


class PlanningError(ValueError):
    """Settings or an observation that no decision can be made from: one line that names the field."""
