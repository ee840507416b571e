"""The gateway's side of routing: the dialogue with the Router actor, and the requests that it places."""
