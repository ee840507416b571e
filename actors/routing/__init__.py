"""The Router actor's insides: what gateways and router tell each other, and who owns which request."""
