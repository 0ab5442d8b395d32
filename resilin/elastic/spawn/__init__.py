"""How worker processes begin: by a spawner that outlives nobody, forked from a template where that is faster."""
