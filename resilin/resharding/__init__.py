"""State that is divided among ranks, and lives on when the world changes. See README.md."""
