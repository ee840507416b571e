"""Who is next: the order of requests that are held."""
