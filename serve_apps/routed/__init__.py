"""The gateway's side of routing: asking the Router actor, and carrying out what it says."""
