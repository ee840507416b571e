"""Where a request goes: filters, scorers and pickers over the candidates."""
