"""The operator of ElasticJob resources on Kubernetes. `python -m resilin.operator` runs it (extra `k8s`)."""
