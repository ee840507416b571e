"""What can go wrong between a collector and its source.

CollectorError(Exception)
└── SourceDownError      no answer, too late, an HTTP error, or an answer that is not what was asked for
"""


class CollectorError(Exception):
    """Base of what reading metrics raises; the text says what and where, without credentials."""


class SourceDownError(CollectorError):
    """The source cannot be read."""
