"""One script per question; each can run PyTorch beside resilin in the same run. Start with README.md."""
