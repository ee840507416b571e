"""Ray actors, one component each: timers, names, restarts and persistence around pure calls."""
