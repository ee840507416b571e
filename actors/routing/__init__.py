"""Parts of the Router actor: messages, mailboxes and sessions of its gateways."""
