"""Real agents as processes: what must hold when they move slots, die, and meet damage."""
