"""Hold running calls: their handles, the thread that runs them, and how a group ends."""
