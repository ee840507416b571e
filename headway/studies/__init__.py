"""Offline studies, apart from the core: nothing but their verbs in `headway_cli.studies` imports them."""
