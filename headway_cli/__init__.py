"""The `headway` command: one module a verb, thin; the only package that prints."""
