"""The plugins that scheduling profiles are made of, one a file."""
