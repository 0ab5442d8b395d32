"""The worker's side: `@elastic.run`, `State`, and how state becomes equal in a new world."""
