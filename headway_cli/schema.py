"""`headway schema`: the JSON schema of the configuration file."""

import typer


def register(app: typer.Typer) -> None:
    """Add the verb."""
    app.command("schema")(schema)


def schema() -> None:
    """Print the JSON schema of the configuration file."""
    import json

    from headway.config import json_schema

    print(json.dumps(json_schema(), indent=2))
