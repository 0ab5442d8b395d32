"""What several benchmarks are made of: jobs that are disturbed, steps in fixed shards."""
