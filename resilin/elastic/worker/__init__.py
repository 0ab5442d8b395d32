"""Take part as a worker: `@elastic.run`, `State`, and how state becomes equal in a new world."""
