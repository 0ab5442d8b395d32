"""A Kubernetes API server for tests: see README.md. `server.KubeServer` starts one."""
