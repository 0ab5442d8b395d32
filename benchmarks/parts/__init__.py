"""What several benchmarks share: processes, samples kept in pieces, jobs that are disturbed, steps in fixed shards."""
