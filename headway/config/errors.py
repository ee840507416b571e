"""The exception of `headway.config`.

ConfigError (ValueError): a setting that cannot be used; one line naming file, dotted key and fault.
"""


class ConfigError(ValueError):
    """A setting that cannot be used: one line that names the source, the dotted key and what is wrong."""
