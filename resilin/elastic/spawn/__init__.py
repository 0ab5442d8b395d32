"""Start worker processes: by a spawner that outlives nobody, forked from a template where that is faster."""
