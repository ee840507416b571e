"""Parts of the Router actor: its gateways, their lines, sessions and messages."""
